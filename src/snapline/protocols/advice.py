"""Advice on the best protocol and checkpoint interval for a running fleet, based on the fleet's own measurements.

Theory of operation
-------------------
The fleet measures the *price* C of the checkpoints in one interval, the time D until an epoch is complete, the duration R of recoveries,
and the number of failures. C is the longest time for which the agents of any single host wait for their checkpoints. The following values
are derived from these measurements:

- the mean time M between failures, with confidence limits, or with only a lower limit if no failure was observed.
- the checkpoint interval, which is Daly's interval for C and M (`policy.py`), but at least D and at least `INTERVAL_MIN_S`. The interval
  must also be short enough that the work lost by a failure, at most interval + D, stays within the RPO. Daly's interval grows only with the
  square root of M, so errors in M have a reduced effect.
- the cost per hour, which for an interval T consists of the overhead C/T and, for each failure, the repeated work T/2 + D and the recovery
  time R. Under koo-toueg, agents are blocked until the checkpoint round is decided, so D is used as the price C.

*Other protocols* are not running, so only bounds on their costs can be given. If agents take checkpoints independently, each failure rolls
back a share s of the agents by half of their interval. So the best interval is Daly's interval for C and M/s. For `bcs`, the range of s is
taken from the patterns measured in docs/protocols.md. The cost of sender logs is unknown while the fleet writes no sender logs, so there is
no upper bound. A different protocol is therefore advised only if there is direct evidence against the current protocol:

- Epochs take longer than the interval between them, or are aborted. Under a coordinated protocol, the longest turn of any agent delays all
  agents. Under `bcs`, a long turn delays only its own agent.
- Under `uncoordinated`, the recovery line is older than several intervals, which indicates the domino effect.
- Under a communication-induced protocol, the ratio of forced to basic checkpoints is higher than in any pattern measured under `bcs`.

Without this evidence, the advice is to keep the fleet's protocol, which cannot be changed later, unless another protocol is clearly
cheaper. If another protocol might be cheaper, the advice contains the largest possible saving. `snapline sim compare` measures the saving
by running the same agents under both protocols.

Cost of an hour
---------------
Advice based on simulations uses the same cost model. The expected cost per hour is

    3600 s × (overhead without failures + loss per failure / mean time between failures)

where the overhead is the time that checkpoints add, as a fraction of the running time. The loss per failure is the repeated work plus the
duration of the recovery (Daly, FGCS 22(3), 2006, section 2, to first order). If the costs of several protocols cannot be distinguished from
the lowest cost, the simplest of these protocols is chosen. Coordinated protocols are the simplest, followed by uncoordinated protocols and
then by communication-induced protocols.

*Mean time between failures.* Memoryless failures form a Poisson process. So the exact confidence limits for the failure rate follow from
the observed number of failures (Garwood, Biometrika 28, 1936). If the true rate equals the lower limit, the probability of observing at
least this number of failures is 2.5 %. If the true rate equals the upper limit, the probability of observing at most this number of
failures is 2.5 %. If no failure was observed during a time t, the mean exceeds t / 3.0 with 95 % confidence (rule of three: e^-3 = 5 %).
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

from snapline.errors import UsageError
from snapline.protocols.names import BCS, CHANDY_LAMPORT, KOO_TOUEG, PROTOCOLS, UNCOORDINATED, is_autonomous
from snapline.protocols.policy import COST_MIN_S, INTERVAL_MIN_S, daly

HOUR_S = 3600.0

SIMPLEST_FIRST = PROTOCOLS
"""All protocols, from the simplest to the most complex. Coordinated protocols come first, since they recover from a single known epoch. All
other protocols are in the order of docs/protocols.md."""

TAIL = 0.025
"""Probability of each of the two tails outside the confidence limits."""

NONE_SEEN = -math.log(2 * TAIL)
"""Expected number of failures in a period in which at least one failure occurs with a probability of 95 %."""

STEPS = 80
"""Number of bisection steps. After this number, a confidence limit is exact to the last bit."""


def hourly_cost_s(overhead: float, *, loss_s: float, mtbf_s: float) -> float:
    """Return how many seconds per hour are lost because of checkpoints and failures."""
    return HOUR_S * (overhead + loss_s / mtbf_s)


def simplest(protocols: Iterable[str]) -> str:
    """Return the simplest of these protocols."""
    return min(protocols, key=SIMPLEST_FIRST.index)


class Mtbf(msgspec.Struct, frozen=True):
    """A fleet's mean time between failures, in seconds.

    Attributes:
        mean_s: the mean, or None if no failure has occurred yet.
        low_s, high_s: 95 % confidence limits. `high_s` is infinite if no upper limit is known.
        failures, observed_s: the number of failures and the observation time from which the mean was computed. Both are 0 if the mean was
            declared by the user.
    """

    mean_s: float | None
    low_s: float
    high_s: float
    failures: int = 0
    observed_s: float = 0.0


def declared_mtbf(mtbf_s: float) -> Mtbf:
    """Return the mean time between failures from a value declared by the user.

    Raises:
        UsageError: the value is not a positive and finite time.
    """
    if not (math.isfinite(mtbf_s) and mtbf_s > 0):
        raise UsageError(f"mtbf_s is {mtbf_s}: give the fleet's mean time between failures in seconds")
    return Mtbf(mtbf_s, mtbf_s, mtbf_s)


def observed_mtbf(failures: int, observed_s: float) -> Mtbf:
    """Estimate the mean time between failures from observed failures.

    Raises:
        UsageError: a number is negative, or failures were observed in an observation time of 0.
    """
    if failures < 0 or not (math.isfinite(observed_s) and observed_s >= 0) or (failures and not observed_s):
        raise UsageError(f"{failures} failures in {observed_s} s is not possible")
    if not failures:
        return Mtbf(None, observed_s / NONE_SEEN, math.inf, 0, observed_s)
    low, high = poisson_limits(failures)
    return Mtbf(observed_s / failures, observed_s / high, observed_s / low, failures, observed_s)


def poisson_limits(count: int) -> tuple[float, float]:
    """Return the 95 % confidence limits for the mean of a Poisson distribution from which `count` events were observed (Garwood 1936)."""
    high = _mean_where(count, TAIL)
    return (_mean_where(count - 1, 1 - TAIL) if count else 0.0), high


def _mean_where(count: int, chance: float) -> float:
    """Return the mean at which the probability of at most `count` events equals `chance`. The probability decreases as the mean
    increases."""
    low, high = 0.0, 10.0 + 4.0 * count
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(count, middle) > chance else (low, middle)
    return (low + high) / 2


def _at_most(count: int, mean: float) -> float:
    """Return the probability of at most `count` events for this mean. The terms are computed as logarithms, because they may overflow or
    underflow as floats."""
    if mean == 0:
        return 1.0
    return math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1))


BCS_MOVED_SHARES = (0.22, 0.91)
"""Smallest and largest share of the agents that one failure rolls back under `bcs`, over all patterns in docs/protocols.md."""

BCS_FORCED_RATIO_MAX = 4.1
"""Largest number of forced checkpoints per basic checkpoint under `bcs`, over all patterns in docs/protocols.md."""

SAVING_MIN_S = 1.0
"""Smallest saving that justifies a change, in seconds per hour."""

MTBF_EXAMPLES_S = (3_600.0, 86_400.0, 7 * 86_400.0, 30 * 86_400.0)
"""Mean times between failures for which the advice contains the best intervals if the actual mean time is unknown."""

LINE_LAG_MAX = 3
"""Number of intervals by which the recovery line may lag without this being counted as a domino effect. One interval is in progress, one is
being stored, and one is tolerated as chance."""

ABORTED_SHARE = 0.1
"""Share of aborted epochs above which aborts are no longer considered accidental."""


class RunningFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a running fleet. Times are in seconds. Unknown values are None.

    Attributes:
        interval_s: time between two checkpoints of an agent, including forced checkpoints. `interval_s` is None if checkpoints are taken
            only on request or the interval has not been measured yet.
        price_s: time for which a host's agents wait for the checkpoints of one interval.
        duration_s: mean duration of an epoch, or None if no epoch is complete.
        behind_s: age of the newest recovery line.
        recoveries_s: durations of the recoveries after failures.
        moved, depth: share of the agents that a failure rolled back, and the number of checkpoints that each of these agents lost.
        checkpoints, forced: number of all checkpoints so far, and how many of them were forced.
        completed, aborted: numbers of complete and of aborted epochs.
        rpo_s, rto_s: the recovery objectives in the fleet's definition.
        recovery: what a failure takes back, "global" or "local".
    """

    protocol: str
    interval_s: float | None = None
    price_s: float | None = None
    duration_s: float | None = None
    behind_s: float | None = None
    recoveries_s: tuple[float, ...] = ()
    moved: float | None = None
    depth: float = 0.0
    checkpoints: int = 0
    forced: int = 0
    completed: int = 0
    aborted: int = 0
    longest_turn_s: float = 0.0
    rpo_s: float | None = None
    rto_s: float | None = None
    recovery: str = "global"

    @property
    def recovery_s(self) -> float:
        """Return the mean duration of a recovery in seconds, or 0 if there was no recovery."""
        return math.fsum(self.recoveries_s) / len(self.recoveries_s) if self.recoveries_s else 0.0

    @property
    def forced_ratio(self) -> float | None:
        """Return the number of forced checkpoints per basic checkpoint, or None if there were no basic checkpoints."""
        basic = self.checkpoints - self.forced
        return self.forced / basic if basic > 0 else None


