"""SIGKILL at random moments, many times over. Each run prints its seed; SNAPLINE_SEED=… repeats the first run with it.

The moment is random in wall-clock time, so a seed repeats the choices, not the interleaving.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.cuts import check_consistent, check_store, store_of
from tests.integration.killing import bank_to_be_hurt
from tests.integration.pagerank_runs import pagerank_run
from tests.integration.running import Running, running
from tests.integration.test_everything import check_dead_letters, check_end

from snapline.deploy.local import OnFailure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PAGERANK_RUNS, BANK_RUNS, EVERYTHING_RUNS = 50, 30, 20
ALL_HOSTS_EVERY = 10
"""Every so manieth PageRank run loses all hosts at once."""


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


@pytest.mark.parametrize("number", range(PAGERANK_RUNS))
async def test_pagerank_is_exact_whatever_is_killed(
    number: int, first_seed: int, figures: list[str], data_dir: Path
) -> None:
    seed = first_seed + number
    with naming(seed, data_dir) as chosen:
        figure = await pagerank_run(
            data_dir, chosen, protocol="chandy-lamport", seconds=4, all_hosts=number % ALL_HOSTS_EVERY == 0
        )
        figures.append(f"seed {seed}: {figure}")


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
