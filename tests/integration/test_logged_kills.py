"""SIGKILL of hosts in uncoordinated, communication-induced and koo-toueg fleets of real processes.

Each PageRank must hold all mass in every epoch and end within its bound. The dominoes must fall where nothing is forced, and
every counter must still be received exactly once.
"""

import asyncio
import random
from pathlib import Path

import msgspec
import pytest
from tests.integration.cuts import check_store, store_of
from tests.integration.pagerank_runs import SEEDS, pagerank_run
from tests.integration.running import running

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.examples import domino
from snapline.protocols.names import PROTOCOLS, is_logged

pytestmark = pytest.mark.timeout(180)

LOGGED = [name for name in PROTOCOLS if is_logged(name)]
RUNS = 50
ALL_HOSTS_EVERY = 10
SECONDS = 2.0


async def one_run(data_dir: Path, protocol: str, number: int, seed: int, *, seeds: int = SEEDS) -> str:
    try:
        return await pagerank_run(
            data_dir,
            random.Random(seed),
            protocol=protocol,
            seconds=SECONDS,
            seeds=seeds,
            all_hosts=number % ALL_HOSTS_EVERY == ALL_HOSTS_EVERY - 1,
        )
    except BaseException as error:
        error.add_note(f"SNAPLINE_SEED={seed}, data in {data_dir}")
        raise


@pytest.mark.parametrize("protocol", [pytest.param("koo-toueg", marks=pytest.mark.slow), "uncoordinated"])
async def test_pagerank_is_exact(protocol: str, data_dir: Path) -> None:
    """With little work; the slow test has more of it, and all protocols. Of those that force, hmnr is in `test_dominoes`."""
    await one_run(data_dir, protocol, 0, 1, seeds=1)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(RUNS))
@pytest.mark.parametrize("protocol", LOGGED)
async def test_pagerank_is_exact_whatever_is_killed(
    protocol: str, number: int, first_seed: int, figures: list[str], data_dir: Path
) -> None:
    seed = first_seed + number
    figures.append(f"seed {seed}: {await one_run(data_dir, protocol, number, seed)}")


@pytest.mark.parametrize("protocol", ["uncoordinated", pytest.param("hmnr", marks=pytest.mark.slow)])
async def test_dominoes(protocol: str, data_dir: Path) -> None:
    arguments = {"protocol": protocol, "passes": "300", "pause": "0.005"}
    async with running(data_dir, "snapline.examples.domino:fleet", arguments, hosts=2) as fleet:
        await fleet.until(lambda now: sum(host.turns for host in now.hosts) > 150)
        fleet.local.kill("h2")
        recovery = await fleet.until_recovered()
        await fleet.end()
    check_store(data_dir)
    store = store_of(data_dir)
    assert domino.is_exact(load_cut(store, store.epochs()[-1], domino.fleet(**arguments)))
    lost = int(str(recovery["checkpoints_lost"]))
    if protocol == "uncoordinated":
        assert recovery["rolled_back"] == 2 and lost > 50, recovery
    else:
        assert lost <= 4, recovery


async def test_the_coordinator_and_a_host_die_together(data_dir: Path) -> None:
    """What is durable is found in the store again. The line of a running fleet is asked for before."""
    arguments = {"protocol": "uncoordinated", "passes": "200", "pause": "0.005"}
    async with running(data_dir, "snapline.examples.domino:fleet", arguments, hosts=2) as fleet:
        await fleet.until(lambda now: sum(host.turns for host in now.hosts) > 50)
        line = await fleet.client.recovery_line(["b0"])
        each = await fleet.client.recovery_lines()
        assert (await fleet.client.create_snapshot()).is_complete
        fleet.local.kill("coordinator")
        await asyncio.sleep(0.2)
        fleet.local.kill("h1")
        await fleet.until_recovered()
        await fleet.end()
    assert set(msgspec.convert(line["recovery_line"], dict[str, int | None])) == {"a0", "b0"}
    failures = [row["failed"] for row in msgspec.convert(each["lines"], list[dict[str, object]])]
    assert failures == ["a0", "b0", "host:h1", "host:h2"]
    store = store_of(data_dir)
    assert domino.is_exact(load_cut(store, store.epochs()[-1], domino.fleet(**arguments)))


@pytest.mark.slow
async def test_logs_are_bounded_though_the_line_does_not_advance(data_dir: Path) -> None:
    """The fleet is stopped for a moment, and what it had logged is in an epoch."""
    arguments = {"protocol": "uncoordinated", "passes": "600", "pause": "0.002", "log_bytes_max": "500"}
    async with running(data_dir, "snapline.examples.domino:fleet", arguments, hosts=2) as fleet:
        await fleet.until(lambda now: now.epochs_completed >= 1 and now.phase == "running")
        assert await fleet.recoveries() == []
        await fleet.end()
    check_store(data_dir)
    store = store_of(data_dir)
    assert domino.is_exact(load_cut(store, store.epochs()[-1], domino.fleet(**arguments)))