class BestInterval(msgspec.Struct, frozen=True):
    """The best checkpoint interval for a given mean time between failures.

    Attributes:
        interval_s: time from one checkpoint of an agent to its next one, in seconds.
        every_s: period in seconds that must be configured for the trigger in order to achieve this interval. `every_s` is longer than the
            interval if messages force additional checkpoints.
        formula_s: Daly's interval in seconds.
        bound: why the interval differs from Daly's interval: "duration", "least" or "rpo"; "" if it does not differ.
        cost_s: cost per hour in seconds.
    """

    mtbf_s: float
    interval_s: float
    every_s: float
    formula_s: float
    bound: str
    cost_s: float


class ProtocolCost(msgspec.Struct, frozen=True):
    """Lower and upper bound of a protocol's cost per hour, at the protocol's best interval. `high_s` is None if the upper bound is unknown.
    `how` describes how the bounds were obtained."""

    protocol: str
    low_s: float
    high_s: float | None
    how: str


class FleetAdvice(msgspec.Struct, frozen=True):
    """The advice for a fleet.

    Attributes:
        protocol: the advised protocol, which is the fleet's current protocol unless there is evidence against it or another protocol is
            clearly cheaper.
        is_other_protocol, is_other_interval: whether it is worthwhile to change the protocol, and to change the interval.
        interval: best interval for the most likely mean time between failures, or None if this time or the price is unknown.
        cost_now_s: cost per hour with the current settings, or None if it is unknown.
        interval_low_s, interval_high_s: best intervals for the lower and the upper confidence limit of the mean time between failures.
        intervals: best intervals for several possible mean times between failures, if the actual value is unknown.
        costs: the costs of the compared protocols.
        why: reasons for the advice, as sentences that contain numbers.
        missing: sentences that name the unknown values and explain how to obtain them.
    """

    protocol: str
    is_other_protocol: bool
    is_other_interval: bool
    mtbf: Mtbf
    interval: BestInterval | None = None
    cost_now_s: float | None = None
    interval_low_s: float | None = None
    interval_high_s: float | None = None
    intervals: list[BestInterval] = []
    costs: list[ProtocolCost] = []
    why: list[str] = []
    missing: list[str] = []


