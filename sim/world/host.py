"""A simulated host. The host runs the production driver, including its core, turns and agents, in virtual time.

A `SimHost` represents one run of a host, from the host's start to its crash or exit. If the host is restarted, a new `SimHost` is created.
Calls that were scheduled for a run are dropped if the run has ended. If a run is paused, its scheduled calls wait until it resumes.
Blocking work outside the event loop (`Workers`) takes effect at a single instant, namely at the end of its duration. A failpoint can crash
the host in the middle of its blocking work.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from snapline.agent_runtime.agent import AgentType, agent_type
from snapline.agent_runtime.durable import ROLLED_BACK
from snapline.agent_runtime.fleet import encode_state
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.approvals import id_of
from snapline.agent_runtime.host.driver import HostDriver
from snapline.agent_runtime.host.driver_interfaces import Execute, HostObserver, ObservedDriver, RunTurn
from snapline.agent_runtime.host.epoch_files import LoadedLine
from snapline.agent_runtime.host.input_service import look_at, placed
from snapline.messages.client_requests import RETRY, AskOutcome, GivenInput, InputOutcome
from snapline.messages.host_messages import CheckpointsKnown, Directive, HostMessage
from snapline.messages.payloads import split_message
from snapline.protocols.names import LOCAL
from snapline.sim.faults.fault_executor import (
    WHEN_CAPTURING,
    WHEN_RECEIVING,
    WHEN_RECORDING,
    WHEN_RECOVERING,
    WHEN_WORKING,
    HangingCall,
)
from snapline.sim.world.host_streams import HostRun, ReplicaSession, SimSession, SimTransport
from snapline.sim.world.kernel import PIECE, SECOND_NS, SimulatedCrash
from snapline.sim.world.steps import DrivenTurn, SimOutside, Steps, check_handler_error, may_wait, state_identity
from snapline.sim.world.world_observer import WorldObserver
from snapline.sim.world.world_state import WorldState
from snapline.storage.capture.image import StateImage
from snapline.storage.log.log_record import EFFECT
from snapline.storage.packs.checkpoint import BootClock, JournalEntry
from snapline.storage.store.store import Store


class Workers:
    """Executes a run's work outside the event loop: sequential store calls, log calls, and calls of `stop_when`."""

    def __init__(self, host: HostRun, hangs: Callable[[HangingCall], bool]) -> None:
        """`hangs` takes a kind of call, and returns whether calls of this kind currently hang."""
        self._host = host
        self._stores = host.shared.stores
        self._hangs = hangs
        self._busy_until_ns = 0
        self._count = 0
        self._stuck: dict[HangingCall, deque[Callable[[], None]]] = {"store": deque(), "stop": deque(), "loop": deque()}
        self._store: Store | None = None

    def open_store(self) -> Store:
        """Return the store object of this run."""
        if self._store is None:
            self._store = self._stores.of(self._host.name)
        return self._store

    def store(self, work: Callable[[], None]) -> None:
        """Execute a store call at the end of its duration. The duration begins when all earlier store calls have finished."""
        begin_ns = max(self._host.shared.kernel.now_ns, self._busy_until_ns)
        self._busy_until_ns = begin_ns + self._cost_ns()
        self._host.later(self._busy_until_ns, self._work, ("store", work))

    def evaluate(self, work: Callable[[], None]) -> None:
        """Execute a call of `stop_when` at the end of its duration."""
        self._host.later(self._host.shared.kernel.now_ns + self._cost_ns(), self._work, ("stop", work))

    def log(self, work: Callable[[], None]) -> None:
        """Execute a log call at the end of its duration. Whenever store calls hang, log calls hang too, because both use the same disk."""
        self._host.later(self._host.shared.kernel.now_ns + self._cost_ns(), self._work, ("store", work))

    def _cost_ns(self) -> int:
        self._count += 1
        return self._stores.cost_ns(self._host.name, (self._host.instance, self._count))

    def _work(self, due: tuple[HangingCall, Callable[[], None]]) -> None:
        kind, work = due
        self._stuck[kind].append(work)
        self.carry_on(kind)

    def carry_on(self, what: HangingCall) -> None:
        """Execute all waiting calls of this kind, unless calls of this kind still hang."""
        while self._stuck[what] and not self._hangs(what):
            self._stuck[what].popleft()()


Taking = Callable[[GivenInput, bytes], None]
Then = Callable[[Sequence[InputOutcome]], None]

