"""Local recovery on real processes: a host is killed, and the agents of all others go on; nothing that they did is undone."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.cuts import store_of
from tests.integration.fleets import passers
from tests.integration.pagerank_runs import pagerank_run
from tests.integration.running import Running, running

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.deploy import supervisor
from snapline.errors import UsageError
from snapline.messages.status import FleetStatus

HOSTS = 8
MOVED_AMONG = 3
MOVES = 500
HOPS = 60
RUNS = 50


def turns_in(folder: Path) -> dict[str, list[int]]:
    """Each agent's turns, in the order in which they were taken."""
    return {book.name: [int(line) for line in book.read_text().splitlines()] for book in sorted(folder.iterdir())}


def agents_of(host: str) -> set[str]:
    first = (int(host[1:]) - 1) * passers.AGENTS_A_HOST
    return {passers.name_of(first + number) for number in range(passers.AGENTS_A_HOST)}


async def kill_and_end(data_dir: Path, chosen: random.Random, *, kills: int, recovery: str = "local") -> str:
    """Kill hosts one after the other while tokens are passed; returns what was measured."""
    books = data_dir.with_name("books")
    books.mkdir()
    arguments = {"folder": str(books), "hosts": str(HOSTS), "hops": str(HOPS), "recovery": recovery}
    victims = [f"h{chosen.randint(1, HOSTS)}" for _ in range(kills)]
    async with running(data_dir, "passers:fleet", arguments, hosts=HOSTS) as fleet:
        await fleet.until(lambda now: sum(host.turns for host in now.hosts) > 200)
        for victim in victims:
            await asyncio.sleep(chosen.uniform(0.0, 0.7))
            await kill(fleet, victim)
        await fleet.end()
    store = store_of(data_dir)
    states = passers.states_of(load_cut(store, store.epochs()[-1], passers.fleet(**arguments)))
    assert sum(state.hops for state in states) == HOPS * passers.TOKENS * len(states)
    turns = turns_in(books)
    restarted = set().union(*[agents_of(victim) for victim in victims])
    undone = {agent: len(taken) - max(taken) for agent, taken in turns.items()}
    for agent, taken in turns.items():
        assert agent in restarted or taken == list(range(1, len(taken) + 1)), f"{agent}: {undone[agent]} turns undone"
    return f"killed {victims}; turns of {len(turns) - len(restarted)} other agents undone: 0; of theirs: {undone}"


async def kill(fleet: Running, victim: str) -> None:
    earlier = len(await fleet.recoveries())
    fleet.local.kill(victim)
    await fleet.until_recovered(earlier)


@pytest.mark.timeout(240)
async def test_only_the_agents_of_a_killed_host_start_again(
    data_dir: Path, first_seed: int, figures: list[str]
) -> None:
    figures.append(await kill_and_end(data_dir, random.Random(first_seed), kills=1))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(RUNS))
async def test_pagerank_is_exact_and_seven_of_eight_hosts_lose_no_turn(
    number: int, data_dir: Path, first_seed: int, figures: list[str]
) -> None:
    chosen = random.Random(first_seed + number)
    figures.append(
        await pagerank_run(
            data_dir,
            chosen,
            protocol="chandy-lamport",
            seconds=3.0,
            all_hosts=False,
            recovery="local",
            hosts=HOSTS,
        )
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(RUNS))
async def test_so_it_is_whatever_is_killed(number: int, data_dir: Path, first_seed: int, figures: list[str]) -> None:
    figures.append(await kill_and_end(data_dir, random.Random(first_seed + number), kills=1 + number % 3))


@pytest.mark.timeout(240)
async def test_an_agent_moves_and_those_of_other_hosts_go_on(data_dir: Path, first_seed: int) -> None:
    await move_and_end(data_dir, random.Random(first_seed), moves=1, kills_one_in=0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_agents_move_under_load_with_a_kill_in_half_of_the_moves(
    data_dir: Path, first_seed: int, figures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "HEALTHY_S", 0.0)  # kills come faster than a host counts as healthy
    figures.append(await move_and_end(data_dir, random.Random(first_seed), moves=MOVES, kills_one_in=2))


def runs_after(plan: int) -> Callable[[FleetStatus], bool]:
    return lambda now: now.plan > plan and now.phase == "running"


async def move_and_end(data_dir: Path, chosen: random.Random, *, moves: int, kills_one_in: int) -> str:
    """Move agents one after the other while tokens are passed; a host is killed during some of the moves. Each agent exists once: its turns are
    counted without a gap, and only those of hosts that died are taken twice."""
    books = data_dir.with_name("books")
    books.mkdir()
    hops = HOPS + moves * 40
    arguments = {
        "folder": str(books),
        "hosts": str(MOVED_AMONG),
        "hops": str(hops),
        "is_pinned": "no",
        "pause_s": "0.03",
    }
    hosts = [f"h{number}" for number in range(1, MOVED_AMONG + 1)]
    undone: set[str] = set()
    kills = moved = 0
    async with running(data_dir, "passers:fleet", arguments, hosts=MOVED_AMONG) as fleet:
        await fleet.until(lambda now: sum(host.turns for host in now.hosts) > 50)
        for _ in range(moves):
            await fleet.until(lambda now: all(host.state == "alive" for host in now.hosts) and now.phase == "running")
            homes = {each.agent: each.host for each in (await fleet.client.locate_all()).agents}
            agent = chosen.choice(sorted(homes))
            target = chosen.choice([host for host in hosts if host != homes[agent]])
            plan = (await fleet.client.status()).plan
            try:
                await fleet.client.move_agents(placed={agent: target})
            except UsageError:  # the target was killed just now, and its loss is known only since
                continue
            if kills_one_in and not chosen.randrange(kills_one_in):
                kills += 1
                await asyncio.sleep(chosen.uniform(0.0, 0.5))
                victim = chosen.choice(hosts)
                homes = {each.agent: each.host for each in (await fleet.client.locate_all()).agents}
                undone |= {other for other, host in homes.items() if host == victim}
                fleet.local.kill(victim)
            await fleet.until(runs_after(plan))
            homes = {each.agent: each.host for each in (await fleet.client.locate_all()).agents}
            moved += homes[agent] == target
        assert kills or moved == moves
        await fleet.end()
    store = store_of(data_dir)
    states = passers.states_of(load_cut(store, store.epochs()[-1], passers.fleet(**arguments)))
    assert sum(state.hops for state in states) == hops * passers.TOKENS * len(states)
    for agent, taken in turns_in(books).items():
        assert sorted(set(taken)) == list(range(1, max(taken) + 1)), f"{agent}: a turn is missing"
        assert agent in undone or taken == sorted(set(taken)), f"{agent}: turns of another host were undone"
    return f"{moved} of {moves} moves, {kills} kills"
