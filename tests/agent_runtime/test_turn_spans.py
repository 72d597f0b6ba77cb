"""Turns as spans: what is followed gets one, what it sends goes on in the same trace, and nobody else notices. By OpenTelemetry's own SDK."""

import asyncio
import random
from collections.abc import Iterator

import msgspec
import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs OpenTelemetry: pip install 'snapline[otel]'")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import snapline
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.host_spans import TracedTurnEnvironment, TurnPlace, TurnSpans
from snapline.agent_runtime.host.plans import creation_payload
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import (
    Traceparent,
    encode_message,
    read_tail,
    tail_of,
    with_tail,
    without_tail,
)
from snapline.messages.payloads import read_creation, split_message
from snapline.storage.packs.checkpoint import JournalEntry, SavedTurn
from snapline.telemetry.span_export import SpanExport

CALLER = Traceparent(0xA, 0xB, 9)


class Do(snapline.Message):
    what: str = ""


class Plan(snapline.Message):
    fails: bool = False


class Slow(snapline.Message):
    pass


class Seen(msgspec.Struct):
    spans: list[str] = []


def current() -> str:
    return f"{trace.get_current_span().get_span_context().span_id:x}"


class Worker(snapline.Agent):
    state: Seen

    @snapline.handler
    def on_do(self, message: Do, ctx: snapline.Context) -> None:
        self.state.spans.append(current())
        if message.what == "fail":
            raise ValueError("it went wrong")
        ctx.send("b", Do("sent"))
        ctx.set_timer("t", 1.0, Do("timer"))
        ctx.emit("news", Do("said"))
        ctx.spawn("c", Worker(Seen()))

    @snapline.handler
    async def on_slow(self, message: Slow, ctx: snapline.Context) -> None:
        await asyncio.sleep(0)
        await ctx.step("look", current)
        ctx.send("b", Do("slow"))

    @snapline.handler(durable=True)
    async def on_plan(self, message: Plan, ctx: snapline.Context) -> None:
        ctx.send("b", Do("early"))
        await ctx.step("look", current)
        if message.fails:
            raise ValueError("no")
        ctx.send("b", Do("late"))


class Seat:
    """One agent, run within spans."""

    def __init__(self, share: float = 0.0) -> None:
        self.told = InMemorySpanExporter()
        self.export = SpanExport(share, role="host", name="h1", exporter=self.told)
        self.reported: list[ev.TurnEnded | ev.TurnFailed] = []
        self.steps: list[ev.StepEnded] = []
        fleet = snapline.Fleet("workers", agents={"a": Worker(Seen())})
        self.turns = Turns(fleet, self._report, print, TracedTurnEnvironment(self.export), step_ended=self.steps.append)
        self.turns.add("a", Worker(Seen()))
        self.place = TurnPlace(3, False)
        self.spans = TurnSpans(self.export, self.turns.run, self.turns.type_of, lambda turn: self.place)

    def _report(self, event: ev.TurnEnded | ev.TurnFailed) -> None:
        self.reported.append(self.spans.ended(event))

    def run(self, payload: bytes, what: str = "message", **fields: object) -> ev.TurnEnded:
        ended = self.spans.run(ev.StartTurn("a", 1, what, "z", payload, **fields))  # type: ignore[arg-type]  # as they are named
        assert isinstance(ended, ev.TurnEnded), ended
        return ended

    def spans_told(self) -> list[ReadableSpan]:
        """When the queue has been emptied."""
        self.export.close()
        return list(self.told.get_finished_spans())

    def state(self) -> Seen:
        state = self.turns.object_of("a").state
        assert isinstance(state, Seen)
        return state


@pytest.fixture
def seat() -> Iterator[Seat]:
    made = Seat()
    yield made
    made.export.close()


def followed(message: object, of: Traceparent = CALLER) -> bytes:
    return with_tail(encode_message(message), of.tail())


def traced(payload: bytes) -> Traceparent:
    found = read_tail(tail_of(payload))
    assert found is not None, payload
    return found


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def test_a_turn_is_below_the_span_that_sent_its_message_and_its_messages_below_it(seat: Seat) -> None:
    ended = seat.run(followed(Do()))
    (span,) = seat.spans_told()
    assert span.context is not None and span.context.trace_id == CALLER.trace
    assert span.parent is not None and span.parent.span_id == CALLER.span
    assert span.name == "turn Do" and span.attributes is not None
    assert dict(span.attributes) == {
        "snapline.agent": "a",
        "snapline.sender": "z",
        "snapline.number": 3,
        "snapline.incarnation": 1,
    }
    after = Traceparent(CALLER.trace, id_of(span), CALLER.hops - 1)
    (_, sent), (_, _, timer), (_, said, _) = ended.sends[0], ended.timers[0], ended.outputs[0]
    assert [traced(payload) for payload in (sent, timer, said)] == [after] * 3
    assert without_tail(sent) == encode_message(Do("sent"))
    agent, kind, state = ended.spawns[0]
    created = creation_payload(kind, state)
    assert agent == "c" and traced(created) == after and read_creation(created)[0] == Worker.__module__ + ":Worker"
    assert seat.state().spans == [f"{id_of(span):x}"], "the handler sees it as the current one"


def test_what_nobody_follows_is_as_it_always_was(seat: Seat) -> None:
    ended = seat.run(encode_message(Do()))
    assert ended.sends == [("b", encode_message(Do("sent")))] and ended.spawns[0][1] == Worker.__module__ + ":Worker"
    assert seat.spans_told() == [] and seat.state().spans == ["0"]


