"""What faults may do to a simulated world; `executor.Executor` says what each of these means."""

import errno
import os
from collections.abc import Callable

import msgspec

from snapline.errors import EncodingError, SnaplineError
from snapline.sim.faults.executor import WHEN_WORKING, DiskMode, FailpointAction, Hanging
from snapline.sim.faults.faults import schedule
from snapline.sim.result import ExecutedFault
from snapline.sim.world.host import SimHost
from snapline.sim.world.kernel import SimulatedCrash
from snapline.sim.world.notes import WorldNotes
from snapline.sim.world.recording import HostSpan
from snapline.storage import layout

GOODBYE_NS = 100_000_000
"""A host that leaves has so long for its last message."""


class WorldFaults(WorldNotes):
    """The executor of faults."""

    _origin_ns: int
    _armed: dict[str, list[tuple[int, FailpointAction, int]]]
    _run_numbers: dict[str, int]

    def begin_faults(self) -> int:
        """The scenario's clock starts now; returns when its last fault is over, in the world's time."""
        self._origin_ns = self.kernel.now_ns
        return self._origin_ns + max(schedule(self.scenario, self), self.scenario.liveness.heal_ns)

    def _init_faults(self) -> None:
        self._origin_ns = 0
        self._armed = {}
        self._run_numbers = dict.fromkeys(self.hosts, 0)

    # ---- failpoints -----------------------------------------------------------------------------------------------

    def failpoint(self, name: str) -> None:
        """A named point of the product's code is passed by `acting`."""
        self.points[name] = self.points.get(name, 0) + 1
        armed = self._armed.get(name) if self._armed else None
        if not armed or not self.acting:
            return
        due = next((each for each in armed if each[0] == 1), None)
        self._armed[name] = [(hit - 1, *rest) for hit, *rest in armed if hit > 1]  # type: ignore[misc]  # same shape
        if due is not None:
            self._act(name, due[1], due[2])

    def _act(self, name: str, action: FailpointAction, after_ns: int) -> None:
        """What was armed at this point happens to whoever passes it now."""
        node = self.acting
        text = f"{action} of {node} at {name}"
        self.note_fault(ExecutedFault("failpoint", text, self.now_ns, self.now_ns + after_ns))
        match action:
            case "crash":
                if after_ns:
                    start = self.start_coordinator if node in self.seats else self.start_host
                    self.call_at(self.kernel.now_ns + after_ns, lambda: start(node))
                raise SimulatedCrash(node)
            case "error":
                raise OSError(errno.EIO, os.strerror(errno.EIO), name)
            case "refuse":
                raise EncodingError(f"the state cannot be saved, says the simulation at {name}")
            case "reset":
                for stream in self.network.streams_of(node):
                    stream.close()
            case "pause" if node in self.hosts:
                self.pause_host(node)
                self.call_at(self.kernel.now_ns + after_ns, lambda: self.resume_host(node))

    def arm_failpoint(self, name: str, hit: int, action: FailpointAction, restart_after_ns: int) -> None:
        self._armed.setdefault(name, []).append((hit, action, restart_after_ns))

    @property
    def waits_for_work(self) -> bool:
        """Somebody is to be killed in a turn that has not come yet."""
        return bool(self._armed.get(WHEN_WORKING))

    def disarm_failpoints(self) -> None:
        self._armed.clear()

    # ---- the executor ---------------------------------------------------------------------------------------------

    @property
    def now_ns(self) -> int:
        """Of the scenario's clock: faults count from the time at which `begin_faults` was called."""
        return self.kernel.now_ns - self._origin_ns

    def at(self, t_ns: int, call: Callable[[], None]) -> None:
        self.call_at(t_ns + self._origin_ns, call)

    def note_fault(self, fault: ExecutedFault) -> None:
        until_ns = fault.until_ns + self._origin_ns if fault.until_ns else 0
        fault = msgspec.structs.replace(fault, at_ns=fault.at_ns + self._origin_ns, until_ns=until_ns)
        self.faults.append(fault)
        self.journal.add((self.kernel.now_ns, "fault", fault.kind, fault.text, 0, 0))

    def host_of(self, agent: str) -> str:
        record = self.log.canonical.image.agents.get(agent)
        return record.host if record is not None and record.left_plan is None else ""

    def set_delay(self, sender: str, receiver: str, least_ns: int, jitter_ns: int) -> None:
        self.network.set_delay((sender, receiver), least_ns, jitter_ns)

    def set_loss(self, sender: str, receiver: str, per_mille: int) -> None:
        self.network.set_loss((sender, receiver), per_mille)

    def block(self, sender: str, receiver: str) -> None:
        self.network.block((sender, receiver))

    def unblock(self, sender: str, receiver: str) -> None:
        self.network.unblock((sender, receiver))

    def reset_stream(self, one: str, other: str) -> None:
        for stream in self.network.streams_between(one, other):
            stream.close()

    def hold_markers(self, sender: str, receiver: str, is_held: bool) -> None:
        self.network.hold((sender, receiver), is_held)

    def reset_network(self) -> None:
        self.network.reset()

    def crash_host(self, host: str) -> None:
        run = self.runs.get(host)
        if run is None or not run.is_alive:
            return
        self.judge.probes.sometimes(bool(run.carrier.core.epochs), "crash while recording")
        self.judge.probes.sometimes(
            run.carrier.core.plan > 0 and not run.carrier.core.is_loaded, "crash while recovering"
        )
        self.count("piggyback_bytes", run.carrier.core.piggyback_bytes)
        run.die()
        self._record_end(host)
        self.network.close_all(host)
        self.network.wake(host)
        self.disk.crash(host)
        self.journal.add((self.kernel.now_ns, host, "", "crash", 0, 0))

    def start_host(self, host: str) -> None:
        run = self.runs.get(host)
        if run is not None and run.is_alive:
            return
        self._run_numbers[host] += 1
        if self.recording is not None:
            self.recording.hosts.append(HostSpan(host, self.kernel.now_ns))
        self.runs[host] = SimHost(self, host, self._run_numbers[host])
        self.journal.add((self.kernel.now_ns, host, "", "start", self._run_numbers[host], 0))

    def pause_host(self, host: str) -> None:
        run = self.run_of(host)
        if run is not None:
            run.pause()
            self.network.silence(host)

    def resume_host(self, host: str) -> None:
        run = self.run_of(host)
        if run is not None and run.is_paused:
            self.network.wake(host)
            run.resume()

    def set_speed(self, host: str, percent: int) -> None:
        self._speeds[host] = max(1, percent)

    def set_hanging(self, host: str, what: Hanging, is_on: bool) -> None:
        if is_on:
            self.hanging[host, what] = None
        elif (host, what) in self.hanging:
            del self.hanging[host, what]
            run = self.run_of(host)
            if run is not None:
                run.come_back(what)

    def power_cut(self, host: str) -> None:
        self.crash_host(host)
        before = self.disk.used_bytes()
        self.disk.power_cut(host, self.choices)
        self.note_power_cut()
        self.judge.probes.sometimes(self.disk.used_bytes() < before, "unsynced data lost")
        if self._flipped:
            return
        for epoch in self.log.canonical.complete_epochs():
            found, error = self._read_epoch(epoch)
            if found is None:
                self.say("durable", "G4", f"epoch {epoch} was complete, and lost with the power of {host}: {error}")

    def leave_host(self, host: str) -> None:
        run = self.run_of(host)
        if run is not None:
            run.session.leave("drained")
            self.call_at(self.kernel.now_ns + GOODBYE_NS, lambda: self._gone(run))

    def _gone(self, run: SimHost) -> None:
        if self.runs[run.name] is run:
            self.crash_host(run.name)

    def set_disk(self, host: str, mode: DiskMode, is_on: bool) -> None:
        self.disk.set_fault(host, mode, is_on)

    def clear_disks(self) -> None:
        self.disk.clear_faults()

    def note_damage(self, path: str) -> None:
        """The coordinator has found a file that is not what was written."""
        self.judge.probes.sometimes(bool(path) and path not in self._flipped, "torn write found")

    def flip_bit(self, pick: int) -> str:
        """Within the budget an older epoch that is whole must be left."""
        complete = self.log.canonical.complete_epochs()
        whole = [epoch for epoch in complete if not self._is_flipped(epoch)]
        if self.scenario.budget == "within" and (len(whole) < 2 or whole[-1] != complete[-1]):
            return ""
        if not complete:
            return ""
        files = [path for path in self._files_of(complete[-1]) if path in self.disk.nodes]
        if not files:
            return ""
        path = files[pick % len(files)]
        self._flipped[path] = None
        self.disk.flip(path, pick // len(files))
        return f"{path} of epoch {complete[-1]}"

    def _files_of(self, epoch: int) -> list[str]:
        root = self.log.canonical.image.epochs[epoch].root
        try:
            packs = [pack.path for pack in self.reader.read_manifest(root, epoch=epoch).packs]
        except SnaplineError:
            packs = []
        return [layout.ref_path(epoch), layout.manifest_path(root), *packs]

    def _is_flipped(self, epoch: int) -> bool:
        return any(path in self._flipped for path in self._files_of(epoch))

    def set_clock(self, host: str, skew_ns: int, drift_ppm: int) -> None:
        self._clocks[host] = (skew_ns, drift_ppm, self.kernel.now_ns)

    def leader(self) -> str:
        return self.log.leader

    def crash_coordinator(self, node: str) -> None:
        seat = self.seats[node]
        if seat.is_up:
            seat.crash()
            self.network.close_all(node)
            self.log.crash(node)
            self.disk.crash(node)
            self.journal.add((self.kernel.now_ns, node, "", "crash", 0, 0))

    def start_coordinator(self, node: str) -> None:
        seat = self.seats[node]
        if not seat.is_up:
            seat.is_up = True
            self.log.start(node)
            self.journal.add((self.kernel.now_ns, node, "", "start", 0, 0))

    def depose(self) -> None:
        self.log.depose()

    def set_unknown(self, per_mille: int) -> None:
        self.log.set_unknown(per_mille)

    def complete_fleet(self) -> None:
        """A fleet that has never begun waits for all its hosts: those that have left for good are needed once."""
        if self.log.canonical.plan is None:
            for host in self.hosts[: self.hosts_expected]:
                self.start_host(host)
