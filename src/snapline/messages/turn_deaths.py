"""Turns during which a host's process died: as hosts, launchers and the coordinator report them to each other."""

import msgspec

CAPTURE, STOP_WHEN = "capture", "stop_when"
"""Names of special turns: an agent's state is captured; the fleet's predicate is evaluated, which belongs to no agent."""


class TurnDeath(msgspec.Struct, frozen=True, gc=False):
    """A turn during which a host's process died; `times`: number of such deaths, in plans.

    `limit`: number of deaths tolerated. `is_beside`: the turn ran in a thread, next to the event loop.
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
        """Return a readable description of what the process did."""
        if self.what == STOP_WHEN:
            return "stop_when was asked"
        if self.what == CAPTURE:
            return f"the state of agent {self.agent} was saved"
        of = f"{self.type} from {self.sender}" if self.type else f'"{self.what}"'
        return f"agent {self.agent} handled {of}"

    def sentence(self) -> str:
        """Return a readable sentence with the number of deaths."""
        return f"{self.times} process{'es' * (self.times > 1)} died while {self.describe()}"
