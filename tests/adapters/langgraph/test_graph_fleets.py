"""Fleets of graphs in real processes whose hosts are killed, and in the simulator."""

import asyncio
import random
import threading
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from tests.adapters.langgraph import playing  # skips where LangGraph is not there

assert playing.REASON

from tests.adapters.langgraph import chain_graphs, large_graphs, plan_graphs, token_graphs
from tests.integration.processes import nothing_left_running
from tests.integration.running import Running, running

from snapline.adapters.langgraph import GraphMemory
from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.snapshots.snapshot_cut import Cut, load_cut
from snapline.messages.status import FleetStatus
from snapline.sim.pytest_plugin import Simulation
from snapline.storage.store.store import Store

pytestmark = [pytest.mark.langgraph, pytest.mark.timeout(300)]

PLANS_KILLED_AT = (8, 20, 32)
"""Calls that have been made then, of 40."""

TOKENS_KILLS = 6
HOPS = "1000"
"""As many as keep them busy while hosts are killed so often."""


@pytest.fixture(autouse=True)
def mark() -> Iterator[str]:
    """None of this test's processes may outlive it."""
    with nothing_left_running() as mark:
        yield mark


async def test_graphs_and_native_agents_lose_no_token_whatever_host_is_killed(tmp_path: Path) -> None:
    """In every snapshot that is left, and in the end: graphs in plain turns, in durable ones, and agents without a graph."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    arguments = {"hops": HOPS}
    async with running(tmp_path / "data", "tests.adapters.langgraph.token_graphs:fleet", arguments) as fleet:
        await kill_at_random(fleet, random.Random(seed), TOKENS_KILLS)
        await fleet.end()
    cuts = cuts_of(tmp_path / "data", token_graphs.fleet(**arguments))
    for cut in cuts:
        token_graphs.conserves(cut)
    assert token_graphs.is_over(cuts[-1])


async def kill_at_random(fleet: Running, chosen: random.Random, kills: int) -> None:
    """One or more hosts at once, at random moments after a snapshot."""
    await fleet.until_epochs(1)
    for _ in range(kills):
        await asyncio.sleep(chosen.uniform(0.0, 0.5))
        hosts = list(fleet.local.hosts)
        await fleet.recovered_from(*chosen.sample(hosts, chosen.randint(1, len(hosts))))


def cuts_of(data_dir: Path, made: Fleet) -> list[Cut]:
    store = Store.open(data_dir / "store")
    assert store.verify().findings == []
    return [load_cut(store, epoch, made) for epoch in store.epochs()]


async def test_no_finished_call_of_a_plan_is_made_again(tmp_path: Path) -> None:
    """All hosts are killed three times; two graphs go on in the middle of their plans, and come to what they would have come to."""
    calls = tmp_path / "calls"
    calls.touch()
    arguments = {"calls": str(calls)}
    async with running(tmp_path / "data", "tests.adapters.langgraph.plan_graphs:fleet", arguments, hosts=2) as fleet:
        for count in PLANS_KILLED_AT:
            await fleet.until(partial(has_asked, calls, count))
            await fleet.recovered_from("h1", "h2")
        await fleet.end()
        recoveries = len(await fleet.recoveries())
    last = cuts_of(tmp_path / "data", plan_graphs.fleet(**arguments))[-1]
    for planner in plan_graphs.PLANNERS:
        assert plan_graphs.notes_of(last.states[planner]) == plan_graphs.expected(planner)
    for planner in plan_graphs.PLANNERS:
        check_calls([line for line in calls.read_text().splitlines() if f" {planner}." in line], recoveries)


async def test_turns_that_run_again_are_the_same_turns_and_take_their_calls_from_the_log(tmp_path: Path) -> None:
    """No snapshot holds any of them: they begin anew. Had one ended with another id, the next would be another turn, and ask the model again."""
    calls = tmp_path / "calls"
    calls.touch()
    arguments = {"calls": str(calls)}
    async with running(tmp_path / "data", "tests.adapters.langgraph.chain_graphs:fleet", arguments, hosts=1) as fleet:
        for count in (5, 9):
            await fleet.until(partial(has_begun, calls, count))
            await fleet.recovered_from("h1")
        await fleet.until(lambda now: calls.read_text().count(plan_graphs.DONE) >= chain_graphs.TURNS)
        await fleet.end_by_hand()
        recoveries = len(await fleet.recoveries())
    check_calls(calls.read_text().splitlines(), recoveries, chain_graphs.TURNS)
    state = cuts_of(tmp_path / "data", chain_graphs.fleet(**arguments))[-1].states["chain"]
    assert isinstance(state, GraphMemory)
    assert len({each.id for each in state.values()["messages"]}) == 2 * chain_graphs.TURNS


@pytest.mark.parametrize("durable", ["", "yes"])
async def test_a_megabyte_that_no_step_touches_costs_a_snapshot_a_reference(tmp_path: Path, durable: str) -> None:
    """Between turns, and in the middle of a durable one."""
    arguments = {"durable": durable}
    sizes = []
    async with running(tmp_path / "data", "tests.adapters.langgraph.large_graphs:fleet", arguments, hosts=1) as fleet:
        for _ in range(4):
            turns = turns_of(await fleet.until(lambda now: now.phase == "running"))
            await fleet.until(partial(has_turned, turns + 5))
            created = await fleet.client.create_snapshot()
            assert created.is_complete, created.reason
            files = (tmp_path / "data" / "store").rglob("*")
            sizes.append(sum(file.stat().st_size for file in files if file.is_file()))
        await fleet.recovered_from("h1")
        turns = turns_of(await fleet.until(lambda now: now.phase == "running"))
        await fleet.until(partial(has_turned, turns + 5))
        assert (await fleet.client.create_snapshot()).is_complete
    state = cuts_of(tmp_path / "data", large_graphs.fleet(**arguments))[-1].states["graph"]
    assert isinstance(state, GraphMemory) and state.values()["papers"] == large_graphs.papers()
    grown = [after - before for before, after in pairwise(sizes)]
    assert sizes[0] > large_graphs.LARGE_BYTES and max(grown) < large_graphs.LARGE_BYTES // 50, sizes


def turns_of(now: FleetStatus) -> int:
    return sum(host.turns for host in now.hosts)


def has_turned(turns: int, now: FleetStatus) -> bool:
    return turns_of(now) > turns


def has_begun(calls: Path, count: int, now: FleetStatus) -> bool:
    return calls.read_text().count(plan_graphs.BEGUN) >= count


def has_asked(calls: Path, count: int, now: FleetStatus) -> bool:
    """The same, and there is a snapshot to go back to."""
    return now.epochs_completed > 0 and has_begun(calls, count, now)


def check_calls(lines: list[str], recoveries: int, steps: int = plan_graphs.STEPS) -> None:
    """Only the call that was under way at a failure may be made again: what came after it never is before."""
    asked = [int(line.rpartition(".")[2]) for line in lines if line.startswith(plan_graphs.BEGUN)]
    again = [at for at, number in enumerate(asked) if number in asked[:at]]
    assert sorted(set(asked)) == list(range(steps))
    assert all(asked[at] == asked[at - 1] for at in again), asked
    assert len(again) <= recoveries


@pytest.mark.parametrize("protocol", ["chandy-lamport", "hmnr"])
def test_graphs_are_simulated_with_everything_that_can_fail(snapline_sim: Simulation, protocol: str) -> None:
    fleet = partial(token_graphs.fleet, protocol=protocol)
    summary = snapline_sim.check(fleet, seeds=6, invariant=token_graphs.conserves)
    assert summary.verdict == "pass"
    assert summary.probes["durable turn run again"], "no failure met a graph in its middle"
    assert not any(each.name == "snapline-stepped" for each in threading.enumerate())


def test_a_seed_does_the_same_again_although_graphs_have_threads(snapline_sim: Simulation) -> None:
    first, second = (snapline_sim.run(token_graphs.fleet, seed=7) for _ in range(2))
    assert first.verdict == "pass" and first.trace_hash == second.trace_hash


def test_stubs_stand_for_the_calls_of_nodes(snapline_sim: Simulation) -> None:
    asked: list[tuple[int, int]] = []

    def think(most: int, held: int) -> int:
        asked.append((most, held))
        return min(most, held)

    def fleet() -> Fleet:
        made = token_graphs.fleet()
        made.simulate = {"think": think}
        return made

    assert snapline_sim.check(fleet, seeds=2).verdict == "pass"
    assert asked and all(most == 2 for most, _ in asked)


def test_a_graph_that_is_kept_outside_of_its_agent_is_found_out(snapline_sim: Simulation) -> None:
    """The planted bug: a checkpointer beside the fleet's snapshots, which goes back with nothing."""
    with pytest.raises(pytest.fail.Exception, match="ended in another state than its"):
        snapline_sim.check(token_graphs.leaky_fleet, seeds=8, invariant=token_graphs.conserves, shrink_s=0)
