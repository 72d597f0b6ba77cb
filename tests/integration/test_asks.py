"""Programs outside a fleet of real processes ask its agents, while a host is killed: a final answer that was told stays what it was (R2).

Each counter answers with the how manieth input it was. What clients were told is kept here, and compared with what they are told again, and
with the states of the last snapshot, which know nothing of answers.
"""

import asyncio
from pathlib import Path

import pytest
from tests.integration.fleets import counters
from tests.integration.fleets.counters import Count, Counted, Tick
from tests.integration.processes import LIMIT_S
from tests.integration.running import running

from snapline.agent_runtime.snapshots.snapshot_reader import open_store
from snapline.client.client import Client

pytestmark = pytest.mark.timeout(240)

COUNTERS, ASKS = 3, 30


async def ask(client: Client, serial: int, *, early: bool) -> Counted:
    agent = f"counter-{serial % COUNTERS}"
    reply = await client.ask(agent, Tick(serial), f"tick-{serial}", early, LIMIT_S, reply_type=Counted)
    answer = reply.message
    assert isinstance(answer, Counted) and answer.serial == serial
    assert answer.count == reply.number, "each input has one turn, in order"
    return answer


async def ask_all(client: Client, number: int, told: dict[int, Counted], early: dict[int, Counted]) -> None:
    """One counter's, one after the other; every other one early."""
    for serial in range(number, COUNTERS * ASKS, COUNTERS):
        is_early = serial // COUNTERS % 2 == 1
        (early if is_early else told)[serial] = await ask(client, serial, early=is_early)


@pytest.mark.parametrize("protocol", ["chandy-lamport", pytest.param("hmnr", marks=pytest.mark.slow)])
async def test_answers_that_were_told_stay_what_they_were_while_a_host_is_killed(data_dir: Path, protocol: str) -> None:
    stop = data_dir.with_name("stop")
    told: dict[int, Counted] = {}
    early: dict[int, Counted] = {}
    async with running(data_dir, "counters:fleet", {"stop": str(stop), "protocol": protocol}) as fleet:
        await fleet.until_epochs(1)
        async with await Client.connect(data_dir=data_dir) as client:
            asking = [asyncio.create_task(ask_all(client, number, told, early)) for number in range(COUNTERS)]
            while len(told) < COUNTERS * ASKS // 6:
                await asyncio.sleep(0.01)
            before = dict(told)
            recovery = await fleet.recovered_from("h2")
            await asyncio.gather(*asking)
            serials = range(COUNTERS * ASKS)
            assert sorted([*told, *early]) == list(serials)
            again = dict(
                zip(serials, await asyncio.gather(*[ask(client, x, early=False) for x in serials]), strict=True)
            )
            changed = [serial for serial, answer in early.items() if again[serial] != answer]
            print(
                f"{len(before)} told before the recovery of {recovery['duration_s']} s; of {len(early)} early {changed} changed"
            )
            assert {serial: again[serial] for serial in told} == told
        await fleet.until_more_epochs(2)
        stop.touch()
        await fleet.end()
    last = open_store(data_dir / "store", fleet=counters.fleet("")).snapshot("latest")
    for number in range(COUNTERS):
        state = last.agents[f"counter-{number}"].state
        assert isinstance(state, Count)
        counted = {serial: count for count, serial in enumerate(state.serials, 1)}
        assert state.tokens == [again[serial].token for serial in state.serials]
        assert counted == {serial: again[serial].count for serial in serials if serial % COUNTERS == number}
        assert len(counted) == len(state.serials) == ASKS, "no input counted twice"
