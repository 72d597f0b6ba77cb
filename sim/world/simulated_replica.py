"""A replica of the simulated coordinator. While the replica leads, it runs the leader core and the store keeper of the product.

The replica is the environment of the leader's driver, in virtual time. Proposals are passed to the model of the replicated log. A blocking
call of the store keeper takes effect at a single instant, namely at the end of its duration. The durations of several calls may overlap.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader.core import LeaderCore
from snapline.coordinator.leader.leader_state import LeaderOptions
from snapline.coordinator.service.leader_driver import LeaderDriver
from snapline.coordinator.service.restore_requests import Restoring
from snapline.coordinator.service.store_keeper import StoreKeeper
from snapline.coordinator.state.fleet_records import ProposalOutcome, Unknown
from snapline.coordinator.state.fleet_state import FleetState
from snapline.coordinator.state.operations import CommitPlan
from snapline.messages.host_messages import AgentsFrozen, Directive, FreezeAgents
from snapline.messages.status import Standing
from snapline.messages.wire import decode_host_message, encode_directive
from snapline.sim.faults.fault_executor import WHEN_DECIDING, WHEN_SENDING
from snapline.sim.oracles.line_oracles import Freezes
from snapline.sim.world.host_streams import HostRun
from snapline.sim.world.kernel import SimulatedCrash
from snapline.sim.world.network import Stream
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.world_observer import WorldObserver
from snapline.sim.world.world_state import WorldState
from snapline.storage.retention.epoch_retention import parse_policy

PROPOSAL_TIMEOUT_NS = 30_000_000_000
"""Time limit for a proposal's outcome, as in production."""


def _options(shared: WorldState, client: str) -> LeaderOptions:
    run = shared.scenario.run
    return LeaderOptions(
        client=client,
        cluster=shared.stores.id,
        hosts_expected=shared.scenario.fleet.hosts,
        rejoin_grace_ns=run.rejoin_grace_ns,
        keep_epochs=max(2, run.keep_epochs),
        exit_when_finished=True,
    )


def _keeper(shared: WorldState, node: str, state: FleetState) -> StoreKeeper:
    policy = shared.scenario.run.retention
    return StoreKeeper(
        shared.stores.of(node),
        state,
        retention=parse_policy(policy) if policy else None,
        wall_ns=lambda: shared.clocks.wall_ns(node),
        now_ns=lambda: shared.kernel.now_ns,
    )


