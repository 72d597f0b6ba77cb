"""A simulated fleet in virtual time. The product's own cores and drivers for agents, leader and store run on a simulated network and a
simulated disk.

All decisions are made by the product's code. This package simulates only the environment of the product's code. The package consists of
these parts, which share one state (`world_state.py`):

- Hosts can crash and restart (`hosts.py`, `host.py`).
- Links and streams can break (`network.py`, `host_streams.py`).
- Replicas of the coordinator (`simulated_replica.py`) use a model of the replicated log (`replicated_log.py`).
- The disk can lose unsynced data (`disk.py`).

`SimExecutor` executes faults. `world_observer.py` reports all actions of hosts, coordinators and the log to the judge, which checks them.
The other modules check nothing themselves. `PendingWork` determines which work is left, whether the fleet is idle, and which agents cannot
continue.

The simulation has some limits, which are also stated in the user documentation. Raft is simulated only at the level of its log interface. A
blocking store call takes effect at a single instant, and can be interrupted only at failpoints. All hosts share one store, as in
production.
"""

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from snapline.agent_runtime.host.host_state import LocalAgent
from snapline.coordinator.leader.events import MovesRequested
from snapline.coordinator.state.fleet_records import RUNNING, OperationResult
from snapline.coordinator.state.operations import CommitPlan
from snapline.errors import EncodingError
from snapline.messages.status import Standing
from snapline.protocols.names import is_autonomous
from snapline.protocols.policy import Every
from snapline.sim.choices import Choices
from snapline.sim.faults.fault_executor import WHEN_WORKING, DiskMode, FailpointAction, HangingCall
from snapline.sim.faults.faults import schedule
from snapline.sim.oracles.input_output_oracles import flat
from snapline.sim.oracles.line_oracles import Frozen
from snapline.sim.result import ExecutedFault
from snapline.sim.scenario import Scenario, joining_hosts, reads_outputs
from snapline.sim.workloads.workload import Workload
from snapline.sim.world.approver import SimApprover
from snapline.sim.world.clients import Clients
from snapline.sim.world.hosts import Hosts
from snapline.sim.world.kernel import START_OF_TIME_NS, Journal, SimulatedCrash
from snapline.sim.world.operators import MovesOperator, RestoreOperator, SimOperator, SimReader
from snapline.sim.world.recording import Recording
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.simulated_replica import SimLeader, SimulatedReplica
from snapline.sim.world.world_observer import WorldObserver
from snapline.sim.world.world_state import WorldState
from snapline.storage.log.answer_files import RecordedAnswers, read_export


class SimExecutor:
    """Executes faults in virtual time."""

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
        """Start the scenario's clock at the current time. Return the time on the world's clock when all faults must be healed."""
        self._origin_ns = self._shared.kernel.now_ns
        return self._origin_ns + max(schedule(self._shared.scenario, self), self._shared.scenario.liveness.heal_ns)

    @property
    def now_ns(self) -> int:
        """Return the current time on the scenario's clock, which starts when `begin` is called."""
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
        """Apply an armed action to the node that has reached the failpoint."""
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
        """Return whether a fault is armed that waits for a later turn."""
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
        """Damage one file of the newest complete epoch. Return a description of the damage, or "" if there was none. If the fault budget
        applies, a file is damaged only if there is an older undamaged epoch."""
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


REST_NS = 1_000_000_000
"""Time without a turn after which a fleet counts as idle. It is longer than a message's delay on any drawn network."""


