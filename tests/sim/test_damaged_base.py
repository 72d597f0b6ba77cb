"""An epoch that others refer to is damaged while the fleet runs: epochs go on, and without it (G10, G11)."""

from collections.abc import Callable

import pytest
from tests.sim.mutants.registry import template

from snapline.agent_runtime.host.checkpoint_writer import ChunkTables
from snapline.coordinator.service import store_keeper
from snapline.sim.faults.fault_kinds import DiskFault
from snapline.sim.oracles.judge import Judge
from snapline.sim.result import Result
from snapline.sim.run import run
from snapline.sim.scenario import FaultPart, FleetPart, PatternPart, TriggerPart
from snapline.sim.search.swarm import draw
from snapline.sim.world.world_observer import StoreObserver

Patch = pytest.MonkeyPatch

SEEDS = range(4)
DAMAGED = template(
    fleet=FleetPart(
        protocol="chandy-lamport",
        agents=3,
        pattern=PatternPart(name="memory", messages=200),
        trigger=TriggerPart(every="100ms"),
    ),
    faults=[FaultPart(disk=DiskFault(mode="bit-flip", at="800ms", lasts="300ms"))],
)


@pytest.fixture(autouse=True)
def condemned(monkeypatch: Patch) -> list[int]:
    """Only manifests are damaged: no host reads them while it runs, all later epochs do."""
    files_of = StoreObserver.files_of
    monkeypatch.setattr(StoreObserver, "files_of", lambda self, epoch: files_of(self, epoch)[1:2])
    found: list[int] = []

    def noted(self: Judge, t_ns: int, epoch: int, *, is_whole: bool) -> None:
        assert not is_whole
        found.append(epoch)

    monkeypatch.setattr(Judge, "on_condemned", noted)
    return found


def results() -> list[Result]:
    return [run(draw(DAMAGED, seed), seed) for seed in SEEDS]


def test_a_damaged_base_is_condemned_and_epochs_go_on_without_it(condemned: list[int]) -> None:
    assert [(found.verdict, found.pending, found.violations) for found in results()] == [("pass", [], [])] * len(SEEDS)
    assert condemned


def nobody_condemns(patch: Patch) -> None:
    patch.setattr(store_keeper, "_damaged_base", lambda error, bases: (0, ""))


def hosts_keep_it(patch: Patch) -> None:
    patch.setattr(ChunkTables, "begun", lambda self, newest: None)


@pytest.mark.parametrize("mutant", [nobody_condemns, hosts_keep_it])
def test_otherwise_no_epoch_completes_any_more(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    found = results()
    assert "undecided" in {each.verdict for each in found} and not any(each.violations for each in found)
