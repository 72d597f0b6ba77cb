"""The part of the host core that decides which agents the host has: it applies plans, and creates and retires agents.

A plan drops all agents on the host, and loads the plan's agents from the recovery line.

After the coordinator has reserved an agent's id, the parent sends a creation message with the new agent's kind and initial state. A stopped
agent leaves once its outputs have been released and all epochs that began before the commit of its departure have ended.
"""

from collections.abc import Container, Sequence
from operator import attrgetter

import msgspec

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.agent_effects import AgentEffects
from snapline.agent_runtime.host.channel_ends import ChannelEnds, Outlets
from snapline.agent_runtime.host.commits import Commits
from snapline.agent_runtime.host.entries import (
    IDLE,
    Mark,
    MessageEntry,
    Stage,
    StartEntry,
    TimerEntry,
    is_from_others,
    message_entry,
)
from snapline.agent_runtime.host.failures import HostFailures
from snapline.agent_runtime.host.host_effects import Effects
from snapline.agent_runtime.host.host_inputs import Inputs
from snapline.agent_runtime.host.host_log import OwnLog, StepLog
from snapline.agent_runtime.host.host_outputs import Outputs
from snapline.agent_runtime.host.host_state import (
    DEAD_LETTERS_KEPT,
    AgentInlet,
    DurableTurn,
    HostState,
    LocalAgent,
    Peer,
    decode_released,
)
from snapline.agent_runtime.host.links import HostLinks
from snapline.agent_runtime.host.mailboxes import Mailboxes, Timers
from snapline.agent_runtime.host.modes.mode import EpochRequest, HostMode
from snapline.agent_runtime.host.views import Views
from snapline.agent_runtime.recorded_answers import AnswerBook, AskedQuestions
from snapline.errors import ProtocolError
from snapline.messages import host_messages as msg
from snapline.messages.host_messages import Quiesce
from snapline.messages.payloads import CREATE, plain_name
from snapline.storage.log.commits import COMMIT
from snapline.storage.packs.checkpoint import AgentCheckpoint, SavedEffects


def _only_loaded(event: ev.AgentsLoaded, present: Container[str]) -> ev.AgentsLoaded:
    """Return the event without the log entries of agents that are on this host already, and have handled them."""
    return msgspec.structs.replace(
        event,
        inputs=tuple([logged for logged in event.inputs if logged.agent not in present]),
        dropped=tuple([logged for logged in event.dropped if logged.agent not in present]),
        entries=tuple([logged for logged in event.entries if logged.agent not in present]),
    )


def creation_payload(kind: str, state: bytes) -> bytes:
    """Return the payload of a creation message: a zero byte, the length of the kind (2 bytes), the kind, and the state."""
    name = kind.encode()
    return b"".join((CREATE, len(name).to_bytes(2, "big"), name, state))