class PendingWork:
    """Determines which work is left in the fleet. This class never changes the fleet.

    Attributes:
        finished_ns: time when the workload was done, or 0 if it is not done yet.
    """

    def __init__(self, shared: WorldState, log: SimulatedLog, hosts: Hosts, notes: WorldObserver) -> None:
        self.finished_ns = 0
        self._shared = shared
        self._workload = shared.workload
        self._log = log
        self._hosts = hosts
        self._notes = notes
        self._stuck: dict[str, tuple[str, int, int]] | None = None

    def states(self) -> dict[str, object]:
        """Return the state of every live agent that is loaded by a running host."""
        live_states: dict[str, object] = {}
        for agent, record in self._log.canonical.living_agents():
            run = self._hosts.run_of(record.host)
            if run is not None and agent in run.driver.core.agents and run.driver.turns.has(agent):
                live_states[agent] = run.driver.turns.object_of(agent).state
        return live_states

    def resting(self) -> list[str]:
        """Return the agents on hosts that follow the newest plan, except failed agents and agents in a turn."""
        plan = self._log.canonical.plan_number
        cores = [run.driver.core for run in self._hosts.alive() if run.driver.core.plan == plan]
        agents = [agent for core in cores if core.is_loaded for agent in core.agents.values()]
        return [agent.id for agent in agents if not agent.is_busy and agent.turn is None and not agent.is_failed]

    def blocked(self) -> dict[str, str]:
        """Return the problem of each durable turn that cannot continue, by agent."""
        agents = [agent for run in self._hosts.alive() for agent in run.driver.core.agents.values()]
        return {agent.id: agent.turn.problem for agent in agents if agent.turn is not None and agent.turn.problem}

    def heard(self) -> list[str]:
        """Return the agents that must have received all their messages once the fleet is idle. The list is empty if the fleet has ended."""
        state = self._log.canonical
        return [] if state.image.outcome else [agent for agent, _ in state.living_agents()]

    def is_idle(self) -> bool:
        """Return whether no host has anything to do or to wait for, such as turns, messages or timers."""
        plan = self._log.canonical.plan
        for run in self._hosts.alive():
            core = run.driver.core
            if run.driver.queue or (not core.is_loaded and plan is not None and run.name in plan.hosts):
                return False
            for agent in core.agents.values():
                if agent.mailbox or agent.parked or agent.is_busy or agent.spawns:
                    return False
                if agent.deferred or agent.timers or agent.stash or _is_going_on(agent):
                    return False
        return True

    def _is_on_the_way(self) -> bool:
        """Return whether any message has not been consumed yet by a receiver that is alive."""
        cores = [run.driver.core for run in self._hosts.alive()]
        receivers = {name: agent for core in cores for name, agent in core.agents.items()}
        return any(_is_awaited(agent, receivers) for core in cores for agent in core.agents.values())

    def pending(self, since_ns: int) -> list[str]:
        """Describe each required event that has not happened yet. `since_ns` is the time when all faults had ended."""
        state = self._log.canonical
        missing = []
        if state.image.outcome:
            return [] if state.image.outcome == "stopped" else [f"the fleet has failed: {state.image.ending}"]
        if state.phase != RUNNING:
            missing.append(f"the fleet is {state.phase}")
        fleet = self._workload.fleet
        has_completed = any(at >= since_ns for at in self._notes.log.completed_ns.values())
        is_at_rest = self._is_done()
        # Under an autonomous protocol, an idle agent has nothing to save.
        saves_at_rest = not is_autonomous(fleet.protocol)
        if fleet.period_ns and not has_completed and (saves_at_rest or not is_at_rest):
            missing.append("no epoch has completed")
        elif is_at_rest:
            missing += self._beyond_line()
        old = [
            epoch for epoch in state.open_epochs() if state.image.epochs[epoch].begun_ns < START_OF_TIME_NS + since_ns
        ]
        if old:
            missing.append(f"epochs {old} are open")
        if unanswered := self._notes.questions.unanswered(since_ns):
            missing.append(f"nobody has answered questions {unanswered} for a snapshot")
        if self._workload.ends and not missing and not self._is_done():
            missing.append("the workload is not done")
        if stop_reason := self._shared.judge.required_stop_reason():
            missing.append(stop_reason)
        self._stuck = self._still_stuck() if not missing else None
        return missing + [f"agent {agent} {why[0]}, for ever" for agent, why in (self._stuck or {}).items()]

    def _still_stuck(self) -> dict[str, tuple[str, int, int]]:
        """Return the agents that cannot take turns, and whose situation has not changed since the first check at which nothing else was
        missing. Each value is (problem, number of turns, number of checkpoints)."""
        now = {}
        for agent, record in self._log.canonical.living_agents():
            run = self._hosts.run_of(record.host)
            local_agent = run.driver.core.agents.get(agent) if run is not None else None
            if local_agent is None:
                now[agent] = ("is nowhere", 0, 0)
            elif not local_agent.is_born:
                now[agent] = ("is not born", 0, 0)
            elif local_agent.is_held:
                now[agent] = ("is held", self._shared.judge.turns_of(agent), local_agent.checkpoints)
        before = now if self._stuck is None else self._stuck
        return {agent: why for agent, why in now.items() if before.get(agent) == why}

    def _beyond_line(self) -> list[str]:
        """Describe the agents with turns that no complete epoch contains, in an idle fleet with periodic checkpoints. Other checkpoint
        triggers may leave turns unsaved."""
        if not any(isinstance(trigger, Every) for trigger in self._workload.fleet.triggers):
            return []
        behind = self._shared.judge.beyond_line()
        text = (
            f"all is at rest, and no complete epoch holds what {len(behind)} agents did last: {', '.join(behind[:3])}"
        )
        return [text] if behind else []

    def _is_done(self) -> bool:
        if not self.is_idle() or self._is_on_the_way():
            return False
        living = [agent for agent, _ in self._log.canonical.living_agents()]
        states = self.states()
        done = len(states) == len(living) and self._workload.is_done(states)
        if done and not self.finished_ns:
            self.finished_ns = self._shared.figures.last_turn_ns
        return done

    def is_at_rest(self) -> bool:
        """Return whether the fleet has ended, or is idle and has taken no turn for a while."""
        if self._log.canonical.image.outcome:
            return True
        rests = self._shared.kernel.now_ns > self._shared.figures.last_turn_ns + REST_NS
        return self._log.canonical.phase == RUNNING and self.is_idle() and rests

    def ignored_rollback_requests(self, since_ns: int) -> list[str]:
        """Return the agents whose rollback request from before `since_ns` has been neither executed nor refused, although the fleet is
        running."""
        asked = self._shared.judge.ground_truth.rollbacks.asked
        agents = []
        for run in self._hosts.alive() if self._log.canonical.phase == RUNNING else ():
            rollbacks = run.driver.core.turn_ends.rollbacks
            waiting = [request for agent, request in rollbacks.wanted.items() if agent not in rollbacks.refused]
            agents += [x.agent for x in waiting if asked.get((x.agent, x.incarnation), since_ns) < since_ns]
        return agents

    def work_owed(self) -> str:
        """Describe how many turns a fleet without a known end still has to take. Return "" if the fleet has taken enough turns or is
        idle."""
        turns, taken = self._shared.scenario.run.turns, self._shared.figures.turns
        if self._workload.ends or taken >= turns or self.is_at_rest():
            return ""
        return f"{taken} of {turns} turns were taken"


