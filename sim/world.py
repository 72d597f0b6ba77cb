"""A fleet in virtual time: production cores, carriers, agents, leader and store, in a simulated network on a simulated disk.

What decides is the product. What surrounds it is here: hosts that die and come back (`host.py`), links and streams that break
(`network.py`, `links.py`, `session.py`), replicas of the coordinator (`seat.py`) on a model of their log (`replicated_log.py`), a
disk that forgets what was not synced (`disk.py`). The world carries faults out (`executor.py`) and tells the judge
(`oracles/judge.py`) what it sees; it judges nothing itself.

Limits, which the user documentation states: Raft is simulated at its log's interface; blocking store calls happen at one
instant, and are interrupted at failpoints only; all hosts share one store, as in production.
"""

import errno
import os
import traceback
from collections.abc import Callable, Hashable, Mapping
from random import Random

from snapline.agent_runtime.cut import Cut
from snapline.agent_runtime.encoding import encode_body
from snapline.channels.frame import Frame
from snapline.coordinator import leader_events as le
from snapline.coordinator import operations as op
from snapline.coordinator.fleet_records import RUNNING, ProposalOutcome, Result
from snapline.coordinator.operations import decode_operation
from snapline.errors import SnaplineError
from snapline.protocols.names import is_autonomous, is_logged
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.sim.choices import Choices, stream_of
from snapline.sim.disk import VirtualDisk
from snapline.sim.executor import DiskMode, FailpointAction
from snapline.sim.host import SimHost, Watched
from snapline.sim.kernel import Journal, Kernel, SimulatedCrash
from snapline.sim.network import DELAY_STEPS, Network
from snapline.sim.oracles.judge import Judge
from snapline.sim.recording import EpochSpan, HostSpan, Recording
from snapline.sim.replicated_log import ReplicatedLog, Standing
from snapline.sim.result import ExecutedFault, Violation
from snapline.sim.scenario import Scenario, coordinator_names, host_names, joining_hosts
from snapline.sim.seat import Seat
from snapline.sim.steps import NotSimulatedError, Steps
from snapline.sim.tracing import SharedTrace
from snapline.sim.workloads.workload import Workload
from snapline.storage import layout
from snapline.storage.checkpoint import AgentCheckpoint
from snapline.storage.store import Store

START_OF_TIME_NS = 1_700_000_000_000_000_000
"""What wall clocks show at first."""

RESTART_NS = 500_000_000
"""A launcher starts a host again that ended although the fleet has not."""

GOODBYE_NS = 100_000_000
"""A host that leaves has so long for its last message."""

SLOW_FACTOR = 100
"""A slow disk takes so many times as long."""

CLOCKS_AGENTS_MAX = 16
"""Vector clocks cost as much as there are agents, for each turn: beyond this only counts are compared."""


