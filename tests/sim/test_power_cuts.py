"""Who passes a point of the code may lose its power there, coordinators too: what they list stays whole."""

import pytest

from snapline.sim.run import run
from snapline.sim.scenario import parse_scenario
from snapline.storage.disk import layout
from snapline.storage.disk.local_disk import Disk
from snapline.storage.retention import epoch_retention

DELETING = """
schema = 1
name = "deleting"

[fleet]
agents = 3
hosts = 2
trigger = { kind = "period", every = "50ms", jitter = 0.0 }
pattern = { name = "bank", messages = 400, rate_per_s = 200.0 }

[run]
keep_epochs = 2

[limits]
forget_at_once = 1

[[fault]]
crash = { failpoint = "store.delete.ref", at = "0s", hit = 2, restart_after = "300ms", power_cut = true }
"""
"""A coordinator deletes epochs, and loses its power when a ref has gone."""

SEEDS = range(5, 8)


class Forgetful:
    """A disk of which the folder of refs is never synced."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> object:
        return getattr(self._disk, name)

    def sync_directory(self, path: str) -> None:
        if path != layout.EPOCH_REFS:
            self._disk.sync_directory(path)


@pytest.mark.slow
def test_a_coordinator_that_loses_its_power_while_it_deletes_leaves_no_ref_without_its_epoch() -> None:
    results = [run(parse_scenario(DELETING, source="here"), seed) for seed in SEEDS]
    assert {result.verdict for result in results} == {"pass"}
    faults = [fault.text for result in results for fault in result.faults]
    assert faults.count("power-cut of c1 at store.delete.ref") == len(SEEDS), faults


def test_a_deletion_that_does_not_sync_the_refs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    delete = epoch_retention.delete_epoch
    monkeypatch.setattr(epoch_retention, "delete_epoch", lambda disk, *rest: delete(Forgetful(disk), *rest))  # type: ignore[arg-type]
    results = (run(parse_scenario(DELETING, source="here"), seed) for seed in reversed(SEEDS))
    assert any([each.oracle for each in result.violations][:1] == ["listed"] for result in results)
