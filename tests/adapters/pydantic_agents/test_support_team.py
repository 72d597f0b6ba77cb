"""The support team of Pydantic AI's agents, while hosts and the coordinator are killed: each answer is right, and each refund is paid once."""

import asyncio
import contextlib
import random
from pathlib import Path

import pytest
from tests.integration.running import Running, running
from tests.integration.victims import COORDINATOR, EVERYTHING, HOST, Killer, Program

pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed: make test-pydantic-ai")

import snapline
from snapline.examples.payments import Book, read_entries
from snapline.examples.support_team import ALONE_MOST, Answer, Complaint, price_of

pytestmark = [pytest.mark.pydantic_ai, pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = 50
"""In each of two runs."""


def is_granted(order: int) -> bool:
    return order % 3 > 0


def is_paid(order: int) -> bool:
    return price_of(order) <= ALONE_MOST or is_granted(order)


def expected(order: int) -> Answer:
    outcome = f"We have refunded {price_of(order)}" if is_paid(order) else "We cannot refund this"
    return Answer(order, f"{outcome}. Rule 3 applies. The parcel was wet.")


async def complain(client: snapline.Client, killing: "asyncio.Future[None]") -> int:
    """Complain about one order after another until the kills are over; returns how many were answered."""
    order = 0
    while not killing.done():
        order += 1
        while True:
            with contextlib.suppress(snapline.UnknownOutcomeError, snapline.InputRejectedError):
                reply = await client.ask("lead", Complaint(order), f"order-{order}", reply_type=Answer)
                assert reply.message == expected(order)
                break
    return order


async def decide(client: snapline.Client) -> None:
    """Grant or deny what the lead asks, as a person does who clicks on whatever is open."""
    while True:
        with contextlib.suppress(snapline.SnaplineError):
            for each in await client.approvals():
                chosen = is_granted(each.details["order"])
                await client.answer_approval(each.agent, each.id, is_granted=chosen, timeout_s=5)
        await asyncio.sleep(0.05)


async def kill(fleet: Running, chosen: random.Random) -> None:
    killer = Killer(fleet, {}, chosen)
    while killer.kills.total() < KILLS:
        await asyncio.sleep(chosen.random())
        await killer.kill(chosen.choices([HOST, COORDINATOR, EVERYTHING], [3, 1, 1])[0])
    print(f"kills: {dict(killer.kills)}")


@pytest.mark.parametrize("recovery", ["global", "local"])
async def test_each_answer_is_right_and_each_refund_is_paid_once(tmp_path: Path, recovery: str) -> None:
    ledger = tmp_path / "payments.jsonl"
    service = Program("snapline.examples.payment_service", ledger, "--delay-s", "0.02", serves="--port")
    await service.start()
    arguments = {"service": service.address, "recovery": recovery}
    try:
        async with running(tmp_path / "data", "snapline.examples.support_team:fleet", arguments, hosts=2) as fleet:
            await fleet.until(lambda now: now.phase == "running")
            async with await snapline.Client.connect(data_dir=tmp_path / "data") as client:
                deciding = asyncio.create_task(decide(client))
                killing = asyncio.create_task(kill(fleet, random.Random(recovery)))
                answered = await complain(client, killing)
                await killing
                deciding.cancel()
                assert await client.approvals() == []
    finally:
        await service.end()
    paid = {order: len(entries) for order, entries in Book(read_entries(ledger)).standing.items()}
    assert paid == {f"order-{order}": 1 for order in range(1, answered + 1) if is_paid(order)}
    print(f"{recovery}: {answered} complaints answered, {len(paid)} paid")
