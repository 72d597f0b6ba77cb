"""A fleet on three hosts, undisturbed: every snapshot it leaves is a consistent cut with exactly what was in transit."""

import time
from pathlib import Path

import pytest
from tests.integration.cuts import check_paced_bank, store_of
from tests.integration.fleets import paced_bank
from tests.integration.processes import snapline, together
from tests.integration.running import running

from snapline.storage.store.store import Holds

ARGUMENTS = {"agents": "12", "tokens": "50", "period": "0.5"}


@pytest.mark.timeout(60)
@pytest.mark.promise
async def test_a_fleet_runs_to_its_end_and_leaves_whole_and_consistent_snapshots(data_dir: Path) -> None:
    stop = data_dir.with_name("stop")
    arguments = {**ARGUMENTS, "stop": str(stop)}
    async with running(data_dir, "paced_bank:fleet", arguments) as fleet:
        await fleet.until_epochs(2)
        created = await fleet.client.create_snapshot()
        assert created.is_complete, created.reason
        Holds(store_of(data_dir), now_s=time.time).pin(
            created.epoch
        )  # on a busy machine ten others come before it is read
        at = ("--coordinator", fleet.local.address)
        listed, shown, verified = await together(
            ("snapshot", "list", *at),
            ("snapshot", "show", str(created.epoch), *at),
            ("snapshot", "verify", *at),
        )
        stop.touch()
        ending = await fleet.end()
        final = await snapline("snapshot", "show", *at)
    assert [outcome.code for outcome in (listed, shown, verified, final)] == [0, 0, 0, 0]
    assert created.epoch in [row["epoch"] for row in listed.rows("snapshots")]
    assert (shown.json["root"], shown.json["trigger"], len(shown.rows("agents"))) == (created.root, "hand", 12)
    assert (verified.json["is_whole"], verified.json["findings"]) == (True, [])
    assert (final.json["epoch"], final.json["channels"]) == (ending.epoch, [])

    store = data_dir / "store"
    listed, shown, verified = await together(
        ("snapshot", "list", "--store", store),
        ("snapshot", "show", "--store", store),
        ("snapshot", "verify", "--store", store),
    )
    assert [outcome.code for outcome in (listed, shown, verified)] == [0, 0, 0]
    assert shown.json == final.json, "asked or read at rest, it is the same"
    check_paced_bank(data_dir, paced_bank.fleet(**arguments), tokens=600)
    assert [row["epoch"] for row in listed.rows("snapshots")] == store_of(data_dir).epochs()
