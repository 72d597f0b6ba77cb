"""Turn budget of a run of a user's fleet, and coverage of a run.

A pattern knows when its work is done. A user's fleet does not: so it runs once on a quick network, without faults, which
gives its number of turns, up to `TURNS`. A run goes on until that many turns were taken, or the fleet is done, and
the faults that its template promises happen in between. A run in which they did not happen is *hollow*: it proves nothing about the fleet,
and is undecided.
"""

from collections.abc import Callable, Iterable

import msgspec

from snapline.sim.result import ExecutedFault, Result
from snapline.sim.run import run
from snapline.sim.scenario import DelayPart, LivenessPart, NetworkPart, RunPart, Scenario
from snapline.sim.workloads import Workload

TURNS = 600
"""The work of a run, unless the fleet is done before: with timers and first turns, 500 messages at least of agents that talk."""

MEASURED = "30s"
"""Longest virtual time that a fleet is watched: one with a turn a second has thirty."""

QUICK, SLOW = DelayPart(), DelayPart(least="40ms", jitter="40ms")
"""A fleet that stops at some epoch has taken fewer turns by then on a slow network."""


def turns_of(scenario: Scenario, make: Callable[[], Workload]) -> int:
    """Return how many turns a run of this fleet is to take: as many as it takes undisturbed, up to `TURNS`."""
    workload = make()
    networks = (QUICK, SLOW) if workload.fleet.stop_when is not None else (QUICK,)
    taken = min([_taken(scenario, workload if delay is QUICK else make(), delay) for delay in networks])
    return min(TURNS, taken) or TURNS


def _taken(scenario: Scenario, workload: Workload, delay: DelayPart) -> int:
    quiet = Scenario(
        fleet=msgspec.structs.replace(scenario.fleet, coordinators=1),
        network=NetworkPart(delay=delay),
        clients=scenario.clients,
        run=RunPart(turns=TURNS),
        liveness=LivenessPart(within=MEASURED),
    )
    result = run(quiet, 0, workload=workload)
    return TURNS if result.verdict == "violation" else int(result.metrics.get("turns", 0))  # which has ended it early


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
