"""A host's port for clients that wait for answers, over real gRPC: what is bounded, who may, and what a client that has gone leaves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.client.fake_host import LIMIT_S, Books, FakeHost, Taken, until
from tests.security.certificates import Authority

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host import input_service
from snapline.agent_runtime.message_encoding import encode_message
from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.client.host_calls import HostCalls, OfferError
from snapline.messages.client_requests import AskOutcome
from snapline.messages.client_wire import ASK_PATH, encode_ask
from snapline.security.rpc_authorization import ROLES
from snapline.security.transport import Security


@contextlib.asynccontextmanager
async def serving(security: Security | None = None) -> AsyncIterator[FakeHost]:
    host = await FakeHost("h1", Books("a", "b"), security).start()
    host.books.take("a", "k1", b"one")
    host.books.take("a", "k2", b"two")
    try:
        yield host
    finally:
        await host.stop()


async def ask(
    host: FakeHost,
    agent: str,
    key: str,
    *,
    is_early: bool = False,
    limit_s: float = LIMIT_S,
    security: Security | None = None,
) -> AskOutcome:
    calls = HostCalls(security or Security.loopback(), "shop")
    try:
        return await calls.ask(host.host, host.address, encode_ask(agent, key, is_early=is_early), limit_s)
    finally:
        await calls.close()


async def test_what_the_core_says_is_told_as_it_is() -> None:
    async with serving() as host:
        body = encode_message(Taken(2))[len("Taken") + 1 :]
        assert await ask(host, "a", "k2") == AskOutcome("replied", 2, "Taken", body)
        assert await ask(host, "a", "k1", is_early=True) == AskOutcome(
            "replied", 1, "Taken", body.replace(b"\2", b"\1")
        )
        assert host.asked == [("a", "k2", False), ("a", "k1", True)]
        host.replies = lambda agent, key, is_early: (
            ev.AskAnswer("buried", 7) if key == "bad" else ev.AskAnswer("replied", 8)
        )
        assert await ask(host, "a", "bad") == AskOutcome("buried", 7)
        assert await ask(host, "a", "k1") == AskOutcome("replied", 8), "the turn answered nothing"
        host.replies = lambda agent, key, is_early: None
        assert (await ask(host, "a", "k3")).status == "unknown"


async def test_of_an_agent_that_is_elsewhere_it_says_where() -> None:
    async with serving() as host:
        host.agents, host.places["a"] = ["b"], ("h2", "127.0.0.1:2")
        reason = "agent a is not on host h1"
        assert await ask(host, "a", "k1") == AskOutcome("retry", reason=reason, host="h2", address="127.0.0.1:2")


async def test_the_largest_answer_comes_in_parts() -> None:
    async with serving() as host:
        head = len(encode_message(Taken(1, b"x" * 70_000))) - 70_000
        largest = encode_message(Taken(1, b"x" * (MESSAGE_BYTES_MAX - head)))
        assert len(largest) == MESSAGE_BYTES_MAX
        host.replies = lambda agent, key, is_early: ev.AskAnswer("replied", 1, largest)
        answer = await ask(host, "a", "k1")
        assert b"\5Taken" + answer.body == largest


async def test_who_asks_the_same_waits_for_the_same_and_who_has_gone_does_no_harm() -> None:
    async with serving() as host:
        host.hold_asks = []
        with pytest.raises(OfferError, match="did not answer in time"):
            await ask(host, "a", "k1", limit_s=2.0)
        await until(lambda: not host.service._asks._calls)
        waiting = [asyncio.create_task(ask(host, "a", "k1")) for _ in range(3)]
        other = asyncio.create_task(ask(host, "a", "k1", is_early=True))
        await until(lambda: host.service._asks._calls == 4)
        assert host.asked == [("a", "k1", False), ("a", "k1", True)], "the core is asked once for each"
        held, host.hold_asks = host.hold_asks, None
        for tell in held:
            tell()
        assert [x.number for x in await asyncio.gather(*waiting, other)] == [1] * 4
        assert not host.service._asks._open
        assert (await ask(host, "a", "k1")).number == 1 and len(host.asked) == 3, "later ones ask again"


async def test_more_than_there_is_room_for_are_turned_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_service, "ASKS_MAX", 1)
    async with serving() as host:
        host.hold_asks = []
        first = asyncio.create_task(ask(host, "a", "k1"))
        await until(lambda: host.hold_asks)
        with pytest.raises(OfferError, match="1 clients wait for answers of host h1") as caught:
            await ask(host, "a", "k2")
        assert not caught.value.is_final
        held, host.hold_asks = host.hold_asks, None
        held[0]()
        assert (await first).number == 1
        assert (await ask(host, "a", "k2")).number == 2


async def test_a_call_ends_even_if_the_agent_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_service, "ASK_S_MAX", 0.2)
    async with serving() as host:
        host.hold_asks = []
        with pytest.raises(OfferError, match="did not answer in time"):
            await ask(host, "a", "k1")
        await until(lambda: not host.service._asks._calls)


@pytest.mark.parametrize(
    ("request_bytes", "code", "words"),
    [
        (b"\x0a\x05abc", grpc.StatusCode.INVALID_ARGUMENT, "no AskRequest"),
        (b"\x0a" * 5000, grpc.StatusCode.RESOURCE_EXHAUSTED, "4096 are allowed"),
        (encode_ask("no id", "k", is_early=False), grpc.StatusCode.INVALID_ARGUMENT, "'no id' is no valid agent id"),
        (encode_ask("a", "", is_early=False), grpc.StatusCode.INVALID_ARGUMENT, "a key has 1 to 128 characters, not 0"),
        (encode_ask("a", "k" * 129, is_early=True), grpc.StatusCode.INVALID_ARGUMENT, "characters, not 129"),
    ],
    ids=["garbage", "large", "agent", "no key", "long key"],
)
async def test_a_question_that_is_none(request_bytes: bytes, code: grpc.StatusCode, words: str) -> None:
    async with serving() as host, grpc.aio.insecure_channel(host.address) as channel:
        asking: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(ASK_PATH)
        call = asking(request_bytes, timeout=LIMIT_S)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is code and words in (caught.value.details() or "")
        assert host.asked == []
        assert (await ask(host, "a", "k1")).number == 1, "others are served"


async def test_a_host_that_ends_meanwhile_leaves_it_open() -> None:
    async with serving() as host:
        host.hold_asks = []
        waiting = asyncio.create_task(ask(host, "a", "k1"))
        await until(lambda: host.hold_asks)
        await host.stop()
        with pytest.raises(OfferError) as caught:
            await waiting
        assert not caught.value.is_final


async def test_with_certificates_clients_and_operators_may_and_nobody_else(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with serving(authority.issue("h1").security()) as host:
        for role in ROLES:
            security = authority.issue("somebody", role=role).security()
            if role in ("client", "approver", "operator", "admin"):
                assert (await ask(host, "a", "k1", security=security)).number == 1
                continue
            with pytest.raises(
                OfferError, match=f"needs the role client or approver or operator or admin, and this one is for {role}"
            ) as caught:
                await ask(host, "a", "k1", security=security)
            assert caught.value.is_final
        assert len(host.asked) == 4


async def test_a_service_that_asks_for_every_call_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = input_service.AskService._begin

    def forgetful(service: input_service.AskService, question: tuple[str, str, bool]) -> "asyncio.Future[ev.AskAnswer]":
        service._open.pop(question, None)
        waiting = begin(service, question)
        service._open = {}
        return waiting

    monkeypatch.setattr(input_service.AskService, "_begin", forgetful)
    with pytest.raises((AssertionError, KeyError)):
        await test_who_asks_the_same_waits_for_the_same_and_who_has_gone_does_no_harm()
