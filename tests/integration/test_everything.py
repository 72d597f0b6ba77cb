"""Timers, spawn, stop, steps, failing handlers, large messages, unknown types: each exactly once, killed or not (G3)."""

from pathlib import Path

import pytest
from tests.integration.cuts import check_consistent, checkpoints_of, store_of
from tests.integration.fleets import everything, failing
from tests.integration.processes import LIMIT_S, snapline
from tests.integration.running import running

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.errors import UsageError
from snapline.storage.packs.checkpoint import AgentCheckpoint

pytestmark = pytest.mark.timeout(120)

STAYING = {"root", "source", "clumsy", "depot"}


def names_of_nodes(agent: str = "root", depth: int = everything.DEPTH) -> set[str]:
    """All nodes of the tree."""
    below = [names_of_nodes(f"{agent}.{index}", depth - 1) for index in range(everything.WIDTH)] if depth else []
    return {agent}.union(*below)


def check_end(data_dir: Path) -> dict[str, AgentCheckpoint]:
    """Every epoch is consistent, and the last one holds exactly what the fleet's definition says."""
    store = store_of(data_dir)
    for epoch in store.epochs():
        agents = checkpoints_of(store, epoch)
        check_consistent(store, epoch, gone=names_of_nodes() - set(agents))
    final = checkpoints_of(store, epoch)
    assert set(final) == STAYING, "all others have stopped"
    states = load_cut(store, epoch, everything.fleet).states
    nodes = everything.NODES
    assert states["root"] == everything.Branch("", everything.DEPTH, 0, nodes, greeted=nodes - 1, growths=1)
    numbers = [number for number in range(1, everything.WORK + 1) if number % everything.WORK_FAILING]
    assert states["clumsy"] == everything.Done(numbers)
    assert states["depot"] == everything.Done(list(range(1, everything.PARCELS + 1)))
    return final


def check_dead_letters(final: dict[str, AgentCheckpoint]) -> None:
    clumsy = final["clumsy"].dead_letters
    failing_numbers = range(everything.WORK_FAILING, everything.WORK + 1, everything.WORK_FAILING)
    errors = [letter.error for letter in clumsy if "cannot be done" in letter.error]
    assert [letter.attempts for letter in clumsy if "cannot be done" in letter.error] == [2] * len(errors)
    assert all(f"work {number} cannot be done" in error for number, error in zip(failing_numbers, errors, strict=True))
    assert [letter.sender for letter in clumsy if "no handler for messages of type 'Unheard'" in letter.error] == [
        "source"
    ]
    assert final["clumsy"].dead_letter_count == len(clumsy) == len(errors) + 1
    assert ["there is no agent 'nobody'" in letter.error for letter in final["source"].dead_letters] == [True]


@pytest.mark.promise
async def test_everything_happens_exactly_once_although_hosts_are_killed(data_dir: Path) -> None:
    """Agents created after the line are void, and created again under the same ids."""
    async with running(data_dir, "everything:fleet") as fleet:
        await fleet.until(lambda now: now.epochs_completed >= 2)
        fleet.local.kill("h1")
        first = await fleet.until_recovered()
        await fleet.until_more_epochs()
        for host in fleet.local.hosts:
            fleet.local.kill(host)
        second = await fleet.until_recovered(len(await fleet.recoveries()))
        await fleet.end()
    assert first != second
    check_dead_letters(check_end(data_dir))
    table = await snapline("snapshot", "show", "--store", data_dir / "store", "-o", "table")
    assert table.code == 0
    assert "clumsy: dead letter from source: Work(number=10): " in table.out
    assert "source: dead letter from source: Unheard()" in table.out


async def test_a_state_that_cannot_be_saved_is_refused_at_the_start(data_dir: Path) -> None:
    async with running(data_dir, "failing:unsavable", hosts=1) as fleet:
        with pytest.raises(
            UsageError, match=r"the state of agent 'holder' \(Anything\) cannot be saved: state.value is a lock"
        ):
            await fleet.local.wait(LIMIT_S)


async def test_a_state_that_becomes_unsavable_aborts_epochs_and_says_why(data_dir: Path) -> None:
    file = data_dir.with_name("spoil")
    async with running(data_dir, "failing:spoiled", {"file": str(file)}, hosts=1) as fleet:
        await fleet.until_epochs(1)
        file.touch()
        await fleet.until(lambda now: now.epochs_aborted > 0)
        created = await fleet.client.create_snapshot()
    assert not created.is_complete
    assert (
        "the state of agent 'spoiler' (Anything) cannot be saved after on_go: state.value is a lock" in created.reason
    )


async def test_a_turn_that_makes_a_state_unsavable_is_undone_and_its_message_buried(data_dir: Path) -> None:
    async with running(data_dir, "failing:undone", hosts=1) as fleet:
        await fleet.until(lambda now: any(host.dead_letters for host in now.hosts))
        created = await fleet.client.create_snapshot()
        aborted = (await fleet.client.status()).epochs_aborted
    assert created.is_complete and not aborted
    final = checkpoints_of(store_of(data_dir), created.epoch)["repenter"]
    (letter,) = final.dead_letters
    assert "the state of agent 'repenter' (Anything) cannot be saved after on_go: state.value is a lock" in letter.error


async def test_an_agent_that_crashes_takes_the_fleet_back_and_its_message_is_buried(data_dir: Path) -> None:
    """With on_error = "recover": tried again as often as `retries` says, then a dead letter."""
    async with running(data_dir, "failing:fragile", hosts=1) as fleet:
        await fleet.end()
        recoveries = await fleet.recoveries()
    assert len(recoveries) == failing.Fragile.retries + 1
    assert all("agent fragile failed" in str(recovery["reason"]) for recovery in recoveries)
    final = checkpoints_of(store_of(data_dir), store_of(data_dir).epochs()[-1])["fragile"]
    assert [(letter.error, letter.attempts) for letter in final.dead_letters] == [("crashed the agent 2 times", 2)]
    states = load_cut(store_of(data_dir), final.epoch, failing.fragile).states
    assert states["fragile"] == failing.Anything(count=100 + 1 + 2 + 4 + 5)
