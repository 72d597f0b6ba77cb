"""Which snapshots a policy keeps, compared with a slow reading of the rules, and over whole lives of a store."""

import itertools
import random
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from snapline.errors import UsageError
from snapline.storage.retention.epoch_retention import (
    COUNT_MAX,
    DAILY,
    FUTURE_TIME,
    HOURLY,
    LAST,
    MANUAL,
    UNKNOWN_TIME,
    WITHIN,
    Policy,
    SnapshotTime,
    parse_created,
    parse_duration_s,
    parse_policy,
    retained,
)

SECOND, HOUR, DAY = 10**9, 3600 * 10**9, 86_400 * 10**9
"""All times are whole nanoseconds."""

_1970 = datetime(1970, 1, 1, tzinfo=UTC)


def at(*moment: int) -> int:
    return (datetime(*moment, tzinfo=UTC) - _1970) // timedelta(seconds=1) * SECOND  # type: ignore[misc, arg-type]  # year to minute


NOON = at(2025, 3, 9, 12)

policies = st.builds(
    Policy,
    keep_last=st.integers(1, 4),
    hourly=st.integers(0, 4) | st.integers(20, 30),
    daily=st.integers(0, 4),
    manual=st.integers(0, 3),
)
within_s = st.integers(0, 3 * 86_400)
steps_ns = st.sampled_from(
    (1, SECOND, 600 * SECOND, 1800 * SECOND, HOUR, 5 * HOUR, 20 * HOUR, DAY, 3 * DAY)
) | st.integers(0, 2 * DAY)
edges_ns = st.builds(lambda hours, off: hours * HOUR + off, st.integers(-50, 50), st.integers(-1, 1))
"""Around the edge of an hour, or of a day."""


def made(*created_ns: int | None) -> list[SnapshotTime]:
    return [SnapshotTime(epoch, created) for epoch, created in enumerate(created_ns, 1)]


# ---- the rules, one by one -----------------------------------------------------------------------------------------


def test_the_usual_policy_thins_out_a_month_of_minutes() -> None:
    every_five_minutes = made(*(NOON - 30 * DAY + 300 * SECOND * n for n in range(30 * 288 + 1)))
    kept = retained(every_five_minutes, Policy(), now_ns=NOON, held={})
    reasons = list(kept.values())
    assert (reasons.count(LAST), reasons.count(HOURLY), reasons.count(DAILY)) == (10, 22, 12)
    ages = sorted({round((NOON - x.created_ns) / HOUR) for x in every_five_minutes if x.created_ns and x.epoch in kept})
    assert ages[:4] == [0, 1, 2, 3]
    assert ages[-1] == 13 * 24 - 12, "the newest of the day thirteen days before today"


def test_hours_and_days_are_those_of_utc() -> None:
    two = made(at(2025, 3, 8, 23, 59), at(2025, 3, 9, 0, 1))
    assert retained(two, Policy(1, 0, 2), now_ns=NOON, held={}) == {1: DAILY, 2: LAST}
    assert retained(two, Policy(1, 2, 0), now_ns=NOON, held={}) == {1: HOURLY, 2: LAST}
    assert retained(two, Policy(1, 1, 1), now_ns=NOON, held={}) == {2: LAST}


def test_the_last_nanosecond_of_an_hour_is_in_that_hour() -> None:
    """Seconds as floats cannot tell it from the next one."""
    assert retained(made(NOON - HOUR, NOON - 1, NOON), Policy(1, 2, 0), now_ns=NOON, held={}) == {2: HOURLY, 3: LAST}


def test_a_store_that_lies_untouched_for_a_year_loses_nothing() -> None:
    snapshots = made(*(NOON + HOUR * n for n in range(100)))
    at_the_end = retained(snapshots, Policy(), now_ns=NOON + 100 * HOUR, held={})
    assert retained(snapshots, Policy(), now_ns=NOON + 365 * DAY, held={}) == at_the_end


def test_who_is_held_stays_and_the_reason_says_why() -> None:
    snapshots = made(*(NOON + n for n in range(5)))
    held = {1: "pinned", 3: "tag good", 5: "in use", 99: "pinned"}
    assert retained(snapshots, Policy(1, 0, 0), now_ns=NOON + 9, held=held) == {1: "pinned", 3: "tag good", 5: "in use"}


def test_a_time_that_is_unknown_or_to_come_is_no_reason_to_delete() -> None:
    snapshots = made(None, NOON - HOUR, None, NOON + DAY, NOON - 60 * SECOND, NOON)
    assert retained(snapshots, Policy(1, 0, 0), now_ns=NOON, held={}) == {
        1: UNKNOWN_TIME,
        3: UNKNOWN_TIME,
        4: FUTURE_TIME,
        6: LAST,
    }


