"""Agents of real processes pay at a service that is a process of its own and counts, while hosts are killed (R3)."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from tests.integration.fleets import payers
from tests.integration.running import Running, running

from snapline.agent_runtime.message_encoding import Output
from snapline.agent_runtime.snapshots.snapshot_reader import open_store
from snapline.client.client import Client
from snapline.errors import UsageError
from snapline.examples.payments import Book, read_entries
from snapline.messages.effect_records import EffectRecord
from snapline.messages.status import FleetStatus

pytestmark = pytest.mark.timeout(240)

AGENTS, ORDERS = 3, 6
KILLED_AT = (4, 14, 26)
"""Entries in the service's ledger then, of some 60."""


@contextlib.asynccontextmanager
async def serving(ledger: Path, *options: str) -> AsyncIterator[str]:
    """The payment service; its address."""
    command = ["-m", "snapline.examples.payment_service", str(ledger), "--delay-s", "0.02", *options]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize(
    ("protocol", "options"), [("chandy-lamport", ("--ignore-keys",)), pytest.param("hmnr", (), marks=pytest.mark.slow)]
)
async def test_what_was_paid_is_what_the_orders_say(data_dir: Path, protocol: str, options: tuple[str, ...]) -> None:
    ledger = data_dir.with_name("ledger")
    ledger.touch()
    async with serving(ledger, *options) as service:
        arguments = {"service": service, "protocol": protocol, "orders": str(ORDERS), "agents": str(AGENTS)}
        async with running(data_dir, "payers:fleet", arguments) as fleet:
            for entries in KILLED_AT:
                await fleet.until(partial(has_done, ledger, entries))
                await fleet.recovered_from("h1", "h2")
            await fleet.end()
    check(data_dir, Book(read_entries(ledger)), service)
    undone = 2 * AGENTS * sum([order % 3 != payers.STANDS for order in range(ORDERS)])
    moved = [each for each in read_entries(ledger) if each.undoes or not each.is_undoing]
    assert len(moved) == 2 * AGENTS * ORDERS + undone, "nothing was paid, or given back, twice"


def has_done(ledger: Path, entries: int, now: FleetStatus) -> bool:
    """So many."""
    return len(list(read_entries(ledger))) >= entries


def check(data_dir: Path, book: Book, service: str) -> None:
    """The service's book, the states of the last snapshot, and the fleet's own ledger say the same."""
    store = open_store(data_dir / "store", fleet=payers.fleet(service))
    last = store.snapshot("latest")
    records = [
        each.message for each in store.outputs("@effects", message_type=EffectRecord) if isinstance(each, Output)
    ]
    done = {record.outside_key for record in records if record.stage == "done"}
    assert done == set(book.by_key)
    for number in range(AGENTS):
        state = last.agents[f"payer-{number}"].state
        assert isinstance(state, payers.Books)
        for order in range(ORDERS):
            name = f"payer-{number}.{order}"
            stands = [payment.number for payment in book.standing[name]]
            assert stands == [state.receipts[name] for _ in (1,) if order % 3 == payers.STANDS], name
            assert len(book.standing[f"{name}.fee"]) == (order % 3 == payers.STANDS), name
    assert not list(store.outputs()), "readers of all topics do not get the ledger"


BACK = 6
"""Epochs that a fleet is taken back: some effects of each payer. Ten are kept."""


@pytest.mark.parametrize("protocol", ["hmnr"])
async def test_what_stands_outside_is_what_the_orders_say_after_the_fleet_was_taken_back(
    data_dir: Path, protocol: str
) -> None:
    """What was paid since comes again and is not paid again; what was given back since is paid, and given back, anew."""
    ledger = data_dir.with_name("ledger")
    ledger.touch()
    async with serving(ledger) as service:
        arguments = {"service": service, "protocol": protocol, "orders": str(ORDERS), "agents": str(AGENTS)}
        async with running(data_dir, "payers:fleet", arguments) as fleet:
            for entries in KILLED_AT[1:]:
                await fleet.until(partial(has_done, ledger, entries))
                await taken_back(fleet, data_dir)
                await fleet.recovered_from("h1")
            await fleet.end()
    book = Book(read_entries(ledger))
    last = open_store(data_dir / "store", fleet=payers.fleet(service)).snapshot("latest")
    for number in range(AGENTS):
        state = last.agents[f"payer-{number}"].state
        assert isinstance(state, payers.Books)
        for order in range(ORDERS):
            name, stands = f"payer-{number}.{order}", order % 3 == payers.STANDS
            assert [each.number for each in book.standing[name]] == [state.receipts[name] for _ in (1,) if stands], name
            assert len(book.standing[f"{name}.fee"]) == stands, name


async def taken_back(fleet: Running, data_dir: Path) -> None:
    """Past some effects; from the first epoch there that is complete."""
    now = await fleet.until(lambda now: now.phase == "running" and now.last_complete_epoch > BACK)
    async with await Client.connect(data_dir=data_dir) as client:
        for target in range(now.last_complete_epoch - BACK, now.last_complete_epoch):
            with contextlib.suppress(UsageError):  # it was aborted, or is void
                await client.restore(target)
                return
    raise AssertionError("there is no epoch to go back to")
