"""Lists which faults can be injected into real processes, on this machine and with each launcher, and why other faults cannot.

`EVERYTHING` is the scenario template that `snapline chaos run` uses if no file is given. From this template, the seed draws faults of all
kinds that real processes support, for three hosts and three coordinators.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

from snapline.chaos import preload
from snapline.errors import UsageError
from snapline.sim.faults.fault_kinds import CoordinatorFault, DiskFault, HangFault, MembershipFault, PartitionFault
from snapline.sim.faults.faults import describe_faults
from snapline.sim.scenario import FAULT_KINDS, FaultPart, FleetPart, PatternPart, Scenario, SwarmPart, TriggerPart
from snapline.sim.search.swarm import draw

Where = Literal["local", "ssh", "podman", "slurm", "ray"]
"""Values of `--on`."""

HERE: Where = "local"

NEVER = {
    "hold": "a marker is bytes of a stream, which nothing overtakes",
    "disk: stale-read": "the file systems of one machine show at once what was written",
    "disk: away": "the store of a run lies in its folder, and is no mount of its own",
}
"""Faults that only the simulator can carry out, with the reasons."""

POINTS = "points of the code are armed in processes that `chaos run` starts itself, on this machine"


class Capability(msgspec.Struct, frozen=True):
    """The name of a fault, with the way in which the fault is injected, or with the reason why it is not supported."""

    word: str
    means: str
    reason_against: str = ""


MEANS = {
    "network": "a TCP proxy before each process, without root",
    "slow": "SIGSTOP and SIGCONT by turns",
    "crash": "SIGKILL; at points by itself",
    "capture": "the encoder refuses",
    "pause": "SIGSTOP, SIGCONT",
    "hang: store": "file calls wait in a preloaded library",
    "hang: stop": "stop_when waits",
    "hang: loop": "a turn waits, on the event loop",
    "disk: power-cut": "SIGKILL, and files are cut back to their last sync",
    "disk: torn": "the same",
    "disk: bit-flip": "one bit of a file",
    "disk": "file calls fail in a preloaded library; at points by themselves",
    "clock": "a preloaded library; the wall clock only",
    "coordinator": "SIGKILL",
    "coordinator: depose": "SIGSTOP until another leads, SIGCONT",
    "coordinator: unknown-outcome": "the proposer is told that nobody knows",
    "membership": "SIGTERM; one more process",
}

MEANS_ELSEWHERE = {
    **MEANS,
    "crash": "its launcher kills it (SIGKILL); not at points",
    "pause": "its launcher freezes it (SIGSTOP, SIGCONT); not at points",
    "disk: bit-flip": "one bit of a file, in the folder that all share",
}

AGAINST_ELSEWHERE = {
    "network": "gates stand before processes of this machine only",
    "capture": POINTS,
    "hang: stop": POINTS,
    "hang: loop": POINTS,
    "coordinator: unknown-outcome": POINTS,
    "hang: store": "the preloaded library shares memory with `chaos run`, on this machine",
    "disk": "the preloaded library shares memory with `chaos run`, on this machine",
    "clock": "the preloaded library shares memory with `chaos run`, on this machine",
}
"""Faults that a launcher cannot carry out, with the reasons. A key is a word, the part of a word before the colon, or a kind."""

POSSIBLE_ELSEWHERE = ("disk: bit-flip",)

AGAINST_AT: dict[tuple[Where, str], str] = {
    ("podman", "slow"): "a container takes longer to be paused and to go on than its turns last",
}
"""Faults that a particular launcher cannot carry out, with the reasons."""


def list_capabilities(on: Where = HERE) -> list[Capability]:
    """Return the capabilities for all fault names that `snapline sim faults` lists."""
    return [_capability(kind, word, on) for kind, word, _ in describe_faults()]


def _capability(kind: str, word: str, on: Where) -> Capability:
    means = MEANS if on == HERE else MEANS_ELSEWHERE
    return Capability(word, _of(means, kind, word), reason_against_word(kind, word, on))


def _of(table: dict[str, str], kind: str, word: str) -> str:
    """Return a table's entry for a fault name. If the table has no such entry, use the part of the name before the colon, then the kind of
    the fault. Return "" if there is no entry at all."""
    return table.get(word) or table.get(word.partition(":")[0]) or table.get(kind, "")


def reason_against_word(kind: str, word: str, on: Where) -> str:
    """Return the reason why a fault is not supported at the location `on`, or "" if it is supported."""
    if word in NEVER:
        return NEVER[word]
    if on == HERE:
        return preload.reason_against() if _needs_preload(word) else ""
    if word in POSSIBLE_ELSEWHERE:
        return ""
    return AGAINST_AT.get((on, word), "") or _of(AGAINST_ELSEWHERE, kind, word)


def _needs_preload(word: str) -> bool:
    return word == "clock" or word == "hang: store" or (word.startswith("disk") and word != "disk: bit-flip")


def problems(scenario: Scenario, on: Where = HERE) -> Iterator[str]:
    """Yield a sentence for each part of the scenario that is not supported at the location `on`."""
    where = "here" if on == HERE else f"on {on}"
    for index, fault in enumerate(scenario.fault):
        reason = reason_against(fault, on)
        if reason:
            yield f"fault[{index}].{fault.kind} cannot be carried out on real processes {where}: {reason}"
    if on != HERE and scenario.limits:
        yield f"limits cannot be set {where}: {POINTS}, and so are limits"


def reason_against(fault: FaultPart, on: Where = HERE) -> str:
    """Return the reason why this fault is not supported at the location `on`, or "" if it is supported."""
    word = fault.word
    if on == HERE and isinstance(word, DiskFault) and word.failpoint:
        return ""
    if on != HERE and word.point:
        return POINTS
    kinds = {name_: kind for kind, name_, _ in describe_faults()}
    name = _name_of(fault)
    return reason_against_word(kinds[name], name, on)


def _name_of(fault: FaultPart) -> str:
    """Return the fault's name as `describe_faults` lists it."""
    match fault.word:
        case PartitionFault(shape=choice) | DiskFault(mode=choice) | HangFault(what=choice):
            return f"{fault.kind}: {choice}"
        case CoordinatorFault(kind=choice) | MembershipFault(kind=choice):
            return f"{fault.kind}: {choice}"
        case _:
            return fault.kind


