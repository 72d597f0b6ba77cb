"""Who passes a point of the code may lose its power there, coordinators too: what they list stays whole."""

import pytest

from snapline.sim.hunt.swarm import STANDARD, draw
from snapline.sim.run import run
from snapline.storage.keeping import retention
from snapline.storage.store import layout
from snapline.storage.store.disk import Disk

SEED = 3842
"""A coordinator deletes epochs, and loses its power when a ref has gone."""


class Forgetful:
    """A disk of which the folder of refs is never synced."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> object:
        return getattr(self._disk, name)

    def sync_directory(self, path: str) -> None:
        if path != layout.EPOCH_REFS:
            self._disk.sync_directory(path)


def test_a_coordinator_that_loses_its_power_while_it_deletes_leaves_no_ref_without_its_epoch() -> None:
    result = run(draw(STANDARD, SEED), SEED)
    assert result.verdict == "pass", result.violations
    assert any("power-cut of c1 at store.delete" in fault.text for fault in result.faults), (
        "it draws something else now"
    )


def test_a_deletion_that_does_not_sync_the_refs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    delete = retention.delete_epoch
    monkeypatch.setattr(retention, "delete_epoch", lambda disk, *rest: delete(Forgetful(disk), *rest))  # type: ignore[arg-type]
    result = run(draw(STANDARD, SEED), SEED)
    assert [each.oracle for each in result.violations][:1] == ["listed"]
