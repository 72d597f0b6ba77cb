"""The oracles of outcomes and of the log: each finds what it is for, and nothing in what is right."""

from collections.abc import Sequence
from itertools import combinations, permutations
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sim.feeds import Feed, Log

from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import (
    APPLIED,
    RECOVERY_TRIGGER,
    Committed,
    OperationResult,
    Rejected,
    Unknown,
)
from snapline.sim.oracles.log_oracles import LogHistory


class LogCall(msgspec.Struct, frozen=True):
    """One call of a log: the times of call and answer, and the outcome. `place` is the index of the call's entry if it was acknowledged."""

    value: bytes
    called: int
    answered: int
    outcome: Literal["committed", "rejected", "unknown"]
    place: int = -1


def is_linearizable(calls: Sequence[LogCall], log: Sequence[bytes]) -> bool:
    """Return whether some order of the calls explains the answers and the final `log`.

    The function tries every order that real time allows, with every subset of the calls whose outcome is unknown.
    """
    sure = [call for call in calls if call.outcome == "committed"]
    unknown = [call for call in calls if call.outcome == "unknown"]
    return any(
        _explains(order, log)
        for count in range(len(unknown) + 1)
        for chosen in combinations(unknown, count)
        for order in permutations([*sure, *chosen])
    )


def _explains(order: Sequence[LogCall], log: Sequence[bytes]) -> bool:
    if [call.value for call in order] != list(log):
        return False
    for place, call in enumerate(order):
        if call.outcome == "committed" and call.place != place:
            return False
        if any(later.outcome != "unknown" and later.answered < call.called for later in order[place + 1 :]):
            return False
    return True


# ---- outcomes --------------------------------------------------------------------------------------------------------


def test_the_history_of_a_right_log_is_right() -> None:
    log = Log()
    for number in range(1, 5):
        assert log.epoch() == number
        log.commit(op.CompleteEpoch(number, "r") if number % 2 else op.AbortEpoch(number, "late"))
    log.feed.judge.on_published(0, 3, "r")
    log.epoch()
    log.plan(3)
    log.commit(op.CondemnEpoch(3, "packs/x", "flipped"))
    log.plan(1)
    assert log.found == []
    assert log.feed.judge.probes.hits["damaged epoch skipped"] == 1


@pytest.mark.parametrize(
    ("told", "found"), [(None, []), (OperationResult(APPLIED, number=1), ["outcome"])], ids=["says-it", "is-silent"]
)
def test_damage_that_ends_the_epoch_of_a_recovery_must_say_so(told: OperationResult | None, found: list[str]) -> None:
    log = Log(Feed(0, protocol="uncoordinated"))
    log.epoch()
    log.commit(op.CompleteEpoch(1, "r"))
    log.commit(op.CommitPlan(1, 1, ("h",), "test"))
    log.commit(op.BeginEpoch(1, RECOVERY_TRIGGER))
    log.commit(op.CondemnEpoch(1, "packs/x", "flipped"), told)
    assert log.state.open_epochs() == () and log.found == found


def test_a_second_outcome_is_found() -> None:
    log = Log()
    log.epoch()
    log.commit(op.CompleteEpoch(1, "r"))
    log.commit(op.AbortEpoch(1, "late"), OperationResult(APPLIED, number=1, epochs=(1,)))
    assert "outcome" in log.found


def test_an_outcome_of_what_never_began_is_found() -> None:
    log = Log()
    log.commit(op.CompleteEpoch(7, "r"), OperationResult(APPLIED, number=7))
    assert "outcome" in log.found


def test_a_newest_epoch_that_is_forgotten_is_found() -> None:
    log = Log()
    for number in (1, 2):
        log.epoch()
        log.commit(op.CompleteEpoch(number, "r"))
    del log.state.image.epochs[2]
    log.commit(op.ForgetEpochs((2,)))
    assert log.found == ["outcome"]


def test_a_plan_from_an_older_epoch_is_found() -> None:
    log = Log()
    for number in (1, 2):
        log.epoch()
        log.commit(op.CompleteEpoch(number, "r"))
    log.commit(op.CommitPlan(1, 1, ("h",), "test"), OperationResult(APPLIED, number=2))
    assert log.found == ["line"]


def test_a_plan_number_that_is_used_twice_is_found() -> None:
    log = Log()
    log.commit(op.CommitPlan(0, 0, ("h",), "test"), OperationResult(APPLIED, number=1))
    assert log.found == ["incarnation"]