def advise(figures: RunningFigures, mtbf: Mtbf) -> FleetAdvice:
    """Return the advice for a fleet with these measurements and this mean time between failures."""
    known_s = [mtbf.mean_s] if mtbf.mean_s is not None else sorted({mtbf.low_s, *MTBF_EXAMPLES_S} - {0.0})
    intervals = [] if figures.price_s is None else [best_interval(figures, mtbf_s) for mtbf_s in known_s]
    best = intervals[0] if intervals and mtbf.mean_s is not None else None
    now_s = None if mtbf.mean_s is None else _cost_now_s(figures, mtbf.mean_s)
    costs = [] if best is None else protocol_costs(figures, best)
    held = evidence_against(figures)
    protocol = _suitable(figures.protocol, costs, is_refuted=bool(held))
    is_cheaper = best is not None and (now_s is None or now_s - best.cost_s >= SAVING_MIN_S)
    why = [*held, *_of_protocols(figures, costs, protocol), *_of_interval(figures, best, now_s), *_of_recovery(figures)]
    return FleetAdvice(
        protocol,
        is_other_protocol=protocol != figures.protocol,
        is_other_interval=is_cheaper or (best is not None and breaks_rpo(figures)),
        mtbf=mtbf,
        interval=best,
        cost_now_s=now_s,
        interval_low_s=_interval_at(figures, mtbf.low_s) if best else None,
        interval_high_s=_interval_at(figures, mtbf.high_s) if best else None,
        intervals=intervals if best is None else [],
        costs=costs,
        why=why,
        missing=_missing(figures, mtbf),
    )


