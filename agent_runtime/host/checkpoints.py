"""The part of a host core in which agents checkpoint by themselves, or for a koo-toueg round.

Theory of operation
-------------------
A fleet of any protocol but chandy-lamport keeps *sender logs*. What leaves an agent is kept, with its piggyback, until the
agent's next checkpoint, and goes into the store with it. So a cut of checkpoints has its in-transit messages in the store: a
checkpoint holds what its agent had sent by then (protocols.md, section 3). The coordinator makes whole epochs of such cuts;
plans then work as in every fleet, and nothing in here knows of recoveries, but for the freeze before one.

The frame of a message's turn (protocols.md, section 4): before it the rule may force a checkpoint, then merges what the message
brings. Between turns the policy may want a basic one. What a message carries stands in the mailbox where chandy-lamport
has its stamp.

*Frozen*: the coordinator wants a cut of live states. No turn starts any more and nothing leaves an outbox; each agent that
has moved takes a checkpoint as soon as its turn ends. A turn that runs on for a second is left out: its agent counts as
failed, as does one whose image cannot be taken. An agent that is *held* (frozen, or blocked by a round) takes no turn.

*Put off*: while too much waits for a slow or dead store, basic checkpoints are not taken. The agents go on, and each that has
missed one takes it when the store has caught up. Initial, forced and tentative ones are taken all the same, and those of a freeze.
What then has no room in memory any more makes the agents *stand still* (`backlog.py`).

Carries G3 and G6 with `protocols/rule.py`; G7 with the coordinator.
"""

import heapq

from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.backlog import LOGS_BYTES_MAX, Backlog
from snapline.agent_runtime.host.epochs import HostEpochs
from snapline.agent_runtime.host.local_agent import AgentInlet, AgentOutlet, Entry, LocalAgent
from snapline.agent_runtime.host.logged_agent import LoggedAgent, Tentative
from snapline.errors import ProtocolError
from snapline.protocols import koo_toueg as kt
from snapline.protocols.names import CIC_PROTOCOLS, is_autonomous
from snapline.protocols.policy import PolicyClock
from snapline.protocols.rules import make_rule, restore_rule
from snapline.storage.checkpoint import AgentCheckpoint

FREEZE_NS = 1_000_000_000
"""How long a freeze waits for running turns: a recovery waits as long, and a turn that is longer is lost with it."""

LOG_BYTES_MAX = 4 * 1024 * 1024
"""Of one agent's log in memory. Above that it takes a basic checkpoint, whatever its policy says: the log goes to the store."""

SAVE_NS = 100_000_000
"""Between two times that all agents save themselves because their logs are too many: what is left is of agents in long turns."""


