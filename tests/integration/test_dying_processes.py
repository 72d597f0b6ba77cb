"""Messages whose turns kill their processes: each becomes a dead letter after three of them, and the others run on."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.fleets.dying import Die, Ping
from tests.integration.processes import LIMIT_S
from tests.integration.running import running

from snapline.client.client import Client
from snapline.messages.status import FleetStatus

pytestmark = pytest.mark.timeout(120)


def killers(now: FleetStatus) -> list[str]:
    return [concern.text.partition(":")[0] for concern in now.concerns if concern.kind == "killer"]


def is_set_aside(count: int) -> Callable[[FleetStatus], bool]:
    """So many messages have killed, the last one three processes."""
    return lambda now: len(killers(now)) == count and killers(now)[-1].startswith("3")


async def test_a_message_that_kills_its_process_is_set_aside(data_dir: Path) -> None:
    """One in a plain turn, in a thread, in a step of a durable turn; one that asks Python to exit kills nobody."""
    mended = data_dir.with_name("mended")
    async with running(data_dir, "dying:fleet", {}, hosts=2) as fleet:
        await fleet.until_epochs(1)
        async with await Client.connect(data_dir=data_dir) as client:
            for agent in ("exiting", "plain", "threaded", "durable"):
                sent = len(killers(await fleet.until(lambda now: True)))
                await client.send(agent, Die(str(mended)), agent, timeout_s=LIMIT_S)
                if agent != "exiting":
                    await fleet.until(is_set_aside(sent + 1))
                reply = await client.ask("plain", Ping(7), f"ping-{agent}", timeout_s=LIMIT_S, reply_type=Ping)
                assert reply.message == Ping(7), "the others run on"
            now = await fleet.until(lambda now: sum(host.dead_letters for host in now.hosts) >= 1)
            assert killers(now) == [
                f"3 processes died while agent {agent} handled Die from @client"
                for agent in ("plain", "threaded", "durable")
            ]
            mended.touch()
            (settled,) = await client.retry_dead_letters("plain", [1], timeout_s=LIMIT_S)
            assert settled.outcome == "handled"
            await fleet.until(lambda now: len(killers(now)) == 2)
    assert "SIGKILL while agent plain handled Die" in "\n".join(fleet.notes)
