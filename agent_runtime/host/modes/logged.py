"""Host mode for all protocols except chandy-lamport. Agents take checkpoints independently, or together in koo-toueg rounds.

Each agent keeps a *sender log*, which holds each message that the agent has sent, with its piggyback, until the agent's next checkpoint
stores it. A checkpoint therefore includes all messages sent before it, so the store contains the messages in transit for every cut of
checkpoints (protocols.md, section 3). The coordinator builds epochs from such cuts, and recovery plans then work as in every other fleet.

Before a message's turn, the protocol's rule may force a checkpoint. The rule then merges the message's piggyback (protocols.md, section 4).
Between turns, the checkpoint policy may request a basic checkpoint (`logged_checkpoints.py`), or a round may request a tentative
checkpoint. The protocol data attached to each message is its piggyback.

*Freezes.* Before a recovery, the coordinator requests the agents' current states. During a freeze, no turn starts and no message leaves an
outbox. Each agent that has changed since its last checkpoint takes a checkpoint as soon as its current turn ends. If the turn runs for more
than another second, or the state cannot be encoded, the agent counts as failed.

*Rounds* follow the protocol of Koo and Toueg. The coordinator asks agents to take tentative checkpoints, and later sends the outcome of the
round. An agent with a tentative checkpoint is held until it receives the outcome. The protocol of a single agent is in
`protocols/koo_toueg.py`.

Guarantees: this module carries G3 and G6 together with `protocols/rule.py`, and G7 together with the coordinator.
"""

from collections.abc import Iterable, Sequence

import msgspec

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.entries import IDLE, Entry, Mark, MessageEntry
from snapline.agent_runtime.host.host_state import AgentInlet, AgentOutlet, LocalAgent, Peer
from snapline.agent_runtime.host.logged_agent import LOGS_BYTES_MAX, LoggedAgent
from snapline.agent_runtime.host.modes.logged_checkpoints import AgentPause, HoldReasons, Saving, changed
from snapline.agent_runtime.host.modes.mode import CheckpointCondition, Handlers
from snapline.agent_runtime.host.plans import HostParts
from snapline.channels.link_events import DeliverItems, DeliverMarker
from snapline.errors import ProtocolError
from snapline.messages import host_messages as msg
from snapline.protocols import koo_toueg as kt
from snapline.protocols.names import CIC_PROTOCOLS, is_autonomous
from snapline.protocols.policy import Policy, PolicyClock
from snapline.protocols.rules import make_rule, restore_rule
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage

FREEZE_NS = 1_000_000_000
"""Longest time for which a freeze waits for running turns. This wait delays the recovery, and a turn that runs longer is lost."""


