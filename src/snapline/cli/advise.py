"""`snapline advise` recommends a protocol and a checkpoint interval for a running fleet, based on the fleet's status."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import Connection, Display, command, seconds_of
from snapline.cli.output import Document, DocumentTables, rows_of, size

if TYPE_CHECKING:
    from snapline.messages.coordinator_client import CoordinatorClient
    from snapline.messages.status import FleetStatus, HostStatus
    from snapline.protocols.advice import FleetAdvice, RunningFigures

NS = 1e9


@command
def advise(
    connection: Connection,
    display: Display,
    mtbf: Annotated[
        str | None,
        typer.Option(
            "--mtbf",
            metavar="DURATION",
            help="Mean time between the fleet's failures, such as 24h: that of one host divided by the number of hosts. "
            "Default: as observed since the oldest plan that is kept.",
        ),
    ] = None,
    over: Annotated[
        float,
        typer.Option(
            "--over", min=0.2, max=3600, metavar="SECONDS", help="Time for which to watch the fleet, to measure rates."
        ),
    ] = 2.0,
) -> None:
    """Recommend a protocol and a checkpoint interval for a running fleet, with reasons.

    Uses the fleet's own status: wait for checkpoints, duration of epochs and recoveries, failures, forced checkpoints, aborted epochs.
    It changes nothing. The interval is that of Daly (2006): at least one second and an epoch's duration, and short enough for the
    fleet's `rpo_s`. The cost of an hour is its checkpoints plus, for each failure, half an interval, an epoch and the recovery.
    Observed failures give 95 % limits. Without failures it shows a lower limit, and the best interval for several failure rates.

    Another protocol is recommended only if it is clearly cheaper or for a visible reason: epochs longer than their interval, many
    aborted epochs, a lagging recovery line, or more forced checkpoints than `bcs` ever had. A protocol is fixed for a fleet's lifetime.
    Without a reason it prints the possible saving, and the `snapline sim compare` command that measures it.
    """
    from snapline.protocols.advice import advise as advise_on
    from snapline.protocols.advice import declared_mtbf, observed_mtbf

    given_mtbf_s = None if mtbf is None else seconds_of(mtbf, "--mtbf")
    printer = display.printer()
    printer.progress(f"watching the fleet for {over:g} s")
    before, after = connection.ask(lambda client: _watch(client, over, connection.timeout))
    figures = figures_of(before, after, over)
    loss = after.loss
    mtbf_estimate = (
        observed_mtbf(loss.failures, loss.observed_ns / NS) if given_mtbf_s is None else declared_mtbf(given_mtbf_s)
    )
    printer.result(_document(before, after, over, figures, advise_on(figures, mtbf_estimate)), _show)


async def _watch(client: "CoordinatorClient", over_s: float, timeout_s: float) -> "tuple[FleetStatus, FleetStatus]":
    before = await client.status(timeout_s)
    await asyncio.sleep(over_s)
    return before, await client.status(timeout_s)


def figures_of(before: "FleetStatus", after: "FleetStatus", passed_s: float) -> "RunningFigures":
    """Compute the fleet's figures from two of its statuses, the second of which was taken `passed_s` seconds after the first."""
    from snapline.protocols.advice import RunningFigures

    interval_s, price_s = _interval(before, after, passed_s)
    interval, failed = after.interval, [each for each in after.loss.recoveries if each.is_failure]
    rolled_back = sum([each.rolled_back for each in failed])
    return RunningFigures(
        protocol=after.protocol,
        recovery=after.recovery,
        interval_s=interval_s,
        price_s=price_s,
        duration_s=interval.duration_ns / NS if interval.epochs else None,
        behind_s=None if after.loss.at_risk_ns is None else after.loss.at_risk_ns / NS,
        recoveries_s=tuple([(each.plan_ns + each.load_ns) / NS for each in failed]),
        moved=rolled_back / sum([each.agents for each in failed]) if rolled_back else None,
        depth=sum([each.checkpoints_lost for each in failed]) / rolled_back if rolled_back else 0.0,
        checkpoints=after.checkpoints,
        forced=after.forced,
        completed=after.epochs_completed,
        aborted=after.epochs_aborted,
        longest_turn_s=max([turn.elapsed_ns for host in after.hosts for turn in host.busy], default=0) / NS,
        rpo_s=after.loss.rpo_ns / NS or None,
        rto_s=after.loss.rto_ns / NS or None,
    )


def _interval(before: "FleetStatus", after: "FleetStatus", passed_s: float) -> tuple[float | None, float | None]:
    """Return an agent's checkpoint interval, and the total time per interval during which captures stop a host's agents, both in
    seconds."""
    from snapline.protocols.names import is_autonomous

    interval = after.interval
    epochs_s = (interval.gap_ns if interval.period_ns else 0) / NS or interval.period_ns / NS or None
    price_s = None if interval.capture_ns is None else interval.capture_ns / NS
    if not is_autonomous(after.protocol):
        return epochs_s, price_s
    taken = _more(before, after, "checkpoints")
    agents = sum([now.agents for _, now in _same(before, after)])
    own_s = agents * passed_s / taken if taken and agents else None
    if own_s is None or price_s is None or epochs_s is None:
        return own_s, price_s
    return own_s, price_s * own_s / epochs_s


