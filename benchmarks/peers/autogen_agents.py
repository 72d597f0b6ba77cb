"""Eight agents of AutoGen core in one runtime, which send to each other (`send`), or publish to a topic of one (`publish`)."""

import asyncio
import random
import sys
from dataclasses import dataclass
from pathlib import Path

from autogen_core import (
    AgentId,
    DefaultTopicId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    TypeSubscription,
    message_handler,
)

sys.path.insert(0, str(Path(__file__).parent))

from counting import counter

AGENTS = 8
UNDER_WAY = 4
COUNTER = counter()
TASKS = set()


@dataclass
class Token:
    hops: int
    padding: str  # what it logs of a message must be JSON


class Passer(RoutedAgent):
    def __init__(self, publishes):
        super().__init__("passes tokens")
        self.publishes = publishes
        self.others = [
            f"p{number}" for number in range(AGENTS) if f"p{number}" != self.id.type
        ]  # what one publishes it does not get itself

    @message_handler
    async def on_token(self, message: Token, ctx: MessageContext) -> None:
        COUNTER[0] += 1
        to, token = random.choice(self.others), Token(message.hops + 1, message.padding)
        if self.publishes:
            await self.publish_message(token, DefaultTopicId(type=to))
            return
        task = asyncio.create_task(self.send_message(token, AgentId(to, "default")))
        TASKS.add(task)
        task.add_done_callback(TASKS.discard)


async def main(publishes):
    runtime = SingleThreadedAgentRuntime()
    for number in range(AGENTS):
        await Passer.register(runtime, f"p{number}", lambda: Passer(publishes))
        await runtime.add_subscription(TypeSubscription(topic_type=f"p{number}", agent_type=f"p{number}"))
    runtime.start()
    for number in range(AGENTS * UNDER_WAY):
        await runtime.publish_message(Token(0, "." * 48), DefaultTopicId(type=f"p{number % AGENTS}"))
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] == "publish"))