def test_a_snapshot_from_the_future_drives_no_other_one_out() -> None:
    honest = made(NOON - DAY, NOON - 2 * HOUR, NOON - HOUR, NOON)
    liar = SnapshotTime(0, NOON + 1000 * DAY)
    kept = retained(honest, Policy(1, 9, 9), now_ns=NOON, held={})
    assert retained([liar, *honest], Policy(1, 9, 9), now_ns=NOON, held={}) == {0: FUTURE_TIME, **kept}


def test_after_the_clock_went_back_the_higher_number_is_the_newer_one() -> None:
    assert retained(made(NOON + 50, NOON + 10, NOON + 20), Policy(1, 1, 1), now_ns=NOON + 60, held={}) == {3: LAST}


def test_damaged_ones_do_not_count_among_the_last_and_stay_with_them() -> None:
    snapshots = [SnapshotTime(epoch, NOON + epoch, is_damaged=epoch in (2, 5, 6)) for epoch in range(1, 8)]
    kept = retained(snapshots, Policy(3, 0, 0), now_ns=NOON + 9, held={})
    assert list(kept) == [3, 4, 5, 6, 7], "3, 4 and 7 are the last three that can be restored"


def test_the_last_that_were_taken_by_hand_stay() -> None:
    snapshots = [SnapshotTime(n, NOON + n, is_damaged=n == 4, is_manual=n in (1, 2, 4, 5)) for n in range(1, 9)]
    kept = retained(snapshots, Policy(1, 0, 0, manual=2), now_ns=NOON + 9, held={})
    assert kept == {2: MANUAL, 5: MANUAL, 8: LAST}, "a damaged one does not count"
    assert retained(snapshots, Policy(1, 0, 0, manual=0), now_ns=NOON + 9, held={}) == {8: LAST}
    assert len(retained(snapshots, Policy(1, 0, 0), now_ns=NOON + 9, held={})) == 4


def test_all_of_the_last_hours_stay() -> None:
    snapshots = made(*(NOON + 600 * SECOND * n for n in range(100)))
    kept = retained(snapshots, Policy(1, 0, 0, within_s=2 * 3600), now_ns=NOON + 100 * HOUR, held={})
    assert kept == {**dict.fromkeys(range(88, 100), WITHIN), 100: LAST}


@pytest.mark.parametrize("jump_ns", [-5 * HOUR, 10 * 365 * DAY])
def test_a_jump_of_the_clock_makes_no_snapshot_old(jump_ns: int) -> None:
    snapshots = made(*(NOON + 600 * SECOND * n + (jump_ns if n > 5 else 0) for n in range(10)))
    now_ns = NOON + 10 * HOUR + max(jump_ns, 0)
    assert len(retained(snapshots, Policy(1, 0, 0, within_s=3 * 3600), now_ns=now_ns, held={})) == 10


def test_durations_have_units() -> None:
    assert [parse_duration_s(text) for text in ("5", "90s", "30m", "2h", "7d")] == [5, 90, 1800, 7200, 7 * 86_400]
    assert parse_policy("within=2h,manual=3") == Policy(manual=3, within_s=7200)


# ---- properties ----------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(-3 * DAY, 3 * DAY) | edges_ns | st.none(), max_size=40),
    st.builds(msgspec.structs.replace, policies, within_s=within_s),
    st.sets(st.integers(0, 45), max_size=4),
    st.sets(st.integers(0, 45)),
    st.randoms(use_true_random=False),
)
@example(
    [0, 1], Policy(1, 1, 0), set(), set(), random.Random(0)
)  # the second one is of the hour before, by one nanosecond
def test_what_is_kept_is_what_the_rules_say(
    ages: list[int | None], policy: Policy, pinned: set[int], manual: set[int], chance: object
) -> None:
    snapshots = made(*(None if age is None else NOON - age for age in ages))
    snapshots = [msgspec.structs.replace(x, is_manual=x.epoch in manual) for x in snapshots]
    shuffled = list(snapshots)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]  # a random.Random
    kept = retained(shuffled, policy, now_ns=NOON, held=dict.fromkeys(pinned, "pinned"))
    assert set(kept) == {x.epoch for x in snapshots if _slowly(x, snapshots, policy, pinned)}
    assert list(kept) == sorted(kept)
    if snapshots:
        assert snapshots[-1].epoch in kept
    unclear = sum(x.created_ns is None or x.created_ns > NOON for x in snapshots)
    if not policy.within_s:
        assert len(kept) <= policy.keep_last + policy.hourly + policy.daily + policy.manual + len(pinned) + unclear


