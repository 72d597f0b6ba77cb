"""Commands and events of faults on real processes: between `executor.py`, which decides, and `local_faults.py`, which acts."""

import msgspec

from snapline.sim.faults.executor import DiskMode, FailpointAction, Hanging


class Command(msgspec.Struct, frozen=True):
    """Base of all. Carrying one out twice is carrying it out once."""


class KillNode(Command, frozen=True):
    """SIGKILL; it stays down until `StartNode`."""

    node: str


class EndNode(Command, frozen=True):
    """End a node by SIGTERM, so that it shuts down in order; it stays down until `StartNode`."""

    node: str


class StartNode(Command, frozen=True):
    """Nothing if it runs."""

    node: str


class CutPower(Command, frozen=True):
    """Kill a node by SIGKILL; what it has not synced is kept, lost or torn, by the seed."""

    node: str
    seed: int


class SetSpeed(Command, frozen=True):
    """Set the speed of its processor, in percent; 0: it is frozen (SIGSTOP)."""

    node: str
    percent: int


class SetPath(Command, frozen=True):
    """Set how bytes go from one node to another: not at all, or late by `least_ns` and up to `jitter_ns` more, so many of 1000 packets lost."""

    sender: str
    receiver: str
    is_blocked: bool = False
    least_ns: int = 0
    jitter_ns: int = 0
    loss_per_mille: int = 0


class BreakStreams(Command, frozen=True):
    """Connections between these two break at once; `other` "": all of the first."""

    one: str
    other: str = ""


class SetDisk(Command, frozen=True):
    """Set all faults of a node's disk; others end."""

    node: str
    modes: tuple[DiskMode, ...]


class SetHanging(Command, frozen=True):
    """Set which part of a node hangs."""

    node: str
    what: Hanging
    is_on: bool


class SetClock(Command, frozen=True):
    """Set a node's wall clock."""

    node: str
    skew_ns: int
    drift_ppm: int


class SetUnknown(Command, frozen=True):
    """Set how many of a thousand outcomes of proposals are hidden from the proposer."""

    per_mille: int


class FlipBit(Command, frozen=True):
    """Flip a bit of this file of the store; the remainder by its length counts."""

    path: str
    bit: int


class ArmPoint(Command, frozen=True):
    """Arm a point: the process with the `hit`-th pass from now, of all processes together, suffers `action`, and reports it."""

    number: int
    name: str
    hit: int
    action: FailpointAction


class DisarmPoints(Command, frozen=True):
    """Disarm points: those that have not acted never will."""


class Note(Command, frozen=True):
    """A fault was carried out, in words for people."""

    kind: str
    text: str
    at_ns: int
    until_ns: int


class Event(msgspec.Struct, frozen=True):
    """Base of what is seen."""


class TimePassed(Event, frozen=True):
    """Something may be due."""


class FleetLookedAt(Event, frozen=True):
    """State of the fleet.

    Attributes:
        leader: of the coordinators; "" is none.
        homes: agent → host.
        flippable: files of the newest complete epoch, while an older one is whole; none of them was flipped.
    """

    leader: str
    homes: dict[str, str]
    flippable: tuple[str, ...] = ()


class PointPassed(Event, frozen=True):
    """An armed point of this number has acted, on this node."""

    number: int
    node: str
