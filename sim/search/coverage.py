"""Turn budget of a run of a user's fleet, and coverage of a run.

A pattern knows when its work is done; a user's fleet does not. So the fleet first runs once on a fast network without faults,
which gives its number of turns, up to `TURNS`. A run then continues until that number of turns was taken or the fleet is
done, and the faults that its template promises happen in between. A run without these faults is *hollow*: it proves nothing
about the fleet and is undecided.
"""

from collections.abc import Callable, Iterable

import msgspec

from snapline.sim.result import ExecutedFault, Result
from snapline.sim.run import run
from snapline.sim.scenario import DelayPart, LivenessPart, NetworkPart, RunPart, Scenario
from snapline.sim.workloads import Workload

TURNS = 600
"""Turns of a run unless the fleet is done earlier. For communicating agents, it includes at least 500 messages."""

MEASURED = "30s"
"""Maximum virtual time of the measuring run: a fleet with one turn a second takes thirty turns."""

QUICK, SLOW = DelayPart(), DelayPart(least="40ms", jitter="40ms")
"""Delays of the measuring runs. A fleet that stops at some epoch takes fewer turns before it on a slow network."""


def turns_of(scenario: Scenario, make: Callable[[], Workload]) -> int:
    """Return the number of turns that a run of this fleet should take: that of an undisturbed run, up to `TURNS`."""
    workload = make()
    networks = (QUICK, SLOW) if workload.fleet.stop_when is not None else (QUICK,)
    turns = min([_taken(scenario, workload if delay is QUICK else make(), delay) for delay in networks])
    return min(TURNS, turns) or TURNS


def _taken(scenario: Scenario, workload: Workload, delay: DelayPart) -> int:
    quiet = Scenario(
        fleet=msgspec.structs.replace(scenario.fleet, coordinators=1),
        network=NetworkPart(delay=delay),
        clients=scenario.clients,
        run=RunPart(turns=TURNS),
        liveness=LivenessPart(within=MEASURED),
    )
    result = run(quiet, 0, workload=workload)
    return (
        TURNS if result.verdict == "violation" else int(result.metrics.get("turns", 0))
    )  # a violation ends the run early


def exercised(result: Result) -> str:
    """Return a line with the numbers of turns, epochs and recoveries, and the kinds of faults."""
    counts = {
        "turn": int(result.metrics.get("turns", 0)),
        "epoch": int(result.metrics.get("epochs_complete", 0)),
        "recovery": int(result.metrics.get("recoveries", 0)),
    }
    parts = [f"{count} {name if count == 1 else _plural(name)}" for name, count in counts.items()]
    kinds = kinds_of(result.faults)
    return f"exercised: {', '.join(parts)}; faults: {', '.join(kinds) or 'none'}"


def _plural(name: str) -> str:
    return "recoveries" if name == "recovery" else f"{name}s"


def kinds_of(faults: Iterable[ExecutedFault]) -> list[str]:
    """Return the kinds of faults that were carried out. A fault that waits at a failpoint never reached was not."""
    return list(dict.fromkeys(_kind(fault) for fault in faults if "whoever" not in fault.text))


def _kind(fault: ExecutedFault) -> str:
    return fault.text.partition(" ")[0] if fault.kind == "failpoint" else fault.kind
