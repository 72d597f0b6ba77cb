"""The oracle of steps by itself: what is the same turn again, and what is another one."""

from typing import Any

import pytest

from snapline.agent_runtime.durable import DONE, Pause
from snapline.agent_runtime.host.host_events import StartTurn, TurnEnded, TurnFailed
from snapline.sim.oracles.ground_truth import StepOracle
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry, SavedTurn

STEP = JournalEntry("step", "s")
HAD = JournalEntry("step", "s", b"", DONE, b"r")


class Seen:
    """An oracle, and what it has found."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.oracle = StepOracle(lambda oracle, guarantee, t_ns, text: self.found.append(text))

    def begin(self, incarnation: int = 1, payload: bytes = b"go", state: bytes = b"x") -> None:
        self.oracle.on_started(StartTurn("a", incarnation, "message", "z", payload), state)

    def stand(self, incarnation: int = 1, *entries: JournalEntry, is_logged: bool = True) -> None:
        self.oracle.on_ended(TurnEnded("a", incarnation, pause=Pause(b"", STEP, None, list(entries), is_logged)))
        self.oracle.on_step(5, "a", incarnation, "s")

    def go_on(self, incarnation: int = 1) -> None:
        self.oracle.on_started(StartTurn("a", incarnation, "segment", "z", b"go", HAD), b"middle")

    def load(self, incarnation: int, number: int = 0, turn: Any = None) -> None:
        more = {"saved_turn": turn} if turn is not None else {}
        checkpoint = AgentCheckpoint(agent="a", kind="m:A", epoch=1, incarnation=1, number=number, **more)
        self.oracle.on_loaded("a", incarnation, checkpoint)


@pytest.fixture
def seen() -> Seen:
    """A turn of `a` has gone on from its first step; checkpoint 0 was taken before."""
    seen = Seen()
    seen.oracle.on_captured("a", 1, 0)
    seen.begin()
    seen.stand()
    seen.go_on()
    return seen


def test_a_step_of_the_same_turn_may_not_run_again(seen: Seen) -> None:
    seen.load(2)
    seen.begin(2)
    seen.stand(2)
    assert seen.found == ["step 's' of a, behind 0 entries, is run again: its turn had gone on from it"]


def test_a_step_that_is_not_logged_may_run_again() -> None:
    seen = Seen()
    seen.oracle.on_captured("a", 1, 0)
    for incarnation in (1, 2):
        seen.begin(incarnation)
        seen.stand(incarnation, is_logged=False)
        seen.go_on(incarnation)
        seen.load(2)
    assert seen.found == []


def test_a_replaced_host_that_wakes_up_late_may_run_a_step_of_its_older_incarnation() -> None:
    seen = Seen()
    seen.begin(2)
    seen.stand(2)
    seen.go_on(2)
    seen.begin(1)
    seen.stand(1)
    assert not seen.found
    seen.begin(3)
    seen.stand(3)
    assert len(seen.found) == 1


def test_nor_in_the_middle_of_a_turn_that_was_saved(seen: Seen) -> None:
    seen.oracle.on_captured("a", 1, 1)
    seen.load(2, number=1)
    turn = SavedTurn("message", "z", b"go", b"", "", [], STEP)
    seen.oracle.on_started(StartTurn("a", 2, "segment", "z", b"go", turn=turn), b"x")
    seen.stand(2)
    assert len(seen.found) == 1


def test_one_that_had_not_ended_may(seen: Seen) -> None:
    seen.stand(1)
    seen.load(2)
    seen.begin(2)
    seen.stand(2, HAD)
    assert not seen.found


@pytest.mark.parametrize("changes", [{"payload": b"other"}, {"state": b"y"}])
def test_another_turn_has_its_own_steps(seen: Seen, changes: dict[str, bytes]) -> None:
    seen.load(2)
    seen.begin(2, **changes)
    seen.stand(2)
    assert not seen.found


@pytest.mark.parametrize("end", ["paused", "at once", "buried"])
def test_so_does_the_second_of_two_alike(seen: Seen, end: str) -> None:
    """However the one before it has ended."""
    seen.load(2)
    seen.begin(2, payload=b"first")
    match end:
        case "paused":
            seen.stand(2)
        case "at once":
            seen.oracle.on_ended(TurnEnded("a", 2, is_durable=True))
        case "buried":
            seen.oracle.on_ended(TurnFailed("a", 2, "no", 5, is_durable=True))
            seen.oracle.on_dead_lettered("a", 2)
    seen.begin(2)
    seen.stand(2)
    assert not seen.found


def test_a_step_that_failed_its_turn_may_run_again_when_the_turn_is_tried_again(seen: Seen) -> None:
    seen.oracle.on_ended(TurnFailed("a", 1, "no", 5, is_durable=True, is_of_step=True))
    seen.load(2)
    seen.begin(2)
    seen.stand(2)
    assert not seen.found


def test_what_was_dropped_on_purpose_may_be_done_again(seen: Seen) -> None:
    seen.oracle.on_dropped()
    seen.load(2)
    seen.begin(2)
    seen.stand(2)
    assert not seen.found