class HostFreeze:
    """Takes part in freezes on behalf of this host. `HoldReasons.freeze` contains the number of the freeze.

    Attributes:
        unfrozen: agents whose current turn started before the freeze and is still running.
    """

    def __init__(self, parts: HostParts, holds: HoldReasons, saving: Saving) -> None:
        self._shared = parts.shared
        self._holds = holds
        self._saving = saving
        self.unfrozen: dict[str, None] = {}
        self._report_ns: int | None = None

    def reset(self) -> None:
        """Stop waiting for the current freeze, if there is one."""
        self.unfrozen = {}
        self._report_ns = None

    def on_freeze_agents(self, event: msg.FreezeAgents) -> None:
        """Freeze all agents. If this host has not applied the plan, or has restarted since, it has no changed agents, so it reports
        immediately."""
        shared = self._shared
        if event.plan != shared.plan or not shared.is_loaded:
            shared.out.append(ev.ReportFrozen(event.plan, event.number, ()))
            return
        self._report_ns = shared.now + FREEZE_NS
        self.unfrozen = {agent.id: None for agent in shared.agents.values() if not agent.is_failed}
        self._holds.freeze_all(event.number)
        for agent in list(shared.agents.values()):
            if not agent.is_busy and not agent.is_failed:
                self._freeze(agent)
        self._report_soon()

    def settle(self, agent: LocalAgent) -> bool:
        """Freeze this agent, which is between two turns, if the freeze waits for it. Return whether it was frozen."""
        if agent.id not in self.unfrozen:
            return False
        self._freeze(agent)
        self._report_soon()
        return True

    def failed(self, agent: LocalAgent) -> None:
        """Stop waiting for an agent's turn because the agent has failed."""
        if self._holds.freeze is not None:
            self.unfrozen.pop(agent.id, None)
            self._report_soon()

    def _freeze(self, agent: LocalAgent) -> None:
        """Between two turns, take a checkpoint of an agent's state if the state has changed."""
        if agent.logged.has_moved and agent.is_born:
            self._saving.take(agent, "basic")
        self.unfrozen.pop(agent.id, None)

    def _report_soon(self) -> None:
        """Schedule the report for the current time if all agents are frozen, so that the requested checkpoints are taken first. The report
        names failed agents."""
        if not self.unfrozen:
            self._report_ns = self._shared.now

    def wakeups_ns(self) -> list[int]:
        """Return the times at which the caller must call `clock_passed`."""
        return [] if self._report_ns is None else [self._report_ns]

    def clock_passed(self) -> None:
        """Report the end of the freeze if all agents are frozen or the time limit has passed."""
        if self._report_ns is not None and self._report_ns <= self._shared.now:
            self._report()

    def _report(self) -> None:
        assert self._holds.freeze is not None
        failed = {agent.id: None for agent in self._shared.agents.values() if agent.is_failed}
        running = tuple({**self.unfrozen, **failed})
        self._shared.out.append(ev.ReportFrozen(self._shared.plan, self._holds.freeze, running))
        self.reset()

    def on_thaw_agents(self, event: msg.ThawAgents) -> None:
        """End the freeze with this number. Number 0 ends any freeze. The coordinator sends 0 to a returning host that must not be
        frozen."""
        freeze = self._holds.freeze
        if event.plan != self._shared.plan or freeze is None or event.number not in (0, freeze):
            return
        self.reset()
        self._holds.thaw()


class CheckpointAnswer(msgspec.Struct, frozen=True, gc=False):
    """One agent's answer to a checkpoint request in a round. `asker` is the agent that sent the request, or "" if the answering agent
    initiates the round.

    `number` is the number of the agent's tentative checkpoint, or 0 if it takes none. `requests` contains the agents to which requests must
    go next, each with the sequence number of the last message received from it.
    """

    agent: str
    asker: str
    is_willing: bool
    is_participant: bool
    number: int
    requests: dict[str, int]


