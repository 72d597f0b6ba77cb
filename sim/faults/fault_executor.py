"""Interface of fault executors. One executor acts on the simulated world, another on real processes.

`faults.py` decides when each fault happens and which nodes it affects; an executor only executes the faults. Nodes are
hosts ("h1", "h2", …) and coordinators ("c1", …). Methods that affect the network take directed pairs of nodes. Calls do
not nest: if several faults affect the same pair, the caller must keep count of them, as `faults.Conditions` does.
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
    """Executes faults on a clock of its own."""

    @property
    def now_ns(self) -> int: ...
    @property
    def choices(self) -> Choices: ...
    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of all hosts that may exist ("h1", "h2", …), in this order. Hosts in `scenario.joining_hosts` are down at first."""
        ...

    @property
    def coordinators(self) -> tuple[str, ...]: ...
    @property
    def agents(self) -> tuple[str, ...]: ...

    def host_of(self, agent: str) -> str:
        """Return the name of the agent's current host, or "" if the agent has none."""
        ...

    def at(self, t_ns: int, call: Callable[[], None]) -> None:
        """Schedule a call at the time `t_ns`. Calls for the same time run in the order in which they were scheduled."""
        ...

    def note_fault(self, fault: ExecutedFault) -> None: ...

    # The network.

    def set_delay(self, sender: str, receiver: str, least_ns: int, jitter_ns: int) -> None:
        """Set the delay from sender to receiver until the next such call. `reset_network` restores the scenario's delay."""
        ...

    def set_loss(self, sender: str, receiver: str, per_mille: int) -> None:
        """Set the rate, per thousand, of packets lost from sender to receiver. A lost packet only delays the stream."""
        ...

    def block(self, sender: str, receiver: str) -> None:
        """Block all packets from sender to receiver. After some time, the keepalive mechanism closes the stream."""
        ...

    def unblock(self, sender: str, receiver: str) -> None: ...
    def reset_stream(self, one: str, other: str) -> None:
        """Break the stream between two nodes at once. Data in flight is lost in both directions."""
        ...

    def hold_markers(self, sender: str, receiver: str, is_held: bool) -> None: ...
    def reset_network(self) -> None:
        """Remove all blocks, losses, holds and delays that faults have set."""
        ...

    # Hosts.

    def crash_host(self, host: str) -> None:
        """Kill the host (SIGKILL). Has no effect if the host is down."""
        ...

    def start_host(self, host: str) -> None:
        """Start the host. Has no effect if the host is up."""
        ...

    def pause_host(self, host: str) -> None:
        """Stop the host's process (SIGSTOP). Has no effect if the host is down."""
        ...

    def resume_host(self, host: str) -> None:
        """Resume the host. Has no effect if the host is down or not paused."""
        ...

    def set_speed(self, host: str, percent: int) -> None:
        """Set the host's speed in percent: 100 is normal, and 10 is ten times slower."""
        ...

    def set_hanging(self, host: str, what: HangingCall, is_on: bool) -> None:
        """Make calls of this kind hang on the host. If `is_on` is false, let all hanging calls return."""
        ...

    def power_cut(self, host: str) -> None:
        """Crash the host. Choices decide whether the host's unsynced data is kept, lost or torn."""
        ...

    def leave_host(self, host: str) -> None:
        """Make the host leave the fleet and exit. Has no effect if the host is down."""
        ...

    # Store and disk.

    def set_disk(self, host: str, mode: DiskMode, is_on: bool) -> None:
        """Set or clear a disk fault of a host or coordinator. "" means all nodes."""
        ...

    def flip_bit(self, pick: int) -> str:
        """Damage a file of the newest complete epoch, provided that an older complete epoch exists. Return a
        description of the damage, or "" if nothing was damaged."""
        ...

    def clear_disks(self) -> None:
        """End all disk faults. Damaged bytes are not repaired."""
        ...

    # Clocks. Only wall clocks are affected.

    def set_clock(self, host: str, skew_ns: int, drift_ppm: int) -> None: ...

    # The coordinator.

    def leader(self) -> str:
        """Return the name of the leader, or "" if there is none."""
        ...

    def crash_coordinator(self, node: str) -> None:
        """Crash the coordinator node. Has no effect if the node is down."""
        ...

    def start_coordinator(self, node: str) -> None:
        """Start the coordinator node. Has no effect if the node is up."""
        ...

    def depose(self) -> None:
        """Depose the leader. The leader does not notice at once."""
        ...

    def set_unknown(self, per_mille: int) -> None:
        """Set the rate, per thousand, of proposals whose outcome is lost."""
        ...

    # Failpoints: named lines in the product's code.

    def arm_failpoint(self, name: str, hit: int, action: FailpointAction, restart_after_ns: int) -> None:
        """Execute the action once, when the failpoint is reached for the `hit`-th time from now. Several actions may be
        armed at the same failpoint.

        `restart_after_ns` is the time until a crashed node restarts, where 0 means never, or the duration of a pause.
        """
        ...

    def disarm_failpoints(self) -> None:
        """Disarm all failpoints whose actions have not been executed."""
        ...
