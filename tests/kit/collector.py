"""A collector of OpenTelemetry for tests: a server on loopback that takes spans by OTLP over HTTP. It knows nothing of ours but their names."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Told(NamedTuple):
    """One span, as a process has told it."""

    process: str
    name: str
    trace: str
    span: str
    parent: str
    attributes: dict[str, object]
    events: list[str]
    links: list[tuple[str, str]]
    is_error: bool


class Collector:
    """What has come so far, on `port`. While `is_away` it takes nothing, and answers nobody."""

    def __init__(self) -> None:
        self.spans: list[Told] = []
        self.is_away = False
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.take(self)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, request: BaseHTTPRequestHandler) -> None:
        """One export."""
        body = request.rfile.read(int(request.headers["Content-Length"]))
        if self.is_away:
            request.send_error(503)
            return
        message = ExportTraceServiceRequest.FromString(body)
        for of in message.resource_spans:
            process = {x.key: x.value.string_value for x in of.resource.attributes}["service.instance.id"]
            self.spans += [_told(process, span) for scope in of.scope_spans for span in scope.spans]
        answer = ExportTraceServiceResponse().SerializeToString()
        request.send_response(200)
        request.send_header("Content-Type", "application/x-protobuf")
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)

    def named(self, name: str) -> list[Told]:
        """Those of this name."""
        return [span for span in list(self.spans) if span.name == name]

    def of(self, trace: str) -> list[Told]:
        """Those of this trace."""
        return [span for span in list(self.spans) if span.trace == trace]


def _told(process: str, span: Span) -> Told:
    attributes: dict[str, object] = {}
    for each in span.attributes:
        attributes[each.key] = getattr(each.value, each.value.WhichOneof("value") or "string_value")
    return Told(
        process,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        attributes,
        [event.name for event in span.events],
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        span.status.code == span.status.STATUS_CODE_ERROR,
    )


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens."""
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.server.shutdown()
        collector.server.server_close()
        thread.join()
