"""The part of a host core that keeps rollback requests of agents (`ctx.rollback`). A requesting agent is suspended: its turn had no effect, and the
turn's message keeps its place. The agent checkpoints like any other between two turns. Any plan ends the suspension."""

from snapline.agent_runtime.host.host_state import HostState
from snapline.agent_runtime.host.local_agent import NEVER_RETRIED_NS, LocalAgent
from snapline.agent_runtime.rollback_errors import RollbackRequest
from snapline.messages import host_messages as msg


class HostRollbacks:
    """Rollback requests of this host's agents.

    Attributes:
        wanted: agent → rollback request under this plan.
        refused: agent → reason why it stays suspended.
    """

    def __init__(self, shared: HostState) -> None:
        self._shared = shared
        self.wanted: dict[str, msg.WantRollback] = {}
        self.refused: dict[str, str] = {}

    def reset(self) -> None:
        """Clear everything: a plan ends the history of every agent here."""
        self.wanted.clear()
        self.refused.clear()

    def welcomed(self) -> None:
        """Repeat requests that the coordinator may not have received, or a new one must know: refused ones too, for `status`."""
        self._shared.out.extend(self.wanted.values())

    def want(self, agent: LocalAgent, rollback_request: RollbackRequest) -> None:
        """Suspend an agent whose turn has ended with this request; its message is back in its place."""
        agent.retry_ns = NEVER_RETRIED_NS
        message = msg.WantRollback(
            agent.id, agent.incarnation, rollback_request.snapshot, rollback_request.reason, rollback_request.place
        )
        self.wanted[agent.id] = message
        self._shared.note(
            "warning",
            f"agent {agent.id} stands: it asks to go back, at {rollback_request.place}: {rollback_request.reason}",
        )
        self._shared.out.append(message)

    def on_refused(self, event: msg.RollbackRefused) -> None:
        """Keep a refused agent suspended, and log the refusal once."""
        request = self.wanted.get(event.agent)
        if request is not None and request.incarnation == event.incarnation and event.agent not in self.refused:
            self.refused[event.agent] = event.reason
            self._shared.note("error", event.reason)
