"""Streams between replicas: sessions, order, bounds (test 8), and who may speak (test 14)."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.coordinator.raft.peers_of import CLUSTER, End, Raw, numbered, until
from tests.security.certificates import Authority, Leaf

from snapline.channels.servers import client_options
from snapline.coordinator.raft import raft_streams as streams_module
from snapline.coordinator.raft.messages import MESSAGES_MAX, Hello, encode_hello, encode_message
from snapline.coordinator.raft.raft_streams import INBOX_MESSAGES_MAX, OUTBOX_BYTES_MAX, OutgoingStream
from snapline.security.transport import server_name


@pytest.fixture
async def c1() -> AsyncIterator[End]:
    end = await End("c1", ["c2", "c3"]).start()
    yield end
    await end.stop()


async def connected(security: Authority | None = None, *, is_pumped: bool = True) -> tuple[End, End]:
    """`c1`, which dials `c2`; `c2` takes messages only if it is pumped."""
    of = (lambda name: None) if security is None else (lambda name: security.issue(name, role="coordinator").security())
    c2 = await End("c2", ["c1"], of("c2"), is_pumped=is_pumped).start()
    c1 = await End("c1", ["c2"], of("c1")).start({"c2": c2.address})
    await until(lambda: "c2" in c1.open)
    return c1, c2


# ---- sessions -------------------------------------------------------------------------------------------------------


async def test_an_older_session_and_the_same_one_are_refused(c1: End) -> None:
    current = Raw(c1.address)
    assert await current.hello("c2", 2, 5)
    for boot, stream in ((2, 5), (2, 4), (1, 9), (0, 0)):
        other = Raw(c1.address)
        assert not await other.hello("c2", boot, stream)
        assert await other.code() is grpc.StatusCode.ABORTED
        await other.close()
    await current.write(numbered(1))
    await until(lambda: c1.numbers == [1])
    await current.close()
    late = Raw(c1.address)
    assert not await late.hello("c2", 2, 5), "nor after it has ended: it may have been under way for long"
    await late.close()


async def test_a_newer_session_ends_the_older_and_what_waits_of_it(c1: End) -> None:
    older, newer = Raw(c1.address), Raw(c1.address)
    assert await older.hello("c2", 2, 5)
    c1.is_pumped = False
    await older.write(numbered(1), numbered(2))
    await asyncio.sleep(0.1)
    assert await newer.hello("c2", 3, 1), "a newer boot counts more than the number of the stream"
    await newer.write(numbered(3))
    assert await older.code() is not None
    await asyncio.sleep(0.05)
    c1.is_pumped = True
    await until(lambda: 3 in c1.numbers)
    assert c1.numbers == [3]
    await older.close()
    await newer.close()


async def test_a_replica_that_has_moved_is_told_so_until_it_is_reached() -> None:
    """c1 knows another address of it, and has no stream to it there."""
    c1 = await End("c1", ["c2"]).start()
    c2 = await End("c2", ["c1"]).start({"c1": c1.address}, own="127.0.0.1:9")
    await until(lambda: bool(c2.streams.refusals.final()))
    said = c2.streams.refusals.final()["c1"]
    assert "c2 has moved: it is at '127.0.0.1:9' by its own --peers" in said and "with the same --peers" in said
    c1.streams._outgoing["c2"] = OutgoingStream("c2", (1, 1), asyncio.get_running_loop())
    await until(lambda: "c1" in c2.open)
    assert not c2.streams.refusals.final(), "it is reached at the other address too"
    await c2.stop()
    await c1.stop()


class Amnesia(dict[str, Hello]):
    """Knows no session."""

    def get(self, *_: Any) -> Any:
        return None


async def test_streams_that_forget_sessions_are_found(c1: End) -> None:
    c1.streams._sessions = Amnesia()
    with pytest.raises(AssertionError):
        await test_an_older_session_and_the_same_one_are_refused(c1)


async def test_a_replica_that_lost_its_log_counts_from_one_again(c1: End) -> None:
    """Its boots were counted in the log. Otherwise it would be refused until its peers start again."""
    old, new = Raw(c1.address), Raw(c1.address)
    assert await old.hello("c2", 7, 3, log="old")
    assert await new.hello("c2", 1, 1, log="new")
    assert await old.code() is not None
    await new.write(numbered(1))
    await until(lambda: c1.numbers == [1])
    await old.close()
    await new.close()


async def forge(c1: End) -> None:
    """Somebody calls as `c2`, with the highest session there is and with every other."""
    real = Raw(c1.address)
    assert await real.hello("c2", 1, 1)
    for boot, stream, log in ((2**64 - 1, 2**64 - 1, ""), (2, 1, ""), (1, 2, ""), (1, 1, "new")):
        forged = Raw(c1.address, is_forged=True)
        assert not await forged.hello("c2", boot, stream, log=log)
        assert await forged.code() is grpc.StatusCode.UNAVAILABLE
        await forged.close()
    silent = c1.streams._incoming["c2"]
    await real.write(numbered(1))
    await until(lambda: c1.numbers == [1])
    assert silent.session == (1, 1)
    await real.close()
    again = Raw(c1.address)
    assert await again.hello("c2", 1, 2), "its next session is welcome"
    await again.close()


async def test_a_forged_hello_changes_nothing(c1: End) -> None:
    await forge(c1)


async def test_a_replica_that_believes_every_hello_is_found(c1: End) -> None:
    async def is_real(*_: object) -> bool:
        return True

    c1.streams._callers.is_real = is_real  # type: ignore[assignment,method-assign]
    with pytest.raises((AssertionError, TimeoutError)):
        await forge(c1)


async def test_among_a_flood_of_forged_hellos_the_real_one_is_found(c1: End) -> None:
    """It dials again, as replicas do, while a hundred others wait for an answer."""
    forged = [Raw(c1.address, is_forged=True) for _ in range(100)]
    flood = asyncio.gather(*[each.hello("c2", 9, number) for number, each in enumerate(forged)])
    number, is_welcome = 0, False
    async with asyncio.timeout(20):
        while not is_welcome:
            number += 1
            real = Raw(c1.address)
            is_welcome = await real.hello("c2", 1, number)
            await real.close()
    assert not any(await flood)
    for each in forged:
        await each.close()


async def test_sessions_of_different_peers_do_not_meet(c1: End) -> None:
    a, b = Raw(c1.address), Raw(c1.address)
    assert await a.hello("c2", 5, 5) and await b.hello("c3", 1, 1)
    await a.write(numbered(1))
    await b.write(numbered(2))
    await until(lambda: sorted(c1.numbers) == [1, 2])
    assert {peer for peer, _ in c1.received_from} == {"c2", "c3"}
    await a.close()
    await b.close()


# ---- order, loss, repetition ----------------------------------------------------------------------------------------


async def test_under_cuts_nothing_is_repeated_or_reordered() -> None:
    chance = random.Random(1)
    c1, c2 = await connected()
    sent = cuts = 0
    while cuts < 15 or len(c2.numbers) <= 100:
        cuts += 1
        for _ in range(chance.randrange(1, 200)):
            if "c2" in c1.open:
                sent += 1
                c1.open["c2"].push(encode_message(numbered(sent, chance.choice([0, 100, 5000]))))
        await asyncio.sleep(chance.uniform(0, 0.03))
        chance.choice([c1, c2]).streams.cut(chance.choice(["c1", "c2"]))
        await until(lambda: "c2" in c1.open and c1.open["c2"].is_live)
    sent += 1
    c1.open["c2"].push(encode_message(numbered(sent)))
    await until(lambda: sent in c2.numbers)
    assert c2.numbers == sorted(set(c2.numbers)), "a message twice, or out of order"
    opened = [event for event in c1.events if event == "opened c2"]
    closed = [event for event in c1.events if event == "closed c2"]
    assert len(opened) == len(closed) + 1 > 3
    await c1.stop()
    await c2.stop()


async def test_what_waits_for_a_peer_is_dropped_with_its_stream() -> None:
    c1, c2 = await connected()
    old = c1.open["c2"]
    c1.streams.cut("c2")
    old.push(encode_message(numbered(1)))
    await until(lambda: "c2" in c1.open and c1.open["c2"] is not old)
    c1.open["c2"].push(encode_message(numbered(2)))
    await until(lambda: bool(c2.numbers))
    assert c2.numbers == [2]
    await c1.stop()
    await c2.stop()


async def test_a_peer_that_starts_again_is_found() -> None:
    c1, c2 = await connected()
    await c2.stop()
    await until(lambda: "c2" not in c1.open)
    again = await End("c2", ["c1"]).start(port=c2.port)
    await until(lambda: "c2" in c1.open)
    c1.open["c2"].push(encode_message(numbered(1)))
    await until(lambda: again.numbers == [1])
    await c1.stop()
    await again.stop()


# ---- bounds ---------------------------------------------------------------------------------------------------------


async def test_a_flood_stops_at_the_inbox_and_at_the_outbox_and_arrives_in_order() -> None:
    """A tick thread that does not tick: its peer's messages wait, and are bounded, on both sides."""
    c1, c2 = await connected(is_pumped=False)
    stream = c1.open["c2"]
    sent = 0
    while sent < 10 * INBOX_MESSAGES_MAX:
        for _ in range(500):
            sent += 1
            assert stream.push(encode_message(numbered(sent, 400)))
        await asyncio.sleep(0)
    await asyncio.sleep(0.5)
    incoming = c2.streams._incoming["c1"]
    assert INBOX_MESSAGES_MAX <= incoming.waiting[0] < INBOX_MESSAGES_MAX + MESSAGES_MAX
    assert stream.waiting_bytes > 0
    c2.is_pumped = True
    await until(lambda: len(c2.received_from) == sent, 20)
    assert c2.numbers == list(range(1, sent + 1))
    assert incoming.waiting == (0, 0) and stream.waiting_bytes == 0
    await c1.stop()
    await c2.stop()


