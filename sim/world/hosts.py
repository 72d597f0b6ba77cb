"""The hosts of a simulated world. Hosts can start, crash, pause, slow down, hang, leave the fleet and come back."""

import contextlib
from collections.abc import Mapping

from snapline.agent_runtime.host.driver_interfaces import RunTurn
from snapline.agent_runtime.host.host_events import Event, StartTurn
from snapline.agent_runtime.host.turn_marks import limit_of, mark_of
from snapline.sim.faults.fault_executor import HangingCall
from snapline.sim.workloads.dead_letter_patterns import ProcessKilled
from snapline.sim.world.host import BLOCKED, STOPPED, SimHost
from snapline.sim.world.host_streams import ReplicaSession
from snapline.sim.world.kernel import SimulatedCrash
from snapline.sim.world.recording import HostSpan
from snapline.sim.world.steps import Steps, StubServices
from snapline.sim.world.world_observer import WorldObserver
from snapline.sim.world.world_state import WorldState

RESTART_NS = 500_000_000
"""Delay in nanoseconds after which the launcher restarts a host that exited before the fleet ended."""

GOODBYE_NS = 100_000_000
"""Time in nanoseconds that a leaving host has to send its last message."""


class Hosts:
    """All hosts of a simulated world.

    Attributes:
        runs: the current run of each host, or the latest run if the host is down.
    """

    def __init__(self, shared: WorldState, notes: WorldObserver, replicas: Mapping[str, ReplicaSession]) -> None:
        self.runs: dict[str, SimHost] = {}
        self.steps = Steps(StubServices(shared))
        self._shared = shared
        self._notes = notes
        self._replicas = replicas
        self._starts = dict.fromkeys(shared.hosts, 0)
        self._speeds: dict[str, int] = {}
        self._hanging: dict[tuple[str, HangingCall], None] = {}

    # ---- for runs -------------------------------------------------------------------------------------------------

    def alive(self) -> list[SimHost]:
        """Return the current run of each host that is up."""
        return [run for run in self.runs.values() if run.is_alive]

    def run_of(self, host: str) -> SimHost | None:
        """Return the current run of a host, or None if the host is down."""
        run = self.runs.get(host)
        return run if run is not None and run.is_alive else None

    def speed_of(self, host: str) -> int:
        """Return the host's speed in percent."""
        return self._speeds.get(host, 100)

    def hangs(self, host: str, what: HangingCall) -> bool:
        """Return whether calls of this kind currently hang on the host."""
        return (host, what) in self._hanging

    def ended(self, run: SimHost) -> None:
        """Handle a run that has exited without a crash. Unless the fleet has ended, the launcher restarts the host."""
        if not run.is_alive:
            return
        self._end_run(run)
        if not self._notes.log.is_over():
            self._shared.call_at(self._shared.kernel.now_ns + RESTART_NS, lambda: self.start(run.name))

    def _with_process_kills(self, run: SimHost, run_turn: RunTurn) -> RunTurn:
        """Wrap `run_turn` so that a turn can kill the process of its host. After a killed turn, the turn's mark stays in place, and the
        launcher restarts the host."""

        def watched(turn: StartTurn) -> Event | None:
            try:
                return run_turn(turn)
            except ProcessKilled:
                limit = limit_of(run.driver.turns.type_of(turn.agent))
                mark = mark_of(turn.agent, turn.what, turn.sender, turn.payload, limit)
                self._notes.died[run.name] = run.instance, (mark.death(is_in_thread=False),)
                self._shared.judge.probes.hit("process killed by a message")
                self._shared.call_at(self._shared.kernel.now_ns + RESTART_NS, lambda: self._start_again(run))
                raise SimulatedCrash(run.name) from None

        return watched

    def _start_again(self, run: SimHost) -> None:
        if self.runs[run.name] is run and not self._notes.log.is_over():
            self.start(run.name)

    def forget(self) -> None:
        """Stop all waiting handlers at the end of a run, including the threads of graphs. The garbage collector might never stop them."""
        for run in self.alive():
            with contextlib.suppress(Exception):  # a handler may refuse to stop
                run.driver.stop()

    def _end_run(self, run: SimHost) -> None:
        run.die()
        for span in self._shared.recording.hosts if self._shared.recording is not None else ():
            if span.host == run.name and not span.until_ns:
                span.until_ns = self._shared.kernel.now_ns
        self._shared.network.close_all(run.name)

    # ---- for faults -----------------------------------------------------------------------------------------------

    def start(self, host: str) -> None:
        """Start the host. Do nothing if the host is already up."""
        if self.run_of(host) is not None:
            return
        shared = self._shared
        self._starts[host] += 1
        if shared.recording is not None:
            shared.recording.hosts.append(HostSpan(host, shared.kernel.now_ns))
        run = self.runs[host] = SimHost(shared, self._notes, self._replicas, self, host, self._starts[host])
        run.driver.wrap_turns(lambda run_turn: self._with_process_kills(run, run_turn))
        shared.journal.add((shared.kernel.now_ns, host, "", "start", self._starts[host], 0))

    def crash(self, host: str) -> None:
        """Crash the host. Do nothing if the host is already down."""
        run = self.run_of(host)
        if run is None:
            return
        shared, core = self._shared, run.driver.core
        shared.judge.probes.sometimes(core.mode.standing().open_epochs > 0, "crash while recording")
        shared.judge.probes.sometimes(core.plan > 0 and not core.is_loaded, "crash while recovering")
        shared.figures.count("piggyback_bytes", core.shared.counts.piggyback_bytes)
        self._end_run(run)
        shared.network.wake(host)
        shared.stores.disk.crash(host)
        shared.journal.add((shared.kernel.now_ns, host, "", "crash", 0, 0))

    def leave(self, host: str) -> None:
        """Make a host leave the fleet and exit. Do nothing if the host is down."""
        run = self.run_of(host)
        if run is not None:
            run.session.leave("drained")
            self._shared.call_at(self._shared.kernel.now_ns + GOODBYE_NS, lambda: self._gone(run))

    def _gone(self, run: SimHost) -> None:
        if self.runs[run.name] is run:
            self.crash(run.name)

    def pause(self, host: str) -> None:
        """Pause the host. Do nothing if the host is down."""
        run = self.run_of(host)
        if run is not None:
            run.pause(STOPPED)
            self._shared.network.silence(host)

    def resume(self, host: str) -> None:
        """Resume the host. Do nothing if the host is down or not paused."""
        run = self.run_of(host)
        if run is not None and STOPPED in run.stops:
            self._shared.network.wake(host)
            run.resume(STOPPED)

    def set_speed(self, host: str, percent: int) -> None:
        """Set the host's speed as a percentage of the normal speed."""
        self._speeds[host] = max(1, percent)

    def set_hanging(self, host: str, what: HangingCall, is_on: bool) -> None:
        """Make calls of this kind hang on the host. If `is_on` is False, stop the hang, so that these calls return."""
        run = self.run_of(host)
        # A blocked handler affects only the current run, because a restarted host is no longer in that turn.
        if what == "loop" and run is not None:
            if is_on:
                run.block()
            else:
                run.resume(BLOCKED)
        elif is_on:
            self._hanging[host, what] = None
        elif (host, what) in self._hanging:
            del self._hanging[host, what]
            if run is not None:
                run.release_hung_calls(what)
