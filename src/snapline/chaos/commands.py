"""What faults ask of real processes, and what is seen of them: the words between `executor.py`, which decides, and `local_faults.py`, which acts."""

import msgspec

from snapline.sim.faults.executor import DiskMode, FailpointAction, Hanging


class Command(msgspec.Struct, frozen=True):
    """Base of all. Carrying one out twice is carrying it out once."""


class KillNode(Command, frozen=True):
    """SIGKILL; it stays down until `StartNode`."""

    node: str


class EndNode(Command, frozen=True):
    """SIGTERM, so that it says goodbye; it stays down until `StartNode`."""

    node: str


class StartNode(Command, frozen=True):
    """Nothing if it runs."""

    node: str


class CutPower(Command, frozen=True):
    """SIGKILL, and what it has not synced is kept, lost or torn, as the seed says."""

    node: str
    seed: int


class SetSpeed(Command, frozen=True):
    """Of its processor, in percent; 0: it stands still (SIGSTOP)."""

    node: str
    percent: int


class SetPath(Command, frozen=True):
    """How bytes go from one node to another: not at all, or late by `least_ns` and up to `jitter_ns` more, so many of 1000 packets lost."""

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
    """What is wrong with the disk of a node, and nothing else is."""

    node: str
    modes: tuple[DiskMode, ...]


class SetHanging(Command, frozen=True):
    """What of a node does not come back."""

    node: str
    what: Hanging
    is_on: bool


class SetClock(Command, frozen=True):
    """Of a node's wall clock."""

    node: str
    skew_ns: int
    drift_ppm: int


class SetUnknown(Command, frozen=True):
    """Of a thousand outcomes of proposals so many are not told to who has proposed."""

    per_mille: int


class FlipBit(Command, frozen=True):
    """Of this file of the store; the remainder by its length counts."""

    path: str
    bit: int


class ArmPoint(Command, frozen=True):
    """Whoever passes the point for the `hit`-th time from now, of all processes together, suffers `action`, and tells."""

    number: int
    name: str
    hit: int
    action: FailpointAction


class DisarmPoints(Command, frozen=True):
    """Those that have not acted never will."""


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
    """How the fleet stands.

    Attributes:
        leader: of the coordinators; "" is nobody.
        homes: agent → host.
        flippable: files of the newest complete epoch, while an older one is whole; none of them was flipped.
    """

    leader: str
    homes: dict[str, str]
    flippable: tuple[str, ...] = ()


class PointPassed(Event, frozen=True):
    """What was armed under this number has acted, on this node."""

    number: int
    node: str
