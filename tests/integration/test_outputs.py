"""Programs outside a fleet of real processes read what its agents give out, while a host and the leading replica are killed (R2).

What chance said stands in each output and in the states: a reader that got an output of a turn that was undone would have another number.
"""

import asyncio
from pathlib import Path

import pytest
from tests.integration.fleets import gazettes
from tests.integration.fleets.gazettes import Gazette, Issue
from tests.integration.processes import LIMIT_S, snapline
from tests.integration.running import running

from snapline.agent_runtime.message_encoding import Output
from snapline.agent_runtime.snapshots.snapshot_reader import open_store
from snapline.client.client import Client

pytestmark = pytest.mark.timeout(240)

PRINTERS = 3


async def read_all(data_dir: Path, found: list[Output]) -> None:
    """To the end of the fleet."""
    async with await Client.connect(data_dir=data_dir) as client:
        async for each in client.outputs(message_type=Issue, timeout_s=LIMIT_S):
            assert isinstance(each, Output), each
            found.append(each)


async def read_in_pieces(data_dir: Path, found: list[Output], *, stop: Path) -> None:
    """As a program that is started again and again, and knows nothing of before."""
    while not stop.exists():
        async with await Client.connect(data_dir=data_dir) as client:
            async for each in client.outputs("odd", consumer="pieces", message_type=Issue, timeout_s=LIMIT_S):
                assert isinstance(each, Output), each
                found.append(each)
                await client.acknowledge("pieces", each)
                if len(found) % 10 == 0:
                    break


@pytest.mark.parametrize(
    ("protocol", "coordinators"), [("chandy-lamport", 3), pytest.param("hmnr", 1, marks=pytest.mark.slow)]
)
@pytest.mark.promise
async def test_readers_have_each_output_once_whatever_is_killed(
    data_dir: Path, protocol: str, coordinators: int
) -> None:
    stop = data_dir.with_name("stop")
    every: list[Output] = []
    odd: list[Output] = []
    arguments = {"stop": str(stop), "protocol": protocol}
    async with running(data_dir, "gazettes:fleet", arguments, coordinators=coordinators) as fleet:
        await fleet.until_epochs(1)
        reading = asyncio.create_task(read_all(data_dir, every))
        in_pieces = asyncio.create_task(read_in_pieces(data_dir, odd, stop=stop))
        await until_more(every, 30)
        await fleet.recovered_from("h2")
        await until_more(every, 30)
        if coordinators > 1:
            leader = await fleet.until_led()
            fleet.local.kill(leader)
            await until_more(every, 30)
        await until_more(odd, max(0, 11 - len(odd)))
        stop.touch()
        await fleet.end()
        await asyncio.wait_for(reading, LIMIT_S)
        in_pieces.cancel()
        await asyncio.gather(in_pieces, return_exceptions=True)
    store = open_store(data_dir / "store", fleet=gazettes.fleet(""))
    last = store.snapshot("latest")
    for number in range(PRINTERS):
        agent, state = f"printer-{number}", last.agents[f"printer-{number}"].state
        assert isinstance(state, Gazette)
        mine = [each for each in every if each.agent == agent]
        assert [each.number for each in mine] == list(range(1, len(state.tokens) + 1))
        assert [(each.message.serial, each.message.token) for each in mine] == list(enumerate(state.tokens, 1))
    assert list(store.outputs(message_type=Issue)) == every
    wanted = [each for each in every if each.topic == "odd"]
    assert odd == wanted[: len(odd)]
    found = await snapline("output", "tail", "odd", "--store", data_dir / "store", "--after", wanted[5].cursor)
    assert found.code == 0 and len(found.out.splitlines()) == len(wanted) - 6


async def until_more(found: list[Output], count: int) -> None:
    wanted = len(found) + count
    async with asyncio.timeout(LIMIT_S):
        while len(found) < wanted:
            await asyncio.sleep(0.02)
