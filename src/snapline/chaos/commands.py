"""Commands and events between `executor.py`, which decides about faults, and `local_faults.py`, which carries them out."""

import msgspec

from snapline.sim.faults.executor import DiskMode, FailpointAction, HangingCall


class Command(msgspec.Struct, frozen=True):
    """Base of all commands. Commands are idempotent."""


class KillNode(Command, frozen=True):
    """Kill a node by SIGKILL; it stays down until `StartNode`."""

    node: str


class EndNode(Command, frozen=True):
    """End a node by SIGTERM, so that it shuts down cleanly; it stays down until `StartNode`."""

    node: str


class StartNode(Command, frozen=True):
    """Start a node; nothing happens if it runs."""

    node: str


class CutPower(Command, frozen=True):
    """Kill a node by SIGKILL; the seed decides whether its unsynced data is kept, lost or torn."""

    node: str
    seed: int


class SetSpeed(Command, frozen=True):
    """Set the speed of a node's processor in percent; 0: frozen (SIGSTOP)."""

    node: str
    percent: int


class SetPath(Command, frozen=True):
    """Set the path from one node to another: blocked, or delayed by `least_ns` plus up to `jitter_ns`, with packet loss per mille."""

    sender: str
    receiver: str
    is_blocked: bool = False
    least_ns: int = 0
    jitter_ns: int = 0
    loss_per_mille: int = 0


class BreakStreams(Command, frozen=True):
    """Break all connections between two nodes at once; `other` "": all connections of `one`."""

    one: str
    other: str = ""


class SetDisk(Command, frozen=True):
    """Set all faults of a node's disk; faults that are not listed end."""

    node: str
    modes: tuple[DiskMode, ...]


class SetHanging(Command, frozen=True):
    """Set which part of a node hangs."""

    node: str
    what: HangingCall
    is_on: bool


class SetClock(Command, frozen=True):
    """Set a node's wall clock."""

    node: str
    skew_ns: int
    drift_ppm: int


class SetUnknown(Command, frozen=True):
    """Set how many of 1000 proposal outcomes are hidden from the proposer."""

    per_mille: int


class FlipBit(Command, frozen=True):
    """Flip a bit of a file of the store; `bit` is taken modulo the file's length in bits."""

    path: str
    bit: int


class ArmFailpoint(Command, frozen=True):
    """Arm a failpoint: `action` hits the process with the `hit`-th pass from now, counted over all processes, which reports it."""

    number: int
    name: str
    hit: int
    action: FailpointAction


class DisarmFailpoints(Command, frozen=True):
    """Disarm all failpoints that have not acted yet."""


class Note(Command, frozen=True):
    """Description of an executed fault, for users."""

    kind: str
    text: str
    at_ns: int
    until_ns: int


class Event(msgspec.Struct, frozen=True):
    """Base of all events."""


class TimePassed(Event, frozen=True):
    """Time has passed; a fault may be due."""


class FleetObserved(Event, frozen=True):
    """State of the fleet.

    Attributes:
        leader: the leading coordinator; "" if there is none.
        homes: agent → host.
        flippable: undamaged files of the newest complete epoch; empty if no older epoch is intact.
    """

    leader: str
    homes: dict[str, str]
    flippable: tuple[str, ...] = ()


class FailpointHit(Event, frozen=True):
    """An armed failpoint has acted on this node."""

    number: int
    node: str