class HostRounds:
    """Takes part in koo-toueg rounds on behalf of this host, as described in the module docstring."""

    def __init__(self, parts: HostParts, holds: HoldReasons, saving: Saving, standing: AgentPause) -> None:
        self._shared = parts.shared
        self._holds = holds
        self._saving = saving
        self._standing = standing
        self._asked: list[tuple[str, kt.CheckpointRequested]] = []
        """Requests to agents with a running turn."""

    def reset(self) -> None:
        """Forget all rounds because a recovery plan has ended the history of all agents on this host."""
        self._asked = []

    def on_request_checkpoints(self, event: msg.RequestCheckpoints) -> None:
        if event.plan != self._shared.plan or not self._shared.is_loaded:
            return
        answers: list[CheckpointAnswer] = []
        for agent_id, asker, number in zip(event.agents, event.askers, event.numbers, strict=True):
            request = kt.CheckpointRequested(event.epoch, asker or None, number)
            agent = self._shared.agents.get(agent_id)
            if agent is None:  # it is being created, and has received no message that matters for this round
                answers.append(CheckpointAnswer(agent_id, asker, True, False, 0, {}))
            elif agent.is_busy:
                self._asked.append((agent_id, request))
            else:
                answers += self._ask(agent, request)
        self._answer(event.epoch, answers)

    def ask_again(self, agent: LocalAgent) -> None:
        """Answer the round requests that arrived during the agent's turn."""
        requests = [request for agent_id, request in self._asked if agent_id == agent.id] if self._asked else []
        if requests and not agent.is_busy:
            self._asked = [entry for entry in self._asked if entry[0] != agent.id]
            for request in requests:
                self._answer(request.round, self._ask(agent, request))

    def _ask(self, agent: LocalAgent, asked: kt.CheckpointRequested) -> list[CheckpointAnswer]:
        logged = agent.logged
        if not agent.is_born or agent.is_failed or logged.rounds is None:
            return [CheckpointAnswer(agent.id, asked.by or "", not agent.is_failed, False, 0, {})]
        answers: list[CheckpointAnswer] = []
        for command in logged.rounds.handle(self._shared.now, asked):
            match command:
                case kt.TakeTentative():
                    self._saving.take(agent, "tentative", round_=command.round)
                    agent.is_held = True
                case kt.Answer():
                    number = logged.tentative.number if logged.tentative is not None else 0
                    answers.append(
                        CheckpointAnswer(
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

    def _answer(self, epoch: int, answers: list[CheckpointAnswer]) -> None:
        if answers:
            self._shared.out.append(
                _columns_of(answers, epoch=epoch, plan=self._shared.plan, host_start=self._shared.start)
            )

    def ended(self, event: msg.EndEpoch) -> None:
        """Handle the outcome of a round: make the round's tentative checkpoints permanent, or discard them."""
        self._asked = [entry for entry in self._asked if entry[1].round > event.epoch]
        for agent in list(self._shared.agents.values()):
            if agent.logged.rounds is None:
                continue
            for command in agent.logged.rounds.handle(
                self._shared.now, kt.RoundDecided(event.epoch, event.is_complete)
            ):
                self._decide(agent, event.epoch, is_permanent=isinstance(command, kt.MakePermanent))
            if agent.is_held:
                self._holds.release(agent)
        self._standing.look()

    def _decide(self, agent: LocalAgent, epoch: int, *, is_permanent: bool) -> None:
        logged = agent.logged
        tentative, logged.tentative = logged.tentative, None
        if not is_permanent:
            return
        if tentative is None:
            raise ProtocolError(f"{agent.id}: round {epoch} is committed without its checkpoint")
        agent.checkpoints = tentative.number
        logged.settle(tentative.sent, tentative.received)
        if self._shared.trace_every:
            self._shared.out.append(ev.Trace("checkpoint", agent.id, "basic", tentative.number))


def _columns_of(answers: list[CheckpointAnswer], *, epoch: int, plan: int, host_start: int) -> msg.CheckpointsAnswered:
    requests = [(index, *request) for index, answer in enumerate(answers) for request in answer.requests.items()]
    return msg.CheckpointsAnswered(
        epoch=epoch,
        plan=plan,
        host_start=host_start,
        agents=tuple([answer.agent for answer in answers]),
        willing=tuple([answer.is_willing for answer in answers]),
        participants=tuple([answer.is_participant for answer in answers]),
        numbers=tuple([answer.number for answer in answers]),
        request_of=tuple([index for index, _, _ in requests]),
        request_to=tuple([receiver for _, receiver, _ in requests]),
        request_number=tuple([number for _, _, number in requests]),
        askers=tuple([answer.asker for answer in answers]),
    )


LOG_BYTES_MAX = 4 * 1024 * 1024
"""Largest size of one agent's sender log in memory. Above it, the agent takes a basic checkpoint, which stores the log, even if its policy
requires none."""


class LoggedMode:
    """Host mode for fleets whose agents keep sender logs.

    Attributes:
        holds: reasons why agents are held, with the backlog of data for the store.
    """

    def __init__(self, parts: HostParts, protocol: str, policy: Policy) -> None:
        self._shared = parts.shared
        self._ends = parts.ends
        self._mailboxes = parts.mailboxes
        self._membership = parts.membership
        self._protocol = protocol
        self._policy = policy
        self._is_autonomous = is_autonomous(protocol)
        self.holds = HoldReasons(parts)
        self._saving = Saving(parts, self.holds)
        self._standing = AgentPause(parts, self.holds, self._saving, is_autonomous=self._is_autonomous)
        self._freeze = HostFreeze(parts, self.holds, self._saving)
        self._rounds = HostRounds(parts, self.holds, self._saving, self._standing)

    def handlers(self) -> Handlers:
        return {
            msg.FreezeAgents: self._freeze.on_freeze_agents,
            msg.ThawAgents: self._freeze.on_thaw_agents,
            msg.RequestCheckpoints: self._rounds.on_request_checkpoints,
            msg.ReportNumbers: self._on_report_numbers,
            ev.CheckpointMeasured: self._saving.on_checkpoint_measured,
            ev.CheckpointFailed: self._saving.on_checkpoint_failed,
            ev.StoreStatusChanged: self._standing.on_store_status_changed,
        }

    # ---- messages -------------------------------------------------------------------------------------------------

    def mark(self, outlet: AgentOutlet, payload: bytes) -> Mark:
        """Add the message to the sender log, and return the message's piggyback."""
        shared, owner = self._shared, outlet.owner
        logged = owner.logged
        rule, piggyback = logged.rule, b""
        if shared.is_watched:
            is_in_turn = logged.admitted or owner.attempts > 0
            shared.out.append(ev.LoggedMessageSent(outlet.sender, outlet.receiver, is_in_turn))
        if rule is not None:
            piggyback = rule.send(outlet.ordinal)
            shared.counts.piggyback_bytes += len(piggyback)
            if rule.checkpoints_after_sends:
                logged.owe("forced")
        elif logged.rounds is not None:
            logged.rounds.sent(outlet.receiver, outlet.number)
        shared.counts.piggybacked += 1
        logged.keep(outlet.receiver, outlet.number, payload, piggyback)
        if owner.stage is IDLE:
            # The message was parked, so the outbox is now shorter than at the last checkpoint.
            self._saving.moved(owner)
        if logged.log_bytes > LOG_BYTES_MAX:
            self._saving.owe_basic(owner.id, logged)
        if logged.backlog.log_bytes > LOGS_BYTES_MAX:
            self._standing.note_logs()
        return piggyback

    def columns(self, marks: list[Mark]) -> tuple[list[int], list[bytes]]:
        return [self._shared.begun_epoch], marks  # type: ignore[return-value]  # this mode's marks are piggybacks

    def marks(self, items: DeliverItems) -> Sequence[Mark]:
        return items.piggybacks or [b""] * len(items.channels)

    def mark_of(self, message: InTransitMessage) -> Mark:
        return message.piggyback

    def arrived(self, owner: LocalAgent, inlet: AgentInlet, mark: Mark, payload: bytes) -> None:
        """Do nothing, because the protocol rule processes a message only just before the message's turn."""

    def consuming(self, agent: LocalAgent, entry: Entry) -> None:
        """Take a forced checkpoint if the protocol rule requires one. Afterwards, merge the message's piggyback."""
        logged = agent.logged
        if not isinstance(entry, MessageEntry) or logged.admitted:
            return
        logged.admitted = True
        if logged.rule is None:
            return
        piggyback, sender = entry.mark, self._shared.ordinals.get(entry.inlet.sender, -1)
        assert isinstance(piggyback, bytes)
        # An unborn agent has done no work, so its creation counts as the checkpoint before its first message. If the message is retried,
        # its piggyback has already been merged, but messages that left since then would precede it in the same interval.
        has_sent = agent.attempts > 0 and logged.log_messages > 0 and self._protocol in CIC_PROTOCOLS
        if agent.is_born and (has_sent or logged.rule.forces(sender, piggyback)):
            self._saving.take(agent, "forced", cause=piggyback)
        logged.rule.receive(sender, piggyback)

    def consumed(self, inlet: AgentInlet) -> None:
        owner = inlet.owner
        if owner is None:
            return
        logged = owner.logged
        logged.admitted = False
        self._saving.moved(owner)
        if logged.rounds is not None:
            logged.rounds.consumed(inlet.sender, inlet.consumed)

    # ---- turns ----------------------------------------------------------------------------------------------------

    def before_turn(self, agent: LocalAgent) -> None:
        self._settle_owed(agent)
        if agent.is_retiring and not agent.is_held:
            self._mailboxes.drain(agent)
            self._settle_owed(agent)

    def _settle_owed(self, agent: LocalAgent) -> None:
        """Between two turns, execute the requests that arrived while the agent was busy."""
        logged = agent.logged
        is_freezing = bool(self._freeze.unfrozen) and self._freeze.settle(agent)
        if not is_freezing and logged.owed and not agent.is_held and agent.is_born and logged.has_moved:
            self._saving.take(agent, logged.owed)
        if logged.rounds is not None:
            self._rounds.ask_again(agent)

    def turn_ended(self, agent: LocalAgent, entry: Entry, event: ev.TurnEnded) -> None:
        """Count a turn that has ended, and record that the agent has changed. If the turn's message came over a channel, `consumed` has
        already recorded the change."""
        logged = agent.logged
        logged.turns += 1
        if event.wants_checkpoint:
            logged.clock.asked()
        if event.wants_checkpoint or not isinstance(entry, MessageEntry):
            self._saving.moved(agent)

    def moved(self, agent: LocalAgent) -> None:
        self._saving.moved(agent)

    def tried(self, agent: LocalAgent) -> None:
        """Let the protocol rule process the message again at its retry, because messages may leave and checkpoints may be taken before the
        retry."""
        agent.logged.admitted = False
        if agent.logged.has_moved:
            self._saving.moved(agent)  # a message left the outbox during the turn

    def awaited(self, agent: LocalAgent) -> None:
        """Make the agent's next checkpoint due as soon as possible, because a client waits for an epoch that contains the agent's work."""
        if agent.logged.has_moved or agent.is_busy:
            agent.logged.clock.asked()
            self._saving.moved(agent)
            self._mailboxes.next_turn(agent)

    def outbox_shrank(self, owner: LocalAgent) -> None:
        if owner.logged.owed:
            self._mailboxes.next_turn(owner)  # a checkpoint may be due since messages left

    # ---- agents ---------------------------------------------------------------------------------------------------

    def place(self, agent: LocalAgent, checkpoint: AgentCheckpoint | None) -> None:
        ordinal = self._shared.ordinals[agent.id]
        agent.logged = logged = self._make(agent.id, ordinal, checkpoint)
        agent.owes = True  # rules and rounds are checked before each turn
        if checkpoint is not None:
            logged.settle(dict(checkpoint.sent), dict(checkpoint.received))

    def _make(self, agent: str, ordinal: int, checkpoint: AgentCheckpoint | None) -> LoggedAgent:
        """Create the additional record that an agent has in fleets with sender logs, from the agent's checkpoint or in the initial
        state."""
        image = checkpoint.protocol_state if checkpoint is not None else b""
        number = checkpoint.number if checkpoint is not None else 0
        rule = rounds = None
        if not self._is_autonomous:
            rounds = kt.KooTouegCore(agent, latest_round=self._shared.begun_epoch)
        elif checkpoint is not None and (image or not checkpoint.is_unborn):
            rule = restore_rule(self._protocol, ordinal, image)
        else:
            rule = make_rule(self._protocol, ordinal, len(self._shared.ordinals))
        clock = PolicyClock(self._policy, agent, now_ns=self._shared.now, number=number)
        counts = self._shared.counts  # each plan after the first means a failure, which adaptive policies count
        clock.failure_rate(counts.plans - 1, self._shared.now - counts.first_plan_ns)
        return LoggedAgent(self.holds.backlog, clock, rule, rounds)

    def create(self, child: LocalAgent, reserved: msg.AgentsReserved) -> None:
        child.logged = self._make(child.id, self._shared.ordinals.get(child.id, 0), None)
        child.owes = True
        child.is_held = self.holds.are_all_held

    def created(self) -> None:
        """Do nothing, because no epoch waits for newly created agents."""

    def retiring(self, agent: LocalAgent) -> None:
        """Request the last checkpoint of an agent that is about to leave. The agent may leave when an epoch contains this checkpoint and
        records all the agent's messages as received."""
        agent.logged.owe("basic")
        self._mailboxes.next_turn(agent)

    def retired(self, agent: LocalAgent, open_epochs: Sequence[int]) -> None:
        agent.retired_in = self._shared.not_ended(open_epochs)

    def removed(self, agent: LocalAgent) -> None:
        agent.logged.drop_log()
        self._ends.close_all(agent)

    def failed(self, agent: LocalAgent) -> None:
        self._freeze.failed(agent)

    def receiver_gone(self, sender: LocalAgent, receiver: str) -> None:
        sender.logged.forget(receiver)

    # ---- plans, epochs, time --------------------------------------------------------------------------------------

    def reset(self) -> None:
        for part in (self.holds, self._saving, self._freeze, self._rounds):
            part.reset()

    def loaded(self, agents: Iterable[ev.LoadedAgent]) -> None:
        """Take a checkpoint of each loaded agent that is in its initial state. An initial state is not in the store yet, and a recovery
        line can contain only agents that have a checkpoint."""
        for loaded in agents:
            if loaded.checkpoint is None:
                self._saving.take(self._shared.agents[loaded.agent], "initial")

    def welcomed(self) -> None:
        """Do nothing, because the checkpoint writer itself repeats its reports of durable checkpoints."""

    def is_behind(self, agent: LocalAgent, peer: Peer) -> bool:
        return False

    def linked(self, peer: Peer) -> None:
        """Do nothing, because a single agent's checkpoint does not involve links."""

    def marker_received(self, peer: Peer, marker: DeliverMarker) -> None:
        raise ProtocolError(f"{peer.host} has sent a marker of epoch {marker.epoch} in a logged fleet")

    def epoch_ended(self, event: msg.EndEpoch) -> None:
        if event.epoch not in self._shared.ended:
            self._shared.ended.append(event.epoch)
            self._rounds.ended(event)
            self._membership.release_retired(event.epoch)

    def _on_report_numbers(self, event: msg.ReportNumbers) -> None:
        """Report the channels' sequence numbers of all agents that have changed since their last checkpoints."""
        names: dict[str, int] = {}
        agents: list[int] = []
        received: list[tuple[int, int, int]] = []
        moved_agents = [agent for agent in self._shared.agents.values() if agent.logged.has_moved]
        for index, agent in enumerate(moved_agents):
            agents.append(names.setdefault(agent.id, len(names)))
            for sender, number in changed(agent.received(), agent.logged.received).items():
                received.append((index, names.setdefault(sender, len(names)), number))
        self._shared.out.append(
            msg.NumbersReported(
                event.request, event.plan, tuple(names), tuple(agents),
                received_of=tuple([agent_id for agent_id, _, _ in received]),
                received_from=tuple([sender for _, sender, _ in received]),
                received_number=tuple([number for _, _, number in received]),
                turns=tuple([agent.logged.turns for agent in moved_agents]),
            )
        )  # fmt: skip

    def clock_passed(self) -> None:
        for part in (self._saving, self._freeze, self._standing):
            part.clock_passed()

    def wakeups_ns(self) -> list[int]:
        return [*self._saving.wakeups_ns(), *self._standing.wakeups_ns(), *self._freeze.wakeups_ns()]

    def standing(self) -> CheckpointCondition:
        logged = [agent.logged for agent in self._shared.agents.values()]
        backlog = self.holds.backlog
        return CheckpointCondition(
            log_messages=sum(logged_agent.log_messages for logged_agent in logged),
            log_bytes=sum(logged_agent.log_bytes for logged_agent in logged),
            store_problem=backlog.problem,
            is_standing=backlog.is_standing,
            freeze=self.holds.freeze,
        )

    # ---- invariants -----------------------------------------------------------------------------------------------

    def validate(self) -> None:
        logs = [agent.logged.log_bytes for agent in self._shared.agents.values()]
        backlog = self.holds.backlog
        assert backlog.log_bytes == sum(logs), (backlog.log_bytes, logs)
        for agent in self._shared.agents.values():
            logged = agent.logged
            for receiver, messages in logged.log.items():
                last, first = agent.outlets[receiver].number, logged.sent.get(receiver, 0)
                numbers = [message.number for message in messages]
                assert numbers == list(range(first + 1, last + 1)), (agent.id, receiver)
            assert (logged.rule is None) != (logged.rounds is None), agent.id
            assert agent.is_held or not backlog.is_standing, agent.id
            if logged.rule is not None and not agent.is_busy and not agent.is_failed:
                self._saving.validate_rest(agent, logged)
            if logged.rounds is not None:
                logged.rounds.validate()
                assert logged.rounds.is_blocked == (logged.tentative is not None), agent.id
                assert agent.is_held or not logged.rounds.is_blocked, agent.id
