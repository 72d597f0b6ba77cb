"""A mesh of plain gRPC services on real processes that hand tokens to each other, under SIGKILL: every cut has every token (G1, G2, G3)."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.adapters.grpc_services.bank_fleets import BESIDE_TILLS, TILLS, TOKENS
from tests.adapters.grpc_services.meshes import BANK, CutOfBanks, KilledMesh, cuts_of
from tests.integration.processes import nothing_left_running

THREADED = "tests.adapters.grpc_services.threaded_bank"

ROUNDS = [2, pytest.param(12, marks=pytest.mark.slow)]
"""In each some processes are killed."""

SNAPSHOTS = 6
"""That complete before the first round, and in each."""

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio, pytest.mark.parametrize("rounds", ROUNDS)]


def check(cuts: dict[int, CutOfBanks], total: int) -> None:
    wrong = {epoch: cut.total() for epoch, cut in cuts.items() if cut.total() != total}
    assert not wrong, f"of {len(cuts)} cuts these have another total: {wrong}"
    busy = [cut for cut in cuts.values() if not cut.is_quiet()]
    assert len(busy) > len(cuts) / 4, "few cuts have fallen into calls: this test shows little"


async def killed(mesh: KilledMesh, names: Sequence[str], rounds: int) -> dict[int, CutOfBanks]:
    """Kill some of these again and again, then let all calls end; returns all cuts, the last one quiet."""
    chance = random.Random(3)
    seen: dict[int, CutOfBanks] = {}
    status = await mesh.until(SNAPSHOTS)
    for _ in range(rounds):
        seen |= cuts_of(mesh.store, mesh.addresses, seen)
        await mesh.kill(*chance.sample(names, chance.choice([1, 1, 2])))
        status = await mesh.until(status.epochs_completed + SNAPSHOTS, status.plan + 1)
    mesh.stop.touch()
    async with asyncio.timeout(60):
        while not seen or not seen[max(seen)].is_quiet():
            await mesh.until((await mesh.until(0)).epochs_completed + 2)
            seen |= cuts_of(mesh.store, mesh.addresses, seen)
    return seen


async def test_every_cut_has_every_token_while_services_are_killed(tmp_path: Path, rounds: int) -> None:
    names = ("a", "b", "c")
    with nothing_left_running():
        async with KilledMesh(tmp_path, names) as mesh:
            cuts = await killed(mesh, names, rounds)
    check(cuts, TOKENS * len(names))
    assert len(cuts) >= SNAPSHOTS * (rounds + 1)
    assert sum(cuts[max(cuts)].kept.values()) == TOKENS * len(names)


@pytest.mark.slow
async def test_every_cut_has_every_token_where_services_have_threads(tmp_path: Path, rounds: int) -> None:
    """Two of them have; the third is of grpc.aio."""
    names = ("a", "b", "c")
    with nothing_left_running():
        async with KilledMesh(tmp_path, names, service=THREADED) as mesh:
            cuts = await killed(mesh, names, rounds)
    check(cuts, TOKENS * len(names))
    assert len(cuts) >= SNAPSHOTS * (rounds + 1)
    assert sum(cuts[max(cuts)].kept.values()) == TOKENS * len(names)


@pytest.mark.parametrize("service", [BANK, pytest.param(THREADED, marks=pytest.mark.slow)])
async def test_services_and_native_agents_are_in_one_cut(tmp_path: Path, rounds: int, service: str) -> None:
    """Tokens go round: by calls between the services, by messages to the native agents and back."""
    names, hosts = BESIDE_TILLS, tuple(TILLS.values())
    with nothing_left_running():
        async with KilledMesh(tmp_path, names, hosts, service=service) as mesh:
            cuts = await killed(mesh, (*names, *hosts), rounds)
    check(cuts, TOKENS * len(names))
    assert sum(cuts[max(cuts)].kept.values()) == TOKENS * len(names)
    assert any(cut.told for cut in cuts.values()), "no cut has fallen between a service and an agent"
    assert sum(cuts[max(cuts)].kept[till] for till in TILLS) > 0
