"""Why agents of a logged fleet are held: a freeze, a round that is undecided, or a host without room. A held agent takes no turn, and
nothing leaves its outbox."""

from snapline.agent_runtime.host.backlog import Backlog
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.host.parts import HostParts


class AgentHolds:
    """Of one host.

    Attributes:
        freeze: number of the freeze that the agents are in, or None.
        backlog: what waits for the store.
    """

    def __init__(self, parts: HostParts) -> None:
        self._desk = parts.desk
        self._outlets = parts.outlets
        self._mailboxes = parts.mailboxes
        self.freeze: int | None = None
        self.backlog = Backlog()

    def reset(self) -> None:
        """A plan begins with free agents, and a good opinion of the store."""
        self.freeze = None
        self.backlog = Backlog()

    def freeze_all(self, number: int) -> None:
        """Everybody stands still, for this freeze."""
        self.freeze = number
        self._hold_all()

    def thaw(self) -> None:
        """The freeze is over."""
        self.freeze = None
        self.release_all()

    def stand_still(self) -> None:
        """Neither logs nor the writer's queue have room."""
        self.backlog.stand(is_standing=True)
        self._hold_all()

    def go_on(self) -> None:
        """They have again."""
        self.backlog.stand(is_standing=False)
        self.release_all()

    def _hold_all(self) -> None:
        for agent in self._desk.agents.values():
            agent.is_held = True

    @property
    def are_all_held(self) -> bool:
        """Whatever the agents do themselves."""
        return self.freeze is not None or self.backlog.is_standing

    def release(self, agent: LocalAgent) -> None:
        """The agent may go on, if nothing else holds it: what its outbox held back leaves first."""
        rounds = agent.logged.rounds
        agent.is_held = self.are_all_held or (rounds is not None and rounds.is_blocked)
        if not agent.is_held:
            self._outlets.unpark_all(agent)
            self._mailboxes.next_turn(agent)

    def release_all(self) -> None:
        """A reason has gone."""
        for agent in list(self._desk.agents.values()):
            self.release(agent)
