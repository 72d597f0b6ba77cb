"""Removal of stopped agents from logged fleets: they stay until no line can need them.

An agent may leave when the newest epoch holds its last checkpoint and has received everything the agent ever sent (`Lines.finished`).
Its host repeats the request on every new stream, so the queue is volatile.
"""

from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import LeaderState
from snapline.coordinator.leader.recovery_lines.lines import Lines
from snapline.coordinator.state import operations as op
from snapline.messages.host_messages import AgentRetired, RetireAgent


class Leaving:
    """Stopped agents that wait for their removal."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, lines: Lines) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._lines = lines
        self._waiting: dict[str, tuple[HostSession, RetireAgent]] = {}

    def on_asked(self, session: HostSession, message: RetireAgent) -> None:
        """Take a host's report that an agent has stopped."""
        self._waiting[message.agent] = (session, message)

    def evaluate(self) -> None:
        """Propose the removal of finished agents, and notify the hosts of removed ones."""
        state = self._shared.state
        for agent, (session, asked) in list(self._waiting.items()):
            if asked.plan != state.plan_number or self._host_sessions.session(session.id) is not session:
                del self._waiting[agent]  # the host asks again under the next plan, or on the next stream
            elif state.has_left(agent):
                del self._waiting[agent]
                self._lines.on_left(agent)
                self._shared.send((session.id,), AgentRetired(asked.request, state.open_epochs()))
            elif agent in self._lines.finished:
                self._shared.propose(f"leave/{agent}", op.RemoveAgent(session.host, session.start, asked.plan, agent))
