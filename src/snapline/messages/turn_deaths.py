"""In the middle of which turn a host's process has died: as hosts, launchers and the coordinator tell each other."""

import msgspec

CAPTURE, STOP_WHEN = "capture", "stop_when"
"""As names of turns: an agent's state is saved, and the fleet's predicate is asked, of no agent."""


class TurnDeath(msgspec.Struct, frozen=True, gc=False):
    """A turn in which a host's process has died; `times`: how many have, in plans.

    `limit`: so many deaths are borne. `is_beside`: it ran in a thread, beside the event loop.
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
        """What the process did, for people."""
        if self.what == STOP_WHEN:
            return "stop_when was asked"
        if self.what == CAPTURE:
            return f"the state of agent {self.agent} was saved"
        of = f"{self.type} from {self.sender}" if self.type else f'"{self.what}"'
        return f"agent {self.agent} handled {of}"

    def sentence(self) -> str:
        """How often that was, for people."""
        return f"{self.times} process{'es' * (self.times > 1)} died while {self.describe()}"
