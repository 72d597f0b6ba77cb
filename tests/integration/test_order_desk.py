"""The order desk on real processes: HTTP in, a payment service beside it, everything killed; one answer for each request, and books that balance."""

import random
from pathlib import Path

import pytest
from tests.integration.order_runs import order_run

KILLS = 200


RECOVERIES = ("global", "local")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("recovery", RECOVERIES)
async def test_requests_are_answered_once_and_the_books_balance(
    recovery: str, data_dir: Path, first_seed: int, figures: list[str]
) -> None:
    chosen = random.Random(first_seed)
    outcome = await order_run(data_dir, chosen, protocol="chandy-lamport", kills=3, recovery=recovery)
    figures.append(f"SNAPLINE_SEED={first_seed}: {outcome}")


@pytest.mark.slow
@pytest.mark.timeout(3700)
@pytest.mark.parametrize("recovery", RECOVERIES)
async def test_so_it_is_after_200_kills(recovery: str, data_dir: Path, first_seed: int, figures: list[str]) -> None:
    chosen = random.Random(first_seed)
    outcome = await order_run(data_dir, chosen, protocol="chandy-lamport", kills=KILLS, recovery=recovery)
    figures.append(f"SNAPLINE_SEED={first_seed}: {outcome}")
