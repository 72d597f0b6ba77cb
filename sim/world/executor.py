"""Fault executor of a simulated world; `faults/fault_executor.py` documents its methods."""

import errno
import os
from collections.abc import Callable, Mapping

import msgspec

from snapline.errors import EncodingError
from snapline.sim.choices import Choices
from snapline.sim.faults.fault_executor import WHEN_WORKING, DiskMode, FailpointAction, HangingCall
from snapline.sim.faults.faults import schedule
from snapline.sim.result import ExecutedFault
from snapline.sim.world.hosts import Hosts
from snapline.sim.world.kernel import SimulatedCrash
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.simulated_replica import SimulatedReplica
from snapline.sim.world.world_observer import WorldObserver
from snapline.sim.world.world_state import WorldState


class SimExecutor:
    """Executor of faults in virtual time.

    Attributes:
        faults: executed faults.
    """

    def __init__(
        self,
        shared: WorldState,
        log: SimulatedLog,
        replicas: Mapping[str, SimulatedReplica],
        hosts: Hosts,
        notes: WorldObserver,
    ) -> None:
        self._shared = shared
        self._log = log
        self._seats = replicas
        self._hosts = hosts
        self._store = notes.store
        self._origin_ns = 0
        self.faults: list[ExecutedFault] = shared.faults

    # ---- the scenario's clock and names ---------------------------------------------------------------------------

    def begin(self) -> int:
        """Start the scenario's clock now, and return the end of the last fault in the world's time."""
        self._origin_ns = self._shared.kernel.now_ns
        return self._origin_ns + max(schedule(self._shared.scenario, self), self._shared.scenario.liveness.heal_ns)

    @property
    def now_ns(self) -> int:
        """Return the scenario's time, which starts when `begin` is called."""
        return self._shared.kernel.now_ns - self._origin_ns

    @property
    def choices(self) -> Choices:
        return self._shared.choices

    @property
    def hosts(self) -> tuple[str, ...]:
        return self._shared.hosts

    @property
    def coordinators(self) -> tuple[str, ...]:
        return self._shared.coordinators

    @property
    def agents(self) -> tuple[str, ...]:
        return self._shared.agents

    def host_of(self, agent: str) -> str:
        record = self._log.canonical.image.agents.get(agent)
        return record.host if record is not None and record.left_plan is None else ""

    def at(self, t_ns: int, call: Callable[[], None]) -> None:
        self._shared.call_at(t_ns + self._origin_ns, call)

    def note_fault(self, fault: ExecutedFault) -> None:
        until_ns = fault.until_ns + self._origin_ns if fault.until_ns else 0
        fault = msgspec.structs.replace(fault, at_ns=fault.at_ns + self._origin_ns, until_ns=until_ns)
        self.faults.append(fault)
        self._shared.journal.add((self._shared.kernel.now_ns, "fault", fault.kind, fault.text, 0, 0))

    # ---- failpoints -----------------------------------------------------------------------------------------------

    def arm_failpoint(self, name: str, hit: int, action: FailpointAction, restart_after_ns: int) -> None:
        self._shared.points.arm(name, hit, lambda node: self._act(node, name, action, restart_after_ns))

    def _act(self, node: str, name: str, action: FailpointAction, after_ns: int) -> None:
        """Apply the action armed at this failpoint to the node that passes the failpoint."""
        text = f"{action} of {node} at {name}"
        self.note_fault(ExecutedFault("failpoint", text, self.now_ns, self.now_ns + after_ns))
        match action:
            case "crash" | "power-cut":
                if action == "power-cut":
                    self.at(self.now_ns, lambda: self._lose_unsynced(node))
                if after_ns:
                    start = self.start_coordinator if node in self._seats else self.start_host
                    self.at(self.now_ns + after_ns, lambda: start(node))
                raise SimulatedCrash(node)
            case "error":
                raise OSError(errno.EIO, os.strerror(errno.EIO), name)
            case "refuse":
                raise EncodingError(f"the state cannot be saved, says the simulation at {name}")
            case "reset":
                for stream in self._shared.network.streams_of(node):
                    stream.close()
            case "pause" if node in self.hosts:
                self.pause_host(node)
                self.at(self.now_ns + after_ns, lambda: self.resume_host(node))

    @property
    def waits_for_work(self) -> bool:
        """Return whether a kill is armed that will happen during a later turn."""
        return self._shared.points.waits_at(WHEN_WORKING)

    def disarm_failpoints(self) -> None:
        self._shared.points.disarm()

    # ---- the network ----------------------------------------------------------------------------------------------

    def set_delay(self, sender: str, receiver: str, least_ns: int, jitter_ns: int) -> None:
        self._shared.network.set_delay((sender, receiver), least_ns, jitter_ns)

    def set_loss(self, sender: str, receiver: str, per_mille: int) -> None:
        self._shared.network.set_loss((sender, receiver), per_mille)

    def block(self, sender: str, receiver: str) -> None:
        self._shared.network.block((sender, receiver))

    def unblock(self, sender: str, receiver: str) -> None:
        self._shared.network.unblock((sender, receiver))

    def reset_stream(self, one: str, other: str) -> None:
        for stream in self._shared.network.streams_between(one, other):
            stream.close()

    def hold_markers(self, sender: str, receiver: str, is_held: bool) -> None:
        self._shared.network.hold((sender, receiver), is_held)

    def reset_network(self) -> None:
        self._shared.network.reset()

    # ---- hosts ----------------------------------------------------------------------------------------------------

    def crash_host(self, host: str) -> None:
        self._hosts.crash(host)

    def start_host(self, host: str) -> None:
        self._hosts.start(host)

    def pause_host(self, host: str) -> None:
        self._hosts.pause(host)

    def resume_host(self, host: str) -> None:
        self._hosts.resume(host)

    def set_speed(self, host: str, percent: int) -> None:
        self._hosts.set_speed(host, percent)

    def set_hanging(self, host: str, what: HangingCall, is_on: bool) -> None:
        self._hosts.set_hanging(host, what, is_on)

    def leave_host(self, host: str) -> None:
        self._hosts.leave(host)

    def power_cut(self, host: str) -> None:
        self._hosts.crash(host)
        self._lose_unsynced(host)

    def _lose_unsynced(self, node: str) -> None:
        disk = self._shared.stores.disk
        before = disk.used_bytes()
        disk.power_cut(node, self.choices)
        self._shared.judge.probes.sometimes(disk.used_bytes() < before, "unsynced data lost")
        self._store.on_power_cut(node)

    # ---- disks and clocks -----------------------------------------------------------------------------------------

    def set_disk(self, host: str, mode: DiskMode, is_on: bool) -> None:
        self._shared.stores.disk.set_fault(host, mode, is_on)

    def clear_disks(self) -> None:
        self._shared.stores.disk.clear_faults()

    def flip_bit(self, pick: int) -> str:
        """Damage a file of the newest complete epoch. Within the fault budget, an older undamaged epoch must exist."""
        complete = self._log.canonical.complete_epochs()
        whole = [epoch for epoch in complete if not self._store.is_flipped(epoch)]
        if self._shared.scenario.budget == "within" and (len(whole) < 2 or whole[-1] != complete[-1]):
            return ""
        if not complete:
            return ""
        disk = self._shared.stores.disk
        files = [path for path in self._store.files_of(complete[-1]) if path in disk.nodes]
        if not files:
            return ""
        bit, number = divmod(pick, len(files))
        path = files[number]
        self._store.flipped[path] = bit
        disk.flip(path, bit)
        return f"{path} of epoch {complete[-1]}"

    def set_clock(self, host: str, skew_ns: int, drift_ppm: int) -> None:
        self._shared.clocks.set(host, skew_ns=skew_ns, drift_ppm=drift_ppm)

    # ---- the coordinator ------------------------------------------------------------------------------------------

    def leader(self) -> str:
        return self._log.leader

    def crash_coordinator(self, node: str) -> None:
        self._seats[node].crash()

    def start_coordinator(self, node: str) -> None:
        self._seats[node].start()

    def depose(self) -> None:
        self._log.depose()

    def set_unknown(self, per_mille: int) -> None:
        self._log.set_unknown(per_mille)
