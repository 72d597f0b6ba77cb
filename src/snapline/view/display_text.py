"""Format numbers, states, losses and restores uniformly for pages, terminals and CLI commands.

Each state is shown by its name and in a tone, which is a colour. The tone red ("bad") marks failures, lost hosts, and states that need an
operator's attention immediately. The tone amber ("warn") marks states that are temporary or not urgent. All other states have the tone
green or plain.

The command `snapline status` also prints the work at risk, the duration of recoveries and the cost of the checkpoint interval. `snapline
recovery restore` and the confirmation page describe the consequences of a restore in the same words.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from snapline.messages.dependencies import describe_changes
from snapline.messages.status import URGENT
from snapline.view.markup import Markup, tag

if TYPE_CHECKING:
    from snapline.messages.answers import RestorePreview, TopicUndone
    from snapline.messages.status import FleetStatus, IntervalStatus, LossStatus


_BYTES = ("bytes", "KiB", "MiB", "GiB", "TiB")
NOTHING = "–"


def count(number: int | None) -> str:
    """Format a number with thousands separators, like `12,345`, or as a dash if it is unknown."""
    return NOTHING if number is None else f"{number:,}"


def plural(number: int, one: str, many: str = "") -> str:
    """Format a count together with its noun, like `1 host` or `3 hosts`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def rate(per_s: float | None) -> str:
    """Format a rate with a suitable number of decimals, like `1,234`, `12.3` or `0.4`, or as a dash if it is unknown."""
    if per_s is None:
        return NOTHING
    return f"{per_s:,.0f}" if per_s >= 100 or per_s == 0 else f"{per_s:.1f}"


def size(number: int | None) -> str:
    """Format a size in bytes with a suitable unit, like `1.5 MiB`, or as a dash if it is unknown."""
    if number is None:
        return NOTHING
    value, unit = float(number), 0
    while value >= 1024 and unit < len(_BYTES) - 1:
        value, unit = value / 1024, unit + 1
    return f"{number:,} bytes" if unit == 0 else f"{value:.1f} {_BYTES[unit]}"


def seconds(time_s: float | None) -> str:
    """Format a duration with a suitable unit, like `0.42 s` or `4 min`, or as a dash if it is unknown."""
    if time_s is None:
        return NOTHING
    if time_s < 10:
        return f"{time_s:.2f} s"
    if time_s < 120:
        return f"{time_s:.1f} s"
    return f"{time_s / 60:.0f} min" if time_s < 7200 else f"{time_s / 3600:.1f} h"


def moment(since_1970_s: float | None) -> Markup | str:
    """Show a point in time as the time of day in UTC."""
    if since_1970_s is None:
        return NOTHING
    at = datetime.fromtimestamp(since_1970_s, UTC)
    text = at.strftime("%Y-%m-%d %H:%M:%S")
    return tag("time", text, datetime=at.isoformat(timespec="milliseconds"), title=f"{text} UTC")


def age(since_1970_s: float | None) -> Markup | str:
    """Show how long ago a point in time was. The page's script keeps updating the age."""
    if since_1970_s is None:
        return NOTHING
    at = datetime.fromtimestamp(since_1970_s, UTC)
    text = at.strftime("%H:%M:%S UTC")
    return tag("time", text, datetime=at.isoformat(timespec="milliseconds"), data_age=True, title=f"at {text}")


# -- tones -------------------------------------------------------------------------------------------------------------


Tone = Literal["good", "plain", "warn", "bad"]
Subject = Literal["fleet", "host", "agent", "epoch", "effect", "replica", "verdict", "concern"]

TONES: tuple[Tone, ...] = ("good", "plain", "warn", "bad")
"""All tones, ordered from the least to the most serious."""

_OF: Mapping[Subject, Mapping[str, Tone]] = {
    "fleet": {"running": "good", "forming": "warn", "recovering": "warn", "failed": "bad"},
    "host": {"alive": "good", "lost": "bad"},
    "agent": {
        **dict.fromkeys(("alive", "running"), "good"),
        **dict.fromkeys(("unplaced", "starting", "unborn", "stopping", "dead letters"), "warn"),
        **dict.fromkeys(("lost", "failed"), "bad"),
    },
    "epoch": {"aborted": "warn", "condemned": "bad"},
    "effect": {"done": "good", "in doubt": "warn", "left": "warn", "needs people": "bad", "failed": "bad"},
    "replica": {"leader": "good", "follower": "good", "learner": "warn", "silent": "warn"},
    "verdict": {"pass": "good", "undecided": "warn", "violation": "bad", "broken": "bad"},
    "concern": dict.fromkeys(URGENT, "bad"),
}


def tone_of(subject: Subject, word: str) -> Tone:
    """Return the tone (display colour) of a state or a kind of concern."""
    return _OF[subject].get(word, "warn" if subject == "concern" else "plain")


def worst(tones: Iterable[Tone]) -> Tone:
    """Return the most serious of several tones, or "plain" if there are none."""
    return max(tones, key=TONES.index, default="plain")


def pill(subject: Subject, word: str, *more: str) -> Markup:
    """Show a state in its tone, followed by the texts in `more`."""
    return tag("span", word or "unknown", *more, class_=f"pill {tone_of(subject, word)}")


# -- losses ------------------------------------------------------------------------------------------------------------


DAY_S = 86_400.0
NS = 1e9

RECOVERIES_SHOWN = 3

COORDINATED = "coordinated"


