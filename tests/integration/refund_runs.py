"""209 refunds under SIGKILL: how many have arrived twice, how many never."""

import asyncio
import random
import time
from pathlib import Path

import msgspec
from tests.integration.running import running
from tests.integration.victims import Killer, Program

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.examples import refunds
from snapline.examples.payments import Book, read_entries
from snapline.storage.store.store import Store

DELAY_S = 0.03
"""The service takes so long before a payment, and after it."""

LIMIT_S = 900.0


class Outcome(msgspec.Struct, frozen=True):
    """`kills`: what was killed how often. `lost`: refunds that were answered, and not paid."""

    kills: dict[str, int]
    orders: int
    twice: int
    lost: int
    seconds: float

    def __str__(self) -> str:
        kills = ", ".join(f"{count} {target}" for target, count in sorted(self.kills.items()))
        return f"{self.orders} refunds, {sum(self.kills.values())} kills ({kills}): {self.twice} twice, {self.lost} lost; {self.seconds:.0f} s"


async def refund_run(
    data_dir: Path, chosen: random.Random, *, protocol: str, orders: int, is_unsafe: bool = False, kills_max: int = 1000
) -> Outcome:
    """Ask for so many refunds, and kill a host, the coordinator, the client, or all of them, a second after each time the fleet runs."""
    started_s = time.monotonic()
    data_dir.parent.mkdir(exist_ok=True)
    ledger = data_dir.with_name("payments.jsonl")
    service = Program("snapline.examples.payment_service", ledger, "--delay-s", str(DELAY_S), serves="--port")
    client = Program("snapline.examples.refunds", "--data-dir", data_dir, "--orders", str(orders))
    await service.start()
    arguments = {"service": service.address, "protocol": protocol, "unsafe": "yes" if is_unsafe else "no"}
    try:
        async with running(data_dir, "snapline.examples.refunds:fleet", arguments) as fleet:
            await client.start()
            killer = Killer(fleet, {"client": client}, chosen)
            async with asyncio.timeout(LIMIT_S):
                asking = asyncio.create_task(client.finish())
                await killer.while_running(asking, kills_max)
                await asking
    finally:
        await client.end()
        await service.end()
    assert client.text == f"{orders} refunds answered\n"
    check_fleet(data_dir, arguments, orders)
    paid = Book(read_entries(ledger)).standing
    wanted = [f"order-{order}" for order in range(1, orders + 1)]
    assert set(paid) <= set(wanted)
    return Outcome(
        kills=dict(killer.kills),
        orders=orders,
        twice=sum([len(paid.get(order, ())) > 1 for order in wanted]),
        lost=sum([not paid.get(order) for order in wanted]),
        seconds=time.monotonic() - started_s,
    )


def check_fleet(data_dir: Path, arguments: dict[str, str], orders: int) -> None:
    """The fleet says of itself that it has refunded each order."""
    store = Store.open(data_dir / "store")
    states = load_cut(store, store.epochs()[-1], refunds.fleet(**arguments)).states.values()
    done = [order for state in states if isinstance(state, refunds.Desk) for order in state.refunded]
    assert sorted(done) == list(range(1, orders + 1))