async def test_an_outbox_takes_its_bound_and_no_more() -> None:
    c1, c2 = await connected(is_pumped=False)
    stream = c1.open["c2"]
    piece = encode_message(numbered(1, 60_000))
    pushed = 0
    while stream.push(piece):  # the loop does not run meanwhile
        pushed += 1
    assert OUTBOX_BYTES_MAX - len(piece) < pushed * len(piece) <= OUTBOX_BYTES_MAX
    await c1.stop()
    await c2.stop()


async def test_a_hostile_batch_ends_its_stream_only(c1: End) -> None:
    other = Raw(c1.address)
    assert await other.hello("c3", 1, 1)
    for number, bad in enumerate(
        [b"\xff" * 40, encode_message(numbered(1)) * 5000, encode_hello(Hello(CLUSTER, "c2", 9, 9))], start=1
    ):
        raw = Raw(c1.address)
        assert await raw.hello("c2", 1, number)
        await raw.call.write(bad)
        assert await raw.code() is grpc.StatusCode.OK
        await raw.close()
    assert c1.numbers == []
    await other.write(numbered(7))
    await until(lambda: c1.numbers == [7])
    await other.close()


# ---- who may speak --------------------------------------------------------------------------------------------------


async def refused(raw: Raw, node: str = "c2", cluster: str = CLUSTER) -> grpc.StatusCode:
    assert not await raw.hello(node, 9, 9, cluster)
    code = await raw.code()
    await raw.close()
    return code


