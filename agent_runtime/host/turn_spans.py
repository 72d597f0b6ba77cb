"""OpenTelemetry spans of turns: one for each that is traced, and its messages continue the same trace.

Theory of operation. The message that begins a turn says whether it is traced (`agent_runtime/traceparents.py`), and its span is below the sender's.
All that the turn sends, spawns, emits and sets timers for gets a tail that names this span, when the turn, or a segment of it, has ended: the core
and the handler know nothing of it. While the handler runs the span is OpenTelemetry's current one, so what other libraries do is below it.

*Recoveries.* A message keeps its tail, so a repeated turn has the same place in the same trace, with a span of its own and a higher incarnation. A
durable turn is one span over all incarnations: its id follows from the message that began it. Only the process that ends it exports it, so one that
was killed in its middle leaves no gap: steps and messages of the turn are below the span that its successor exports.

*A turn that is not traced* costs a look at its first byte, and the process without `--otel` not even that: there is no such object.
"""

import random
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.util.types import AttributeValue

from snapline.agent_runtime.agent import AgentType
from snapline.agent_runtime.durable import read_call
from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.failures import last_line
from snapline.agent_runtime.outside import Outside
from snapline.agent_runtime.traceparents import Traceparent, read_tail, tail_of, with_tail
from snapline.messages.payloads import MARK, split_message
from snapline.telemetry.quick_span import QuickSpan
from snapline.telemetry.span_export import SpanExport
from snapline.telemetry.span_ids import SpanIds

ROOTS = ("start", "timer")
"""Kinds of turns with which a trace may begin here: nobody sent them. An input's begins where it comes in."""

HEAD_BYTES = 320
"""Size of a payload's head in which a tail begins if there is one: a call's head, or a creation's with a kind of ordinary length, and a name."""

OUTCOME_CHARACTERS_MAX = 300
"""Largest number of characters of an error in a span."""

TOLD_MAX = 4096
"""Largest number of agents whose last durable turn is remembered: an attempt that follows one that failed comes soon after it."""

EFFECT = contexts.create_key("snapline-effect")


class TurnPlace(NamedTuple):
    """Number of the channel's message, or of the input, that a turn takes; 0: neither. `is_again`: it was in the line that was restored."""

    number: int
    is_again: bool


class FollowedTurn(NamedTuple):
    """A turn that has begun and not ended."""

    span: QuickSpan
    context: contexts.Context
    tail: bytes
    incarnation: int
    is_durable: bool


