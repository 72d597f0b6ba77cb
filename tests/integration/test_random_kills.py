"""SIGKILL at random moments, many times over. Each run prints its seed; SNAPLINE_SEED=… repeats the first run with it.

The moment is random in wall-clock time, so a seed repeats the choices, not the interleaving.
"""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.cuts import check_consistent, check_store, store_of
from tests.integration.killing import bank_to_be_hurt
from tests.integration.running import Running, running
from tests.integration.test_everything import check_dead_letters, check_end

from snapline.agent_runtime.cut import load_cut
from snapline.deploy.local import OnFailure
from snapline.examples import pagerank
from snapline.examples.import_graph import ImportGraph, write_graph
from snapline.storage.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PAGERANK_RUNS, BANK_RUNS, EVERYTHING_RUNS = 50, 30, 20
ALL_HOSTS_EVERY = 10
"""Every so manieth PageRank run loses all hosts at once."""

MODULES, IMPORTS_MAX = 60, 5
KILL_S = 3.0
"""A PageRank run takes four seconds at least: so a host dies while it works."""


@pytest.fixture(scope="module")
def first_seed() -> int:
    return int(os.environ.get("SNAPLINE_SEED") or random.randrange(10**9))


@pytest.fixture(scope="module")
def figures() -> Iterator[list[str]]:
    """What the runs measured, printed at the end (`-s` shows it)."""
    found: list[str] = []
    yield found
    print("\n" + "\n".join(found))


@contextlib.contextmanager
def naming(seed: int, data_dir: Path) -> Iterator[random.Random]:
    """Random choices; a failure names their seed and where the data are."""
    print(f"SNAPLINE_SEED={seed}")
    try:
        yield random.Random(seed)
    except BaseException as error:
        error.add_note(f"SNAPLINE_SEED={seed}, data in {data_dir}")
        raise


# -- PageRank ---------------------------------------------------------------------------------------------------------


def random_graph(chosen: random.Random) -> ImportGraph:
    """Who imports whom, at random; some import nothing."""
    imports = [
        sorted(
            {target for target in chosen.choices(range(MODULES), k=chosen.randint(0, IMPORTS_MAX)) if target != module}
        )
        for module in range(MODULES)
    ]
    return ImportGraph(modules=[f"module{index:02}" for index in range(MODULES)], imports=imports, unparsed=[])


def check_mass(store: Store, arguments: dict[str, str]) -> tuple[int, int]:
    """Every epoch is consistent and holds all mass to the last unit; returns epochs and messages in transit."""
    fleet = pagerank.fleet(**arguments)
    messages = 0
    for epoch in store.epochs():
        check_consistent(store, epoch)
        account = pagerank.account(load_cut(store, epoch, fleet))
        assert account.is_exact, f"epoch {epoch}: {account}"
        messages += account.messages
    return len(store.epochs()), messages


@pytest.mark.parametrize("number", range(PAGERANK_RUNS))
async def test_pagerank_is_exact_whatever_is_killed(
    number: int, first_seed: int, figures: list[str], data_dir: Path
) -> None:
    seed = first_seed + number
    with naming(seed, data_dir) as chosen:
        graph = random_graph(chosen)
        write_graph(graph, data_dir.with_name("graph.json"))
        arguments = {"graph": str(data_dir.with_name("graph.json")), "shards": "9", "seeds": "12", "batch": "1"}
        arguments |= {"part": "1", "seconds": "4", "period": "0.2"}
        victims = ["h1", "h2", "h3"] if number % ALL_HOSTS_EVERY == 0 else [chosen.choice(["h1", "h2", "h3"])]
        started_s = time.monotonic()
        async with running(data_dir, "snapline.examples.pagerank:fleet", arguments) as fleet:
            await fleet.until_epochs(1)
            await asyncio.sleep(chosen.uniform(0.0, KILL_S))
            for victim in victims:
                fleet.local.kill(victim)
            recovery = await fleet.until_recovered()
            await fleet.end()
        store = store_of(data_dir)
        epochs, messages = check_mass(store, arguments)
        result = load_cut(store, store.epochs()[-1], pagerank.fleet(**arguments))
        comparison = pagerank.compare(result, graph)
        assert comparison.is_within, comparison
        figures.append(
            f"seed {seed}: {'+'.join(victims)} killed, back to epoch {recovery['line_epoch']} in {recovery['duration_s']} s, "
            f"{recovery['messages_delivered_again']} messages delivered again; {epochs} epochs with {messages} in transit "
            f"exact, off by {comparison.difference_max:.1e} (at most {comparison.bound:.1e}); "
            f"{time.monotonic() - started_s:.1f} s"
        )