class SimLeader:
    """The replica's leader, which exists while the replica leads. Implements the driver's `LeaderEnvironment`.

    Attributes:
        is_over: whether the leader has been replaced or has crashed.
    """

    def __init__(
        self,
        shared: WorldState,
        log: SimulatedLog,
        notes: WorldObserver,
        node: str,
        term: int,
        crash: Callable[[], None],
    ) -> None:
        """`crash` is a function that ends the leader's process."""
        self._shared = shared
        self._kernel = shared.kernel
        self._log = log
        self._notes = notes
        self._crash = crash
        self._node = node
        self._term = term
        self.is_over = False
        state = log.state_of(node)
        core = LeaderCore(state, _options(shared, f"{node}.{term}"))
        self._core = core
        self._driver = LeaderDriver(core, _keeper(shared, node, state), self)
        self.restoring = Restoring(state, shared.stores.of(node))
        self._sessions: dict[int, Stream] = {}
        self._hosts: dict[int, str] = {}
        self.freezes = Freezes()
        self._numbers = 0
        self._works = 0
        self._cleaning_until_ns = 0

    # ---- life -----------------------------------------------------------------------------------------------------

    def start(self, _: object = None) -> None:
        """Start the leader core."""
        self._driver.start()
        if self._shared.scenario.outputs.is_watched:
            self.feed(ev.OutputReadersChanged(is_watched=True))

    def stop(self) -> None:
        """Stop leading, and close all streams to hosts. Proposals without an outcome may still be committed."""
        self.is_over = True
        for stream in list(self._sessions.values()):
            stream.close()

    def fire(self, call: tuple[Callable[[Any], object], object]) -> None:
        """Execute a call now, unless this leader has been replaced or has crashed."""
        if self.is_over:
            return
        function, argument = call
        self._shared.points.acting = self._node
        try:
            function(argument)
        except SimulatedCrash:
            self._crash()
        except Exception as error:
            self._shared.core_failed(self._node, error)

    def feed(self, event: ev.Event) -> None:
        """Pass an event to the leader's driver, unless this leader has been replaced or has crashed."""
        if not self.is_over:
            self._driver.feed(event)

    def has_released(self, epoch: int) -> bool:
        """Return whether the leader has released the outputs of all complete epochs up to and including this epoch."""
        return not self._core.parts.releases.has_unreleased_up_to(epoch)

    def ask(self, number: int) -> None:
        """Ask the leader for a snapshot. `number` identifies the request."""
        self.fire((self.feed, ev.SnapshotRequested(number)))

    def tell(self, wanted: ev.Event) -> None:
        """Pass an operator's request for a restore or for moves to the leader's driver."""
        self.fire((self.feed, wanted))

    # ---- streams --------------------------------------------------------------------------------------------------

    def open_session(
        self, host: HostRun, key: Hashable, received: Callable[[Any], None], closed: Callable[[Any], None]
    ) -> Stream:
        """Open a stream from a host to the leader."""
        self._numbers += 1
        number = self._numbers

        def deliver(node: str, item: object) -> None:
            if node == host.name:
                host.fire((received, item))
            else:
                self.fire((self._hear, (number, item)))

        def ended(node: str) -> None:
            if node == host.name:
                host.later(self._kernel.now_ns, closed)
            else:
                self._kernel.at(self._kernel.now_ns, self.fire, (self._closed, number))

        stream = self._shared.network.open((host.name, self._node), ("session", key), deliver, ended)
        self._sessions[number], self._hosts[number] = stream, host.name
        return stream

    def _hear(self, said: tuple[int, object]) -> None:
        number, item = said
        if number in self._sessions:
            assert isinstance(item, bytes)
            self._shared.figures.count("control_messages")
            message = decode_host_message(item)
            if isinstance(message, AgentsFrozen):
                self.freezes.on_answered(number, message, self._kernel.now_ns)
            self.feed(ev.MessageReceived(number, message))

    def _closed(self, number: int) -> None:
        self.freezes.on_closed(number)
        if self._sessions.pop(number, None) is not None:
            self.feed(ev.StreamClosed(number))

    # ---- the driver's environment ---------------------------------------------------------------------------------

    def now_ns(self) -> int:
        return self._kernel.now_ns

    def wall_ns(self) -> int:
        return self._shared.clocks.wall_ns(self._node)

    def set_timer(self, when_ns: int, function: Callable[[], None]) -> None:
        self._kernel.at(when_ns, self.fire, (_call, function))

    def in_worker(self, command: ev.Command, work: Callable[[Any], ev.Event], then: Callable[[ev.Event], None]) -> None:
        self._kernel.at(self._kernel.now_ns + self._cost_ns(), self.fire, (self._work, (command, work, then)))

    def in_cleaner(self, command: ev.Command, chore: Callable[[Any], object]) -> None:
        begin_ns = max(self._kernel.now_ns, self._cleaning_until_ns)
        self._cleaning_until_ns = begin_ns + self._cost_ns()
        self._kernel.at(self._cleaning_until_ns, self.fire, (self._clean, (command, chore)))

    def _cost_ns(self) -> int:
        self._works += 1
        return self._shared.stores.cost_ns(self._node, (self._node, self._term, self._works))

    def _work(self, call: tuple[ev.Command, Callable[[Any], ev.Event], Callable[[ev.Event], None]]) -> None:
        command, work, then = call
        answer = work(command)
        self._notes.store.on_damaged(getattr(answer, "damaged_path", ""))
        if isinstance(command, ev.PublishEpoch) and isinstance(answer, ev.EpochPublished) and not answer.error:
            self._notes.store.on_published(command.epoch, command.root)
        if isinstance(command, ev.ReleaseEpoch) and isinstance(answer, ev.EpochReleased) and not answer.error:
            self._notes.store.on_released(command.epoch)
        then(answer)

    def _clean(self, call: tuple[ev.Command, Callable[[Any], object]]) -> None:
        command, chore = call
        logs = self._notes.host_logs.files() if isinstance(command, ev.SweepLogs) else {}
        chore(command)
        self._notes.host_logs.on_swept(logs)
        self._notes.store.on_deleted(command, self._node)

    def send(self, sessions: Sequence[int], directive: Directive) -> None:
        streams = [self._sessions[number] for number in sessions if number in self._sessions]
        if isinstance(directive, FreezeAgents):
            self._note_freeze(directive, sessions)
        if streams:
            message = encode_directive(directive)
            for stream in streams:
                stream.send(self._node, message)
                self._shared.points.passed(WHEN_SENDING)

    def _note_freeze(self, freeze: FreezeAgents, sessions: Iterable[int]) -> None:
        for number in sessions:
            if number in self._sessions:
                self.freezes.on_freeze_sent(number, self._hosts[number], freeze, self._kernel.now_ns)

    def close_stream(self, session: int) -> None:
        ending = self._sessions.get(session)
        if ending is not None:
            self._kernel.at(ending.pipes[self._node].last_ns + 1, ending.close)

    def propose(self, command: ev.Propose, entry: bytes, ended: Callable[[ProposalOutcome], None]) -> None:
        if isinstance(command.kind, CommitPlan):
            self.freezes.on_plan_proposed((command.client, command.sequence), self._kernel.now_ns)
        proposal = self._notes.log.on_proposed(self._node, entry)
        answered: list[bool] = []

        def decide(outcome: ProposalOutcome) -> None:
            self._shared.points.passed(WHEN_DECIDING)
            ended(outcome)

        def end(outcome: ProposalOutcome) -> None:
            if not answered:
                answered.append(True)
                self._notes.log.on_outcome(proposal, outcome)
                self.fire((decide, outcome))

        self._log.propose(self._node, entry, end)
        late_ns = self._kernel.now_ns + PROPOSAL_TIMEOUT_NS
        self._kernel.at(late_ns, lambda _: end(Unknown("the log did not answer in time")))

    def answer(self, answer: ev.AnswerTool) -> None:
        match answer:
            case ev.AnswerSnapshot():
                self._notes.questions.on_answered(answer)
            case ev.AnswerRestore():
                self._notes.on_restore_answered(answer)
            case ev.AnswerMoves():
                self._notes.on_moves_answered(answer)
            case _:
                raise AssertionError(f"nobody asked for {answer!r}")

    def note(self, note: ev.Note) -> None:
        pass

    def end(self, ending: ev.EndRun) -> None:
        self._notes.log.is_ended = True


