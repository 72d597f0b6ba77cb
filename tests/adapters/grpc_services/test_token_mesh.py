"""A mesh of plain gRPC services on real processes that hand tokens to each other, under SIGKILL: every cut has every token (G1, G2, G3)."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.adapters.grpc_services.meshes import CutOfBanks, KilledMesh, cuts_of
from tests.adapters.grpc_services.token_bank import TOKENS
from tests.integration.processes import nothing_left_running

NAMES = ("a", "b", "c")
ROUNDS = 4

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio]


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[KilledMesh]:
    with nothing_left_running():
        async with KilledMesh(tmp_path, NAMES, "tests.adapters.grpc_services.token_bank") as mesh:
            yield mesh


def check(cuts: dict[int, CutOfBanks]) -> None:
    wrong = {epoch: cut.total() for epoch, cut in cuts.items() if cut.total() != TOKENS * len(NAMES)}
    assert not wrong, f"of {len(cuts)} cuts these have another total: {wrong}"


async def test_every_cut_has_every_token_while_services_are_killed(mesh: KilledMesh) -> None:
    chance = random.Random(3)
    seen: dict[int, CutOfBanks] = {}
    status = await mesh.until(10)
    for _ in range(ROUNDS):
        seen |= cuts_of(mesh.store, mesh.addresses)
        await mesh.kill(*chance.sample(NAMES, chance.choice([1, 1, 2])))
        status = await mesh.until(status.epochs_completed + 10, status.plan + 1)
    mesh.stop.touch()
    async with asyncio.timeout(60):
        while True:
            await mesh.until((await mesh.until(0)).epochs_completed + 2)
            cuts = cuts_of(mesh.store, mesh.addresses)
            seen |= cuts
            if cuts[max(cuts)].is_quiet():
                break
    check(seen)
    assert len(seen) >= 50
    last = seen[max(seen)]
    assert sum(last.kept.values()) == TOKENS * len(NAMES), mesh.logs()
    busy = [cut for cut in seen.values() if not cut.is_quiet()]
    assert len(busy) > len(seen) / 4, "few cuts have fallen into calls: this test shows little"
