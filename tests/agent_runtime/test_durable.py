"""A durable turn as its handler meets it: what it asks for comes from the journal, or ends a segment; driven by hand, without a host."""

import asyncio
import random
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import snapline
from snapline.agent_runtime import durable
from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import (
    DONE,
    LATE,
    SegmentEnd,
    TurnJournal,
    argument_digest,
    encode_result,
    read_call,
    read_result,
    reply_to,
)
from snapline.agent_runtime.fleet import restored
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import encode_message
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.errors import FleetDefinitionError
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry, SavedTurn

SEED = bytes(range(16))


class Price(msgspec.Struct):
    amount: int
    currency: str = "EUR"


class Go(snapline.Message):
    what: str = ""


class Told(snapline.Message):
    number: int


class Quote(snapline.Message):
    number: int


class Notes(msgspec.Struct):
    seen: list[str] = []


def saved(journal: Sequence[JournalEntry] = (), waits: JournalEntry | None = None, what: str = "") -> SavedTurn:
    payload = encode_message(Go(what))
    return SavedTurn("message", "z", payload, SEED, "", list(journal), waits)


# -- whatever is asked for, and wherever it is cut -------------------------------------------------------------------


async def play(ctx: Context, words: Sequence[str], seen: list[object]) -> None:
    """A handler that asks for these things, one after another."""
    for place, word in enumerate(words):
        match word:
            case "step":
                seen.append(await ctx.step(f"s{place}", int, place))
            case "call":
                seen.append((await ctx.call("b", Quote(place), Told)).number)
            case "sleep":
                await ctx.sleep(place)
            case "receive":
                seen.append((await ctx.receive(Told)).number)
            case "now":
                seen.append(ctx.now())
            case "random":
                seen.append((ctx.random(), ctx.uuid()))
            case "send":
                ctx.send("c", Told(place))


def answer(stand: SegmentEnd, place: int) -> JournalEntry:
    """What comes of an entry: known from its place alone, whoever asks."""
    kind, name, digest = stand.waits.kind, stand.waits.name, stand.waits.digest
    if kind == "step":
        assert stand.work is not None
        return JournalEntry(kind, name, digest, DONE, encode_result(name, stand.work.function()))
    result = b"" if kind == "sleep" else encode_message(Told(1000 + place))
    return JournalEntry(kind, name, digest, DONE, result, "z" if kind == "receive" else "")


class Clock(TurnEnvironment):
    def __init__(self) -> None:
        self.now = random.Random(5)

    def now_ns(self) -> int:
        return self.now.randrange(10**18)


def run(words: Sequence[str], cuts: set[int]) -> tuple[list[object], list[tuple[str, bytes]], list[JournalEntry]]:
    """What the handler saw in its last run, what left, and the journal; it is begun anew after each of these entries."""
    journal: list[JournalEntry] = []
    left: list[tuple[str, bytes]] = []
    waits: JournalEntry | None = None
    clock = Clock()
    seen: list[object] = []
    coroutine: Any = None
    while True:
        if coroutine is None:
            seen = []
            ctx = Context("a", 1, "z", clock)
            ctx.begin(journal=TurnJournal(SEED, saved(journal, waits) if journal or waits is not None else None))
            coroutine, found = play(ctx, words, seen), None
        try:
            stand = coroutine.send(found)
        except StopIteration:
            left += ctx.take_segment().sends
            return seen, left, journal
        segment = ctx.take_segment().sends
        if stand.is_repeated:
            assert waits == stand.waits and not stand.entries
        else:
            left += segment
            journal += stand.entries
            waits = stand.waits
        if len(journal) in cuts:
            cuts = cuts - {len(journal)}
            coroutine = None  # while it waits
            continue
        found, waits = answer(stand, len(journal)), None
        journal.append(found)
        if -len(journal) in cuts:
            coroutine = None  # when it has what it waited for


WORDS = st.lists(st.sampled_from(["step", "call", "sleep", "receive", "now", "random", "send"]), max_size=14)


@settings(max_examples=150)
@given(WORDS, st.sets(st.integers(-14, 14)))
def test_a_turn_that_is_cut_anywhere_comes_to_the_same(words: list[str], cuts: set[int]) -> None:
    assert run(words, cuts) == run(words, set())


