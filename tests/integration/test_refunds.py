"""Refunds by an agent with a tool, processes killed: none arrives twice, none is lost. The same agents without effects pay twice."""

import asyncio
import random
import sys
from pathlib import Path

import pytest
from tests.integration.processes import ended
from tests.integration.refund_runs import refund_run

from snapline.examples.payments import Book, read_entries

ORDERS, SOME = 209, 24
CRASH_EVERY = 8

PROTOCOLS = ("chandy-lamport", "hmnr", "uncoordinated")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("unsafe", ["no", pytest.param("yes", marks=pytest.mark.slow)])
async def test_a_host_that_dies_right_after_a_payment(tmp_path: Path, unsafe: str) -> None:
    """The worst moment: paid, and nobody in the fleet knows. As the documentation shows it."""
    ledger = tmp_path / "payments.jsonl"
    run = f"{sys.executable} -m snapline run snapline.examples.refunds:fleet --data-dir {tmp_path / 'run'}"
    run += f" --arg service=$PAYMENTS --arg orders={SOME} --arg crash_every={CRASH_EVERY} --arg unsafe={unsafe}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "snapline.examples.payment_service", ledger, "--", "sh", "-c", run),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    outcome = await ended(process)
    assert outcome.code == 0, outcome.err
    paid = Book(read_entries(ledger)).standing
    assert len(paid) == SOME
    twice = [order for order, payments in paid.items() if len(payments) > 1]
    assert len(twice) >= SOME // CRASH_EVERY if unsafe == "yes" else not twice, twice


@pytest.mark.timeout(240)
@pytest.mark.promise
async def test_some_refunds_arrive_once_whatever_is_killed(data_dir: Path, first_seed: int, figures: list[str]) -> None:
    outcome = await refund_run(data_dir, random.Random(first_seed), protocol="chandy-lamport", orders=SOME, kills_max=3)
    figures.append(f"SNAPLINE_SEED={first_seed}: {outcome}")
    assert (outcome.twice, outcome.lost) == (0, 0), outcome


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_209_refunds_arrive_once_whatever_is_killed(
    data_dir: Path, protocol: str, first_seed: int, figures: list[str]
) -> None:
    outcome = await refund_run(data_dir, random.Random(first_seed), protocol=protocol, orders=ORDERS)
    figures.append(f"SNAPLINE_SEED={first_seed}, {protocol}: {outcome}")
    assert (outcome.twice, outcome.lost) == (0, 0), outcome


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_without_effects_refunds_arrive_twice(data_dir: Path, first_seed: int, figures: list[str]) -> None:
    """So what the others show is not for want of kills."""
    outcome = await refund_run(
        data_dir, random.Random(first_seed), protocol="chandy-lamport", orders=ORDERS, is_unsafe=True
    )
    figures.append(f"SNAPLINE_SEED={first_seed}, without effects: {outcome}")
    assert outcome.twice > 0 and outcome.lost == 0, outcome
