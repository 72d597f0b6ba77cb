"""The research team's sources: every reference of the small dictionary leads somewhere, and each question has its recorded answer."""

import gzip
from pathlib import Path

import pytest

from snapline.errors import UsageError
from snapline.examples.language_model import ask, read_calls
from snapline.examples.research_team import SMALL, look_up, note_on

TOPICS = ("checkpoint", "effect")


@pytest.mark.parametrize("topic", TOPICS)
def test_a_plan_of_twenty_steps_finds_articles_and_answers(topic: str, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    terms = [topic]
    for number in range(20):
        found = look_up("", terms[number])
        assert found.text, terms[number]
        terms += [link for link in found.links if link not in terms]
        assert ask("", note_on(topic, found), str(calls))
    noted = read_calls(calls)
    assert len(noted) == 40 and [bool(call.answer) for call in noted] == [False, True] * 20


def test_references_are_headwords_whatever_stands_in_their_braces(tmp_path: Path) -> None:
    book = tmp_path / "book.dz"
    book.write_bytes(
        gzip.compress(
            b"Fox\n\n   A {quick\n   brown} {Dog (dog.html)}, {Dog}, {cat}.\n\nquick brown\n   Not {fox}.\nDog\n   Lazy.\n"
        )
    )
    fox = look_up(str(book), "fox")
    assert (fox.text, fox.links) == ("A quick brown Dog, Dog, cat.", ["quick brown", "Dog"])
    assert look_up(str(book), "cat").text == ""
    assert all(look_up("", term).text for term in SMALL.split("\n") if term and not term.startswith(" "))


def test_a_question_that_nobody_has_asked_says_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"--arg model=smollm2.*What is love"):
        ask("", "What is love?", "")
