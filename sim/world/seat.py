"""One replica of the simulated coordinator: while it leads, the production leader core and store keeper run here.

As in `coordinator/service/adapter.py`, with virtual time: what is proposed goes to the model of the replicated log, blocking calls
of the keeper happen at one instant when their time has passed, four of them side by side.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any

from snapline.conversation.messages import AgentsFrozen, FreezeAgents
from snapline.conversation.wire import decode_host_message, encode_directive
from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader.core import LeaderCore
from snapline.coordinator.leader.desk import LeaderOptions
from snapline.coordinator.raft.outcomes import Standing
from snapline.coordinator.service.store_keeper import StoreKeeper
from snapline.coordinator.state.fleet_records import ProposalOutcome, Unknown
from snapline.coordinator.state.operations import CommitPlan, Operation, encode_operation
from snapline.sim.faults.executor import WHEN_DECIDING, WHEN_TELLING
from snapline.sim.oracles.survivors import Freezes
from snapline.sim.world.kernel import SimulatedCrash
from snapline.sim.world.network import Stream
from snapline.storage.retention_policy import parse_policy

if TYPE_CHECKING:
    from snapline.sim.world.host import SimHost
    from snapline.sim.world.world import World

PROPOSAL_TIMEOUT_NS = 30_000_000_000
"""As in production."""


class SimLeader:
    """A leader core and everything that is done for it."""

    def __init__(self, world: "World", node: str, term: int) -> None:
        self.world = world
        self.node = node
        self.term = term
        self.is_over = False
        self.kernel = world.kernel
        state = world.log.state_of(node)
        options = LeaderOptions(
            client=f"{node}.{term}",
            cluster=world.store_id,
            hosts_expected=world.hosts_expected,
            rejoin_grace_ns=world.rejoin_grace_ns,
            keep_epochs=world.keep_epochs,
            exit_when_finished=True,
        )
        self.core = LeaderCore(state, options)
        policy = world.scenario.run.retention
        self._keeper = StoreKeeper(
            world.store_of(node),
            state,
            retention=parse_policy(policy) if policy else None,
            wall_ns=lambda: world.wall_ns(node),
            now_ns=lambda: world.kernel.now_ns,
        )
        self._sessions: dict[int, Stream] = {}
        self._hosts: dict[int, str] = {}
        self.freezes = Freezes()
        self._numbers = 0
        self._works = 0
        self._wakeup_ns = 0
        self._cleaning_until_ns = 0
        self._calls: dict[type[ev.Command], Callable[[Any], ev.Event]] = {
            ev.WriteManifest: self._keeper.write_manifest,
            ev.PublishEpoch: self._keeper.publish,
            ev.CheckLine: self._keeper.check_line,
            ev.MaterialiseLine: self._keeper.materialise,
            ev.ScanCheckpoints: self._keeper.scan,
            ev.WriteProbe: self._keeper.write_probe,
        }
        self._chores: dict[type[ev.Command], Callable[[Any], object]] = {
            ev.RemoveProbe: lambda command: self._keeper.remove_probe(command.path),
            ev.DeleteEpochs: self._keeper.delete,
            ev.SweepStore: self._keeper.sweep,
            ev.DeleteCheckpoints: self._keeper.delete_checkpoints,
            ev.SweepCheckpoints: self._keeper.sweep_checkpoints,
        }

    # ---- life -----------------------------------------------------------------------------------------------------

    def start(self, _: object = None) -> None:
        """Begin to lead."""
        self.feed(ev.LeaderStarted())

    def stop(self) -> None:
        """It leads no more: its streams end. What it has proposed may or may not come."""
        self.is_over = True
        for stream in list(self._sessions.values()):
            stream.close()

    def fire(self, call: tuple[Callable[[Any], object], object]) -> None:
        """Call it now, unless this leader is over."""
        if self.is_over:
            return
        function, argument = call
        self.world.acting = self.node
        try:
            function(argument)
        except SimulatedCrash:
            self.world.crash_coordinator(self.node)
        except Exception as error:
            self.world.core_failed(self.node, error)

    def feed(self, event: ev.Event) -> None:
        """Hand an event to the core and carry out what it says."""
        if self.is_over:
            return
        for command in self.core.handle(self.kernel.now_ns, event):
            self._carry_out(command)
        if self.core.wakeup_ns < self._wakeup_ns or not self._wakeup_ns:
            self._set_timer()

    def _set_timer(self) -> None:
        self._wakeup_ns = self.core.wakeup_ns
        self.kernel.at(self._wakeup_ns, self.fire, (self._timer_fired, self._wakeup_ns))

    def _timer_fired(self, wakeup_ns: int) -> None:
        if wakeup_ns != self._wakeup_ns:
            return
        if self.core.wakeup_ns > self.kernel.now_ns:
            self._set_timer()
            return
        self._wakeup_ns = 0
        self.feed(ev.TimerFired())

    # ---- streams --------------------------------------------------------------------------------------------------

    def attend(
        self, host: "SimHost", key: Hashable, received: Callable[[Any], None], closed: Callable[[Any], None]
    ) -> Stream:
        """A host has connected."""
        self._numbers += 1
        number = self._numbers

        def deliver(node: str, item: object) -> None:
            if node == host.name:
                host.fire((received, item))
            else:
                self.fire((self._hear, (number, item)))

        def ended(node: str) -> None:
            if node == host.name:
                host.later(self.kernel.now_ns, closed)
            else:
                self.kernel.at(self.kernel.now_ns, self.fire, (self._closed, number))

        stream = self.world.network.open((host.name, self.node), ("session", key), deliver, ended)
        self._sessions[number], self._hosts[number] = stream, host.name
        return stream

    def _hear(self, said: tuple[int, object]) -> None:
        number, item = said
        if number in self._sessions:
            assert isinstance(item, bytes)
            self.world.note_message(self.node)
            message = decode_host_message(item)
            if isinstance(message, AgentsFrozen):
                self.freezes.on_answered(number, message, self.kernel.now_ns)
            self.feed(ev.MessageReceived(number, message))

    def _closed(self, number: int) -> None:
        self.freezes.on_closed(number)
        if self._sessions.pop(number, None) is not None:
            self.feed(ev.StreamClosed(number))

    # ---- commands -------------------------------------------------------------------------------------------------

    def _carry_out(self, command: ev.Command) -> None:
        kind = type(command)
        if kind in self._calls:
            self._works += 1
            cost_ns = self.world.store_ns(self.node, (self.node, self.term, self._works))
            self.kernel.at(self.kernel.now_ns + cost_ns, self.fire, (self._work, command))
        elif kind in self._chores:
            self._works += 1
            begin_ns = max(self.kernel.now_ns, self._cleaning_until_ns)
            self._cleaning_until_ns = begin_ns + self.world.store_ns(self.node, (self.node, self.term, self._works))
            self.kernel.at(self._cleaning_until_ns, self.fire, (self._chore, command))
        else:
            self._say(command)

    def _work(self, command: ev.Command) -> None:
        answer = self._calls[type(command)](command)
        self.world.note_damage(getattr(answer, "damaged_path", ""))
        if isinstance(command, ev.PublishEpoch) and isinstance(answer, ev.EpochPublished) and not answer.error:
            self.world.note_published(command.epoch, command.root)
        self.feed(answer)

    def _chore(self, command: ev.Command) -> None:
        self._chores[type(command)](command)
        self.world.note_deleted(command, self.node)

    def _say(self, command: ev.Command) -> None:
        match command:
            case ev.SendDirective():
                streams = [self._sessions[number] for number in command.sessions if number in self._sessions]
                if isinstance(command.directive, FreezeAgents):
                    self._note_freeze(command.directive, command.sessions)
                if streams:
                    message = encode_directive(command.directive)
                    for stream in streams:
                        stream.send(self.node, message)
                        self.world.failpoint(WHEN_TELLING)
            case ev.Propose():
                self._propose(command)
            case ev.CloseStream():
                ending = self._sessions.get(command.session)
                if ending is not None:
                    self.kernel.at(ending.pipes[self.node].last_ns + 1, ending.close)
            case ev.Note():
                self.world.note_said(self.node, command.level, command.text)
            case ev.EndRun():
                self.world.fleet_ended(command.exit_code)
            case ev.AnswerSnapshot():
                self.world.snapshot_answered(self, command)
            case _:
                raise AssertionError(f"no way to carry out {command!r}")

    def _note_freeze(self, freeze: FreezeAgents, sessions: Iterable[int]) -> None:
        for number in sessions:
            if number in self._sessions:
                self.freezes.on_asked(number, self._hosts[number], freeze, self.kernel.now_ns)

    def _propose(self, command: ev.Propose) -> None:
        if isinstance(command.kind, CommitPlan):
            self.freezes.on_plan_proposed((command.client, command.sequence), self.kernel.now_ns)
        operation = Operation(self.world.wall_ns(self.node), command.client, command.sequence, command.kind)
        entry = encode_operation(operation)
        proposal = self.world.note_proposed(self.node, entry)
        answered: list[bool] = []

        def end(outcome: ProposalOutcome) -> None:
            if not answered:
                answered.append(True)
                self.world.note_outcome(proposal, outcome)
                self.fire((self._decided, ev.ProposalEnded(command.token, outcome)))

        self.world.log.propose(self.node, entry, end)
        late_ns = self.kernel.now_ns + PROPOSAL_TIMEOUT_NS
        self.kernel.at(late_ns, lambda _: end(Unknown("the log did not answer in time")))

    def _decided(self, event: ev.ProposalEnded) -> None:
        self.world.failpoint(WHEN_DECIDING)
        self.feed(event)


class Seat:
    """One replica's process.

    Attributes:
        leader: its leader, while it leads.
        known_leader: who leads, as far as it knows; empty if nobody does.
    """

    def __init__(self, world: "World", node: str) -> None:
        self.world = world
        self.node = node
        self.is_up = True
        self.leader: SimLeader | None = None
        self.known_leader = ""

    @property
    def leads(self) -> bool:
        return self.leader is not None

    def attend(
        self, host: "SimHost", key: Hashable, received: Callable[[Any], None], closed: Callable[[Any], None]
    ) -> Stream:
        """A host connects to the leader here."""
        assert self.leader is not None
        return self.leader.attend(host, key, received, closed)

    def on_standing(self, standing: Standing) -> None:
        """Who leads has changed, as this replica sees it."""
        self.known_leader = standing.leader
        if standing.is_leader and self.leader is None and self.is_up:
            self.leader = SimLeader(self.world, self.node, standing.term)
            self.leader.fire((self.leader.start, None))
        elif not standing.is_leader and self.leader is not None:
            self._stop_leading()

    def crash(self) -> None:
        """The process is gone."""
        self.is_up = False
        self._stop_leading()
        self.known_leader = ""

    def _stop_leading(self) -> None:
        leader, self.leader = self.leader, None
        if leader is not None:
            leader.stop()
