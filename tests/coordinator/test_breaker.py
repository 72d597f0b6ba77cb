"""The circuit breaker: when a failing store is tried again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.coordinator.leader.epochs import store_watch as module
from snapline.coordinator.leader.epochs.store_watch import FAILURES_TO_OPEN, PROBE_NS, PROBE_NS_MAX, Breaker

START = 1_000 * PROBE_NS


def opened(now_ns: int = START) -> Breaker:
    """One that has just opened."""
    made = Breaker()
    for attempt in range(FAILURES_TO_OPEN):
        made.begun(attempt, now_ns)
        is_last = attempt == FAILURES_TO_OPEN - 1
        assert made.failed(attempt, now_ns, "full") == is_last
    assert made.is_open
    return made


def test_since_is_the_first_failure_in_a_row_and_reason_the_latest() -> None:
    made = Breaker()
    for attempt in range(FAILURES_TO_OPEN):
        made.failed(attempt, START + attempt, f"full {attempt}")
    assert (made.since_ns, made.reason) == (START, f"full {FAILURES_TO_OPEN - 1}")
    assert made.succeeded(9) and (made.since_ns, made.reason, made.next_try_ns) == (0, "", 0)


def test_probes_wait_twice_as_long_each_time_up_to_a_minute() -> None:
    made, now, waits = opened(), START, []
    for attempt in range(100, 110):
        waits.append((made.next_try_ns - now) // PROBE_NS)
        assert not made.allows(made.next_try_ns - 1)
        now = made.next_try_ns
        assert made.allows(now)
        made.begun(attempt, now)
        assert not made.allows(now + 10 * PROBE_NS_MAX), "one probe at a time"
        made.failed(attempt, now, "full")
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]


def test_after_a_success_the_waits_begin_anew() -> None:
    made = opened()
    made.begun(100, made.next_try_ns)
    made.failed(100, made.next_try_ns, "full")
    assert made.succeeded(101) and made.allows(0)
    for attempt in range(FAILURES_TO_OPEN):
        made.failed(attempt, START, "full")
    assert made.next_try_ns == START + PROBE_NS


def test_what_fails_beside_the_probe_does_not_put_it_off() -> None:
    """Epochs that were open before, and a user who tries by hand again and again."""
    made = opened()
    due = made.next_try_ns
    for attempt in range(100, 150):
        made.begun(attempt, due - 1)
        assert not made.failed(attempt, due - 1, f"full {attempt}")
    assert made.next_try_ns == due and made.reason == "full 149"
    made.begun(200, due)
    made.failed(3, due, "an old one")
    assert not made.allows(due), "the probe is still on its way"


def test_probe_that_says_nothing_is_tried_again_at_once() -> None:
    made = opened()
    now = made.next_try_ns
    made.begun(100, now)
    made.ended(99)
    assert not made.allows(now)
    made.ended(100)
    assert made.is_open and made.allows(now)
    made.failed(100, now, "late news of it")
    assert made.next_try_ns == now, "it is the probe no more"


class Plain:
    """What the breaker should say, from the whole history each time: no state of its own but the list of what happened."""

    def __init__(self) -> None:
        self.history: list[tuple[str, int, int]] = []

    def since_success(self) -> list[tuple[str, int, int]]:
        last = max((place for place, row in enumerate(self.history) if row[0] == "ok"), default=-1)
        return self.history[last + 1 :]

    def allows(self, now: int) -> bool:
        due, failures, wait, probe = 0, 0, PROBE_NS, -1
        for what, attempt, time in self.since_success():
            if what == "begin" and failures >= FAILURES_TO_OPEN and probe < 0 and time >= due:
                probe = attempt
            elif what == "nothing" and attempt == probe:
                probe = -1
            elif what == "fail":
                failures += 1
                if failures == FAILURES_TO_OPEN:
                    due = time + wait
                elif attempt == probe:
                    probe, wait = -1, min(wait * 2, PROBE_NS_MAX)
                    due = time + wait
        return failures < FAILURES_TO_OPEN or (probe < 0 and now >= due)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "fail", "fail", "fail", "nothing", "ok"]),
        st.integers(0, 4),
        st.sampled_from([0, 1, PROBE_NS // 2, PROBE_NS, 5 * PROBE_NS, PROBE_NS_MAX]),
    ),
    max_size=60,
)


def check_against_plain(steps: list[tuple[str, int, int]]) -> None:
    made, plain, now = Breaker(), Plain(), START
    for what, attempt, delay in steps:
        now += delay
        match what:
            case "begin":
                made.begun(attempt, now)
            case "fail":
                made.failed(attempt, now, "full")
            case "nothing":
                made.ended(attempt)
            case _:
                made.succeeded(attempt)
        plain.history.append((what, attempt, now))
        made.validate()
        for look in (now, now + PROBE_NS, now + PROBE_NS_MAX):
            assert made.allows(look) == plain.allows(look)


@given(STEPS)
def test_it_does_what_the_whole_history_says(steps: list[tuple[str, int, int]]) -> None:
    check_against_plain(steps)


@pytest.mark.parametrize("mutant", ["never doubles", "never capped", "late failures count", "success is forgotten"])
def test_mutants_are_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mutant(Breaker):
        __slots__ = ()

        def failed(self, attempt: int, now_ns: int, reason: str) -> bool:
            if mutant == "late failures count" and self.is_open:
                self._probe = attempt
            opened = super().failed(attempt, now_ns, reason)
            if mutant == "never doubles":
                self._wait_ns = PROBE_NS
            return opened

        def succeeded(self, attempt: int) -> bool:
            return False if mutant == "success is forgotten" else super().succeeded(attempt)

    if mutant == "never capped":
        monkeypatch.setattr(module, "PROBE_NS_MAX", 10 * PROBE_NS_MAX)
    monkeypatch.setattr("tests.coordinator.test_breaker.Breaker", Mutant)
    with pytest.raises(AssertionError):
        test_probes_wait_twice_as_long_each_time_up_to_a_minute()
        test_what_fails_beside_the_probe_does_not_put_it_off()
        test_after_a_success_the_waits_begin_anew()