class Membership:
    """Creates and retires agents by requests to the coordinator, and keeps the work that waits for the replies.

    Attributes:
        reservations: for each request number, the parent and the requested ids and kinds.
    """

    _mode: HostMode

    def __init__(
        self,
        shared: HostState,
        ends: ChannelEnds,
        outlets: Outlets,
        mailboxes: Mailboxes,
        failures: HostFailures,
        inputs: Inputs,
        outputs: Outputs,
        steps: StepLog,
        views: Views,
        commits: Commits,
    ) -> None:
        self._shared = shared
        self._ends = ends
        self._outlets = outlets
        self._mailboxes = mailboxes
        self._failures = failures
        self._inputs = inputs
        self._outputs = outputs
        self._steps = steps
        self._views = views
        self._commits = commits
        self.reservations: dict[int, tuple[str, tuple[msg.AgentKind, ...]]] = {}
        self._retirements: dict[int, str] = {}
        self._early: dict[str, list[tuple[AgentInlet, Mark, bytes | None]]] = {}
        """Messages that have arrived for agents that are being created, by agent. A payload of None stands for the opening of a channel."""

    def wire(self, mode: HostMode) -> None:
        """Store references to parts of the host core that are created after this part."""
        self._mode = mode

    def reset(self) -> None:
        """Clear all requests when a recovery plan ends the history of all agents on this host."""
        for pending in (self.reservations, self._retirements, self._early):
            pending.clear()

    def welcomed(self) -> None:
        """Resend the requests that the coordinator may not have received."""
        shared = self._shared
        for request, (parent, requested) in self.reservations.items():
            shared.out.append(msg.ReserveAgents(request, shared.plan, requested, parent=parent))
        for request, agent in self._retirements.items():
            shared.out.append(msg.RetireAgent(request, shared.plan, agent))

    # ---- creation -------------------------------------------------------------------------------------------------

    def hold(self, agent: LocalAgent, event: ev.TurnEnded) -> None:
        """Hold the messages of a turn that spawns agents until the coordinator has reserved the new agents' ids."""
        agent.held = event.sends
        agent.spawns = event.spawns
        if self._shared.commits.is_on:
            self._commits.say(agent)
        else:
            self.reserve(agent)

    def reserve_committed(self, agent: LocalAgent) -> None:
        """Reserve the ids of the agents that this agent spawns, because a durable commit contains the request."""
        if all(parent != agent.id for parent, _ in self.reservations.values()):
            self.reserve(agent)

    def reserve(self, agent: LocalAgent) -> None:
        """Ask the coordinator to reserve the ids of the agents that this agent spawns."""
        request = self._shared.next_request()
        requested = tuple([msg.AgentKind(name, plain_name(kind)) for name, kind, _ in agent.spawns])
        self.reservations[request] = (agent.id, requested)
        self._shared.out.append(msg.ReserveAgents(request, self._shared.plan, requested, parent=agent.id))

    def on_agents_reserved(self, event: msg.AgentsReserved) -> None:
        if event.request not in self.reservations:
            return
        parent, requested = self.reservations[event.request]
        agent = self._shared.agents[parent]
        self._shared.ordinals.update(zip([agent_kind.agent for agent_kind in requested], event.ordinals, strict=False))
        spawns, agent.spawns = agent.spawns, []
        held, agent.held = agent.held, []
        agent.stage = Stage.SENDING
        for name, kind, state in spawns:
            if event.refused:
                self._discard_reservation(agent, name, creation_payload(kind, state), event.refused)
            else:
                self._create(agent, name, kind, state, event)
        del self.reservations[event.request]  # not earlier, so that no epoch closes between two children
        self._outlets.leave(agent, held)
        agent.stage = IDLE
        self._mode.moved(agent)  # a checkpoint since the turn does not contain these messages
        if agent.is_leaving:
            self.retire_if_drained(agent)
        self._mailboxes.next_turn(agent)
        self._mode.created()

    def _discard_reservation(self, parent: LocalAgent, name: str, payload: bytes, refused: str) -> None:
        reason = f"agent {name!r} was not created: {refused}"
        self._failures.void(parent, name, payload, reason, is_refused_creation=True)
        for inlet, mark, early in self._early.pop(name, ()):
            if early is not None:
                self._shared.counts.dead_letters += 1
                self._mailboxes.consume_message(MessageEntry(inlet, mark, early))

    def _create(self, parent: LocalAgent, name: str, kind: str, state: bytes, event: msg.AgentsReserved) -> None:
        """Create an agent. It counts as recorded for all epochs that had begun when its creation was committed (rule 6 of the epoch core).

        After a recovery, the agent may already exist as unborn on any host, because the cut contained another agent's message to it but not
        its creation.
        """
        shared = self._shared
        if name in shared.routes:
            self._outlets.leave(parent, [(name, creation_payload(kind, state))])
            return
        child = LocalAgent(name, plain_name(kind), event.incarnation)
        child.is_born = False
        child.awaits_creation = True
        shared.agents[name] = child
        shared.routes[name] = (shared.host, event.incarnation)
        self._mode.create(child, event)
        self._inputs.created(child, event.recorded)
        self._steps.created(child)
        self._outlets.leave(parent, [(name, creation_payload(kind, state))])
        early = self._early.pop(name, [])
        for inlet, _, payload in early:
            inlet.owner = child
            inlet.arrived -= payload is not None
            child.inlets[inlet.sender] = inlet
        for inlet, mark, payload in early:
            if payload is not None:
                self._mailboxes.arrive(inlet, mark, payload)

    def keep_early(self, inlet: AgentInlet, mark: Mark, payload: bytes | None) -> bool:
        """Keep a message if its receiver is being created on this host, and return whether it was kept."""
        name = inlet.receiver
        is_awaited = any(name == agent.agent for _, requested in self.reservations.values() for agent in requested)
        if is_awaited:
            self._early.setdefault(name, []).append((inlet, mark, payload))
        return is_awaited

    # ---- departure ------------------------------------------------------------------------------------------------

    def retire_if_drained(self, agent: LocalAgent) -> None:
        """Retire a stopped agent if its outbox is empty and no outputs, inputs, replies or clients' dead letters require it to remain. The
        agent's sequence numbers are then final."""
        if agent.parked or agent.spawns or agent.is_retiring or agent.is_busy:
            return
        if self._outputs.keeps(agent) or self._inputs.keeps(agent) or self._commits.keeps(agent):
            return
        agent.is_retiring = True
        self._mode.retiring(agent)
        request = self._shared.next_request()
        self._retirements[request] = agent.id
        self._shared.out.append(msg.RetireAgent(request, self._shared.plan, agent.id))

    def on_agent_retired(self, event: msg.AgentRetired) -> None:
        agent = self._shared.agents.get(self._retirements.pop(event.request, ""))
        if agent is not None:
            self._mode.retired(agent, event.open_epochs)
            self._remove_if_done(agent)

    def forget(self, agent: LocalAgent) -> None:
        """Remove an agent that has left the fleet under an earlier plan. Its messages have all been consumed."""
        agent.retired_in = {}
        self._remove_if_done(agent)
        self._mode.reset()
        self._ends.close_all(agent)

    def send_away(self, agent: LocalAgent) -> None:
        """Remove a frozen agent that moves to another host, where it starts from its newest commit. Its neighbours on this host keep the
        messages to it whose consumption is durable nowhere else, and receive its messages over a link from now on."""
        shared = self._shared
        del shared.agents[agent.id]
        self._ends.detach_moved(agent)
        self._inputs.asks.moved(agent.id)
        self._outputs.removed(agent)
        self._views.removed(agent.id)
        shared.out.append(ev.ForgetAgent(agent.id))

    def release_retired(self, ended: int) -> None:
        """Remove retired agents that were kept only because of the epoch that has ended."""
        for agent in [agent for agent in self._shared.agents.values() if agent.retired_in is not None]:
            assert agent.retired_in is not None
            agent.retired_in.pop(ended, None)
            self._remove_if_done(agent)

    def _remove_if_done(self, agent: LocalAgent) -> None:
        if agent.retired_in is None or agent.retired_in:
            return
        shared = self._shared
        del shared.agents[agent.id]
        shared.routes.pop(agent.id, None)
        for inlet in agent.inlets.values():
            inlet.owner = None
        for entry in [*agent.mailbox, *agent.deferred]:
            shared.counts.dead_letters += is_from_others(entry)
            self._mailboxes.consume(entry)
        shared.counts.dead_letters += len(agent.stash)
        for sender in list(agent.inlets):
            if sender in shared.agents and agent.id in shared.agents[sender].outlets:
                self._outlets.unpark(shared.agents[sender].outlets[agent.id])
        for outlet in agent.outlets.values():
            outlet.inlet = None
        self._mode.removed(agent)
        self._inputs.asks.removed(agent.id)
        self._outputs.removed(agent)
        self._views.removed(agent.id)
        shared.out.append(ev.ForgetAgent(agent.id))


