"""A span of which there are many: what a turn costs that is followed is mostly its span, and OpenTelemetry's own takes thirty microseconds.

It notes what it is told and nothing else; the thread that exports makes a `ReadableSpan` of it. Handlers see it as the current span, and may say
things of it as of any other; OpenTelemetry's limits on how much may be said do not hold, so `SAID_MAX` does.
"""

import random
import time
import traceback
from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace.status import Status, StatusCode
from opentelemetry.util.types import Attributes, AttributeValue

from snapline.telemetry.span_ids import SpanIds

SAID_MAX = 128
"""Attributes, and events, of one span: OpenTelemetry's own limit."""

SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("snapline")


class QuickSpan(trace.Span):
    """See the module.

    Attributes:
        name, kind, attributes, events, start_ns, end_ns: its exported fields; `end_ns` 0: it has not ended.
        parent: None: a trace begins with it.
    """

    __slots__ = ("_context", "_status", "attributes", "end_ns", "events", "kind", "name", "parent", "start_ns")

    def __init__(
        self,
        name: str,
        kind: trace.SpanKind,
        parent: SpanIds | None,
        attributes: dict[str, AttributeValue],
        *,
        span: int = 0,
    ) -> None:
        """`span`: its id; 0: it is drawn."""
        self.name, self.kind, self.parent, self.attributes = name, kind, parent, attributes
        self.events: list[Event] = []
        self.start_ns, self.end_ns = time.time_ns(), 0
        self._status = Status()
        trace_id = random.getrandbits(128) | 1 if parent is None else parent.trace
        self._context = trace.SpanContext(trace_id, span or random.getrandbits(64) | 1, False, SAMPLED)

    def readable(self, resource: Resource) -> ReadableSpan:
        """Return the span for an exporter."""
        own, parent = self._context, self.parent
        above = None if parent is None else trace.SpanContext(parent.trace, parent.span, True, SAMPLED)
        return ReadableSpan(
            self.name, own, above, resource, self.attributes, self.events, (), self.kind, None, self._status, self.start_ns,
            self.end_ns, _SCOPE,
        )  # fmt: skip

    # ---- what OpenTelemetry asks of a span --------------------------------------------------------------------------

    def get_span_context(self) -> trace.SpanContext:
        return self._context

    def is_recording(self) -> bool:
        return not self.end_ns

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        if self.is_recording() and (len(self.attributes) < SAID_MAX or key in self.attributes):
            self.attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        if self.is_recording() and len(self.events) < SAID_MAX:
            self.events.append(Event(name, BoundedAttributes(attributes=attributes), timestamp))

    def update_name(self, name: str) -> None:
        self.name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        self._status = status if isinstance(status, Status) else Status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        said = {
            "exception.type": type(exception).__qualname__,
            "exception.message": str(exception),
            "exception.stacktrace": "".join(traceback.format_exception(exception)),
        }
        self.add_event("exception", {**said, **(attributes or {})}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        """Record the end time; the starter of the span exports it."""
        self.end_ns = self.end_ns or end_time or time.time_ns()