STOPPED, BLOCKED = "stopped", "blocked"
"""Reasons why a run is paused: its process is stopped, or a handler blocks its event loop."""


class _Timer:
    __slots__ = ("function", "is_cancelled")

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class JudgeObserver(HostObserver):
    """Observes a host's driver. Reports all events that concern the host's agents to the judge."""

    def __init__(self, sim: "SimHost", outside: SimOutside) -> None:
        shared = sim.shared
        self.sim = sim
        self._shared = shared
        self.outside = outside
        self._judge = shared.judge
        self._is_local = shared.workload.fleet.recovery == LOCAL
        self._passed = shared.points.passed
        self._add = shared.journal.add
        self._begun_as: dict[str, str] = {}
        """Kind of each agent's current turn. Later segments of the turn do not name the kind."""

    def attached(self, driver: ObservedDriver) -> None:
        self.core, self.turns = driver.core, driver.turns
        driver.wrap_turns(lambda run: partial(self._watch_turn, run))

    def commands(self) -> Mapping[type[ev.HostOutput], Callable[[Any, Execute], None]]:
        return {
            ev.LoggedMessageSent: self._message_left,
            ev.MessageDeadLettered: self._message_dead_lettered,
            ev.UnroutableMessageDeadLettered: self._message_unroutable,
            ev.MessageConsumedInTurn: self._message_taken,
            ev.OperatorCommandConsumed: self._command_consumed,
            ev.RunStep: self._run_step,
            ev.TakeAnswer: self._run_step,
            ev.RunEffect: self._run_effect,
            ev.EffectRecordEmitted: self._effect_recorded,
            ev.ReportFrozen: self._report_frozen,
            ev.CaptureState: self._capture,
            ev.TakeCheckpoint: self._take_checkpoint,
            ev.LoadAgents: self._load_agents,
            ev.AgentsKept: self._agents_kept,
            ev.CaptureCommit: self._capture_commit,
            ev.AppendBatch: self._append_batch,
        }

    # ---- reports of the core on messages and freezes ----------------------------------------------------------------

    def _message_left(self, left: ev.LoggedMessageSent, _: Execute) -> None:
        now_ns = self._shared.kernel.now_ns
        self._judge.on_left(self.core.plan, left.sender, left.receiver, is_in_turn=left.is_in_turn, t_ns=now_ns)

    def _message_dead_lettered(self, command: ev.MessageDeadLettered, execute: Execute) -> None:
        execute(command)
        now_ns = self._shared.kernel.now_ns
        agent = self.core.agents.get(command.agent)
        if agent is not None:
            self._judge.ground_truth.steps.on_dead_lettered(agent.id, agent.incarnation)
        self._judge.on_dead_lettered(
            now_ns, self.core.plan, command.agent, command.what, command.sender, command.payload
        )

    def _message_taken(self, taken: ev.MessageConsumedInTurn, _: Execute) -> None:
        now_ns = self._shared.kernel.now_ns
        self._judge.ground_truth.on_taken(
            now_ns, self.core.plan, taken.agent, taken.what, taken.sender, taken.payload, is_stashed=taken.is_stashed
        )
        if taken.what == "message":
            self._message_consumed(self.core.plan, taken.sender, taken.agent)
        self._judge.probes.sometimes(taken.is_stashed, "message put off")

    def _command_consumed(self, taken: ev.OperatorCommandConsumed, _: Execute) -> None:
        now_ns = self._shared.kernel.now_ns
        self._judge.ground_truth.on_command_consumed(now_ns, self.core.plan, taken.agent, taken.payload, taken.told)

    def _message_unroutable(self, command: ev.UnroutableMessageDeadLettered, execute: Execute) -> None:
        execute(command)
        tell = self._judge.on_refused if command.is_refused_creation else self._judge.on_unroutable
        tell(self._shared.kernel.now_ns, self.core.plan, command.sender, command.receiver, command.payload)

    def _run_step(self, command: ev.RunStep, execute: Execute) -> None:
        self._judge.ground_truth.steps.on_step(
            self._shared.kernel.now_ns, command.agent, command.incarnation, command.name
        )
        execute(command)

    def _run_effect(self, command: ev.RunEffect, execute: Execute) -> None:
        now_ns, ground_truth = self._shared.kernel.now_ns, self._judge.ground_truth
        is_committed = self._is_local and self.sim.notes.store.is_committed(command.key.encode())
        ground_truth.outputs.on_called(now_ns, command.agent, command.key, is_committed=is_committed)
        is_present = self.core.plan >= ground_truth.newest_plan
        called = command.agent, command.incarnation, command.place, command.key
        ground_truth.effects.on_called(now_ns, *called, is_present=is_present)
        turn = self.core.agents[command.agent].turn
        is_grouped = turn is not None and sum(x.kind == EFFECT and not x.outcome for x in turn.members) > 1
        self._judge.probes.sometimes(is_grouped, "effects called together")
        self._judge.probes.sometimes(command.is_in_doubt, "effect in doubt")
        execute(command)

    def _effect_recorded(self, record: ev.EffectRecordEmitted, _: Execute) -> None:
        self._judge.ground_truth.on_effect_recorded(
            self._shared.kernel.now_ns, self.core.plan, record.agent, record.payload
        )

    def _report_frozen(self, command: ev.ReportFrozen, execute: Execute) -> None:
        core = self.core
        if command.plan == core.plan and core.is_loaded:
            frozen_agents = [
                agent.id for agent in core.agents.values() if agent.id not in command.running and agent.is_born
            ]
            self._judge.on_frozen(self.sim.name, core.start, core.plan, command.number, frozen_agents)
        execute(command)

    def checkpoint_failed(self, event: ev.CheckpointFailed) -> None:
        self._judge.ground_truth.on_failed(self._shared.kernel.now_ns, event.incarnation, event.agent)
        freeze = self.core.mode.standing().freeze
        if freeze is not None:
            self._judge.on_unsaved(self.sim.name, self.core.start, self.core.plan, freeze, event.agent)

    # ---- turns and images -------------------------------------------------------------------------------------------

    def _watch_turn(self, run: RunTurn, turn: ev.StartTurn) -> ev.Event | None:
        self._passed(WHEN_WORKING)
        rollbacks = self._judge.ground_truth.rollbacks
        if rollbacks.asked:
            rollbacks.on_turn(self._shared.kernel.now_ns, turn.agent, turn.incarnation)
        if turn.turn is not None or turn.what != "segment":
            self._begun_as[turn.agent] = turn.what if turn.turn is None else turn.turn.what
        draws: list[object] = []
        self.outside.draws, self.outside.agent = draws, turn.agent
        known = self.turns.type_of(turn.agent)
        if known is not None and self._judge.replays.is_own:
            self._judge.replays.on_turn(turn.agent, known, self.turns.object_of(turn.agent))
        if may_wait(known):
            state = state_identity(known, self.turns.object_of(turn.agent))
            self._went_on(turn)
            self._check_rollbacks(turn, [turn.found] if turn.found is not None else [])
            for index, found in enumerate(turn.group or [found for found in (turn.found,) if found is not None]):
                place = self._judge.ground_truth.steps.place_of(turn.agent, turn.incarnation)
                self._judge.ground_truth.steps.waits.on_over(
                    *(self._shared.kernel.now_ns, turn.agent, (*place, index), found, self._shared.faults),
                    is_grouped=bool(turn.group),
                )
            self._judge.ground_truth.steps.on_started(turn, state)
            self._judge.replays.durable.on_started(turn, state)
        ended = self._shared.output_injector.with_outputs(turn, run(turn), self._shared.kernel.now_ns)
        if ended is None:
            self.sim.waiting[turn.agent] = turn, draws
            return None
        self._note(turn, ended, draws)
        return ended

    def _went_on(self, turn: ev.StartTurn) -> None:
        """Check the effects and approvals with whose outcomes the turn goes on. Approvals are not checked if answers are recorded."""
        entries = turn.group or [found for found in (turn.found,) if found is not None]
        durable, truth = self.core.agents[turn.agent].turn, self._judge.ground_truth
        if durable is None:
            return
        places = dict(enumerate(entries, len(durable.journal) - len(entries)))
        truth.effects.on_went_on(turn.agent, turn.incarnation, places)
        if self._shared.scenario.fleet.answers or self.core.plan < truth.newest_plan or truth.inputs.has_lost_bytes:
            return
        for place, entry in places.items():
            if entry.kind == "approval":
                approval = id_of(durable, place, entry)
                truth.steps.approvals.on_decided(self._shared.kernel.now_ns, turn.agent, approval, entry)

    def _check_rollbacks(self, turn: ev.StartTurn, entries: Sequence[JournalEntry]) -> None:
        """Check what the turn learns of the fleet's rollbacks, from the core or, in vain, from a host log."""
        for entry in entries:
            if entry.kind == ROLLED_BACK:
                self._judge.probes.hit("rollbacks learned")
                rollbacks = self._judge.ground_truth.rollbacks
                rollbacks.on_learned(self._shared.kernel.now_ns, turn.agent, self._plan_of(turn), entry)

    def turn_ended(self, event: ev.TurnEnded | ev.TurnFailed) -> ev.TurnEnded | ev.TurnFailed:
        turn, draws = self.sim.waiting.pop(event.agent)
        ended = self._shared.output_injector.with_outputs(turn, event, self._shared.kernel.now_ns)
        assert isinstance(ended, ev.TurnEnded | ev.TurnFailed)
        self._note(turn, ended, draws)
        return ended

    def _note(self, turn: ev.StartTurn, ended: ev.Event, draws: list[object]) -> None:
        now_ns = self._shared.kernel.now_ns
        self._add((now_ns, self.sim.name, turn.agent, turn.what, turn.sender, turn.payload))
        if isinstance(ended, ev.TurnFailed):
            self._check_rollbacks(turn, ended.entries)
        elif isinstance(ended, ev.TurnEnded) and ended.pause is not None:
            self._check_rollbacks(turn, ended.pause.entries)
        if type(ended) is ev.TurnEnded:
            self._judge.ground_truth.steps.on_ended(ended)
            if ended.pause is not None:
                place = self._judge.ground_truth.steps.place_of(turn.agent, turn.incarnation)
                is_again = turn.turn is not None and turn.turn.awaited is not None
                for index, timeout_ns in enumerate(ended.pause.timeouts_ns or [ended.pause.timeout_ns]):
                    if timeout_ns is not None:
                        self._judge.ground_truth.steps.waits.on_waiting(
                            now_ns, (*place, index), timeout_ns, is_again=is_again
                        )
            known = self.turns.type_of(turn.agent)
            if may_wait(known):
                self._judge.replays.durable.on_ended(now_ns, ended, known, self.turns.object_of(turn.agent), draws)
            if turn.turn is not None:
                self._judge.probes.hit("durable turn run again")
            is_plain = ended.pause is None and not ended.is_durable and turn.what != "segment"
            plan = self._plan_of(turn)
            self._judge.on_turn(
                now_ns, plan, turn.agent, turn.what, turn.sender, turn.payload, ended.sends, ended.spawns,
                draws=tuple(draws) if is_plain else None,
            )  # fmt: skip
            if turn.what == "message" or turn.what == "create":
                self._message_consumed(plan, turn.sender, turn.agent)
            for topic, payload, _ in ended.outputs:
                self._judge.ground_truth.on_emitted(plan, turn.agent, topic.encode() + b" " + payload)
            if ended.reply:
                is_dead_letter = self._begun_as[turn.agent] == "letter"
                self._judge.ground_truth.on_replied(
                    plan, turn.agent, turn.payload, ended.reply, is_dead_letter=is_dead_letter
                )
            if ended.stops:
                self._judge.on_stopping(plan, turn.agent)
            self._shared.figures.on_turn(now_ns, turn.what)
        elif type(ended) is ev.TurnFailed:
            self._judge.ground_truth.steps.on_ended(ended)
            self._judge.replays.durable.on_failed(now_ns, ended, turn, self.turns.type_of(turn.agent))
            self._judge.probes.hit("turn failed" if ended.rollback is None else "rollback asked for")
            if ended.rollback is not None:
                self._judge.ground_truth.rollbacks.on_rollback_requested(now_ns, turn.agent, turn.incarnation)
            check_handler_error(turn, ended)

    def _plan_of(self, turn: ev.StartTurn) -> int:
        """Return the plan under which a turn has ended. With commits, an agent may go on under later plans than that of its incarnation."""
        agent = self.core.agents.get(turn.agent) if self._is_local else None
        return self.core.plan if agent is not None and agent.incarnation == turn.incarnation else turn.incarnation

    def _agents_kept(self, kept: ev.AgentsKept, _: Execute) -> None:
        self._judge.on_kept(kept.plan, kept.agents)

    def directive_handled(self) -> None:
        self._passed(WHEN_RECEIVING)

    def _capture(self, command: ev.CaptureState, execute: Execute) -> None:
        self._passed(WHEN_RECORDING)
        now_ns = self._shared.kernel.now_ns
        if command.control.is_born:
            self._add((now_ns, self.sim.name, command.agent, "capture", command.epochs, command.control.number))
        execute(command)

    def _take_checkpoint(self, command: ev.TakeCheckpoint, execute: Execute) -> None:
        self._passed(WHEN_RECORDING)
        now_ns = self._shared.kernel.now_ns
        self._add((now_ns, self.sim.name, command.agent, command.basis, command.round, command.control.number))
        self._shared.figures.count(f"checkpoints_{command.basis}")
        execute(command)

    def captured(self, command: ev.CaptureState | ev.TakeCheckpoint, known: AgentType, image: StateImage) -> None:
        """Report a captured checkpoint image to the judge. If parts of the state are stored separately, encode the complete state for the
        report."""
        costs = self._shared.workload.costs
        self.sim.costs_ns += costs.capture_ns + costs.capture_byte_ns * image.size_bytes
        agent = command.agent
        whole = encode_state(agent, self.turns.object_of(agent), known) if image.parts else image.skeleton
        basis, round_ = (command.basis, command.round) if isinstance(command, ev.TakeCheckpoint) else ("coordinated", 0)
        now_ns = self._shared.kernel.now_ns
        self._judge.ground_truth.steps.on_captured(agent, command.control.incarnation, command.control.number)
        self._judge.on_captured(now_ns, self.core.plan, agent, command.control, whole, basis, round_)

    def committed(self, committed: ev.CommittedAgent, state: bytes) -> None:
        """Report the state of an agent in a commit to the judge."""
        costs, agent, control = self._shared.workload.costs, committed.agent, committed.control
        self.sim.costs_ns += costs.capture_ns + costs.capture_byte_ns * len(state)
        now_ns = self._shared.kernel.now_ns
        self._add((now_ns, self.sim.name, agent, "commit", control.incarnation, control.number))
        self._judge.ground_truth.steps.on_captured(agent, control.incarnation, control.number)
        self._judge.on_captured(now_ns, self.core.plan, agent, control, state, "commit", 0)
        self.sim.notes.commits.on_captured(now_ns, self.sim.instance, self.core.plan, committed, self.core.agents)

    def _capture_commit(self, command: ev.CaptureCommit, execute: Execute) -> None:
        self.sim.notes.commits.on_capturing(self.sim.instance, command.plan)
        execute(command)

    def _append_batch(self, command: ev.AppendBatch, execute: Execute) -> None:
        self.sim.notes.commits.on_writing(self.sim.instance, command.log, command.number, command.commits)
        execute(command)

    def _message_consumed(self, plan: int, sender: str, receiver: str) -> None:
        if self._is_local and sender not in self.core.agents:
            self.sim.notes.commits.on_consumed(self._shared.kernel.now_ns, plan, sender, receiver)

    def _load_agents(self, command: ev.LoadAgents, execute: Execute) -> None:
        if command.drop_before:
            self._judge.ground_truth.steps.on_dropped()
        execute(command)
        if command.line_epoch:
            self._passed(WHEN_RECOVERING)

    def line_loaded(self, command: ev.LoadAgents, outcome: LoadedLine | ev.LoadFailed) -> None:
        if command.plan == self.core.plan and not isinstance(outcome, ev.LoadFailed):
            now_ns = self._shared.kernel.now_ns
            if self._is_local:
                loaded = [restored.agent for restored in outcome.agents]
                read = self.sim.notes.store.read_commits
                self._judge.on_points(now_ns, command.plan, command.line_epoch, loaded, read)
            for restored in outcome.agents:
                self._add((now_ns, self.sim.name, restored.agent, "load", command.plan, command.line_epoch))
                checkpoint = restored.checkpoint
                self._judge.ground_truth.steps.waits.on_loaded(now_ns, restored.agent)
                self._judge.ground_truth.steps.on_loaded(restored.agent, restored.incarnation, checkpoint)
                # The judge needs the state that was restored from the parts.
                if checkpoint is not None and checkpoint.parts:
                    agent_object = outcome.objects[restored.agent]
                    state = encode_state(restored.agent, agent_object, agent_type(type(agent_object)))
                    checkpoint = replace(checkpoint, state=state, parts=[])
                self._judge.on_loaded(now_ns, command.plan, command.line_epoch, restored.agent, checkpoint)
                if self._is_local and checkpoint is not None:
                    self.sim.notes.commits.on_loaded(now_ns, command.plan, restored.agent, checkpoint)
            self._judge.probes.sometimes(bool(outcome.logged.entries), "step found in a log")
            self._judge.probes.sometimes(bool(outcome.logged.inputs), "input found in a log")
            self._judge.probes.sometimes(bool(outcome.logged.dropped), "input dropped")


