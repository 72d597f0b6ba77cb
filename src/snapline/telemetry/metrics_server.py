"""HTTP server for the metrics of a process. The server answers `GET /metrics` in Prometheus' text format or in OpenMetrics.

`--metrics` opens the server, under the same access rules as `--listen`. Without certificates, the server listens only on this machine,
unless the user passes `--insecure`. With certificates, a caller needs a role that may call `Status` (`rpc_authorization.py`).

The server reads the values on request, in the process's own event loop, so the values do not change during the reading. Metrics take no
time unless something requests them. The server implements only a small part of HTTP. The server accepts one request per connection, with a
head of a few kilobytes and no body.
"""

import asyncio
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import snapline
from snapline.channels.servers import address_error, listen_error, wait_until_free_async
from snapline.errors import SnaplineError, UsageError
from snapline.security.rpc_authorization import RPC_RULES
from snapline.security.transport import Security
from snapline.telemetry.metrics import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    PREFIX,
    PROCESS_INFO,
    Distribution,
    Family,
    Readings,
    Total,
    Value,
)

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

log = logging.getLogger("snapline.channels")

PATH = "/metrics"

READERS = RPC_RULES["/snapline.protos.v1.Coordinator/Status"].roles

HEAD_BYTES_MAX = 16 * 1024
"""Maximum size of a request's head in bytes. Monitoring systems send a few hundred bytes."""

REQUEST_S_MAX = 10.0
"""Time limit for the handshake, receiving the head, reading the metrics, and sending the answer. Prometheus itself waits for the same time.
"""

CONNECTIONS_MAX = 16
"""Maximum number of connections. One or two monitoring systems request the metrics every few seconds. If there are more
connections, the server closes the oldest connection."""

PLAIN = "text/plain; charset=utf-8"

_REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class _Answer(NamedTuple):
    code: int
    kind: str
    body: bytes


class MetricsPlace(NamedTuple):
    """Address and target file for serving a process's metrics.

    Attributes:
        address: address in the form "host:port", or "" if metrics are not served.
        file: target file for Prometheus' `file_sd_configs` that lists only this server, or None if no file is written. The file is written
            once the address is known.
    """

    address: str = ""
    file: Path | None = None


class MetricsServer:
    """HTTP server for metrics."""

    def __init__(
        self,
        role: str,
        name: str,
        families: Iterable[Family],
        read: Callable[[], Awaitable[Readings]],
        security: Security,
    ) -> None:
        """Create the server. `role` and `name` identify this process. `read` must return the current values, and may raise
        SnaplineError."""
        self._read = read
        self._security = security
        self._exposition = _Exposition((PROCESS_INFO, *families))
        self._about: Readings = {PROCESS_INFO.name: {(role, name, snapline.__version__): 1.0}}
        self._open: list[asyncio.Transport] = []

    async def listen(self, stack: AsyncExitStack, address: str) -> str:
        """Listen on `address` until the exit stack unwinds. Return the actual address, including the port.

        Raises:
            UsageError: If the address is invalid, or listening on it requires certificates.
            AddressError: If the address does not belong to this machine.
            AddressBusyError: If the port remains in use, or the host name cannot be resolved.
        """
        host, _, port = address.rpartition(":")
        if address.startswith("unix:") or not port.isdecimal():
            raise UsageError(f"--metrics {address!r} is no address: write HOST:PORT")
        self._security.check_listen_address(address)
        await wait_until_free_async(address)
        try:
            server = await asyncio.start_server(self._serve, host.strip("[]"), int(port), limit=HEAD_BYTES_MAX)
        except OSError as error:
            reason = listen_error(address) or error  # the system's own message
            raise address_error(f"metrics cannot be served at {address}", reason, "choose another --metrics") from error
        stack.callback(server.close)
        return f"{host}:{server.sockets[0].getsockname()[1]}"

    def url(self, address: str) -> str:
        """Return the URL of the metrics."""
        return f"{'https' if self._security.is_tls else 'http'}://{address}{PATH}"

    # ---- one connection -----------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. A faulty, slow or silent client affects only its own connection."""
        transport = cast("asyncio.Transport", writer.transport)  # the transport of a socket
        transport.pause_reading()  # data received before the handshake begins would be lost
        self._open.append(transport)
        if len(self._open) > CONNECTIONS_MAX:
            self._open.pop(0).abort()
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                await asyncio.sleep(0)  # a newer connection may close this connection before its handshake
                if transport.is_closing():
                    return
                if not self._security.is_tls:
                    transport.resume_reading()
                await self._converse(reader, writer)
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, EOFError, ssl.SSLError, asyncio.LimitOverrunError) as error:
            log.debug("a request for metrics came to nothing: %r", error)
            _drop_tracebacks(error)
        except asyncio.CancelledError:
            pass  # the process ends; Python 3.11's streams would print a traceback of the cancelled task
        finally:
            if transport in self._open:
                self._open.remove(transport)
            transport.abort()  # a client that does not read would keep the connection open

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._security.is_tls:
            try:
                await writer.start_tls(self._security.http_context())
            except AttributeError as error:  # Python's streams raise this if the connection is lost already
                raise ConnectionAbortedError from error
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        refusal = self._refusal(writer)
        answer = _text(403, refusal) if refusal else await self._answer(head)
        body = b"" if head.startswith("HEAD ") else answer.body
        writer.write(
            f"HTTP/1.1 {answer.code} {_REASONS[answer.code]}\r\nContent-Type: {answer.kind}\r\n"
            f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n".encode("latin-1")
            + body
        )
        await writer.drain()

    def _refusal(self, writer: asyncio.StreamWriter) -> str:
        """Return why the caller may not read the metrics, or "" if it may."""
        if not self._security.is_tls:
            return ""
        shown = writer.get_extra_info("ssl_object").getpeercert() or {}
        names = [name for kind, name in shown.get("subjectAltName", ()) if kind == "URI"]
        identity = self._security.identity_in(names)
        if identity is None:
            return "this certificate names nobody of this fleet"
        return "" if identity.role in READERS else f"metrics are for {', '.join(READERS)}, and it says {identity.role}"

    async def _answer(self, head: str) -> _Answer:
        lines = head.split("\r\n")
        method, _, rest = lines[0].partition(" ")
        target, _, version = rest.partition(" ")
        if not version.startswith("HTTP/1."):
            return _text(400, "this is no HTTP request")
        if method not in ("GET", "HEAD"):
            return _text(405, "metrics are read with GET")
        if target.partition("?")[0] != PATH:
            return _text(404, f"metrics are at {PATH}")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        try:
            readings = await self._read()
        except SnaplineError as error:
            return _text(503, str(error))
        kind, body = self._exposition.write({**self._about, **readings}, headers.get("accept", ""))
        return _Answer(200, kind, body)


