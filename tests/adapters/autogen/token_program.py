"""The token experiment: agents that pass tokens to each other without pause, and are saved while they do. For AutoGen's environment, with AutoGen alone.

`register` registers the same agents on any runtime. Run as a program it saves them with AutoGen's own `save_state`, and prints how many
of its trials conserved the total.
"""

import asyncio
import random
import sys
import warnings
from dataclasses import dataclass

from autogen_core import AgentId, AgentRuntime, MessageContext, RoutedAgent, SingleThreadedAgentRuntime, message_handler

AGENTS, TOKENS, KICKS = 8, 100, 4


@dataclass
class Tokens:
    amount: int


class Purse(RoutedAgent):
    """Unchanged: it knows of no runtime but AutoGen's, and keeps what it has in an attribute."""

    silent = False
    """Of all: so that a trial ends."""

    def __init__(self) -> None:
        super().__init__("a purse")
        self.held = TOKENS

    @message_handler
    async def on_tokens(self, message: Tokens, ctx: MessageContext) -> None:
        self.held += message.amount
        await asyncio.sleep(0)
        given = min(self.held, random.randint(1, 5))
        if given and not Purse.silent:
            self.held -= given
            asyncio.create_task(self.send_message(Tokens(given), self.other()))  # noqa: RUF006  as in AutoGen's examples

    def other(self) -> AgentId:
        """Who gets them."""
        return AgentId("purse", str(random.randrange(AGENTS)))


class SavingPurse(Purse):
    """The same with the methods that AutoGen's documentation asks for."""

    async def save_state(self) -> dict[str, int]:
        return {"held": self.held}

    async def load_state(self, state: dict[str, int]) -> None:
        self.held = state["held"]


async def register(runtime: AgentRuntime) -> None:
    """What a process of AutoGen's runs for a host."""
    await Purse.register(runtime, "purse", Purse)


async def trial(seed: int) -> int:
    """The total that AutoGen's `load_state` brings back of what its `save_state` has saved."""
    chosen = random.Random(seed)
    runtime = SingleThreadedAgentRuntime()
    await SavingPurse.register(runtime, "purse", SavingPurse)
    runtime.start()
    sends = [
        asyncio.create_task(runtime.send_message(Tokens(0), AgentId("purse", str(number))))
        for number in range(AGENTS)
        for _ in range(KICKS)
    ]
    for _ in range(chosen.randint(50, 300)):
        await asyncio.sleep(0)
    saved = await runtime.save_state()
    Purse.silent = True
    await runtime.stop_when_idle()
    await asyncio.gather(*sends)
    restored = SingleThreadedAgentRuntime()
    await SavingPurse.register(restored, "purse", SavingPurse)
    await restored.load_state(saved)
    restored.start()
    await restored.stop_when_idle()
    purses = [
        await restored.try_get_underlying_agent_instance(AgentId("purse", str(number)), SavingPurse)
        for number in range(AGENTS)
    ]
    Purse.silent = False
    return sum(purse.held for purse in purses)


def main(trials: int) -> None:
    warnings.simplefilter("ignore")
    totals = [asyncio.run(trial(seed)) for seed in range(trials)]
    print(f"{sum(total == AGENTS * TOKENS for total in totals)}/{trials} conserved")


if __name__ == "__main__":
    main(int(sys.argv[1]))
