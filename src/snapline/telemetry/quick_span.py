"""Cheap span for traced turns: the span is most of the cost of tracing a turn, and OpenTelemetry's own span takes thirty microseconds.

A `QuickSpan` only stores its data; the exporting thread makes a `ReadableSpan` of it. Handlers see it as the current span, and may add
attributes and events as usual. OpenTelemetry's limits do not apply to it, so `ATTRIBUTES_MAX` limits both.
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

ATTRIBUTES_MAX = 128
"""Largest number of attributes, and of events, of one span: OpenTelemetry's own limit."""

SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("snapline")


class QuickSpan(trace.Span):
    """Span of one traced turn; see the module.

    Attributes:
        name, kind, attributes, events, start_ns, end_ns: its exported fields; `end_ns` 0: it has not ended.
        parent: parent span; None: the span is the root of a trace.
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
        """`span`: id of the span; 0: a random id."""
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

    # ---- interface of OpenTelemetry's span --------------------------------------------------------------------------

    def get_span_context(self) -> trace.SpanContext:
        return self._context

    def is_recording(self) -> bool:
        return not self.end_ns

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        if self.is_recording() and (len(self.attributes) < ATTRIBUTES_MAX or key in self.attributes):
            self.attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        if self.is_recording() and len(self.events) < ATTRIBUTES_MAX:
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
        details = {
            "exception.type": type(exception).__qualname__,
            "exception.message": str(exception),
            "exception.stacktrace": "".join(traceback.format_exception(exception)),
        }
        self.add_event("exception", {**details, **(attributes or {})}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        """Record the end time; the starter of the span exports it."""
        self.end_ns = self.end_ns or end_time or time.time_ns()
