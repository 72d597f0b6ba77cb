"""A fleet of real processes is taken back on purpose: what it did since is undone, its inputs come again or are dropped, for good (R1, R2)."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.fleets import tills
from tests.integration.fleets.gazettes import Issue
from tests.integration.fleets.tills import Counts, Notes, Paid
from tests.integration.processes import LIMIT_S, snapline
from tests.integration.running import Running, running

from snapline.agent_runtime.message_encoding import Output, OutputsReverted
from snapline.agent_runtime.snapshots.snapshot_reader import open_store
from snapline.client.client import Client
from snapline.errors import InputRefusedError, UsageError

pytestmark = pytest.mark.timeout(240)


async def pay(client: Client, *serials: int) -> list[int]:
    receipts = [await client.send("till-0", Paid(x), f"order-{x}", timeout_s=LIMIT_S) for x in serials]
    return [receipt.number for receipt in receipts]


async def saved(client: Client, *serials: int) -> int:
    """A snapshot is taken that holds that till 0 has consumed these; returns its epoch.

    None is taken but by hand: the coordinator keeps ten, and on a busy machine a command may take longer than ten periods.
    """
    await until_paid(client, *serials)
    async with asyncio.timeout(LIMIT_S):
        while True:
            await client.snapshot(timeout_s=LIMIT_S)
            found = await client.state("till-0")
            if found.state["order"] == list(serials):  # type: ignore[index]
                assert found.epoch is not None
                return found.epoch
            await asyncio.sleep(0.5)  # of autonomous agents the last checkpoints count


async def until_paid(client: Client, *serials: int) -> None:
    """Till 0 has consumed these, and nothing else."""
    async with asyncio.timeout(LIMIT_S):
        while (found := (await client.state("till-0", live=True)).state["order"]) != list(serials):  # type: ignore[index]
            assert len(found) <= len(serials), found
            await asyncio.sleep(0.05)


async def back_and_forth(fleet: Running, client: Client, data_dir: Path) -> None:
    assert await pay(client, 1, 2, 3) == [1, 2, 3]
    target = await saved(client, 1, 2, 3)
    assert await pay(client, 4, 5) == [4, 5]
    await saved(client, 1, 2, 3, 4, 5)

    asked = ("recovery", "restore", str(target), "--data-dir", data_dir, "-o", "json")
    looked = await snapline(*asked, "--dry-run")
    assert looked.code == 0, looked.err
    shown: Any = looked.json
    assert (shown["kind"], shown["epoch"]) == ("RestorePreview", target) and shown["void_epochs"]
    assert shown["inputs"] == [{"agent": "till-0", "first": 4, "count": 2, "missing": []}]
    refused = await snapline(*asked)
    assert refused.code == 2 and "--dry-run" in refused.err

    restored = await snapline(*asked, "--yes", "--reason", "a test")
    assert restored.code == 0, restored.err
    done: Any = restored.json
    assert (done["kind"], done["epoch"]) == ("FleetRestored", target)
    await fleet.until(lambda now: now.phase == "running" and now.plan == done["plan"])
    await until_paid(client, 1, 2, 3, 4, 5)
    await fleet.recovered_from("h2")
    last = (await fleet.recoveries())[-1]
    assert int(str(last["line_epoch"])) not in done["void_epochs"]

    again = await client.restore(target, drop_inputs=True)
    await fleet.until(lambda now: now.phase == "running" and now.plan == again["plan"])
    await until_paid(client, 1, 2, 3)
    await fleet.recovered_from("h1")
    await until_paid(client, 1, 2, 3)
    with pytest.raises(InputRefusedError, match="was dropped"):
        await client.send("till-0", Paid(4), "order-4")
    assert await pay(client, 6) == [6], "numbers of dropped inputs are not used again"
    await until_paid(client, 1, 2, 3, 6)
    with pytest.raises(UsageError, match=r"void|does not keep"):
        await client.restore(done["void_epochs"][0])
    history = await snapline("recovery", "history", "--data-dir", data_dir, "-o", "table")
    assert f"back to epoch {target} on purpose: a test" in history.out
    newest = await snapline("snapshot", "history", "--limit", "1", "--data-dir", data_dir, "-o", "table")
    epoch = int(newest.out.splitlines()[1].split()[0])
    every = await snapline("snapshot", "history", "--data-dir", data_dir, "-o", "json")
    assert every.rows("epochs")[-1]["epoch"] == epoch
    assert f"older: `--limit {len(every.rows('epochs'))}` lists all" in newest.out


@pytest.mark.parametrize(
    "protocol",
    [pytest.param("chandy-lamport", marks=pytest.mark.slow), "hmnr", pytest.param("koo-toueg", marks=pytest.mark.slow)],
)
async def test_fleet_goes_back_stays_back_and_its_inputs_come_again_or_are_dropped(
    data_dir: Path, protocol: str
) -> None:
    stop = data_dir.with_name("stop")
    arguments = {
        "stop": str(stop),
        "protocol": protocol,
        "period": "3600",
        "messages": "25" if protocol == "hmnr" else "",
    }
    async with running(data_dir, "tills:fleet", arguments) as fleet:
        await fleet.until(lambda now: now.phase == "running")
        async with await Client.connect(data_dir=data_dir) as client:
            await back_and_forth(fleet, client, data_dir)
        stop.touch()
        await fleet.end_by_hand()
    states = open_store(data_dir / "store", fleet=tills.fleet("")).snapshot("latest").agents
    till, ledger = states["till-0"].state, states["ledger"].state
    assert isinstance(till, Counts) and isinstance(ledger, Notes)
    assert till.order == ledger.seen["till-0"] == [1, 2, 3, 6]


async def test_readers_of_outputs_are_told_what_is_taken_back(data_dir: Path) -> None:
    stop = data_dir.with_name("stop")
    found: list[Output | OutputsReverted] = []

    async def read() -> None:
        async with await Client.connect(data_dir=data_dir) as client:
            async for each in client.outputs("odd", message_type=Issue, timeout_s=LIMIT_S):
                found.append(each)

    async with running(data_dir, "gazettes:fleet", {"stop": str(stop), "period": "1"}) as fleet:
        await fleet.until_epochs(2)
        reading = asyncio.create_task(read())
        target = (await fleet.client.status()).last_complete_epoch
        async with asyncio.timeout(LIMIT_S):
            while not any(isinstance(each, Output) and each.epoch > target for each in found):
                await asyncio.sleep(0.05)
        shown = await fleet.client.preview_restore(str(target))
        assert {row.topic for row in shown.outputs} >= {"odd"} and target not in shown.void_epochs
        done = await fleet.client.restore(str(target), "token", "", False)
        assert await fleet.client.restore(str(target), "token", "", False) == done, "asked twice it is done once"
        await fleet.until(lambda now: now.phase == "running")
        await fleet.until_more_epochs(1)
        stop.touch()
        await fleet.end()
        await asyncio.wait_for(reading, LIMIT_S)
    (told,) = [each for each in found if isinstance(each, OutputsReverted)]
    assert told.after == target
    assert standing(found) == standing(open_store(data_dir / "store").outputs("odd", message_type=Issue))


def standing(found: Iterable[Output | OutputsReverted]) -> list[Output]:
    """What is not taken back."""
    kept: list[Output] = []
    for each in found:
        kept = [x for x in kept if x.epoch <= each.after] if isinstance(each, OutputsReverted) else [*kept, each]
    assert [each.message.serial for each in kept if each.agent == "printer-0"] == sorted(
        {each.message.serial for each in kept if each.agent == "printer-0"}
    )
    return kept
