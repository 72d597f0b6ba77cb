"""The blocks of code of tutorials and how-to guides run: this table names the test that runs those of each page."""

import functools
import re
from pathlib import PurePath

import pytest
from tests.house.pages import ROOT, Block, blocks_of, commands_of, files_of, pages_of

TEXTS = "tests/house/test_texts.py"
RUN_BY = {
    "../README.md": TEXTS,
    "agent-sdks.md": "tests/adapters/test_agent_sdks_page.py",
    "autogen.md": "tests/adapters/autogen/test_page.py",
    "chaos.md": "tests/chaos/test_chaos_page.py",
    "clients.md": TEXTS,
    "crash-kit.md": TEXTS,
    "dead-letters.md": TEXTS,
    "dependencies.md": TEXTS,
    "deploy.md": "tests/deploy/test_pages.py",
    "deploy-containers.md": "tests/containers/test_podman_launcher.py",
    "deploy-kubernetes.md": "tests/containers/test_play_kube.py",
    "deploy-ray.md": "tests/deploy/test_ray_launcher.py",
    "deploy-slurm.md": "tests/deploy/test_slurm_launcher.py",
    "deploy-ssh.md": "tests/deploy/test_ssh_launcher.py",
    "deploy-systemd.md": "tests/deploy/test_systemd.py",
    "does-not-end.md": TEXTS,
    "durable-turns.md": TEXTS,
    "effects.md": TEXTS,
    "examples.md": TEXTS,
    "first-fleet.md": TEXTS,
    "forks.md": TEXTS,
    "gateway.md": "tests/integration/test_gateway_page.py",
    "going-back.md": TEXTS,
    "grpc.md": "tests/adapters/grpc_services/test_page.py",
    "langgraph.md": "tests/adapters/langgraph/test_page.py",
    "migrations.md": "tests/agent_runtime/test_migrations.py",
    "one-cut.md": "tests/adapters/one_cut/test_page.py",
    "operating.md": "tests/integration/test_operating_page.py",
    "protection.md": "tests/integration/test_protection_page.py",
    "ray-actors.md": "tests/adapters/ray_actors/test_page.py",
    "recorded-answers.md": TEXTS,
    "runbook.md": "tests/integration/watching.py",
    "security.md": "tests/integration/test_security_page.py",
    "session-stores.md": "tests/adapters/session_stores/test_page.py",
    "simulation.md": "tests/cli/test_sim.py",
    "state.md": "tests/examples/test_state_page.py",
    "testing.md": TEXTS,
    "torch.md": "tests/adapters/torch_checkpoint/test_page.py",
    "tracing.md": "tests/integration/test_tracing_page.py",
    "tutorial.md": TEXTS,
    "ui.md": "tests/integration/test_ui_page.py",
}
"""The test that writes the files of a page of docs/, and runs its commands."""

NOT_RUN = {
    "examples.md": 1,  # needs Pydantic AI: tests/adapters/pydantic_agents/test_examples_page.py
    "one-cut.md": 1,  # a diagram
    "runbook.md": 1,  # a part of Prometheus' configuration, which the test reads
}
"""Number of blocks of a page that its test does not run. New pages have none."""

PAGES = ["../README.md", *pages_of("Tutorials", "How-to guides")]


@functools.cache
def programs() -> str:
    """Programs that run in other tests, without their line breaks and indentation."""
    folders = ("src/snapline/examples", "tests/adapters")
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return " ".join(" ".join(path.read_text().split()) for path in paths)


def is_run(block: Block) -> bool:
    """Tests read `console` blocks and files that name themselves, or run a whole program of which a page shows a part; readers install packages."""
    is_install = all(line.startswith("pip install ") for line in block.text.splitlines())
    is_file = bool(re.match(r"# \w+\.(py|toml)\n", block.text))
    is_part = block.language == "python" and " ".join(block.text.split()) in programs()
    return is_install or block.language == "console" or is_file or is_part


def blocks(page: str) -> list[Block]:
    return list(blocks_of((ROOT / "docs" / page).read_text()))


def test_each_page_with_blocks_has_its_test_and_no_other() -> None:
    assert {page for page in PAGES if blocks(page)} == set(RUN_BY)


@pytest.mark.parametrize(("page", "module"), RUN_BY.items())
def test_the_test_reads_the_page_and_each_block_is_of_a_kind_that_runs(page: str, module: str) -> None:
    source = (ROOT / module).read_text()
    assert re.search(rf'[/"]{re.escape(PurePath(page).name)}"', source), f"{module} does not name {page}"
    is_shown = re.search(r"from tests\.kit\.shown_page import .*\bshown\b", source) and re.search(r"\bshown\(", source)
    if is_shown and page not in NOT_RUN:
        return  # these say by themselves which blocks are left over
    assert is_shown or re.search(r"\b(files_of|commands_of|read_text)\(", source), f"{module} reads no page"
    left = [f"{page}:{block.line}: {block.text[:50]!r}" for block in blocks(page) if not is_run(block)]
    assert len(left) == NOT_RUN.get(page, 0), "no test runs these: " + "\n".join(left)


@pytest.mark.parametrize("page", [page for page, module in RUN_BY.items() if module == TEXTS])
def test_each_file_of_a_page_is_run_by_a_command_or_imported(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    files, commands = files_of(text), " ".join(command.text for command in commands_of(text))
    for name in files:
        others = [code for other, code in files.items() if other != name]
        assert re.search(rf"\b{name[:-3]}\b", " ".join([commands, *others])), f"{page}: nothing runs {name}"


PAGE = """# Title

    pip install 'snapline[http]'

- a list
    goes on

```python
# shop.py
    x = 1
```

```
snapline status
```

    snapline down
"""


def test_blocks_are_found_in_a_page() -> None:
    found = list(blocks_of(PAGE))
    assert found == [
        Block(3, "", "pip install 'snapline[http]'\n"),
        Block(9, "python", "# shop.py\n    x = 1\n"),
        Block(14, "", "snapline status\n"),
        Block(17, "", "snapline down\n"),
    ]
    assert [is_run(block) for block in found] == [True, True, False, False]
