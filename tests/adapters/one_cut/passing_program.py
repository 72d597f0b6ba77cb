"""The AutoGen part of the cycle, for AutoGen's environment: the agents of the token experiment, which know whom to pass tokens to."""

from autogen_core import AgentId, AgentRuntime
from tests.adapters.autogen.token_program import Purse
from tests.adapters.one_cut.cycle import after


class PassingPurse(Purse):
    def other(self) -> AgentId:
        return AgentId.from_str(after(str(self.id)))


def elsewhere() -> Purse:
    """AutoGen sends to types that it knows. Of these no object is ever made: their agents are others' than AutoGen's."""
    raise RuntimeError("no agent of AutoGen's")


async def register(runtime: AgentRuntime) -> None:
    await PassingPurse.register(runtime, "purse", PassingPurse)
    for kind in ("native", "bank"):
        await runtime.register_factory(kind, elsewhere)
