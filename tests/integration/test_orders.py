"""Orders on real processes in all logged protocols: agents that wait, fail, spawn and stop, under SIGKILL, two fleets side by side.

Such a fleet did not always end: a busy machine brought it out, and two of them make one busy. Each must end by itself, and in
every epoch all money is somewhere and no order has two outcomes.
"""

import asyncio
import random
from pathlib import Path

import pytest
from tests.integration.cuts import check_consistent, checkpoints_of, store_of
from tests.integration.running import running

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.examples import orders
from snapline.protocols.names import PROTOCOLS, is_logged
from snapline.sim.workloads.example_fleets import OrdersWorkload

pytestmark = pytest.mark.timeout(240)

LOGGED = [name for name in PROTOCOLS if is_logged(name)]
ORDERS = 160
RUNS = [(protocol, number) for protocol in LOGGED for number in range(25 if protocol == "hmnr" else 5)]
"""Pairs of fleets."""

LIMIT_S = 90
"""For one fleet to end: it works for two seconds."""


async def orders_run(data_dir: Path, protocol: str, seed: int) -> str:
    """One fleet, one killed host. Every epoch is exact, and the last one is quiet."""
    chosen = random.Random(seed)
    arguments = {"protocol": protocol, "orders": str(ORDERS), "pause": "0.03", "wait": "0.005"}
    async with running(data_dir, "snapline.examples.orders:fleet", arguments, hosts=3) as fleet:
        kill_s = chosen.uniform(0.0, 1.5)
        await fleet.until(lambda now: now.phase == "running")
        await asyncio.sleep(kill_s)
        victim = chosen.choice(["h1", "h2", "h3"])
        fleet.local.kill(victim)
        await fleet.end(LIMIT_S)
    store = store_of(data_dir)
    assert store.verify().findings == []
    epochs = store.epochs()
    workload = OrdersWorkload(orders.fleet(**arguments), ORDERS, ends=True)
    for epoch in epochs:
        known = checkpoints_of(store, epoch)
        receipts = (f"receipt-{order}" for order in range(ORDERS))
        check_consistent(store, epoch, gone=[agent for agent in receipts if agent not in known])
        cut = load_cut(store, epoch, workload.fleet)
        said = workload.check_cut(cut)
        assert said is None, f"epoch {epoch}: {said}"
    assert cut.is_quiet
    return f"{protocol}, seed {seed}: {victim} killed after {kill_s:.2f} s, {len(epochs)} epochs exact"


async def side_by_side(data_dir: Path, protocol: str, seed: int) -> list[str]:
    runs = [orders_run(data_dir / str(number), protocol, seed + number) for number in range(2)]
    try:
        return await asyncio.gather(*runs)
    except BaseException as error:
        error.add_note(f"SNAPLINE_SEED={seed}, data in {data_dir}")
        raise


async def test_orders_end_exactly(data_dir: Path) -> None:
    await orders_run(data_dir, "hmnr", 1)


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "number"), RUNS)
async def test_orders_end_exactly_whatever_is_killed(
    protocol: str, number: int, first_seed: int, figures: list[str], data_dir: Path
) -> None:
    figures += await side_by_side(data_dir, protocol, first_seed + 2 * number)
