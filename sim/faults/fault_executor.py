"""Interface of fault executors. One executor injects faults into the simulated world, and another into real processes.

The module `faults.py` decides when each fault happens and which nodes it affects, and an executor only executes the fault. Nodes are hosts
("h1", "h2", …) and coordinators ("c1", …). Methods that affect the network take a sender and a receiver, so each call affects only one
direction. An executor does not count the faults that are in effect. If several faults affect the same pair of nodes, the caller must count
them, as `faults.Conditions` does.
"""

from collections.abc import Callable
from typing import Literal, Protocol

from snapline.sim.choices import Choices
from snapline.sim.result import ExecutedFault

DiskMode = Literal["eio", "full", "failed-sync", "slow", "stale-read", "away"]
"""Disk faults that last until they are cleared."""

HangingCall = Literal["store", "stop", "loop"]
"""Calls of a host that may hang: "store" means store calls, "stop" means `stop_when`, and "loop" means a handler, which
blocks the event loop."""

FailpointAction = Literal["crash", "power-cut", "error", "pause", "reset", "refuse"]
"""Actions on the node that reaches a failpoint. "crash" and "power-cut" kill the node, "error" raises OSError EIO, "pause" stops the
process, "reset" breaks all the node's streams, and "refuse" makes it impossible to encode an agent's state."""

WHEN_WORKING = "world.working"
WHEN_RECORDING = "world.recording"
WHEN_RECOVERING = "world.recovering"
WHEN_SENDING = "world.telling"
WHEN_DECIDING = "world.deciding"
WHEN_RECEIVING = "world.hearing"
WHEN_CAPTURING = "world.capturing"
"""Failpoints in the executor itself, at these moments: an agent takes a turn; an agent records its state for an epoch; a
host applies a recovery plan; the coordinator has sent a message to one host and perhaps not yet to the next; the coordinator learns
the outcome of a proposal; a host has received a message from the coordinator; a host captures an agent's state."""


class Executor(Protocol):
    """Interface for executing faults. Each executor has its own clock."""

    @property
    def now_ns(self) -> int: ...
    @property
    def choices(self) -> Choices: ...
    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of all hosts that may exist during the run ("h1", "h2", …), in this order. The hosts in `scenario.joining_hosts`
        are not running at first."""
        ...

    @property
    def coordinators(self) -> tuple[str, ...]: ...
    @property
    def agents(self) -> tuple[str, ...]: ...

    def host_of(self, agent: str) -> str:
        """Return the name of the agent's current host, or "" if the agent has none."""
        ...

    def at(self, t_ns: int, call: Callable[[], None]) -> None:
        """Schedule a call of the function at the time `t_ns`. Calls for the same time run in the order in which they were scheduled."""
        ...

    def note_fault(self, fault: ExecutedFault) -> None: ...

    # The network.

    def set_delay(self, sender: str, receiver: str, least_ns: int, jitter_ns: int) -> None:
        """Set the network delay from sender to receiver. The delay remains in effect until the next call for the same pair. `reset_network`
        restores the scenario's delay."""
        ...

    def set_loss(self, sender: str, receiver: str, per_mille: int) -> None:
        """Set how many of 1,000 packets from sender to receiver are lost. A lost packet only delays the stream, because TCP resends the
        packet."""
        ...

    def block(self, sender: str, receiver: str) -> None:
        """Block all packets from sender to receiver. After some time, the keepalive mechanism closes the blocked stream."""
        ...

    def unblock(self, sender: str, receiver: str) -> None: ...
    def reset_stream(self, one: str, other: str) -> None:
        """Break the stream between two nodes at once. Data in flight is lost in both directions."""
        ...

    def hold_markers(self, sender: str, receiver: str, is_held: bool) -> None: ...
    def reset_network(self) -> None:
        """Remove all packet blocks, packet losses, held-back markers and delays that faults have caused."""
        ...

    # Hosts.

    def crash_host(self, host: str) -> None:
        """Kill the host (SIGKILL). The method has no effect if the host is not running."""
        ...

    def start_host(self, host: str) -> None:
        """Start the host. The method has no effect if the host is already running."""
        ...

    def pause_host(self, host: str) -> None:
        """Stop the host's process (SIGSTOP). The method has no effect if the host is not running."""
        ...

    def resume_host(self, host: str) -> None:
        """Resume the host. The method has no effect if the host is not running or not paused."""
        ...

    def set_speed(self, host: str, percent: int) -> None:
        """Set the host's CPU speed in percent, where 100 is normal and 10 is ten times slower."""
        ...

    def set_hanging(self, host: str, what: HangingCall, is_on: bool) -> None:
        """Make all calls of this kind on the host hang or, if `is_on` is False, let the hanging calls return."""
        ...

    def power_cut(self, host: str) -> None:
        """Crash the host. The run's random choices decide whether the host's unsynced data is kept, lost or torn."""
        ...

    def leave_host(self, host: str) -> None:
        """Make the host leave the fleet and exit. The method has no effect if the host is not running."""
        ...

    # Store and disk.

    def set_disk(self, host: str, mode: DiskMode, is_on: bool) -> None:
        """Set or clear a disk fault of a host or coordinator. "" means all nodes."""
        ...

    def flip_bit(self, pick: int) -> str:
        """Flip a bit in a file of the newest complete epoch, provided that an older complete epoch exists. Return a description of the
        damage, or "" if nothing was damaged."""
        ...

    def clear_disks(self) -> None:
        """End all disk faults. Bytes that a fault has damaged are not repaired."""
        ...

    # Clocks. Only wall clocks are affected.

    def set_clock(self, host: str, skew_ns: int, drift_ppm: int) -> None: ...

    # The coordinator.

    def leader(self) -> str:
        """Return the name of the coordinator replica that is the leader, or "" if there is none."""
        ...

    def crash_coordinator(self, node: str) -> None:
        """Crash the coordinator node. The method has no effect if the node is not running."""
        ...

    def start_coordinator(self, node: str) -> None:
        """Start the coordinator node. The method has no effect if the node is already running."""
        ...

    def depose(self) -> None:
        """Depose the leader. The deposed leader does not notice immediately."""
        ...

    def set_unknown(self, per_mille: int) -> None:
        """Set for how many of 1,000 proposals to the coordinator's log the outcome is lost."""
        ...

    # Failpoints: named lines in the product's code.

    def arm_failpoint(self, name: str, hit: int, action: FailpointAction, restart_after_ns: int) -> None:
        """Execute the action once, when execution reaches the failpoint for the `hit`-th time from now. Several actions may be armed at the
        same failpoint.

        If the action kills the node, `restart_after_ns` is the time until it restarts, where 0 means never. If the action pauses the node,
        it is the duration of the pause.
        """
        ...

    def disarm_failpoints(self) -> None:
        """Disarm all failpoints whose actions have not been executed."""
        ...
