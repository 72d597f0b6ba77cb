"""Requests of hosts between epochs: to create, retire or locate agents, and to open a log for inputs.

The checkpoint mode decides when an agent that has stopped may leave.

The host numbers its requests, so a repeated request is applied once: (run of the host, action, number) is the request id in the log.
Locations are read from the state without a proposal. A stale answer does no harm: a host refuses messages to an agent that it does
not run, and the next answer is newer.
"""

from snapline.coordinator.leader.events import CloseStream
from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import LeaderState, Proposal
from snapline.coordinator.leader.modes.checkpoint_modes import ModeChoice
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import OVER, OperationResult
from snapline.messages.host_messages import (
    AgentRetired,
    AgentsLocated,
    AgentsReserved,
    Directive,
    LocateAgents,
    LogOpened,
    OpenLog,
    ReserveAgents,
    RetireAgent,
)
from snapline.storage.log.log_record import LogName

BATCH_BYTES_MAX = 48 * 1024
"""Largest size of names and kinds in one creation, so that the operation stays below 64 KiB."""


class HostRequests:
    """Handles requests of hosts between epochs."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, modes: ModeChoice) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._modes = modes

    def on_received(self, session: HostSession, message: ReserveAgents | RetireAgent | LocateAgents) -> None:
        """Handle a host's request, which may be repeated."""
        if isinstance(message, LocateAgents):
            self._shared.send((session.id,), self._locate(message))
            return
        kind: op.Kind
        if isinstance(message, ReserveAgents):
            names = tuple([x.agent for x in message.agents])
            kinds = tuple([x.kind for x in message.agents])
            if sum(len(x.encode()) + 4 for x in names + kinds) > BATCH_BYTES_MAX:
                reason = f"{len(names)} agents are too many for one request"
                self._shared.send((session.id,), AgentsReserved(message.request, refused=reason))
                return
            action, kind = "reserve", op.CreateAgents(session.host, session.start, message.plan, names, kinds)
        else:
            removal = self._modes.mode.retire(session, message)
            if removal is None:
                return
            action, kind = "retire", removal
        if self._shared.is_full:
            self._shared.note("error", f"host {session.host} asks for too much at once")
            self._shared.out.append(CloseStream(session.id))
            self._host_sessions.on_closed(session.id)
            return
        client = f"{session.host}.{session.start}.{action}"
        self._shared.propose(f"{client}/{message.request}", kind, client=client, sequence=message.request)

    def on_log_wanted(self, session: HostSession, message: OpenLog) -> None:
        """Handle the request of a host to open its log; the request may be repeated."""
        kind = op.OpenHostLog(session.host, session.start, message.plan, message.key, message.newest)
        self._shared.propose(f"log/{message.plan}/{session.host}.{session.start}", kind)

    def on_log_opened(self, kind: op.OpenHostLog, result: OperationResult) -> None:
        """Allow the log unless the request was refused, for example because the plan has ended.

        In that case the host receives the next plan.
        """
        session = self._host_sessions.session_of(kind.host)
        if session is not None and session.start == kind.host_start and not result.is_refused:
            certify, log = self._shared.options.certify, LogName(kind.plan, kind.host, kind.host_start)
            certificate = certify(log, kind.key) if certify is not None and kind.key else b""
            self._shared.send((session.id,), LogOpened(kind.plan, certificate, kind.newest))

    def on_ended(self, proposal: Proposal, result: OperationResult) -> None:
        """Answer a committed or refused creation or removal. The leader's own removals are answered in `modes/checkpoint_modes.py`.

        A lost host may return before the next plan. The host gets no answer to requests that were refused because the
        plan was over (OVER). Its agents may survive with their live states, and for them a refused creation would be
        lost permanently.
        """
        kind = proposal.kind
        assert isinstance(kind, op.CreateAgents | op.RemoveAgent)
        session = self._host_sessions.session_of(kind.host)
        is_own = proposal.client == self._shared.options.client
        if session is None or session.start != kind.host_start or is_own or result.status == OVER:
            return
        refused = (result.reason or "refused") if result.is_refused else ""
        answer: Directive
        if isinstance(kind, op.CreateAgents):
            agents = self._shared.state.image.agents
            if not refused and not all(agent in agents for agent in kind.agents):
                return  # A newer plan has removed these agents. A host without that plan would create agents that the state does not have.
            ordinals = () if refused else tuple([agents[agent].ordinal for agent in kind.agents])
            answer = AgentsReserved(proposal.sequence, result.begun, result.epochs, result.number, refused, ordinals)
        else:
            answer = AgentRetired(proposal.sequence, result.epochs, refused)
        self._shared.send((session.id,), answer)

    def _locate(self, message: LocateAgents) -> AgentsLocated:
        agents = self._shared.state.image.agents
        hosts: list[str] = []
        incarnations: list[int] = []
        ordinals: list[int] = []
        for agent in message.agents:
            record = agents.get(agent)
            is_here = record is not None and record.left_plan is None
            hosts.append(record.host if record is not None and is_here else "")
            incarnations.append(record.incarnation if record is not None and is_here else 0)
            ordinals.append(record.ordinal if record is not None and is_here else 0)
        return AgentsLocated(message.request, message.agents, tuple(hosts), tuple(incarnations), tuple(ordinals))
