"""Forks of real fleets: a snapshot of one that runs becomes another one beside it, which diverges as it was told, and recovers by itself."""

import asyncio
import time
from pathlib import Path

import msgspec
import pytest
from tests.integration.cuts import check_paced_bank, store_of
from tests.integration.fleets import counters, paced_bank
from tests.integration.fleets.counters import Counted, Tick
from tests.integration.processes import LIMIT_S, snapline
from tests.integration.running import running

from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.agent_runtime.snapshots.snapshot_reader import open_store
from snapline.client.client import Client
from snapline.errors import UsageError
from snapline.examples.bank import tokens_in
from snapline.storage.store.store import Holds

pytestmark = pytest.mark.timeout(240)

BANK = "tests.integration.fleets.paced_bank:fleet"
TOKENS = 450


@pytest.mark.parametrize("protocol", ["chandy-lamport", pytest.param("hmnr", marks=pytest.mark.slow)])
async def test_a_fork_runs_beside_its_parent_and_diverges_as_it_was_told(data_dir: Path, protocol: str) -> None:
    stop, forked = data_dir.with_name("stop"), data_dir.with_name("forked")
    arguments = {"stop": str(stop), "protocol": protocol}
    given = [word for name, value in arguments.items() for word in ("--arg", f"{name}={value}")]
    definition = paced_bank.fleet(**arguments)
    async with running(data_dir, "paced_bank:fleet", arguments) as parent:
        await parent.until_epochs(2)
        epoch = await pinned(data_dir)
        made = await snapline(
            "snapshot", "fork", str(epoch), "--data-dir", data_dir, "--to", forked, "--name", "rich",
            "--fleet", BANK, *given, "--set", "teller-3.balance=1000",
        )  # fmt: skip
        assert made.code == 0, made.err
        assert made.json["epoch"] == epoch
        tokens = check_fork(data_dir, forked, epoch, definition)
        async with running(forked, "paced_bank:fleet", arguments, hosts=2) as fork:
            status = await fork.until_epochs(3)
            assert status.fork is not None and (status.fork.name, status.fork.epoch) == ("rich", epoch)
            recovery = await fork.recovered_from("h2")
            assert int(str(recovery["line_epoch"])) >= epoch
            await fork.until_more_epochs()
            now = await parent.until_more_epochs()
            assert now.fork is None and await parent.recoveries() == [], "the parent has not noticed"
            stop.touch()
            await fork.end()
        await parent.end()
    check_paced_bank(data_dir, definition, tokens=TOKENS)
    check_paced_bank(forked, definition, tokens=tokens)


async def pinned(data_dir: Path) -> int:
    """The newest epoch, which stays. One that is complete is published a little later."""
    store = store_of(data_dir)
    async with asyncio.timeout(60):
        while not store.epochs():
            await asyncio.sleep(0.01)
    return Holds(store, now_s=time.time).pin(store.epochs()[-1]).epoch


def check_fork(parent: Path, forked: Path, epoch: int, definition: Fleet) -> int:
    """The fork's first snapshot is its parent's but for what was set; returns how many tokens it has."""
    before, after = load_cut(store_of(parent), epoch, definition), load_cut(store_of(forked), epoch, definition)
    purse = before.states["teller-3"]
    assert isinstance(purse, paced_bank.Purse)
    expected = {**before.states, "teller-3": msgspec.structs.replace(purse, balance=1000)}
    assert dict(after.states) == expected and after.in_transit == before.in_transit
    assert tokens_in(before) == TOKENS
    return TOKENS - purse.balance + 1000


async def tick(client: Client, serials: range) -> None:
    for serial in serials:
        reply = await client.ask("counter-0", Tick(serial), f"tick-{serial}", True, LIMIT_S, reply_type=Counted)
        assert isinstance(reply.message, Counted) and reply.message.serial == serial


@pytest.mark.parametrize(("inputs", "expected"), [("copy", 9), pytest.param("drop", 5, marks=pytest.mark.slow)])
async def test_inputs_that_the_snapshot_lacks_are_dropped_or_taken_along_by_word(
    data_dir: Path, inputs: str, expected: int
) -> None:
    stop, forked = data_dir.with_name("stop"), data_dir.with_name("forked")
    arguments = {"stop": str(stop), "counters": "2", "period": "1000"}
    async with running(data_dir, "counters:fleet", arguments, hosts=2) as parent:
        await parent.until(lambda now: now.phase == "running")
        async with await Client.connect(data_dir=data_dir) as client:
            await tick(client, range(5))
            created = await parent.client.create_snapshot()
            await tick(client, range(5, 9))
        made = await snapline(
            "snapshot",
            "fork",
            str(created.epoch),
            "--data-dir",
            data_dir,
            "--to",
            forked,
            "--name",
            "f",
            "--inputs",
            inputs,
        )
        assert (made.code, made.json["inputs_copied"], made.json["inputs_dropped"]) == (0, expected - 5, 9 - expected)
    async with running(forked, "counters:fleet", arguments, hosts=2) as fork:
        await fork.until(lambda now: now.phase == "running")
        async with await Client.connect(data_dir=forked) as client:
            await tick(client, range(100, 102))
        stop.touch()
        await fork.end_by_hand()
    state = open_store(forked / "store", fleet=counters.fleet("")).snapshot("latest").agents["counter-0"].state
    assert state.serials == [*range(expected), 100, 101]


async def test_another_fleet_than_the_forks_own_is_turned_away(data_dir: Path) -> None:
    stop, forked = data_dir.with_name("stop"), data_dir.with_name("forked")
    stop.touch()
    async with running(data_dir, "counters:fleet", {"stop": str(stop)}, hosts=2) as parent:
        await parent.end()
    made = await snapline("snapshot", "fork", "latest", "--data-dir", data_dir, "--to", forked, "--name", "f")
    assert made.code == 0, made.err
    async with running(forked, "counters:fleet", {"stop": str(stop), "counters": "7"}, hosts=1) as other:
        with pytest.raises(UsageError, match=r"has another definition of fleet 'counters'"):
            await other.local.wait(LIMIT_S)
