"""Operators retry and drop dead letters of a fleet of real processes, while hosts are killed: each has its other turn once."""

import asyncio
from pathlib import Path

import pytest
from tests.integration.fleets import clerks
from tests.integration.fleets.clerks import Book, Ordered
from tests.integration.fleets.tills import Notes
from tests.integration.processes import LIMIT_S, snapline
from tests.integration.running import running

from snapline.agent_runtime.snapshots.snapshot_reader import open_store
from snapline.client.client import Client
from snapline.errors import InputDeadLetteredError, NotFoundError, UsageError

pytestmark = pytest.mark.timeout(180)

CLERKS, EACH = 3, 30


async def order(client: Client, clerk: str) -> None:
    """Until all are dead letters for good."""
    receipts = await client.send_many([(clerk, Ordered(serial), f"order-{serial}") for serial in range(EACH)])
    assert [receipt.number for receipt in receipts] == list(range(1, EACH + 1))
    with pytest.raises(InputDeadLetteredError):  # told when a snapshot holds it, so no recovery undoes it
        await client.ask(clerk, Ordered(EACH - 1), f"order-{EACH - 1}", timeout_s=LIMIT_S)


@pytest.mark.parametrize("protocol", ["chandy-lamport", pytest.param("hmnr", marks=pytest.mark.slow)])
async def test_each_letter_is_retried_once_while_its_host_is_killed(data_dir: Path, protocol: str) -> None:
    stop, catalogue = data_dir.with_name("stop"), data_dir.with_name("catalogue")
    arguments = {"stop": str(stop), "catalogue": str(catalogue), "protocol": protocol}
    names = [f"clerk-{number}" for number in range(CLERKS)]
    async with running(data_dir, "clerks:fleet", arguments) as fleet:
        await fleet.until_epochs(1)
        async with await Client.connect(data_dir=data_dir) as client:
            await asyncio.gather(*[order(client, name) for name in names])
            again = await client.retry_dead_letters(names[0], [1], LIMIT_S)
            assert [(x.number, x.outcome) for x in again] == [(1, "failed")]
            catalogue.touch()
            dropped = await client.drop_dead_letters(names[0], [2, 3], LIMIT_S)
            assert [(x.number, x.outcome) for x in dropped] == [(2, "dropped"), (3, "dropped")]
            retrying = [asyncio.create_task(client.retry_dead_letters(name, None, LIMIT_S)) for name in names]
            await fleet.recovered_from("h2")
            settled = {name: await task for name, task in zip(names, retrying, strict=True)}
        await fleet.until_more_epochs(2)
        stop.touch()
        await fleet.end()
    expected = {name: list(range(EACH)) for name in names}
    expected[names[0]] = [*range(3, EACH), 0]
    for name, told in settled.items():
        assert [x.outcome for x in told] == ["handled"] * len(expected[name]), told
        assert [x.message for x in told] == [{"type": "Booked", "fields": {"serial": x}} for x in expected[name]]
    check(data_dir, arguments, expected)


def check(data_dir: Path, arguments: dict[str, str], expected: dict[str, list[int]]) -> None:
    """No snapshot has an order twice, the last one has each that was not dropped, in order, and no dead letter."""
    found = open_store(data_dir / "store", fleet=clerks.fleet(**arguments))
    for snapshot in found:
        for name in expected:
            state = snapshot.agents[name].state
            assert isinstance(state, Book) and len(state.order) == len(set(state.order)), (snapshot.epoch, name)
    last = found.snapshot("latest")
    ledger = last.agents["ledger"].state
    assert isinstance(ledger, Notes)
    for name, serials in expected.items():
        assert last.agents[name].state.order == serials == ledger.seen[name]
        assert (last.agents[name].dead_letters, last.agents[name].dead_letter_count) == (
            (),
            EACH - len(serials),
        ), "those that were dropped stay counted"


async def test_commands_retry_and_drop_and_say_what_is_wrong(data_dir: Path) -> None:
    stop, catalogue = data_dir.with_name("stop"), data_dir.with_name("catalogue")
    arguments = {"stop": str(stop), "catalogue": str(catalogue), "clerks": "1"}
    async with running(data_dir, "clerks:fleet", arguments, hosts=2) as fleet:
        await fleet.until_epochs(1)
        letters, where = ("agent", "dead-letters"), ("--data-dir", data_dir)
        async with await Client.connect(data_dir=data_dir) as client:
            await client.send_many([("clerk-0", Ordered(serial)) for serial in range(3)])
            with pytest.raises(NotFoundError, match="no dead letter 9; those that it has: 1, 2, 3"):
                await client.drop_dead_letters("clerk-0", [9])
            with pytest.raises(UsageError, match="named twice"):
                await client.drop_dead_letters("clerk-0", [1, 1])
        again = await snapline(*letters, "retry", "clerk-0", "2", *where)
        assert (again.code, [row["outcome"] for row in again.rows("dead_letters")]) == (3, ["failed"])
        catalogue.touch()
        dropped = await snapline(*letters, "drop", "clerk-0", "1", *where, "-o", "table")
        assert dropped.code == 0 and "dropped" in dropped.out
        listed = await snapline(*letters, "list", *where)
        assert [row["number"] for row in listed.rows("dead_letters")] == [3, 4], "numbers stay"
        shown = await snapline(*letters, "show", "clerk-0", "4", *where)
        assert (shown.code, shown.json["number"]) == (0, 4)
        missing, nobody, both, neither = await asyncio.gather(
            snapline(*letters, "retry", "clerk-0", "1", *where),
            snapline(*letters, "retry", "clerk-9", "--all", *where),
            snapline(*letters, "retry", "clerk-0", "3", "--all", *where),
            snapline(*letters, "drop", "clerk-0", *where),
        )
        assert missing.code == 4 and "agent 'clerk-0' has no dead letter 1; those that it has: 3, 4" in missing.err
        assert nobody.code == 4 and "agent 'clerk-9' is not in this fleet" in nobody.err
        assert both.code == neither.code == 2 and "give their numbers, or --all" in both.err.lower()
        done = await snapline(*letters, "retry", "clerk-0", "--all", *where)
        assert (done.code, [row["message"] for row in done.rows("dead_letters")]) == (
            0,
            [{"type": "Booked", "fields": {"serial": serial}} for serial in (2, 1)],
        )
        nothing = await snapline(*letters, "retry", "clerk-0", "--all", *where, "-o", "table")
        assert nothing.code == 0 and "agent clerk-0 has no dead letters" in nothing.out
        stop.touch()
        await fleet.end()
