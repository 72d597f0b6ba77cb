"""What the parts of a host core need of the membership, which stands above them."""

from typing import Protocol

from snapline.agent_runtime.host.local_agent import LocalAgent


class Retiring(Protocol):
    """Where agents leave."""

    def retire_if_drained(self, agent: LocalAgent) -> None:
        """Less keeps an agent that leaves: its outbox has drained, its outputs are released, or its answers may be told."""
