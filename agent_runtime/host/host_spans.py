"""Creates the OpenTelemetry spans of a host, for traced turns with their steps and effects, and for the host's part in epochs and
recoveries.

*Turns.* Each traced turn has one span, and the messages that it sends continue the same trace. The message that starts a turn determines
whether the turn is traced (`agent_runtime/message_encoding.py`). A turn's span is a child of the span in which its message was sent. When a
turn or a segment ends, a tail is appended to the messages, spawns, outputs and timers that it requested. The tail refers to the turn's
span. The core and the handlers do not read the tail. While the handler runs, the turn's span is OpenTelemetry's current span, so spans
created by other libraries become its children.

*Recoveries.* A message keeps its tail. A rerun turn therefore has the same parent in the same trace, but it has a new span and a higher
incarnation. A durable turn has a single span across all incarnations. The span's id is derived from the message that started the turn. Only
the process in which the durable turn ends exports its span. If a process is killed during the turn, there is no gap in the trace. The
turn's steps and messages are children of the span that a later process exports.

*Epochs and plans.* These spans are derived from the messages that the host sends to the coordinator, and are children of the coordinator's
spans. An epoch report contains consecutive durations, and the last of them ends when the report is sent. The whole span of an epoch is
therefore created when the report is sent.

*Cost.* If a turn is not traced, only the beginning of its message is searched for a tail. This module is imported only if spans are
exported. Without the option `--otel`, there is no `TurnSpans` object.
"""

import random
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.util.types import AttributeValue

from snapline.agent_runtime.agent import AgentType
from snapline.agent_runtime.durable import read_call
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.driver_interfaces import Execute, HostObserver, ObservedDriver
from snapline.agent_runtime.host.entries import InputEntry, MessageEntry
from snapline.agent_runtime.host.epoch_files import LoadedLine
from snapline.agent_runtime.host.failures import last_line
from snapline.agent_runtime.message_encoding import HOPS_MAX, Traceparent, read_tail, tail_of, with_tail
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.messages.host_messages import Directive, EpochReport, HostMessage, Plan, PlanApplied, Welcome
from snapline.messages.payloads import MARK, split_message
from snapline.telemetry.span_export import QuickSpan, SpanExport, SpanIds, checkpoint_ids, context_of, recovery_ids

ROOTS = ("start", "timer")
"""Kinds of turns that may start a trace, since no message from elsewhere started them. The trace of an input starts where the input
arrives."""

HEAD_BYTES = 320
"""Size of the head of a payload that is searched for a tail. It is enough for the wrapper of a call and a name, or for a creation message
with a kind of ordinary length."""

OUTCOME_CHARACTERS_MAX = 300
"""Largest number of characters of an error that a span contains."""

AGENTS_REMEMBERED_MAX = 4096
"""Largest number of agents whose last durable turn is remembered. This is enough, since a failed attempt is soon followed by the next
attempt."""

EFFECT = contexts.create_key("snapline-effect")


class TurnPlace(NamedTuple):
    """The number of the message or input that a turn consumes, or 0 if the turn consumes neither. `is_again` is set if the recovery line
    that was restored contained the message or input."""

    number: int
    is_again: bool


class FollowedTurn(NamedTuple):
    """A traced turn that has started and has not ended yet."""

    span: QuickSpan
    context: contexts.Context
    tail: bytes
    incarnation: int
    is_durable: bool