def _slowly(it: SnapshotTime, all_: list[SnapshotTime], policy: Policy, pinned: set[int]) -> bool:
    """The rules of the module's text, one snapshot at a time, by calendar instead of arithmetic."""
    if it.epoch in pinned or it.created_ns is None or it.created_ns > NOON:
        return True
    if sum(other.epoch > it.epoch for other in all_) < policy.keep_last:
        return True
    if it.is_manual and sum(other.epoch > it.epoch and other.is_manual for other in all_) < policy.manual:
        return True
    past = [x for x in all_ if x.created_ns is not None and x.created_ns <= NOON]
    end = max(x.created_ns or 0 for x in past)
    for unit, length, count in (("%Y-%m-%d %H", HOUR, policy.hourly), ("%Y-%m-%d", DAY, policy.daily)):
        spans = {_calendar(end - n * length, unit) for n in range(count)}
        own = _calendar(it.created_ns, unit)
        is_newest = all(x.epoch <= it.epoch for x in past if _calendar(x.created_ns or 0, unit) == own)
        if own in spans and is_newest:
            return True
    later = [x.created_ns or 0 for x in past if x.epoch >= it.epoch]
    steps = [0 if b < a else HOUR if b - a > HOUR else b - a for a, b in itertools.pairwise(later)]
    return policy.within_s > 0 and sum(steps) <= policy.within_s * SECOND


def _calendar(time_ns: int, unit: str) -> str:
    return (_1970 + timedelta(microseconds=time_ns // 1000)).strftime(unit)


@settings(max_examples=40)
@given(policies, st.lists(st.tuples(steps_ns, st.booleans(), steps_ns, st.booleans()), min_size=1, max_size=25))
def test_what_was_dropped_is_never_wanted_again(policy: Policy, life: list[tuple[int, bool, int, bool]]) -> None:
    """Two stores live the same life; one deletes at once, the other only now and then. They want the same in the end."""
    now_ns, dropped = NOON, set[int]()
    everything: list[SnapshotTime] = []
    tidy: list[SnapshotTime] = []
    for step_ns, is_made, back_ns, goes_back in life:
        now_ns += step_ns
        if is_made:
            number = len(everything) + 1
            made_now = SnapshotTime(number, now_ns - (back_ns if goes_back else 0), is_manual=number % 3 == 0)
            everything.append(made_now)
            tidy.append(made_now)
        kept = retained(tidy, policy, now_ns=now_ns, held={})
        dropped.update(x.epoch for x in tidy if x.epoch not in kept)
        tidy = [x for x in tidy if x.epoch in kept]
        wanted = retained(everything, policy, now_ns=now_ns, held={})
        assert wanted.keys() == kept.keys()
        assert not dropped & wanted.keys()


# ---- text ----------------------------------------------------------------------------------------------------------


@given(policies)
def test_a_policy_reads_its_own_text(policy: Policy) -> None:
    assert parse_policy(str(policy)) == policy


def test_what_is_left_out_is_as_by_default() -> None:
    assert parse_policy("") == Policy(10, 24, 14)
    assert parse_policy(" hourly = 3 ,last=7,", Policy(keep_last=4, daily=2)) == Policy(7, 3, 2)


@pytest.mark.parametrize(
    "text",
    [
        *("10", "last", "last=", "last=x", "last=0", "last=-1", "hourly=1.5", "weekly=3", "last=1,last=2"),
        *("daily=²", f"daily={COUNT_MAX + 1}", "daily=99999999999999999999", "last=5;daily=3"),
        *("manual=-1", "within=", "within=x", "within=2w", "within=1.5h", "within=99999d", "within=-1s"),
    ],
)
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_policy(text)


@pytest.mark.parametrize("numbers", [(0, 1, 1), (1, -1, 0), (1, 0, COUNT_MAX + 1)])
def test_impossible_numbers_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError):
        Policy(*numbers)


def test_times_of_manifests_are_read_and_others_are_none() -> None:
    assert parse_created("2025-03-09T12:00:00.000Z") == NOON
    assert parse_created("2025-03-09T11:59:59.999999Z") == NOON - 1000
    assert parse_created("2025-03-09T13:00:00+01:00") == NOON
    assert parse_created("2025-03-09T12:00:00") == NOON, "manifests tell UTC"
    assert [parse_created(text) for text in ("", "soon", "2025-02-30", "9" * 400)] == [None] * 4
