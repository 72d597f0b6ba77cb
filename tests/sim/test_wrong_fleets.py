"""Bugs planted in users' fleets are found by default, each named in one sentence with agent, handler and line; sound fleets pass."""

import inspect
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.sim import checked_fleets as fleets

import snapline
from snapline.sim.checking import Subject
from snapline.sim.oracles.replay_oracles import DurableOracle
from snapline.sim.result import Result

SEEDS = (1, 2)
"""Two short ones of a default sweep's 100."""


@pytest.fixture(autouse=True)
def chance() -> None:
    """The fleets that ask a coin of Python's get the same answers in each run of a test, and others in a second run within it."""
    random.seed(1)


HERE = str(Path(fleets.__file__).relative_to(Path(__file__).parents[2]))


def line_of(kind: type[snapline.Agent], words: str = "@snapline.handler") -> int:
    """The line of a class's source that begins with these words."""
    lines, first = inspect.getsourcelines(kind)
    return first + next(index for index, line in enumerate(lines) if line.strip().startswith(words))


def swept(target: Callable[[], snapline.Fleet]) -> list[Result]:
    subject = Subject(target)
    return [subject.run(subject.scenario(seed), seed) for seed in SEEDS]


def sentence(results: list[Result]) -> str:
    """Of the first run; all are convicted."""
    convicted = [result for result in results if result.verdict == "violation"]
    assert len(convicted) == len(SEEDS), [(result.verdict, result.pending, result.error) for result in results]
    assert {result.violations[0].oracle for result in convicted} == {"replay"}
    return convicted[0].violations[0].text


@pytest.mark.parametrize(
    ("target", "kind", "reason"),
    [
        (fleets.totalling, fleets.Totalling, "changes the global variable TOTAL"),
        (fleets.step_totalling, fleets.StepTotalling, "changes the global variable TOTAL"),
        (fleets.deduping, fleets.Deduping, "uses the global variable HEARD"),
        pytest.param(
            *(fleets.class_counting, fleets.ClassCounting, "uses the class attribute ClassCounting.balls"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_variable_that_no_checkpoint_holds_is_named_with_handler_and_line(
    target: Callable[[], snapline.Fleet], kind: type[snapline.Agent], reason: str
) -> None:
    said = sentence(swept(target))
    assert re.search(r"\b(ping|pong)\b", said) and "\n" not in said
    assert f"on_ball ({HERE}:{line_of(kind)}) {reason}, at {HERE}:" in said
    assert "no checkpoint holds: keep it in the agent's state" in said


def test_variables_begin_each_run_as_in_another_process() -> None:
    first, second = (Subject(fleets.deduping) for _ in range(2))
    traces = [subject.run(subject.scenario(0), 0).trace_hash for subject in (first, second, first)]
    assert len(set(traces)) == 1


def test_what_somebody_else_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject(fleets.totalling, faults="quiet")
    subject.run(subject.scenario(0), 0)
    monkeypatch.setattr(fleets, "TOTAL", 1_000_000)
    result = subject.run(subject.scenario(0), 0)
    assert fleets.TOTAL > 1_000_000 and result.verdict == "violation"


@pytest.mark.parametrize(
    ("target", "departure", "reason"),
    [
        (
            fleets.random_selling,
            r"entry \d of the turn's journal is step '(pay|reserve)', and now the handler asks for step '(pay|reserve)', at ",
            "calls random.random",
        ),
        (fleets.stamping, r"asks for step 'reserve' with other arguments, at ", "calls time.time_ns"),
        (fleets.totalling_sellers, r"it leaves another state than it did", "changes the global variable TOTAL"),
    ],
)
def test_a_durable_turn_that_does_not_repeat_itself_is_named_where_it_departs(
    target: Callable[[], snapline.Fleet], departure: str, reason: str
) -> None:
    said = sentence(swept(target))
    assert re.match(rf"(anna|otto): on_order \({re.escape(HERE)}:\d+\), run again by the journal of its turn", said)
    assert re.search(departure, said) and f"; it {reason}, at {HERE}:" in said


@pytest.mark.parametrize("target", [fleets.caching, fleets.selling])
def test_sound_fleets_pass(target: Callable[[], snapline.Fleet]) -> None:
    """Caches, counters that nobody reads, time and chance of the context."""
    for result in swept(target):
        assert (result.verdict, result.violations, result.pending) == ("pass", [], []), result.error


def test_an_agent_that_stands_for_good_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has brought it there, and though nobody has run its turn again before."""
    monkeypatch.setattr(DurableOracle, "on_ended", lambda *_: None)
    monkeypatch.setattr(DurableOracle, "on_failed", lambda *_: None)
    convicted = [result.violations[0] for result in swept(fleets.random_selling) if result.violations]
    assert convicted and {found.oracle for found in convicted} == {"stuck"}
    assert re.search("stands in the middle of a durable turn, for good: .*DivergenceError: entry", convicted[0].text)
