"""`ctx.rollback`: the turn has no effect, its agent stands, and its host asks until there is a plan."""

import asyncio
from typing import Any, ClassVar

import msgspec
import pytest
from tests.agent_runtime.driving import Driver
from tests.agent_runtime.test_durable import SEED
from tests.agent_runtime.test_host_core_agents import Drive
from tests.agent_runtime.test_host_core_turns import payloads

import snapline
from snapline.agent_runtime.durable import (
    DONE,
    ROLLED_BACK,
    Pause,
    TurnJournal,
    encode_rollbacks,
    read_rollbacks,
    rolled,
)
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import encode_message
from snapline.agent_runtime.rollback_errors import RollbackRequest
from snapline.messages import host_messages as msg
from snapline.messages.past_rollbacks import PastRollback, encode_requests
from snapline.storage.log.log_record import LoggedEntry
from snapline.storage.packs.checkpoint import JournalEntry

WISH = RollbackRequest("last", "astray", "f (a.py:1)")
GO = b"\x02go"
STEP = JournalEntry("step", "look")
SAID = msg.WantRollback("a", 1, "last", "astray", "f (a.py:1)")


def ask(driver: Driver) -> list[ev.HostOutput]:
    return driver.fail("a", "asked", rollback=WISH)


def test_the_agent_stands_with_its_message_and_is_undone(drive: Drive) -> None:
    driver = drive()
    driver.remote_sends("z", "a", *payloads(2))
    said = ask(driver)
    assert said[0] == ev.UndoTurn("a") and SAID in said
    driver.remote_sends("z", "a", *payloads(1))
    driver.feed(ev.TimerFired(), 3600 * 10**9)
    agent = driver.core.agents["a"]
    assert "a" not in driver.turns and len(agent.mailbox) == 3 and not agent.dead_letters
    assert agent.inlets["z"].consumed == 0


def test_it_records_like_any_agent_between_two_turns(drive: Drive) -> None:
    driver = drive()
    driver.remote_sends("z", "a", *payloads(1))
    ask(driver)
    driver.feed(msg.BeginEpoch(1, 1))
    assert driver.captures("a")


def test_the_host_says_it_again_to_the_next_leader_and_people_hear_of_a_refusal_once(drive: Drive) -> None:
    driver = drive()
    driver.remote_sends("z", "a", *payloads(1))
    ask(driver)
    assert SAID in driver.feed(msg.Welcome(1, "c"))
    assert [x.text for x in driver.feed(msg.RollbackRefused("a", 1, "no")) if isinstance(x, ev.Note)] == ["no"]
    assert driver.feed(msg.RollbackRefused("a", 1, "no")) == [] == driver.feed(msg.RollbackRefused("a", 7, "late"))
    assert SAID in driver.feed(msg.Welcome(1, "c")) and "a" not in driver.turns


def test_a_plan_ends_it_and_a_late_refusal_says_nothing(drive: Drive) -> None:
    driver = drive()
    driver.remote_sends("z", "a", *payloads(1))
    ask(driver)
    driver.receive_plan(2)
    driver.load(2)
    assert SAID not in driver.feed(msg.Welcome(1, "c"))
    assert driver.feed(msg.RollbackRefused("a", 1, "no")) == []


PAST = PastRollback(1, 7, "b", "g (b.py:1)", "lost")
ASKING = JournalEntry(ROLLED_BACK, "")


def pause(*entries: JournalEntry, waits: JournalEntry = STEP) -> Pause:
    return Pause(SEED, waits, None, list(entries))


@pytest.mark.parametrize("has_waited", [False, True])
def test_it_says_which_turn_asks_and_what_that_had_done(has_waited: bool) -> None:
    driver = Driver()
    driver.remote_sends("z", "a", GO)
    if has_waited:
        driver.end("a", pause=pause())
        driver.feed(ev.StepEnded("a", 1, 0, DONE, b"r"))
    adopted = JournalEntry("step", "logged", b"", DONE, b"r")
    said = driver.fail("a", "asked", rollback=WISH, is_durable=True, entries=[adopted])
    (want,) = [x for x in said if isinstance(x, msg.WantRollback)]
    done = [("step", "look", DONE)] * has_waited + [("step", "logged", DONE)]
    assert want.turn == 1 and want.done == encode_requests(done)


def test_a_turn_learns_of_the_returns_that_its_plan_names_and_waits_for_nothing() -> None:
    driver = Driver()
    driver.receive_plan(2, rollbacks=(PAST,))
    driver.load(2)
    driver.end_all()
    driver.remote_sends("z", "a", GO)
    driver.end("a", pause=pause(waits=ASKING))
    found = driver.turns["a"].found
    assert found is not None and (found.kind, found.outcome) == (ROLLED_BACK, DONE)
    assert read_rollbacks(found) == (PAST,)