def test_the_oracle_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: what left before is collected again."""
    words = ["send", "step", "send", "step", "send"]
    with monkeypatch.context() as patch:
        take = Context.take_segment
        patch.setattr(Context, "_wait", _wait_without_forgetting)
        assert run(words, {-1, -2}) != run(words, set())
        assert Context.take_segment is take
    assert run(words, {-1, -2}) == run(words, set())


async def _wait_without_forgetting(self: Context, kind: str, name: str, digest: bytes, **rest: Any) -> JournalEntry:
    assert self.journal is not None
    return await self.journal.wait(kind, name, digest, work=rest.get("work"))


# -- what does not repeat itself ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["call"], "entry 1 of the turn's journal is step 's0', and now the handler asks for call 'b', at "),
        (["now"], "is step 's0', and now the handler asks for a now, at "),
        (["send", "step"], "is step 's0', and now the handler asks for step 's1', at "),
    ],
)
def test_another_entry_than_the_journals_is_named(words: list[str], text: str) -> None:
    begun = saved([JournalEntry("step", "s0", argument_digest("s0", (0,)), DONE, b"\x00")])
    ctx = Context("a", 1, "z", TurnEnvironment())
    ctx.begin(journal=TurnJournal(SEED, begun))
    with pytest.raises(snapline.DivergenceError) as caught:
        play(ctx, words, []).send(None)
    assert text in str(caught.value) and "test_durable.py:" in str(caught.value)


def test_other_arguments_are_another_entry() -> None:
    ctx = Context("a", 1, "z", TurnEnvironment())
    ctx.begin(journal=TurnJournal(SEED, saved([JournalEntry("step", "s0", b"otherarg", DONE, b"\x00")])))
    with pytest.raises(snapline.DivergenceError, match=r"now the handler asks for step 's0' with other arguments, at "):
        play(ctx, ["step"], []).send(None)


# -- turns -------------------------------------------------------------------------------------------------------------


async def price_of(what: str) -> Price:
    return Price(len(what))


def fail(what: str) -> int:
    raise KeyError(what)


class Buyer(snapline.Agent):
    state: Notes

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: Context) -> None:
        await getattr(self, message.what)(ctx)

    async def buy(self, ctx: Context) -> None:
        price = await ctx.step("price", price_of, "bread")
        self.state.seen.append(f"{type(price).__name__} {price.amount}")

    async def fail(self, ctx: Context) -> None:
        with pytest.raises(snapline.StepFailedError, match="step 'fail' failed: KeyError: 'bread'") as caught:
            await ctx.step("fail", fail, "bread", retries=2)
        assert (caught.value.step, caught.value.error) == ("fail", "KeyError")

    async def hurry(self, ctx: Context) -> None:
        with pytest.raises(snapline.StepFailedError, match="TimeoutError"):
            await ctx.step("slow", asyncio.sleep, 60, timeout_s=0.01)

    async def foreign(self, ctx: Context) -> None:
        await asyncio.sleep(1)

    async def secret(self, ctx: Context) -> None:
        await ctx.step("open", str, object())

    async def unreadable(self, ctx: Context) -> None:
        await ctx.step("make", object)

    async def receive(self, ctx: Context) -> None:
        told = await ctx.receive(Told, timeout_s=1)
        self.state.seen.append(f"{told.number} of {ctx.received_from}")

    async def call(self, ctx: Context) -> None:
        self.state.seen.append("half")
        self.state.seen.append(str((await ctx.call("b", Quote(1), Told)).number))

    @snapline.handler
    async def on_quote(self, message: Quote, ctx: Context) -> None:
        if message.number:
            ctx.reply(Told(message.number))


class Seat:
    """Turns of one agent, and what was told of its steps."""

    def __init__(self, outside: TurnEnvironment | None = None) -> None:
        self.told: asyncio.Queue[ev.StepEnded] = asyncio.Queue()
        fleet = snapline.Fleet("buyers", agents={"a": Buyer(Notes())})
        self.turns = Turns(fleet, lambda event: None, lambda text: None, outside, step_ended=self.told.put_nowait)
        self.turns.add("a", fleet.make("a"))

    def start(self, what: str) -> Any:
        return self.turns.run(ev.StartTurn("a", 1, "message", "z", encode_message(Go(what))))

    def go_on(self, found: JournalEntry) -> Any:
        return self.turns.run(ev.StartTurn("a", 1, "segment", "z", b"", found))

    async def step(self, paused: ev.TurnEnded) -> Any:
        assert paused.pause is not None
        waits = paused.pause.waits
        self.turns.run_step(ev.RunStep("a", 1, 0, waits.name))
        told = await asyncio.wait_for(self.told.get(), 10)
        return self.go_on(msgspec.structs.replace(waits, outcome=told.outcome, result=told.result))

    @property
    def seen(self) -> list[str]:
        seen: list[str] = self.turns.object_of("a").state.seen
        return seen


async def test_a_step_gives_what_its_function_declares() -> None:
    seat = Seat()
    ended = await seat.step(seat.start("buy"))
    assert ended == ev.TurnEnded("a", 1, is_durable=True) and seat.seen == ["Price 5"]


def test_arrays_of_a_result_are_the_turns_own_and_the_journal_keeps_what_came() -> None:
    found = JournalEntry("step", "table", b"", DONE, encode_result("table", {"rates": np.ones(3)}))
    for _ in range(2):
        rates = read_result("table", found, dict)["rates"]
        assert rates.tolist() == [1, 1, 1]
        rates += 1


@pytest.mark.parametrize("what", ["fail", "hurry"])
async def test_what_a_step_raises_is_in_the_journal(what: str) -> None:
    seat = Seat()
    assert await seat.step(seat.start(what)) == ev.TurnEnded("a", 1, is_durable=True)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (
            "foreign",
            "a durable handler has awaited a Future, which a recovery could not wait for again. asyncio.create_task",
        ),
        ("secret", "the arguments of step 'open' cannot be kept in the journal"),
        ("nowhere", "'Buyer' object has no attribute 'nowhere'"),
    ],
)
async def test_what_cannot_be_repeated_fails_the_turn(what: str, text: str) -> None:
    failed = Seat().start(what)
    assert type(failed) is ev.TurnFailed and text in failed.error


async def test_a_result_that_cannot_be_kept_fails_the_step() -> None:
    seat = Seat()
    failed = await seat.step(seat.start("unreadable"))
    assert "step 'make' returned what the journal cannot keep" in failed.error


async def test_the_state_of_a_turn_that_waits_is_the_one_before_it() -> None:
    seat = Seat()
    paused = seat.start("call")
    known, _, image = seat.turns.capture("a")
    assert seat.seen == ["half"] and known.state_decoder.decode(image.skeleton) == Notes([])
    ((to, payload),) = paused.sends
    call, _ = read_call(payload)
    assert to == "b" and paused.pause.timeout_ns == 60 * 10**9
    found = msgspec.structs.replace(paused.pause.waits, outcome=DONE, result=encode_message(Told(7)))
    assert seat.go_on(found) == ev.TurnEnded("a", 1, is_durable=True) and seat.seen == ["half", "7"]
    assert durable.call_id(paused.pause.seed, 0) == call


async def test_a_turn_is_run_again_from_its_journal() -> None:
    first, second = Seat(), Seat()
    paused = first.start("call")
    begun = saved([], paused.pause.waits, "call")
    begun = msgspec.structs.replace(begun, seed=paused.pause.seed)
    again = second.turns.run(ev.StartTurn("a", 1, "segment", "z", begun.payload, None, begun))
    assert again == ev.TurnEnded("a", 1, pause=paused.pause), "what it had sent has left"
    found = msgspec.structs.replace(paused.pause.waits, outcome=DONE, result=encode_message(Told(7)))
    over = msgspec.structs.replace(begun, journal=[found], waits=None)
    third = Seat()
    assert third.turns.run(ev.StartTurn("a", 1, "segment", "z", begun.payload, None, over)) == ev.TurnEnded(
        "a", 1, is_durable=True
    )
    assert third.seen == ["half", "7"]


class Moved(msgspec.Struct):
    """What the state of a `Mover` is by now: before, it was a number."""

    places: list[int] = []


class Mover(snapline.Agent):
    state: Moved
    state_version = 1

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: Context) -> None:
        self.state.places.append((await ctx.step("price", price_of, "bread")).amount)
        told = await ctx.receive(Told)
        self.state.places.append(told.number)


@snapline.migrates(Mover, from_version=0)
def list_places(state: dict[str, Any]) -> dict[str, Any]:
    return {"places": [state["place"]]}


def test_a_turn_in_its_middle_goes_on_from_the_migrated_state_that_it_began_with() -> None:
    fleet = snapline.Fleet("movers", agents={"a": Mover(Moved())})
    kept = AgentCheckpoint(
        agent="a",
        kind=fleet.kind_of("a"),
        epoch=1,
        state=msgspec.msgpack.encode({"place": 3}),
        state_type="Place",
        state_fields={"place": "int"},
    )
    turns = Turns(fleet, lambda event: None, lambda text: None, None, step_ended=lambda event: None)
    turns.add("a", restored(fleet, kept))
    priced = JournalEntry(
        "step", "price", argument_digest("price", ("bread",)), DONE, encode_result("price", Price(5), price_of)
    )
    begun = saved([priced, JournalEntry("receive", "Told", b"", DONE, encode_message(Told(8)), "y")])
    over = turns.run(ev.StartTurn("a", 1, "segment", "z", begun.payload, None, begun))
    assert over == ev.TurnEnded("a", 1, is_durable=True)
    assert turns.object_of("a").state == Moved([3, 5, 8])


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (JournalEntry("call", "b", b"", LATE), "agent 'b' has not answered within 60 s"),
        (
            JournalEntry("call", "b", b"", DONE),
            "agent 'b' will not answer: its turn has ended without ctx.reply or failed, or there is no such agent",
        ),
        (
            JournalEntry("call", "b", b"", DONE, encode_message(Quote(1))),
            "the answer of agent 'b' is a 'Quote', not a 'Told'",
        ),
    ],
)
async def test_calls_that_are_not_answered_raise(found: JournalEntry, text: str) -> None:
    seat = Seat()
    seat.start("call")
    failed = seat.go_on(found)
    assert type(failed) is ev.TurnFailed and text in failed.error


async def test_who_is_received_from_is_told() -> None:
    seat = Seat()
    paused = seat.start("receive")
    assert paused.pause.waits == JournalEntry("receive", "Told") and paused.pause.timeout_ns == 10**9
    seat.go_on(JournalEntry("receive", "Told", b"", DONE, encode_message(Told(3)), "y"))
    assert seat.seen == ["3 of y"]
    seat.start("receive")
    failed = seat.go_on(JournalEntry("receive", "Told", b"", LATE))
    assert "WaitTimeoutError: no message of type 'Told' has come within 1 s" in failed.error


@pytest.mark.parametrize(("number", "reply"), [(4, encode_message(Told(4))), (0, b"")])
def test_a_call_is_answered_when_its_turn_has_ended(number: int, reply: bytes) -> None:
    payload = durable.call_payload(b"01234567", encode_message(Quote(number)))
    ended = Seat().turns.run(ev.StartTurn("a", 1, "message", "z", payload))
    assert ended == ev.TurnEnded("a", 1, [("z", reply_to(b"01234567") + reply)])


def test_a_reply_that_nobody_waits_for_is_dropped() -> None:
    payload = durable.reply_payload(b"01234567", encode_message(Told(1)))
    assert Seat().turns.run(ev.StartTurn("a", 1, "message", "z", payload)) == ev.TurnEnded("a", 1)


async def test_a_wait_for_either_of_two_classes_is_refused_before_anything_is_sent() -> None:
    ctx = Context("a", 1, "z", TurnEnvironment())
    ctx.begin(journal=TurnJournal(SEED, None))
    either: Any = Told | Quote
    for waits in (ctx.receive(either), ctx.call("b", Quote(1), either)):
        with pytest.raises(snapline.UsageError, match="waits for one class of messages, not for"):
            await waits
    assert ctx.take_segment().sends == []


async def test_a_plain_turn_cannot_wait() -> None:
    ctx = Context("a", 1, "z", TurnEnvironment())
    for waits in (ctx.sleep(1), ctx.receive(Told), ctx.call("b", Quote(1), Told)):
        with pytest.raises(snapline.UsageError, match=r"waits, and a plain turn cannot: .*handler\(durable=True\)"):
            await waits


async def test_a_plain_turns_steps_take_arguments_and_draws_are_its_own() -> None:
    ctx = Context("a", 1, "z", TurnEnvironment())
    assert await ctx.step("add", pow, 2, 5) == 32
    with pytest.raises(ZeroDivisionError):
        await ctx.step("divide", divmod, 1, 0, retries=(0.0, 0.0))
    first, second = ctx.uuid(), ctx.uuid()
    assert isinstance(first, uuid.UUID) and first.version == 4 and first != second
    with pytest.raises(snapline.UsageError, match=r"retries of step 'add' are -1"):
        await ctx.step("add", pow, 2, 5, retries=-1)


def test_a_handler_that_cannot_be_durable_is_refused() -> None:
    class Keeper(snapline.Agent):
        state: Notes
        on_error = "keep"

        @snapline.handler(durable=True)
        async def on_go(self, message: Go, ctx: Context) -> None: ...

    with pytest.raises(FleetDefinitionError, match=r"on_go is durable, and .*on_error is 'keep'"):
        agent_type(Keeper)


# -- until an instant --------------------------------------------------------------------------------------------------

MINUTE = 60 * 10**9


class Steady(TurnEnvironment):
    def __init__(self, now: int) -> None:
        self.now = now

    def now_ns(self) -> int:
        return self.now


def waits_until(due_ns: int, clock: Steady, away: Callable[[int], int]) -> list[int]:
    """The waits that a turn asks for until it has waited, each as `timeout_ns`; `away`: what is lost after each."""
    ctx = Context("a", 1, "z", clock)
    ctx.begin(journal=TurnJournal(SEED, None))
    coroutine: Any = ctx.sleep_until(datetime.fromtimestamp(due_ns / 10**9, UTC))
    found: JournalEntry | None = None
    asked: list[int] = []
    while True:
        try:
            stand = coroutine.send(found)
        except StopIteration:
            return asked
        ctx.take_segment()
        asked.append(stand.timeout_ns)
        clock.now += stand.timeout_ns + away(len(asked))
        found = msgspec.structs.replace(stand.waits, outcome=DONE)


@given(
    st.integers(0, 100 * 24 * 60).map(lambda minutes: minutes * MINUTE),
    st.lists(st.integers(0, 60 * 24), max_size=20),
)
def test_an_instant_is_waited_for_whatever_the_clock_does_meanwhile(wait_ns: int, jumps: list[int]) -> None:
    """Jumps, minutes, one after each wait: of a fleet that is down, goes on elsewhere, or has its clock put right."""
    start = 1_800_000_000 * 10**9
    clock = Steady(start)
    asked = waits_until(start + wait_ns, clock, lambda nth: jumps[nth - 1] * MINUTE if nth <= len(jumps) else 0)
    assert clock.now >= start + wait_ns, "never too early"
    last_jump = jumps[len(asked) - 1] * MINUTE if 0 < len(asked) <= len(jumps) else 0
    if not sum(jumps):
        assert clock.now == start + wait_ns, "and not too late"
    late = clock.now - (start + wait_ns)
    assert late <= last_jump, "what was lost before the last wait is not waited again"
    assert len(asked) <= 20, "a journal has few entries of it"


def test_an_instant_that_has_come_is_not_waited_for() -> None:
    clock = Steady(5 * MINUTE)
    assert not waits_until(4 * MINUTE, clock, lambda _: 0)


@pytest.mark.parametrize("instant", [datetime(2027, 1, 1), 5.0, "2027-01-01"])
async def test_an_instant_has_a_time_zone(instant: Any) -> None:
    ctx = Context("a", 1, "z", Steady(0))
    ctx.begin(journal=TurnJournal(SEED, None))
    with pytest.raises(snapline.UsageError, match=r"is no instant: it takes a datetime with a time zone"):
        await ctx.sleep_until(instant)


def test_an_effect_without_a_key_has_the_same_name_again_and_another_one_for_other_arguments() -> None:
    first, again, other = TurnJournal(SEED), TurnJournal(SEED), TurnJournal(b"another turn....")
    assert first.effect_id(b"pay 3") == again.effect_id(b"pay 3")
    assert len({first.effect_id(b"pay 3"), first.effect_id(b"pay 4"), other.effect_id(b"pay 3"), first.call_id()}) == 4