# -- the bank ---------------------------------------------------------------------------------------------------------


async def kill_at_random(fleet: Running, chosen: random.Random, candidates: list[str]) -> list[str]:
    """Kill some of these at once, at a random moment."""
    victims = chosen.sample(candidates, chosen.randint(1, len(candidates)))
    await asyncio.sleep(chosen.uniform(0.0, 0.6))
    for victim in victims:
        fleet.local.kill(victim)
    return victims


@pytest.mark.parametrize("number", range(BANK_RUNS))
async def test_the_bank_is_exact_whatever_is_killed(
    number: int, first_seed: int, figures: list[str], data_dir: Path
) -> None:
    """Up to three times, and the later ones may fall into a recovery."""
    seed = first_seed + number
    with naming(seed, data_dir) as chosen:
        on_failure: OnFailure = chosen.choice(["restart", "restart", "move"])
        candidates = ["coordinator", "h1", "h2"] + (["h3"] if on_failure == "restart" else [])
        done = []
        async with bank_to_be_hurt(data_dir, on_failure=on_failure, nap_s=chosen.choice([0.0, 0.3])) as bank:
            await bank.until_epochs(1)
            for _ in range(chosen.randint(1, 3)):
                done.append(await kill_at_random(bank, chosen, candidates))
            await bank.until_more_epochs()
            recoveries = await bank.recoveries()
        figures.append(f"seed {seed}: {on_failure}, killed {done}, {len(recoveries)} recoveries")


# -- everything -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(EVERYTHING_RUNS))
async def test_everything_happens_exactly_once_whatever_is_killed(number: int, first_seed: int, data_dir: Path) -> None:
    seed = first_seed + number
    with naming(seed, data_dir) as chosen:
        async with running(data_dir, "everything:fleet") as fleet:
            await fleet.until(lambda now: now.phase == "running")
            for _ in range(chosen.randint(1, 4)):
                await asyncio.sleep(chosen.uniform(0.0, 0.8))
                await kill_at_random(fleet, chosen, ["coordinator", "h1", "h2", "h3"])
            await fleet.end()
        check_dead_letters(check_end(data_dir))


# -- a large fleet ----------------------------------------------------------------------------------------------------

AGENTS = 1000


@pytest.mark.timeout(600)
async def test_a_snapshot_of_a_thousand_agents_completes_and_verifies(figures: list[str], data_dir: Path) -> None:
    arguments = {"agents": str(AGENTS), "tokens": "100", "period": "0"}
    async with running(data_dir, "snapline.examples.bank:fleet", arguments, hosts=4) as bank:
        await bank.until(lambda now: sum(host.turns for host in now.hosts) > 20 * AGENTS, 120)
        created = await bank.client.create_snapshot()
        assert created.is_complete, created.reason
        turns = sum(host.turns for host in (await bank.client.status()).hosts)
        shown = (await bank.client.read_snapshots("list"))["snapshots"]
        verified = await bank.client.read_snapshots("verify")
    assert verified["is_whole"] and isinstance(shown, list)
    check_store(data_dir)
    checkpoints = check_consistent(store_of(data_dir), created.epoch)
    assert len(checkpoints) == AGENTS
    assert all(checkpoint.sent and checkpoint.received for checkpoint in checkpoints.values())
    channels = sum(len(checkpoint.sent) for checkpoint in checkpoints.values())
    figures.append(
        f"{AGENTS} agents on 4 hosts, {channels:,} channels, {turns:,} turns: a snapshot in "
        f"{created.elapsed_ns / 1e9:.2f} s, {shown[-1]['stored_bytes'] / 2**20:.1f} MiB stored, "
        f"{shown[-1]['channel_state_messages']:,} messages in transit"
    )
