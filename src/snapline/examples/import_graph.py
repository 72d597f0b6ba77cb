"""Read the import graph of a tree of Python modules from their source code with `ast`. The modules are not executed.

The graph contains only the modules in the tree. Imports of other modules, such as `sys` or an installed package, are ignored:

- `import a.b` imports `a.b` and its package `a`.
- `from a import b` imports `a.b` if `a.b` is a module, otherwise `a`. `from a import *` imports `a`.
- Relative imports are resolved relative to the package of the importing module. A relative import that leads out of the tree is ignored.
- Imports count wherever they occur, for example in a function, under `if TYPE_CHECKING:` or in a `try:` block.
- A module never imports itself. So `from . import name` in a package's own `__init__` creates no edge, unless `name` is a module.

A file that cannot be parsed is a module without imports, because other modules may import it. `unparsed` contains these files. Modules are
sorted by their dotted names, so two hosts that read the same tree build the same graph.

Reading the standard library takes two to four seconds, and every host needs the graph. So the program that starts a fleet reads the tree
once, writes the graph to a file with `write_graph`, and passes the file to the hosts (`--arg graph=FILE`):

    python -m snapline.examples.import_graph --out graph.json
"""

import argparse
import ast
import os
import sysconfig
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from snapline.errors import UsageError

STANDARD_LIBRARY_LEFT_OUT = ("test",)
"""Packages that are skipped. CPython's own tests are nearly half of the files, but no module imports them, and they are not installed
everywhere."""


class ImportGraph(msgspec.Struct, frozen=True):
    """The sorted modules of a tree, and their imports. `imports[i]` contains the sorted indices of the modules that module i imports."""

    modules: list[str]
    imports: list[list[int]]
    unparsed: list[str]

    def edge_count(self) -> int:
        return sum(len(targets) for targets in self.imports)


class _Module(msgspec.Struct, frozen=True):
    path: Path
    is_package: bool


def standard_library() -> Path:
    """Return the folder of the running interpreter's standard library, even in a virtual environment."""
    return Path(sysconfig.get_paths()["stdlib"])


def read_tree(source: str | os.PathLike[str] | None = None) -> ImportGraph:
    """Return the import graph of the tree at `source`. If `source` is None, return the graph of the standard library without its tests.

    `source` is a directory that could be an entry of `sys.path`, so the files directly in it are top-level modules.

    Raises:
        UsageError: If `source` contains no Python module.
    """
    root = standard_library() if source is None else Path(source)
    files = _find_modules(root, left_out=STANDARD_LIBRARY_LEFT_OUT if source is None else ())
    if not files:
        raise UsageError(f"no Python module under {str(root)!r}: give a directory that holds .py files")
    modules = sorted(files)
    position = {name: index for index, name in enumerate(modules)}
    imports: list[list[int]] = []
    unparsed: list[str] = []
    for name in modules:
        tree = _parse(files[name].path)
        if tree is None:
            unparsed.append(name)
        reached = set() if tree is None else _reached(tree, name, is_package=files[name].is_package, known=position)
        imports.append(sorted(position[target] for target in reached if target != name))
    return ImportGraph(modules=modules, imports=imports, unparsed=unparsed)


def write_graph(graph: ImportGraph, path: str | os.PathLike[str]) -> None:
    """Write the graph as JSON. The same graph always yields the same bytes."""
    Path(path).write_bytes(msgspec.json.encode(graph))


def read_graph(path: str | os.PathLike[str]) -> ImportGraph:
    """Read a graph from a file written by `write_graph`.

    Raises:
        UsageError: If the file is missing or does not contain a valid import graph.
    """
    try:
        graph = msgspec.json.decode(Path(path).read_bytes(), type=ImportGraph)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"no import graph in {str(path)!r} ({error}): write it again") from error
    count = len(graph.modules)
    if len(graph.imports) != count or any(not 0 <= target < count for targets in graph.imports for target in targets):
        raise UsageError(f"the import graph in {str(path)!r} contradicts itself: write it again")
    return graph


def _find_modules(root: Path, *, left_out: Collection[str]) -> dict[str, _Module]:
    """Return all modules under `root` by their dotted names.

    Names that cannot occur in an import statement are skipped, which excludes folders such as site-packages and lib-dynload.
    """
    files: dict[str, _Module] = {}
    for folder, subfolders, names in os.walk(root):
        parts = Path(folder).relative_to(root).parts
        subfolders[:] = sorted(name for name in subfolders if name.isidentifier() and (parts or name not in left_out))
        for name in sorted(names):
            stem, suffix = os.path.splitext(name)
            if suffix != ".py" or not stem.isidentifier():
                continue
            dotted = parts if stem == "__init__" else (*parts, stem)
            # A package hides a module of the same name, as in Python's import system.
            if dotted and (stem == "__init__" or ".".join(dotted) not in files):
                files[".".join(dotted)] = _Module(path=Path(folder, name), is_package=stem == "__init__")
    return files


def _parse(path: Path) -> ast.Module | None:
    """Return the syntax tree, or None if this interpreter cannot parse the file, for example because it contains Python 2 code or null
    bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # suppresses warnings about invalid escapes in string literals of the parsed files
        try:
            return ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, RecursionError, OSError):
            return None


def _reached(tree: ast.Module, name: str, *, is_package: bool, known: Collection[str]) -> set[str]:
    package = name if is_package else name.rpartition(".")[0]
    reached: set[str] = set()
    for statement in _statements(tree):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                reached.update(prefix for prefix in _prefixes(alias.name) if prefix in known)
        elif isinstance(statement, ast.ImportFrom):
            base = _resolve(statement, package)
            for alias in statement.names:
                target = f"{base}.{alias.name}"
                reached.update([target] if target in known else [base] if base in known else [])
    return reached


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield all statements at any nesting depth. Expressions contain no imports, and skipping them takes only a fifth of the time of
    `ast.walk`."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.stmt):
            yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, None)
            if isinstance(inner, list):  # in a lambda or a conditional expression, `body` is a single expression
                pending.extend(inner)


def _prefixes(dotted: str) -> Iterator[str]:
    parts = dotted.split(".")
    return (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def _resolve(statement: ast.ImportFrom, package: str) -> str:
    """Return the absolute name of the module after `from`, or "" if a relative import leads out of the tree."""
    if not statement.level:
        return statement.module or ""
    parts = package.split(".") if package else []
    remaining = parts[: max(0, len(parts) - statement.level + 1)]
    return ".".join([*remaining, statement.module] if statement.module else remaining) if remaining else ""


def main() -> None:
    """Read a tree, and print its number of modules and imports. With `--out`, also write the graph."""
    parser = argparse.ArgumentParser(description="Read the import graph of a tree of Python modules.")
    parser.add_argument("--source", help="directory to read; the standard library if not given")
    parser.add_argument("--out", help="file to write the graph to, as JSON")
    options = parser.parse_args()
    graph = read_tree(options.source)
    print(f"{len(graph.modules)} modules, {graph.edge_count()} imports, {len(graph.unparsed)} not parsed")
    if options.out:
        write_graph(graph, options.out)


if __name__ == "__main__":
    main()
