"""Seeded bugs, and how one is put in for the time of a run.

A mutant replaces functions of the product. The product checks itself over and over: the coordinator refuses an epoch whose
channels do not balance and a line whose messages are not all there, a host one whose channel does not go on where it stopped.
A mutant may switch such checks off as well (`is_unchecked`, or patches of its own, which its text names), since what is to be
shown is that the *world's* oracles find the bug, from books of their own.
"""

from collections.abc import Callable, Sequence

import msgspec

from snapline.compiled import is_compiled
from snapline.coordinator.leader.modes import epoch_reports
from snapline.coordinator.service import line_store
from snapline.errors import UsageError
from snapline.sim.faults.words import CrashFault
from snapline.sim.scenario import (
    ClientsPart,
    FaultPart,
    FleetPart,
    LivenessPart,
    OutputsPart,
    PatternPart,
    RestoresPart,
    RunPart,
    Scenario,
    SwarmPart,
)
from snapline.sim.world.patches import Patch

AGENTS_MAX, HOSTS, MESSAGES = 6, 3, 200
"""Sizes of the fleets that are drawn: small ones show these bugs as well as large ones."""


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """One seeded bug.

    Attributes:
        text: what is wrong.
        patches: makes what replaces what.
        scenario: a template in which it is likely to show.
        oracle: the one that finds it, at `seed`.
        seed: one at which it is found.
        is_unchecked: the coordinator's own checks of channel states are off, too.
    """

    text: str
    patches: Callable[[], list[Patch]]
    scenario: Scenario
    oracle: str
    seed: int
    is_unchecked: bool = False


def crash_at(*times: str) -> list[FaultPart]:
    """Return faults that kill a host at each of these times."""
    return [FaultPart(crash=CrashFault(at=at, restart_after="200ms")) for at in times]


def template(
    *protocols: str,
    patterns: Sequence[str] = (),
    faults: Sequence[FaultPart] = (),
    fleet: FleetPart | None = None,
    clients: ClientsPart | None = None,
    outputs: OutputsPart | None = None,
    restores: RestoresPart | None = None,
) -> Scenario:
    """Return a swarm of small fleets, each with these faults, at these times, these clients and outputs. With `fleet`, only delays are drawn."""
    return Scenario(
        name="mutant",
        fleet=fleet or FleetPart(hosts=HOSTS, pattern=PatternPart(messages=MESSAGES)),
        fault=list(faults),
        clients=clients or ClientsPart(),
        outputs=outputs or OutputsPart(),
        restores=restores or RestoresPart(),
        swarm=SwarmPart(
            protocols=list(protocols),
            patterns=list(patterns),
            faults_max=0,
            agents_max=AGENTS_MAX,
            hosts_max=HOSTS,
            coordinators_max=1,
            limits=False,
            clients=False,
            outputs=False,
            restores=False,
            fleet=fleet is None,
        ),
        run=RunPart(until="5s"),
        liveness=LivenessPart(within="10s"),
    )


def unchecked() -> list[Patch]:
    """Skip the checks that the coordinator makes before an epoch is complete."""
    return [
        (epoch_reports, "_cover", lambda *arguments: None),
        (line_store, "_check_channel", lambda *arguments: None),
    ]


def check_replaceable() -> None:
    """Check that what a mutant replaces is looked up.

    Raises:
        UsageError: compiled code looks up neither its functions nor its methods.
    """
    if is_compiled():
        raise UsageError(
            "mutants replace functions, and the cores of this build are compiled: install snapline without SNAPLINE_COMPILE"
        )
