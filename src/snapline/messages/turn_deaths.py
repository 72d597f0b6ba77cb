"""Turns during which a host's process died: as hosts, launchers and the coordinator report them to each other."""

import msgspec

CAPTURE, STOP_WHEN = "capture", "stop_when"
"""Names of turns: an agent's state is saved, and the fleet's predicate is evaluated, of no agent."""


class TurnDeath(msgspec.Struct, frozen=True, gc=False):
    """A turn in which a host's process has died; `times`: how many have, in plans.

    `limit`: number of deaths tolerated. `is_beside`: it ran in a thread, next to the event loop.
    """

    agent: str
    what: str
    sender: str
    type: str
    digest: bytes
    limit: int = 0
    is_beside: bool = False
    times: int = 0

    def describe(self) -> str:
        """Describe what the process did, for people."""
        if self.what == STOP_WHEN:
            return "stop_when was asked"
        if self.what == CAPTURE:
            return f"the state of agent {self.agent} was saved"
        of = f"{self.type} from {self.sender}" if self.type else f'"{self.what}"'
        return f"agent {self.agent} handled {of}"

    def sentence(self) -> str:
        """Return how often that was, for people."""
        return f"{self.times} process{'es' * (self.times > 1)} died while {self.describe()}"
