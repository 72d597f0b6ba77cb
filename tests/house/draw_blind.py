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


def drawn(seed: int, count: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Return names with their docstrings' summaries, and sentences."""
    product = read(ROOT, [path for path in tracked(ROOT) if path.suffix == ".py"])
    names: list[tuple[str, str]] = []
    sentences: list[str] = []
    for file, tree in sorted(product.trees.items()):
        for scope in ast.walk(tree):
            if not isinstance(scope, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            text = " ".join((ast.get_docstring(scope) or "").split())
            sentences += [part for part in re.split(r"(?<=[.!?])\s+", text) if len(part.split()) >= WORDS_MIN]
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
