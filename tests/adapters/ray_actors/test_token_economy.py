"""The token economy of plain Ray actors: saved as Ray documents it no checkpoint adds up; in a fleet all do, while the actors' processes are killed (G1, G2, G3)."""

import asyncio
import random
import time
from pathlib import Path

import pytest

from snapline.deploy.conformance.local_ray import Raylets

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'snapline[ray]'")

from tests.adapters.ray_actors.banks import TOKENS, Asker, Bank, Keeper
from tests.adapters.ray_actors.economy import ActorEconomy, CutOfActors, connected, cuts_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

NAMES = "abcd"
KICKS = 4
CHECKPOINTS = 40


def test_rays_own_way_of_saving_loses_tokens(cluster: Raylets) -> None:
    """So the economy shows something: the very same class, whose live total is right all the time."""
    chance, totals = random.Random(1), []
    with connected(cluster, "plain"):
        actors = [ray.remote(num_cpus=0)(Bank).options(name=name).remote(name, list(NAMES)) for name in NAMES]
        ray.get([actor.pid.remote() for actor in actors])
        for _ in range(KICKS):
            ray.get([actor.kick.remote() for actor in actors])
        for _ in range(CHECKPOINTS):
            ray.get([actor.pid.remote() for actor in actors])
            time.sleep(chance.uniform(0.02, 0.08))
            totals.append(sum(balance for balance, *_ in ray.get([actor.save.remote() for actor in actors])))
        ray.get([actor.silence.remote() for actor in actors])
        time.sleep(1)
        assert sum(balance for balance, *_ in ray.get([actor.save.remote() for actor in actors])) == TOKENS * len(NAMES)
        for actor in actors:
            ray.kill(actor)
    conserved = totals.count(TOKENS * len(NAMES))
    print(f"Ray's own: {conserved} of {CHECKPOINTS} conserved")
    assert conserved < CHECKPOINTS / 4


async def killed(economy: ActorEconomy, checkpoints: int, kills: int) -> dict[int, CutOfActors]:
    """Kill actors' processes while so many cuts are taken, silence them all, and let their calls end; returns all cuts, the last one quiet."""
    chance = random.Random(2)
    cuts: dict[int, CutOfActors] = {}
    for name in economy.names:
        for _ in range(KICKS):
            await economy.asked(name, "kick")
    for _ in range(kills):
        status = await economy.until(0)
        await economy.until(status.epochs_completed + max(2, checkpoints // kills), status.plan)
        cuts |= cuts_of(economy.store, cuts)
        status = await economy.until(0)
        await economy.kill(chance.choice(economy.names))
        await economy.until(0, status.plan + 1)
    while len(cuts) < checkpoints:
        await asyncio.sleep(0.2)
        cuts |= cuts_of(economy.store, cuts)
    for name in economy.names:
        await economy.asked(name, "silence")
    async with asyncio.timeout(60):
        while cuts[max(cuts)].is_busy():
            await economy.until((await economy.until(0)).epochs_completed + 2)
            cuts |= cuts_of(economy.store, cuts)
    return cuts


def check(cuts: dict[int, CutOfActors], total: int) -> None:
    wrong = {epoch: cut.total() for epoch, cut in cuts.items() if cut.total() != total}
    assert not wrong, f"of {len(cuts)} cuts these have another total: {wrong}"
    assert sum(cut.is_busy() for cut in cuts.values()) > len(cuts) / 4, "few cuts have fallen into calls"
    last = cuts[max(cuts)]
    assert sum(actor["balance"] for actor in last.actors.values()) == total


async def test_every_cut_of_the_fleet_has_every_token_while_processes_are_killed(
    cluster: Raylets, tmp_path: Path
) -> None:
    with connected(cluster, "economy"):
        async with ActorEconomy(tmp_path, NAMES) as economy:
            for name in NAMES:
                economy.make(Bank, name, name, list(NAMES))
            cuts = await killed(economy, CHECKPOINTS, kills=6)
    check(cuts, TOKENS * len(NAMES))
    assert all(cut.is_exact(NAMES) for cut in cuts.values())
    print(f"in a fleet: {len(cuts)} of {len(cuts)} conserved, with 6 SIGKILLs")


async def test_methods_that_wait_for_answers_go_on_where_they_stood(cluster: Raylets, tmp_path: Path) -> None:
    """Two wait in ray.get amid their changes, two await: all of these are run again after a kill, and their calls are made once."""
    with connected(cluster, "waiting"):
        async with ActorEconomy(tmp_path, NAMES) as economy:
            economy.make(Asker, "a", "a", "c")
            economy.make(Asker, "b", "b", "d")
            economy.make(Keeper, "c", "c", "d")
            economy.make(Keeper, "d", "d", "c")
            cuts = await killed(economy, CHECKPOINTS, kills=6)
    check(cuts, TOKENS * len(NAMES))
    assert any(calls["journals"] for cut in cuts.values() for calls in cut.calls.values()), "none fell into a method"
    assert cuts[max(cuts)].actors["a"]["turns"] > 10
