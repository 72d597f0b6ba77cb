"""Policies and the clock that follows them: when a checkpoint is due, how agents spread, the text that users write."""

import math
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.errors import UsageError
from snapline.protocols.policy import (
    JITTER,
    MTBF_PRIOR_S,
    POLICIES_MAX,
    Adaptive,
    AnyOf,
    Every,
    EveryMessages,
    Manual,
    Policy,
    PolicyClock,
    format_policy,
    parse_policy,
)

SECOND = 1_000_000_000

periods = st.floats(min_value=1e-6, max_value=1e9) | st.integers(1, 10_000_000).map(lambda n: n / 1000)
singles = (
    st.builds(Every, periods, st.floats(0, 1, exclude_max=True) | st.just(JITTER))
    | st.builds(EveryMessages, st.integers(1, 10**12))
    | st.builds(lambda m, pair: Adaptive(m, min(pair), max(pair)), st.none() | periods, st.tuples(periods, periods))
    | st.just(Manual())
)
policies = singles | st.lists(singles, min_size=2, max_size=POLICIES_MAX).map(lambda parts: AnyOf(tuple(parts)))


def active(policy: Policy, agent: str = "a", seed: int = 0) -> PolicyClock:
    """The clock of an agent that has consumed one message."""
    clock = PolicyClock(policy, agent, seed)
    clock.consumed()
    return clock


def interval_s(clock: PolicyClock) -> float:
    assert clock.due_ns is not None
    return clock.due_ns / SECOND


# -- when -------------------------------------------------------------------------------------------------------------


def test_every_is_due_so_long_after_the_last_checkpoint() -> None:
    clock = PolicyClock(Every(2, jitter=0), "a", now_ns=5 * SECOND)
    clock.consumed()
    assert clock.due_ns == 7 * SECOND
    assert not clock.is_due(7 * SECOND - 1)
    assert clock.is_due(7 * SECOND)
    clock.taken(8 * SECOND, 1_000)
    assert clock.due_ns is None and not clock.is_due(100 * SECOND)
    clock.consumed()
    assert clock.due_ns == 10 * SECOND


@given(policies, st.integers(0, 2**32))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_a_clock_agrees_with_the_words_of_its_policy(policy: Policy, seed: int) -> None:
    check_clock(PolicyClock, policy, Random(seed))


def check_clock(clock_type: type[PolicyClock], policy: Policy, random: Random) -> None:
    """Against a plain reading of the declaration, over a random history. An image of the clock goes on the same."""
    clock = clock_type(policy, "a", seed=1)
    parts = policy.policies if isinstance(policy, AnyOf) else (policy,)
    now_ns = last_ns = messages = 0
    is_asked = False
    for _ in range(30):
        now_ns += random.randrange(3 * SECOND)
        match random.choice(("consume", "consume", "ask", "take", "freeze")):
            case "consume":
                count = random.randrange(1, 4)
                messages += count
                clock.consumed(count)
            case "ask":
                is_asked = True
                clock.asked()
            case "take":
                clock.taken(now_ns, random.randrange(SECOND))
                last_ns, messages, is_asked = now_ns, 0, False
            case _:
                assert hash(clock.freeze()) == hash(clock_type.restore(policy, clock.freeze()).freeze())
                clock = clock_type.restore(policy, clock.freeze())
        clock.validate()
        since_s = (now_ns - last_ns) / SECOND
        sure = is_asked or any(certainly_due(part, since_s, messages) for part in parts)
        perhaps = sure or any(perhaps_due(part, since_s) for part in parts)
        assert clock.is_due(now_ns) <= (perhaps and messages > 0)
        assert clock.is_due(now_ns) >= (sure and messages > 0)


def certainly_due(part: Policy, since_s: float, messages: int) -> bool:
    match part:
        case Every(seconds, jitter):
            return since_s > seconds * (1 + jitter) * (1 + 1e-9) + 1e-8
        case EveryMessages(count):
            return messages >= count
        case Adaptive(_, _, most_s):
            return since_s > most_s * (1 + 1e-9) + 1e-8
    return False


def perhaps_due(part: Policy, since_s: float) -> bool:
    match part:
        case Every(seconds, jitter):
            return since_s >= seconds * (1 - jitter) * (1 - 1e-9) - 1e-8
        case Adaptive(_, least_s, _):
            return since_s >= least_s * (1 - 1e-9) - 1e-8
    return False


class DueWithoutEvents(PolicyClock):
    def is_due(self, now_ns: int) -> bool:
        return self._timer_ns is not None and now_ns >= self._timer_ns


class TakenKeepsTheCount(PolicyClock):
    def taken(self, now_ns: int, cost_ns: int | None = None) -> None:
        messages = self._messages
        super().taken(now_ns, cost_ns)
        self._messages = messages


class TakenKeepsTheWish(PolicyClock):
    def taken(self, now_ns: int, cost_ns: int | None = None) -> None:
        is_asked = self._is_asked
        super().taken(now_ns, cost_ns)
        self._is_asked = is_asked


