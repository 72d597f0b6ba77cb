"""The part of a host core that keeps who wants the fleet to go back (`ctx.rollback`). Such an agent stands: its turn had no effect, and what that
was for waits in its place. It checkpoints like any other that stands between two turns. A plan ends that, whatever it is for."""

from snapline.agent_runtime.host.host_state import HostState
from snapline.agent_runtime.host.local_agent import STANDS_NS, LocalAgent
from snapline.agent_runtime.rolling_back import RollbackWish
from snapline.messages import host_messages as msg


class HostRollbacks:
    """Of the agents here.

    Attributes:
        wanted: agent → what it has asked for, under this plan.
        refused: agent → why it stands on.
    """

    def __init__(self, desk: HostState) -> None:
        self._desk = desk
        self.wanted: dict[str, msg.WantRollback] = {}
        self.refused: dict[str, str] = {}

    def reset(self) -> None:
        """A plan ends the history of every agent here."""
        self.wanted.clear()
        self.refused.clear()

    def welcomed(self) -> None:
        """Say again what the coordinator may not have heard, or another one must know: refused ones too, for `status`."""
        self._desk.out.extend(self.wanted.values())

    def want(self, agent: LocalAgent, wish: RollbackWish) -> None:
        """Its turn has ended with this; its message is back in its place."""
        agent.retry_ns = STANDS_NS
        said = msg.WantRollback(agent.id, agent.incarnation, wish.snapshot, wish.reason, wish.place)
        self.wanted[agent.id] = said
        self._desk.note("warning", f"agent {agent.id} stands: it asks to go back, at {wish.place}: {wish.reason}")
        self._desk.out.append(said)

    def on_refused(self, event: msg.RollbackRefused) -> None:
        """It stands on. People hear of it once."""
        said = self.wanted.get(event.agent)
        if said is not None and said.incarnation == event.incarnation and event.agent not in self.refused:
            self.refused[event.agent] = event.reason
            self._desk.note("error", event.reason)