# ---- the interval -----------------------------------------------------------------------------------------------------


def best_interval(figures: RunningFigures, mtbf_s: float) -> BestInterval:
    """Return the best interval under the fleet's current protocol. The price of checkpoints must be known."""
    price_s, share = _price_s(figures), _share(figures)
    formula_s = daly(price_s, mtbf_s / share)
    lowest, bound = max((INTERVAL_MIN_S, "least"), (figures.duration_s or 0.0, "duration"))
    interval_s, kept = (lowest, bound) if formula_s < lowest else (formula_s, "")
    highest = math.inf if figures.rpo_s is None else figures.rpo_s - (figures.duration_s or 0.0)
    if interval_s > highest:
        interval_s, kept = max(highest, lowest), "rpo"
    every_s = interval_s * (1 + (figures.forced_ratio or 0.0))
    return BestInterval(mtbf_s, interval_s, every_s, formula_s, kept, _cost_s(figures, interval_s, mtbf_s))


def breaks_rpo(figures: RunningFigures) -> bool:
    """Return whether a failure at the current interval could lose more work than the fleet's RPO allows."""
    if figures.rpo_s is None or figures.interval_s is None:
        return False
    return figures.interval_s + (figures.duration_s or 0.0) > figures.rpo_s


def _interval_at(figures: RunningFigures, mtbf_s: float) -> float | None:
    return best_interval(figures, mtbf_s).interval_s if 0 < mtbf_s < math.inf else None


def _price_s(figures: RunningFigures) -> float:
    """Return the price of checkpoints in seconds. Under koo-toueg, it is at least the duration of a checkpoint round, because agents are
    blocked until the round is decided."""
    blocked_s = (figures.duration_s or 0.0) if figures.protocol == KOO_TOUEG else 0.0
    return max(figures.price_s or 0.0, blocked_s, COST_MIN_S)


def _share(figures: RunningFigures) -> float:
    """Return the share of the agents that one failure rolls back."""
    return figures.moved if is_autonomous(figures.protocol) and figures.moved else 1.0


def _cost_s(figures: RunningFigures, interval_s: float, mtbf_s: float) -> float:
    again_s = (figures.depth + 0.5) * interval_s + (figures.duration_s or 0.0)
    loss_s = _share(figures) * again_s + figures.recovery_s
    return hourly_cost_s(_price_s(figures) / interval_s, loss_s=loss_s, mtbf_s=mtbf_s)


def _cost_now_s(figures: RunningFigures, mtbf_s: float) -> float | None:
    if not figures.interval_s or figures.price_s is None:
        return None
    return _cost_s(figures, figures.interval_s, mtbf_s)


# ---- the protocol -----------------------------------------------------------------------------------------------------


def protocol_costs(figures: RunningFigures, best: BestInterval) -> list[ProtocolCost]:
    """Return the cost of the fleet's current protocol, followed by bounds on the costs of the usual alternatives."""
    own = ProtocolCost(figures.protocol, best.cost_s, best.cost_s, "from the fleet's own figures")
    other_costs = [
        _other(figures, best, protocol) for protocol in (CHANDY_LAMPORT, BCS) if protocol != figures.protocol
    ]
    return [own, *other_costs]


