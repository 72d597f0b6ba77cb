"""The import graph of made-up trees, and of the standard library."""

from pathlib import Path

import pytest

from snapline.errors import UsageError
from snapline.examples.import_graph import ImportGraph, read_graph, read_tree, write_graph


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def imports_of(graph: ImportGraph, name: str) -> list[str]:
    return [graph.modules[target] for target in graph.imports[graph.modules.index(name)]]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write_tree(
        tmp_path,
        {
            "a/__init__.py": "",
            "a/b.py": "",
            "a/c/__init__.py": "name = 1",
            "a/c/d.py": "",
            "top.py": "",
        },
    )


@pytest.mark.parametrize(
    ("where", "text", "reached"),
    [
        ("user.py", "import a.b", ["a", "a.b"]),
        ("user.py", "import a.c.d as short, top", ["a", "a.c", "a.c.d", "top"]),
        ("user.py", "from a import b", ["a.b"]),
        ("user.py", "from a import b, something", ["a", "a.b"]),
        ("user.py", "from a.c import *", ["a.c"]),
        ("user.py", "import sys, os.path, numpy", []),
        ("user.py", "from elsewhere import a", []),
        ("a/user.py", "from . import b", ["a.b"]),
        ("a/user.py", "from .c import d, name", ["a.c", "a.c.d"]),
        ("a/user.py", "from . import name", ["a"]),
        ("a/c/user.py", "from .. import b", ["a.b"]),
        ("a/c/user.py", "from ..b import x", ["a.b"]),
        ("a/c/user.py", "from ... import top", []),
        ("a/c/__init__.py", "from . import d", ["a.c.d"]),
        ("a/c/__init__.py", "from .. import b", ["a.b"]),
        ("a/c/__init__.py", "from . import name", []),
        ("user.py", "from . import top", []),
        ("user.py", "def f():\n    if f:\n        pass\n    else:\n        import top", ["top"]),
        (
            "user.py",
            "try:\n    import a\nexcept ImportError:\n    import top\nfinally:\n    import a.b",
            ["a", "a.b", "top"],
        ),
        ("user.py", "match 1:\n    case 1:\n        import top", ["top"]),
        ("user.py", "class C:\n    with f():\n        import top", ["top"]),
        ("user.py", "f = lambda: g if h else i\nimport user", []),
    ],
)
def test_an_import_statement_reaches(package: Path, where: str, text: str, reached: list[str]) -> None:
    write_tree(package, {where: text})
    name = where.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    assert imports_of(read_tree(package), name) == reached


def test_what_does_not_parse_is_counted_and_can_still_be_imported(package: Path) -> None:
    write_tree(package, {"old.py": "print 'hello'\nimport top", "user.py": "import old"})
    (package / "null.py").write_bytes(b"import top\x00")
    graph = read_tree(package)
    assert graph.unparsed == ["null", "old"]
    assert imports_of(graph, "old") == []
    assert imports_of(graph, "user") == ["old"]


def test_names_that_cannot_be_imported_are_no_modules(package: Path) -> None:
    write_tree(package, {"site-packages/x.py": "", "a/not-a-name.py": "", "top/__init__.py": "", "data.txt": ""})
    graph = read_tree(package)
    assert graph.modules == ["a", "a.b", "a.c", "a.c.d", "top"]


@pytest.mark.slow
def test_the_standard_library_is_large_and_tangled() -> None:
    """The example's default: enough modules, thousands of imports, and cycles. Slow: it parses all of it."""
    graph = read_tree()
    assert 600 <= len(graph.modules) <= 1_800
    assert 2_500 <= graph.edge_count() <= 20_000
    assert "json.decoder" in imports_of(graph, "json")
    assert not any(name == "test" or name.startswith("test.") for name in graph.modules)
    assert graph.modules == sorted(graph.modules)
    assert has_cycle(graph)


def has_cycle(graph: ImportGraph) -> bool:
    """Take away modules whose imports are all gone, until none goes."""
    left = set(range(len(graph.modules)))
    while gone := {module for module in left if not left.intersection(graph.imports[module])}:
        left -= gone
    return bool(left)


def test_a_written_graph_reads_back_equal_and_writes_the_same_bytes(package: Path, tmp_path: Path) -> None:
    graph = read_tree(package)
    write_graph(graph, tmp_path / "one.json")
    assert read_graph(tmp_path / "one.json") == graph
    write_graph(read_graph(tmp_path / "one.json"), tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", '{"modules":["a"],"imports":[[1]],"unparsed":[]}', '{"modules":[],"imports":[[]],"unparsed":[]}'],
)
def test_a_file_that_holds_no_graph_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "graph.json").write_text(text)
    with pytest.raises(UsageError, match="write it again"):
        read_graph(tmp_path / "graph.json")


def test_a_place_without_modules_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no Python module"):
        read_tree(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no import graph"):
        read_graph(tmp_path / "nowhere.json")
