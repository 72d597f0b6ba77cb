"""Interface of the membership for the parts of a host core below it."""

from typing import Protocol

from snapline.agent_runtime.host.local_agent import LocalAgent


class AgentRetirement(Protocol):
    """Part of a host core where agents leave."""

    def retire_if_drained(self, agent: LocalAgent) -> None:
        """Retire a leaving agent that less keeps here: its outbox has drained, its outputs are released, or its answers may be sent."""
