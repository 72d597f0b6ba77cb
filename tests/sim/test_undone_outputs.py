"""Fleets whose newest epoch is damaged again and again, and then needed: what it had released is taken back, explicitly, and no more."""

import pytest
from msgspec.structs import replace
from tests.sim.mutants.catalogue import DAMAGED_EPOCHS
from tests.sim.mutants.registry import BUSY, template

from snapline.sim.run import run
from snapline.sim.scenario import OutputsPart
from snapline.sim.search.swarm import draw

SEEDS = range(12)


@pytest.mark.slow
def test_what_was_released_is_taken_back_where_the_store_has_lost_it() -> None:
    """Flips hit refs and tables of packs as well as states: whatever a fleet gives up for that, it had reason to."""
    lost = template(patterns=BUSY, faults=DAMAGED_EPOCHS, outputs=OutputsPart(one_in=2))
    undone = 0
    for seed in SEEDS:
        result = run(replace(draw(lost, seed), budget="beyond"), seed)
        assert result.verdict == "pass", (seed, result.violations or result.pending or result.error)
        undone += bool(result.probes.get("output undone"))
    assert undone >= len(SEEDS) // 3
