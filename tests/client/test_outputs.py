"""Outputs over real gRPC: a program that reads follows the fleet, over changes of leaders and lost pages; each output once."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from tests.client.fake_fleet import FakeCoordinator, FakeFleet
from tests.storage.making import make_store, seeded_bytes
from tests.storage.outputs.releasing import root_of
from tests.storage.simulated_disk import SimulatedDisk

import snapline
from snapline.agent_runtime.message_encoding import encode_message
from snapline.client.client import Client
from snapline.client.output_reader import OutputReaderState
from snapline.client.sync_client import SyncClient
from snapline.coordinator.leader.events import OutputReadersChanged
from snapline.coordinator.service import output_feed
from snapline.coordinator.service.leadership import LeaderRunner, Leadership
from snapline.coordinator.service.output_feed import OutputFeed
from snapline.errors import (
    CoordinatorUnavailableError,
    DamagedDataError,
    EncodingError,
    NotFoundError,
    SnaplineError,
    StoreError,
    UsageError,
)
from snapline.messages.answers import ReadConsumersReply, ReadOutputsReply
from snapline.messages.coordinator_client import LEADER_KEY
from snapline.messages.wire import writer_of
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.security.rpc_authorization import ERROR_KEY, Context
from snapline.storage.outputs.output_record import EmittedOutput
from snapline.storage.store.store import Store

T = TypeVar("T")


class Sold(snapline.Message):
    item: str
    price: int


class Returned(snapline.Message):
    item: str


def sold(agent: str, number: int, *, topic: str = "sales", size: int = 0) -> EmittedOutput:
    return EmittedOutput(agent, number, topic, encode_message(Sold(f"item {number}" + "x" * size, number)), number)


class FakeRunner:
    """Of a leadership: what its core is told of readers."""

    def __init__(self) -> None:
        self.told: list[bool] = []
        self.is_released = True

    def standing(self) -> "FakeRunner":
        return self

    def feed(self, event: OutputReadersChanged) -> None:
        self.told.append(event.is_watched)


class OutputCoordinator(FakeCoordinator):
    """The real feed, on a store of the test. `lost`: how many pages get lost on their way."""

    def __init__(self, fleet: FakeFleet, store: Store) -> None:
        super().__init__(fleet)
        self.store = store
        self.leadership = Leadership(_never)
        self.leadership.runner = FakeRunner()  # type: ignore[assignment]
        self.has_ended = False
        self.feed = OutputFeed(
            store, self.leadership, has_ended=lambda: self.has_ended, leader_hint=lambda: "nobody leads"
        )
        self.lost = 0
        self.calls: list[str] = []

    async def ReadOutputs(self, request: pb.ReadOutputsRequest, context: Context) -> pb.ReadOutputsReply:
        self.calls.append(request.after)
        await self._lead(context)
        page = await self._told(self.feed.read(request.after, request.topic, request.wait_ms / 1000), context)
        if self.lost:
            self.lost -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        made = writer_of(ReadOutputsReply, pb.ReadOutputsReply)(page)
        assert isinstance(made, pb.ReadOutputsReply)
        return made

    async def ReadConsumers(self, request: pb.ReadConsumersRequest, context: Context) -> pb.ReadConsumersReply:
        made = writer_of(ReadConsumersReply, pb.ReadConsumersReply)(await self._told(self.feed.consumers(), context))
        assert isinstance(made, pb.ReadConsumersReply)
        return made

    async def MoveConsumer(self, request: pb.MoveConsumerRequest, context: Context) -> pb.MoveConsumerReply:
        await self._lead(context)
        return pb.MoveConsumerReply(cursor=await self._told(self.feed.move(request.name, request.cursor), context))

    async def ForgetConsumer(self, request: pb.ForgetConsumerRequest, context: Context) -> pb.ForgetConsumerReply:
        await self._told(self.feed.forget(request.name), context)
        return pb.ForgetConsumerReply()

    async def _lead(self, context: Context) -> None:
        if self.leader is not None:
            context.set_trailing_metadata(((LEADER_KEY, self.leader),))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "another replica leads")

    async def _told(self, work: Coroutine[Any, Any, T], context: Context) -> T:
        """As the servicer does."""
        try:
            return await work
        except CoordinatorUnavailableError as error:
            context.set_trailing_metadata(((LEADER_KEY, ""),))
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except SnaplineError as error:
            context.set_trailing_metadata(((ERROR_KEY, type(error).__name__),))
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        raise AssertionError("abort raises")


def _never() -> LeaderRunner:
    raise AssertionError


class World:
    """A store, replicas over it, a client."""

    def __init__(self, fleet: FakeFleet, store: Store, coordinator: OutputCoordinator, client: Client) -> None:
        self.fleet, self.store, self.coordinator, self.client = fleet, store, coordinator, client

    def release(self, epoch: int, *outputs: EmittedOutput, after: int | None = None) -> None:
        self.store.release_outputs(
            epoch, root_of(epoch), epoch - 1 if after is None else after, outputs, created_ns=10**18
        )

    async def all(self, **options: Any) -> list[snapline.Output | snapline.OutputsReverted]:
        return [each async for each in self.client.outputs(follow=False, **options)]


@contextlib.asynccontextmanager
async def world() -> AsyncIterator[World]:
    fleet, store = FakeFleet(), make_store(SimulatedDisk())
    coordinator = fleet.coordinator = OutputCoordinator(fleet, store)
    await fleet.start()
    try:
        async with await Client.connect(fleet.address) as client:
            yield World(fleet, store, coordinator, client)
    finally:
        await fleet.stop()


def numbers(found: list[snapline.Output | snapline.OutputsReverted]) -> list[int]:
    return [each.number for each in found if isinstance(each, snapline.Output)]


async def test_outputs_come_as_plain_values_and_as_a_class() -> None:
    async with world() as made:
        made.release(1, sold("a1", 1), sold("a1", 2, topic="other"))
        made.release(3, sold("b1", 1), after=1)
        fields = {"type": "Sold", "fields": {"item": "item 1", "price": 1}}
        assert await made.all(topic="sales") == [
            snapline.Output("a1", 1, "sales", fields, "1.1", 1, 1),
            snapline.Output("b1", 1, "sales", fields, "3.1", 3, 1),
        ]
        found = await made.all(message_type=Sold)
        assert [each.message for each in found if isinstance(each, snapline.Output)][1] == Sold("item 2", 2)
        with pytest.raises(EncodingError, match="the output is a Sold, and message_type says Returned"):
            await made.all(message_type=Returned)
        with pytest.raises(UsageError, match="message_type"):
            await made.all(message_type=3)


async def test_a_reader_is_told_of_what_is_undone_and_reads_on_from_any_cursor() -> None:
    async with world() as made:
        for epoch in (1, 2, 3):
            made.release(epoch, sold("a1", epoch))
        made.release(5, sold("a1", 2), after=1)
        found = await made.all()
        assert [each if isinstance(each, snapline.OutputsReverted) else each.number for each in found] == [
            1,
            2,
            3,
            snapline.OutputsReverted(1, (2, 3), "5.0"),
            2,
        ]
        for index, each in enumerate(found):
            assert await made.all(after=each.cursor) == found[index + 1 :]


async def test_a_reader_that_follows_gets_each_as_it_is_released_without_asking_again() -> None:
    async with world() as made:
        made.release(1, sold("a1", 1))
        reader = made.client.outputs()
        assert (await anext(reader)).cursor == "1.1"
        for epoch in (2, 3):
            coming = asyncio.ensure_future(anext(reader))
            while len(made.coordinator.calls) < epoch:
                await asyncio.sleep(0.001)
            await asyncio.to_thread(made.release, epoch, sold("a1", epoch))
            assert (await coming).cursor == f"{epoch}.1"
        calls = made.coordinator.calls  # the next one may have been made already
        assert calls[:3] == ["", "1.1", "2.1"] and calls[3:] in ([], ["3.1"])
        await reader.aclose()


async def test_the_end_of_the_fleet_is_the_end_once_all_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_feed, "LOOK_S", 0.01)
    async with world() as made:
        runner = made.coordinator.leadership.runner
        assert isinstance(runner, FakeRunner)
        made.release(1, sold("a1", 1))
        reader = made.client.outputs()
        await anext(reader)
        runner.is_released, made.coordinator.has_ended = False, True
        coming = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0.1)
        assert not coming.done()
        await asyncio.to_thread(made.release, 2, sold("a1", 2))
        runner.is_released = True
        assert (await coming).cursor == "2.1"
        with pytest.raises(StopAsyncIteration):
            await anext(reader)


async def test_the_end_of_a_replica_is_not_the_end_of_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_feed, "LOOK_S", 0.01)
    async with world() as made:
        made.release(1, sold("a1", 1))
        waiting = asyncio.create_task(made.coordinator.feed.read("1.1", "", 20))
        await asyncio.sleep(0)
        made.coordinator.leadership.end(0)
        with pytest.raises(CoordinatorUnavailableError, match="nobody leads"):
            await waiting
        made.coordinator.has_ended = True
        assert await made.coordinator.feed.read("1.1", "", 20) == ReadOutputsReply((), "1.1", is_over=True)


async def test_pages_that_get_lost_and_other_leaders_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_feed, "PAGE_OUTPUTS_MAX", 3)
    async with world() as made:
        for epoch in range(1, 8):
            made.release(epoch, *[sold("a1", 2 * epoch - 1), sold("a1", 2 * epoch)])
        other = OutputCoordinator(made.fleet, Store(made.store.disk, made.store.store_id, random_bytes=seeded_bytes(1)))
        address = await made.fleet.serve(other)
        found = []
        async for each in made.client.outputs(follow=False):
            found.append(each)
            made.coordinator.lost = int(len(found) in (2, 6))
            if len(found) == 8:
                made.coordinator.leader = address
        assert numbers(found) == list(range(1, 15)) and other.calls


async def test_a_new_leader_finds_what_others_have_released() -> None:
    async with world() as made:
        made.release(1, sold("a1", 1))
        assert numbers(await made.all()) == [1]
        other = Store(made.store.disk, made.store.store_id, random_bytes=seeded_bytes(1))
        other.release_outputs(2, root_of(2), 1, [sold("a1", 2)], created_ns=0)
        assert numbers(await made.all()) == [1]
        made.coordinator.leadership.runner = FakeRunner()  # type: ignore[assignment]
        assert numbers(await made.all()) == [1, 2]


async def test_a_call_that_waits_ends_with_the_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_feed, "LOOK_S", 0.01)
    async with world() as made:
        waiting = asyncio.create_task(made.coordinator.feed.read("", "", 20))
        await asyncio.sleep(0)
        made.coordinator.leadership.runner = None
        with pytest.raises(CoordinatorUnavailableError, match="nobody leads"):
            await waiting
        with pytest.raises(CoordinatorUnavailableError):
            await made.coordinator.feed.consumers()


async def test_a_coordinator_that_is_silent_is_given_up_after_a_while() -> None:
    async with world() as made:
        made.release(1, sold("a1", 1))
        reader = made.client.outputs(timeout_s=0.2)
        await anext(reader)
        await made.fleet.stop()
        with pytest.raises(CoordinatorUnavailableError):
            await anext(reader)


async def test_a_long_page_and_a_rare_topic_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_feed, "PAGE_BYTES", 300)
    monkeypatch.setattr(output_feed, "SCANNED_MAX", 4)
    async with world() as made:
        for epoch in range(1, 6):
            made.release(epoch, *[sold("a1", 10 * epoch + n, size=100) for n in range(5)])
        made.release(6, sold("a1", 99, topic="rare"))
        assert len(await made.all()) == 26 and len(made.coordinator.calls) > 8
        before = len(made.coordinator.calls)
        assert numbers(await made.all(topic="rare")) == [99]
        assert len(made.coordinator.calls) > before


async def test_hosts_are_told_while_somebody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_feed, "STAY_S", 0.05)
    async with world() as made:
        feed, runner = made.coordinator.feed, made.coordinator.leadership.runner
        assert isinstance(runner, FakeRunner)
        made.release(1, sold("a1", 1))
        await feed.read("", "", 10)
        await feed.read("1.1", "", 0)
        assert runner.told == []
        waits = [asyncio.create_task(feed.read("1.1", "", 10)) for _ in range(3)]
        while not runner.told:
            await asyncio.sleep(0.001)
        waits[0].cancel()
        await asyncio.sleep(0.1)
        assert runner.told == [True]
        await asyncio.to_thread(made.release, 2, sold("a1", 2))
        assert [page.cursor for page in await asyncio.gather(*waits[1:])] == ["2.1", "2.1"]
        assert runner.told == [True]
        async with asyncio.timeout(10):
            while len(runner.told) < 2:
                await asyncio.sleep(0.001)
        assert runner.told == [True, False]


# -- consumers --------------------------------------------------------------------------------------------------------


async def test_a_consumer_goes_on_where_it_has_acknowledged() -> None:
    async with world() as made:
        for epoch in (1, 2, 3):
            made.release(epoch, sold("a1", epoch))
        first = await made.all(consumer="billing")
        assert numbers(first) == [1, 2, 3] and numbers(await made.all(consumer="billing")) == [1, 2, 3]
        await made.client.acknowledge("billing", first[1])
        assert numbers(await made.all(consumer="billing")) == [3]
        await made.client.acknowledge("billing", "1.1")
        assert {name: place.cursor for name, place in made.store.output_consumers().items()} == {"billing": "2.1"}
        made.store.delete_outputs(now_ns=10**18, age_ns_min=0)
        assert numbers(await made.all()) == [3]
        with pytest.raises(NotFoundError, match="the oldest that are left are of epoch 3"):
            await made.all(after="1.1")
        with pytest.raises(UsageError, match="after and consumer both"):
            await made.all(after="1.1", consumer="billing")
        for consumer, cursor in (("a/b", "1.1"), ("billing", "x"), ("billing", "9.1")):
            with pytest.raises(UsageError):
                await made.client.acknowledge(consumer, cursor)


async def test_a_client_without_an_event_loop_reads_and_acknowledges() -> None:
    async with world() as made:
        for epoch in (1, 2):
            made.release(epoch, sold("a1", epoch))

        def work() -> None:
            with SyncClient.connect(made.fleet.address) as client:
                for each in client.outputs("sales", consumer="audit"):
                    assert isinstance(each, snapline.Output)
                    client.acknowledge("audit", each)
                    if each.number == 2:
                        break
                assert [each.cursor for each in client.outputs(follow=False)] == ["1.1", "2.1"]
                kept: Iterator[object] = client.outputs()
                next(kept)
            with pytest.raises(UsageError, match="closed"):
                next(iter(client.outputs()))

        await asyncio.to_thread(work)
        assert made.store.output_consumers()["audit"].cursor == "2.1"


# -- a store at rest --------------------------------------------------------------------------------------------------


def test_a_store_at_rest_is_read_as_a_fleet_that_runs(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    store.release_outputs(1, root_of(1), 0, [sold("a1", 1), sold("a1", 2, topic="other")], created_ns=0)
    store.release_outputs(2, root_of(2), 1, [sold("a1", 3)], created_ns=0)
    store.release_outputs(4, root_of(4), 1, [], created_ns=0)
    opened = snapline.open_store(tmp_path / "store")
    found = list(opened.outputs("sales", message_type=Sold))
    assert found == [
        snapline.Output("a1", 1, "sales", Sold("item 1", 1), "1.1", 1, 1),
        snapline.Output("a1", 3, "sales", Sold("item 3", 3), "2.1", 2, 3),
        snapline.OutputsReverted(1, (2,), "4.0"),
    ]
    assert list(opened.outputs(after="2.1")) == found[2:]


# -- the part that decides --------------------------------------------------------------------------------------------


def test_what_a_failure_means() -> None:
    reading = OutputReaderState("", is_following=True, patience_s=5)
    pauses = [reading.on_failure(second, CoordinatorUnavailableError("gone")) for second in range(5)]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8]
    with pytest.raises(CoordinatorUnavailableError):
        reading.on_failure(5, CoordinatorUnavailableError("gone"))
    reading.on_page(ReadOutputsReply((), "1.1"))
    assert reading.on_failure(100, StoreError("busy")) == 0.05 and reading.cursor == "1.1"
    for error in (DamagedDataError("x"), NotFoundError("x"), UsageError("x"), EncodingError("x"), ValueError("x")):
        with pytest.raises(type(error)):
            reading.on_failure(100, error)


def test_when_it_is_over() -> None:
    for is_following, page, is_over in itertools.chain.from_iterable(
        [
            (follows, ReadOutputsReply((), "1.1"), False),
            (follows, ReadOutputsReply((), "1.0"), not follows),
            (follows, ReadOutputsReply((), "1.0", is_over=True), True),
        ]
        for follows in (True, False)
    ):
        reading = OutputReaderState("1.0", is_following=is_following, patience_s=5)
        assert reading.wait_s == (10 if is_following else 0)
        assert reading.on_page(page) == () and reading.is_over == is_over