def _is_awaited(sender: LocalAgent, there: Mapping[str, LocalAgent]) -> bool:
    """Return whether a message from `sender` has not been consumed yet by a receiver that is alive."""
    for name, outlet in sender.outlets.items():
        receiver = there.get(name)
        if receiver is not None:
            inlet = receiver.inlets.get(sender.id)
            if outlet.number != (0 if inlet is None else inlet.consumed):
                return True
    return False


def _is_going_on(agent: LocalAgent) -> bool:
    """Return whether the agent is in a durable turn that will continue without another message."""
    turn = agent.turn
    is_unfinished = turn is not None and (
        turn.waits is None or not turn.is_live or turn.waits.kind in ("step", "effect")
    )
    return is_unfinished and turn is not None and not turn.problem


class World:
    """The simulated world of one run. The constructor creates and connects all its components."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        choices: Choices,
        workload: Workload,
        *,
        recording: Recording | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.shared = shared = WorldState(scenario, seed, choices, workload, recording=recording, journal=journal)
        self.log = SimulatedLog(
            shared.coordinators,
            at=shared.call_at,
            now=lambda: shared.kernel.now_ns,
            choices=choices,
            delay_ns=self._raft_delay_ns,
            on_standing=self._on_standing,
            on_committed=self._on_committed,
        )
        self._raft_messages = 0
        self._release_awaited: int | None = None
        self.notes = WorldObserver(shared, self.log, self._frozen)
        self.notes.log.on_running.append(self._ask_soon)
        restorer = RestoreOperator(shared, self.log, self._leader, self._was_rollback_refused, self._is_calling)
        self.notes.on_restore_answered = restorer.on_answered
        self.notes.log.on_running.append(restorer.start)
        mover = MovesOperator(shared, self.log, self._tell_leader)
        self.notes.on_moves_answered = mover.on_answered
        self.notes.log.on_running.append(mover.start)
        self.replicas = {node: SimulatedReplica(shared, self.log, self.notes, node) for node in shared.coordinators}
        self.hosts = Hosts(shared, self.notes, self.replicas)
        self.executor = SimExecutor(shared, self.log, self.replicas, self.hosts, self.notes)
        self.clients = Clients(shared, self.log, self.hosts)
        self.operator = SimOperator(shared, self.log, self.hosts)
        self.approver = SimApprover(shared, self.log, self.hosts)
        self.reader = SimReader(shared, shared.stores.reader, lambda: bool(self.notes.store.flipped))
        self.pending_work = PendingWork(shared, self.log, self.hosts, self.notes)
        self._start()

    def _start(self) -> None:
        fleet = self.shared.scenario.fleet
        if fleet.answers:
            is_complete = self.shared.workload.fleet.simulate is None
            self.shared.stores.reader.record_answers(RecordedAnswers(read_export(Path(fleet.answers)), is_complete))
        for node in self.shared.coordinators:
            self.log.start(node)
        joining = joining_hosts(self.shared.scenario)
        for host in self.shared.hosts:
            if host not in joining:
                self.hosts.start(host)
        self.clients.start()
        self.operator.start()
        self.approver.start()
        self.reader.start()

    # ---- the log --------------------------------------------------------------------------------------------------

    def _raft_delay_ns(self, one: str, other: str) -> int | None:
        self._raft_messages += 1
        return self.shared.network.path_ns(one, other, ("raft", one, other, self._raft_messages))

    def _on_standing(self, node: str, standing: Standing) -> None:
        self.notes.log.on_standing(node, standing)
        self.replicas[node].on_standing(standing)

    def _on_committed(self, index: int, node: str, entry: bytes, result: OperationResult) -> None:
        self.notes.log.on_committed(index, node, entry, result)

    def _frozen(self, request: tuple[str, int], kind: CommitPlan) -> list[Frozen]:
        """Return the freezes of all hosts that froze in time for a plan, and of hosts that could still have done so."""
        leaders = [replica.leader for replica in self.replicas.values() if replica.leader is not None]
        return [
            self._awaited(each) if each.is_awaited else each
            for leader in leaders
            for each in leader.freezes.in_time(request, kind.hosts)
        ]

    def _awaited(self, frozen: Frozen) -> Frozen:
        """Complete the freeze of a host that could still have answered. All agents of the host's current run that are not in a turn count
        as frozen."""
        run = self.hosts.run_of(frozen.host)
        if run is None or run.driver.core.plan != frozen.plan:
            return frozen
        core = run.driver.core
        frozen_agents = [x.id for x in core.agents.values() if not x.is_busy and x.is_born and not x.is_failed]
        self.shared.judge.on_frozen(frozen.host, core.start, frozen.plan, frozen.number, frozen_agents)
        return replace(frozen, start=core.start)

    # ---- users of the fleet ---------------------------------------------------------------------------------------

    def when_running(self, call: Callable[[], None]) -> None:
        """Schedule a call for the time when the fleet starts to work."""
        self.notes.log.on_running.insert(0, call)

    def _ask_soon(self) -> None:
        self.shared.call_at(self.shared.kernel.now_ns, self._ask_for_snapshots)

    def _ask_for_snapshots(self) -> None:
        every_ns = self.shared.scenario.run.snapshots_every_ns
        if not every_ns:
            return
        leader = self._leader()
        if leader is not None:
            self.notes.questions.put(leader)
        self.shared.call_at(self.shared.kernel.now_ns + every_ns, self._ask_for_snapshots)

    def _leader(self) -> SimLeader | None:
        return next((replica.leader for replica in self.replicas.values() if replica.leader is not None), None)

    def _tell_leader(self, wanted: MovesRequested) -> None:
        leader = self._leader()
        if leader is not None:
            leader.tell(wanted)

    def _was_rollback_refused(self) -> bool:
        return any(run.driver.core.turn_ends.rollbacks.refused for run in self.hosts.alive())

    def _is_calling(self) -> bool:
        agents = [agent for run in self.hosts.alive() for agent in run.driver.core.agents.values()]
        return any(agent.effects is not None and agent.effects.is_called for agent in agents)

    def complete_fleet(self) -> None:
        """Start all initial hosts of a fleet that has never started to work. Such a fleet needs every initial host once, even a host that
        has left permanently."""
        if self.log.canonical.plan is None:
            for host in self.shared.hosts[: self.shared.scenario.fleet.hosts]:
                self.hosts.start(host)

    def missing_releases(self) -> list[str]:
        """Describe outputs that have not been released yet. Only epochs up to the newest epoch that was complete at the first call are
        considered.

        Later epochs are ignored, because if epochs are frequent, there is always another new epoch.
        """
        if self._release_awaited is None:
            self._release_awaited = self.log.canonical.newest_complete()
        return [] if self._has_released(self._release_awaited) else ["outputs are not released"]

    def is_released(self) -> bool:
        """Return whether the outputs of all complete epochs have been released, so that they can be checked."""
        return self._has_released(self.log.canonical.newest_complete())

    def _has_released(self, epoch: int) -> bool:
        is_over = bool(self.log.canonical.image.outcome)
        leaders = [replica.leader for replica in self.replicas.values() if replica.leader is not None]
        return is_over or any(leader.has_released(epoch) for leader in leaders)

    # ---- checks ---------------------------------------------------------------------------------------------------

    def check_outputs(self) -> None:
        """Check that all release files still exist, and that the reader has read exactly the outputs that were released."""
        if self.notes.store.flipped or not reads_outputs(self.shared.scenario):
            return
        oracle = self.shared.judge.ground_truth.outputs
        oracle.check_files(self.shared.kernel.now_ns, self.notes.store.releases())
        had, released = flat(self.reader.read()), flat(oracle.had)
        if had != released:
            text = f"a reader has had {len(had)} outputs, and {len(released)} are released and not taken back"
            self.shared.say("reader", "R2", text)

    def validate(self) -> None:
        """Check the invariants of all cores. Raise AssertionError if an invariant is violated."""
        for run in self.hosts.alive():
            run.driver.core.validate()
        self.clients.validate()
        self.log.canonical.validate()

    def probe_at_end(self) -> None:
        """Record the probes that can be evaluated only at the end of the run."""
        probes, refused = self.shared.judge.probes, self.shared.stores.disk.refused
        probes.sometimes(errno.ENOSPC in refused, "disk full")
        probes.sometimes(errno.EIO in refused, "disk failed")
        faults = self.executor.faults
        probes.sometimes(any(each.kind == "coordinator" and "quorum" in each.text for each in faults), "quorum lost")