class World:
    """One run. See `executor.Executor` for what faults may do to it.

    Attributes:
        kernel, network, disk, log: of this run.
        judge: the oracles.
        runs: host → its present or last run.
        is_quiet, finished_ns: whether and when the workload was done.
        misuse, failure: why the run is broken: the user's code, or ours.
    """

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
        self.scenario = scenario
        self.seed = seed
        self.choices = choices
        self.workload = workload
        self.fleet = workload.fleet
        self.recording = recording
        self.journal = journal or Journal()
        self.core_type = Watched
        self.kernel = Kernel()
        self.hosts = host_names(scenario)
        self.coordinators = coordinator_names(scenario)
        self.agents = tuple(self.fleet.agents)
        self.hosts_expected = scenario.fleet.hosts
        self.keep_epochs = max(2, scenario.run.keep_epochs)
        self.rejoin_grace_ns = scenario.run.rejoin_grace_ns
        self.turns_in_a_row = scenario.run.turns_in_a_row
        delay = scenario.network.delay
        self.network = Network(self.kernel, choices, least_ns=delay.least_ns, jitter_ns=delay.jitter_ns)
        self.steps = Steps()
        self.judge = self._make_judge()
        self.trace = SharedTrace(self, recording) if recording is not None else None
        self.acting = ""
        self.turns = 0
        self.faults: list[ExecutedFault] = []
        self.counts: dict[str, float] = {}
        self.points: dict[str, int] = {}
        self.notes: list[tuple[int, str, str, str]] = []
        self.runs: dict[str, SimHost] = {}
        self.exit_code: int | None = None
        self.misuse = ""
        self.failure: BaseException | None = None
        self.finished_ns = 0
        self.completed_ns: dict[int, int] = {}
        self._run_numbers = dict.fromkeys(self.hosts, 0)
        self._speeds: dict[str, int] = {}
        self._clocks: dict[str, tuple[int, int, int]] = {}
        self._randoms: dict[str, Random] = {}
        self._raft_messages = 0
        self._proposals = 0
        self._lost_ns = 0
        self._flipped: dict[str, None] = {}
        self._armed: dict[str, list[tuple[int, FailpointAction, int]]] = {}
        self._packs: dict[str, list[tuple[str, int]]] = {}
        self._store_delay = (scenario.store.delay.least_ns, scenario.store.delay.jitter_ns)
        self._make_store()
        self.seats = {node: Seat(self, node) for node in self.coordinators}
        self.log = ReplicatedLog(
            self.coordinators,
            at=self.at,
            now=lambda: self.kernel.now_ns,
            choices=choices,
            delay_ns=self._raft_delay_ns,
            on_standing=self._on_standing,
            on_committed=self._on_committed,
        )
        for node in self.coordinators:
            self.log.start(node)
        late = joining_hosts(scenario)
        for host in self.hosts:
            if host not in late:
                self.start_host(host)

    def _make_judge(self) -> Judge:
        count = len(self.agents)
        return Judge(
            protocol=self.fleet.protocol,
            agents=self.agents,
            budget=self.scenario.budget,
            with_clocks=count <= CLOCKS_AGENTS_MAX,
            with_replay=count <= CLOCKS_AGENTS_MAX,
            check_cut=self._check_cut,
            fleet=self.fleet,
        )

    def _check_cut(self, cut: Cut) -> str | None:
        return self.workload.check_cut(cut)

    def _make_store(self) -> None:
        self.disk = VirtualDisk(lambda: self.kernel.now_ns)
        self._bytes = stream_of(self.seed, "ids")
        store = Store.create("", disk=self.disk.reader(), random_bytes=self.random_bytes)
        self.store_id = store.store_id
        self.reader = Store(self.disk.reader(), self.store_id, random_bytes=self.random_bytes)

    # ---- what hosts and seats ask for -----------------------------------------------------------------------------

    def random_bytes(self, count: int) -> bytes:
        """For names of files: any, as long as they differ."""
        return int(self._bytes.random() * (1 << 53)).to_bytes(7, "big").rjust(count, b"\0")

    def random_of(self, agent: str) -> float:
        """What `ctx.random()` says: a stream for each agent, so that another order of turns draws the same."""
        random = self._randoms.get(agent)
        if random is None:
            random = self._randoms[agent] = stream_of(self.seed, f"agent/{agent}")
        return random.random()

    def store_of(self, node: str) -> Store:
        return Store(self.disk.of(node), self.store_id, random_bytes=self.random_bytes)

    def store_ns(self, node: str, key: Hashable) -> int:
        """How long one call of the store takes."""
        least_ns, jitter_ns = self._store_delay
        cost_ns = least_ns + jitter_ns * self.choices.pick("storage", (key,), DELAY_STEPS) // DELAY_STEPS
        return cost_ns * SLOW_FACTOR if self.disk.is_slow(node) else cost_ns

    def wall_ns(self, node: str) -> int:
        now_ns = self.kernel.now_ns
        if not self._clocks or node not in self._clocks:
            return START_OF_TIME_NS + now_ns
        skew_ns, drift_ppm, since_ns = self._clocks[node]
        return START_OF_TIME_NS + now_ns + skew_ns + (now_ns - since_ns) * drift_ppm // 1_000_000

    def speed_of(self, host: str) -> int:
        return self._speeds.get(host, 100) if self._speeds else 100

    def run_of(self, host: str) -> SimHost | None:
        """The run of a host that answers on its port."""
        run = self.runs.get(host)
        return run if run is not None and run.is_alive else None

    def is_up(self, node: str) -> bool:
        return self.seats[node].is_up

    def seat(self, node: str) -> Seat:
        return self.seats[node]

    def trace_of(self, run: SimHost) -> "SharedTrace | None":
        return self.trace.of(run) if self.trace is not None else None

    def _raft_delay_ns(self, one: str, other: str) -> int | None:
        self._raft_messages += 1
        return self.network.path_ns(one, other, ("raft", one, other, self._raft_messages))

    def count(self, name: str, amount: float = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount

    # ---- what they tell -------------------------------------------------------------------------------------------

    def misused(self, why: str) -> None:
        """The user's code cannot be simulated."""
        self.misuse = self.misuse or why
        self.kernel.is_over = True

    def core_failed(self, node: str, error: BaseException) -> None:
        """A core of the product raised: that is a bug found, unless it is the user's."""
        if isinstance(error, SimulatedCrash):
            return
        if isinstance(error, NotSimulatedError):
            self.misused(str(error))
            return
        self.failure = error
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{node}: {type(error).__name__}: {error} ({where.name}, {where.filename.rpartition('/')[2]}:{where.lineno})"
        self.say("core", "core", text)
        self.kernel.is_over = True

    def say(self, oracle: str, guarantee: str, text: str) -> None:
        """Something is wrong that the world itself has seen."""
        self.judge.violations.append(Violation(oracle, guarantee, self.kernel.now_ns, text))

    def host_ended(self, run: SimHost) -> None:
        """A host has ended by itself."""
        if not run.is_alive:
            return
        run.die()
        self._record_end(run.name)
        self.network.close_all(run.name)
        if self.exit_code is None and not self.log.canonical.image.outcome:
            self.at(self.kernel.now_ns + RESTART_NS, lambda: self.start_host(run.name))

    def fleet_ended(self, exit_code: int) -> None:
        """The leader says that the fleet's run is over."""
        self.exit_code = exit_code

    def note_said(self, node: str, level: str, text: str) -> None:
        if level != "info" and len(self.notes) < 1000:
            self.notes.append((self.kernel.now_ns, node, level, text))

    def snapshot_answered(self, answer: le.AnswerSnapshot) -> None:
        """Nobody asks as yet."""

    def note_message(self, node: str, message: pb.HostMessage) -> None:
        self.count("control_messages")

    def note_frame(self, host: SimHost, peer: str, frame: Frame) -> None:
        self.journal.add((self.kernel.now_ns, host.name, peer, "frame", frame.first_number, frame.ack))

    def note_stored(self, host: SimHost, message: pb.HostMessage) -> None:
        """A host reports a pack of checkpoints: they are durable."""
        if message.HasField("checkpoints"):
            self._see_pack(message.checkpoints.pack.path)

    def _see_pack(self, path: str) -> None:
        if path in self._packs:
            return
        self._packs[path] = []
        try:
            found = self.reader.read_checkpoint_pack(path)
        except SnaplineError:
            return
        self._packs[path] = [(each.agent, each.number) for each in found]
        name = layout.parse_any_pack_path(path)
        if name is not None:
            self.judge.on_checkpoints_durable(self.kernel.now_ns, name.number, found)

    def note_deleted(self, command: le.Command) -> None:
        """The coordinator's leader has deleted something: what the newest line needs must be there."""
        if not isinstance(command, le.DeleteEpochs | le.SweepStore | le.DeleteCheckpoints | le.SweepCheckpoints):
            return
        files = dict.fromkeys(self.disk.files())
        gone = [path for path in self._packs if path not in files]
        missing = [each for path in gone for each in self._packs.pop(path)]
        epoch = self.log.canonical.newest_complete()
        is_readable = not epoch or bool(self._flipped) or self._read_epoch(epoch)[0] is not None
        self.judge.on_deleted(self.kernel.now_ns, is_readable, missing)

    # ---- the log --------------------------------------------------------------------------------------------------

    def note_proposed(self, entry: bytes) -> int:
        self._proposals += 1
        self.judge.on_proposed(self.kernel.now_ns, self._proposals, entry)
        return self._proposals

    def note_outcome(self, proposal: int, outcome: ProposalOutcome) -> None:
        self.judge.on_outcome(self.kernel.now_ns, proposal, outcome, None)

    def _on_standing(self, node: str, standing: Standing) -> None:
        self.journal.add((self.kernel.now_ns, node, standing.leader, "leads", standing.term, int(standing.is_leader)))
        self.seats[node].on_standing(standing)

    def _on_committed(self, index: int, node: str, entry: bytes, result: Result) -> None:
        operation = decode_operation(entry)
        now_ns, state = self.kernel.now_ns, self.log.canonical
        kind = operation.kind
        self.journal.add((now_ns, node, type(kind).__name__, "committed", index, result.status))
        if isinstance(kind, op.CompleteEpoch) and not result.is_refused:
            self._on_epoch_complete(kind)
        self.judge.on_committed(now_ns, index + 1, operation, result, state)
        if not result.is_refused:
            self._note_operation(kind, result)

    def _on_epoch_complete(self, kind: op.CompleteEpoch) -> None:
        image = self.log.canonical.image
        record = image.epochs[kind.epoch]
        if is_logged(self.fleet.protocol):
            for path in self.reader.checkpoint_packs(record.plan):
                self._see_pack(path)
        found, error = self._read_root(kind.epoch, kind.root)
        self.completed_ns[kind.epoch] = self.kernel.now_ns
        self.count("epochs_complete")
        self.judge.on_epoch_complete(self.kernel.now_ns, kind.epoch, record.trigger, found, error)
        if self.recording is not None and found is not None:
            span = self.recording.epochs.setdefault(kind.epoch, EpochSpan(kind.epoch, record.plan, self.kernel.now_ns))
            span.ended_ns, span.outcome = self.kernel.now_ns, "complete"
            span.cut = {agent: each.number for agent, each in found.items() if not each.is_unborn}

    def _read_epoch(self, epoch: int) -> tuple[Mapping[str, AgentCheckpoint] | None, str]:
        return self._read_root(epoch, self.log.canonical.image.epochs[epoch].root)

    def _read_root(self, epoch: int, root: str) -> tuple[Mapping[str, AgentCheckpoint] | None, str]:
        """Every byte of a complete epoch, as it lies on the disk."""
        try:
            manifest = self.reader.read_manifest(root, epoch=epoch)
            return {each.agent: each for each in self.reader.read_checkpoints(manifest)}, ""
        except SnaplineError as error:
            return None, str(error)

    def _note_operation(self, kind: op.Kind, result: Result) -> None:
        now_ns = self.kernel.now_ns
        match kind:
            case op.BeginEpoch() if self.recording is not None:
                number = self.log.canonical.image.begun
                self.recording.epochs[number] = EpochSpan(number, self.log.canonical.plan_number, now_ns)
            case op.AbortEpoch():
                self._note_aborted((kind.epoch,))
            case op.LoseHosts():
                self._lost_ns = self._lost_ns or now_ns
            case op.CommitPlan():
                self._note_plan(kind)
            case op.ConfirmPlan() if self._lost_ns and self.log.canonical.phase == RUNNING:
                self.count("recoveries")
                self.count("recovery_s", (now_ns - self._lost_ns) / 1e9)
                self._lost_ns = 0
            case _:
                pass
        self._note_aborted(result.epochs if isinstance(kind, op.LoseHosts | op.CommitPlan) else ())

    def _note_plan(self, kind: op.CommitPlan) -> None:
        plan = self.log.canonical.plan
        assert plan is not None
        if plan.number > 1:
            self.count("agents_rolled_back", kind.rolled_back)
            self.count("checkpoints_lost", kind.checkpoints_lost)
        if self.trace is not None:
            self.trace.on_plan(plan.number, plan.line_epoch)

    def _note_aborted(self, epochs: tuple[int, ...]) -> None:
        for epoch in epochs:
            self.count("epochs_aborted")
            if self.recording is not None and epoch in self.recording.epochs:
                span = self.recording.epochs[epoch]
                span.ended_ns, span.outcome = self.kernel.now_ns, "aborted"

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
        self.note_fault(ExecutedFault("failpoint", text, self.kernel.now_ns, self.kernel.now_ns + after_ns))
        match action:
            case "crash":
                if after_ns:
                    start = self.start_coordinator if node in self.seats else self.start_host
                    self.at(self.kernel.now_ns + after_ns, lambda: start(node))
                raise SimulatedCrash(node)
            case "error":
                raise OSError(errno.EIO, os.strerror(errno.EIO), name)
            case "pause" if node in self.hosts:
                self.pause_host(node)
                self.at(self.kernel.now_ns + after_ns, lambda: self.resume_host(node))

    def arm_failpoint(self, name: str, hit: int, action: FailpointAction, restart_after_ns: int) -> None:
        self._armed.setdefault(name, []).append((hit, action, restart_after_ns))

    def disarm_failpoints(self) -> None:
        self._armed.clear()

    # ---- the executor ---------------------------------------------------------------------------------------------

    @property
    def now_ns(self) -> int:
        return self.kernel.now_ns

    def at(self, t_ns: int, call: Callable[[], None]) -> None:
        self.kernel.at(t_ns, _call, call)

    def note_fault(self, fault: ExecutedFault) -> None:
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
        self.judge.probes.sometimes(run.carrier.core.plan > 0 and not run.carrier.core.is_loaded, "crash while recovering")
        self.count("piggyback_bytes", run.carrier.core.piggyback_bytes)
        run.die()
        self._record_end(host)
        self.network.close_all(host)
        self.network.wake(host)
        self.disk.crash(host)
        self.journal.add((self.kernel.now_ns, host, "", "crash", 0, 0))

    def _record_end(self, host: str) -> None:
        for span in self.recording.hosts if self.recording is not None else ():
            if span.host == host and not span.until_ns:
                span.until_ns = self.kernel.now_ns

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

    def power_cut(self, host: str) -> None:
        self.crash_host(host)
        self.disk.power_cut(host, self.choices)
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
            self.at(self.kernel.now_ns + GOODBYE_NS, lambda: self._gone(run))

    def _gone(self, run: SimHost) -> None:
        if self.runs[run.name] is run:
            self.crash_host(run.name)

    def set_disk(self, host: str, mode: DiskMode, is_on: bool) -> None:
        self.disk.set_fault(host, mode, is_on)

    def clear_disks(self) -> None:
        self.disk.clear_faults()

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

    # ---- how it stands --------------------------------------------------------------------------------------------

    def states(self) -> dict[str, object]:
        """The live state of every agent that lives, by the plan in force."""
        found: dict[str, object] = {}
        for agent, record in self.log.canonical.living_agents():
            run = self.run_of(record.host)
            if run is not None and agent in run.carrier.core.agents and run.carrier.turns.has(agent):
                found[agent] = run.carrier.turns.object_of(agent).state
        return found

    def images(self) -> dict[str, bytes]:
        """The same, encoded."""
        return {agent: encode_body(state) for agent, state in self.states().items()}

    def is_idle(self) -> bool:
        """Nothing is on its way: no turn, no message, no timer."""
        for run in self.runs.values():
            core = run.carrier.core
            if not run.is_alive:
                continue
            if run.carrier.queue or not core.is_loaded:
                return False
            for agent in core.agents.values():
                if agent.mailbox or agent.parked or agent.current is not None or agent.spawns or agent.deferred:
                    return False
        return True

    def pending(self, since_ns: int) -> list[str]:
        """What has to happen yet, once everything is whole (since `since_ns`)."""
        state = self.log.canonical
        missing = []
        if state.image.outcome:
            return []
        if state.phase != RUNNING:
            missing.append(f"the fleet is {state.phase}")
        if self.fleet.period_ns and not any(at >= since_ns for at in self.completed_ns.values()):
            if not (is_autonomous(self.fleet.protocol) and self._is_done()):  # then no checkpoint is due ever again
                missing.append("no epoch has completed")
        old = [epoch for epoch in state.open_epochs() if state.image.epochs[epoch].begun_ns < START_OF_TIME_NS + since_ns]
        if old:
            missing.append(f"epochs {old} are open")
        if self.workload.ends and not missing and not self._is_done():
            missing.append("the workload is not done")
        return missing

    def _is_done(self) -> bool:
        if not self.is_idle():
            return False
        living = [agent for agent, _ in self.log.canonical.living_agents()]
        states = self.states()
        done = len(states) == len(living) and self.workload.is_done(states)
        if done and not self.finished_ns:
            self.finished_ns = self.kernel.now_ns
        return done

    def validate(self) -> None:
        """Invariants of all cores."""
        for run in self.runs.values():
            if run.is_alive:
                run.carrier.core.validate()
        self.log.canonical.validate()


def _call(call: Callable[[], None]) -> None:
    call()