class TakenKeepsTheTimer(PolicyClock):
    def taken(self, now_ns: int, cost_ns: int | None = None) -> None:
        super().taken(self._last_ns, cost_ns)


class OneMoreMessage(PolicyClock):
    def consumed(self, count: int = 1) -> None:
        super().consumed(count if self._messages else count - 1)


class TheLatestOfAll(PolicyClock):
    """As if all policies had to agree."""

    def _next_timer_ns(self) -> int | None:
        intervals = [interval for part in self._parts if (interval := self._interval_s(part)) is not None]
        return self._last_ns + max(1, round(max(intervals) * SECOND)) if intervals else None


@pytest.mark.parametrize(
    "mutant",
    [DueWithoutEvents, TakenKeepsTheCount, TakenKeepsTheWish, TakenKeepsTheTimer, OneMoreMessage, TheLatestOfAll],
)
def test_faults_of_the_clock_are_seen(mutant: type[PolicyClock]) -> None:
    every, messages, later = Every(5), EveryMessages(9), Every(30)
    with pytest.raises(AssertionError):
        for seed in range(100):
            for policy in (every, messages, AnyOf((every, later)), AnyOf((every, messages))):
                check_clock(mutant, policy, Random(seed))


# -- jitter -----------------------------------------------------------------------------------------------------------


def test_intervals_are_spread_evenly_over_the_jitter() -> None:
    spread = sorted(interval_s(active(Every(10, jitter=0.2), f"agent-{n}")) for n in range(2_000))
    assert spread[0] >= 8 and spread[-1] <= 12
    # The greatest distance from the even distribution; 0.05 is passed by chance once in 10,000 such samples.
    assert max(abs((value - 8) / 4 - rank / 2_000) for rank, value in enumerate(spread)) < 0.05


def test_intervals_differ_by_agent_checkpoint_and_seed_and_not_by_replay() -> None:
    def intervals(agent: str, seed: int) -> list[float]:
        clock, found = PolicyClock(Every(10), agent, seed), []
        for _ in range(5):
            clock.consumed()
            found.append(interval_s(clock))
            clock.taken(0, 0)
        return found

    runs = [intervals("a", 1), intervals("b", 1), intervals("a", 2)]
    assert len({value for run in runs for value in run}) == 15
    assert intervals("a", 1) == runs[0]


def test_agents_that_start_together_do_not_save_together_for_long() -> None:
    """Of 100 agents with a period of 1 s, how many save within the busiest 100 ms? All at first, a few later."""
    clocks = [PolicyClock(Every(1), f"agent-{n}") for n in range(100)]
    times_s = []
    for clock in clocks:
        for _ in range(100):
            clock.consumed()
            assert clock.due_ns is not None
            clock.taken(clock.due_ns, 0)
        clock.consumed()
        times_s.append(interval_s(clock))
    busiest = max(sum(start <= time < start + 0.1 for time in times_s) for start in times_s)
    assert busiest <= 40


def test_a_restored_agent_goes_on_with_the_jitter_of_its_checkpoint() -> None:
    clock = PolicyClock(Every(10), "a")
    clock.taken(0, 0)
    clock.consumed()
    restored = PolicyClock(Every(10), "a", now_ns=7 * SECOND, number=1)
    restored.consumed()
    assert interval_s(restored) == pytest.approx(interval_s(clock) + 7)


# -- adaptive ---------------------------------------------------------------------------------------------------------


def loss(interval: float, cost: float, mtbf: float) -> float:
    """Expected time per second of work under exponential failures, restart free: the textbook renewal argument."""
    return mtbf * (math.exp((interval + cost) / mtbf) - 1) / interval


def test_adaptive_loses_hardly_more_than_the_best_fixed_interval() -> None:
    for cost_s, mtbf_s in ((0.01, 60.0), (0.1, 60.0), (1.0, 600.0), (6.0, 60.0)):
        clock = PolicyClock(Adaptive(mtbf_s, least_s=1e-3, most_s=1e6), "a")
        clock.taken(0, round(cost_s * SECOND))
        clock.consumed()
        best = min(loss(mtbf_s * step / 2_000, cost_s, mtbf_s) for step in range(1, 4_000))
        # Jitter of a tenth costs at most about 1 % of the loss itself, which is what exceeds 1.
        assert loss(interval_s(clock), cost_s, mtbf_s) - 1 <= 1.02 * (best - 1)


def test_adaptive_saves_soon_at_first_so_that_the_cost_is_known() -> None:
    assert interval_s(active(Adaptive(least_s=3, most_s=100))) == pytest.approx(3, rel=JITTER + 1e-9)


