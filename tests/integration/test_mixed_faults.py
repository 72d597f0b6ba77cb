"""Everything promised at once: orders and trips under kills, blocked handlers, poison, a store that is away, and clocks that jump."""

import random
from pathlib import Path

import pytest
from tests.integration.mixed_runs import mixed_run

FAULTS = 200


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_nothing_is_lost_and_nothing_done_twice(data_dir: Path, first_seed: int, figures: list[str]) -> None:
    figures.append(f"SNAPLINE_SEED={first_seed}: {await mixed_run(data_dir, random.Random(first_seed), faults=5)}")


@pytest.mark.slow
@pytest.mark.timeout(3700)
async def test_so_it_is_after_200_faults(data_dir: Path, first_seed: int, figures: list[str]) -> None:
    figures.append(f"SNAPLINE_SEED={first_seed}: {await mixed_run(data_dir, random.Random(first_seed), faults=FAULTS)}")
