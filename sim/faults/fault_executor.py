"""Fault executor: the simulated world, or real processes.

`faults.py` decides on times and targets of faults; an executor only executes them. Nodes are hosts ("h1", "h2", …) and
coordinators ("c1", …). Network calls take directed pairs of nodes. Calls do not nest: callers count overlapping faults on one
pair, as `faults.Schedule` does.
"""

from collections.abc import Callable
from typing import Literal, Protocol

from snapline.sim.choices import Choices
from snapline.sim.result import ExecutedFault

DiskMode = Literal["eio", "full", "failed-sync", "slow", "stale-read", "away"]
"""Disk faults that last until cleared."""

HangingCall = Literal["store", "stop", "loop"]
"""Calls of a host that may hang: calls of the store, `stop_when`, or a handler, which blocks the whole host."""

FailpointAction = Literal["crash", "power-cut", "error", "pause", "reset", "refuse"]
"""Actions on the node: "crash" and "power-cut" kill it, "error" raises OSError EIO, "pause" stops the process, "reset" breaks all
its streams, "refuse" makes an agent's state impossible to encode."""

WHEN_WORKING = "world.working"
WHEN_RECORDING = "world.recording"
WHEN_RECOVERING = "world.recovering"
WHEN_SENDING = "world.telling"
WHEN_DECIDING = "world.deciding"
WHEN_RECEIVING = "world.hearing"
WHEN_CAPTURING = "world.capturing"
"""Points that the executor itself passes: an agent takes a turn; an agent records for an epoch; a host applies a recovery plan; the
coordinator has sent a message to one host and perhaps not yet to the next; it learns the outcome of a proposal; a host has received a
message of the coordinator; a host captures an agent."""


class Executor(Protocol):
    """Executor of faults at their times."""

    @property
    def now_ns(self) -> int: ...
    @property
    def choices(self) -> Choices: ...
    @property
    def hosts(self) -> tuple[str, ...]:
        """Return all possible hosts, "h1" … in order; those of `scenario.joining_hosts` are down at the start."""
        ...

    @property
    def coordinators(self) -> tuple[str, ...]: ...
    @property
    def agents(self) -> tuple[str, ...]: ...

    def host_of(self, agent: str) -> str:
        """Return the agent's present host; "" if it has none."""
        ...

    def at(self, t_ns: int, call: Callable[[], None]) -> None:
        """Schedule a call; calls at the same time run in the order of scheduling."""
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
        """Break the stream now; data in flight is lost in both directions."""
        ...

    def hold_markers(self, sender: str, receiver: str, is_held: bool) -> None: ...
    def reset_network(self) -> None:
        """End all blocks, losses, holds and delays of faults."""
        ...

    # Hosts.

    def crash_host(self, host: str) -> None:
        """Kill the host (SIGKILL); no-op if it is down."""
        ...

    def start_host(self, host: str) -> None:
        """Start the host; no-op if it is up."""
        ...

    def pause_host(self, host: str) -> None:
        """Stop the host (SIGSTOP); no-op if it is down."""
        ...

    def resume_host(self, host: str) -> None:
        """Resume the host; no-op if it is down or not paused."""
        ...

    def set_speed(self, host: str, percent: int) -> None:
        """Set the speed in percent: 100 is normal, 10 ten times slower."""
        ...

    def set_hanging(self, host: str, what: HangingCall, is_on: bool) -> None:
        """Make such calls of the host hang; when off, all return."""
        ...

    def power_cut(self, host: str) -> None:
        """Crash the host; choices decide whether its unsynced data is kept, lost or torn."""
        ...

    def leave_host(self, host: str) -> None:
        """Make the host leave the fleet and end; no-op if it is down."""
        ...

    # Store and disk.

    def set_disk(self, host: str, mode: DiskMode, is_on: bool) -> None:
        """Set a disk mode of a host or coordinator; "" is all nodes."""
        ...

    def flip_bit(self, pick: int) -> str:
        """Damage a file of the newest complete epoch if there is an older one; return what was damaged, "" if nothing."""
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
        """Depose the leader, which does not notice at once."""
        ...

    def set_unknown(self, per_mille: int) -> None:
        """Lose this rate of the outcomes of proposals."""
        ...

    # Named points of the product's code.

    def arm_failpoint(self, name: str, hit: int, action: FailpointAction, restart_after_ns: int) -> None:
        """Act once, when the point is passed for the `hit`-th time from now; several actions may be armed at one point.

        `restart_after_ns`: time until a crashed node restarts, 0 for never; for a pause, its length.
        """
        ...

    def disarm_failpoints(self) -> None:
        """Disarm all failpoints that have not acted yet."""
        ...
