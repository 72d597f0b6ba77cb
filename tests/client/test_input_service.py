"""A host's port for clients, over real gRPC: what is looked at before the host hears of it, what is bounded, who may."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import grpc.aio
import msgspec
import pytest
from tests.client.fake_host import LIMIT_S, Books, Closed, FakeHost, Paid, until
from tests.security.certificates import Authority

from snapline.agent_runtime.host import input_service
from snapline.agent_runtime.message_encoding import encode_message
from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.client.host_calls import HostCalls, OfferError
from snapline.messages.client_requests import INPUTS_MAX, PART_BYTES, GivenInput, InputOutcome
from snapline.messages.client_wire import OFFER_PATH, offer_messages
from snapline.security.rpc_authorization import ROLES
from snapline.security.transport import Security


@contextlib.asynccontextmanager
async def serving(security: Security | None = None) -> AsyncIterator[FakeHost]:
    host = await FakeHost("h1", Books("a", "b"), security).start()
    try:
        yield host
    finally:
        await host.stop()


async def offer(host: FakeHost, *inputs: GivenInput, security: Security | None = None) -> tuple[InputOutcome, ...]:
    calls = HostCalls(security or Security.loopback(), "shop")
    try:
        return await calls.offer(host.host, host.address, inputs, LIMIT_S)
    finally:
        await calls.close()


def paid(agent: str, key: str, amount: int = 1) -> GivenInput:
    return GivenInput(agent, key, encode_message(Paid(amount)))


async def test_inputs_are_handed_on_in_order_and_answered_in_order() -> None:
    async with serving() as host:
        answered = await offer(host, paid("a", "k1"), paid("b", "k1"), paid("a", "k2"), paid("a", "k1"))
        assert answered == (
            InputOutcome("accepted", 1),
            InputOutcome("accepted", 1),
            InputOutcome("accepted", 2),
            InputOutcome("repeated", 1),
        )
        ((client, inputs),) = host.offered
        assert client == "shop" and [(x.agent, x.key) for x in inputs] == [
            ("a", "k1"),
            ("b", "k1"),
            ("a", "k2"),
            ("a", "k1"),
        ]


async def test_json_becomes_the_message_that_the_agent_declares() -> None:
    async with serving() as host:
        given = GivenInput("a", "k", b' {"note": "tea", "amount": 5, "photo": "AAE="}', "Paid")
        again = GivenInput("a", "k", msgspec.json.encode({"photo": b"\0\1", "amount": 5, "note": "tea"}), "Paid")
        assert [x.status for x in await offer(host, given, again)] == ["accepted", "repeated"]
        assert host.books.taken["a"]["k"][1] == encode_message(Paid(5, "tea", b"\0\1"))
        assert (await offer(host, GivenInput("b", "k", b"{}", "Closed")))[0].status == "accepted"
        assert host.books.taken["b"]["k"][1] == encode_message(Closed())


WRONG: dict[str, tuple[GivenInput, str]] = {
    "unknown type": (
        GivenInput("a", "k", b"{}", "Payed"),
        "agent 'a' (Clerk) has no handler for messages of type 'Payed'; those it has are for: Closed, Paid",
    ),
    "wrong field": (
        GivenInput("a", "k", b'{"amount": "five"}', "Paid"),
        "a message of type 'Paid' for agent 'a' is not as declared: Expected `int`, got `str` - at `$.amount`",
    ),
    "missing field": (GivenInput("a", "k", b"{}", "Paid"), "Object missing required field `amount`"),
    "no JSON": (GivenInput("a", "k", b'{"amount": }', "Paid"), "JSON is malformed: invalid character (byte 11)"),
    "cut JSON": (GivenInput("a", "k", b'{"amount"', "Paid"), "Input data was truncated"),
    "unknown packed type": (GivenInput("a", "k", b"\x04Nope\x80"), "has no handler for messages of type 'Nope'"),
    "wrong packed body": (GivenInput("a", "k", b"\x04Paid\x80"), "missing required field `amount`"),
    "garbage": (GivenInput("a", "k", b"\x04Paid\xc1"), "is not as declared"),
    "no message": (GivenInput("a", "k", b""), "an input of 0 bytes that is no message"),
    "a name that is cut": (GivenInput("a", "k", b"\x09Paid"), "an input of 5 bytes that is no message"),
    "a name that is none": (GivenInput("a", "k", b"\x02\xff\xfe\x80"), "whose type has no name"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_what_no_turn_could_take_is_refused_before_the_host_hears_of_it(case: str) -> None:
    given, words = WRONG[case]
    async with serving() as host:
        first, refused, last = await offer(host, paid("a", "k1"), given, paid("a", "k2"))
        assert (refused.status, first.number, last.number) == ("refused", 1, 2)
        assert words in refused.reason, refused.reason
        assert len(host.offered[0][1]) == 2


@pytest.mark.parametrize("name", ["Closed", "Payed"])
async def test_what_is_given_to_public_handlers_only_hears_of_no_other_ones(name: str) -> None:
    async with serving() as host:
        payload = bytes([len(name)]) + name.encode() + b"\x80"
        for given in (GivenInput("a", "k", b"{}", name, True), GivenInput("a", "k", payload, "", True)):
            taken, refused = await offer(host, GivenInput("a", "1", b'{"amount": 1}', "Paid", True), given)
            assert (taken.number, refused.status) == (1, "not public")
            assert refused.reason == (
                f"agent 'a' has no public handler for messages of type '{name}' (public are: Paid); to serve it, "
                f"mark it @snapline.handler(public=True), or start the gateway with --serve a/{name}"
            )


async def test_a_large_input_stays_for_public_handlers_only() -> None:
    async with serving() as host:
        large = GivenInput("a", "k", b" " * (PART_BYTES + 1) + b"{}", "Closed", True)
        assert [outcome.status for outcome in await offer(host, large)] == ["not public"]
        assert not host.offered


async def test_of_an_agent_that_is_elsewhere_it_says_where() -> None:
    async with serving() as host:
        host.agents = ["b"]
        host.places["a"] = ("h2", "127.0.0.1:2")
        reason = "agent 'a' is not on host h1 just now"
        assert await offer(host, paid("a", "k"), paid("b", "k")) == (
            InputOutcome("retry", 0, reason, "h2", "127.0.0.1:2"),
            InputOutcome("accepted", 1),
        )
        host.answers = lambda offered: InputOutcome("retry", 0, "it has just left") if offered.key == "k2" else None
        host.places["b"] = ("h3", "127.0.0.1:3")
        assert await offer(host, paid("b", "k2")) == (
            InputOutcome("retry", 0, "it has just left", "h3", "127.0.0.1:3"),
        )
        nobody = await offer(host, paid("nobody", "k"))
        assert nobody == (InputOutcome("retry", 0, "agent 'nobody' is not on host h1 just now"),)


async def test_the_largest_message_comes_in_parts_and_a_larger_one_is_refused() -> None:
    async with serving() as host:
        head = len(encode_message(Paid(1, "", b"x" * 70_000))) - 70_000
        largest = encode_message(Paid(1, "", b"x" * (MESSAGE_BYTES_MAX - head)))
        assert len(largest) == MESSAGE_BYTES_MAX
        assert [x.status for x in await offer(host, GivenInput("a", "k", largest))] == ["accepted"]
        assert host.books.taken["a"]["k"][1] == largest
        with pytest.raises(OfferError, match="16777216 bytes") as caught:
            await offer(host, GivenInput("a", "l", largest + b"x"))
        assert caught.value.is_unsent
        text = b'{"amount": 1, "photo": "' + b"AAAA" * (3 * 2**20) + b'"}'
        assert [x.status for x in await offer(host, GivenInput("a", "m", text, "Paid"))] == ["accepted"]


async def test_json_that_becomes_larger_than_a_message_may_be_is_refused() -> None:
    """What it leaves out is written into the message."""
    async with serving() as host:
        text = b'{"amount": 1, "note": "' + b"x" * (MESSAGE_BYTES_MAX - 25) + b'"}'
        assert len(text) == MESSAGE_BYTES_MAX
        (refused,) = await offer(host, GivenInput("a", "k", text, "Paid"))
        assert refused.status == "refused" and "the limit is 16,777,216" in refused.reason


@pytest.mark.parametrize(
    ("messages", "code", "words"),
    [
        ([b"\x0a\x05abc"], grpc.StatusCode.INVALID_ARGUMENT, "no OfferRequest"),
        ([b"\x12\x00" * 500_000], grpc.StatusCode.INVALID_ARGUMENT, "nothing of it is read"),
        (
            list(offer_messages("c", [paid("a", "k")] * (INPUTS_MAX + 1))),
            grpc.StatusCode.INVALID_ARGUMENT,
            "1000 inputs",
        ),
        (
            list(offer_messages("c", [GivenInput("a", "k", bytes(2**21))]))[:1],
            grpc.StatusCode.INVALID_ARGUMENT,
            "its end",
        ),
        ([], grpc.StatusCode.INVALID_ARGUMENT, "its end"),
        (list(offer_messages("", [paid("a", "k")])), grpc.StatusCode.INVALID_ARGUMENT, "'' is no valid client id"),
    ],
    ids=["garbage", "bomb", "too many", "cut", "nothing", "nobody"],
)
async def test_a_request_that_is_none_ends_and_nothing_is_handed_on(
    messages: list[bytes], code: grpc.StatusCode, words: str
) -> None:
    async with serving() as host, grpc.aio.insecure_channel(host.address) as channel:
        offered: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(OFFER_PATH)
        call = offered(iter(messages), timeout=LIMIT_S)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is code and words in (caught.value.details() or "")
        assert host.offered == []
        assert (await offer(host, paid("a", "k")))[0].status == "accepted", "others are served"


async def test_more_than_there_is_room_for_is_turned_back_and_room_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_service, "UNDER_WAY_BYTES_MAX", 100_000)
    async with serving() as host:
        host.hold = []
        large = GivenInput("a", "k1", encode_message(Paid(1, "x" * 60_000)))
        first = asyncio.create_task(offer(host, large))
        await until(lambda: host.hold)
        with pytest.raises(OfferError, match="host h1 has 100,000 bytes of inputs under way") as caught:
            await offer(host, GivenInput("b", "k2", encode_message(Paid(1, "x" * 60_000))))
        assert caught.value.is_unsent and not caught.value.is_final
        held, host.hold = host.hold, None
        held[0]()
        assert (await first)[0].status == "accepted"
        assert (await offer(host, GivenInput("b", "k2", encode_message(Paid(1, "x" * 60_000)))))[0].number == 1
        await until(lambda: not host.service._bytes)


async def test_a_client_that_has_gone_does_no_harm_and_its_input_may_be_taken() -> None:
    async with serving() as host:
        host.hold = []
        calls = HostCalls(Security.loopback(), "shop")
        with pytest.raises(OfferError, match="did not answer in time") as caught:
            await calls.offer("h1", host.address, [paid("a", "k")], 2.0)
        assert not caught.value.is_unsent
        await until(lambda: not host.service._bytes)
        held, host.hold = host.hold, None
        held[0]()  # nobody is there any more
        assert (await calls.offer("h1", host.address, [paid("a", "k")], LIMIT_S))[0] == InputOutcome("repeated", 1)
        await calls.close()


async def test_a_host_that_does_not_answer_ends_the_call_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_service, "ANSWER_S_MAX", 0.2)
    async with serving() as host:
        host.hold = []
        with pytest.raises(OfferError) as caught:
            await offer(host, paid("a", "k"))
        assert not caught.value.is_unsent
        await until(lambda: not host.service._bytes)


async def test_a_host_that_is_not_there_has_certainly_taken_nothing() -> None:
    host = await FakeHost("h1", Books("a")).start()
    await host.stop()
    with pytest.raises(OfferError, match="host h1 does not answer") as caught:
        await offer(host, paid("a", "k"))
    assert caught.value.is_unsent and not caught.value.is_final


async def test_a_host_that_ends_with_the_inputs_in_its_hands_leaves_them_unknown() -> None:
    async with serving() as host:
        host.hold = []
        waiting = asyncio.create_task(offer(host, paid("a", "k")))
        await until(lambda: host.hold)
        await host.stop()
        with pytest.raises(OfferError) as caught:
            await waiting
        assert not caught.value.is_unsent


# ---- who may ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_with_certificates_clients_may_and_nobody_else(authority: Authority) -> None:
    async with serving(authority.issue("h1").security()) as host:
        for role in ROLES:
            security = authority.issue("somebody", role=role).security()
            if role == "client":
                assert (await offer(host, paid("a", role), security=security))[0].status == "accepted"
                continue
            with pytest.raises(
                OfferError, match=f"sending an input needs the role client, and this one is for {role}"
            ) as caught:
                await offer(host, paid("a", role), security=security)
            assert caught.value.is_final and caught.value.is_unsent
        assert [client for client, _ in host.offered] == ["somebody"], "the certificate says who it is"


async def test_without_certificates_no_other_machine_is_spoken_to(authority: Authority) -> None:
    with pytest.raises(OfferError, match="would send everything in plaintext") as caught:
        await HostCalls(Security.loopback(), "shop").offer("h1", "192.0.2.1:7000", [paid("a", "k")], 1.0)
    assert caught.value.is_final and caught.value.is_unsent


async def test_a_host_must_be_the_one_that_was_meant(authority: Authority) -> None:
    """An address that another host has now, or somebody else."""
    async with serving(authority.issue("h2").security()) as host:
        security = authority.issue("c", role="client").security()
        with pytest.raises(OfferError) as caught:
            await offer(host, paid("a", "k"), security=security)
        assert caught.value.is_unsent and host.offered == []


async def test_a_host_of_an_older_version_takes_no_inputs() -> None:
    host = FakeHost("h1", Books("a"))
    host.address = f"127.0.0.1:{await host.transport.start('127.0.0.1:0')}"
    with pytest.raises(OfferError, match=r"does not know this call: is it of an older version") as caught:
        await offer(host, paid("a", "k"))
    assert caught.value.is_final and caught.value.is_unsent
    await host.stop()


# ---- the tests can fail -------------------------------------------------------------------------------------------------


def nothing_is_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(input_service, "check_message", lambda *_, **__: None)


def room_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def room(service: input_service.InputService) -> AsyncIterator[Callable[[int], bool]]:
        def take(size_bytes: int) -> bool:
            service._bytes += size_bytes
            return service._bytes <= input_service.UNDER_WAY_BYTES_MAX

        yield take

    patch.setattr(input_service.InputService, "_room", room)


async def test_a_service_that_looks_at_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_is_looked_at(monkeypatch)
    with pytest.raises(AssertionError):
        await test_what_no_turn_could_take_is_refused_before_the_host_hears_of_it("unknown packed type")


async def test_a_service_that_keeps_its_room_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    room_is_not_given_back(monkeypatch)
    with pytest.raises((AssertionError, OfferError)):
        await test_more_than_there_is_room_for_is_turned_back_and_room_comes_back(monkeypatch)