def check_capabilities(scenario: Scenario, on: Where = HERE) -> None:
    """Raise UsageError if a part of the scenario is not supported at the location `on`."""
    for problem in problems(scenario, on):
        doctor = "snapline chaos doctor" if on == HERE else f"snapline chaos doctor --on {on}"
        raise UsageError(f"{scenario.name}: {problem}; `{doctor}` says what can be")


EVERYTHING = Scenario(
    name="everything",
    fleet=FleetPart(
        agents=6,
        hosts=3,
        coordinators=3,
        pattern=PatternPart(name="bank", messages=800, rate_per_s=80.0),
        trigger=TriggerPart(every="500ms"),
    ),
    swarm=SwarmPart(
        faults=[word for word in FAULT_KINDS if word != "hold"],
        faults_max=5,
        fleet=False,
        network=False,
        limits=False,
        clients=False,
        outputs=False,
        steps=False,
        restores=False,
    ),
)
"""A scenario with about ten seconds of work. A run takes about twenty seconds, because the processes need half of this time to start."""


def drawn(template: Scenario, seed: int, on: Where = HERE) -> Scenario:
    """Return the scenario that this seed draws from the template. Drawn faults are omitted if they are not supported at the location `on`.
    If the template draws no faults, the faults in its file are kept even if they are not supported."""
    scenario = draw(template, seed)
    if template.swarm is None:
        return scenario
    faults = [fault for fault in scenario.fault if not reason_against(fault, on)]
    return msgspec.structs.replace(scenario, fault=faults)