class HostParts(msgspec.Struct, frozen=True):
    """Holds all parts of a host core except the mode."""

    shared: HostState
    links: HostLinks
    ends: ChannelEnds
    failures: HostFailures
    mailboxes: Mailboxes
    outlets: Outlets
    membership: Membership
    log: OwnLog
    inputs: Inputs
    steps: StepLog
    outputs: Outputs
    epoch_request: EpochRequest
    views: Views
    commits: Commits


LOAD_RETRY_NS = 1_000_000_000
LOAD_TRIES_MAX = 60
"""Largest number of retries of loading a recovery line, and time between retries. The coordinator, which reads the recovery line before it
commits a plan, uses the same values."""


class LoadRetries(msgspec.Struct, frozen=True, gc=False):
    """Number of times that loading a recovery line was retried, and the time of the next retry (monotonic ns), or None."""

    count: int = 0
    again_ns: int | None = None


class HostPlans:
    """Applies recovery plans. When a recovery plan is committed, the history of all agents ends. Links carry the plan's number, so frames
    that were sent under older plans are not accepted (G9)."""

    def __init__(self, parts: HostParts, mode: HostMode, timers: Timers, effects: Effects) -> None:
        self._mode = mode
        self._timers = timers
        self._shared = parts.shared
        self._links = parts.links
        self._ends = parts.ends
        self._failures = parts.failures
        self._mailboxes = parts.mailboxes
        self._outlets = parts.outlets
        self._membership = parts.membership
        self._log = parts.log
        self._inputs = parts.inputs
        self._steps = parts.steps
        self._outputs = parts.outputs
        self._epoch_request = parts.epoch_request
        self._views = parts.views
        self._commits = parts.commits
        self._effects = effects
        self._loading: ev.LoadAgents | None = None
        self._failure: ev.LoadFailed | None = None
        self._retries = LoadRetries()

    def on_welcome(self, event: msg.Welcome) -> None:
        """Record the number of this host's run and the id of the fleet's run, and resend messages that the coordinator may have missed."""
        self._shared.start = event.host_start
        self._shared.cluster = event.cluster
        self._effects.welcomed(are_refused=event.refuses_effects)
        frozen = tuple(
            self._shared.commits.frozen
        )  # until the next directive, as a plan that moves them may be on its way
        self.on_quiesce(Quiesce(0, frozen=frozen))  # releases what an earlier leader held
        if self._shared.is_loaded:
            self.confirm()
        elif self._failure is not None:
            self.on_load_failed(self._failure)
        self._mode.welcomed()
        self._failures.welcomed()
        self._membership.welcomed()
        self._ends.welcomed()
        self._log.welcomed()
        self._epoch_request.welcomed()

    def on_quiesce(self, event: Quiesce) -> None:
        """Hold or release clients' inputs and effects, and freeze agents, as the coordinator requests."""
        self._shared.commits.is_ending = event.holds_inputs
        self._inputs.hold(are_held=event.holds_inputs)
        if self._shared.commits.is_on:
            for agent in self._commits.freeze(event.frozen):
                self._outlets.unpark_all(agent)
                self._mailboxes.next_turn(agent)
        self._effects.on_quiesce(event)

    def on_plan_received(self, event: ev.PlanReceived) -> None:
        shared = self._shared
        if event.number <= shared.plan:
            if event.number == shared.plan and shared.is_loaded:
                self.confirm()
            return
        own_places = tuple(place for place in event.agents if place.host == shared.host)
        are_kept = event.era < event.number and self._are_agents_kept(own_places)  # a restore takes everything back
        if are_kept:
            self._detach_agents()
        else:
            self._drop_everything()
        self._failures.deaths.plan_received(event.deaths)
        shared.rollbacks = event.rollbacks
        shared.plan = event.number
        shared.plan_hosts = event.hosts
        shared.begun_epoch = shared.plan_epoch = event.begun_epoch
        # All agents with the same host and incarnation share one tuple, since there may be very many agents.
        known: dict[tuple[str, int], tuple[str, int]] = {}
        routes = [(place.agent, (place.host, place.incarnation)) for place in event.agents]
        shared.routes = {agent: known.setdefault(route, route) for agent, route in routes}
        shared.ordinals = {place.agent: place.ordinal for place in event.agents}
        if are_kept:
            self._keep_agents(own_places)
            own_places = tuple(place for place in own_places if place.agent not in shared.agents)
            if not own_places:
                self._begin_work()
                self._resume_agents()
                return
        line = event.line_epoch, event.line_root
        self._loading = ev.LoadAgents(
            *(event.number, *line, own_places, event.logs, event.drop_before, event.newest),
            *(event.era, event.sources, event.sources_since),
        )
        self._retries = LoadRetries()
        shared.out.append(self._loading)

    # ---- agents that go on ----------------------------------------------------------------------------------------

    def _are_agents_kept(self, places: Sequence[ev.Placement]) -> bool:
        """Return whether the agents on this host go on under the new plan, because none of them gets another incarnation, or only frozen
        agents do, which move to other hosts. An agent that has asked to leave and is not in the plan has left."""
        shared = self._shared
        if not (shared.commits.is_on and shared.is_loaded and shared.agents):
            return False
        incarnations = {place.agent: place.incarnation for place in places}
        gone = {agent.id: agent.incarnation for agent in shared.agents.values() if agent.is_retiring}
        gone |= {name: shared.agents[name].incarnation for name in shared.commits.frozen if name in shared.agents}
        return all(
            incarnations.get(agent.id, gone.get(agent.id, 0)) == agent.incarnation for agent in shared.agents.values()
        )

    def _detach_agents(self) -> None:
        """End the links, the epochs and the requests of the plan before. The agents, their turns and their messages stay. Messages whose
        consumption is not known to be durable wait to leave again."""
        shared = self._shared
        self._links.drop()
        self._mode.reset()
        self._membership.reset()
        self._log.carry_over()
        self._effects.reset()
        self._epoch_request.reset()
        self._commits.reset()
        self._failure = None
        shared.ended.clear()
        shared.is_loaded = False
        self._ends.detach_all()

    def _keep_agents(self, places: Sequence[ev.Placement]) -> None:
        """Let the agents on this host go on under the new plan. The host's new log does not contain them yet, so its first commit does."""
        shared = self._shared
        here = {place.agent for place in places}
        for agent in [agent for agent in shared.agents.values() if agent.id not in here]:
            if agent.id in shared.routes:
                self._membership.send_away(agent)
            else:
                self._membership.forget(agent)
        for name in [name for name in shared.commits.frozen if name in shared.agents]:
            shared.agents[name].is_held = False
        shared.commits.frozen.clear()
        for agent in shared.agents.values():
            agent.is_retiring = agent.owes = False
            self._mode.place(agent, None)
            shared.note_change(agent.id)
            for inlet in [inlet for inlet in agent.inlets.values() if inlet.sender not in shared.routes]:
                self._ends.end_inlet(inlet)
        if shared.is_watched:
            shared.out.append(ev.AgentsKept(shared.plan, tuple(shared.agents)))

    def _begin_work(self) -> None:
        shared = self._shared
        shared.is_loaded = True
        self._loading = None
        shared.counts.plans += 1
        shared.counts.first_plan_ns = shared.counts.first_plan_ns or shared.now

    def _resume_agents(self) -> None:
        """Let the agents of the plan work, all of which are on this host now."""
        shared = self._shared
        self.confirm()
        for agent in list(shared.agents.values()):
            self._resume_agent(agent)
            if agent.effects is not None:
                self._effects.released(agent)
        for agent in [agent for agent in shared.agents.values() if agent.is_repeating]:
            self._outlets.shrank(agent)
        self._failures.repeat_failed()

    def _drop_everything(self) -> None:
        """Drop all agents on this host with their mailboxes and turns, because the plan's commit has ended their history."""
        shared = self._shared
        self._links.drop()
        self._ends.reset()
        self._mode.reset()
        self._timers.reset()
        self._membership.reset()
        self._log.reset()
        self._inputs.reset()
        self._steps.reset()
        self._outputs.reset()
        self._effects.reset()
        self._epoch_request.reset()
        self._commits.reset()
        self._views.reset()
        self._failures.reset()
        self._failure = None
        shared.ended.clear()
        shared.is_loaded = False
        shared.agents.clear()
        shared.commits.frozen.clear()
        shared.local = Peer(shared.host, shared.start, None)
        shared.out.append(ev.CancelTurns())

    # ---- loading --------------------------------------------------------------------------------------------------

    def on_agents_loaded(self, event: ev.AgentsLoaded) -> None:
        shared = self._shared
        if event.plan != shared.plan or shared.is_loaded:
            return
        event = _only_loaded(event, shared.agents)
        self._begin_work()
        for loaded in event.agents:
            self._place(loaded)
        for loaded in event.agents:
            if loaded.checkpoint is not None:
                self._restore_channels(shared.agents[loaded.agent], loaded.checkpoint)
        self._log.loaded(event)
        self._inputs.loaded(event)
        if event.answers is not None and shared.answers is None:
            shared.answers = AnswerBook(event.answers)  # they are the same under all plans
        self._steps.loaded(event)
        self._outputs.loaded(event)
        self._mode.loaded(event.agents)
        if shared.commits.is_on:
            self._commits.adopt([loaded.agent for loaded in event.agents])
        self._resume_agents()

    def confirm(self) -> None:
        """Report that the plan is applied. With commits, a durable one must contain the agents that were loaded."""
        if not self._commits.adopting:
            self._shared.out.append(msg.PlanApplied(self._shared.plan, self._shared.start))

    def _resume_agent(self, agent: LocalAgent) -> None:
        for outlet in [outlet for outlet in agent.outlets.values() if outlet.queue and outlet.peer is None]:
            self._ends.open(agent, outlet.receiver)
            self._outlets.unpark(outlet)
        if agent.spawns and not self._shared.commits.is_on:  # with commits, one must contain the request first
            self._membership.reserve(agent)
        elif agent.is_leaving and not agent.spawns:
            self._membership.retire_if_drained(agent)
        self._mailboxes.next_turn(agent)

    def on_load_failed(self, event: ev.LoadFailed) -> None:
        """Retry for a minute if the store is currently unreadable. After that minute, or after any other failure, refuse the plan."""
        if event.plan != self._shared.plan:
            return
        if event.may_pass and self._retries.count < LOAD_TRIES_MAX:
            self._retries = LoadRetries(self._retries.count + 1, self._shared.now + LOAD_RETRY_NS)
            return
        self._failure = event
        start = self._shared.start
        self._shared.out.append(
            msg.PlanRefused(event.plan, start, event.damaged_epoch, event.path, event.reason, event.may_pass)
        )

    def clock_passed(self) -> None:
        """Retry loading the recovery line if the retry is due."""
        again_ns = self._retries.again_ns
        if self._loading is not None and again_ns is not None and again_ns <= self._shared.now:
            self._retries = LoadRetries(self._retries.count)
            self._shared.out.append(self._loading)

    def wakeups_ns(self) -> list[int]:
        """Return the times at which the caller must call `clock_passed`."""
        return [] if self._retries.again_ns is None else [self._retries.again_ns]

    # ---- agents ---------------------------------------------------------------------------------------------------

    def _place(self, loaded: ev.LoadedAgent) -> None:
        checkpoint = loaded.checkpoint
        agent = LocalAgent(loaded.agent, "", loaded.incarnation)
        self._mode.place(agent, checkpoint)
        self._shared.agents[agent.id] = agent
        if checkpoint is None:
            agent.mailbox.append(StartEntry())
            return
        agent.kind = checkpoint.kind
        agent.is_born = not checkpoint.is_unborn
        agent.awaits_creation = checkpoint.is_unborn and not checkpoint.received
        agent.is_started = checkpoint.is_started
        agent.is_leaving = checkpoint.is_leaving
        agent.checkpoints = checkpoint.number
        agent.committed_outputs = checkpoint.outputs.number if checkpoint.basis == COMMIT else 0
        agent.dead_letters = checkpoint.dead_letters[-DEAD_LETTERS_KEPT:]
        agent.dead_letter_count = checkpoint.dead_letter_count
        agent.turn = DurableTurn(checkpoint.turn) if checkpoint.turn is not None else None
        agent.stash = list(checkpoint.stash)
        agent.approvals = checkpoint.approvals
        agent.asked = AskedQuestions(checkpoint.asked) if checkpoint.asked else None
        if checkpoint.effects is not None or checkpoint.effect_group:
            place = len(checkpoint.turn.journal) if checkpoint.turn is not None else 0
            agent.effects = AgentEffects(checkpoint.effects or SavedEffects(), place, checkpoint.effect_group)
        agent.dead_letter_numbers = checkpoint.dead_letter_numbers.numbers[-DEAD_LETTERS_KEPT:]
        agent.last_dead_letter = checkpoint.dead_letter_numbers.last
        if agent.is_born and not agent.is_started:
            agent.mailbox.append(StartEntry())
        for timer in sorted(checkpoint.timers, key=attrgetter("remaining_ns")):
            if timer.remaining_ns:
                left_ns = max(0, timer.remaining_ns - loaded.passed_ns)
                self._timers.set(agent, timer.name, left_ns, timer.payload)
            else:  # it had fired; a new timer with its name may have been set since
                agent.mailbox.append(TimerEntry(timer.name or "timer", timer.payload))

    def _restore_channels(self, agent: LocalAgent, checkpoint: AgentCheckpoint) -> None:
        """Restore the sequence numbers of the agent's channels, and put messages that were in transit into the mailbox.

        Do not restore channels to and from departed agents, unless messages from the departed agent are still in transit.
        """
        routes = self._shared.routes
        for sender in dict.fromkeys([*checkpoint.received, *checkpoint.in_transit]):
            if sender in routes or checkpoint.in_transit.get(sender):
                self._restore_inlet(agent, sender, checkpoint)
            elif self._shared.commits.is_on and sender in checkpoint.received:
                agent.ended[sender] = (checkpoint.received[sender], self._shared.commits.epochs)
        for receiver, number in checkpoint.sent.items():
            if receiver in routes:
                outlet = self._ends.new_outlet(agent, receiver)
                outlet.number = outlet.acked = number
                outlet.credit = max(outlet.credit, number)
        agent.spawns = [(spawn.agent, spawn.kind, spawn.payload) for spawn in checkpoint.spawns]
        released, held = decode_released(checkpoint.protocol_state) if self._shared.commits.is_on else ({}, 0)
        first_held = len(checkpoint.outbox) - held if self._shared.commits.is_on else 0
        parked = checkpoint.outbox[:first_held] if agent.spawns else checkpoint.outbox
        agent.held = [(each.receiver, each.payload) for each in checkpoint.outbox[len(parked) :]]
        for message in parked:
            outlet = agent.outlets.get(message.receiver) or self._ends.new_outlet(agent, message.receiver)
            outlet.parked.append(message.payload)
            agent.parked += 1
        if self._shared.commits.is_on:
            self._restore_released(agent, released, is_commit=checkpoint.basis == COMMIT)

    def _restore_released(self, agent: LocalAgent, released: dict[str, int], *, is_commit: bool) -> None:
        """Restore which messages may have left before the recovery. They may leave again when a commit contains them, because an epoch may
        turn out to be damaged."""
        for receiver in [receiver for receiver in released if receiver not in agent.outlets]:
            self._ends.new_outlet(agent, receiver)
        for receiver, outlet in agent.outlets.items():
            outlet.repeated = max(outlet.number, released.get(receiver, 0))
            outlet.released = outlet.requested = outlet.repeated if is_commit else outlet.number
            agent.is_repeating |= outlet.number < outlet.repeated

    def _restore_inlet(self, agent: LocalAgent, sender: str, checkpoint: AgentCheckpoint) -> None:
        inlet = self._ends.new_inlet(agent, sender)
        if sender not in self._shared.routes:
            self._ends.ending[sender, agent.id] = inlet
        inlet.consumed = inlet.arrived = checkpoint.received.get(sender, 0)
        inlet.durable = inlet.consumed if checkpoint.basis == COMMIT else 0
        for message in checkpoint.in_transit.get(sender, ()):
            inlet.arrived += 1
            if message.number != inlet.arrived:
                raise ProtocolError(
                    f"channel {sender} → {agent.id}: message {message.number} is saved where {inlet.arrived} is due"
                )
            agent.mailbox.append(message_entry(inlet, self._mode.mark_of(message), message.payload))
        inlet.saved = inlet.arrived
