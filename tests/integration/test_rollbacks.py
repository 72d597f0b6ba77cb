"""An agent takes its fleet back (`ctx.rollback`); the second time at the same place it stands until people have looked."""

import asyncio
from pathlib import Path

import pytest
from tests.integration.fleets.walkers import UNLUCKY, Visit
from tests.integration.processes import LIMIT_S
from tests.integration.running import running

from snapline.client.client import Client

pytestmark = pytest.mark.timeout(240)


async def until_visited(client: Client, *serials: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await client.state("walker", live=True)).state["order"] != list(serials):  # type: ignore[index]
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("durable", ["", "yes"])
async def test_an_agent_takes_the_fleet_back_once_and_then_people_look(data_dir: Path, durable: str) -> None:
    stop, looked = data_dir.with_name("stop"), data_dir.with_name("looked")
    environment = {"WALKER_STOP": str(stop), "WALKER_LOOKED": str(looked)}
    async with running(data_dir, "walkers:fleet", {"durable": durable}, hosts=2, environment=environment) as fleet:
        await fleet.until(lambda now: now.phase == "running")
        async with await Client.connect(data_dir=data_dir) as client:
            for serial in (1, 2, 3, 4):
                await client.send("walker", Visit(serial), f"visit-{serial}", timeout_s=LIMIT_S)
                if serial == 3:
                    await until_visited(client, 1, 2, 3)
                    taken = await client.snapshot(timeout_s=LIMIT_S)
            await until_visited(client, 1, 2, 3, 4)
            await client.send("walker", Visit(UNLUCKY), "unlucky", timeout_s=LIMIT_S)
            stuck = await fleet.until(lambda now: [x for x in now.concerns if x.kind == "rollback"])
            assert stuck.plan == 2 and "for the same reason at the same place" in stuck.concerns[0].text
            (back,) = await fleet.recoveries()
            assert back["line_epoch"] == taken["epoch"]
            await until_visited(client, 1, 2, 3, 4)
            looked.touch()
            await client.restore(str(taken["epoch"]))
            await until_visited(client, 1, 2, 3, 4, UNLUCKY)
            assert not [x for x in (await fleet.client.status()).concerns if x.kind == "rollback"]
        stop.touch()
        await fleet.end_by_hand()


async def test_a_turn_goes_back_to_before_it_began_and_then_takes_another_way(data_dir: Path) -> None:
    stop, looked, called = [data_dir.with_name(name) for name in ("stop", "looked", "called")]
    environment = {"WALKER_STOP": str(stop), "WALKER_LOOKED": str(looked), "WALKER_CALLED": str(called)}
    async with running(data_dir, "walkers:fleet", {"durable": "scout"}, hosts=2, environment=environment) as fleet:
        await fleet.until(lambda now: now.phase == "running")
        async with await Client.connect(data_dir=data_dir) as client:
            for serial in (1, 2):
                await client.send("walker", Visit(serial), f"visit-{serial}", timeout_s=LIMIT_S)
            await until_visited(client, 1, 2)
            before = await client.snapshot(timeout_s=LIMIT_S)
            await client.send("walker", Visit(UNLUCKY), "unlucky", timeout_s=LIMIT_S)
            async with asyncio.timeout(LIMIT_S):
                while not called.exists():
                    await asyncio.sleep(0.05)
            await client.snapshot(timeout_s=LIMIT_S)  # the turn has begun in it
            looked.touch()
            await until_visited(client, 1, 2, -UNLUCKY)
            (back,) = await fleet.recoveries()
            assert back["line_epoch"] == before["epoch"]
            found = (await client.state("walker", live=True)).state["reasons"]  # type: ignore[index]
            requests = (("rolled_back", "", "done"), ("step", "call", "done"))
            assert found == [f"1 walker {before['epoch']} an unlucky visit {requests}"]
        stop.touch()
        await fleet.end_by_hand()
