"""One row of a table: the rate that a query sustains under a protocol, and what happens at four fifths of it, with and without a failure."""

import math
from statistics import mean
from typing import NamedTuple

import msgspec
from benchmarks.checkmate.costs import costs_of
from benchmarks.checkmate.queries import NONE, agents_of, streams
from benchmarks.checkmate.virtual import Measured, Setting, play

COORDINATED = "chandy-lamport"

GROWTH_MAX = 0.02
"""Growth of the lag, in seconds per second, above which a rate is not sustained."""

TURNS = {"q1": 2.0, "q3": 0.35, "q8": 1.6, "q12": 2.0, "reachable": 1.5}
"""Estimated number of turns for an event, where the search begins."""

SEARCH_S = 20.0
"""Seconds of input in each run of the search."""

SHARE = 0.8
"""Share of the sustained rate at which all other figures are measured."""

LOWER = 0.6
RATES_MAX = 32
"""Limit of a search, which indicates a bug: an estimate is hardly ever wrong by a factor of 40."""


PHASES = (0.25, 0.75)
"""Times at which a host dies, one in each run and another host each time: fractions of an interval after the middle."""


class Line(NamedTuple):
    """`rate_per_s`: sustained. `calm`, `failing`: at `SHARE` of it, without a failure and with one each."""

    setting: Setting
    rate_per_s: float
    calm: Measured
    failing: list[Measured]


def measured(setting: Setting) -> Line:
    """All of it."""
    rate_per_s = sustained(setting)
    at = msgspec.structs.replace(setting, rate_per_s=SHARE * rate_per_s)
    moments = [setting.seconds / 2 + phase * setting.every_s for phase in PHASES]
    failing = [play(msgspec.structs.replace(at, fails_at=moment)) for moment in moments]
    return Line(setting, rate_per_s, play(at), failing)


def sustained(setting: Setting) -> float:
    """The highest rate at which the lag does not grow, to about 3 %: by bisection, geometrically."""
    low, high = 0.0, math.inf
    rate_per_s, short = guessed(setting), msgspec.structs.replace(setting, seconds=SEARCH_S, drains=False)
    for _ in range(RATES_MAX):
        if play(msgspec.structs.replace(short, rate_per_s=rate_per_s)).growth <= GROWTH_MAX:
            low = rate_per_s
        else:
            high = rate_per_s
        if low and high / low < 1.03:
            return low
        if not low:
            rate_per_s *= LOWER
        else:
            rate_per_s = math.sqrt(low * high) if high < math.inf else low * 1.2
    raise AssertionError(f"no sustained rate for {setting}: between {low} and {high} a second")


def guessed(setting: Setting) -> float:
    """What the processors could do if nothing else cost them anything, less a little."""
    of = streams(setting.query, setting.workers, 1.0, 1, 0.0, setting.tick_s)[0]
    agents = len(agents_of(setting.query, of)) * setting.workers
    costs = costs_of(setting.protocol, agents).for_messages(setting.stands_for)
    turns_per_s = 1e9 / (costs.turn_ns + costs.send_ns) - 1 / setting.tick_s
    return 0.9 * setting.workers * max(turns_per_s, 0.1) / TURNS[setting.query]


HEADS = (
    f"{'query':<10}{'workers':>8}{'hot':>5} {'protocol':<15}{'events/s':>9}{'÷ none':>8}{'p50 s':>7}{'p99 s':>7}{'saved s':>9}"
    f"{'taken':>7}{'forced':>7}{'invalid':>8}{'restart s':>10}{'recovery s':>11}{'redone':>8}{'bytes':>7}"
)


def shown(line: Line, bare: Line | None) -> str:
    """As a row. `bare`: the one without checkpoints."""
    setting, calm = line.setting, line.calm
    saves = setting.protocol != NONE
    return (
        f"{setting.query:<10}{setting.workers:>8}{setting.hot:>5.0%} {setting.protocol:<15}{line.rate_per_s * setting.stands_for:>9,.0f}"
        + said(line.rate_per_s / bare.rate_per_s if bare else math.nan, 8, ".2f")
        + f"{calm.p50_s:>7.2f}{calm.p99_s:>7.2f}"
        + said(calm.metrics.get("checkpoint_s", math.nan), 9, ".3f")
        + said(taken(setting, calm) if saves else math.nan, 7, ".0f")
        + said(calm.metrics["checkpoints_forced"] if saves else math.nan, 7, ".0f")
        + said(mean([invalid(setting, each) for each in line.failing]) if saves else math.nan, 8, ".1f")
        + said(mean([each.restart_s for each in line.failing]), 10, ".2f")
        + said(mean([each.recovery_s for each in line.failing]) if saves else math.nan, 11, ".1f")
        + said(mean([each.metrics["lost_turns"] / calm.metrics["turns"] for each in line.failing]), 8, ".1%")
        + said(calm.wire / bare.calm.wire if bare else math.nan, 7, ".3f")
    )


def taken(setting: Setting, of: Measured) -> float:
    """Checkpoints of agents, but for those of the start."""
    if setting.protocol == COORDINATED:
        return of.metrics["epochs_complete"] * of.agents
    return sum(of.metrics[f"checkpoints_{kind}"] for kind in ("basic", "forced", "tentative"))


def invalid(setting: Setting, of: Measured) -> float:
    """Those that were taken and that the recovery did not use: past its line, or of an epoch that it aborted."""
    return (
        of.metrics["epochs_aborted"] * of.agents if setting.protocol == COORDINATED else of.metrics["checkpoints_lost"]
    )


def said(value: float, width: int, form: str) -> str:
    return f"{'–' if math.isnan(value) else format(value, form):>{width}}"