def test_adaptive_stays_between_its_bounds() -> None:
    policy = Adaptive(3600, least_s=2, most_s=5)
    for cost_ns in (0, 1, SECOND // 100, 100 * SECOND):
        clock = PolicyClock(policy, "a")
        clock.taken(0, cost_ns)
        clock.consumed()
        assert 2 <= interval_s(clock) <= 5
    assert interval_s(clock) == 5


def test_dearer_checkpoints_are_rarer_and_more_failures_make_them_more_frequent() -> None:
    def interval(cost_ns: int, failures: int) -> float:
        clock = PolicyClock(Adaptive(least_s=1e-3, most_s=1e6), "a")
        clock.taken(0, cost_ns)
        clock.failure_rate(failures, 3600 * SECOND)
        clock.consumed()
        return interval_s(clock)

    assert interval(SECOND // 100, 1) < interval(SECOND, 1)
    assert interval(SECOND, 0) > interval(SECOND, 3) > interval(SECOND, 100)
    # Without failures in an hour and one assumed in another: as if declared to be two hours.
    declared = PolicyClock(Adaptive(2 * MTBF_PRIOR_S, least_s=1e-3, most_s=1e6), "a")
    declared.taken(0, SECOND)
    declared.consumed()
    assert interval(SECOND, 0) == pytest.approx(interval_s(declared))


def test_a_declared_mean_time_between_failures_is_not_overruled() -> None:
    clock = active(Adaptive(60, least_s=1e-3))
    clock.taken(0, SECOND)
    clock.consumed()
    before = interval_s(clock)
    clock.failure_rate(1_000, SECOND)
    assert interval_s(clock) == before


def test_the_cost_is_a_moving_mean_that_forgets() -> None:
    clock = PolicyClock(Adaptive(), "a")
    for cost_ns in (100, 200):
        clock.taken(0, cost_ns)
    assert clock.cost_ns == 125
    for _ in range(60):
        clock.taken(0, 1_000_000)
    assert clock.cost_ns == pytest.approx(1_000_000, rel=1e-3)


def test_impossible_measurements_are_refused() -> None:
    clock = PolicyClock(Adaptive(), "a")
    with pytest.raises(UsageError, match="monotonic clock"):
        clock.taken(0, -1)
    with pytest.raises(UsageError, match="-1 failures"):
        clock.failure_rate(-1, 0)


# -- declared and written ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("every 2s", Every(2)),
        ("every 500ms", Every(0.5)),
        ("every 300ms jitter 0.25", Every(0.3, jitter=0.25)),
        ("every 1.5h", Every(5400)),
        ("every 2m jitter 0", Every(120, jitter=0)),
        ("100 messages", EveryMessages(100)),
        ("every 100 messages", EveryMessages(100)),
        ("1 message", EveryMessages(1)),
        ("adaptive", Adaptive()),
        ("adaptive mtbf 1h least 2s most 5m", Adaptive(3600, 2, 300)),
        ("adaptive most 1m", Adaptive(most_s=60)),
        ("by hand", Manual()),
        ("  every   2s or\t100 messages  or by  hand ", AnyOf((Every(2), EveryMessages(100), Manual()))),
    ],
)
def test_policies_are_read_as_users_write_them(text: str, policy: Policy) -> None:
    assert parse_policy(text) == policy


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (Every(2), "every 2s"),
        (Every(0.3), "every 300ms"),
        (Every(90), "every 90s"),
        (Every(7200, jitter=0.5), "every 2h jitter 0.5"),
        (EveryMessages(1), "1 message"),
        (Adaptive(86400.0, most_s=60), "adaptive mtbf 24h most 1m"),
        (AnyOf((Every(2), EveryMessages(100))), "every 2s or 100 messages"),
        (Manual(), "by hand"),
    ],
)
def test_policies_are_written_plainly(policy: Policy, text: str) -> None:
    assert format_policy(policy) == text


@given(policies)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_text_and_encoding_keep_a_policy_to_the_last_bit(policy: Policy) -> None:
    assert parse_policy(format_policy(policy)) == policy
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(policy), type=Policy) == policy
    assert msgspec.json.decode(msgspec.json.encode(policy), type=Policy) == policy


@pytest.mark.parametrize(
    "text",
    [
        *("", "or", "every", "every 2", "every 2 s", "every -2s", "2s", "100", "-3 messages", "1.5 messages", "never"),
        *("every 2s or", "every 2s and 3 messages", "adaptive least", "by hand 2", "every infs", "every 2d"),
    ],
)
def test_what_is_no_policy_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(UsageError, match="is no policy: write 'every 2s'"):
        parse_policy(text)


@pytest.mark.parametrize(
    "text",
    [
        *("every 0s", "every 1e400s", "every 2s jitter 1", "0 messages", "9999999999999 messages"),
        *("adaptive mtbf 0s", "adaptive least 2m most 1m", " or ".join(["by hand"] * (POLICIES_MAX + 1))),
    ],
)
def test_impossible_policies_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not possible|swap them"):
        parse_policy(text)


def test_impossible_policies_are_refused_as_values_too() -> None:
    for make in (
        lambda: Every(math.nan),
        lambda: Every(1, jitter=math.nan),
        lambda: Adaptive(math.inf),
        lambda: AnyOf(()),
        lambda: AnyOf((Manual(),)),
    ):
        with pytest.raises(UsageError):
            make()
    with pytest.raises(msgspec.ValidationError, match="not possible"):
        msgspec.json.decode(b'{"type":"messages","count":0}', type=Policy)
