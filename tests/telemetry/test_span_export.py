"""Spans on their way to a collector: nobody waits for it, what was dropped is counted, and nothing is left behind. By OpenTelemetry's own SDK."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs OpenTelemetry: pip install 'snapline[otel]'")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.kit.collector import collecting

from snapline.errors import UsageError
from snapline.telemetry import span_export
from snapline.telemetry.span_export import (
    BATCH_SPANS_MAX,
    CLOSE_S_MAX,
    QUEUE_SPANS_MAX,
    SpanExport,
    SpanIds,
    checkpoint_ids,
    context_of,
    recovery_ids,
)
from snapline.telemetry.spans import SpanOptions, open_spans, read_spans


class Stuck(SpanExporter):
    """A collector that never answers, until it is let go."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.taken = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.reached.set()
        self.go_on.wait()
        self.taken += len(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None: ...


class Failing(SpanExporter):
    def __init__(self) -> None:
        self.raises = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.raises:
            raise ConnectionError("nobody there")
        return SpanExportResult.FAILURE

    def shutdown(self) -> None: ...


def export_to(exporter: SpanExporter) -> SpanExport:
    return SpanExport(0.0, role="host", name="h1", exporter=exporter)


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    made = Stuck()
    yield made
    made.go_on.set()


def test_a_collector_that_never_answers_costs_spans_and_nothing_else(stuck: Stuck) -> None:
    export = export_to(stuck)
    for _ in range(BATCH_SPANS_MAX):
        export.begin("first").end()
    assert stuck.reached.wait(10), "its thread waits for the collector now"
    more = QUEUE_SPANS_MAX + 100
    for _ in range(more):
        export.begin("more").end()
    assert export.queue.dropped >= 100 and export.queue.exported == 0
    before_s = time.monotonic()
    export.close()
    assert time.monotonic() - before_s < 10 * CLOSE_S_MAX, "the end of a process waits a moment only"
    export.begin("too late").end()
    dropped = export.queue.dropped
    stuck.go_on.set()
    export.queue._thread.join(10)
    assert export.queue.exported + export.queue.dropped == BATCH_SPANS_MAX + more + 1
    assert export.queue.dropped == dropped and export.queue.exported == stuck.taken


@pytest.mark.parametrize("raises", [True, False])
def test_what_a_collector_does_not_take_is_counted(raises: bool, caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing()
    failing.raises = raises
    export = export_to(failing)
    for _ in range(3):
        export.begin("lost").end()
    export.close()
    assert read_spans(export) == {"spans_exported_total": 0, "spans_dropped_total": 3}
    told = [record.message for record in caplog.records if record.name == "snapline.spans"]
    assert told == ["the collector does not take spans: they are dropped until it does (3 dropped so far)"]


def test_ids_are_drawn_but_where_they_follow_from_what_a_span_is_of() -> None:
    told = InMemorySpanExporter()
    export = export_to(told)
    ids = checkpoint_ids("store", 7)
    whole = export.begin("checkpoint", ids=ids)
    part = export.begin("part", under=context_of(ids), span=0xC)
    drawn = export.begin("drawn", under=context_of(ids), links=(recovery_ids("store", 1),))
    other = export.begin("other")
    for span in (whole, part, drawn, other):
        span.end()
    export.close()
    found = {span.name: span for span in told.get_finished_spans()}
    contexts = {name: span.context for name, span in found.items()}
    assert [(x.trace_id, x.span_id) for x in (contexts["checkpoint"], contexts["part"]) if x] == [
        (ids.trace, ids.span),
        (ids.trace, 0xC),
    ]
    assert contexts["drawn"] is not None and contexts["drawn"].trace_id == ids.trace
    assert contexts["drawn"].span_id not in (0xC, ids.span)
    assert contexts["other"] is not None and contexts["other"].trace_id != ids.trace
    assert found["checkpoint"].parent is None and found["other"].parent is None
    (link,) = found["drawn"].links
    assert SpanIds(link.context.trace_id, link.context.span_id) == recovery_ids("store", 1)


def test_ids_of_epochs_and_recoveries_are_their_own() -> None:
    ids = [f(store, number) for f in (checkpoint_ids, recovery_ids) for store in ("s", "t") for number in (1, 2)]
    assert len({x.trace for x in ids}) == len({x.span for x in ids}) == 8
    assert all(0 < x.trace < 2**128 and 0 < x.span < 2**64 for x in ids)
    assert checkpoint_ids("s", 1) == ids[0]


def test_other_peoples_spans_are_told_only_within_ours() -> None:
    """A library's span outside of a turn that is followed was never sampled."""
    told = InMemorySpanExporter()
    export = export_to(told)
    theirs = span_export._library_provider(export.queue, export.resource).get_tracer("library")
    theirs.start_span("outside").end()
    turn = export.begin("turn")
    theirs.start_span("inside", trace.set_span_in_context(turn)).end()
    turn.end()
    export.close()
    assert [span.name for span in told.get_finished_spans()] == ["inside", "turn"]


def test_the_environment_says_where_spans_go(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
        export = open_spans(SpanOptions(0.5), role="host", name="h7")
        assert export is not None and export.share == 0.5
        export.begin("hello").end()
        export.close()
        assert [(x.process, x.name) for x in collector.spans] == [("h7", "hello")]
        assert export.resource.attributes["service.name"] == "mine"
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    assert isinstance(span_export._exporter(), ConsoleSpanExporter)


@pytest.mark.parametrize("length", ["", f"Content-Length: {2**40}\r\n"])
def test_an_answer_that_never_ends_is_not_read(monkeypatch: pytest.MonkeyPatch, length: str) -> None:
    """A process that reads it would grow until it dies."""
    written = [0]

    def answer_for_ever(server: socket.socket) -> None:
        with server.accept()[0] as connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(f"HTTP/1.1 200 OK\r\n{length}\r\n".encode())
            while written[0] < 2**28:
                connection.sendall(b"x" * 65536)
                written[0] += 65536

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer_for_ever, args=(server,), daemon=True)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        export = open_spans(SpanOptions(0.5), role="host", name="h7")
        assert export is not None
        export.begin("hello").end()
        export.close()
        thread.join(10)
        assert export.queue.exported == 1 and written[0] < 2**24, "what both kernels hold"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER is 'zipkin': use otlp or console"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json': use http/protobuf"),
    ],
)
def test_an_environment_that_asks_for_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=told):
        open_spans(SpanOptions(0.0), role="host", name="h1")


def test_without_the_option_there_is_nothing() -> None:
    assert open_spans(SpanOptions(), role="host", name="h1") is None