class HostCheckpoints(HostEpochs):
    """Checkpoints of single agents. In chandy-lamport fleets `agent.logged` is None and nothing of this happens.

    Attributes:
        put_off: basic checkpoints that agents have missed, since the host's start, because the store was busy.
        backlog: what waits for the store.
    """

    put_off: int
    backlog: Backlog

    def _count_plan(self) -> None:
        """Each plan after the first one is a failure of the fleet: what an adaptive policy goes by."""
        self._plans_applied += 1
        self._first_plan_ns = self._first_plan_ns or self._now

    def _init_checkpoints(self) -> None:
        self._freeze = 0
        self._freeze_ns = 0
        self._unfrozen: dict[str, None] = {}
        self._looks: list[tuple[int, str, int]] = []
        self._asked: list[tuple[str, kt.CheckpointRequested]] = []
        self.backlog = Backlog()
        self._put_off: dict[str, None] = {}
        """Agents that have missed a basic checkpoint since the store became busy."""

    def _make_logged(self, agent: str, ordinal: int, checkpoint: AgentCheckpoint | None) -> LoggedAgent | None:
        """What an agent needs besides in a logged protocol; from its checkpoint, or as it begins."""
        if not self.is_logged:
            return None
        image = checkpoint.protocol_state if checkpoint is not None else b""
        number = checkpoint.number if checkpoint is not None else 0
        rule = rounds = None
        if not is_autonomous(self.protocol):
            rounds = kt.KooTouegCore(agent, latest_round=self.begun_epoch)
        elif checkpoint is not None and (image or not checkpoint.is_unborn):
            rule = restore_rule(self.protocol, ordinal, image)
        else:
            rule = make_rule(self.protocol, ordinal, len(self.ordinals))
        clock = PolicyClock(self.policy, agent, now_ns=self._now, number=number)
        clock.failure_rate(self._plans_applied - 1, self._now - self._first_plan_ns)
        logged = LoggedAgent(self.backlog, clock, rule, rounds)
        if checkpoint is not None:
            logged.settle(dict(checkpoint.sent), dict(checkpoint.received))
        return logged

    # ---- messages -------------------------------------------------------------------------------------------------

    def _keep(self, logged: LoggedAgent, outlet: AgentOutlet, payload: bytes) -> bytes:
        """A message leaves: log it, and return what it carries for the protocol."""
        rule = logged.rule
        if rule is None:
            piggyback = b""
            assert logged.rounds is not None
            logged.rounds.sent(outlet.receiver, outlet.number)
        else:
            piggyback = rule.send(self.ordinals[outlet.receiver])
            self.piggyback_bytes += len(piggyback)
            if rule.checkpoints_after_sends:
                logged.owe("forced")
        self.piggybacked += 1
        logged.keep(outlet.receiver, outlet.number, payload, piggyback)
        if outlet.owner.current is None:
            self._note_move(outlet.owner)  # it had waited for credit: the outbox is shorter than at the last checkpoint
        if logged.log_bytes > LOG_BYTES_MAX:
            self._owe_basic(outlet.owner.id, logged)
        if self.backlog.log_bytes > LOGS_BYTES_MAX:
            self._note_logs()
        return piggyback

    def _note_logs(self) -> None:
        backlog = self.backlog
        if self.is_autonomous and not backlog.is_busy:
            backlog.save_ns = backlog.save_ns or self._now
        elif not backlog.is_standing and self._must_stand():
            self._stand_still()

    def _admit(self, agent: LocalAgent, entry: Entry) -> None:
        """A message is about to be consumed: force a checkpoint if need be, then merge what it brings."""
        logged, inlet, piggyback = agent.logged, entry[0], entry[1]
        assert logged is not None
        if inlet is None or agent.admitted:
            return
        agent.admitted = True
        if logged.rule is None:
            return
        assert isinstance(piggyback, bytes)
        sender = self.ordinals.get(inlet.sender, -1)
        # What is not born yet has done nothing: its creation counts as the checkpoint before its first message.
        # One that was tried, and has waited, is merged already. What left meanwhile was sent before it, in this same interval.
        has_sent = agent.attempts > 0 and logged.log_messages > 0 and self.protocol in CIC_PROTOCOLS
        if agent.is_born and (has_sent or logged.rule.forces(sender, piggyback)):
            self._take(agent, "forced", cause=piggyback)
        logged.rule.receive(sender, piggyback)

    def _note_consumed(self, inlet: AgentInlet) -> None:
        """A turn, or the dead letters, have consumed the next message of this channel."""
        owner = inlet.owner
        if owner is None or owner.logged is None:
            return
        owner.admitted = False
        self._note_move(owner)
        if owner.logged.rounds is not None:
            owner.logged.rounds.consumed(inlet.sender, inlet.consumed)

    def _note_turn(self, agent: LocalAgent, *, wants_checkpoint: bool, is_own: bool) -> None:
        """A turn has ended; its message, unless the agent gave it to itself, has been noted already."""
        logged = agent.logged
        assert logged is not None
        logged.turns += 1
        if wants_checkpoint:
            logged.clock.asked()
        if is_own or wants_checkpoint:
            self._note_move(agent)

    def _note_move(self, agent: LocalAgent) -> None:
        """The agent differs from its last checkpoint. Is a basic one due?

        Without one, an agent that has come to rest would for ever look as if it had not.
        """
        logged = agent.logged
        if logged is None:
            return
        logged.has_moved = True
        if logged.rule is None:
            return
        logged.clock.consumed()
        if logged.clock.is_due(self._now):
            self._owe_basic(agent.id, logged)
        elif not logged.timer_ns:
            self._look_later(agent, logged)

    # ---- time -----------------------------------------------------------------------------------------------------

    def _look_later(self, agent: LocalAgent, logged: LoggedAgent) -> None:
        due = logged.clock.due_ns
        if due is not None:
            logged.timer_ns = due
            heapq.heappush(self._looks, (due, agent.id, self.plan))

    def _look(self) -> None:
        """The clock has passed times at which checkpoints were to be due, or a freeze has waited long enough."""
        while self._looks and self._looks[0][0] <= self._now:
            due, agent_id, plan = heapq.heappop(self._looks)
            agent = self.agents.get(agent_id)
            if agent is None or agent.logged is None or plan != self.plan or agent.logged.timer_ns != due:
                continue
            logged = agent.logged
            logged.timer_ns = 0
            if logged.clock.is_due(self._now):
                self._owe_basic(agent.id, logged)
                self._next_turn(agent)
            else:
                self._look_later(agent, logged)
        if 0 < self._freeze_ns <= self._now:
            self._report_frozen()
        if 0 < self.backlog.save_ns <= self._now:
            self._save_all()

    def _checkpoints_wakeup_ns(self) -> list[int]:
        times = [self._looks[0][0]] if self._looks else []
        if self.backlog.save_ns:
            times.append(self.backlog.save_ns)
        return [*times, self._freeze_ns] if self._freeze_ns else times

    # ---- taking ---------------------------------------------------------------------------------------------------

    def _settle_debts(self, agent: LocalAgent) -> None:
        """Between two turns: what was asked of the agent while it was busy."""
        logged = agent.logged
        assert logged is not None
        if agent.id in self._unfrozen:
            self._freeze_agent(agent)
            self._report_frozen_soon()
        elif logged.owed and not agent.is_held and agent.is_born and logged.has_moved:
            self._take(agent, logged.owed)
        if self._asked and logged.rounds is not None:
            self._ask_again(agent)

    def _take(self, agent: LocalAgent, basis: str, *, cause: bytes | None = None, round_: int = 0) -> None:
        """Capture the agent: state, numbers, log. The state must not change before the command is carried out."""
        logged = agent.logged
        assert logged is not None
        number = 0 if basis == "initial" else agent.checkpoints + 1
        if logged.rule is not None and basis != "initial":
            logged.rule.checkpoint(cause)
        core = logged.rule or logged.rounds
        assert core is not None
        sent = {outlet.receiver: outlet.number for outlet in agent.outlets.values() if outlet.number}
        received = {inlet.sender: inlet.consumed for inlet in agent.inlets.values() if inlet.consumed}
        self._out.append(
            ev.TakeCheckpoint(
                agent.id,
                basis,
                round_,
                self._control_of(agent, number, core.freeze()),
                sent,
                received,
                _changed(sent, logged.sent),
                _changed(received, logged.received),
                # A tentative one may come to nothing: then the log goes on. Otherwise it goes with the checkpoint.
                {receiver: messages[:] for receiver, messages in logged.log.items()}
                if basis == "tentative"
                else logged.log,
                logged.turns,
            )
        )
        self.checkpoints += 1
        self.forced += basis == "forced"
        if basis == "tentative":
            logged.tentative = Tentative(number, sent, received)
            return
        agent.checkpoints = number
        logged.settle(sent, received)
        logged.clock.taken(self._now)
        logged.timer_ns = 0

    def _on_checkpoint_measured(self, event: ev.CheckpointMeasured) -> None:
        agent = self.agents.get(event.agent)
        if agent is not None and agent.logged is not None:
            agent.logged.clock.measured(event.cost_ns)

    def _on_checkpoint_failed(self, event: ev.CheckpointFailed) -> None:
        """What the agent has done since its last durable checkpoint can never be saved: it goes back there."""
        agent = self.agents.get(event.agent)
        if agent is not None and agent.incarnation == event.incarnation and not agent.is_failed:
            self._fail(agent, event.reason)

    def _fail(self, agent: LocalAgent, reason: str) -> None:
        """The agent takes no more turns, and nothing leaves it, until a plan has brought it back."""
        agent.is_failed = True
        self._failed[agent.id] = reason
        self._out.append(ev.ReportAgentFailed(agent.id, agent.incarnation, reason))
        if self._freeze:
            self._unfrozen.pop(agent.id, None)
            self._report_frozen_soon()

    def _discard_turn(self, agent: LocalAgent) -> None:
        """The agent failed while its turn ran, or just before it: the checkpoint that a protocol had forced, say, could not be taken.

        What the turn did is lost with the state. Its message counts as not received, and nothing that it sent leaves: else
        others would build upon a checkpoint that does not exist.
        """
        assert agent.current is not None
        agent.mailbox.appendleft(agent.current)
        agent.current = None

    # ---- a store that does not keep up ----------------------------------------------------------------------------

    def _owe_basic(self, agent_id: str, logged: LoggedAgent) -> None:
        """A basic checkpoint is due. If it is put off, nothing is owed: else a forced one that follows would be taken for it."""
        if not self.backlog.is_busy:
            logged.owe("basic")
        elif agent_id not in self._put_off:
            self._put_off[agent_id] = None
            self.put_off += 1

    def _on_store_watched(self, event: ev.StoreWatched) -> None:
        """A busy store: what is owed is put off. A free one: what agents have missed they take."""
        backlog = self.backlog
        backlog.is_busy, backlog.is_full, backlog.problem = event.is_busy, event.is_full, event.problem
        if backlog.is_standing != self._must_stand():
            self._go_on() if backlog.is_standing else self._stand_still()
        if event.is_busy:
            for agent in self.agents.values():
                if agent.logged is not None and agent.logged.owed == "basic":
                    agent.logged.owed = ""
                    self._owe_basic(agent.id, agent.logged)
            return
        missed, self._put_off = self._put_off, {}
        for agent_id in missed:
            found = self.agents.get(agent_id)
            if found is not None and found.logged is not None and found.logged.has_moved:
                found.logged.owe("basic")
                self._next_turn(found)

    def _must_stand(self) -> bool:
        return self.backlog.must_stand(is_autonomous=self.is_autonomous)

    def _stand_still(self) -> None:
        """No agent takes a turn and nothing leaves one: neither logs nor the writer's queue have room."""
        self.backlog.is_standing = True
        for agent in self.agents.values():
            agent.is_held = True
        why = f": {self.backlog.problem}" if self.backlog.problem else ""
        self._note("warning", f"no more can wait in memory for the store: the agents stand still{why}")

    def _go_on(self) -> None:
        self.backlog.is_standing = False
        self._note("info", "there is room for logs and checkpoints again: the agents go on")
        for agent in list(self.agents.values()):
            self._release(agent)

    def _save_all(self) -> None:
        """Each log is small, and all together are too many: they go to the store."""
        for agent in list(self.agents.values()):
            if agent.logged is not None and agent.logged.log_bytes:
                self._owe_basic(agent.id, agent.logged)
                self._next_turn(agent)
        self.backlog.save_ns = self._now + SAVE_NS if self.backlog.log_bytes > LOGS_BYTES_MAX else 0

    # ---- freezing -------------------------------------------------------------------------------------------------

    def _on_agents_freeze_requested(self, event: ev.AgentsFreezeRequested) -> None:
        """A host that has not applied the plan, or came back since, has nothing that moved."""
        if event.plan != self.plan or not self.is_loaded or not self.is_logged:
            self._out.append(ev.ReportFrozen(event.plan, event.number, ()))
            return
        self._freeze = event.number
        self._freeze_ns = self._now + FREEZE_NS
        self._unfrozen = {agent.id: None for agent in self.agents.values() if not agent.is_failed}
        for agent in list(self.agents.values()):
            agent.is_held = True
            if agent.current is None and not agent.is_failed:
                self._freeze_agent(agent)
        self._report_frozen_soon()

    def _freeze_agent(self, agent: LocalAgent) -> None:
        """The live state of an agent between two turns becomes its newest checkpoint."""
        logged = agent.logged
        assert logged is not None
        if logged.has_moved and agent.is_born:
            self._take(agent, "basic")
        self._unfrozen.pop(agent.id, None)

    def _report_frozen_soon(self) -> None:
        """All stand still: say so when the images have been taken that were just asked for. One that fails is named."""
        if not self._unfrozen:
            self._freeze_ns = self._now

    def _report_frozen(self) -> None:
        failed = {agent.id: None for agent in self.agents.values() if agent.is_failed}
        self._out.append(ev.ReportFrozen(self.plan, self._freeze, tuple({**self._unfrozen, **failed})))
        self._unfrozen, self._freeze_ns = {}, 0

    def _on_agents_thawed(self, event: ev.AgentsThawed) -> None:
        """Number 0 ends whatever freeze there is: the coordinator says so to every host that comes back and is not to stand still."""
        if event.plan != self.plan or not self._freeze or event.number not in (0, self._freeze):
            return
        self._freeze = self._freeze_ns = 0
        self._unfrozen = {}
        for agent in list(self.agents.values()):
            self._release(agent)

    def _release(self, agent: LocalAgent) -> None:
        """The agent may go on: what its outbox held back leaves first."""
        logged = agent.logged
        assert logged is not None
        is_blocked = logged.rounds is not None and logged.rounds.is_blocked
        agent.is_held = is_blocked or self._freeze > 0 or self.backlog.is_standing
        if agent.is_held:
            return
        for outlet in list(agent.outlets.values()):
            self._unpark(outlet)
        self._next_turn(agent)

    # ---- rounds ---------------------------------------------------------------------------------------------------

    def _on_checkpoints_requested(self, event: ev.CheckpointsRequested) -> None:
        if event.plan != self.plan or not self.is_loaded:
            return
        answers: list[ev.CheckpointAnswer] = []
        for agent_id, asker, number in zip(event.agents, event.askers, event.numbers, strict=True):
            asked = kt.CheckpointRequested(event.epoch, asker or None, number)
            agent = self.agents.get(agent_id)
            if agent is None:  # just being created: it has received nothing that this round could know of
                answers.append(ev.CheckpointAnswer(agent_id, asker, True, False, 0, {}))
            elif agent.current is not None:
                self._asked.append((agent_id, asked))
            else:
                answers += self._ask(agent, asked)
        self._answer(event.epoch, answers)

    def _ask_again(self, agent: LocalAgent) -> None:
        """The agent's turn has ended: it can answer what it was asked meanwhile."""
        asked = [request for agent_id, request in self._asked if agent_id == agent.id]
        if asked and agent.current is None:
            self._asked = [entry for entry in self._asked if entry[0] != agent.id]
            for request in asked:
                self._answer(request.round, self._ask(agent, request))

    def _ask(self, agent: LocalAgent, asked: kt.CheckpointRequested) -> list[ev.CheckpointAnswer]:
        logged = agent.logged
        assert logged is not None and logged.rounds is not None
        if not agent.is_born or agent.is_failed:
            return [ev.CheckpointAnswer(agent.id, asked.by or "", not agent.is_failed, False, 0, {})]
        answers: list[ev.CheckpointAnswer] = []
        for command in logged.rounds.handle(self._now, asked):
            match command:
                case kt.TakeTentative():
                    self._take(agent, "tentative", round_=command.round)
                    agent.is_held = True
                case kt.Answer():
                    number = logged.tentative.number if logged.tentative is not None else 0
                    answers.append(
                        ev.CheckpointAnswer(
                            agent.id,
                            command.by or "",
                            command.is_willing,
                            command.is_participant,
                            number,
                            command.requests,
                        )
                    )
                case _:
                    raise AssertionError(f"a request does not lead to {command!r}")
        return answers

    def _answer(self, epoch: int, answers: list[ev.CheckpointAnswer]) -> None:
        if answers:
            self._out.append(ev.AnswerRound(epoch, self.plan, tuple(answers)))

    def _on_round_ended(self, event: ev.EpochEnded) -> None:
        """The round is decided: tentative checkpoints become permanent, or nothing."""
        self._asked = [entry for entry in self._asked if entry[1].round > event.epoch]
        for agent in list(self.agents.values()):
            logged = agent.logged
            if logged is None or logged.rounds is None:
                continue
            for command in logged.rounds.handle(self._now, kt.RoundDecided(event.epoch, event.is_complete)):
                tentative, logged.tentative = logged.tentative, None
                if isinstance(command, kt.MakePermanent):
                    if tentative is None:
                        raise ProtocolError(f"{agent.id}: round {event.epoch} is committed without its checkpoint")
                    agent.checkpoints = tentative.number
                    logged.settle(tentative.sent, tentative.received)
                    if self.trace_every:
                        self._out.append(ev.Trace("checkpoint", agent.id, "basic", tentative.number))
            if agent.is_held:
                self._release(agent)
        if self.backlog.is_standing and not self._must_stand():
            self._go_on()

    # ---- where the agents stand -----------------------------------------------------------------------------------

    def _on_numbers_requested(self, event: ev.NumbersRequested) -> None:
        places = []
        for agent in self.agents.values():
            logged = agent.logged
            if logged is not None and logged.has_moved:
                received = {inlet.sender: inlet.consumed for inlet in agent.inlets.values() if inlet.consumed}
                places.append(ev.LivePlace(agent.id, _changed(received, logged.received), logged.turns))
        self._out.append(ev.ReportLive(event.request, event.plan, tuple(places)))

    def _validate_checkpoints(self) -> None:
        logs = [agent.logged.log_bytes for agent in self.agents.values() if agent.logged is not None]
        assert self.backlog.log_bytes == sum(logs), (self.backlog.log_bytes, logs)
        for agent in self.agents.values():
            logged = agent.logged
            assert (logged is not None) == self.is_logged, agent.id
            if logged is None:
                continue
            for receiver, messages in logged.log.items():
                last, first = agent.outlets[receiver].number, logged.sent.get(receiver, 0)
                assert [message.number for message in messages] == list(range(first + 1, last + 1)), (
                    agent.id,
                    receiver,
                )
            assert (logged.rule is None) != (logged.rounds is None), agent.id
            assert agent.is_held or not self.backlog.is_standing, agent.id
            if logged.rule is not None and agent.current is None and not agent.is_failed:
                self._validate_rest(agent, logged)
            if logged.rounds is not None:
                logged.rounds.validate()
                assert logged.rounds.is_blocked == (logged.tentative is not None), agent.id
                assert agent.is_held or not logged.rounds.is_blocked, agent.id

    def _validate_rest(self, agent: LocalAgent, logged: LoggedAgent) -> None:
        """An agent that rests from here on takes the checkpoint of where it rests: else the line never reaches it."""
        if not logged.has_moved:
            return
        assert logged.clock.has_consumed, f"{agent.id} has moved, and its clock was not told"
        is_awaited = bool(logged.owed or logged.timer_ns) or agent.id in self._put_off
        assert is_awaited or logged.clock.due_ns is None, f"nobody looks at {agent.id} again"
        assert agent.is_held or not agent.is_born or not logged.owed, (
            f"{agent.id} owes a checkpoint and does not take it"
        )


def _changed(numbers: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {channel: number for channel, number in numbers.items() if before.get(channel) != number}
