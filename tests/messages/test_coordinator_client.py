"""The tools' client among several replicas: whom it asks next, and what it says while nobody answers for the fleet."""

import contextlib
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, KeysView

import grpc.aio
import pytest

from snapline.errors import CoordinatorUnavailableError, UsageError
from snapline.messages import coordinator_client
from snapline.messages.coordinator_client import LEADER_KEY, RETRY_TIME_LEFT_MIN_S, CoordinatorClient, named_error
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.protos.v1 import coordinator_pb2_grpc
from snapline.security.rpc_authorization import ERROR_KEY


class Follower(coordinator_pb2_grpc.CoordinatorServicer):
    """A replica that lives and does not lead; the leader that it names."""

    def __init__(self, leader: str = "") -> None:
        self.leader = leader

    async def Status(self, request: pb.StatusRequest, context: grpc.aio.ServicerContext) -> pb.FleetStatus:  # type: ignore[type-arg]
        context.set_trailing_metadata(((LEADER_KEY, self.leader),))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "no replica leads the coordinator just now")
        raise AssertionError("abort raises")


class Leader(coordinator_pb2_grpc.CoordinatorServicer):
    """A replica that leads."""

    async def Status(self, request: pb.StatusRequest, context: grpc.aio.ServicerContext) -> pb.FleetStatus:  # type: ignore[type-arg]
        return pb.FleetStatus(fleet="bank")


@contextlib.asynccontextmanager
async def serving(*replicas: coordinator_pb2_grpc.CoordinatorServicer) -> AsyncIterator[str]:
    """Their addresses, with commas between."""
    addresses = []
    async with contextlib.AsyncExitStack() as stack:
        for replica in replicas:
            server = grpc.aio.server()
            coordinator_pb2_grpc.add_CoordinatorServicer_to_server(replica, server)  # type: ignore[no-untyped-call]
            addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
            await server.start()
            stack.push_async_callback(server.stop, None)
        yield ",".join(addresses)


@pytest.fixture
async def follower() -> AsyncIterator[str]:
    async with serving(Follower()) as address:
        yield address


def dead() -> str:
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


async def heard(address: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], str]:
    """What a call says while it tries, and what it ends with."""
    monkeypatch.setattr(coordinator_client, "TROUBLE_S", 1.0)
    said: list[str] = []
    client = CoordinatorClient(address, on_trouble=said.append)
    with pytest.raises(CoordinatorUnavailableError) as caught:
        await client.status(timeout_s=2.0)
    await client.close()
    return said, str(caught.value)


async def test_with_two_of_three_dead_it_says_once_who_and_why_that_is_too_many(
    follower: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = dead(), dead()
    said, ended = await heard(f"{one},{follower},{two}", monkeypatch)
    lost = f"2 of 3 replicas of the coordinator do not answer ({one}, {two}), and it takes 2 to decide"
    assert said == [f"{lost}; trying on"] and ended == lost


async def test_with_one_of_three_dead_the_others_are_about_to_elect(
    follower: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = dead()
    said, _ = await heard(f"{one},{follower},{follower.replace('127.0.0.1', 'localhost')}", monkeypatch)
    assert said == [
        f"1 of 3 replicas of the coordinator do not answer ({one}), and none of the others leads yet; trying on"
    ]


class Follows:
    """A channel to a replica that does not lead; `timeouts_s`: what it was asked with."""

    def __init__(self) -> None:
        self.timeouts_s: list[float] = []

    def unary_unary(self, path: str) -> Callable[..., Awaitable[bytes]]:
        return self._ask

    async def _ask(self, request: bytes, *, timeout: float) -> bytes:
        self.timeouts_s.append(timeout)
        trailing = grpc.aio.Metadata((LEADER_KEY, ""))
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), trailing, "nobody leads")


