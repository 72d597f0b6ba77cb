"""Mutual TLS: who has no, a foreign or another host's certificate is refused; rotation under traffic loses nothing."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.channels.hosts import Host, connect, exchange, until
from tests.channels.test_grpc_link import Raw, hello
from tests.security.certificates import Authority, Leaf

from snapline.channels.frame import Refused
from snapline.channels.servers import client_options
from snapline.errors import ExternalFailureError, UsageError
from snapline.security.transport import Security, is_loopback, server_name


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def server(authority: Authority) -> AsyncIterator[Host]:
    host = await Host("h2", "h1", is_dialler=False, security=authority.issue("h2").security()).start()
    yield host
    await host.stop()


class TlsRaw(Raw):
    """A dialler with the certificates it is given."""

    def __init__(self, host: Host, leaf: Leaf | None, authority: Path) -> None:
        pair = (None, None) if leaf is None else (leaf.key.read_bytes(), leaf.certificate.read_bytes())
        credentials = grpc.ssl_channel_credentials(authority.read_bytes(), *pair)
        options = client_options(server_name("host", "h2"))
        self._channel = grpc.aio.secure_channel(f"127.0.0.1:{host.port}", credentials, options=options)
        self._open()


async def is_shut_out(raw: Raw) -> bool:
    """Whether the server takes no frame at all."""
    try:
        await raw.write(hello())
        return await raw.read() is None
    except grpc.aio.AioRpcError as error:
        return error.code() == grpc.StatusCode.UNAVAILABLE
    finally:
        await raw.close()


@pytest.mark.parametrize(("address", "is_warned"), [("0.0.0.0:0", True), ("127.0.0.1:0", False)])
async def test_plaintext_beyond_this_machine_is_warned_of(
    address: str, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = grpc.aio.server()
    Security.insecure().add_port(server, address)
    assert ("master of the fleet" in caplog.text) == is_warned
    await server.stop(None)


async def test_two_hosts_with_certificates_talk(server: Host, authority: Authority) -> None:
    a = await Host("h1", "h2", is_dialler=True, security=authority.issue("h1").security()).start()
    a.dial(server)
    await until(lambda: a.core.is_established)
    await exchange(a, server, 0.3, lambda: None, lambda: 1.0)
    await a.stop()


async def test_no_certificate_is_shut_out(server: Host, authority: Authority) -> None:
    assert await is_shut_out(TlsRaw(server, None, authority.path))


async def test_plaintext_is_shut_out(server: Host) -> None:
    assert await is_shut_out(Raw(server))


async def test_a_foreign_certificate_is_shut_out(server: Host, authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    foreign = Authority(tmp_path / "foreign", "foreign")
    assert await is_shut_out(TlsRaw(server, foreign.issue("h1"), authority.path))
    assert not server.core.is_established


async def test_a_certificate_of_another_host_is_refused(server: Host, authority: Authority) -> None:
    raw = TlsRaw(server, authority.issue("h3"), authority.path)
    await raw.write(hello())
    frame = await raw.read()
    assert frame is not None and isinstance(frame.body, Refused) and frame.body.is_final
    assert "certificate" in frame.body.reason
    assert not server.core.is_established
    await raw.close()


@pytest.mark.parametrize(
    ("host", "role", "uri"),
    [
        ("h1", "coordinator", None),
        ("h1", "passer-by", None),
        ("h1", "host", "spiffe://elsewhere/host/h1"),
        ("h1", "host", "spiffe://snapline/host/h1/h1"),
        ("h1", "host", "https://snapline/host/h1"),
    ],
)
async def test_a_certificate_of_nobody_here_is_refused_unread(
    server: Host, authority: Authority, host: str, role: str, uri: str | None
) -> None:
    raw = TlsRaw(server, authority.issue(host, role=role, uri=uri), authority.path)
    with pytest.raises(grpc.aio.AioRpcError, match="this certificate may not do that"):
        await raw.read()
    assert not server.core.is_established
    await raw.close()


async def test_a_server_that_is_another_host_is_not_spoken_to(authority: Authority) -> None:
    a = await Host("h1", "h2", is_dialler=True, security=authority.issue("h1").security()).start()
    b = await Host("h2", "h1", is_dialler=False, security=authority.issue("h3").security()).start()
    a.dial(b)
    await asyncio.sleep(0.5)
    assert not a.core.is_established and a.core.attempt == 0
    await a.stop()
    await b.stop()


async def test_rotation_under_traffic_loses_nothing(authority: Authority) -> None:
    leaves = {name: authority.issue(name) for name in ("h1", "h2")}
    a = Host("h1", "h2", is_dialler=True, security=leaves["h1"].security())
    b = Host("h2", "h1", is_dialler=False, security=leaves["h2"].security())
    await connect(a, b)
    draw = random.Random(1)

    def rotate() -> None:
        name = draw.choice(("h1", "h2"))
        authority.write(leaves[name], name)

    await exchange(a, b, 2.0, rotate, lambda: 0.2, lambda: a.established_count > 2)
    await a.stop()
    await b.stop()


async def test_a_new_connection_sees_the_servers_new_certificate(
    server: Host, authority: Authority, tmp_path: Path
) -> None:
    """The authority itself is changed: trust both, swap the certificate, drop the old."""
    (tmp_path / "new").mkdir()
    new = Authority(tmp_path / "new", "new")
    client = new.issue("h1")
    assert await is_shut_out(TlsRaw(server, client, authority.path))
    old_and_new = authority.path.read_bytes() + new.path.read_bytes()
    authority.path.write_bytes(old_and_new)
    new.write(Leaf(tmp_path / "h2.crt", tmp_path / "h2.key", authority.path), "h2")
    await asyncio.sleep(0.5)
    raw = TlsRaw(server, client, new.path)
    await raw.write(hello())
    assert await raw.read() is not None
    assert server.core.is_established
    await raw.close()


async def test_half_rotated_files_keep_the_old_certificate(authority: Authority) -> None:
    leaf = authority.issue("h1")
    security = leaf.security()
    security.open_channel("127.0.0.1:1", role="host", name="h2")
    generation = security.generation
    leaf.key.write_bytes(authority.issue("h9").key.read_bytes())
    assert not security.reload() and security.generation == generation
    authority.write(leaf, "h1")
    assert security.reload() and security.generation == generation + 1
    assert not security.reload()


@pytest.mark.parametrize("torn", ["key", "certificate", "authority"])
async def test_a_file_that_was_read_while_it_was_written_is_not_used(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, torn: str
) -> None:
    """Whole again when it is looked at a second time: what was read is judged. gRPC ends the process over an empty key."""
    leaf = authority.issue("h1")
    security = leaf.security()
    security.open_channel("127.0.0.1:1", role="host", name="h2")
    authority.write(leaf, "h1")
    path, read = {"key": leaf.key, "certificate": leaf.certificate, "authority": authority.path}[torn], Path.read_bytes
    for part in (0, 40):
        monkeypatch.setattr(Path, "read_bytes", lambda self, part=part: read(self)[: part if self == path else None])
        assert not security.reload()
    monkeypatch.undo()
    assert security.reload()


async def test_missing_files_say_which(tmp_path: Path) -> None:
    security = Security.tls(authority=tmp_path / "ca", certificate=tmp_path / "crt", key=tmp_path / "key")
    with pytest.raises(ExternalFailureError, match="ca"):
        security.open_channel("127.0.0.1:1", role="host", name="h2")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:0", True),
        ("127.8.9.1:7", True),
        ("localhost:7", True),
        ("[::1]:7", True),
        ("unix:/run/x", True),
        ("0.0.0.0:7", False),
        ("[::]:7", False),
        ("10.0.0.1:7", False),
        ("example.org:7", False),
        ("localhost.example.org:7", False),
        (":7", False),
    ],
)
def test_only_loopback_goes_without_certificates(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
    if expected:
        Security.loopback().check_listen_address(address)
    else:
        with pytest.raises(UsageError, match="--insecure"):
            Security.loopback().check_listen_address(address)
    Security.insecure().check_listen_address(address)


def test_a_certificate_says_when_it_should_be_renewed(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    security, now_s = authority.issue("h1").security(), time.time()
    security.http_context()
    assert security.certificate_left_ns() is None and caplog.messages == []
    for passed_s, said in ((3500.0, "expires soon"), (3600.0 + 60, "has expired")):
        monkeypatch.setattr("snapline.security.transport.time.time", lambda now_s=now_s + passed_s: now_s)
        assert not security.reload() and not security.reload()
        left_ns = security.certificate_left_ns()
        assert left_ns is not None and (left_ns > 0) == (passed_s < 3600)
        (message,) = caplog.messages
        assert said in message and "snapline auth renew" in message
        caplog.clear()
    assert Security.loopback().certificate_left_ns() is None