def _call(function: Callable[[], None]) -> None:
    function()


class SimulatedReplica:
    """A replica's process.

    Attributes:
        leader: the leader in this process, or None while the replica does not lead.
        known_leader: name of the leader as far as this replica knows, or "" if it knows no leader.
    """

    def __init__(self, shared: WorldState, log: SimulatedLog, notes: WorldObserver, node: str) -> None:
        self._shared = shared
        self._log = log
        self._notes = notes
        self._node = node
        self.is_up = True
        self.leader: SimLeader | None = None
        self.known_leader = ""

    @property
    def leads(self) -> bool:
        return self.leader is not None

    def open_session(
        self, host: HostRun, key: Hashable, received: Callable[[Any], None], closed: Callable[[Any], None]
    ) -> Stream:
        """Open a stream from a host to the leader in this process."""
        assert self.leader is not None
        return self.leader.open_session(host, key, received, closed)

    def receive_busy_report(self, host: HostRun, busy_ns: int) -> None:
        """Pass a report to the leader. The report comes from a host's watchdog thread and says that a handler is blocking the host."""
        assert self.leader is not None
        self.leader.fire((self.leader.feed, ev.HostBusyReported(host.name, host.instance, busy_ns, "a handler")))

    def on_standing(self, standing: Standing) -> None:
        """Start or stop leading, according to the leader and term that this replica has learned."""
        self.known_leader = standing.leader
        if standing.is_leader and self.leader is None and self.is_up:
            self.leader = SimLeader(self._shared, self._log, self._notes, self._node, standing.term, self.crash)
            self.leader.fire((self.leader.start, None))
        elif not standing.is_leader and self.leader is not None:
            self._stop_leading()

    def start(self) -> None:
        """Start the process. Do nothing if the process is already running."""
        if not self.is_up:
            self.is_up = True
            self._log.start(self._node)
            self._shared.journal.add((self._shared.kernel.now_ns, self._node, "", "start", 0, 0))

    def crash(self) -> None:
        """Crash the process. Do nothing if the process is already down."""
        if not self.is_up:
            return
        self.is_up = False
        self._stop_leading()
        self.known_leader = ""
        self._shared.network.close_all(self._node)
        self._log.crash(self._node)
        self._shared.stores.disk.crash(self._node)
        self._shared.journal.add((self._shared.kernel.now_ns, self._node, "", "crash", 0, 0))

    def _stop_leading(self) -> None:
        leader, self.leader = self.leader, None
        if leader is not None:
            leader.stop()