def describe_concern(text: str, remedy: str, *, since_s: float, now_s: float) -> str:
    """Describe a concern for terminals. The text states the concern, the local time at which it began, and the remedy."""
    began_s = now_s - since_s
    clock = time.strftime("%H:%M:%S" if since_s < DAY_S / 2 else "%Y-%m-%d %H:%M", time.localtime(began_s))
    return f"{text}, since {clock}" + (f". To do: {remedy}" if remedy else "")


def describe_work_at_risk(facts: "FleetStatus") -> str:
    """Describe the work at risk, like `1.2 s` or `at most 1.2 s`, or return a dash if the fleet is not running."""
    at_risk_ns, most = facts.loss.at_risk_ns, "" if facts.mode in (COORDINATED, "") else "at most "
    text = NOTHING if at_risk_ns is None else f"{most}{seconds(at_risk_ns / NS)}"
    return f"{text}{_promised('RPO', facts.loss.rpo_ns / NS, facts.loss.missed)}"


def _promised(name: str, time_s: float, missed: Collection[str]) -> str:
    """Describe a limit that the fleet's definition sets, such as the RPO, and whether it is exceeded. Return "" if there is no limit."""
    if not time_s:
        return ""
    return f" ({name} {brief(time_s)}{', missed' if name.lower() in missed else ''})"


def describe_recoveries(loss: "LossStatus") -> str:
    """Describe the durations of the latest recoveries, newest first, and the number of failures in a period."""
    failures = f"{plural(loss.failures, 'failure')} in {seconds(loss.observed_ns / NS)}"
    promised = _promised("RTO", loss.rto_ns / NS, loss.missed)
    if not loss.recoveries:
        return f"none yet{promised}"
    shown = [_took(loss, rank) for rank in range(1, 1 + min(RECOVERIES_SHOWN, len(loss.recoveries)))]
    return f"{', '.join(shown)}; {failures}{promised}"


def _took(loss: "LossStatus", place: int) -> str:
    recovery = loss.recoveries[-place]
    undid = "" if recovery.lost_ns is None else f", which undid {seconds(recovery.lost_ns / NS)}"
    return f"{seconds((recovery.plan_ns + recovery.load_ns) / NS)} (plan {recovery.plan}{undid})"


def describe_interval(facts: "IntervalStatus") -> str:
    """Describe the checkpoint interval, the duration of an epoch, and the cost of an epoch for agents and for the store."""
    every_ns = facts.gap_ns or facts.period_ns
    every = f"every {seconds(every_ns / NS)}" if every_ns else "by hand"
    phrases = [f"{every}, {facts.policy}" if facts.policy else every]
    if facts.epochs:
        phrases.append(
            f"an epoch takes {seconds(facts.duration_ns / NS)} (at most {seconds(facts.duration_max_ns / NS)})"
        )
    if facts.capture_ns is not None and facts.pause_ns is not None:
        share = f", {percent(facts.capture_ns / every_ns)} of the time" if every_ns else ""
        phrases.append(
            f"agents of a host wait {brief(facts.capture_ns / NS)}{share}, each at most {brief(facts.pause_ns / NS)}"
        )
    if facts.new_bytes is not None:
        phrases.append(f"{size(facts.new_bytes)} written for {size(facts.state_bytes)} of states")
    return "; ".join(phrases)


def brief(time_s: float) -> str:
    """Format a short duration with a suitable unit, like `0.35 ms`, `12 ms` or `1.20 s`."""
    if time_s >= 1:
        return seconds(time_s)
    return f"{time_s * 1e3:.2f} ms" if time_s < 0.01 else f"{time_s * 1e3:.0f} ms"


def percent(share: float) -> str:
    """Format a fraction as a percentage like `0.012 %`, with two significant digits below 10 %."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


# -- restores ----------------------------------------------------------------------------------------------------------


NAMED_MAX = 10


def named(what: str, of: Sequence[object]) -> str:
    """Return a subject and verb for epochs, like `epochs 4, 5, … are` or `epoch 4 is`."""
    names = ", ".join(map(str, of[:NAMED_MAX])) + (", …" if len(of) > NAMED_MAX else "")
    return f"{what} {names} is" if len(of) == 1 else f"{what}s {names} are"


def undone_in_fleet(preview: "RestorePreview") -> list[str]:
    """List the consequences of a restore inside the fleet, one sentence each."""
    void_epochs, agents_gone, agents_back = preview.void_epochs, preview.agents_gone, preview.agents_back
    sentences = [f"epoch {preview.epoch}, taken {preview.created}, {preview.age_s} s ago"]
    sentences.append(f"{named('epoch', void_epochs)} discarded then" if void_epochs else "no later epoch is complete")
    sentences += [f"{named('agent', agents_gone)} gone: born later"] if agents_gone else []
    sentences += [f"{named('agent', agents_back)} there again, having left since"] if agents_back else []
    changes = describe_changes(preview.dependencies)
    return sentences + ([f"the hosts have other dependencies than then: {changes}"] if changes else [])


def undone_outside_fleet(preview: "RestorePreview") -> list[str]:
    """List the consequences of a restore for outputs and external effects, one sentence each."""
    sentences = [_taken_back(each) for each in preview.outputs]
    effects = ", ".join(preview.effects)
    return sentences + ([f"done outside since, and not taken back: {effects}"] if effects else [])


def _taken_back(topic: "TopicUndone") -> str:
    return f"topic {topic.topic}: {plural(topic.count, 'released output')} {'is' if topic.count == 1 else 'are'} taken back"