def _drop_tracebacks(error: BaseException | None) -> None:
    """Free the 256 KiB that a failed TLS handshake retains. The handshake's errors and stack frames form a reference cycle, which the
    garbage collector would free only after a long time."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


class _Exposition:
    """Renders the metrics of the process, including those of its Python runtime, as text.

    An instance is created only when the port opens, since importing its library takes 0.1 s.
    """

    def __init__(self, families: Iterable[Family]) -> None:
        from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

        self._families = tuple(families)
        self._readings: Readings = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def write(self, readings: Readings, accepted: str) -> tuple[str, bytes]:
        """Return the content type and the text of the metrics, in the format requested by the `Accept` header."""
        from prometheus_client.exposition import choose_encoder

        encode, kind = choose_encoder(accepted)
        self._readings = readings
        return kind, encode(self._registry)

    def collect(self) -> "Iterable[Metric]":
        unknown = set(self._readings) - {family.name for family in self._families}
        assert not unknown, f"figures without a family: {', '.join(sorted(unknown))}"
        return [
            _metric(family, self._readings[family.name]) for family in self._families if family.name in self._readings
        ]


def _metric(family: Family, found: Value | Mapping[tuple[str, ...], Value]) -> "Metric":
    from prometheus_client import core

    name, text, labels = PREFIX + family.name, family.help, family.labels
    values: Mapping[tuple[str, ...], Value] = found if isinstance(found, Mapping) else {(): found}
    if family.kind == HISTOGRAM:
        histogram = core.HistogramMetricFamily(name, text, labels=labels)
        for key, value in values.items():
            assert isinstance(value, Distribution)
            buckets = [
                ("+Inf" if bound == float("inf") else repr(bound), count) for bound, count in value.cumulative_counts()
            ]
            histogram.add_metric(key, buckets, value.sum)
        return histogram
    if family.kind in (COUNTER, GAUGE):
        plain: core.CounterMetricFamily | core.GaugeMetricFamily = (
            core.CounterMetricFamily(name, text, labels=labels)
            if family.kind == COUNTER
            else core.GaugeMetricFamily(name, text, labels=labels)
        )
        for key, value in values.items():
            assert isinstance(value, int | float)
            plain.add_metric(key, value)
        return plain
    summary = core.SummaryMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        assert isinstance(value, Total)
        summary.add_metric(key, int(value.count), value.sum)
    return summary


def _text(code: int, text: str) -> _Answer:
    return _Answer(code, PLAIN, f"{text}\n".encode())


async def open_metrics_server(
    stack: AsyncExitStack, make_server: Callable[[], MetricsServer], place: MetricsPlace, name: str
) -> None:
    """Serve metrics at `place` until the exit stack unwinds, and log the URL. Do nothing if `place` has no address.

    Raises:
        UsageError, AddressError: As in `MetricsServer.listen`, or if the file cannot be written.
    """
    if not place.address:
        return
    server = make_server()
    address = await server.listen(stack, place.address)
    log.info("metrics of %s at %s", name, server.url(address))
    if place.file is not None:
        _write_target_file(place.file, address, name)
        stack.callback(place.file.unlink, missing_ok=True)


def _write_target_file(file: Path, address: str, name: str) -> None:
    """Write Prometheus' target file atomically."""
    scratch = file.with_name(f"{file.name}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps([{"targets": [address], "labels": {"instance": name}}]) + "\n")
        scratch.replace(file)
    except OSError as error:
        raise UsageError(f"--metrics-file {file} cannot be written: {error.strerror or error}") from error
