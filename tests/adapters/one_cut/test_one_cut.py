"""One cut across frameworks: graphs of LangGraph, agents of AutoGen, gRPC services and agents of ours pass tokens in a cycle, and no snapshot lacks one, whatever process is killed."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.adapters.autogen.environment import PYTHON
from tests.adapters.grpc_services.bank_fleets import TOKENS
from tests.adapters.grpc_services.meshes import KilledMesh
from tests.adapters.one_cut.cycle import CYCLE
from tests.integration.processes import nothing_left_running

REASON = "needs LangGraph, and AutoGen in an environment of its own: make test-one-cut"

pytest.importorskip("langgraph.graph", reason=REASON)

from tests.adapters.one_cut import one_fleet
from tests.adapters.one_cut.counted import CountedCut, count

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.storage.store.store import Store

pytestmark = [
    pytest.mark.one_cut,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not PYTHON, reason=REASON),
]

SNAPSHOTS = int(os.environ.get("SNAPLINE_ONE_CUT_SNAPSHOTS", "30"))
"""Processes are killed until so many snapshots of a fleet at work were taken."""

BETWEEN_KILLS = 4
PLACE_SNAPSHOTS = 3
"""Snapshots that hold tokens in a place outside agents' states, at least, for each of the places."""

TOTAL = TOKENS * sum(not each.startswith("graph/") for each in CYCLE)
"""Graphs begin with none."""

END_S = 60.0


async def test_every_snapshot_has_every_token_while_processes_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SNAPLINE_AUTOGEN_PYTHON", PYTHON)
    monkeypatch.setenv("SNAPLINE_ONE_CUT_STOP", str(tmp_path / "stop"))
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    with nothing_left_running():
        async with KilledMesh(
            tmp_path,
            one_fleet.BANKS,
            tuple(one_fleet.HOSTS),
            service="tests.adapters.one_cut.passing_bank",
            fleet="tests.adapters.one_cut.one_fleet:fleet",
        ) as mesh:
            cuts: dict[int, CountedCut] = {}
            killed = await kill_at_random(mesh, cuts, random.Random(seed))
            mesh.stop.touch()
            await until_quiet(mesh, cuts)
    busy = [cut for cut in cuts.values() if not cut.is_quiet]
    print(f"{len(cuts)} snapshots, {len(busy)} of a fleet at work; {killed.total()} processes killed: {dict(killed)}")
    print(f"{sum(cut.total == TOTAL for cut in cuts.values())} conserve the total")
    for place, amounts in places(busy).items():
        print(f"{place}: in {sum(amount > 0 for amount in amounts)} snapshots, at most {max(amounts)} tokens")
    wrong = {epoch: cut for epoch, cut in cuts.items() if cut.total != TOTAL}
    assert not wrong, f"of {len(cuts)} snapshots these have another total than {TOTAL}: {wrong}"
    assert len(killed) == len(one_fleet.HOSTS) + len(one_fleet.BANKS)
    assert cuts[max(cuts)].held == TOTAL
    check_oracle(busy)


async def kill_at_random(mesh: KilledMesh, cuts: dict[int, CountedCut], chosen: random.Random) -> Counter[str]:
    """Kill each process at least once, one or two at a time, until the snapshots show enough. Returns kills by process."""
    names = [*one_fleet.HOSTS, *one_fleet.BANKS]
    waiting = chosen.sample(names, len(names))
    killed: Counter[str] = Counter()
    status = await mesh.until(BETWEEN_KILLS)
    while waiting or not shows_enough(take(mesh, cuts)):
        await asyncio.sleep(chosen.uniform(0.0, 0.2))
        first = waiting.pop() if waiting else chosen.choice(names)
        victims = {first, *chosen.sample(names, chosen.choice([0, 1]))}
        await mesh.kill(*victims)
        killed.update(victims)
        status = await mesh.until(status.epochs_completed + BETWEEN_KILLS, status.plan + 1)
    return killed


def take(mesh: KilledMesh, cuts: dict[int, CountedCut]) -> list[CountedCut]:
    """Count the snapshots that were taken since. Returns all those of a fleet at work."""
    store = Store.open(mesh.store)
    for epoch in store.epochs():
        if epoch not in cuts:
            cuts[epoch] = count(load_cut(store, epoch, one_fleet.fleet()), mesh.addresses)
    return [cut for cut in cuts.values() if not cut.is_quiet]


def shows_enough(busy: list[CountedCut]) -> bool:
    """Whether tokens were seen in each place, and on all ways between two kinds of agents but one."""
    seen = [sum(map(bool, amounts)) for amounts in outside_states(busy).values()]
    return len(busy) >= SNAPSHOTS and min(seen) >= PLACE_SNAPSHOTS and len(unseen_ways(busy)) <= 1


async def until_quiet(mesh: KilledMesh, cuts: dict[int, CountedCut]) -> None:
    """Wait until nothing moves any more, and count the snapshots that the store has."""
    async with asyncio.timeout(END_S):
        while not cuts or not cuts[max(cuts)].is_quiet:
            await mesh.until((await mesh.until(0)).epochs_completed + 2)
            take(mesh, cuts)
    assert Store.open(mesh.store).verify().findings == []


def places(cuts: Iterable[CountedCut]) -> dict[str, list[int]]:
    """Where tokens were that no agent had, and of each snapshot how many."""
    found: dict[str, list[int]] = {}
    for at, cut in enumerate(cuts):
        for place, amount in {**cut.channels, "durable turns": cut.turns, "gRPC calls": cut.calls}.items():
            found.setdefault(place, [0] * at).append(amount)
        for amounts in found.values():
            amounts += [0] * (at + 1 - len(amounts))
    return found


def outside_states(busy: list[CountedCut]) -> dict[str, list[int]]:
    """Tokens in each place outside agents' states, by snapshot."""
    return {
        "channels": [sum(cut.channels.values()) for cut in busy],
        "durable turns": [cut.turns for cut in busy],
        "gRPC calls": [cut.calls for cut in busy],
    }


def unseen_ways(busy: list[CountedCut]) -> set[str]:
    """Ways between two kinds of agents on which no snapshot has tokens. Some are quick, and one of them may be missed."""
    kinds = [each.partition("/")[0] for each in CYCLE]
    ways = {f"{kind} to {other}" for kind, other in zip(kinds, [*kinds[1:], kinds[0]], strict=True) if kind != other}
    taken = [way.split(" to ") for cut in busy for way in cut.channels]
    return ways - {" to ".join(agent.partition("..")[0] for agent in way) for way in taken}


def check_oracle(busy: list[CountedCut]) -> None:
    """An oracle that leaves out one of the places where tokens are does not come to the total."""
    conserved = {name: amounts.count(0) for name, amounts in outside_states(busy).items()}
    print(f"of {len(busy)} conserve the total, if somebody leaves out {conserved}")
    print(f"no tokens seen on these ways between two kinds: {unseen_ways(busy)}")
    assert shows_enough(busy)
