"""Spans of a process on their way to a collector: a bounded queue, one thread that exports, and a count of what was dropped.

Theory of operation. A span that has ended is put into a queue, which never waits: where it is full the span is dropped, and counted. One
thread takes them in batches and gives them to OpenTelemetry's exporter, which may wait for a collector as long as it likes. So a collector that
is slow, or gone, costs spans and nothing else. OpenTelemetry has such a processor itself; it drops the oldest of a trace without telling how
many, and starts a thread in every child that is forked, which captures by fork must not have.

There are two providers above one queue. Ours takes every span that it is given: it was decided before, when the request came in. The other is
for the handlers' own libraries, if the program has set none: what they do within a turn that is followed is followed, and nothing else is.
"""

import logging
import os
import threading
from collections import deque

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased

from snapline.errors import UsageError
from snapline.telemetry.quick_span import QuickSpan
from snapline.telemetry.span_ids import SpanIds

log = logging.getLogger("snapline.spans")

QUEUE_SPANS_MAX = 8192
"""Spans that wait: some 20 MB, and what a busy host ends in the seconds that a collector takes to start again."""

BATCH_SPANS_MAX = 512
"""Spans in a batch, as in OpenTelemetry's own."""

DELAY_S = 1.0
"""Spans wait so long for others, since a request to a collector takes two milliseconds however few it brings; with a process that is killed so

much is lost. OpenTelemetry's own 5 s are too much of a recovery."""

CLOSE_S_MAX = 2.0
"""Longest wait for the spans left when a process ends."""

SERVICE = "snapline"

CREDENTIAL_PROVIDERS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)
"""A program that names one of them brings its own session, which reads whole answers."""


class OneResource(Resource):
    """Resource with a cheap hash: OpenTelemetry's encoder hashes it for every span, by way of JSON."""

    def __hash__(self) -> int:
        return id(self)


class SpanQueue(SpanProcessor):
    """See the module.

    Attributes:
        exported, dropped: spans so far; dropped ones found the queue full, or the collector did not take them.
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
        """Called by OpenTelemetry, on any thread."""
        context = span.context
        if context is not None and context.trace_flags.sampled:
            self.put(span)

    def put(self, span: ReadableSpan | QuickSpan) -> None:
        """Queue an ended span; on any thread."""
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
            taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_SPANS_MAX))]
            try:
                batch = [x.readable(self._resource) if isinstance(x, QuickSpan) else x for x in taken]
                is_taken = self._exporter.export(batch) is SpanExportResult.SUCCESS
            except Exception as error:  # whatever an exporter raises
                log.debug("an exporter of spans failed: %s", error)
                is_taken = False
            self._count(len(taken), is_taken=is_taken)

    def _count(self, spans: int, *, is_taken: bool) -> None:
        """Said once when it begins and once when it is over: a collector may be away for days."""
        if is_taken:
            self.exported += spans
        else:
            self.dropped += spans
        if self._is_failing is is_taken:
            self._is_failing = not is_taken
            told = "takes spans again" if is_taken else "does not take spans: they are dropped until it does"
            log.warning("the collector %s (%d dropped so far)", told, self.dropped)

    def shutdown(self) -> None:
        """Export what is left, for a moment."""
        self._is_closed = True
        self._wake.set()
        self._thread.join(CLOSE_S_MAX)
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Wake the thread; nobody waits for it."""
        self._wake.set()
        return True


class GivenIds(RandomIdGenerator):
    """Ids are drawn, but for a span whose ids follow from what it is of."""

    def __init__(self) -> None:
        self._next = threading.local()

    def give(self, *, span: int, trace: int = 0) -> None:
        """Set the ids of the span that this thread starts next; 0: drawn."""
        self._next.span, self._next.trace = span, trace

    def generate_span_id(self) -> int:
        given: int = getattr(self._next, "span", 0)
        self._next.span = 0
        return given or super().generate_span_id()

    def generate_trace_id(self) -> int:
        given: int = getattr(self._next, "trace", 0)
        self._next.trace = 0
        return given or super().generate_trace_id()


class SpanExport:
    """The spans of one process.

    Attributes:
        share: of requests without a trace, so many begin one.
        tracer: takes every span that it is given.
        queue: on their way.
        resource: names the process that exports each span.
    """

    def __init__(self, share: float, *, role: str, name: str, exporter: SpanExporter | None = None) -> None:
        self.share = share
        self._ids = GivenIds()
        defaults = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": SERVICE}
        found = Resource.create({**defaults, "service.instance.id": name, "snapline.role": role})
        self.resource = OneResource(found.attributes, found.schema_url)
        self.queue = SpanQueue(exporter or _exporter(), self.resource)
        self._ours = TracerProvider(ALWAYS_ON, self.resource, shutdown_on_exit=False, id_generator=self._ids)
        self._ours.add_span_processor(self.queue)
        self.tracer = self._ours.get_tracer("snapline")
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            trace.set_tracer_provider(_their_provider(self.queue, self.resource))

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
        """A span below another one, or, with `ids` or without both, the first one of a trace. `span`: its own id, 0: drawn."""
        parent = trace.set_span_in_context(trace.NonRecordingSpan(under)) if under is not None else Context()
        self._ids.give(span=span if ids is None else ids.span, trace=0 if ids is None else ids.trace)
        linked = [trace.Link(context_of(each)) for each in links]
        return self.tracer.start_span(name, parent, kind, attributes, linked, start_ns)

    def close(self) -> None:
        """The process ends."""
        self.queue.shutdown()


def context_of(ids: SpanIds) -> trace.SpanContext:
    """Return the context of a span of another process."""
    return trace.SpanContext(
        ids.trace, ids.span, is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED)
    )


def _their_provider(queue: SpanQueue, resource: Resource) -> TracerProvider:
    """Return a provider for libraries: it exports their spans within a traced span."""
    theirs = TracerProvider(ParentBased(ALWAYS_OFF), resource, shutdown_on_exit=False)
    theirs.add_span_processor(queue)
    return theirs


def _exporter() -> SpanExporter:
    """Return the exporter that the environment selects: OTLP, unless it is for the console."""
    wanted = os.environ.get("OTEL_TRACES_EXPORTER", "otlp") or "otlp"
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if wanted == "console":
        return ConsoleSpanExporter(formatter=lambda span: span.to_json(indent=None) + "\n")
    if wanted != "otlp":
        raise UsageError(f"OTEL_TRACES_EXPORTER is {wanted!r}: use otlp or console, or go without --otel")
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

    from snapline.telemetry.bounded_session import BoundedSession

    has_own = any(os.environ.get(name) for name in CREDENTIAL_PROVIDERS)
    return OTLPSpanExporter(session=None if has_own else BoundedSession())
