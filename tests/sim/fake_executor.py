"""An executor that only keeps a log, and what is wrong at the moment, as sets that anybody can read."""

from tests.kit.virtual_time import VirtualTime

from snapline.sim.choices import Choices
from snapline.sim.faults.fault_executor import DiskMode, FailpointAction, HangingCall
from snapline.sim.result import ExecutedFault
from snapline.sim.scenario import Scenario, coordinator_names, host_names, joining_hosts

Call = tuple[int, str, tuple[object, ...]]


class FakeExecutor(VirtualTime):
    """Calls do not nest, as the contract says: one `unblock` ends any number of `block`s."""

    def __init__(self, scenario: Scenario, choices: Choices) -> None:
        super().__init__()
        self.choices = choices
        self.hosts = host_names(scenario)
        self.coordinators = coordinator_names(scenario)
        self.agents = tuple(f"a{number}" for number in range(scenario.fleet.agents))
        self.calls: list[Call] = []
        self.notes: list[ExecutedFault] = []
        self.down = set(joining_hosts(scenario))
        self.coordinators_down: set[str] = set()
        self.paused: set[str] = set()
        self.blocked: set[tuple[str, str]] = set()
        self.held: set[tuple[str, str]] = set()
        self.losses: dict[tuple[str, str], int] = {}
        self.delays: dict[tuple[str, str], tuple[int, int]] = {}
        self.speeds: dict[str, int] = {}
        self.clocks: dict[str, tuple[int, int]] = {}
        self.disks: set[tuple[str, DiskMode]] = set()
        self.hanging: set[tuple[str, HangingCall]] = set()
        self.unknown = 0
        self.armed: list[str] = []
        self.flips_refused = 0

    def problems(self) -> list[object]:
        """All that is not whole."""
        return [
            *sorted(self.down),
            *sorted(self.coordinators_down),
            *sorted(self.paused),
            *sorted(self.hanging),
            *sorted(self.blocked),
            *sorted(self.held),
            *(pair for pair, per_mille in self.losses.items() if per_mille),
            *self.delays,
            *(host for host, percent in self.speeds.items() if percent != 100),
            *(host for host, clock in self.clocks.items() if clock != (0, 0)),
            *sorted(self.disks),
            *([self.unknown] if self.unknown else []),
            *self.armed,
        ]

    def _log(self, name: str, *arguments: object) -> None:
        self.calls.append((self.now_ns, name, arguments))

    def _check_nodes(self, *nodes: str) -> None:
        assert all(node in self.hosts + self.coordinators for node in nodes), nodes
        assert len({*nodes}) == len(nodes), nodes

    def host_of(self, agent: str) -> str:
        return self.hosts[self.agents.index(agent) % len(self.hosts)]

    def note_fault(self, fault: ExecutedFault) -> None:
        assert fault.at_ns == self.now_ns
        self._log("note_fault", fault.kind, fault.text)
        self.notes.append(fault)

    def set_delay(self, sender: str, receiver: str, least_ns: int, jitter_ns: int) -> None:
        self._check_nodes(sender, receiver)
        self._log("set_delay", sender, receiver, least_ns, jitter_ns)
        self.delays[sender, receiver] = (least_ns, jitter_ns)

    def set_loss(self, sender: str, receiver: str, per_mille: int) -> None:
        self._check_nodes(sender, receiver)
        self._log("set_loss", sender, receiver, per_mille)
        self.losses[sender, receiver] = per_mille

    def block(self, sender: str, receiver: str) -> None:
        self._check_nodes(sender, receiver)
        self._log("block", sender, receiver)
        self.blocked.add((sender, receiver))

    def unblock(self, sender: str, receiver: str) -> None:
        self._log("unblock", sender, receiver)
        self.blocked.remove((sender, receiver))

    def reset_stream(self, one: str, other: str) -> None:
        self._check_nodes(one, other)
        self._log("reset_stream", one, other)

    def hold_markers(self, sender: str, receiver: str, is_held: bool) -> None:
        assert sender in self.hosts and receiver in self.hosts
        self._log("hold_markers", sender, receiver, is_held)
        (self.held.add if is_held else self.held.remove)((sender, receiver))

    def reset_network(self) -> None:
        self._log("reset_network")
        self.blocked.clear()
        self.held.clear()
        self.losses.clear()
        self.delays.clear()

    def crash_host(self, host: str) -> None:
        assert host in self.hosts
        self._log("crash_host", host)
        self.down.add(host)
        self.paused.discard(host)

    def start_host(self, host: str) -> None:
        assert host in self.hosts
        self._log("start_host", host)
        self.down.discard(host)

    def pause_host(self, host: str) -> None:
        assert host in self.hosts
        self._log("pause_host", host)
        if host not in self.down:
            self.paused.add(host)

    def resume_host(self, host: str) -> None:
        self._log("resume_host", host)
        self.paused.discard(host)

    def set_speed(self, host: str, percent: int) -> None:
        assert host in self.hosts
        self._log("set_speed", host, percent)
        self.speeds[host] = percent

    def power_cut(self, host: str) -> None:
        self._log("power_cut", host)
        self.crash_host(host)

    def set_hanging(self, host: str, what: HangingCall, is_on: bool) -> None:
        assert host in self.hosts
        self._log("set_hanging", host, what, is_on)
        (self.hanging.add if is_on else self.hanging.discard)((host, what))

    def leave_host(self, host: str) -> None:
        assert host in self.hosts
        self._log("leave_host", host)
        self.down.add(host)
        self.paused.discard(host)

    def set_disk(self, host: str, mode: DiskMode, is_on: bool) -> None:
        """The hardest reading of the contract: "" is short for all of them, and off is off."""
        self._log("set_disk", host, mode, is_on)
        nodes = (host,) if host else self.hosts + self.coordinators
        self._check_nodes(*nodes)
        for node in nodes:
            (self.disks.add if is_on else self.disks.discard)((node, mode))

    def flip_bit(self, pick: int) -> str:
        self._log("flip_bit", pick)
        if self.flips_refused:
            self.flips_refused -= 1
            return ""
        return f"byte {pick} of a pack"

    def clear_disks(self) -> None:
        self._log("clear_disks")
        self.disks.clear()

    def set_clock(self, host: str, skew_ns: int, drift_ppm: int) -> None:
        assert host in self.hosts
        self._log("set_clock", host, skew_ns, drift_ppm)
        self.clocks[host] = (skew_ns, drift_ppm)

    def leader(self) -> str:
        up = [node for node in self.coordinators if node not in self.coordinators_down]
        return up[0] if len(up) > len(self.coordinators) // 2 else ""

    def crash_coordinator(self, node: str) -> None:
        assert node in self.coordinators
        self._log("crash_coordinator", node)
        self.coordinators_down.add(node)

    def start_coordinator(self, node: str) -> None:
        assert node in self.coordinators
        self._log("start_coordinator", node)
        self.coordinators_down.discard(node)

    def depose(self) -> None:
        self._log("depose")

    def set_unknown(self, per_mille: int) -> None:
        self._log("set_unknown", per_mille)
        self.unknown = per_mille

    def arm_failpoint(self, name: str, hit: int, action: FailpointAction, restart_after_ns: int) -> None:
        self._log("arm_failpoint", name, hit, action, restart_after_ns)
        self.armed.append(name)

    def disarm_failpoints(self) -> None:
        self._log("disarm_failpoints")
        self.armed.clear()