async def test_nobody_is_asked_again_without_the_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Follows()
    client = CoordinatorClient(f"{dead()},{dead()}")
    monkeypatch.setattr(client, "_channel", lambda address: channel)
    with pytest.raises(CoordinatorUnavailableError):
        await client.status(timeout_s=RETRY_TIME_LEFT_MIN_S + 0.3)
    first, *again = channel.timeouts_s
    assert first > RETRY_TIME_LEFT_MIN_S and again and min(again) >= RETRY_TIME_LEFT_MIN_S
    with pytest.raises(CoordinatorUnavailableError):
        await client.status(timeout_s=RETRY_TIME_LEFT_MIN_S / 2)
    await client.close()


async def test_one_that_is_alone_and_dead_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said, ended = await heard(dead(), monkeypatch)
    assert said == []
    assert re.fullmatch(r"no coordinator answers at 127\.0\.0\.1:\d+: nothing listens there; is it running\?", ended), (
        ended
    )


@pytest.fixture(params=["refused", "silent", "barred"])
def elsewhere(request: pytest.FixtureRequest) -> Iterator[str]:
    """An address that the replicas have for one of them, and we have not: refused, without a word, or not to be dialled without certificates."""
    if request.param == "barred":
        yield "10.255.255.1:7400"
        return
    if request.param == "refused":
        yield dead()
        return
    with socket.create_server(("127.0.0.1", 0)) as mute:
        yield f"127.0.0.1:{mute.getsockname()[1]}"


async def test_a_leader_is_found_at_the_address_that_we_were_given_though_others_name_another(elsewhere: str) -> None:
    async with serving(Follower(elsewhere), Follower(elsewhere), Leader()) as addresses:
        client = CoordinatorClient(addresses)
        assert (await client.status(timeout_s=8.0)).fleet == "bank"
        assert (await client.status(timeout_s=0.5)).fleet == "bank", "who has answered is asked again"
        await client.close()


async def test_a_replica_that_is_given_and_silent_is_passed_over(follower: str) -> None:
    """A machine without power refuses nothing: its port is silent."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        async with serving(Leader()) as leader:
            client = CoordinatorClient(f"127.0.0.1:{mute.getsockname()[1]},{leader}")
            assert (await client.status(timeout_s=8.0)).fleet == "bank"
            await client.close()


async def test_a_leader_that_cannot_be_reached_is_told_by_the_address_that_was_named() -> None:
    elsewhere = dead()
    async with serving(Follower(elsewhere)) as address:
        client = CoordinatorClient(address)
        with pytest.raises(CoordinatorUnavailableError, match=f"said to be at {elsewhere}, .* give the addresses"):
            await client.status(timeout_s=2.0)
        await client.close()


class Overrun(Leader):
    """Has more calls waiting than gRPC takes, at first."""

    def __init__(self) -> None:
        self.asked = 0

    async def Status(self, request: pb.StatusRequest, context: grpc.aio.ServicerContext) -> pb.FleetStatus:  # type: ignore[type-arg]
        self.asked += 1
        if self.asked < 3:
            await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
        return await super().Status(request, context)


async def test_a_call_that_an_overrun_replica_has_dropped_is_made_again() -> None:
    async with serving(Overrun()) as address:
        client = CoordinatorClient(address)
        assert (await client.status(timeout_s=8.0)).fleet == "bank"
        await client.close()


class PairsAsKeys(grpc.aio.Metadata):
    """Metadata of gRPC 1.75: a view of its keys iterates over pairs."""

    def keys(self) -> KeysView[str]:
        return KeysView(self)  # type: ignore[arg-type]  # as it is there


def test_a_named_error_is_read_from_metadata_of_the_oldest_grpc() -> None:
    trailing = PairsAsKeys((ERROR_KEY, "UsageError"))
    error = grpc.aio.AioRpcError(grpc.StatusCode.INVALID_ARGUMENT, grpc.aio.Metadata(), trailing, "no such host")
    found = named_error(error)
    assert isinstance(found, UsageError) and str(found) == "no such host"
