"""Figures of the house: `python -m tests.house.numbers` prints them; `test_numbers.py` fails when one of them gets worse.

Sizes are those of the working tree. A sentence is what ends in a full stop; code, tables and headings have none.
"""

import ast
import functools
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.house import product as house
from tests.house.product import Product

ROOT = Path(__file__).parents[2]
LONG_WORDS = 40
PAGES_NOT_COUNTED = ("docs/api.md", "docs/cli.md")
"""Pages whose words are not counted: the API, made from the docstrings, and the command line's reference, made from the commands."""

RETIRED = (
    *("desk", "seat", "deed", "deeds", "wish", "wishes", "seldom", "farewell", "underway", "attendance", "suspicion"),
    *("letter", "letters", "bury", "buried", "voided", "told", "untold", "stands", "spares", "reign", "reigns"),
    *("door", "doors", "clerk", "beside", "whoever", "leash", "outlook", "speech", "tale", "shelf", "manieth"),
)
"""Words that no new name may hold: dead letters are `dead_letters`, and CONTRIBUTING.md has the terms for the rest."""

ALLOWED = frozenset({"dead_letter", "dead_letters", "DeadLetter", "DeadLetters"})

NOT_FIRST = (
    *("of", "what", "who", "whoever", "whom", "whose", "that", "it", "its", "they", "them", "their"),
    *("this", "these", "those", "to", "for", "with", "by", "in", "on", "at", "from", "as", "if", "where", "when"),
    *("how", "whether", "which", "so", "since", "because", "until", "while", "than", "then", "there"),
    *("here", "such", "other", "others", "another", "whatever", "wherever", "also", "likewise"),
)
"""Words with which no docstring begins: pronouns, prepositions and conjunctions."""


def tracked(root: Path, *folders: str) -> list[Path]:
    """Return the files of the repository, or of some folders of it."""
    out = subprocess.run(["git", "ls-files", *folders], cwd=root, capture_output=True, text=True, check=True).stdout
    return [path for name in out.splitlines() if (path := root / name).is_file() and not path.is_symlink()]


def sentences(page: str) -> Iterator[str]:
    """Return the sentences of a Markdown page's prose."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in prose.splitlines() if not line.lstrip().startswith(("|", "#"))]
    text = "\n".join(lines)
    for part in re.split(r"\n\s*\n|\n\s*[-*] |\n\s*\d+\. ", text):
        yield from re.split(r"(?<=[.!?:;])\s+", " ".join(part.split()))


def long_sentences(page: str) -> list[str]:
    """Return the sentences of more than `LONG_WORDS` words."""
    return [text for text in sentences(page) if len(text.split()) > LONG_WORDS]


def retired_words(tree: ast.AST) -> Counter[str]:
    """Count the names that a file defines and that hold a retired word, by that word."""
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names = [name]
            case ast.arg(arg=name):
                names = [name]
            case ast.Name(id=name, ctx=ast.Store()):
                names = [name]
            case ast.Attribute(attr=name, ctx=ast.Store()):
                names = [name]
        for name in names:
            found.update(retired_words_of(name))
    return found


def begins_badly(docstring: str) -> bool:
    """Return whether a docstring begins with a pronoun, a preposition or a conjunction."""
    first = re.search(r"[A-Za-z']+", docstring)
    return first is not None and first.group().lower() in NOT_FIRST


def docstrings_of(tree: ast.Module) -> Iterator[str]:
    """Return the docstrings of a module, its classes and its functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


@functools.cache
def retired_words_of(name: str) -> frozenset[str]:
    """Return the retired words that a name holds."""
    words = name
    for allowed in sorted(ALLOWED, key=len, reverse=True):
        words = words.replace(allowed, "")
    return frozenset({part.lower() for part in re.findall(r"[A-Z]?[a-z]+", words)} & set(RETIRED))


def mutual_imports(product: Product, package: str) -> int:
    """Count imports within a package that go against the direction of most imports between two of its folders."""
    edges: dict[tuple[str, str], int] = defaultdict(int)
    for file, tree in product.trees.items():
        if not file.startswith(package + "/"):
            continue
        here = file.split("/")[1]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"snapline.{package}."):
                there = (node.module or "").split(".")[2]
                edges[here, there] += there != here
    return sum(min(count, edges.get((b, a), 0)) for (a, b), count in list(edges.items()) if a < b)


def figures(root: Path) -> Mapping[str, int]:
    """Return all figures by name."""
    python = [path for path in tracked(root) if path.suffix == ".py"]
    product = house.read(root, python)
    tests = [path for path in python if path.relative_to(root).parts[0] == "tests"]
    pages = [path for path in tracked(root, "docs") if path.suffix == ".md"]
    written = [path for path in pages if path.relative_to(root).as_posix() not in PAGES_NOT_COUNTED]
    retired: Counter[str] = Counter()
    for tree in product.trees.values():
        retired.update(retired_words(tree))
    texts = {path: path.read_text() for path in tests}
    return {
        "product lines": sum(product.lines.values()),
        "product files": len(product.lines),
        "test lines": sum(text.count("\n") for text in texts.values()),
        "lines of test helpers": sum(t.count("\n") for path, t in texts.items() if not path.name.startswith("test_")),
        "kinds of test worlds": len(
            {name for text in texts.values() for name in re.findall(r"^class (\w*World)\b", text, re.MULTILINE)}
        ),
        "subclasses of the host's driver": sum(
            any(above.node.name == "HostDriver" for above in product.ancestors(name)) for name in product.classes
        ),
        "dispatchers of the leader's commands": sum(
            "case ev.Propose(" in text and "case ev.WriteManifest(" in text
            for path in python
            if path.name != Path(__file__).name
            for text in [path.read_text()]
        ),
        "types of a host's status": len(
            {each.node.name for each in product.classes.values()} & {"HostStatus", "HostReading", "HostFacts"}
        ),
        "imports against the direction within storage": mutual_imports(product, "storage"),
        "names with retired words": sum(retired.values()),
        "docstrings that begin badly": sum(
            begins_badly(text) for tree in product.trees.values() for text in docstrings_of(tree)
        ),
        "words of the README": len((root / "README.md").read_text().split()),
        "words of docs without api.md and cli.md": sum(len(path.read_text().split()) for path in written),
        "long sentences in the README": len(long_sentences((root / "README.md").read_text())),
        "long sentences in docs": sum(len(long_sentences(path.read_text())) for path in written),
        "long sentences in --help": len(long_sentences((root / "docs/cli.md").read_text())),
    }


def main() -> None:
    for name, figure in figures(ROOT).items():
        print(f"{name:48}{figure:>10,}")


if __name__ == "__main__":
    main()