async def test_strangers_are_refused_without_certificates(c1: End) -> None:
    assert await refused(Raw(c1.address), "c4") is grpc.StatusCode.PERMISSION_DENIED
    assert await refused(Raw(c1.address), "c1") is grpc.StatusCode.PERMISSION_DENIED, "itself"
    assert await refused(Raw(c1.address), cluster="other") is grpc.StatusCode.PERMISSION_DENIED
    hello = encode_hello(Hello(CLUSTER, "c2", 1, 1))
    for beginning in (encode_message(numbered(1)), hello + encode_message(numbered(1)), b"\x08"):
        raw = Raw(c1.address)
        await raw.call.write(beginning)
        assert await raw.code() is grpc.StatusCode.INVALID_ARGUMENT
        await raw.close()
    assert c1.numbers == []


async def test_a_caller_that_says_nothing_is_given_up(c1: End, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "CONNECT_S_MAX", 0.1)
    raw = Raw(c1.address)
    assert await raw.code() is grpc.StatusCode.INVALID_ARGUMENT
    await raw.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def secured(authority: Authority) -> AsyncIterator[End]:
    end = await End("c1", ["c2", "c3"], authority.issue("c1", role="coordinator").security()).start()
    yield end
    await end.stop()


def tls_raw(end: End, leaf: Leaf | None, authority: Path) -> Raw:
    pair = (None, None) if leaf is None else (leaf.key.read_bytes(), leaf.certificate.read_bytes())
    credentials = grpc.ssl_channel_credentials(authority.read_bytes(), *pair)
    options = client_options(server_name("coordinator", "c1"))
    return Raw(end.address, grpc.aio.secure_channel(end.address, credentials, options=options))


