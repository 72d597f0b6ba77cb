"""How much work a run of somebody's own fleet does, and what a run has exercised.

Of a pattern it is known when its work is done. Of a user's fleet nobody knows: so it is run once on a quick network, without faults, and
that tells how many turns there are to take, up to `TURNS`. A run goes on until so many were taken, or the fleet is done, and
what its template promises happens in the midst of them.
"""

from collections.abc import Iterable

import msgspec

from snapline.sim.result import ExecutedFault, Result
from snapline.sim.run import run
from snapline.sim.scenario import LivenessPart, RunPart, Scenario
from snapline.sim.workloads import Workload

TURNS = 300
"""The work of a run, unless the fleet is done before: a few hundred runs take a minute."""

MEASURED = "10s"
"""So long, in virtual time, a fleet is watched at most: one with a turn a second has ten."""


def turns_of(scenario: Scenario, workload: Workload | None) -> int:
    """How many turns a run of this fleet is to take: as many as it takes undisturbed, up to `TURNS`."""
    quiet = Scenario(
        fleet=msgspec.structs.replace(scenario.fleet, coordinators=1),
        run=RunPart(turns=TURNS),
        liveness=LivenessPart(within=MEASURED),
    )
    taken = int(run(quiet, 0, workload=workload).metrics.get("turns", 0))
    return min(TURNS, taken) or TURNS


def exercised(result: Result) -> str:
    """One line: turns, epochs, recoveries, kinds of faults."""
    counts = {
        "turn": int(result.metrics.get("turns", 0)),
        "epoch": int(result.metrics.get("epochs_complete", 0)),
        "recovery": int(result.metrics.get("recoveries", 0)),
    }
    words = [f"{count} {name if count == 1 else _many(name)}" for name, count in counts.items()]
    kinds = kinds_of(result.faults)
    return f"exercised: {', '.join(words)}; faults: {', '.join(kinds) or 'none'}"


def _many(name: str) -> str:
    return "recoveries" if name == "recovery" else f"{name}s"


def kinds_of(faults: Iterable[ExecutedFault]) -> list[str]:
    """The kinds that were carried out; what waits at a point that nobody passed was not."""
    return list(dict.fromkeys(_kind(fault) for fault in faults if "whoever" not in fault.text))


def _kind(fault: ExecutedFault) -> str:
    return fault.text.partition(" ")[0] if fault.kind == "failpoint" else fault.kind
