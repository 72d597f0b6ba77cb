"""The part of the host core that creates and retires agents.

After the coordinator has reserved an agent's id, the parent sends a creation message with the new agent's kind and initial state. A stopped
agent leaves once its outputs have been released and all epochs that began before the commit of its departure have ended.
"""

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.channel_ends import ChannelEnds, Outlets
from snapline.agent_runtime.host.entries import IDLE, Mark, MessageEntry, Stage, is_from_others
from snapline.agent_runtime.host.failures import HostFailures
from snapline.agent_runtime.host.host_inputs import Inputs
from snapline.agent_runtime.host.host_log import StepLog
from snapline.agent_runtime.host.host_outputs import Outputs
from snapline.agent_runtime.host.host_state import AgentInlet, HostState, LocalAgent
from snapline.agent_runtime.host.mailboxes import Mailboxes
from snapline.agent_runtime.host.modes.mode import HostMode
from snapline.agent_runtime.host.views import Views
from snapline.messages import host_messages as msg
from snapline.messages.payloads import CREATE, plain_name


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
        for request, (_, requested) in self.reservations.items():
            shared.out.append(msg.ReserveAgents(request, shared.plan, requested))
        for request, agent in self._retirements.items():
            shared.out.append(msg.RetireAgent(request, shared.plan, agent))

    # ---- creation -------------------------------------------------------------------------------------------------

    def hold(self, agent: LocalAgent, event: ev.TurnEnded) -> None:
        """If a turn spawns agents, hold the messages that it sent until the coordinator has reserved the new agents' ids."""
        agent.held = event.sends
        agent.spawns = event.spawns
        self.reserve(agent)

    def reserve(self, agent: LocalAgent) -> None:
        """Ask the coordinator to reserve the ids of the agents that this agent spawns."""
        request = self._shared.next_request()
        requested = tuple([msg.AgentKind(name, plain_name(kind)) for name, kind, _ in agent.spawns])
        self.reservations[request] = (agent.id, requested)
        self._shared.out.append(msg.ReserveAgents(request, self._shared.plan, requested))

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
        if self._outputs.keeps(agent) or self._inputs.keeps(agent):
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