def test_a_host_under_a_plan_that_is_not_in_the_log_is_found() -> None:
    log = Log()
    log.feed.judge.on_loaded(0, 2, 0, "a0", None)
    assert log.found == ["incarnation"]


@pytest.mark.parametrize(("epoch", "root", "found"), [(1, "r", []), (1, "other", ["outcome"]), (2, "r", ["outcome"])])
def test_refs_name_complete_epochs_only(epoch: int, root: str, found: list[str]) -> None:
    log = Log()
    log.epoch()
    log.commit(op.CompleteEpoch(1, "r"))
    log.epoch()
    log.feed.judge.on_published(0, epoch, root)
    assert log.found == found


def test_the_same_request_again_is_no_second_outcome() -> None:
    log = Log()
    log.epoch()
    log.commit(op.CompleteEpoch(1, "r"), sequence=100)
    log.commit(op.CompleteEpoch(1, "r"), sequence=100)
    assert log.found == []
    assert log.feed.judge.probes.hits["request repeated"] == 1


# ---- the log ---------------------------------------------------------------------------------------------------------


OK = OperationResult(APPLIED)


def violations_of(calls: Sequence[LogCall], log: Sequence[bytes]) -> list[str]:
    """What the oracle says of the calls when the log is filled as late as the answers allow."""
    history = LogHistory()
    found: list[str] = []
    done = 0

    def commit_to(place: int) -> None:
        nonlocal done
        while done <= place and done < len(log):
            found.extend(text for _, _, text in history.on_committed(done, log[done], OK))
            done += 1

    events = [(call.called, 1, number) for number, call in enumerate(calls)]
    events += [(call.answered, 0, number) for number, call in enumerate(calls) if call.outcome != "unknown"]
    for _, is_call, number in sorted(events):
        call = calls[number]
        if is_call:
            history.on_proposed(number, call.value)
        elif call.outcome == "rejected":
            found.extend(text for _, _, text in history.on_outcome(number, Rejected("no"), None))
        else:
            commit_to(call.place)
            found.extend(text for _, _, text in history.on_outcome(number, Committed(OK), call.place))
    commit_to(len(log))
    return found


@given(st.data())
def test_the_log_as_witness_says_the_same_as_all_orders(data: st.DataObject) -> None:
    """Up to five calls with random times and answers, and a random log: linear time against Wing and Gong."""
    count = data.draw(st.integers(1, 5))
    values = [b"%d" % number for number in range(count)]
    times = data.draw(st.permutations(range(2 * count)))
    pairs = [sorted(times[2 * n : 2 * n + 2]) for n in range(count)]
    size = data.draw(st.integers(0, count))
    log = data.draw(st.permutations(values))[:size]
    calls = []
    for value, (called, answered) in zip(values, pairs, strict=True):
        outcome: Any = data.draw(st.sampled_from(("committed", "unknown", "rejected")))
        place = list(log).index(value) if value in log else data.draw(st.integers(0, count))
        calls.append(LogCall(value, called, answered, outcome, place if outcome == "committed" else -1))
    assert (not violations_of(calls, log)) == is_linearizable(calls, log)


def test_one_entry_answers_one_proposal() -> None:
    history = LogHistory()
    history.on_proposed(1, b"a")
    history.on_proposed(2, b"a")
    assert not list(history.on_committed(0, b"a", OK))
    assert not list(history.on_outcome(1, Committed(OK), None))
    assert list(history.on_outcome(2, Committed(OK), None))


def test_an_answer_has_the_result_of_its_entry() -> None:
    history = LogHistory()
    history.on_proposed(1, b"a")
    assert not list(history.on_committed(0, b"a", OK))
    assert list(history.on_outcome(1, Committed(OperationResult(APPLIED, number=3)), None))


def test_what_is_committed_is_never_replaced() -> None:
    history = LogHistory()
    assert not list(history.on_committed(3, b"a", OK))
    assert not list(history.on_committed(3, b"a", OK))
    assert list(history.on_committed(3, b"b", OK))


def test_unknown_outcomes_and_their_repetition_are_right() -> None:
    log = Log()
    judge, entry = log.feed.judge, op.Operation(9, "leader", 50, op.BeginEpoch(0, "period"))
    data = op.encode_operation(entry)
    judge.on_proposed(0, 1, data)
    judge.on_outcome(1, 1, Unknown("late"), None)
    judge.on_proposed(2, 2, data)
    result = log.state.apply(entry)
    for index in (90, 91):
        judge.on_committed(3, index, entry, result, log.state)
    judge.on_outcome(4, 2, Committed(result), None)
    assert log.found == []
