"""A handler blocks its host for longer than a dead one would be waited for: the others run on, and nothing is recovered."""

import asyncio
from pathlib import Path

import pytest
from tests.integration.fleets.blocking import Block, Ping
from tests.integration.processes import LIMIT_S
from tests.integration.running import running

from snapline.client.client import Client

pytestmark = pytest.mark.timeout(120)

LOCKED_S = 5
"""More than the 2 s and 1 s after which a host that is frozen, or whose stream broke, is lost."""


async def test_a_handler_that_blocks_its_host_costs_nobody_else_anything(data_dir: Path) -> None:
    """First with Python's lock in its hands, then without, while the leader is lost."""
    stop = data_dir.with_name("stop")
    async with running(data_dir, "blocking:fleet", {}, hosts=3, coordinators=3) as fleet:
        await fleet.until_epochs(1)
        async with await Client.connect(data_dir=data_dir) as client:
            block = Block(str(stop), LOCKED_S)
            blocked = asyncio.create_task(client.ask("worker", block, "block", timeout_s=LIMIT_S, reply_type=Ping))
            busy = await fleet.until(lambda now: [x.hosts for x in now.concerns if x.kind == "busy"] == [("h1",)])
            assert [host.state for host in busy.hosts] == ["alive"] * 3
            for serial in range(20):
                for echo in ("echo-2", "echo-3"):
                    reply = await client.ask(echo, Ping(serial), early=True, reply_type=Ping)
                    assert reply.message == Ping(serial)
            named = await fleet.until(lambda now: any("agent worker, handler on_block" in x.text for x in now.concerns))
            fleet.local.kill(named.leader)
            await fleet.until_led(after=named.term)
            await fleet.until(lambda now: any("agent worker, handler on_block" in x.text for x in now.concerns))
            stop.touch()
            assert (await blocked).message == Ping(1), "the turn was begun once"
            await fleet.until_more_epochs(2)
            assert await fleet.recoveries() == []
        await fleet.local.stop()
    said = (data_dir / "logs" / "h1.log").read_text()
    locked = "\n".join([line for line in said.splitlines() if "no other thread could run" in line])
    assert "agent worker, handler on_block" in locked and "blocking.py" in locked
