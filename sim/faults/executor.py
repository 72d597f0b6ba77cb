"""Fault executor: the simulated world, or real processes.

`faults.py` decides what happens when, and to whom; an executor only does it. Nodes are hosts ("h1", "h2", …) and
coordinators ("c1", …). Network calls take directed pairs of nodes. Calls do not nest: a caller whose faults overlap on one
pair counts them, as `faults.Schedule` does.
"""

from collections.abc import Callable
from typing import Literal, Protocol

from snapline.sim.choices import Choices
from snapline.sim.result import ExecutedFault

DiskMode = Literal["eio", "full", "failed-sync", "slow", "stale-read", "away"]
"""Lasting disk faults, until cleared."""

Hanging = Literal["store", "stop", "loop"]
"""Calls of a host that may hang: calls of the store, `stop_when`, or a handler, which blocks everything else there."""

FailpointAction = Literal["crash", "power-cut", "error", "pause", "reset", "refuse"]
"""Actions on the node: "crash", "error": OSError EIO, "pause": the process is stopped, "reset": all its streams break,
"refuse": an agent's state cannot be encoded."""

WHEN_WORKING = "world.working"
WHEN_RECORDING = "world.recording"
WHEN_RECOVERING = "world.recovering"
WHEN_TELLING = "world.telling"
WHEN_DECIDING = "world.deciding"
WHEN_HEARING = "world.hearing"
WHEN_CAPTURING = "world.capturing"
"""Points that the executor passes itself: an agent records for an epoch, a host applies a recovery plan; the coordinator has told
one host something, and perhaps not yet the next; it learns what became of its proposal; a host has heard a word of the
coordinator; a host takes the image of an agent."""


class Executor(Protocol):
    """Executor of faults, at the times that they set."""

    @property
    def now_ns(self) -> int: ...
    @property
    def choices(self) -> Choices: ...
    @property
    def hosts(self) -> tuple[str, ...]:
        """Possible hosts, "h1" … in order; those of `scenario.joining_hosts` are down at the start."""
        ...

    @property
    def coordinators(self) -> tuple[str, ...]: ...
    @property
    def agents(self) -> tuple[str, ...]: ...

    def host_of(self, agent: str) -> str:
        """Return the agent's present host; "" if it has none."""
        ...

    def at(self, t_ns: int, call: Callable[[], None]) -> None:
        """Call at that time; calls for one time in the order in which they were asked for."""
        ...

    def note_fault(self, fault: ExecutedFault) -> None: ...

    # The network.

    def set_delay(self, sender: str, receiver: str, least_ns: int, jitter_ns: int) -> None:
        """Set the delay until the next call; `reset_network` restores the scenario's."""
        ...

    def set_loss(self, sender: str, receiver: str, per_mille: int) -> None:
        """Set the loss rate; in a stream a lost packet is a delay."""
        ...

    def block(self, sender: str, receiver: str) -> None:
        """Block all packets; the stream dies by keepalive in time."""
        ...

    def unblock(self, sender: str, receiver: str) -> None: ...
    def reset_stream(self, one: str, other: str) -> None:
        """Breaks now: what is in flight, in both directions, is lost."""
        ...

    def hold_markers(self, sender: str, receiver: str, is_held: bool) -> None: ...
    def reset_network(self) -> None:
        """End all blocks, losses, holds and delays of faults."""
        ...

    # Hosts.

    def crash_host(self, host: str) -> None:
        """SIGKILL; nothing if it is down."""
        ...

    def start_host(self, host: str) -> None:
        """Start the host; no-op if it is up."""
        ...

    def pause_host(self, host: str) -> None:
        """SIGSTOP; nothing if it is down."""
        ...

    def resume_host(self, host: str) -> None:
        """Resume the host; no-op if it is down or not paused."""
        ...

    def set_speed(self, host: str, percent: int) -> None:
        """Set the speed in percent: 100 is normal, 10 ten times slower."""
        ...

    def set_hanging(self, host: str, what: Hanging, is_on: bool) -> None:
        """Make such calls of the host hang; when off, all return."""
        ...

    def power_cut(self, host: str) -> None:
        """A crash, and what the host did not sync is kept, lost or torn, by choices."""
        ...

    def leave_host(self, host: str) -> None:
        """Say goodbye and end; no-op if it is down."""
        ...

    # Store and disk.

    def set_disk(self, host: str, mode: DiskMode, is_on: bool) -> None:
        """Set a disk mode of a host or a coordinator; "" is all of them."""
        ...

    def flip_bit(self, pick: int) -> str:
        """Damage a file of the newest complete epoch, if an older one is left; "" if not now, else what was damaged."""
        ...

    def clear_disks(self) -> None:
        """End all modes; damaged bytes stay."""
        ...

    # Clocks: the wall clock only.

    def set_clock(self, host: str, skew_ns: int, drift_ppm: int) -> None: ...

    # The coordinator.

    def leader(self) -> str:
        """Return the leader; "" is none."""
        ...

    def crash_coordinator(self, node: str) -> None:
        """Crash the node; no-op if it is down."""
        ...

    def start_coordinator(self, node: str) -> None:
        """Start the node; no-op if it is up."""
        ...

    def depose(self) -> None:
        """The leader loses its office without noticing at once."""
        ...

    def set_unknown(self, per_mille: int) -> None:
        """Lose so many outcomes of proposals on their way back."""
        ...

    # Named points of the product's code.

    def arm_failpoint(self, name: str, hit: int, action: FailpointAction, restart_after_ns: int) -> None:
        """Act, once, when the point is passed for the `hit`-th time from now; several may be armed at one point.

        `restart_after_ns` is when a crashed node starts again, 0 for not by itself; of a pause, how long it lasts.
        """
        ...

    def disarm_failpoints(self) -> None:
        """Disarm all failpoints that have not acted yet."""
        ...
