"""Retention of snapshots that no recovery needs: the last ones, one an hour, one a day, manual ones, and held ones.

The problem. A fleet writes a snapshot every few seconds. Keeping all fills any disk. Keeping only the newest does not help somebody
who finds out on Tuesday what went wrong on Sunday.

The model. `retained` is a pure function of the existing snapshots, the policy and the time. A snapshot is kept if

1. it is held (by a pin, a tag or a recovery): the caller passes these with the reason;
2. it is one of the last `keep_last`, by epoch number. Damaged ones do not count, and those among the last stay: they are
   evidence, and a reader that looks for the newest must see them;
3. it is the newest of one of the last `hourly` hours, or of one of the last `daily` days (UTC). The hours and days end with the newest
   snapshot, not with the clock: a store that nobody uses for a month loses nothing;
4. it is one of the last `manual` that somebody took by hand;
5. it is at most `within_s` older than the newest. The time between two consecutive snapshots counts as an hour at most, so a clock
   correction makes no snapshot old;
6. its time is unknown, or later than the clock. Then a clock is wrong, and nothing uncertain is deleted. Such a snapshot represents no
   hour and no day, so it displaces no other one.

Snapshots are ordered by number, not by clock. Of two in one hour, the higher number is the newer, even if the clock went back.

Invariants (tested as properties):

- the newest snapshot is kept;
- rules 2 to 4 keep at most `keep_last + hourly + daily + manual`, not counting damaged ones;
- while time goes forward, rules 1 to 4 never need a snapshot again that they dropped: a day's newest is also an hour's newest.
  So early and late deletion end with the same snapshots.

Supports G7: the policy only decides what to *keep*; the coordinator decides what may be deleted.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from snapline.errors import UsageError

HOUR_NS, DAY_NS = 3_600_000_000_000, 86_400_000_000_000

_1970 = datetime(1970, 1, 1, tzinfo=UTC)

COUNT_MAX = 1_000_000
"""Largest number in a policy; `snapshot list` could not usefully show more."""

LAST, HOURLY, DAILY, MANUAL, WITHIN = "last", "hourly", "daily", "manual", "within"
UNKNOWN_TIME, FUTURE_TIME = "time unknown", "created later than now"
"""Reasons to keep a snapshot; the caller passes others: `pinned`, `tag NAME`, `in use`."""

_FIELDS = {LAST: "keep_last", HOURLY: "hourly", DAILY: "daily", MANUAL: "manual", WITHIN: "within_s"}

MANUAL_TRIGGER = "hand"
"""Trigger of manual snapshots in their manifests."""

WITHIN_S_MAX = 10 * 366 * 86_400
"""Ten years."""

_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


class Policy(msgspec.Struct, frozen=True):
    """Numbers of snapshots to keep beyond those needed for recovery.

    Attributes:
        keep_last: number of newest snapshots to keep; at least 1.
        hourly: number of hours of which the newest snapshot is kept; 0 for none.
        daily: number of days of which the newest snapshot is kept; 0 for none.
        manual: number of newest manual snapshots to keep; 0 for none.
        within_s: age in seconds, relative to the newest, up to which all are kept; 0 for none.
    """

    keep_last: int = 10
    hourly: int = 24
    daily: int = 14
    manual: int = 100
    within_s: int = 0

    def __post_init__(self) -> None:
        limits = ((LAST, 1, COUNT_MAX), (HOURLY, 0, COUNT_MAX), (DAILY, 0, COUNT_MAX), (MANUAL, 0, COUNT_MAX))
        for name, least, most in (*limits, (WITHIN, 0, WITHIN_S_MAX)):
            count = getattr(self, _FIELDS[name])
            if not least <= count <= most:
                raise UsageError(f"the retention's {name}={count} is not possible: give {least} to {most}")

    def __str__(self) -> str:
        return (
            f"last={self.keep_last},hourly={self.hourly},daily={self.daily},manual={self.manual},"
            f"within={self.within_s}s"
        )


class SnapshotTime(msgspec.Struct, frozen=True):
    """Facts about a snapshot that the policy needs.

    Attributes:
        epoch: epoch number.
        created_ns: nanoseconds since 1970; None if unknown. An integer, since rounding could move a time across the edge of an hour.
        is_damaged: the snapshot cannot be restored.
        is_manual: somebody took the snapshot by hand.
    """

    epoch: int
    created_ns: int | None
    is_damaged: bool = False
    is_manual: bool = False


def parse_policy(text: str, default: Policy | None = None) -> Policy:
    """Return the policy of a text such as `"last=10,hourly=24,daily=14,manual=100,within=2h"`; omitted parts are as in `default`.

    Raises:
        UsageError: a name is unknown or given twice, or a number is missing or out of range.
    """
    numbers: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, count = (text_part.strip() for text_part in part.partition("="))
        if name not in _FIELDS:
            raise UsageError(
                f"{part!r} is no part of a retention: write last=N,hourly=N,daily=N,manual=N,within=DURATION"
            )
        if _FIELDS[name] in numbers:
            raise UsageError(f"the retention {text!r} gives {name} twice: give it once")
        if name == WITHIN:
            numbers[_FIELDS[name]] = parse_duration_s(count)
            continue
        if not (count.isascii() and count.isdecimal() and len(count) <= len(str(COUNT_MAX))):
            raise UsageError(f"{part!r} needs a number from 0 to {COUNT_MAX}: write {name}=N")
        numbers[_FIELDS[name]] = int(count)
    return msgspec.structs.replace(default or Policy(), **numbers)


def parse_duration_s(text: str) -> int:
    """Return the seconds of `"90s"`, `"30m"`, `"2h"` or `"7d"`; a number alone is seconds.

    Raises:
        UsageError: `text` is not a duration.
    """
    match = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text)
    if match is None:
        raise UsageError(f"{text!r} is not a duration: write a whole number and a unit, such as 90s, 30m, 2h or 7d")
    return int(match[1]) * _UNITS_S[match[2]]


def parse_created(created: str) -> int | None:
    """Return a manifest's `created` in nanoseconds since 1970; None if it is not a time."""
    try:
        time = datetime.fromisoformat(created)
        return 1000 * (((time if time.tzinfo else time.replace(tzinfo=UTC)) - _1970) // timedelta(microseconds=1))
    except (ValueError, OverflowError):
        return None


def retained(
    snapshots: Iterable[SnapshotTime], policy: Policy, *, now_ns: int, held: Mapping[int, str]
) -> dict[int, str]:
    """Return the epochs to keep, ascending, each with the first reason that applies.

    `held` holds reasons that precede all others, such as `"pinned"`; epochs outside `snapshots` are ignored.
    """
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.epoch)
    undamaged = [snapshot for snapshot in ordered if not snapshot.is_damaged]
    oldest_of_last = undamaged[-policy.keep_last].epoch if len(undamaged) >= policy.keep_last else 0
    judged = [(x.epoch, x.created_ns) for x in undamaged if x.created_ns is not None and x.created_ns <= now_ns]
    hourly = _newest_of_each(judged, HOUR_NS, policy.hourly)
    daily = _newest_of_each(judged, DAY_NS, policy.daily)
    manual = frozenset([x.epoch for x in undamaged if x.is_manual][-policy.manual :] if policy.manual else ())
    within = _within(judged, policy.within_s * 10**9)
    kept: dict[int, str] = {}
    for snapshot in ordered:
        epoch = snapshot.epoch
        if epoch in held:
            kept[epoch] = held[epoch]
        elif epoch >= oldest_of_last:
            kept[epoch] = LAST
        elif epoch in hourly:
            kept[epoch] = HOURLY
        elif epoch in daily:
            kept[epoch] = DAILY
        elif epoch in manual:
            kept[epoch] = MANUAL
        elif epoch in within:
            kept[epoch] = WITHIN
        elif not snapshot.is_damaged and (reason := _untrusted_time_reason(snapshot.created_ns, now_ns)):
            kept[epoch] = reason
    return kept


def _untrusted_time_reason(created_ns: int | None, now_ns: int) -> str:
    if created_ns is None:
        return UNKNOWN_TIME
    return "" if created_ns <= now_ns else FUTURE_TIME


def _newest_of_each(times: Sequence[tuple[int, int]], length_ns: int, count: int) -> frozenset[int]:
    """Return the last epoch of each of the last `count` spans of `length_ns`; `times` ascends by epoch."""
    newest = {created_ns // length_ns: epoch for epoch, created_ns in times}
    end = max(newest, default=0)
    return frozenset([epoch for span, epoch in newest.items() if span > end - count])


def _within(times: Sequence[tuple[int, int]], length_ns: int) -> frozenset[int]:
    """Return the epochs that are at most `length_ns` older than the last; `times` ascends by epoch."""
    kept: set[int] = set()
    age_ns, after_ns = 0, None
    for epoch, created_ns in reversed(times if length_ns else ()):
        if after_ns is not None:
            age_ns += min(max(after_ns - created_ns, 0), HOUR_NS)
        if age_ns > length_ns:
            break
        kept.add(epoch)
        after_ns = created_ns
    return frozenset(kept)
