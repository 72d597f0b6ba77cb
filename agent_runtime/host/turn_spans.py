"""OpenTelemetry spans of turns: one for each traced turn, whose messages continue the same trace.

Theory of operation. The message that begins a turn determines whether the turn is traced (`agent_runtime/message_encoding.py`); its span is a child of
the sender's. When the turn or a segment ends, its sends, spawns, outputs and timers get a tail that names this span; the core and the handler do not
see it. While the handler runs, the span is OpenTelemetry's current span, so spans of other libraries are its children.

*Recoveries.* A message keeps its tail, so a repeated turn has the same place in the same trace, with a new span and a higher incarnation. A durable
turn is one span over all incarnations: its id is derived from the message that began it. Only the process that ends the turn exports the span. So a
process killed during the turn leaves no gap: steps and messages of the turn are children of the span that its successor exports.

*Cost.* A turn that is not traced costs a check of its first byte. Without `--otel` there is no `TurnSpans` object.
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
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.failures import last_line
from snapline.agent_runtime.message_encoding import Traceparent, read_tail, tail_of, with_tail
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.messages.payloads import MARK, split_message
from snapline.telemetry.span_export import QuickSpan, SpanExport
from snapline.telemetry.spans import SpanIds

ROOTS = ("start", "timer")
"""Kinds of turns that may begin a trace here, since nobody sent them. The trace of an input begins where the input arrives."""

HEAD_BYTES = 320
"""Size of a payload's head in which any tail begins: the head of a call, or of a creation with a kind of ordinary length, and a name."""

OUTCOME_CHARACTERS_MAX = 300
"""Largest number of characters of an error in a span."""

AGENTS_REMEMBERED_MAX = 4096
"""Largest number of agents whose last durable turn is remembered: the next attempt follows a failed one soon."""

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
    """Traced turns of one host.

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
        self._last_spans: dict[str, int] = {}
        """Agent → last exported span of a durable turn: the next attempt after a failure needs another id."""

    # ---- inputs -----------------------------------------------------------------------------------------------------

    def take_input(self, agent: str, payload: bytes) -> bytes:
        """Return a message from outside in its stored form: a message without a trace may begin one."""
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
            outcome = self._run(turn)
        finally:
            contexts.detach(token)
        return self.ended(outcome) if isinstance(outcome, ev.TurnEnded | ev.TurnFailed) else outcome

    def _begin(self, turn: ev.StartTurn) -> FollowedTurn | None:
        durable_turn = turn.turn
        kind, sender, payload = (turn if durable_turn is None else durable_turn).what, turn.sender, turn.payload
        tail = tail_of(payload)
        parent = read_tail(tail) if tail else None
        if parent is None and (kind not in ROOTS or durable_turn is not None or random.random() >= self._export.share):
            return None
        name = _message_name(kind, payload)
        derived = 0 if parent is None else self._derived(turn, name, parent)
        place = self._place_of(turn)
        attributes: dict[str, AttributeValue] = {
            "snapline.agent": turn.agent,
            "snapline.sender": sender,
            "snapline.number": place.number,
            "snapline.incarnation": turn.incarnation,
        }
        if durable_turn is not None or place.is_again:
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
        seed = f"{parent.trace:x} {parent.span:x} {turn.agent} {turn.number}"
        derived = int.from_bytes(blake2b(seed.encode(), person=b"turn-span", digest_size=8).digest(), "big")
        return 0 if self._last_spans.get(turn.agent) == derived else derived

    def ended(self, event: ev.TurnEnded | ev.TurnFailed) -> ev.TurnEnded | ev.TurnFailed:
        """Return the event of a turn's, or a segment's, end, with all that it sends in its trace."""
        opened = self.open.get(event.agent)
        if opened is None or opened.incarnation != event.incarnation:
            return event
        if isinstance(event, ev.TurnFailed):
            description = last_line(event.error)[:OUTCOME_CHARACTERS_MAX]
            opened.span.set_status(trace.StatusCode.ERROR, description)
            self._end(event.agent, opened)
            return event
        if event.pause is None:
            self._end(event.agent, opened)
        return _followed(event, opened.tail) if opened.tail else event

    def _end(self, agent: str, opened: FollowedTurn) -> None:
        del self.open[agent]
        if opened.is_durable:
            self._last_spans[agent] = opened.span.get_span_context().span_id
            if len(self._last_spans) > AGENTS_REMEMBERED_MAX:
                del self._last_spans[next(iter(self._last_spans))]
        self._tell(opened.span)

    def undone(self) -> None:
        """Export the spans of turns that a plan has ended. A durable one is exported by the process that continues it."""
        opened, self.open = list(self.open.values()), {}
        self._last_spans.clear()
        for turn in opened:
            if not turn.is_durable:
                turn.span.set_status(trace.StatusCode.ERROR, "a recovery has undone it")
                self._tell(turn.span)

    def _tell(self, span: QuickSpan) -> None:
        span.end()
        self._export.queue.put(span)


HOPS_FIRST = Traceparent(0, 0).hops


def _traceparent(span: QuickSpan, hops: int = HOPS_FIRST) -> Traceparent:
    span_context = span.get_span_context()
    return Traceparent(span_context.trace_id, span_context.span_id, hops)


def current_trace() -> dict[str, object]:
    """Return the fields that name the present trace in a log line."""
    span_context = trace.get_current_span().get_span_context()
    return (
        {"trace_id": f"{span_context.trace_id:032x}", "span_id": f"{span_context.span_id:016x}"}
        if span_context.is_valid
        else {}
    )


def _message_name(what: str, payload: bytes) -> str:
    if what in ("start", "create"):
        return "on_start"
    return split_message(read_call(payload)[1])[0]


def _followed(event: ev.TurnEnded, tail: bytes) -> ev.TurnEnded:
    """Return the same event; all that leaves with it bears the tail."""
    kind = tail.decode()
    return msgspec.structs.replace(
        event,
        sends=[(receiver, with_tail(payload, tail)) for receiver, payload in event.sends],
        timers=[(name, delay_ns, with_tail(payload, tail)) for name, delay_ns, payload in event.timers],
        spawns=[(agent, spawned_kind + kind, state) for agent, spawned_kind, state in event.spawns],
        outputs=[(topic, with_tail(payload, tail), time_ns) for topic, payload, time_ns in event.outputs],
    )


class TracedTurnEnvironment(TurnEnvironment):
    """Steps and effects as spans below their turn's: one for each attempt."""

    def __init__(self, export: SpanExport) -> None:
        self._tracer = export.tracer

    async def step(self, name: str, function: Callable[[], Any]) -> Any:  # the function's own result
        if not trace.get_current_span().is_recording():
            return await super().step(name, function)
        kind = "effect" if contexts.get_value(EFFECT) else "step"
        with self._tracer.start_as_current_span(f"{kind} {name}", kind=trace.SpanKind.CLIENT):
            return await super().step(name, function)