def _other(figures: RunningFigures, best: BestInterval, protocol: str) -> ProtocolCost:
    plain = msgspec.structs.replace(figures, protocol=protocol, depth=0.0, moved=None)
    if protocol == CHANDY_LAMPORT:
        low_s = best_interval(plain, best.mtbf_s).cost_s
        if figures.protocol == KOO_TOUEG:
            return ProtocolCost(
                protocol, low_s, low_s, "the same checkpoints, but no agent is paused until the round is decided"
            )
        how = "the same price for a checkpoint; how long long turns would hold up an epoch is not known"
        return ProtocolCost(protocol, low_s, None, how)
    low_s = best_interval(msgspec.structs.replace(plain, moved=BCS_MOVED_SHARES[0]), best.mtbf_s).cost_s
    how = f"if a failure takes back {BCS_MOVED_SHARES[0]:.0%} of the agents, the least measured; what sender logs cost comes on top"
    return ProtocolCost(protocol, low_s, None, how)


def _suitable(own: str, costs: Sequence[ProtocolCost], *, is_refuted: bool) -> str:
    if is_refuted:
        return BCS
    clearly = [cost for cost in costs[1:] if cost.high_s is not None and cost.high_s + SAVING_MIN_S <= costs[0].low_s]
    return simplest([cost.protocol for cost in clearly]) if clearly else own


def evidence_against(figures: RunningFigures) -> list[str]:
    """Return evidence against the fleet's current protocol that does not depend on costs, or an empty result if there is none."""
    if not is_autonomous(figures.protocol):
        return _delayed_by_turns(figures)
    ratio = figures.forced_ratio
    if figures.protocol == UNCOORDINATED:
        interval_s, behind_s = figures.interval_s, figures.behind_s
        if interval_s and behind_s is not None and behind_s > LINE_LAG_MAX * max(interval_s, INTERVAL_MIN_S):
            intervals = behind_s / interval_s
            return [
                (
                    f"The recovery line is {time_text(behind_s)} behind, {intervals:.0f} intervals: checkpoints that nobody coordinates are "
                    f"useless here (the domino effect), and {BCS} would make each of use."
                )
            ]
    elif figures.protocol != BCS and ratio is not None and ratio > BCS_FORCED_RATIO_MAX:
        return [
            (
                f"{figures.protocol} has forced {ratio:.1f} checkpoints for each basic one; {BCS} forced at most {BCS_FORCED_RATIO_MAX} "
                "in any pattern that was measured (page `Checkpointing protocols` of the documentation)."
            )
        ]
    return []


def _delayed_by_turns(figures: RunningFigures) -> list[str]:
    ended = figures.completed + figures.aborted
    turn = (
        f"; the longest turn just now has lasted {time_text(figures.longest_turn_s)}" if figures.longest_turn_s else ""
    )
    if ended and figures.aborted > ABORTED_SHARE * ended:
        return [
            (
                f"{figures.aborted} of {ended} epochs were aborted{turn}. Where agents checkpoint on their own ({BCS}), each saves between "
                "its own turns and waits for nobody; if failures of hosts or of the store were the reason, they remain one."
            )
        ]
    if figures.duration_s and figures.interval_s and figures.duration_s > max(figures.interval_s, INTERVAL_MIN_S):
        return [
            (
                f"An epoch takes {time_text(figures.duration_s)}, longer than the {time_text(figures.interval_s)} between two{turn}. Where agents checkpoint "
                f"on their own ({BCS}), each saves between its own turns and waits for nobody."
            )
        ]
    return []


# ---- words ------------------------------------------------------------------------------------------------------------


def _of_protocols(figures: RunningFigures, costs: Sequence[ProtocolCost], protocol: str) -> list[str]:
    if not costs or protocol != figures.protocol:
        own, advised_cost = (
            (costs[0], next((x for x in costs if x.protocol == protocol), None)) if costs else (None, None)
        )
        if own is None or advised_cost is None or advised_cost.high_s is None:
            return []
        return [
            f"{protocol} costs {_cost(advised_cost.high_s)}, {figures.protocol} {_cost(own.low_s)}: {advised_cost.how}."
        ]
    least = min(costs[1:], key=lambda one: one.low_s)
    saved_s = costs[0].low_s - least.low_s
    if saved_s < SAVING_MIN_S:
        return [f"No protocol that was weighed could save {_cost(SAVING_MIN_S)}: {figures.protocol} stays."]
    return [
        (
            f"{least.protocol} could save {_cost(saved_s)} at most ({least.how}), which this fleet's figures cannot show; "
            f"`snapline sim compare MODULE:FLEET --protocols {figures.protocol},{least.protocol}` can."
        )
    ]


