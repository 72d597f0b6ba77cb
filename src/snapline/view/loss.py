"""Loss now, duration of recoveries, cost of the interval: the same texts on a page, in a terminal and in `snapline status`."""

from collections.abc import Collection

from snapline.view.facts import FleetFacts, IntervalFacts, LossFacts
from snapline.view.number_format import NOTHING, plural, seconds, size

RECOVERIES_SHOWN = 3

COORDINATED = "coordinated"


def at_risk(facts: FleetFacts) -> str:
    """Return the loss as `1.2 s` or `at most 1.2 s`; a dash while the fleet does not run."""
    at_risk_s, most = facts.loss.at_risk_s, "" if facts.mode in (COORDINATED, "") else "at most "
    text = NOTHING if at_risk_s is None else f"{most}{seconds(at_risk_s)}"
    return f"{text}{_promised('RPO', facts.loss.rpo_s, facts.loss.missed)}"


def _promised(name: str, time_s: float, missed: Collection[str]) -> str:
    """Return what the definition allows, and whether it is missed."""
    if not time_s:
        return ""
    return f" ({name} {brief(time_s)}{', missed' if name.lower() in missed else ''})"


def recoveries(loss: LossFacts) -> str:
    """Return how long the last ones took, the newest first, and how many failures there were in how long."""
    failures = f"{plural(loss.failures, 'failure')} in {seconds(loss.observed_s)}"
    promised = _promised("RTO", loss.rto_s, loss.missed)
    if not loss.recoveries:
        return f"none yet{promised}"
    shown = [_took(loss, rank) for rank in range(1, 1 + min(RECOVERIES_SHOWN, len(loss.recoveries)))]
    return f"{', '.join(shown)}; {failures}{promised}"


def _took(loss: LossFacts, place: int) -> str:
    recovery = loss.recoveries[-place]
    undid = "" if recovery.lost_s is None else f", which undid {seconds(recovery.lost_s)}"
    return f"{seconds(recovery.took_s)} (plan {recovery.plan}{undid})"


def interval(facts: IntervalFacts) -> str:
    """Return how often, how long an epoch takes, and what it costs agents and store."""
    every = f"every {seconds(facts.every_s)}" if facts.every_s else "by hand"
    phrases = [f"{every}, {facts.policy}" if facts.policy else every]
    if facts.epochs:
        phrases.append(f"an epoch takes {seconds(facts.duration_s)} (at most {seconds(facts.duration_max_s)})")
    if facts.capture_s is not None and facts.pause_s is not None:
        share = "" if facts.share is None else f", {percent(facts.share)} of the time"
        phrases.append(f"agents of a host wait {brief(facts.capture_s)}{share}, each at most {brief(facts.pause_s)}")
    if facts.new_bytes is not None:
        phrases.append(f"{size(facts.new_bytes)} written, of {size(facts.state_bytes)}")
    return "; ".join(phrases)


def brief(time_s: float) -> str:
    """`0.35 ms`, `12 ms`, `1.20 s`."""
    if time_s >= 1:
        return seconds(time_s)
    return f"{time_s * 1e3:.2f} ms" if time_s < 0.01 else f"{time_s * 1e3:.0f} ms"


def percent(share: float) -> str:
    """Return a percentage with two significant digits, such as `0.012 %`."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
