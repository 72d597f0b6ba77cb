"""Definition of mutants (bugs deliberately put into the product's code), and common parts of their scenarios.

A mutant replaces functions of the product with faulty ones. The product's own checks may also detect the bug. For example, the coordinator
rejects an epoch whose channel states do not match its counts, and a recovery line whose messages are incomplete. A host rejects a channel
whose next message does not have the expected number. A mutant may disable these checks with `is_unchecked` or with further patches, which
the mutant's text mentions. If the checks are disabled, the simulated world's oracles must find the bug with their own ground truth.
"""

from collections.abc import Callable, Sequence

import msgspec

from snapline.compiled import is_compiled
from snapline.coordinator.leader.modes import coordinated_epochs
from snapline.coordinator.service import line_store
from snapline.errors import UsageError
from snapline.sim.faults.fault_kinds import CrashFault
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
from snapline.sim.world.product_patches import Patch

AGENTS_MAX, HOSTS, MESSAGES = 6, 3, 200
"""Sizes of drawn fleets. Small fleets show these bugs as well as large ones."""

BUSY = ("random", "bank", "all-to-all", "ring")
"""Patterns that keep every channel in use."""

FREQUENT_INPUTS = ClientsPart(count=3, inputs=60, pause="10ms")
"""Clients that send inputs throughout the run."""

SWEPT_OFTEN_MS = 20


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A bug deliberately put into the product's code, with a scenario and a seed with which an oracle finds it.

    Attributes:
        patches: function that returns the replacements for the product's functions.
        scenario: template in which the bug is likely to occur.
        oracle: name of the oracle that finds the bug when the scenario runs with `seed`.
        is_unchecked: whether the coordinator's own checks of channel states are also disabled.
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
    """Return a scenario template for small fleets with these faults, clients and outputs. If `fleet` is given, only network delays are
    random."""
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
    """Return patches that disable the coordinator's checks of an epoch before it counts as complete."""
    return [
        (coordinated_epochs, "_check_coverage", lambda *arguments: None),
        (line_store, "_check_channel", lambda *arguments: None),
    ]


def check_replaceable() -> None:
    """Check that functions can be replaced at run time.

    Raises:
        UsageError: If the cores are compiled, because compiled code does not look up its functions and methods at run time.
    """
    if is_compiled():
        raise UsageError(
            "mutants replace functions, and the cores of this build are compiled: install snapline without SNAPLINE_COMPILE"
        )
