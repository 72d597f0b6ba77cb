"""Hypothesis as a source of choices: it finds, and shrinks to the benign."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from tests.sim import checked_fleets as fleets

from snapline.sim.checking import run_fleet
from snapline.sim.choices import Choices, RecordedChoices
from snapline.sim.report.test_report import summarise
from snapline.sim.search.hypothesis_choices import STREAMS, HypothesisChoices, SparseChoices, sparse_choices

QUIET = settings(
    database=None,
    derandomize=True,
    deadline=None,
    max_examples=2000,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)


def toy(choices: Choices) -> dict[tuple[str, int], int]:
    """Ten choices of 8 in each of two streams; those that were not benign."""
    picked = {
        (stream, number): choices.pick(stream, (number,), 8) for number in range(10) for stream in ("net", "fault")
    }
    return {key: value for key, value in picked.items() if value}


def is_wrong(picked: dict[tuple[str, int], int]) -> bool:
    """The bug of the toy: a fault late, and a message slow."""
    return picked.get(("fault", 4), 0) >= 1 and picked.get(("net", 6), 0) >= 3


def test_sparse_choices_shrink_to_those_that_the_bug_needs() -> None:
    found = find(sparse_choices(places_max=10), lambda choices: is_wrong(toy(choices)), settings=QUIET)
    assert toy(SparseChoices(eval(repr(found)[len("SparseChoices") :]))) == {("fault", 4): 1, ("net", 6): 3}


def test_single_draws_shrink_to_those_that_the_bug_needs() -> None:
    def draw(data: Any) -> dict[tuple[str, int], int]:
        return toy(HypothesisChoices(data))

    smallest = minimal(draw, is_wrong)
    assert smallest == {("fault", 4): 1, ("net", 6): 3}


def minimal(draw: Callable[[Any], Any], condition: Callable[[Any], bool]) -> Any:
    """What the last failing example of a property was: Hypothesis shows the smallest last."""
    seen: list[Any] = []

    @QUIET
    @given(data=st.data())
    def look(data: Any) -> None:
        drawn = draw(data)
        if condition(drawn):
            seen.append(drawn)
            raise AssertionError

    with pytest.raises(AssertionError):
        look()
    return seen[-1]


@given(data=st.data())
def test_choices_are_in_range_and_benign_beyond_the_limit(data: st.DataObject) -> None:
    choices = HypothesisChoices(data, choices_max=5)
    sizes = data.draw(st.lists(st.integers(1, 9), max_size=20))
    picked = [choices.pick("net", (number,), n) for number, n in enumerate(sizes)]
    assert all(0 <= value < n for value, n in zip(picked, sizes, strict=True))
    assert choices.drawn == min(5, sum(n > 1 for n in sizes))
    drawable = [place for place, n in enumerate(sizes) if n > 1]
    assert not any(picked[place] for place in drawable[5:])


@given(data=st.data())
def test_other_streams_are_somebody_else_s(data: st.DataObject) -> None:
    choices = HypothesisChoices(data, streams=("net",), others=RecordedChoices({("fault", (1,)): 2}))
    assert choices.pick("fault", (1,), 3) == 2
    assert HypothesisChoices(data, streams=("net",)).pick("fault", (1,), 3) == 0
    assert choices.drawn == 0


@given(
    changes=st.dictionaries(st.tuples(st.sampled_from(STREAMS), st.integers(0, 9)), st.integers(1, 64)),
    n=st.integers(1, 100),
)
def test_sparse_choices_change_what_they_say_and_nothing_else(changes: dict[tuple[str, int], int], n: int) -> None:
    choices = SparseChoices(changes)
    for stream in STREAMS:
        for place in range(10):
            picked = choices.pick(stream, ("anything", place), n)
            assert 0 <= picked < n
            assert bool(picked) == (n > 1 and (stream, place) in changes)


def heard(choices: Choices) -> list[str]:
    """In which order the listener heard the others."""
    words: list[str] = []
    result = run_fleet(
        fleets.talkers,
        choices=choices,
        faults="quiet",
        hosts=4,
        coordinators=1,
        at_end=lambda states: words.extend(states["listener"]),  # type: ignore[arg-type]  # a list of words
    )
    assert result.verdict == "pass", summarise(result)
    return words


@pytest.mark.slow
def test_of_a_fleet_too_an_order_is_found_and_shrunk_to_few_delays() -> None:
    usual = heard(RecordedChoices({}))
    quick = settings(QUIET, max_examples=100)
    found = find(
        sparse_choices(streams=("net",), places_max=60), lambda choices: heard(choices) != usual, settings=quick
    )
    assert len(eval(repr(found)[len("SparseChoices") :])) <= 2
    assert sorted(usual) == ["a", "b", "c"]
