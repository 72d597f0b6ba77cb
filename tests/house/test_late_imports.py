"""Processes that outlive an upgrade in place import at their start all of snapline that they will need.

`pip install` replaces the files of the package while fleets run. A module that a running process imports only then is of the new release,
and may not fit to those that are loaded. docs/operating.md promises that this does not happen, so every import in a function that such a
process can reach is listed here, with the reason why it runs at the start.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.house import product as house
from tests.house.product import Product

pytestmark = pytest.mark.usefixtures("without_collections")

PROCESSES = {
    "host": ("agent_runtime/host/process.py", "agent_runtime/host/turn_marks.py", "telemetry/metrics_server.py"),
    "replica": ("coordinator/service/server.py", "telemetry/metrics_server.py"),
    "launcher": ("deploy/detached_fleet.py", "deploy/local.py", "deploy/running_fleet.py", "cli/progress.py"),
    "launch agent": ("deploy/launch_agent.py", "deploy/slurm_worker.py"),
    "gateway": ("gateway/app.py",),
    "view": ("view/view_app.py", "view/simulation_pages.py"),
    "adapters": ("adapters/",),
}
"""The files from which each long-lived process starts. Agents' modules import adapters, so a host can hold any of them."""

AT_THE_START = {
    "agent_runtime/host/process.py _make_driver": "called by the constructor of the host process",
    "coordinator/service/server.py _fleet_spans": "called by the constructor of the replica",
    "coordinator/service/users.py _certificate_check": "called by the constructor of the replica's users",
    "telemetry/spans.py open_spans": "called by the constructors of hosts and replicas",
    "telemetry/model_requests.py following": "host/process.py imports it if spans are exported, and it is not reached otherwise",
    "telemetry/model_requests.py following_run": "the same",
    "deploy/running_fleet.py _connect_loopback": "called as soon as the address is chosen, before a process starts",
    "cli/output.py _concern_line": "for `snapline status`, which does not live long",
    "client/trace_analysis.py": "pictures of an analysis, which notebooks show and processes of a fleet do not",
}


def late_imports(product: Product, *starts: str) -> dict[str, set[str]]:
    """Return the functions from which modules are imported that are not loaded with the files `starts`: `file function` → files."""
    at_import = {name: set(_imports(tree, product)) for name, tree in product.trees.items()}
    return _late(product, at_import, starts)


def _late(product: Product, at_import: dict[str, set[str]], starts: tuple[str, ...]) -> dict[str, set[str]]:
    loaded = {name for name in product.trees if name.startswith(starts)}
    loaded |= set().union(*(house.reachable(name, at_import) for name in loaded))
    late: dict[str, set[str]] = {}
    for name in loaded:
        for function in _functions(product.trees[name]):
            missing = set(_imports(function, product)) - loaded
            if missing:
                late[f"{name} {function.name}"] = missing
    return late


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in house.statements(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _imports(tree: ast.AST, product: Product) -> Iterator[str]:
    """Yield the product files that running this code imports: that of a module without the functions in it, or that of a function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from house.imported_files(ast.Module([node], []), product.trees)
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _imports(node, product)


def test_long_lived_processes_import_nothing_late(root: Path, files: list[Path]) -> None:
    product = house.read(root, files)
    at_import = {name: set(_imports(tree, product)) for name, tree in product.trees.items()}
    places = set()
    for process, starts in PROCESSES.items():
        late = _late(product, at_import, starts)
        places |= set(late)
        new = {place: sorted(what) for place, what in late.items() if not place.startswith(tuple(AT_THE_START))}
        assert not new, f"import these at the start of the {process}, or say in AT_THE_START why they are: {new}"
    assert [entry for entry in AT_THE_START if not any(place.startswith(entry) for place in places)] == []


def test_the_search_finds_a_late_import() -> None:
    texts = {
        "deploy/local.py": "import snapline.deploy.child\ndef f() -> None:\n    from snapline.deploy.marks import read",
        "deploy/child.py": "class C:\n    async def g(self) -> None:\n        if self:\n            import snapline.deploy.late",
        "deploy/marks.py": "",
        "deploy/late.py": "",
        "deploy/typed.py": "",
    }
    assert late_imports(house.product(texts), "deploy/local.py") == {
        "deploy/local.py f": {"deploy/marks.py"},
        "deploy/child.py g": {"deploy/late.py"},
    }
    eager = {**texts, "deploy/child.py": "from snapline.deploy import late, marks"}
    assert late_imports(house.product(eager), "deploy/local.py") == {}
    typed = {
        **texts,
        "deploy/local.py": "if TYPE_CHECKING:\n    from snapline.deploy.marks import read\ndef f() -> None: ...",
    }
    assert late_imports(house.product(typed), "deploy/local.py") == {}