def _more(before: "FleetStatus", after: "FleetStatus", name: str) -> int:
    """Return how much a counter has increased, summed over the hosts that did not restart between the two statuses."""
    return sum([max(0, getattr(now, name) - getattr(then, name)) for then, now in _same(before, after)])


def _same(before: "FleetStatus", after: "FleetStatus") -> "list[tuple[HostStatus, HostStatus]]":
    """Return both statuses of each host that did not restart between the two statuses."""
    earlier = {(host.host, host.host_start): host for host in before.hosts}
    pairs = [(earlier.get((host.host, host.host_start)), host) for host in after.hosts]
    return [(then, now) for then, now in pairs if then is not None]


def _document(
    before: "FleetStatus", after: "FleetStatus", passed_s: float, figures: "RunningFigures", advice: "FleetAdvice"
) -> Document:
    import msgspec

    from snapline.cli.sim_sweeps import finite
    from snapline.messages.answers import document

    interval = after.interval
    facts = {
        "fleet": after.fleet,
        "agents": after.agents,
        "hosts": sum([host.state == "alive" for host in after.hosts]),
        "turns_per_s": round(_more(before, after, "turns") / passed_s, 3),
        "messages_per_s": round(_more(before, after, "piggybacked") / passed_s, 3) if after.piggybacked else None,
        "state_bytes": interval.state_bytes,
        "new_bytes": interval.new_bytes,
        "policy": interval.policy,
    }
    evidence = {**facts, **msgspec.to_builtins(figures)}
    return document("Advice", **finite(msgspec.to_builtins(advice)), evidence=finite(evidence))


def _show(result: Document, tables: DocumentTables) -> None:
    tables.line(_verdict(result))
    tables.line()
    for words in _texts(result, "why"):
        tables.line(f"  {words}")
    for words in _texts(result, "missing"):
        tables.line(f"? {words}")
    intervals, costs = rows_of(result, "intervals"), rows_of(result, "costs")
    if intervals:
        tables.line()
        rows = [[_time(row["mtbf_s"]), _time(row["every_s"]), _cost(row["cost_s"])] for row in intervals]
        tables.table(("FAILURES APART", "CHECKPOINT EVERY", "SECONDS AN HOUR"), rows)
    if costs:
        tables.line()
        rows = [[str(row["protocol"]), _cost(row["low_s"]), _cost(row["high_s"]), str(row["how"])] for row in costs]
        tables.table(("PROTOCOL", "AT LEAST", "AT MOST S AN HOUR", "HOW"), rows)
    evidence = result.get("evidence")
    if isinstance(evidence, dict):
        tables.line()
        tables.fields((name, _shown(name, value)) for name, value in evidence.items() if value not in (None, 0, [], ""))


def _verdict(result: Document) -> str:
    interval, evidence = result.get("interval"), result.get("evidence")
    own = evidence.get("protocol") if isinstance(evidence, dict) else ""
    protocol = f"Run it with {result['protocol']} instead of {own}" if result["is_other_protocol"] else f"Keep {own}"
    if not isinstance(interval, dict):
        return f"{protocol}. Which interval suits it cannot be said yet."
    if result["is_other_protocol"]:
        return f"{protocol}."
    if not result["is_other_interval"]:
        now_s = result.get("cost_now_s")
        is_best = isinstance(now_s, float) and now_s <= interval["cost_s"]
        best = "" if is_best else f"; the best would be {_time(interval['every_s'])}"
        return f"{protocol}, and its interval{best}."
    return f"{protocol}, with a checkpoint every {_time(interval['every_s'])}{_range(result)}."


def _range(result: Document) -> str:
    low, high = result.get("interval_low_s"), result.get("interval_high_s")
    if not isinstance(low, float) or not isinstance(high, float) or low == high:
        return ""
    return f" ({_time(low)} to {_time(high)} by what is known of failures)"


def _texts(result: Document, name: str) -> list[str]:
    texts = result.get(name)
    return [str(words) for words in texts] if isinstance(texts, list) else []


def _time(value: object) -> str:
    from snapline.protocols.advice import time_text

    return time_text(value) if isinstance(value, int | float) else "unknown"


def _cost(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else "unknown"


def _shown(name: str, value: object) -> object:
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_s") and not name.endswith("_per_s") and isinstance(value, float):
        return _time(value)
    if isinstance(value, list):
        return ", ".join([_time(each) for each in value])
    return round(value, 4) if isinstance(value, float) else value
