"""Draws names and sentences of the product for readers who know nothing of it: `python -m tests.house.draw_blind SEED [COUNT]`.

A reader guesses from each name, with its file and class, what is inside; and says of each sentence whether it is understood at first
reading and natural. `--answers` adds the docstring of each name, for who compares.
"""

import ast
import random
import re
import sys

from tests.house.numbers import ROOT, tracked
from tests.house.product import read

WORDS_MIN = 5
"""Shorter sentences say too little alone."""

HEADINGS = ("Args:", "Attributes:", "Raises:", "Returns:", "Yields:")
ENTRY = re.compile(r"\s+\*{0,2}[\w., `]+: \S|\s*(?:[-*]|\d+\.) ")
TABLE = re.compile(r"\S {2,}\S|\s*(?:\||>>>|\$ )")


def sentences_of(docstring: str) -> list[str]:
    """Return a docstring's sentences. Headings, code and tables have none; an entry of a list or a section begins a sentence."""
    parts: list[str] = [""]
    literal_indent: int | None = None
    for line in docstring.splitlines():
        indent = len(line) - len(line.lstrip())
        if literal_indent is not None and (not line.strip() or indent > literal_indent):
            continue
        literal_indent = indent if line.endswith("::") else None
        if not line.strip() or line.strip() in HEADINGS or TABLE.search(line):
            parts.append("")
        elif ENTRY.match(line):
            parts.append(line.strip())
        else:
            parts[-1] += " " + line.strip()
    found = [sentence for part in parts for sentence in re.split(r"(?<=[.!?])\s+", part.strip())]
    return [sentence for sentence in found if len(sentence.split()) >= WORDS_MIN]


def drawn(seed: int, count: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Return names with their docstrings' summaries, and sentences."""
    product = read(ROOT, [path for path in tracked(ROOT) if path.suffix == ".py"])
    names: list[tuple[str, str]] = []
    sentences: list[str] = []
    for file, tree in sorted(product.trees.items()):
        for scope in ast.walk(tree):
            if not isinstance(scope, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            sentences += sentences_of(ast.get_docstring(scope) or "")
            for node in scope.body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:2] != "__":
                    above = f"{scope.name}." if isinstance(scope, ast.ClassDef) else ""
                    summary = (ast.get_docstring(node) or ast.unparse(node)[:400]).partition("\n\n")[0]
                    names.append((f"{file} {above}{node.name}", summary))
    chance = random.Random(seed)
    return chance.sample(names, count), chance.sample(sentences, count)


def main() -> None:
    arguments = [each for each in sys.argv[1:] if each != "--answers"]
    seed, count = int(arguments[0]), int(arguments[1]) if arguments[1:] else 30
    names, sentences = drawn(seed, count)
    print(f"seed {seed}\n")
    for number, (name, summary) in enumerate(names, 1):
        print(f"N{number:02}  {name}" + (f"\n      {summary}" if "--answers" in sys.argv else ""))
    print()
    for number, sentence in enumerate(sentences, 1):
        print(f"S{number:02}  {sentence}")


if __name__ == "__main__":
    main()