async def test_replicas_with_certificates_talk(authority: Authority) -> None:
    c1, c2 = await connected(authority)
    c1.open["c2"].push(encode_message(numbered(1)))
    await until(lambda: c2.numbers == [1])
    await c1.stop()
    await c2.stop()


async def test_another_replica_s_certificate_is_as_good_as_none(secured: End, authority: Authority) -> None:
    leaf = authority.issue("c2", role="coordinator")
    assert await refused(tls_raw(secured, leaf, authority.path), "c3") is grpc.StatusCode.PERMISSION_DENIED
    right = tls_raw(secured, leaf, authority.path)
    assert await right.hello("c2", 1, 1)
    await right.close()


@pytest.mark.parametrize(
    ("name", "role"),
    [("c2", "host"), ("c2", "operator"), ("c2", "viewer"), ("c4", "coordinator"), ("c1", "coordinator")],
)
async def test_who_is_no_replica_is_refused_before_any_frame(
    secured: End, authority: Authority, name: str, role: str
) -> None:
    """The call is not even answered with a question: nothing was written when it ends."""
    raw = tls_raw(secured, authority.issue(name, role=role), authority.path)
    assert await raw.code() is grpc.StatusCode.PERMISSION_DENIED
    await raw.close()
    assert secured.streams.refused == 1


async def test_no_certificate_a_foreign_one_and_plaintext_have_no_handshake(
    secured: End, authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "foreign").mkdir()
    foreign = Authority(tmp_path / "foreign", "foreign").issue("c2", role="coordinator")
    raws = [
        tls_raw(secured, None, authority.path),
        tls_raw(secured, foreign, authority.path),
        Raw(secured.address),
    ]
    for raw in raws:
        assert await refused(raw) is grpc.StatusCode.UNAVAILABLE
    assert secured.streams.refused == 0 and secured.numbers == []


async def test_a_server_with_another_name_is_not_sent_to(authority: Authority) -> None:
    """Whoever took the address of a replica has no certificate with its name."""
    impostor = await End("c2", ["c1"], authority.issue("c3", role="coordinator").security()).start()
    c1 = await End("c1", ["c2"], authority.issue("c1", role="coordinator").security()).start({"c2": impostor.address})
    await asyncio.sleep(0.5)
    assert not c1.open and not impostor.received_from
    await c1.stop()
    await impostor.stop()


async def test_a_new_certificate_is_presented_without_a_restart(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "RENEWAL_CHECK_S", 0.05)
    leaf = authority.issue("c1", role="coordinator")
    c2 = await End("c2", ["c1"], authority.issue("c2", role="coordinator").security()).start()
    c1 = await End("c1", ["c2"], leaf.security()).start({"c2": c2.address})
    await until(lambda: "c2" in c1.open)
    first = c1.open["c2"]
    authority.write(leaf, "c1", role="coordinator")
    assert c1.security.reload()
    await until(lambda: "c2" in c1.open and c1.open["c2"] is not first)
    await c1.stop()
    await c2.stop()
