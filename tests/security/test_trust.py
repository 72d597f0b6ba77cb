"""Who could not be reached because certificates do not trust each other, and when that is final."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
from tests.security.certificates import Authority

from snapline.security.transport import (
    TRUST_WAIT_S,
    DistrustTracker,
    Security,
    distrust_reason,
    transport_mismatch,
    trust_advice,
)

OURS = "it does not trust ours"
THEIRS = "its certificate is not trusted here: "


class Authorities:
    """The fleet's, another one, and a server with the fleet's certificate."""

    def __init__(self, folder: Path) -> None:
        self.own, self.foreign = self._made(folder / "own"), self._made(folder / "foreign")
        self.server = grpc.aio.server()
        self.leaf = self.own.issue("coordinator", role="coordinator")
        self.address = f"127.0.0.1:{self.leaf.security().add_port(self.server, '127.0.0.1:0')}"

    @staticmethod
    def _made(folder: Path) -> Authority:
        folder.mkdir()
        return Authority(folder, folder.name)


@pytest.fixture
async def authorities(tmp_path: Path) -> AsyncIterator[Authorities]:
    made = Authorities(tmp_path)
    await made.server.start()
    yield made
    await made.server.stop(None)


async def why(security: Security, address: str, name: str = "coordinator") -> str | None:
    return await distrust_reason(security, address, role="coordinator", name=name)


async def test_each_side_may_refuse_the_other(authorities: Authorities) -> None:
    own, foreign = authorities.own, authorities.foreign
    stranger = foreign.issue("h1")
    assert (await why(stranger.security(), authorities.address) or "").startswith(THEIRS)
    assert (await why(stranger.security(own.path), authorities.address) or "").startswith(OURS)
    assert (await why(own.issue("h2").security(foreign.path), authorities.address) or "").startswith(THEIRS)
    assert "Hostname mismatch" in (await why(own.issue("h3").security(), authorities.address, name="c1") or "")


async def test_tls_and_plaintext_are_told_apart_from_both_sides(authorities: Authorities) -> None:
    plain, tls = Security.loopback(), authorities.own.issue("h1").security()
    server = grpc.aio.server()
    address = f"127.0.0.1:{plain.add_port(server, '127.0.0.1:0')}"
    await server.start()
    assert "speaks TLS" in (await transport_mismatch(plain, authorities.address) or "")
    assert "speaks plaintext" in (await transport_mismatch(tls, address) or "")
    stranger = authorities.foreign.issue("h1").security()
    assert [await transport_mismatch(tls, authorities.address), await transport_mismatch(plain, address)] == [None] * 2
    assert await transport_mismatch(stranger, authorities.address) is None  # that is distrust
    await server.stop(None)
    assert [await transport_mismatch(each, address) for each in (plain, tls)] == [None] * 2


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64])
async def test_who_speaks_neither_may_be_anybody(authorities: Authorities, answer: bytes) -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for each in (Security.loopback(), authorities.own.issue("h1").security()):
        assert await transport_mismatch(each, address) is None
    server.close()


def test_it_is_hopeless_when_every_address_was_tried_and_nobody_has_ever_answered() -> None:
    distrust = DistrustTracker(["c1", "c2"])
    seen = []
    for address in ("c1", "c1", "c2"):
        distrust.failed(address, 0.0, is_distrust=False)
        seen.append(distrust.is_distrust_final)
    distrust.answered()
    assert [*seen, distrust.is_distrust_final] == [False, False, True, False]


async def test_who_trusts_each_other_is_told_so(authorities: Authorities) -> None:
    assert await why(authorities.own.issue("h1").security(), authorities.address) is None


async def test_whom_grpc_trusts_is_not_distrusted(authorities: Authorities) -> None:
    """It takes every certificate of the file as a root, also one that others have signed."""
    caller = authorities.own.issue("h1").security(authorities.leaf.certificate)
    async with caller.open_channel(authorities.address, role="coordinator", name="coordinator") as channel:
        await asyncio.wait_for(channel.channel_ready(), 20)
    assert await why(caller, authorities.address) is None


async def test_an_open_port_with_nobody_behind_it_distrusts_nobody(authorities: Authorities) -> None:
    """As a proxy has whose server is down, or a server without certificates: it may come yet."""
    own = authorities.own.issue("h1").security()
    closing = await asyncio.start_server(lambda _, writer: writer.transport.abort(), "127.0.0.1", 0)
    port = closing.sockets[0].getsockname()[1]
    assert await why(own, f"127.0.0.1:{port}") is None
    closing.close()
    assert await why(own, f"127.0.0.1:{port}") is None
    plain = grpc.aio.server()
    port = Security.loopback().add_port(plain, "127.0.0.1:0")
    await plain.start()
    assert await why(own, f"127.0.0.1:{port}") is None
    assert await why(Security.loopback(), authorities.address) is None
    assert await why(own, "unix:/nowhere") is None
    await plain.stop(None)


async def test_a_server_that_does_not_finish_a_handshake_distrusts_nobody(
    authorities: Authorities, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapline.security.transport.PROBE_S", 0.2)
    silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(30), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    assert await why(authorities.own.issue("h1").security(), f"127.0.0.1:{port}") is None
    silent.close()


def failures(distrust: DistrustTracker, *tries: tuple[str, float, bool]) -> list[bool]:
    return [distrust.failed(address, now_s, is_distrust=is_distrust) for address, now_s, is_distrust in tries]


def test_distrust_is_final_when_a_rotation_had_its_time() -> None:
    tries = ("c1", 100.0, True), ("c1", 99.9 + TRUST_WAIT_S, True), ("c1", 100.0 + TRUST_WAIT_S, True)
    assert failures(DistrustTracker(["c1"]), *tries) == [False, False, True]


def test_who_is_not_reached_meanwhile_may_be_another_one_when_it_comes_back() -> None:
    later = 100.0 + TRUST_WAIT_S
    tries = ("c1", 100.0, True), ("c1", 101.0, False), ("c1", later, True), ("c1", later + TRUST_WAIT_S, True)
    assert failures(DistrustTracker(["c1"]), *tries) == [False, False, False, True]


def test_distrust_of_some_replicas_is_not_final() -> None:
    """Of the others one may be starting."""
    later = 100.0 + 2 * TRUST_WAIT_S
    distrust = DistrustTracker(["c1", "c2"])
    assert failures(distrust, ("c1", 100.0, True), ("c2", 100.0, False), ("c1", later, True)) == [False] * 3
    assert failures(distrust, ("c2", later, True), ("c1", later + TRUST_WAIT_S, True)) == [False, True]


def test_an_address_that_a_replica_named_decides_nothing() -> None:
    later = 100.0 + 2 * TRUST_WAIT_S
    assert failures(DistrustTracker(["c1"]), ("c9", 100.0, True), ("c9", later, True)) == [False, False]


def test_who_was_trusted_once_tries_for_ever() -> None:
    distrust = DistrustTracker(["c1"])
    assert failures(distrust, ("c1", 100.0, True)) == [False]
    distrust.answered()
    assert failures(distrust, ("c1", 100.0 + 9 * TRUST_WAIT_S, True)) == [False]


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        ("its certificate is not trusted here: certificate has expired", "snapline auth renew"),
        ("it does not trust ours: sslv3 alert certificate expired", "snapline auth renew"),
        ("its certificate is not trusted here: unable to get local issuer certificate", "have one authority sign both"),
    ],
)
def test_the_advice_is_what_helps(why: str, advice: str) -> None:
    assert advice in trust_advice(why)
