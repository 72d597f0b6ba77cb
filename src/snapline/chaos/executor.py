"""Decides which commands carry out faults on real processes. This module performs no I/O. `local_faults.py` executes its commands.

`sim/faults` decides from the scenario file and the seed which fault affects which process and when. This module translates the faults into
commands that concern processes. The simulator and this module implement the same `Executor`, so a scenario file has the same meaning in
both. The caller passes the time. Some facts can only be observed in the real fleet, such as the leader, the agents' hosts, and the files
that may be damaged. These facts are taken from the last `FleetObserved` event.

Invariants:

1. Each command contains the complete fault state of a network path, a disk or a clock. So the command can be repeated, even after a
   restart.
2. A process is frozen while at least one pause or failpoint freezes it.
3. A process that is down remains down until its fault ends. This also holds for a process that died at a failpoint.
"""

import heapq
from collections.abc import Callable, Sequence

import msgspec

from snapline.sim.choices import Choices
from snapline.sim.faults.fault_executor import DiskMode, FailpointAction, HangingCall
from snapline.sim.faults.faults import heal, schedule
from snapline.sim.result import ExecutedFault
from snapline.sim.scenario import Scenario, coordinator_names, host_names, joining_hosts


class Command(msgspec.Struct, frozen=True):
    """Base of all commands. Commands are idempotent."""


class KillNode(Command, frozen=True):
    """Kill a node with SIGKILL. The node remains down until `StartNode`."""

    node: str


class EndNode(Command, frozen=True):
    """Terminate a node with SIGTERM, so that it shuts down cleanly. The node remains down until `StartNode`."""

    node: str


class StartNode(Command, frozen=True):
    """Start a node. The command has no effect on a running node."""

    node: str


class CutPower(Command, frozen=True):
    """Simulate a power cut: kill a node with SIGKILL. The seed decides whether the node's unsynced data is kept, lost or torn."""

    node: str
    seed: int


class SetSpeed(Command, frozen=True):
    """Limit a node's CPU speed to a percentage. A node with a speed of 0 is frozen (SIGSTOP)."""

    node: str
    percent: int


class SetPath(Command, frozen=True):
    """Set the faults of the network path from one node to another. The path is either blocked, or delays data by `least_ns` plus a random
    time of up to `jitter_ns`. Of every 1000 packets, the path loses `loss_per_mille`."""

    sender: str
    receiver: str
    is_blocked: bool = False
    least_ns: int = 0
    jitter_ns: int = 0
    loss_per_mille: int = 0


class BreakStreams(Command, frozen=True):
    """Break all connections between two nodes at once. If `other` is "", break all connections of `one`."""

    one: str
    other: str = ""


class SetDisk(Command, frozen=True):
    """Set all faults of a node's disk. Faults that are not in the list end."""

    node: str
    modes: tuple[DiskMode, ...]


class SetHanging(Command, frozen=True):
    """Make one kind of call hang on a node, or end this fault."""

    node: str
    what: HangingCall
    is_on: bool


class SetClock(Command, frozen=True):
    """Set a node's wall clock."""

    node: str
    skew_ns: int
    drift_ppm: int


class SetUnknown(Command, frozen=True):
    """Set how many out of 1000 proposal outcomes are hidden from the proposer."""

    per_mille: int


class FlipBit(Command, frozen=True):
    """Flip a bit in one of the store's files. `bit` is taken modulo the file's length in bits."""

    path: str
    bit: int


class ArmFailpoint(Command, frozen=True):
    """Arm a failpoint. `action` affects the process that makes the `hit`-th pass of the failpoint from now on, counted over all processes.
    This process reports that the failpoint has acted."""

    number: int
    name: str
    hit: int
    action: FailpointAction


class DisarmFailpoints(Command, frozen=True):
    """Disarm all failpoints that have not acted yet."""


class Note(Command, frozen=True):
    """The description of an executed fault, for users."""

    kind: str
    text: str
    at_ns: int
    until_ns: int


class Event(msgspec.Struct, frozen=True):
    """Base of all events."""


class TimePassed(Event, frozen=True):
    """Time has passed, so a fault may be due."""


class FleetObserved(Event, frozen=True):
    """The state of the fleet was observed.

    Attributes:
        leader: coordinator replica that leads, or "" if there is none.
        homes: host of each agent.
        flippable: undamaged files of the newest complete epoch. The tuple is empty if no older epoch is intact.
    """

    leader: str
    homes: dict[str, str]
    flippable: tuple[str, ...] = ()


class FailpointHit(Event, frozen=True):
    """An armed failpoint has acted on this node."""

    number: int
    node: str


DEPOSED_NS = 3_000_000_000
"""Time for which a leader is frozen so that another leader is elected. It lasts several election timeouts."""

Path = tuple[str, str]


class Armed(msgspec.Struct, frozen=True):
    """A fault that takes effect at a failpoint."""

    name: str
    action: FailpointAction
    after_ns: int


