"""Export the spans of a process to a collector, using a bounded queue and one exporting thread.

Theory of operation. Each ended span is put into a queue, and the call never blocks. If the queue is full, the span is dropped and the drop
is counted. One thread takes batches of spans from the queue and passes them to OpenTelemetry's exporter, which may wait indefinitely for a
collector. So a slow or missing collector causes lost spans and no other harm. OpenTelemetry's own span processor drops the oldest spans
without reporting how many. It also starts a thread in every forked child process, which children that capture state must not have.

Two tracer providers share the queue. Snapline's own tracer provider accepts every span, since the sampling decision was made when the
request arrived. The second provider serves libraries that handlers use, if the program has set no provider, and exports their spans only
within traced turns.

Most of the cost of tracing a turn is the span itself: OpenTelemetry's own span takes thirty microseconds. So a traced turn and its steps use
a `QuickSpan`, which only stores its data. The exporting thread converts the `QuickSpan` to a `ReadableSpan`. Within a handler, the
`QuickSpan` is the current span, and the handler may add attributes and events as usual. OpenTelemetry's limits do not apply to a
`QuickSpan`, so `ATTRIBUTES_MAX` limits the number of its attributes and events.

Several processes report spans of the same epoch or recovery, and these spans form one trace. The ids of this trace are derived from the
store's id and the number of the epoch or plan, so the processes need not exchange them.
"""

import logging
import os
import random
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec
from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace.status import Status, StatusCode
from opentelemetry.util.types import Attributes, AttributeValue

from snapline.errors import UsageError

if TYPE_CHECKING:
    import requests

ANSWER_BYTES_MAX = 64 * 1024
"""Maximum size of a collector's answer. An answer contains little more than the number of accepted spans."""

ATTRIBUTES_MAX = 128
"""Maximum number of attributes of one span, and also of its events. OpenTelemetry has the same limit."""

SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("snapline")


class SpanIds(msgspec.Struct, frozen=True):
    """Id of a span, and id of its trace."""

    trace: int
    span: int


def checkpoint_ids(store: str, epoch: int) -> SpanIds:
    """Return the ids of the span for an epoch."""
    return _derived("checkpoint", store, epoch)


def recovery_ids(store: str, plan: int) -> SpanIds:
    """Return the ids of the span for a recovery."""
    return _derived("recovery", store, plan)


def _derived(what: str, store: str, number: int) -> SpanIds:
    digest = blake2b(f"{what} {store} {number}".encode(), person=b"span", digest_size=24).digest()
    return SpanIds(int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big"))


class QuickSpan(trace.Span):
    """Fast span for a traced turn. The module docstring gives the reason.

    Attributes:
        name, kind, attributes, events, start_ns, end_ns: values that are exported. `end_ns` is 0 until the span ends.
        parent: parent span, or None if the span is the root of a trace.
        children: spans within a turn's span, of any depth, that are exported with it.
    """

    __slots__ = (
        "_context",
        "_status",
        "attributes",
        "children",
        "end_ns",
        "events",
        "kind",
        "name",
        "parent",
        "start_ns",
    )

    def __init__(
        self,
        name: str,
        kind: trace.SpanKind,
        parent: SpanIds | None,
        attributes: dict[str, AttributeValue],
        *,
        span: int = 0,
    ) -> None:
        """Create the span. `span` is the id of the span, or 0 for a random id."""
        self.name, self.kind, self.parent, self.attributes = name, kind, parent, attributes
        self.events: list[Event] = []
        self.children: list[QuickSpan] = []
        self.start_ns, self.end_ns = time.time_ns(), 0
        self._status = Status()
        trace_id = random.getrandbits(128) | 1 if parent is None else parent.trace
        self._context = trace.SpanContext(trace_id, span or random.getrandbits(64) | 1, False, SAMPLED)

    @property
    def ids(self) -> SpanIds:
        """Ids of the span and its trace."""
        return SpanIds(self._context.trace_id, self._context.span_id)

    def begin_child(self, name: str) -> "QuickSpan | None":
        """Start a span that is exported with the turn's span, or return None if the turn has `ATTRIBUTES_MAX` such spans. The span has a
        derived id, because a rerun of the turn starts the same spans in the same order."""
        if len(self.children) >= ATTRIBUTES_MAX:
            return None
        seed = f"{self.ids.trace:x} {self.ids.span:x} {len(self.children)}"
        derived = int.from_bytes(blake2b(seed.encode(), person=b"child-span", digest_size=8).digest(), "big")
        child = QuickSpan(name, trace.SpanKind.INTERNAL, self.ids, {}, span=derived)
        child.children = self.children
        self.children.append(child)
        return child

    def readable(self, resource: Resource) -> ReadableSpan:
        """Convert the span to the form that exporters accept."""
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
        """Record the end time. The code that started the span must export it."""
        self.end_ns = self.end_ns or end_time or time.time_ns()


log = logging.getLogger("snapline.spans")

QUEUE_SPANS_MAX = 8192
"""Maximum number of queued spans. A full queue takes about 20 MB, and is long enough for a busy host while a collector restarts."""

BATCH_SPANS_MAX = 512
"""Maximum number of spans in a batch, as in OpenTelemetry's own processor."""

DELAY_S = 1.0
"""Maximum time that a span waits for other spans of its batch. A request to a collector takes two milliseconds, even if it has few spans.

A process that is killed loses the spans that ended within this time. OpenTelemetry's default of 5 s would lose too much of a recovery.
"""

CLOSE_S_MAX = 2.0
"""Maximum wait for the export of the remaining spans when a process ends."""

SERVICE = "snapline"

CREDENTIAL_PROVIDERS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)
"""Environment variables that make OpenTelemetry use its own session, which reads answers without a size limit."""


