"""One row of a table: the rate that a query sustains under a protocol, and what happens at four fifths of it, with and without a failure."""

import math
from typing import NamedTuple

import msgspec
from benchmarks.checkmate.costs import costs_of
from benchmarks.checkmate.queries import NONE, agents_of, streams
from benchmarks.checkmate.virtual import Measured, Setting, play

GROWTH_MAX = 0.02
"""Seconds a second: input of which so much more waits every second is not sustained."""

TURNS = {"q1": 2.0, "q3": 0.35, "q8": 1.6, "q12": 2.0, "reachable": 1.5}
"""About so many turns an event: where the search begins."""

SEARCH_S = 30.0
"""Of input, of each run of the search."""

SHARE = 0.8
"""Of the sustained rate, for everything else."""

LOWER = 0.6
RATES_MAX = 12
"""A search that has not found anything by then is a mistake."""


class Line(NamedTuple):
    """`rate_per_s`: sustained. `calm`, `failing`: at `SHARE` of it, without a failure and with one half-way."""

    setting: Setting
    rate_per_s: float
    calm: Measured
    failing: Measured


def measured(setting: Setting) -> Line:
    """All of it."""
    rate_per_s = sustained(setting)
    at = msgspec.structs.replace(setting, rate_per_s=SHARE * rate_per_s)
    return Line(setting, rate_per_s, play(at), play(msgspec.structs.replace(at, fails=True)))


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
    setting, calm, metrics = line.setting, line.calm, line.failing.metrics
    taken = sum(calm.metrics[f"checkpoints_{kind}"] for kind in ("basic", "forced", "tentative"))
    is_coordinated = setting.protocol == "chandy-lamport"
    if is_coordinated:
        taken = calm.metrics["epochs_complete"] * calm.agents
    invalid = metrics["epochs_aborted"] * calm.agents if is_coordinated else metrics["checkpoints_lost"]
    is_bare = setting.protocol == NONE
    ratio = line.rate_per_s / bare.rate_per_s if bare is not None else math.nan
    wire = calm.wire / bare.calm.wire if bare is not None else math.nan
    saved = calm.metrics.get("checkpoint_s", math.nan)
    return (
        f"{setting.query:<10}{setting.workers:>8}{setting.hot:>5.0%} {setting.protocol:<15}"
        f"{line.rate_per_s * setting.stands_for:>9,.0f}{said(ratio, '.2f'):>8}{calm.p50_s:>7.2f}{calm.p99_s:>7.2f}{said(saved, '.3f'):>9}"
        f"{said(math.nan if is_bare else taken, '.0f'):>7}{said(math.nan if is_bare else calm.metrics['checkpoints_forced'], '.0f'):>7}"
        f"{said(math.nan if is_bare else invalid, '.0f'):>8}"
        f"{said(line.failing.restart_s, '.2f'):>10}{said(line.failing.recovery_s, '.1f'):>11}"
        f"{said(metrics['lost_turns'] / metrics['turns'], '.1%'):>8}{said(wire, '.3f'):>7}"
    )


def said(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form)