def test_a_trace_ends_after_so_many_turns(seat: Seat) -> None:
    ended = seat.run(followed(Do(), CALLER._replace(hops=1)))
    assert ended.sends == [("b", encode_message(Do("sent")))] and len(seat.spans_told()) == 1


def test_a_turn_that_fails_says_why(seat: Seat) -> None:
    failed = seat.spans.run(ev.StartTurn("a", 1, "message", "z", followed(Do("fail"))))
    assert isinstance(failed, ev.TurnFailed)
    (span,) = seat.spans_told()
    assert (span.status.status_code, span.status.description) == (trace.StatusCode.ERROR, "ValueError: it went wrong")


async def test_a_turn_that_waits_ends_when_it_does_and_its_step_is_below_it(seat: Seat) -> None:
    assert seat.spans.run(ev.StartTurn("a", 1, "message", "z", followed(Slow()))) is None
    assert "a" in seat.spans.open and trace.get_current_span() is trace.INVALID_SPAN
    while not seat.reported:
        await asyncio.sleep(0)
    (ended,) = seat.reported
    step, turn = seat.spans_told()
    assert isinstance(ended, ev.TurnEnded) and traced(ended.sends[0][1]).span == id_of(turn)
    assert (step.name, turn.name) == ("step look", "turn Slow")
    assert step.parent is not None and step.parent.span_id == id_of(turn)


def test_a_durable_turn_is_one_span_over_its_incarnations() -> None:
    """The process that was killed in its middle told nothing of it; who goes on tells the same span."""
    payload = followed(Plan())
    ids, early = [], []
    for is_again in (False, True):
        seat = Seat()
        paused = seat.run(payload)
        assert paused.pause is not None
        early.append(traced(paused.sends[0][1]).span)
        if is_again:
            seat = Seat()
            begun = SavedTurn("message", "z", payload, paused.pause.seed, "", [], paused.pause.waits)
            paused = seat.run(payload, "segment", turn=begun)
            assert paused.sends == []
        assert paused.pause is not None
        waits = paused.pause.waits
        found = JournalEntry(waits.kind, waits.name, waits.digest, "done", msgspec.msgpack.encode("x"))
        ended = seat.run(payload, "segment", found=found)
        (span,) = seat.spans_told()
        assert traced(ended.sends[0][1]).span == id_of(span) == early[-1]
        assert span.attributes is not None and span.attributes.get("snapline.replayed", False) is is_again
        ids.append(id_of(span))
    assert ids[0] == ids[1]


def test_an_attempt_after_one_that_failed_has_a_span_of_its_own(seat: Seat) -> None:
    payload = followed(Plan(fails=True))
    for _ in range(2):
        paused = seat.run(payload)
        assert paused.pause is not None
        waits = paused.pause.waits
        found = JournalEntry(waits.kind, waits.name, waits.digest, "done", msgspec.msgpack.encode("x"))
        assert isinstance(seat.spans.run(ev.StartTurn("a", 1, "segment", "z", payload, found)), ev.TurnFailed)
    first, second = seat.spans_told()
    assert id_of(first) != id_of(second) and first.parent == second.parent


async def test_a_step_of_a_durable_turn_is_below_it(seat: Seat) -> None:
    seat.run(followed(Plan()))
    opened = seat.spans.open["a"]
    with trace.use_span(opened.span):
        seat.turns.run_step(ev.RunStep("a", 1, 0, "look"))
    while not seat.steps:
        await asyncio.sleep(0)
    (step,) = seat.spans_told()
    assert step.parent is not None and step.parent.span_id == opened.span.get_span_context().span_id
    assert msgspec.msgpack.decode(seat.steps[0].result) == f"{id_of(step):x}", "its thread is within it"


async def test_a_plan_tells_what_it_has_undone_but_no_durable_turn() -> None:
    waiting, standing = Seat(), Seat()
    waiting.spans.run(ev.StartTurn("a", 1, "message", "z", followed(Slow())))
    standing.run(followed(Plan()))
    for seat in (waiting, standing):
        seat.turns.forget_all()
        seat.spans.undone()
        assert seat.spans.open == {}
    (undone,) = waiting.spans_told()
    assert undone.status.description == "a recovery has undone it" and standing.spans_told() == []


@pytest.mark.parametrize("what", ["timer", "start"])
def test_a_share_of_what_an_agent_does_by_itself_begins_a_trace(what: str) -> None:
    random.seed(7)
    seat = Seat(share=0.25)
    for _ in range(400):
        seat.run(encode_message(Do()) if what == "timer" else b"", what)
    told = seat.spans_told()
    assert 60 < len(told) < 140 and all(span.parent is None for span in told)
    assert len({span.context.trace_id for span in told if span.context}) == len(told)


def test_a_message_between_agents_never_begins_one() -> None:
    """That was decided where it came from."""
    seat = Seat(share=1.0)
    seat.run(encode_message(Do()))
    assert seat.spans_told() == []


def test_an_input_without_a_trace_may_begin_one_and_keeps_it() -> None:
    seat = Seat(share=1.0)
    payload = seat.spans.take_input("a", encode_message(Do()))
    seat.run(payload, "input")
    came_in, turn = seat.spans_told()
    assert came_in.name == "input Do" and came_in.parent is None and split_message(payload)[0] == "Do"
    assert turn.parent is not None and turn.parent.span_id == id_of(came_in) == traced(payload).span


def test_an_input_that_brings_a_trace_keeps_it() -> None:
    seat = Seat(share=1.0)
    assert seat.spans.take_input("a", followed(Do())) == followed(Do()) and seat.spans_told() == []
    nobody = Seat(share=0.0)
    assert nobody.spans.take_input("a", encode_message(Do())) == encode_message(Do())
    nobody.export.close()
