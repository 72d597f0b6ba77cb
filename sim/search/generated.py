"""Parts of a scenario that a swarm may draw. A sweep reports which of them its runs had and which none had.

A drawn fault may hit nothing, and a limit may never be reached; the probes show what actually happened in runs.
"""

from collections.abc import Iterable, Iterator

from snapline.protocols.names import PROTOCOLS
from snapline.sim.faults.fault_kinds import (
    MOMENTS,
    CoordinatorFault,
    CrashFault,
    DelayFault,
    DiskFault,
    HangFault,
    LossFault,
    MembershipFault,
    PartitionFault,
    ResetFault,
)
from snapline.sim.faults.faults import DESCRIPTIONS
from snapline.sim.faults.points import FAILPOINTS
from snapline.sim.scenario import PATTERN_NAMES, FaultPart, Scenario
from snapline.sim.world.limits import LIMITS

BEYOND_BUDGET = "disk: stale-read"
"""Fault that is drawn but left out in all scenarios whose faults stay within the budget."""

CATALOGUE: dict[str, tuple[str, ...]] = {
    "protocols": PROTOCOLS,
    "patterns": PATTERN_NAMES,
    "triggers": ("period", "messages", "adaptive", "none"),
    "bounds": (
        "log_bytes_max",
        "epoch_timeout",
        "payload",
        "few epochs kept",
        "many epochs kept",
        "retention",
        "snapshots by hand",
        "clients",
        "words about letters",
        "outputs",
        "watched outputs",
        "taken back",
        "taken back without inputs",
    ),
    "faults": tuple(word for _, word, _ in DESCRIPTIONS if word != BEYOND_BUDGET),
    "paths": ("delay of one pair", "delay one way", "loss of one pair", "loss one way", "uneven for good"),
    "moments": tuple(MOMENTS),
    "failpoints": FAILPOINTS,
    "limits": tuple(LIMITS),
}
"""Group → everything that can be drawn in it."""

DrawnCounts = dict[str, dict[str, int]]
"""Group → name → number of runs that have it."""


def empty_counts() -> DrawnCounts:
    """Return counts of zero for the whole catalogue."""
    return {group: dict.fromkeys(names, 0) for group, names in CATALOGUE.items()}


def count_drawn(drawn: DrawnCounts, scenario: Scenario) -> None:
    """Count each catalogue entry of a scenario once."""
    parts = (*_of_fleet(scenario), *_of_faults(scenario.fault))
    for group, name in dict.fromkeys((group, name) for group, names in parts for name in names):
        counts = drawn.setdefault(group, {})
        counts[name] = counts.get(name, 0) + 1


def never_drawn(drawn: DrawnCounts) -> dict[str, list[str]]:
    """Return, for each group, the entries that no run had; groups without such entries are left out."""
    missing = {group: [name for name, runs in counts.items() if not runs] for group, counts in drawn.items()}
    return {group: names for group, names in missing.items() if names}


def _of_fleet(scenario: Scenario) -> Iterator[tuple[str, list[str]]]:
    fleet = scenario.fleet
    yield "protocols", [fleet.protocol]
    yield "patterns", [fleet.module or fleet.pattern.name]
    yield "triggers", [fleet.trigger.kind]
    has = {
        "log_bytes_max": fleet.log_bytes_max > 0,
        "epoch_timeout": fleet.epoch_timeout != "",
        "payload": fleet.pattern.payload_bytes != type(fleet.pattern)().payload_bytes,
        "few epochs kept": scenario.run.keep_epochs <= 2,
        "many epochs kept": scenario.run.keep_epochs >= 10,
        "retention": scenario.run.retention != "",
        "snapshots by hand": scenario.run.snapshots_every != "",
        "clients": scenario.clients.count > 0,
        "words about letters": scenario.clients.is_settling,
        "outputs": scenario.outputs.one_in > 0,
        "watched outputs": scenario.outputs.is_watched,
        "agents moved": scenario.run.moves > 0,
        "taken back": scenario.restores.times > 0,
        "taken back without inputs": scenario.restores.times > 0 and scenario.restores.drops_one_in > 0,
    }
    yield "bounds", [name for name, is_present in has.items() if is_present]
    yield "paths", ["uneven for good"] if scenario.network.paths else []
    yield "limits", list(scenario.limits)


def _of_faults(faults: Iterable[FaultPart]) -> Iterator[tuple[str, list[str]]]:
    for fault in faults:
        word = fault.word
        match word:
            case PartitionFault():
                yield "faults", [f"partition: {word.shape}"]
            case DiskFault():
                yield "faults", [f"disk: {word.mode}"]
            case HangFault():
                yield "faults", [f"hang: {word.what}"]
            case CoordinatorFault() | MembershipFault():
                yield "faults", [f"{fault.kind}: {word.kind}"]
            case HangFault():
                yield "faults", [f"hang: {word.what}"]
            case _:
                yield "faults", [fault.kind]
        if isinstance(word, DelayFault | LossFault) and word.between:
            yield "paths", [f"{fault.kind} {'one way' if word.direction == 'one-way' else 'of one pair'}"]
        if isinstance(word, CrashFault | ResetFault) and word.when:
            yield "moments", [word.when]
        if word.point in FAILPOINTS:
            yield "failpoints", [word.point]