def test_the_answer_is_never_taken_from_a_log_and_what_stands_behind_another_answer_is_not_either() -> None:
    """An earlier run learned of nothing, and logged a step behind that. This run learns of a return: it has another past."""
    empty = JournalEntry(ROLLED_BACK, "", b"", DONE, encode_rollbacks(()))
    first = JournalEntry("step", "first", b"", DONE, b"r")
    behind = JournalEntry("step", "second", b"", DONE, b"r")
    logged = [
        LoggedEntry("a", 1, SEED, 0, b"", first),
        LoggedEntry("a", 1, SEED, 1, rolled(b"", [first]), empty),
        LoggedEntry("a", 1, SEED, 2, rolled(b"", [first, empty]), behind),
    ]

    async def asked(answer: JournalEntry) -> list[str]:
        journal, waited = TurnJournal(SEED, None, logged[:1] + logged[2:]), []

        async def handler() -> None:
            await journal.wait("step", "first", b"")
            await journal.wait(ROLLED_BACK, "", b"")
            await journal.wait("step", "second", b"")

        coroutine = handler()
        found = None
        try:
            while True:
                segment: Any = coroutine.send(found)
                waited.append(segment.waits.name or segment.waits.kind)
                found = answer if segment.waits.kind == ROLLED_BACK else behind
        except StopIteration:
            return waited

    assert asyncio.run(asked(empty)) == [ROLLED_BACK], "both steps are taken from the log"
    news = JournalEntry(ROLLED_BACK, "", b"", DONE, encode_rollbacks((PAST,)))
    assert asyncio.run(asked(news)) == [ROLLED_BACK, "second"], "the first step was before the question"


# ---- handlers -------------------------------------------------------------------------------------------------------


class Go(snapline.Message):
    how: str


class Steps(msgspec.Struct):
    done: list[str] = []


class Walker(snapline.Agent):
    state: Steps
    told: ClassVar[list[str]] = []

    @snapline.handler
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        self.state.done.append(message.how)
        ctx.send("other", Go("sent"))
        if message.how == "waits":
            await asyncio.sleep(0)
        self.wander(message.how, ctx)
        self.told.append("went on")

    def wander(self, how: str, ctx: snapline.Context) -> None:
        try:
            ctx.rollback("astray", to="good")
        except Exception as error:
            self.told.append(f"caught {error!r}")
        except BaseException:
            if how != "catches all":
                raise


class Rash(Walker):
    on_error = "keep"


class Long(snapline.Agent):
    state: Steps

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        self.state.done.append("in the middle")
        await ctx.step("look", len, "abc")
        ctx.rollback("astray")


async def fate(made: snapline.Agent, how: str, *, durable: bool = False) -> tuple[ev.TurnFailed, Any]:
    """How the turn ends, and the state after it was undone."""
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    turns = Turns(snapline.Fleet("f", agents={"a": made}), ended.set_result, lambda text: None)
    turns.add("a", made)
    found = turns.run(ev.StartTurn("a", 1, "message", "z", encode_message(Go(how))))
    if durable:
        assert isinstance(found, ev.TurnEnded) and found.pause is not None
        entry = msgspec.structs.replace(found.pause.waits, outcome="done", result=b"\x03")
        found = turns.run(ev.StartTurn("a", 1, "segment", "z", b"", found=entry))
    if found is None:
        found = await ended
    assert isinstance(found, ev.TurnFailed)
    if found.on_error == "undo" and not found.is_final:
        turns.undo("a")
    return found, made.state


@pytest.mark.parametrize("how", ["at once", "waits"])
async def test_a_handler_that_asks_ends_there_and_leaves_nothing(how: str) -> None:
    """What handles errors does not go on; the place is that of the call."""
    Walker.told.clear()
    found, state = await fate(Walker(Steps()), how)
    assert found.rollback is not None and (found.rollback.snapshot, found.rollback.reason) == ("good", "astray")
    assert found.rollback.place.startswith("Walker.wander (test_rollbacks.py:")
    assert state == Steps() and Walker.told == []


async def test_one_that_catches_everything_fails_and_says_why() -> None:
    found, state = await fate(Walker(Steps()), "catches all")
    assert found.rollback is None and "let it pass" in found.error and state == Steps()


async def test_an_agent_whose_turns_are_not_undone_cannot_ask() -> None:
    found, _ = await fate(Rash(Steps()), "at once")
    assert found.rollback is None and 'needs on_error = "undo"' in found.error


async def test_a_durable_turn_asks_in_its_middle() -> None:
    found, state = await fate(Long(Steps()), "", durable=True)
    assert found.rollback is not None and found.is_durable and state == Steps()


@pytest.mark.parametrize(
    ("reason", "to", "at_most"),
    [("", "last", 1), ("x" * 1001, "last", 1), ("why", "", 1), (7, "last", 1), ("why", 7, 1)]
    + [("why", "turn", bad) for bad in (0, 17, True, "1")],
)
async def test_what_is_no_wish_is_an_error_of_the_turn(reason: Any, to: Any, at_most: Any) -> None:
    class Wrong(Walker):
        def wander(self, how: str, ctx: snapline.Context) -> None:
            ctx.rollback(reason, to=to, at_most=at_most)

    found, _ = await fate(Wrong(Steps()), "at once")
    assert found.rollback is None and "ctx.rollback" in found.error
