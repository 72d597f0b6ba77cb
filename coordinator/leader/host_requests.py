"""Requests from hosts to create, retire or locate agents between epochs, and to open a log for inputs.

The checkpoint mode decides when an agent that has stopped may leave.

The host numbers its requests, so a repeated request is applied only once: the request id in the log is (run of the host, action, number).
Locations are read from the state without a proposal. A stale location is harmless: a host refuses messages to an agent that it does not
run, and a later answer is newer.
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
"""Largest total size, in bytes, of the names and kinds in one creation request. The limit keeps the operation below 64 KiB."""


class Requests:
    """Handles requests from hosts between epochs."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, modes: ModeChoice) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._modes = modes

    def on_received(self, session: HostSession, message: ReserveAgents | RetireAgent | LocateAgents) -> None:
        """Handle a host's request to create, retire or locate agents; the host may repeat the request."""
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
        """Handle a host's request to open its log; the host may repeat the request."""
        kind = op.OpenHostLog(session.host, session.start, message.plan, message.key, message.newest)
        self._shared.propose(f"log/{message.plan}/{session.host}.{session.start}", kind)

    def on_log_opened(self, kind: op.OpenHostLog, result: OperationResult) -> None:
        """Allow the host to write its log, unless the request was refused, for example because the plan was replaced.

        If the request was refused for that reason, the host receives the next plan instead.
        """
        session = self._host_sessions.session_of(kind.host)
        if session is not None and session.start == kind.host_start and not result.is_refused:
            certify, log = self._shared.options.certify, LogName(kind.plan, kind.host, kind.host_start)
            certificate = certify(log, kind.key) if certify is not None and kind.key else b""
            self._shared.send((session.id,), LogOpened(kind.plan, certificate, kind.newest))

    def on_ended(self, proposal: Proposal, result: OperationResult) -> None:
        """Answer the host after a creation or removal was committed or refused. `modes/checkpoint_modes.py` answers for removals that the
        leader itself proposes.

        Requests that were refused because their plan was replaced (OVER) get no answer. A lost host may return before the next plan, and
        its agents may survive with their live states. For these agents, a refused creation would be lost permanently.
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
                return  # A newer plan has removed these agents; a host without that plan would create agents unknown to the state.
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