def _of_interval(figures: RunningFigures, best: BestInterval | None, now_s: float | None) -> list[str]:
    if best is None:
        return []
    price = (
        "participants are blocked until a round is decided"
        if figures.protocol == KOO_TOUEG
        else "agents of a host wait"
    )
    sentences = [
        f"For the checkpoints of one interval {price} {time_text(_price_s(figures))}; Daly's formula says {time_text(best.formula_s)}."
    ]
    lost_s = best.interval_s + (figures.duration_s or 0.0)
    bounds = {
        "least": f"Checkpoints more often than every {INTERVAL_MIN_S:g} s is a load of its own.",
        "duration": f"An interval is not shorter than the {time_text(figures.duration_s or 0.0)} that an epoch takes.",
        "rpo": f"Its rpo_s of {time_text(figures.rpo_s or 0.0)} asks for a shorter one: with {time_text(best.interval_s)} at most {time_text(lost_s)} of work can be lost.",
    }
    sentences += [bounds[best.bound]] if best.bound else []
    if figures.rpo_s is not None and lost_s > figures.rpo_s:
        sentences.append(
            f"Even so rpo_s={figures.rpo_s:g} cannot be kept: an epoch takes {time_text(figures.duration_s or 0.0)}."
        )
    if best.every_s > best.interval_s:
        sentences.append(
            f"For each basic checkpoint {figures.forced_ratio or 0:.1f} are forced, so a trigger every {time_text(best.every_s)} makes one every {time_text(best.interval_s)}."
        )
    sentences.append(
        f"That costs {_cost(best.cost_s)}" + (f"; now it is {_cost(now_s)}." if now_s is not None else ".")
    )
    return sentences


LOCAL_RECOVERY = (
    'Each failure took all agents back. With recovery="local", only those of the failed host start again, for messages that wait for a log '
    "(page `Local recovery` of the documentation)."
)


def _of_recovery(figures: RunningFigures) -> list[str]:
    if not figures.recoveries_s:
        return []
    longest = (
        f"Recoveries took {time_text(figures.recovery_s)} on average and {time_text(max(figures.recoveries_s))} at most"
    )
    is_local_possible = figures.protocol == CHANDY_LAMPORT and figures.recovery == "global"
    local = [LOCAL_RECOVERY] if is_local_possible else []
    if figures.rto_s is None or max(figures.recoveries_s) <= figures.rto_s:
        return [f"{longest}.", *local]
    return [
        f"{longest}, more than rto_s={figures.rto_s:g}. No interval changes that: starting hosts and loading states takes it.",
        *local,
    ]


def _missing(figures: RunningFigures, mtbf: Mtbf) -> list[str]:
    sentences = []
    if mtbf.mean_s is None:
        least = f": with 95 % confidence they are more than {time_text(mtbf.low_s)} apart" if mtbf.low_s else ""
        sentences.append(
            f"No failure in {time_text(mtbf.observed_s)}{least}. Say how far apart they are with --mtbf, such as --mtbf 24h; "
            "the fleet's, which is that of one host divided by the number of hosts."
        )
    if figures.price_s is None:
        sentences.append(
            "What a checkpoint costs is not known: no epoch is complete under this leader. Take one with `snapline snapshot create`, and ask again."
        )
    if figures.interval_s is None:
        sentences.append("How often checkpoints come is not known: they are made by hand, or too few have come yet.")
    if not figures.recoveries_s:
        sentences.append(
            "How long a recovery takes is not known, so it is not in these costs; `snapline chaos run` makes one."
        )
    return sentences


def _cost(time_s: float) -> str:
    return f"{time_s:.3g} s an hour"


def time_text(time_s: float) -> str:
    """Format a time with three significant digits."""
    for unit_s, unit in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min")):
        if time_s >= 2 * unit_s:
            return f"{time_s / unit_s:.3g} {unit}"
    return f"{time_s:.3g} s" if time_s >= 0.1 or not time_s else f"{time_s * 1e3:.3g} ms"