class IdentityHashedResource(Resource):
    """Resource with a cheap hash. OpenTelemetry's encoder hashes the resource for every span, and the inherited hash would convert the
    resource to JSON each time."""

    def __hash__(self) -> int:
        return id(self)


class SpanQueue(SpanProcessor):
    """Bounded queue of ended spans, with the thread that exports them.

    Attributes:
        exported, dropped: number of spans exported and dropped so far. A span is dropped if the queue is full or the collector rejects it.
    """

    def __init__(self, exporter: SpanExporter, resource: Resource) -> None:
        self.exported = self.dropped = 0
        self._exporter = exporter
        self._resource = resource
        self._waiting: deque[ReadableSpan | QuickSpan] = deque()
        self._is_closed = False
        self._is_failing = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapline-spans", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        """Queue an ended span. OpenTelemetry calls this method on any thread."""
        context = span.context
        if context is not None and context.trace_flags.sampled:
            self.put(span)

    def put(self, span: ReadableSpan | QuickSpan) -> None:
        """Queue an ended span. This method is thread-safe."""
        if len(self._waiting) >= QUEUE_SPANS_MAX or self._is_closed:
            self.dropped += 1
            return
        self._waiting.append(span)
        if len(self._waiting) >= BATCH_SPANS_MAX:
            self._wake.set()

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.wait(DELAY_S)
            self._wake.clear()
            self._export()
        self._export()

    def _export(self) -> None:
        while self._waiting:
            ended = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_SPANS_MAX))]
            try:
                batch = [x.readable(self._resource) if isinstance(x, QuickSpan) else x for x in ended]
                is_taken = self._exporter.export(batch) is SpanExportResult.SUCCESS
            except Exception as error:  # an exporter may raise anything
                log.debug("an exporter of spans failed: %s", error)
                is_taken = False
            self._count(len(ended), is_taken=is_taken)

    def _count(self, spans: int, *, is_taken: bool) -> None:
        """Count exported or dropped spans of a batch. Only the beginning and the end of a failure are logged, since a collector may be
        unavailable for days."""
        if is_taken:
            self.exported += spans
        else:
            self.dropped += spans
        if self._is_failing is is_taken:
            self._is_failing = not is_taken
            change = "accepts spans again" if is_taken else "does not take spans: they are dropped until it does"
            log.warning("the collector %s (%d dropped so far)", change, self.dropped)

    def shutdown(self) -> None:
        """Export the remaining spans and stop the thread, which takes at most `CLOSE_S_MAX` seconds."""
        self._is_closed = True
        self._wake.set()
        self._thread.join(CLOSE_S_MAX)
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        self._wake.set()
        return True


class PresetIdGenerator(RandomIdGenerator):
    """Generator of random span ids. The caller can set the ids of the next span."""

    def __init__(self) -> None:
        self._next = threading.local()

    def preset(self, *, span: int, trace: int = 0) -> None:
        """Set the ids of the span that this thread starts next. For an id of 0, a random id is generated."""
        self._next.span, self._next.trace = span, trace

    def generate_span_id(self) -> int:
        span_id: int = getattr(self._next, "span", 0)
        self._next.span = 0
        return span_id or super().generate_span_id()

    def generate_trace_id(self) -> int:
        trace_id: int = getattr(self._next, "trace", 0)
        self._next.trace = 0
        return trace_id or super().generate_trace_id()


class SpanExport:
    """Traces the requests and turns of one process.

    Attributes:
        share: fraction of requests without a trace for which a new trace is started.
        tracer: tracer that exports every span.
        queue: ended spans that are waiting for export.
        resource: identification of this process, which is attached to each span.
    """

    def __init__(self, share: float, *, role: str, name: str, exporter: SpanExporter | None = None) -> None:
        self.share = share
        self._ids = PresetIdGenerator()
        defaults = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": SERVICE}
        resource_found = Resource.create({**defaults, "service.instance.id": name, "snapline.role": role})
        self.resource = IdentityHashedResource(resource_found.attributes, resource_found.schema_url)
        self.queue = SpanQueue(exporter or _exporter(), self.resource)
        self._own_provider = TracerProvider(ALWAYS_ON, self.resource, shutdown_on_exit=False, id_generator=self._ids)
        self._own_provider.add_span_processor(self.queue)
        self.tracer = self._own_provider.get_tracer("snapline")
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            trace.set_tracer_provider(_library_provider(self.queue, self.resource))

    def begin(
        self,
        name: str,
        *,
        under: trace.SpanContext | None = None,
        ids: SpanIds | None = None,
        span: int = 0,
        start_ns: int | None = None,
        kind: trace.SpanKind = trace.SpanKind.INTERNAL,
        attributes: dict[str, str | int | float | bool] | None = None,
        links: tuple[SpanIds, ...] = (),
    ) -> trace.Span:
        """Start a span whose parent is `under`. If `under` is None, start the root span of a trace, with `ids` if given. `span` is the
        span's id, or 0 for a random id."""
        parent = trace.set_span_in_context(trace.NonRecordingSpan(under)) if under is not None else Context()
        self._ids.preset(span=span if ids is None else ids.span, trace=0 if ids is None else ids.trace)
        linked = [trace.Link(context_of(ids_of_link)) for ids_of_link in links]
        return self.tracer.start_span(name, parent, kind, attributes, linked, start_ns)

    def close(self) -> None:
        """Export the remaining spans and stop."""
        self.queue.shutdown()