class ChaosExecutor:
    """Implements `sim.faults.fault_executor.Executor`.

    Attributes:
        faults: faults that were executed.
        over_ns: time at which the last fault ends, counted from `begin`.
        flipped: files that a fault has damaged.
    """

    def __init__(self, scenario: Scenario, choices: Choices) -> None:
        self.choices = choices
        self.hosts = host_names(scenario)
        self.coordinators = coordinator_names(scenario)
        self.agents: tuple[str, ...] = ()
        self.faults: list[ExecutedFault] = []
        self.over_ns = 0
        self.flipped: list[str] = []
        self.now_ns = 0
        self._scenario = scenario
        self._observed = FleetObserved("", {})
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = 0
        self._commands: list[Command] = []
        self._paths: dict[Path, SetPath] = {}
        self._disks: dict[str, dict[DiskMode, None]] = {}
        self._fleet_disk_faults: dict[DiskMode, None] = {}
        self._speeds: dict[str, int] = {}
        self._frozen: dict[str, int] = {}  # for each node, the number of faults that freeze it
        self._armed: dict[int, Armed] = {}
        self._down: dict[str, None] = dict.fromkeys(joining_hosts(scenario))

    # ---- entry points ---------------------------------------------------------------------------------------------------

    def handle(self, now_ns: int, event: Event) -> list[Command]:
        """Handle one event. `now_ns` is the time since `begin`."""
        self.now_ns = max(self.now_ns, now_ns)
        match event:
            case FleetObserved():
                self._observed = event
                self.agents = tuple(sorted(event.homes))
            case FailpointHit():
                self._on_failpoint_hit(event)
            case _:
                pass
        while self._due and self._due[0][0] <= self.now_ns:
            heapq.heappop(self._due)[2]()
        return self._take()

    def begin(self) -> list[Command]:
        """Start the scenario's clock now."""
        self.over_ns = max(schedule(self._scenario, self), self._scenario.liveness.heal_ns)
        return self.handle(0, TimePassed())

    def heal(self) -> list[Command]:
        """End all faults, and cancel all scheduled faults."""
        self._due.clear()
        self._frozen.clear()
        heal(self)
        for node in (*self.hosts, *self.coordinators):
            self._set_speed(node)
        return self._take()

    def _take(self) -> list[Command]:
        commands, self._commands = self._commands, []
        return commands

    # ---- the scenario's clock and names ---------------------------------------------------------------------------

    def host_of(self, agent: str) -> str:
        return self._observed.homes.get(agent, "")

    def at(self, t_ns: int, call: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._due, (t_ns, self._numbers, call))

    def note_fault(self, fault: ExecutedFault) -> None:
        self.faults.append(fault)
        self._commands.append(Note(fault.kind, fault.text, fault.at_ns, fault.until_ns))

    # ---- failpoints -----------------------------------------------------------------------------------------------

    def arm_failpoint(self, name: str, hit: int, action: FailpointAction, restart_after_ns: int) -> None:
        self._numbers += 1
        self._armed[self._numbers] = Armed(name, action, restart_after_ns)
        self._commands.append(ArmFailpoint(self._numbers, name, hit, action))

    def _on_failpoint_hit(self, event: FailpointHit) -> None:
        armed = self._armed.pop(event.number, None)
        if armed is None:
            return
        node, after_ns = event.node, armed.after_ns
        text = f"{armed.action} of {node} at {armed.name}"
        self.note_fault(ExecutedFault("failpoint", text, self.now_ns, self.now_ns + after_ns))
        match armed.action:
            case "crash" | "power-cut":
                self.power_cut(node) if armed.action == "power-cut" else self._kill(node)
                if after_ns:
                    self.at(self.now_ns + after_ns, lambda: self._start(node))
            case "pause":
                self._freeze(node)
                self.at(self.now_ns + after_ns, lambda: self._thaw(node))
            case "reset":
                self._commands.append(BreakStreams(node))
            case _:
                pass

    def disarm_failpoints(self) -> None:
        self._armed.clear()
        self._commands.append(DisarmFailpoints())

    # ---- the network ----------------------------------------------------------------------------------------------

    def _set_path(self, sender: str, receiver: str, **changes: object) -> None:
        before = self._paths.get((sender, receiver)) or SetPath(sender, receiver)
        after = msgspec.structs.replace(before, **changes)
        if after != before:
            self._paths[sender, receiver] = after
            self._commands.append(after)

    def set_delay(self, sender: str, receiver: str, least_ns: int, jitter_ns: int) -> None:
        """Set a delay. The scenario's default delay applies only to virtual time. Real processes have the delay of the real network
        instead."""
        usual = self._scenario.network.delay_of(sender, receiver)
        if (least_ns, jitter_ns) == (usual.least_ns, usual.jitter_ns):
            least_ns = jitter_ns = 0
        self._set_path(sender, receiver, least_ns=least_ns, jitter_ns=jitter_ns)

    def set_loss(self, sender: str, receiver: str, per_mille: int) -> None:
        self._set_path(sender, receiver, loss_per_mille=per_mille)

    def block(self, sender: str, receiver: str) -> None:
        self._set_path(sender, receiver, is_blocked=True)

    def unblock(self, sender: str, receiver: str) -> None:
        self._set_path(sender, receiver, is_blocked=False)

    def reset_stream(self, one: str, other: str) -> None:
        self._commands.append(BreakStreams(one, other))

    def hold_markers(self, sender: str, receiver: str, is_held: bool) -> None:
        raise AssertionError("a marker is bytes of a stream: `abilities` refuses this word")

    def reset_network(self) -> None:
        for sender, receiver in list(self._paths):
            self._set_path(sender, receiver, is_blocked=False, least_ns=0, jitter_ns=0, loss_per_mille=0)

    # ---- processes ------------------------------------------------------------------------------------------------

    def crash_host(self, host: str) -> None:
        self._kill(host)

    def crash_coordinator(self, node: str) -> None:
        self._kill(node)

    def start_host(self, host: str) -> None:
        self._start(host)

    def start_coordinator(self, node: str) -> None:
        self._start(node)

    def leave_host(self, host: str) -> None:
        self._go_down(host)
        self._commands.append(EndNode(host))

    def power_cut(self, host: str) -> None:
        self._numbers += 1
        self._go_down(host)
        self._commands.append(CutPower(host, self.choices.pick("disk", (host, self._numbers), 1 << 30)))

    def _kill(self, node: str) -> None:
        self._go_down(node)
        self._commands.append(KillNode(node))

    def _go_down(self, node: str) -> None:
        """Mark a node as down. Faults that froze the node's process do not freeze its next process."""
        self._down[node] = None
        self._frozen.pop(node, None)

    def _start(self, node: str) -> None:
        if node in self._down:
            del self._down[node]
            self._commands.append(StartNode(node))

    def pause_host(self, host: str) -> None:
        self._freeze(host)

    def resume_host(self, host: str) -> None:
        self._thaw(host)

    def _freeze(self, node: str) -> None:
        self._frozen[node] = self._frozen.get(node, 0) + 1
        self._set_speed(node)

    def _thaw(self, node: str) -> None:
        if self._frozen.get(node):
            self._frozen[node] -= 1
            self._set_speed(node)

    def set_speed(self, host: str, percent: int) -> None:
        self._speeds[host] = percent
        self._set_speed(host)

    def _set_speed(self, node: str) -> None:
        percent = 0 if self._frozen.get(node) else self._speeds.get(node, 100)
        self._commands.append(SetSpeed(node, percent))

    def set_hanging(self, host: str, what: HangingCall, is_on: bool) -> None:
        self._commands.append(SetHanging(host, what, is_on))

    # ---- disks and clocks -----------------------------------------------------------------------------------------

    def set_disk(self, host: str, mode: DiskMode, is_on: bool) -> None:
        """Begin or end a disk fault on a node, or on all nodes if `host` is "". When a fault of one kind ends, faults of the other kinds
        continue."""
        modes = self._disks.setdefault(host, {}) if host else self._fleet_disk_faults
        if is_on:
            modes[mode] = None
        else:
            modes.pop(mode, None)
        self._send_disk_faults([host] if host else (*self.hosts, *self.coordinators))

    def clear_disks(self) -> None:
        self._disks.clear()
        self._fleet_disk_faults.clear()
        self._send_disk_faults((*self.hosts, *self.coordinators))

    def _send_disk_faults(self, nodes: Sequence[str]) -> None:
        for node in nodes:
            self._commands.append(SetDisk(node, tuple({**self._fleet_disk_faults, **self._disks.get(node, {})})))

    def flip_bit(self, pick: int) -> str:
        files = self._observed.flippable
        if not files:
            return ""
        bit, number = divmod(pick, len(files))
        path = files[number]
        self.flipped.append(path)
        self._observed = msgspec.structs.replace(self._observed, flippable=())
        self._commands.append(FlipBit(path, bit))
        return path

    def set_clock(self, host: str, skew_ns: int, drift_ppm: int) -> None:
        self._commands.append(SetClock(host, skew_ns, drift_ppm))

    # ---- the coordinator ------------------------------------------------------------------------------------------

    def leader(self) -> str:
        return self._observed.leader

    def depose(self) -> None:
        """Freeze the leader for `DEPOSED_NS`, so that another replica is elected while the old leader still considers itself the
        leader."""
        leader = self.leader()
        if leader:
            self._freeze(leader)
            self.at(self.now_ns + DEPOSED_NS, lambda: self._thaw(leader))

    def set_unknown(self, per_mille: int) -> None:
        self._commands.append(SetUnknown(per_mille))
