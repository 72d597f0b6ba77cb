"""The door for metrics: what it says, and who is sent away."""

import asyncio
import contextlib
import gc
import json
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from tests.security.certificates import Authority, Leaf

from snapline.channels.servers import AddressBusyError
from snapline.errors import CoordinatorUnavailableError, UsageError
from snapline.security.transport import Security, server_name
from snapline.telemetry import metrics_server as metrics_endpoint
from snapline.telemetry.metrics import COUNTER, GAUGE, HISTOGRAM, SUMMARY, Distribution, Family, Readings, Total
from snapline.telemetry.metrics_server import MetricsPlace, MetricsServer, open_metrics_server

FAMILIES = (
    Family("things_total", COUNTER, "things", "numThings", ("kind",)),
    Family("depth", GAUGE, "how deep it is"),
    Family("wait_seconds", HISTOGRAM, "how long it took"),
    Family("sync_seconds", SUMMARY, "how long they took"),
    Family("silent", GAUGE, "nothing now"),
)


def readings() -> Readings:
    waits = Distribution((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        waits.observe(value)
    return {
        "things_total": {("a",): 3, ("b",): 4},
        "depth": 2.5,
        "wait_seconds": waits,
        "sync_seconds": Total(2, 0.5),
    }


async def answer() -> Readings:
    return readings()


class Opened:
    """A door, and ways to knock."""

    def __init__(self, address: str) -> None:
        self.port = int(address.rpartition(":")[2])

    async def send(self, request: bytes, context: ssl.SSLContext | None = None, name: str | None = None) -> str:
        """What comes back; nothing where the door closes without a word."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname=name)
        writer.write(request)
        try:
            return (await reader.read()).decode()
        except OSError:  # reset, or a TLS alert
            return ""
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def get(self, path: str = "/metrics", *, accept: str = "", method: str = "GET") -> tuple[int, str, str]:
        """Status, head and body."""
        return _parts(await self.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n".encode()))


def _parts(text: str) -> tuple[int, str, str]:
    head, _, body = text.partition("\r\n\r\n")
    return int(head.split()[1]), head, body


@contextlib.asynccontextmanager
async def opened(security: Security | None = None) -> AsyncIterator[Opened]:
    async with AsyncExitStack() as stack:
        door = MetricsServer("host", "h1", FAMILIES, answer, security or Security.loopback())
        yield Opened(await door.listen(stack, "127.0.0.1:0"))


def test_values_at_a_bound_are_not_above_it() -> None:
    waits = readings()["wait_seconds"]
    assert isinstance(waits, Distribution)
    assert waits.cumulative_counts() == [(0.1, 2), (1.0, 3), (float("inf"), 4)]
    assert waits.count == 4 and waits.sum == pytest.approx(7.65)


async def test_both_formats_say_the_same() -> None:
    async with opened() as door:
        _, plain_head, plain = await door.get()
        _, open_head, exposed = await door.get(accept="application/openmetrics-text; version=1.0.0")
    assert "Content-Type: text/plain" in plain_head and "Content-Type: application/openmetrics-text" in open_head
    read_open: Callable[[str], Iterable[Metric]] = openmetrics.text_string_to_metric_families
    for families in (list(parse(plain)), list(read_open(exposed))):
        found = {(x.name, *sorted(x.labels.items())): x.value for family in families for x in family.samples}
        assert found["snapline_things_total", ("kind", "b")] == 4
        assert found["snapline_depth",] == 2.5
        assert found["snapline_wait_seconds_bucket", ("le", "1.0")] == 3
        assert found["snapline_wait_seconds_bucket", ("le", "+Inf")] == found["snapline_wait_seconds_count",] == 4
        assert (found["snapline_sync_seconds_count",], found["snapline_sync_seconds_sum",]) == (2, 0.5)
        assert found["process_cpu_seconds_total",] > 0
        assert [x for x in found if x[0] == "snapline_process_info" and ("id", "h1") in x and ("role", "host") in x]
        assert not [x for x in found if "silent" in x[0]]
    assert "# HELP snapline_things_total things (Flink: numThings)" in plain


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [("GET", "/metrics?a=b", 200), ("HEAD", "/metrics", 200), ("GET", "/", 404), ("POST", "/metrics", 405)],
)
async def test_only_metrics_are_read_there(method: str, path: str, code: int) -> None:
    async with opened() as door:
        found, _, body = await door.get(path, method=method)
    assert found == code and bool(body) == (method != "HEAD")


async def test_what_is_no_request_is_told_so_or_dropped() -> None:
    async with opened() as door:
        assert _parts(await door.send(b"\0\1\2\r\n\r\n"))[0] == 400
        assert (
            await door.send(b"GET /metrics HTTP/1.1\r\nA: " + b"a" * metrics_endpoint.HEAD_BYTES_MAX + b"\r\n\r\n")
            == ""
        )
        assert (await door.get())[0] == 200


async def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "REQUEST_S_MAX", 0.05)
    async with opened() as door:
        assert await door.send(b"GET /met") == ""


async def test_beyond_so_many_connections_the_oldest_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "CONNECTIONS_MAX", 1)
    async with opened() as door:
        reader, silent = await asyncio.open_connection("127.0.0.1", door.port)
        silent.write(b"GET ")
        assert (await door.get())[0] == 200
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        silent.close()


async def test_a_reader_that_takes_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "REQUEST_S_MAX", 0.3)
    monkeypatch.setattr(metrics_endpoint._Exposition, "write", lambda *_: ("text/plain", bytes(32 * 1024 * 1024)))
    async with opened() as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port, limit=1)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await asyncio.sleep(1.0)
        taken = 0
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(1024 * 1024):
                taken += len(part)
        assert taken < 32 * 1024 * 1024
        writer.close()


async def test_failed_handshakes_leave_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    """It runs seldom, and each holds 256 KiB."""
    async with opened(Authority(tmp_path).issue("h1").security()) as door:
        gc.collect()
        gc.disable()
        try:
            for said in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03"):
                _, writer = await asyncio.open_connection("127.0.0.1", door.port)
                writer.write(said)
                await asyncio.sleep(0.1)
                writer.transport.abort()
            del writer
            await asyncio.sleep(0.1)
            assert not [each for each in gc.get_objects() if isinstance(each, SSLProtocol)]
        finally:
            gc.enable()


async def test_figures_that_cannot_be_had_are_said_to_be() -> None:
    async def fail() -> Readings:
        raise CoordinatorUnavailableError("its thread does not answer")

    async with AsyncExitStack() as stack:
        door = MetricsServer("coordinator", "c1", FAMILIES, fail, Security.loopback())
        code, _, body = await Opened(await door.listen(stack, "127.0.0.1:0")).get()
    assert (code, body) == (503, "its thread does not answer\n")


# -- who may ----------------------------------------------------------------------------------------------------------


async def test_other_machines_are_kept_out_as_from_every_port() -> None:
    door = MetricsServer("host", "h1", FAMILIES, answer, Security.loopback())
    async with AsyncExitStack() as stack:
        with pytest.raises(UsageError, match="without certificates"):
            await door.listen(stack, "0.0.0.0:0")
        with pytest.raises(UsageError, match="HOST:PORT"):
            await door.listen(stack, "unix:/tmp/x")
        insecure = MetricsServer("host", "h1", FAMILIES, answer, Security.insecure())
        await insecure.listen(stack, "0.0.0.0:0")


async def test_a_taken_port_is_said_in_a_sentence() -> None:
    async with opened() as door:
        again = MetricsServer("host", "h1", FAMILIES, answer, Security.loopback())
        async with AsyncExitStack() as stack:
            with pytest.raises(AddressBusyError, match="choose another --metrics"):
                await again.listen(stack, f"127.0.0.1:{door.port}")


def _client(leaf: Leaf | None, authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.path))
    if leaf is not None:
        context.load_cert_chain(leaf.certificate, leaf.key)
    return context


async def test_a_renewed_certificate_is_shown_to_the_next_who_asks(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    leaf, viewer = authority.issue("h1"), authority.issue("v", role="viewer")
    security = leaf.security()
    request = b"GET /metrics HTTP/1.1\r\n\r\n"
    async with opened(security) as door:
        assert "200 OK" in await door.send(request, _client(viewer, authority), server_name("host", "h1"))
        authority.write(leaf, "h1", name="other.host.snapline")
        assert security.reload()
        assert "200 OK" in await door.send(request, _client(viewer, authority), "other.host.snapline")


# -- where ------------------------------------------------------------------------------------------------------------


async def test_a_file_says_where_while_it_is_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "metrics" / "h1.json"

    def make() -> MetricsServer:
        return MetricsServer("host", "h1", FAMILIES, answer, Security.loopback())

    with caplog.at_level("INFO"):
        async with AsyncExitStack() as stack:
            await open_metrics_server(stack, make, MetricsPlace("127.0.0.1:0", file), "h1")
            (target,) = json.loads(file.read_text())
            address = target["targets"][0]
            assert target["labels"] == {"instance": "h1"}
            assert f"metrics of h1 at http://{address}/metrics" in caplog.text
            assert (await Opened(address).get())[0] == 200
    assert not file.exists()


async def test_without_an_address_nothing_is_opened() -> None:
    def make() -> MetricsServer:
        raise AssertionError("nobody asked")

    async with AsyncExitStack() as stack:
        await open_metrics_server(stack, make, MetricsPlace(), "h1")


async def test_a_file_that_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")

    def make() -> MetricsServer:
        return MetricsServer("host", "h1", FAMILIES, answer, Security.loopback())

    async with AsyncExitStack() as stack:
        with pytest.raises(UsageError, match="--metrics-file"):
            await open_metrics_server(stack, make, MetricsPlace("127.0.0.1:0", tmp_path / "taken" / "f"), "h1")