class TurnSpans:
    """Creates the spans of a host's traced turns.

    Attributes:
        open: traced turns that have started and have not ended yet, by agent.
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
        """Last exported span of a durable turn, by agent. It is remembered because the next attempt after a failure needs a different
        id."""

    # ---- inputs -----------------------------------------------------------------------------------------------------

    def take_input(self, agent: str, payload: bytes) -> bytes:
        """Return an input in the form in which it is logged. If the input is not traced yet, a new trace may begin with it."""
        if tail_of(payload) or random.random() >= self._export.share:
            return payload
        name, _ = split_message(payload)
        span = QuickSpan(f"input {name}", trace.SpanKind.PRODUCER, None, {"snapline.agent": agent})
        self._tell(span)
        return with_tail(payload, _traceparent(span).tail())

    # ---- turns ------------------------------------------------------------------------------------------------------

    def run(self, turn: ev.StartTurn) -> ev.Event | None:
        """Run a turn or a segment. If the turn is traced, run it within its span. For a turn that is not traced, the check takes about a
        tenth of a microsecond."""
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
        after = _traceparent(span, HOPS_MAX if parent is None else parent.hops - 1)
        context = trace.set_span_in_context(span)
        opened = FollowedTurn(span, context, after.tail(), turn.incarnation, bool(derived))
        self.open[turn.agent] = opened
        return opened

    def _derived(self, turn: ev.StartTurn, name: str, parent: Traceparent) -> int:
        """Return the derived id of a durable turn's span, or 0 if the span must have a random id."""
        known = self._type_of(turn.agent)
        handler = None if known is None else known.handlers.get(name)
        if handler is None or not handler.is_durable:
            return 0
        seed = f"{parent.trace:x} {parent.span:x} {turn.agent} {turn.number}"
        derived = int.from_bytes(blake2b(seed.encode(), person=b"turn-span", digest_size=8).digest(), "big")
        return 0 if self._last_spans.get(turn.agent) == derived else derived

    def ended(self, event: ev.TurnEnded | ev.TurnFailed) -> ev.TurnEnded | ev.TurnFailed:
        """Handle the end of a turn or a segment. Return the event, with the trace's tail added to all messages, spawns, outputs and
        timers."""
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
            self._last_spans[agent] = opened.span.ids.span
            if len(self._last_spans) > AGENTS_REMEMBERED_MAX:
                del self._last_spans[next(iter(self._last_spans))]
        self._tell(opened.span)

    def undone(self) -> None:
        """Export the spans of the turns that a plan has ended. The span of a durable turn is exported later, by the process in which the
        turn ends."""
        opened, self.open = list(self.open.values()), {}
        self._last_spans.clear()
        for turn in opened:
            if not turn.is_durable:
                turn.span.set_status(trace.StatusCode.ERROR, "a recovery has undone it")
                self._tell(turn.span)

    def _tell(self, span: QuickSpan) -> None:
        span.end()
        for each in (*span.children, span):
            if each.end_ns:
                self._export.queue.put(each)


def _traceparent(span: QuickSpan, hops: int = HOPS_MAX) -> Traceparent:
    return Traceparent(span.ids.trace, span.ids.span, hops)


def current_trace() -> dict[str, object]:
    """Return log fields that identify the current trace and span. If there is no current span, return no fields."""
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
    """Return the event with the tail added to all its messages, timers, spawns and outputs."""
    kind = tail.decode()
    return msgspec.structs.replace(
        event,
        sends=[(receiver, with_tail(payload, tail)) for receiver, payload in event.sends],
        timers=[(name, delay_ns, with_tail(payload, tail)) for name, delay_ns, payload in event.timers],
        spawns=[(agent, spawned_kind + kind, state) for agent, spawned_kind, state in event.spawns],
        outputs=[(topic, with_tail(payload, tail), time_ns) for topic, payload, time_ns in event.outputs],
    )


class TracedTurnEnvironment(TurnEnvironment):
    """A turn environment that creates a span for each attempt of a step or an effect, as a child of the turn's span."""

    def __init__(self, export: SpanExport) -> None:
        self._queue = export.queue

    async def step(self, name: str, function: Callable[[], Any]) -> Any:  # the function's own result
        outer = trace.get_current_span()
        if not outer.is_recording():
            return await super().step(name, function)
        kind, above = "effect" if contexts.get_value(EFFECT) else "step", outer.get_span_context()
        span = QuickSpan(f"{kind} {name}", trace.SpanKind.CLIENT, SpanIds(above.trace_id, above.span_id), {})
        try:
            with trace.use_span(span):
                return await super().step(name, function)
        finally:
            span.end()
            self._queue.put(span)


EPOCHS_KEPT = 64
"""Number of reported epochs that are remembered, since reports may be repeated. Few epochs are open at a time."""


