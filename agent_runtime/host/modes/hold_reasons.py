"""Reasons to hold agents of a logged fleet: a freeze, an undecided round, or a full backlog. A held agent takes no turn, and
nothing leaves its outbox."""

from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.host.logged_agent import Backlog
from snapline.agent_runtime.host.plans import HostParts


class HoldReasons:
    """Holds of one host's agents.

    Attributes:
        freeze: number of the freeze that the agents are in, or None.
        backlog: data that waits for the store.
    """

    def __init__(self, parts: HostParts) -> None:
        self._shared = parts.shared
        self._outlets = parts.outlets
        self._mailboxes = parts.mailboxes
        self.freeze: int | None = None
        self.backlog = Backlog()

    def reset(self) -> None:
        """Begin a plan with free agents, and a store presumed good."""
        self.freeze = None
        self.backlog = Backlog()

    def freeze_all(self, number: int) -> None:
        """Hold all agents for this freeze."""
        self.freeze = number
        self._hold_all()

    def thaw(self) -> None:
        """End the freeze."""
        self.freeze = None
        self.release_all()

    def pause_agents(self) -> None:
        """Hold all agents: the logs or the writer's queue have no room."""
        self.backlog.stand(is_standing=True)
        self._hold_all()

    def go_on(self) -> None:
        """Let the agents go on: there is room again."""
        self.backlog.stand(is_standing=False)
        self.release_all()

    def _hold_all(self) -> None:
        for agent in self._shared.agents.values():
            agent.is_held = True

    @property
    def are_all_held(self) -> bool:
        """Return whether all agents are held, whatever they do themselves."""
        return self.freeze is not None or self.backlog.is_standing

    def release(self, agent: LocalAgent) -> None:
        """Resume the agent, if nothing else holds it; its held-back outbox leaves first."""
        rounds = agent.logged.rounds
        agent.is_held = self.are_all_held or (rounds is not None and rounds.is_blocked)
        if not agent.is_held:
            self._outlets.unpark_all(agent)
            self._mailboxes.next_turn(agent)

    def release_all(self) -> None:
        """Let all agents go on that no other reason holds."""
        for agent in list(self._shared.agents.values()):
            self.release(agent)
