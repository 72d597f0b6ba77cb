"""`Client.ask` over real gRPC, against hosts and a coordinator that are made up."""

import asyncio

import pytest
from tests.client.fake_fleet import fleet_and_client
from tests.client.fake_host import Paid, Taken, until

from snapline.agent_runtime.host import host_events as ev
from snapline.client.sends_and_asks import Reply
from snapline.errors import (
    AgentMissingError,
    AnswerMissingError,
    EncodingError,
    InputDeadLetteredError,
    InputRefusedError,
    UsageError,
)


async def test_an_answer_is_plain_or_of_the_class_that_is_given() -> None:
    async with fleet_and_client() as (fleet, client):
        plain = {"type": "Taken", "fields": {"number": 1, "photo": b""}}
        assert await client.ask("a", Paid(1), "k") == Reply("a", 1, plain, False, "k")
        assert await client.ask("a", Paid(1), "k", reply_type=Taken) == Reply("a", 1, Taken(1), False, "k")
        early = await client.ask("a", ("Paid", {"amount": 2}), early=True, reply_type=Taken)
        assert (early.number, early.message, early.is_early, len(early.key)) == (2, Taken(2), True, 32)
        assert set(fleet.hosts["h1"].asked) == {("a", "k", False), ("a", early.key, True)}, (
            "more often if before the input"
        )
        fleet.hosts["h1"].replies = lambda *_: ev.AskAnswer("replied", 3)
        assert (await client.ask("a", Paid(3))).message is None, "its turn answered nothing"


async def test_an_answer_of_another_type() -> None:
    async with fleet_and_client() as (fleet, client):
        with pytest.raises(EncodingError, match="the answer is a Taken, and reply_type says Paid"):
            await client.ask("a", Paid(1), reply_type=Paid)
        fleet.hosts["h1"].replies = lambda *_: ev.AskAnswer("replied", 3, b"\5Taken\x80")
        with pytest.raises(EncodingError, match=r"the answer, a Taken, cannot be read: .*`number`"):
            await client.ask("a", Paid(1), reply_type=Taken)
        with pytest.raises(UsageError, match="is none that a message can have"):
            await client.ask("a", Paid(1), reply_type=3)


async def test_a_recovery_and_a_move_cost_nothing_but_time() -> None:
    async with fleet_and_client() as (fleet, client):
        first = fleet.hosts["h1"]
        await client.send("a", Paid(1), "k")
        first.hold_asks = []
        asking = asyncio.create_task(client.ask("a", Paid(1), "k", reply_type=Taken))
        await until(lambda: first.hold_asks)
        first.replies = lambda *_: ev.AskAnswer("retry", reason="the fleet recovers")
        fleet.move("a", "h2")
        await first.stop()
        assert (await asking).message == Taken(1)
        assert fleet.hosts["h2"].asked == [("a", "k", False)]


async def test_retries_are_followed() -> None:
    async with fleet_and_client() as (fleet, client):
        words = [ev.AskAnswer("retry", reason="the fleet recovers")] * 3
        fleet.hosts["h1"].replies = lambda *_: words.pop() if words else None
        await client.send("a", Paid(1), "k")
        assert (await client.ask("a", Paid(1), "k", reply_type=Taken)).message == Taken(1)
        assert len(fleet.hosts["h1"].asked) == 4 and len(fleet.books.taken["a"]) == 1


async def test_a_dead_letter_is_told_as_one() -> None:
    async with fleet_and_client() as (fleet, client):
        fleet.hosts["h1"].replies = lambda *_: ev.AskAnswer("buried", 1)
        with pytest.raises(
            InputDeadLetteredError,
            match="as input 1 of agent a under key k, and became a dead letter: `snapline agent dead-letters",
        ) as caught:
            await client.ask("a", Paid(1), "k")
        assert (caught.value.agent, caught.value.key, caught.value.number, caught.value.exit_code) == ("a", "k", 1, 3)


async def test_no_answer_in_time_names_the_number_and_the_key() -> None:
    async with fleet_and_client() as (fleet, client):
        fleet.hosts["h1"].hold_asks = []
        with pytest.raises(
            AnswerMissingError, match=r"taken as input 1 of agent a under key k, and .* ask again with the same key"
        ) as caught:
            await client.ask("a", Paid(1), "k", timeout_s=2.0)
        assert (caught.value.number, caught.value.key, caught.value.exit_code) == (1, "k", 9)
        held, fleet.hosts["h1"].hold_asks = fleet.hosts["h1"].hold_asks, None
        held[0]()
        assert (await client.ask("a", Paid(1), "k", reply_type=Taken)).message == Taken(1)


async def test_answers_that_nobody_has_any_more() -> None:
    async with fleet_and_client() as (fleet, client):
        fleet.hosts["h1"].replies = lambda *_: ev.AskAnswer("unknown", reason="too long ago")
        with pytest.raises(AnswerMissingError, match="cannot be heard: too long ago"):
            await client.ask("a", Paid(1))
        with pytest.raises(InputRefusedError):
            await client.ask("a", ("Payed", {}))
        with pytest.raises(AgentMissingError):
            await client.ask("nobody", Paid(1))


async def test_more_than_one_connection_takes_wait_for_their_turn() -> None:
    """64 calls fit on a connection; inputs must get through beside those that wait."""
    async with fleet_and_client() as (fleet, client):
        host = fleet.hosts["h1"]
        host.hold_asks = []
        asking = [
            asyncio.create_task(client.ask("a", Paid(number), f"k{number}", reply_type=Taken)) for number in range(150)
        ]
        await until(lambda: len(fleet.books.taken["a"]) == 150 and len(host.hold_asks or ()) == 32)
        assert (await client.send("b", Paid(1))).number == 1
        held, host.hold_asks = host.hold_asks, None
        for tell in held:
            tell()
        assert [(await each).message.number for each in asking] == list(range(1, 151))


async def test_a_program_that_gives_up_leaves_nothing() -> None:
    async with fleet_and_client() as (fleet, client):
        fleet.hosts["h1"].hold_asks = []
        asking = asyncio.create_task(client.ask("a", Paid(1)))
        await until(lambda: fleet.hosts["h1"].hold_asks and fleet.books.taken["a"])
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not client._asking.endings and (await client.send("a", Paid(2))).number == 2
        waiting = asyncio.create_task(client.ask("b", Paid(1), "k"))
        await until(lambda: len(fleet.hosts["h1"].hold_asks or ()) == 2 and not client._sends.waiting)
        await client.close()
        with pytest.raises(AnswerMissingError, match="the client was closed"):
            await waiting
