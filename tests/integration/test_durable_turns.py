"""A plan of many steps in a fleet of real processes, whose hosts are killed in its middle."""

from functools import partial
from pathlib import Path

import pytest
from tests.integration.fleets import gates, plans
from tests.integration.running import running

import snapline
from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.agent_runtime.snapshots.snapshot_reader import open_store
from snapline.messages.status import FleetStatus
from snapline.storage.store.store import Store

pytestmark = pytest.mark.timeout(240)

PLANS = 6
KILLED_AT = (15, 35, 55)
"""Steps that have been done then, of some 72."""


@pytest.mark.parametrize("protocol", [pytest.param("chandy-lamport", marks=pytest.mark.slow), "hmnr"])
async def test_a_plan_goes_on_where_it_was(data_dir: Path, protocol: str) -> None:
    """What the journal of the recovery line holds is not done again; the plans come to the same, and nobody is asked twice."""
    notes = data_dir.with_name("notes")
    notes.touch()
    arguments = {"notes": str(notes), "protocol": protocol, "plans": str(PLANS)}
    made = plans.fleet(**arguments)
    saved = 0
    async with running(data_dir, "plans:fleet", arguments, hosts=2) as fleet:  # no third one, where the plans could end
        for steps in KILLED_AT:
            await fleet.until(partial(has_done, notes, steps))
            recovery = await fleet.recovered_from("h1", "h2")
            line = recovery["line_epoch"]
            assert isinstance(line, int)
            before = len(lines_of(notes))
            known = journal_of(load_cut(Store.open(data_dir / "store"), line, made))
            await fleet.until(partial(has_done, notes, before + 1))
            assert not known & set(lines_of(notes)[before:])
            saved += len(known)
        await fleet.end()
    assert saved, "no recovery met a plan in its middle"
    check(data_dir, made)
    assert len(set(lines_of(notes))) == PLANS * plans.STEPS


def has_done(notes: Path, steps: int, now: FleetStatus) -> bool:
    """So many, and there is an epoch to go back to."""
    return now.epochs_completed > 0 and len(lines_of(notes)) >= steps


def has_reached(notes: Path, line: str, times: int, now: FleetStatus) -> bool:
    """The line was written so often."""
    return now.phase == "running" and lines_of(notes).count(line) == times


def lines_of(notes: Path) -> list[str]:
    """The steps that were done, as often as they were."""
    return notes.read_text().split()


def journal_of(cut: snapline.Cut) -> set[str]:
    """The steps that are in the journal of the planner's turn; every other entry is a sleep."""
    return {
        f"{turn.message.plan}.{number}"
        for turn in cut.pending_turns
        if isinstance(turn.message, plans.Go)
        for number in range(min((turn.entries + 1) // 2, plans.STEPS))
    }


def check(data_dir: Path, made: snapline.Fleet) -> None:
    """In every snapshot, the last one too."""
    for snapshot in open_store(data_dir / "store", fleet=made):
        planner, clerk = snapshot.agents["planner"].state, snapshot.agents["clerk"].state
        assert isinstance(planner, plans.Progress) and isinstance(clerk, plans.Clerk)
        assert planner.half == [] and planner.done == [plans.worth(plan) for plan in range(len(planner.done))]
        assert clerk.asked == list(range(len(clerk.asked))) and len(clerk.asked) - len(planner.done) in (0, 1)
    assert len(planner.done) == PLANS


@pytest.mark.parametrize("protocol", ["chandy-lamport", pytest.param("uncoordinated", marks=pytest.mark.slow)])
async def test_a_step_that_has_ended_is_not_done_again_without_any_checkpoint_of_it(
    data_dir: Path, protocol: str
) -> None:
    """The hosts are killed as soon as the turn has gone on from a step, and the recovery goes back to the beginning."""
    notes = data_dir.with_name("notes")
    notes.touch()
    arguments = {"notes": str(notes), "protocol": protocol}
    async with running(data_dir, "gates:fleet", arguments, hosts=2) as fleet:
        for number in range(gates.STEPS):
            reached = f"gate{number}"
            await fleet.until(partial(has_reached, notes, reached, 1))
            await fleet.recovered_from("h1", "h2")
            await fleet.until(partial(has_reached, notes, reached, 2))
            notes.with_name(f"{notes.name}.{number}").touch()
        await fleet.end_by_hand()
    steps = [line for line in lines_of(notes) if line.startswith("step")]
    assert steps == [f"step{number}" for number in range(gates.STEPS)]