class HostOwner(Protocol):
    """Interface that a host's run requires from the object that owns it. Implemented by `hosts.Hosts`."""

    @property
    def steps(self) -> Steps: ...
    def run_of(self, host: str) -> "SimHost | None":
        """Return the current run of a host, or None if the host is down."""
        ...

    def speed_of(self, host: str) -> int:
        """Return the host's speed in percent."""
        ...

    def hangs(self, host: str, what: HangingCall) -> bool:
        """Return whether calls of this kind currently hang on the host."""
        ...

    def crash(self, host: str) -> None:
        """Crash the host immediately."""
        ...

    def ended(self, run: "SimHost") -> None:
        """Handle a run that has exited without a crash."""
        ...


class SimHost:
    """One run of a host. Implements the driver's `HostEnvironment`.

    Attributes:
        is_alive: whether the run has neither crashed nor exited.
        stops: reasons why the run is paused, or empty if the run is not paused.
        waiting: for each agent whose turn is unfinished, the turn and the random values drawn in it.
        costs_ns: CPU time that the current batch of events takes at full speed.
    """

    def __init__(
        self,
        shared: WorldState,
        notes: WorldObserver,
        replicas: Mapping[str, ReplicaSession],
        owner: HostOwner,
        name: str,
        number: int,
    ) -> None:
        self.shared = shared
        self.notes = notes
        self._owner = owner
        self.name = name
        self.instance = f"{name}.{number}"
        self.is_alive = True
        self.stops: dict[str, None] = {}
        self.waiting: dict[str, tuple[ev.StartTurn, list[object]]] = {}
        self._held: deque[tuple[Callable[[Any], object], object]] = deque()
        self._is_pumping = False
        self._busy_until_ns = 0
        self.costs_ns = 0
        self._wakeup_ns: int | None = None
        self._heartbeat_ns = 0
        self._beats = 0
        self._workers = Workers(self, lambda what: owner.hangs(name, what))
        self.transport: SimTransport = SimTransport(self, self._transport_of)
        self.session = SimSession(self, replicas)
        self._observer = JudgeObserver(self, SimOutside(self, owner.steps))
        self.driver: HostDriver = HostDriver(
            name,
            shared.workload.fleet,
            self,
            self.transport,
            world=self._observer.outside,
            trace=shared.trace.of(self._plan) if shared.trace is not None else None,
            is_watched=True,
            observer=self._observer,
        )
        self.session.dial()

    def _plan(self) -> int:
        return self.driver.core.plan

    def _transport_of(self, peer: str) -> SimTransport | None:
        run = self._owner.run_of(peer)
        return run.transport if run is not None else None

    # ---- life -----------------------------------------------------------------------------------------------------

    def dependencies(self) -> dict[str, str]:
        return {"python": "3", "run": self.instance}  # so every new process of a host differs from the one before

    def later(self, at_ns: int, function: Callable[[Any], object], argument: object = None) -> None:
        """Schedule a call. The call is dropped if this run ends before it, and is delayed if the run is paused."""
        self.shared.kernel.at(at_ns, self.fire, (function, argument))

    def fire(self, call: tuple[Callable[[Any], object], object]) -> None:
        """Make the call now. If the run is paused, keep the call until the run resumes. If the run has ended, drop the call."""
        if not self.is_alive:
            return
        if self.stops:
            self._held.append(call)
            return
        function, argument = call
        self.shared.points.acting = self.name
        try:
            function(argument)
        except SimulatedCrash:
            self._owner.crash(self.name)
        except Exception as error:
            self.shared.core_failed(self.name, error)

    def offer(self, client: str, inputs: Sequence[GivenInput], taking: Taking, then: Then) -> None:
        """Handle a request in which a client offers inputs. `taking` is called with each message before the host decides whether to accept
        it. `then` is called with all outcomes, in order."""
        self.later(self.shared.kernel.now_ns, lambda _: self._offer(client, inputs, taking, then))

    def _offer(self, client: str, inputs: Sequence[GivenInput], taking: Taking, then: Then) -> None:
        type_of = self.driver.turns.type_of
        checks = [look_at(given, type_of(given.agent), self.name, self._place_of) for given in inputs]
        offered: list[ev.OfferedInput] = []
        for given, check in zip(inputs, checks, strict=True):
            if isinstance(check, bytes):
                taking(given, check)
                offered.append(ev.OfferedInput(given.agent, given.key, check))

        plan = self.driver.core.plan

        def answered(answers: Sequence[InputOutcome]) -> None:
            self.notes.host_logs.on_offered(self.name, plan, offered, answers)
            outcomes = iter([placed(x.agent, y, self._place_of) for x, y in zip(offered, answers, strict=True)])
            then([next(outcomes) if isinstance(check, bytes) else check for check in checks])

        if offered:
            self.driver.offer(client, offered, answered)
        else:
            answered(())

    def settle(self, operator: str, words: Sequence[ev.OfferedInput], then: Then) -> None:
        """Handle commands from an operator, and call `then` with their outcomes."""

        def answered(outcomes: Sequence[InputOutcome]) -> None:
            self.notes.host_logs.on_offered(self.name, self.driver.core.plan, words, outcomes)
            then(outcomes)

        self.later(self.shared.kernel.now_ns, lambda _: self.driver.offer(operator, words, answered))

    def ask(self, agent: str, key: str, then: Callable[[AskOutcome], None], *, is_early: bool) -> None:
        """Wait for the answer to a client's input, and call `then` with the answer."""

        def answered(answer: ev.AskAnswer) -> None:
            if not is_early:
                self.notes.host_logs.on_asked(self.name, agent, key, answer)
            kind, body = split_message(answer.reply) if answer.reply else ("", b"")
            place = self._place_of(agent) if answer.status == RETRY else ("", "")
            then(AskOutcome(answer.status, answer.number, kind, bytes(body), answer.reason, *place))

        self.later(self.shared.kernel.now_ns, lambda _: self.driver.ask(agent, key, answered, is_early=is_early))

    def _place_of(self, agent: str) -> tuple[str, str]:
        """Return the name and address of the host that runs the agent, as far as this host knows them. Both strings are empty if this host
        runs the agent or does not know where the agent runs."""
        host, _ = self.driver.core.shared.routes.get(agent, ("", 0))
        return (host, f"{host}:1") if host not in ("", self.name) else ("", "")

    def pause(self, why: str) -> None:
        """Add a reason why the run is paused. The run stays paused until all reasons have been removed."""
        self.stops[why] = None

    def resume(self, why: str) -> None:
        """Remove a reason why the run is paused. The run resumes when no reason is left."""
        if self.stops.pop(why, self) is self or self.stops:
            return
        held, self._held = self._held, deque()
        for call in held:
            self.shared.kernel.at(self.shared.kernel.now_ns, self.fire, call)

    def die(self) -> None:
        """End the host's process immediately, without a regular shutdown."""
        self.is_alive = False
        self.driver.stop()

    def finish(self, code: int) -> None:
        self.driver.stop()
        self.later(self.shared.kernel.now_ns, lambda _: self._owner.ended(self))

    def fail(self, error: BaseException) -> None:
        """Do nothing, because the error propagates from the caller to `fire` anyway."""

    # ---- turns and timers -----------------------------------------------------------------------------------------

    def fed(self) -> None:
        if self._is_pumping:
            return
        driver = self.driver
        if driver.queue or driver.core.has_batch:
            self._is_pumping = True
            self.later(
                max(self.shared.kernel.now_ns, self._busy_until_ns) + self.shared.workload.costs.batch_ns, self._pump
            )
        else:  # no turn is waiting to run
            self._set_timer()

    def _pump(self, _: object) -> None:
        driver, shared = self.driver, self.shared
        counts, costs = driver.core.shared.counts, shared.workload.costs
        turns, sent, self.costs_ns = counts.turns, counts.piggybacked, 0
        driver.run_turns(shared.scenario.run.turns_in_a_row)
        self.costs_ns += costs.batch_ns + (counts.turns - turns) * costs.turn_ns
        self.costs_ns += (counts.piggybacked - sent) * costs.send_ns
        shared.figures.busy_ns += self.costs_ns
        self._busy_until_ns = self.shared.kernel.now_ns + self.costs_ns * 100 // self._owner.speed_of(self.name)
        if len(shared.journal.entries) >= PIECE:
            shared.journal.hash_full_pieces()
        if driver.queue:
            self.later(self._busy_until_ns, self._pump)
        else:
            self._is_pumping = False
        self._set_timer()

    def _set_timer(self) -> None:
        wakeup_ns = self.driver.core.wakeup_ns
        if wakeup_ns is None or (self._wakeup_ns is not None and self._wakeup_ns <= wakeup_ns):
            return
        self._wakeup_ns = wakeup_ns
        self.later(wakeup_ns, self._timer_fired, wakeup_ns)

    def _timer_fired(self, wakeup_ns: int) -> None:
        if self._wakeup_ns == wakeup_ns:
            self._wakeup_ns = None
            self.driver.feed(ev.TimerFired())

    def start_turn(self, coroutine: Coroutine[object, None, None]) -> DrivenTurn:
        return DrivenTurn(self, coroutine, self._observer.outside)

    # ---- environment ----------------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        return self.shared.kernel.now_ns

    def wall_ns(self) -> int:
        return self.shared.clocks.wall_ns(self.name)

    def boot_clock(self) -> BootClock:
        """Return the boot clock. All simulated hosts share one boot clock, because they run on one machine that never reboots."""
        return BootClock("simulated", self.shared.kernel.now_ns)

    def call_later(self, delay_s: float, function: Callable[[], None]) -> _Timer:
        timer = _Timer(function)
        self.later(self.shared.kernel.now_ns + round(delay_s * SECOND_NS), _fire_timer, timer)
        return timer

    def in_worker(self, function: Callable[..., object], *arguments: object, then: Callable[..., None]) -> None:
        self._workers.store(lambda: then(function(*arguments)))

    def in_evaluator(self, function: Callable[[], object], then: Callable[..., None]) -> None:
        self._workers.evaluate(lambda: then(function()))

    def in_log(self, function: Callable[[], object], then: Callable[..., None]) -> None:
        self._workers.log(lambda: then(function()))

    def block(self) -> None:
        """Block the run, as a handler would that never returns control to the event loop. The host's watchdog thread reports to the leader
        every second that the host is blocked."""
        self.pause(BLOCKED)
        self._report_busy(self.shared.kernel.now_ns)

    def _report_busy(self, since_ns: Any) -> None:
        if self.is_alive and BLOCKED in self.stops:
            if since_ns < self.shared.kernel.now_ns and len(self.stops) == 1:
                self.session.report_busy(self.shared.kernel.now_ns - since_ns)
            self.shared.kernel.at(self.shared.kernel.now_ns + SECOND_NS, self._report_busy, since_ns)

    def release_hung_calls(self, what: HangingCall) -> None:
        """Stop the hang of all calls of this kind, so that the calls return."""
        self.later(self.shared.kernel.now_ns, self._workers.carry_on, what)

    def open_store(self) -> Store:
        return self._workers.open_store()

    # ---- the coordinator ------------------------------------------------------------------------------------------

    def capturing(self, agent: str) -> None:
        self.shared.points.passed(WHEN_CAPTURING)

    def captured(self, command: ev.CaptureState | ev.TakeCheckpoint, known: AgentType, image: StateImage) -> None:
        self._observer.captured(command, known, image)

    def committed(self, agent: ev.CommittedAgent, state: bytes) -> None:
        self._observer.committed(agent, state)

    def part_closed(self, epoch: int) -> None:
        """Do nothing, because the simulator does not measure when a host completes its part of an epoch."""

    def send(self, message: HostMessage) -> None:
        self.notes.store.on_reported(message)
        if self.shared.workload.fleet.recovery == LOCAL:
            self.notes.commits.on_sent(self.shared.kernel.now_ns, message)
        self.session.send(message)

    def directive_received(self, directive: Directive) -> None:
        if isinstance(directive, CheckpointsKnown):
            for sequence, report in self.driver.checkpoints.unknown.items():
                if sequence <= directive.sequence:
                    self.notes.store.on_known(report.pack.path)

    def welcomed(self, heartbeat_ns: int) -> None:
        is_first = not self._heartbeat_ns
        self._heartbeat_ns = heartbeat_ns or self._heartbeat_ns or SECOND_NS // 2
        if is_first:
            self.later(self.shared.kernel.now_ns + self._heartbeat_ns, self._beat)

    def _beat(self, _: object) -> None:
        self._beats += 1
        self.session.send(self.driver.heartbeat(self._beats))
        self.later(self.shared.kernel.now_ns + self._heartbeat_ns, self._beat)


def _fire_timer(timer: _Timer) -> None:
    if not timer.is_cancelled:
        timer.function()