def context_of(ids: SpanIds) -> trace.SpanContext:
    """Return the context of a span that belongs to another process."""
    return trace.SpanContext(
        ids.trace, ids.span, is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED)
    )


def _library_provider(queue: SpanQueue, resource: Resource) -> TracerProvider:
    """Return a tracer provider for libraries. The provider exports spans only within a traced span."""
    provider = TracerProvider(ParentBased(ALWAYS_OFF), resource, shutdown_on_exit=False)
    provider.add_span_processor(queue)
    return provider


def _exporter() -> SpanExporter:
    """Return the exporter that the environment selects. The default is the OTLP exporter. The environment may select the console
    instead."""
    exporter_name = os.environ.get("OTEL_TRACES_EXPORTER", "otlp") or "otlp"
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if exporter_name == "console":
        return ConsoleSpanExporter(formatter=lambda span: span.to_json(indent=None) + "\n")
    if exporter_name != "otlp":
        raise UsageError(f"OTEL_TRACES_EXPORTER is {exporter_name!r}: use otlp or console, or go without --otel")
    if protocol == "grpc":
        try:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
        except ModuleNotFoundError as error:
            raise UsageError(
                "OTEL_EXPORTER_OTLP_PROTOCOL=grpc needs its exporter: pip install opentelemetry-exporter-otlp-proto-grpc"
            ) from error
        over_grpc: SpanExporter = OverGrpc()
        return over_grpc
    if protocol not in (None, "", "http/protobuf"):
        raise UsageError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}: use http/protobuf or grpc")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    has_own = any(os.environ.get(name) for name in CREDENTIAL_PROVIDERS)
    return OTLPSpanExporter(session=None if has_own else _bounded_session())


def _bounded_session() -> "requests.Session":
    """Return an HTTP session that limits the size of responses from the collector. Without the limit, an endless response would fill the
    process's memory."""
    import requests

    class BoundedSession(requests.Session):
        """Session that reads a response up to its declared length and a size limit, and closes the connection if there is more data."""

        def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
            """Send a request, and limit the size of the response. The library calls this method for each request."""
            response = super().send(request, **{**options, "stream": True})
            size = response.headers.get("Content-Length", "")
            is_small = size.isdecimal() and int(size) <= ANSWER_BYTES_MAX
            response._content = response.raw.read(ANSWER_BYTES_MAX) if is_small else b""
            if not is_small:
                response.close()
            return response

    return BoundedSession()
