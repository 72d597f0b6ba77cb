"""Figures of the house only get better. `python -m tests.house.numbers` prints them all; a limit that has slack is lowered."""

import ast
from pathlib import Path

import pytest
from tests.house import numbers

LIMITS = {
    "subclasses of the host's driver": 0,
    "names with retired words": 25,
    "docstrings that begin badly": 4,
    "words of the README": 800,
    "words of docs without api.md and cli.md": 74_180,
    "long sentences in the README": 0,
    "long sentences in docs": 0,
    "long sentences in --help": 0,
    "kinds of test worlds": 3,
    "dispatchers of the leader's commands": 1,
    "imports against the direction within storage": 0,
}
"""Figures that must not grow."""


@pytest.fixture(scope="module")
def figures(root: Path, without_collections: None) -> dict[str, int]:
    return dict(numbers.figures(root))


def test_no_figure_gets_worse(figures: dict[str, int]) -> None:
    worse = {name: (figures[name], limit) for name, limit in LIMITS.items() if figures[name] > limit}
    assert not worse, f"now and limit: {worse}"


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("def on_told(told): pass", 2),
        ("class DoorKeeper: pass", 1),
        ("self.wish = 1", 1),
        ("x = self.told", 0),
        ("dead_letters = letter_box = 1", 1),
        ("class DeadLetter: pass", 0),
        ("doorstep = 1", 0),
    ],
)
def test_names_with_retired_words_are_counted(code: str, count: int) -> None:
    assert sum(numbers.retired_words(ast.parse(code)).values()) == count


@pytest.mark.parametrize(
    ("text", "is_bad"), [("If it fails, retry.", True), ("Retry if it fails.", False), ("", False)]
)
def test_docstrings_that_begin_with_a_conjunction_are_counted(text: str, is_bad: bool) -> None:
    module = ast.parse(f'def function():\n    """{text}"""')
    assert any(map(numbers.begins_badly, numbers.docstrings_of(module))) == is_bad


def test_sentences_of_prose_are_counted_and_no_others() -> None:
    long = " ".join(["word"] * (numbers.LONG_WORDS + 1)) + "."
    page = f"# Title\n\nShort one. {long}\n\n```console\n$ {long}\n```\n\n| {long} |\n\n- {long}\n"
    assert len(numbers.long_sentences(page)) == 2