class HostSpans:
    """Creates the spans for a host's part in epochs and recoveries."""

    def __init__(self, export: SpanExport) -> None:
        self._export = export
        self._store = ""
        self._reported: dict[int, None] = {}
        self._plan: Plan | None = None
        self._plan_ns = 0

    def directive_received(self, directive: Directive) -> None:
        """Record the data in a directive that later spans need."""
        if isinstance(directive, Welcome):
            self._store = directive.cluster
        elif isinstance(directive, Plan) and (self._plan is None or directive.number > self._plan.number):
            self._plan, self._plan_ns = directive, time.time_ns()

    def said(self, message: HostMessage) -> None:
        """Create the span that a message to the coordinator completes, if any."""
        if isinstance(message, EpochReport) and message.epoch not in self._reported:
            self._reported[message.epoch] = None
            if len(self._reported) > EPOCHS_KEPT:
                del self._reported[next(iter(self._reported))]
            self._tell_part(message, time.time_ns())
        elif isinstance(message, PlanApplied) and self._plan is not None and message.plan == self._plan.number:
            self._tell_load(self._plan, time.time_ns())

    def _tell_part(self, report: EpochReport, end_ns: int) -> None:
        closed_ns = end_ns - report.store_ns
        recorded_ns = closed_ns - report.alignment_ns
        begun_ns = recorded_ns - report.slowest_capture_ns - report.start_delay_ns
        parent = context_of(checkpoint_ids(self._store, report.epoch))
        span = self._export.begin(
            "host.checkpoint",
            under=parent,
            start_ns=begun_ns,
            attributes={
                "snapline.epoch": report.epoch,
                "snapline.agents": len(report.agents),
                "snapline.new_bytes": report.new_bytes,
                "snapline.channel_state_messages": report.channel_state_messages,
                "snapline.capture_max_ns": report.capture_ns,
            },
        )
        span.add_event("recorded", timestamp=recorded_ns)
        span.add_event("channels closed", timestamp=closed_ns)
        span.add_event("stored", timestamp=end_ns)
        if report.slowest:
            agent = self._export.begin(
                "agent.checkpoint",
                under=span.get_span_context(),
                start_ns=recorded_ns - report.slowest_capture_ns,
                attributes={"snapline.epoch": report.epoch, "snapline.agent": report.slowest},
            )
            agent.end(recorded_ns)
        span.end(end_ns)

    def _tell_load(self, plan: Plan, end_ns: int) -> None:
        self._plan_ns, begun_ns = 0, self._plan_ns
        if not begun_ns:
            return  # a repeated report
        span = self._export.begin(
            "host.recovery",
            under=context_of(recovery_ids(self._store, plan.number)),
            start_ns=begun_ns,
            attributes={"snapline.plan": plan.number, "snapline.line_epoch": plan.line_epoch},
        )
        span.end(end_ns)


class SpanObserver(HostObserver):
    """An observer of a host's driver that creates spans for turns, steps and effects."""

    spans: TurnSpans

    def __init__(self, export: SpanExport) -> None:
        self._export = export
        self._restored: dict[tuple[str, str], int] = {}
        """Number of the last message that the plan's recovery line contains in transit, or of the last input in the logs, by agent and
        sender ("" for inputs)."""

    def attached(self, driver: ObservedDriver) -> None:
        self._core = driver.core
        self.spans = TurnSpans(self._export, driver.turns.run, driver.turns.type_of, self._place_of)
        driver.wrap_turns(lambda _: self.spans.run)

    def commands(self) -> Mapping[type[ev.HostOutput], Callable[[Any, Execute], None]]:
        return {ev.RunStep: self._within_turn, ev.RunEffect: self._within_turn, ev.CancelTurns: self._cancel_turns}

    def turn_ended(self, event: ev.TurnEnded | ev.TurnFailed) -> ev.TurnEnded | ev.TurnFailed:
        return self.spans.ended(event)

    def _within_turn(self, command: ev.RunStep, execute: Execute) -> None:
        """Start a step or an effect within the span of its turn."""
        opened = self.spans.open.get(command.agent)
        if opened is None:
            execute(command)
            return
        within = contexts.set_value(EFFECT, isinstance(command, ev.RunEffect), opened.context)
        token = contexts.attach(within)
        try:
            execute(command)
        finally:
            contexts.detach(token)

    def _cancel_turns(self, command: ev.CancelTurns, execute: Execute) -> None:
        self.spans.undone()
        execute(command)

    def line_loaded(self, command: ev.LoadAgents, outcome: LoadedLine | ev.LoadFailed) -> None:
        if isinstance(outcome, LoadedLine) and command.plan == self._core.plan:
            self._restored = _restored(outcome)

    def _place_of(self, turn: ev.StartTurn) -> TurnPlace:
        agent = self._core.agents.get(turn.agent)
        entry = None if agent is None else agent.current
        match entry:
            case MessageEntry():
                number, sender = entry.inlet.consumed + 1, entry.inlet.sender
            case InputEntry():
                number, sender = entry.input.number, ""
            case _:
                return TurnPlace(0, False)
        return TurnPlace(number, number <= self._restored.get((turn.agent, sender), 0))


def _restored(line: LoadedLine) -> dict[tuple[str, str], int]:
    newest = {(item.agent, ""): item.number for item in line.logged.inputs}
    for loaded in line.agents:
        if loaded.checkpoint is not None:
            for sender, messages in loaded.checkpoint.in_transit.items():
                if messages:
                    newest[loaded.agent, sender] = messages[-1].number
    return newest
