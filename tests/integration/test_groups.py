"""Steps at the same time in a fleet of real processes, whose host is killed while one of them runs."""

from functools import partial
from pathlib import Path

import pytest
from tests.integration.cuts import store_of
from tests.integration.fleets import groups
from tests.integration.running import running

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.messages.status import FleetStatus


def lines_of(notes: Path) -> list[str]:
    return notes.read_text().splitlines()


def has_ended(notes: Path, count: int, now: FleetStatus) -> bool:
    return now.phase == "running" and sum(line.startswith("end") for line in lines_of(notes)) >= count


@pytest.mark.timeout(240)
@pytest.mark.parametrize("recovery", ["global", "local"])
async def test_a_killed_group_runs_only_the_step_again_that_had_not_ended(data_dir: Path, recovery: str) -> None:
    notes = data_dir.with_name("notes")
    notes.touch()
    arguments = {"notes": str(notes), "recovery": recovery}
    async with running(data_dir, "groups:fleet", arguments, hosts=1) as fleet:
        await fleet.until(partial(has_ended, notes, groups.SIZE - 1))
        await fleet.until_more_epochs()
        fleet.local.kill("h1")
        await fleet.until_recovered()
        await fleet.until(lambda _: lines_of(notes).count(f"begin {groups.WAITING}") == 2)
        Path(f"{notes}.go").touch()
        await fleet.end()
    store = store_of(data_dir)
    states = load_cut(store, store.epochs()[-1], groups.fleet(**arguments)).states
    state, adder = states["reader"], states["adder"]
    assert isinstance(state, groups.Seen) and isinstance(adder, groups.Seen)
    assert state.results == list(range(groups.SIZE))
    assert state.totals == adder.results == [10, 11], "each call was answered once"
    begun = [f"begin {n}" for n in (*range(groups.SIZE), groups.WAITING)]
    assert sorted(lines_of(notes)) == sorted([*begun, *[f"end {n}" for n in range(groups.SIZE)]])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("recovery", ["global", "local"])
async def test_what_came_first_stays_first_when_the_host_is_killed(data_dir: Path, recovery: str) -> None:
    notes = data_dir.with_name("notes")
    notes.touch()
    arguments = {"notes": str(notes), "recovery": recovery}
    async with running(data_dir, "groups:races", arguments, hosts=1) as fleet:
        await fleet.until(lambda _: {"cancelled", f"begin {groups.WAITING}"} <= set(lines_of(notes)))
        fleet.local.kill("h1")
        await fleet.until_recovered()
        await fleet.until(lambda _: lines_of(notes).count(f"begin {groups.WAITING}") == 2)
        Path(f"{notes}.go").touch()
        await fleet.end()
    store = store_of(data_dir)
    state = load_cut(store, store.epochs()[-1], groups.races(**arguments)).states["racer"]
    assert isinstance(state, groups.Seen) and state.results == [1, 7, groups.WAITING]
    ran = sorted(lines_of(notes))
    assert ran == sorted(["begin beat", "begin 7", "end 7", "cancelled", *["begin 1"] * 2, "end 1"])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("recovery", ["global", "local"])
async def test_effects_of_a_group_are_called_together_and_undone_backwards_also_when_the_host_is_killed(
    data_dir: Path, recovery: str
) -> None:
    notes = data_dir.with_name("notes")
    notes.touch()
    arguments = {"notes": str(notes), "recovery": recovery}
    async with running(data_dir, "groups:bookings", arguments, hosts=1) as fleet:
        await fleet.until(lambda _: len(lines_of(notes)) >= len(groups.PAID))
        await fleet.until_more_epochs()
        fleet.local.kill("h1")
        await fleet.until_recovered()
        await fleet.until(lambda _: sum(line.startswith("call hotel") for line in lines_of(notes)) == 2)
        Path(f"{notes}.go").touch()
        await fleet.end()
    lines = [line.split() for line in lines_of(notes)]
    assert sorted(what for verb, what, _ in lines if verb == "call") == ["car", "hotel", "hotel", "seat"]
    assert [what for verb, what, _ in lines if verb == "undo"] == ["car", "hotel", "seat"], "the hotel ended last"
    keys = {key for verb, what, key in lines if what == "hotel" and verb == "call"}
    assert len(keys) == 1, "it was called again under its key"