class TurnSpans:
    """The turns of one host that are traced.

    Attributes:
        open: traced turns that have not ended, by agent.
    """

    def __init__(
        self,
        export: SpanExport,
        run: Callable[[ev.StartTurn], ev.Event | None],
        type_of: Callable[[str], AgentType | None],
        place_of: Callable[[ev.StartTurn], TurnPlace],
    ) -> None:
        self.open: dict[str, FollowedTurn] = {}
        self._export = export
        self._run = run
        self._type_of = type_of
        self._place_of = place_of
        self._told: dict[str, int] = {}
        """Spans exported last of durable turns, by agent: an attempt after one that failed needs another id."""

    # ---- inputs -----------------------------------------------------------------------------------------------------

    def take_input(self, agent: str, payload: bytes) -> bytes:
        """Return a message from outside as it is to be kept: one that brings no trace may begin one."""
        if tail_of(payload) or random.random() >= self._export.share:
            return payload
        name, _ = split_message(payload)
        span = QuickSpan(f"input {name}", trace.SpanKind.PRODUCER, None, {"snapline.agent": agent})
        self._tell(span)
        return with_tail(payload, _traceparent(span).tail())

    # ---- turns ------------------------------------------------------------------------------------------------------

    def run(self, turn: ev.StartTurn) -> ev.Event | None:
        """Run a turn, or a segment of one, within its span. Most are not traced, and that check takes a tenth of a microsecond."""
        if turn.what == "message" and turn.payload.find(MARK, 0, HEAD_BYTES) < 0:
            return self._run(turn)
        opened = self.open.get(turn.agent) if turn.what == "segment" and turn.turn is None else self._begin(turn)
        if opened is None:
            return self._run(turn)
        token = contexts.attach(opened.context)
        try:
            ended = self._run(turn)
        finally:
            contexts.detach(token)
        return self.ended(ended) if isinstance(ended, ev.TurnEnded | ev.TurnFailed) else ended

    def _begin(self, turn: ev.StartTurn) -> FollowedTurn | None:
        begun = turn.turn
        what, sender, payload = (turn if begun is None else begun).what, turn.sender, turn.payload
        tail = tail_of(payload)
        parent = read_tail(tail) if tail else None
        if parent is None and (what not in ROOTS or begun is not None or random.random() >= self._export.share):
            return None
        name = _message_name(what, payload)
        derived = 0 if parent is None else self._derived(turn, name, parent)
        place = self._place_of(turn)
        attributes: dict[str, AttributeValue] = {
            "snapline.agent": turn.agent,
            "snapline.sender": sender,
            "snapline.number": place.number,
            "snapline.incarnation": turn.incarnation,
        }
        if begun is not None or place.is_again:
            attributes["snapline.replayed"] = True
        above = None if parent is None else SpanIds(parent.trace, parent.span)
        span = QuickSpan(f"turn {name}", trace.SpanKind.CONSUMER, above, attributes, span=derived)
        after = _traceparent(span, HOPS_FIRST if parent is None else parent.hops - 1)
        context = trace.set_span_in_context(span)
        opened = FollowedTurn(span, context, after.tail(), turn.incarnation, bool(derived))
        self.open[turn.agent] = opened
        return opened

    def _derived(self, turn: ev.StartTurn, name: str, parent: Traceparent) -> int:
        """Return the id of a durable turn's span; 0: it is drawn."""
        known = self._type_of(turn.agent)
        handler = None if known is None else known.handlers.get(name)
        if handler is None or not handler.is_durable:
            return 0
        of = f"{parent.trace:x} {parent.span:x} {turn.agent} {turn.number}"
        derived = int.from_bytes(blake2b(of.encode(), person=b"turn-span", digest_size=8).digest(), "big")
        return 0 if self._told.get(turn.agent) == derived else derived

    def ended(self, event: ev.TurnEnded | ev.TurnFailed) -> ev.TurnEnded | ev.TurnFailed:
        """Return the event of a turn's, or a segment's, end, with all that it sends in its trace."""
        opened = self.open.get(event.agent)
        if opened is None or opened.incarnation != event.incarnation:
            return event
        if isinstance(event, ev.TurnFailed):
            said = last_line(event.error)[:OUTCOME_CHARACTERS_MAX]
            opened.span.set_status(trace.StatusCode.ERROR, said)
            self._end(event.agent, opened)
            return event
        if event.pause is None:
            self._end(event.agent, opened)
        return _followed(event, opened.tail) if opened.tail else event

    def _end(self, agent: str, opened: FollowedTurn) -> None:
        del self.open[agent]
        if opened.is_durable:
            self._told[agent] = opened.span.get_span_context().span_id
            if len(self._told) > TOLD_MAX:
                del self._told[next(iter(self._told))]
        self._tell(opened.span)

    def undone(self) -> None:
        """Export the spans of turns that a plan has ended. A durable one is exported by the process that continues it."""
        opened, self.open = list(self.open.values()), {}
        self._told.clear()
        for each in opened:
            if not each.is_durable:
                each.span.set_status(trace.StatusCode.ERROR, "a recovery has undone it")
                self._tell(each.span)

    def _tell(self, span: QuickSpan) -> None:
        span.end()
        self._export.queue.put(span)


HOPS_FIRST = Traceparent(0, 0).hops


def _traceparent(span: QuickSpan, hops: int = HOPS_FIRST) -> Traceparent:
    of = span.get_span_context()
    return Traceparent(of.trace_id, of.span_id, hops)


def current_trace() -> dict[str, object]:
    """Return the fields that name the present trace in a log line."""
    of = trace.get_current_span().get_span_context()
    return {"trace_id": f"{of.trace_id:032x}", "span_id": f"{of.span_id:016x}"} if of.is_valid else {}


def _message_name(what: str, payload: bytes) -> str:
    if what in ("start", "create"):
        return "on_start"
    return split_message(read_call(payload)[1])[0]


def _followed(event: ev.TurnEnded, tail: bytes) -> ev.TurnEnded:
    """Return the same event; all that leaves with it bears the tail."""
    kind = tail.decode()
    return msgspec.structs.replace(
        event,
        sends=[(to, with_tail(payload, tail)) for to, payload in event.sends],
        timers=[(name, delay_ns, with_tail(payload, tail)) for name, delay_ns, payload in event.timers],
        spawns=[(agent, of + kind, state) for agent, of, state in event.spawns],
        outputs=[(topic, with_tail(payload, tail), time_ns) for topic, payload, time_ns in event.outputs],
    )


class TracedEnvironment(Outside):
    """Steps and effects as spans below their turn's: one for each attempt."""

    def __init__(self, export: SpanExport) -> None:
        self._tracer = export.tracer

    async def step(self, name: str, function: Callable[[], Any]) -> Any:  # the function's own result
        if not trace.get_current_span().is_recording():
            return await super().step(name, function)
        what = "effect" if contexts.get_value(EFFECT) else "step"
        with self._tracer.start_as_current_span(f"{what} {name}", kind=trace.SpanKind.CLIENT):
            return await super().step(name, function)
