"""What calls of threads mean in gRPC, they mean between members: errors, deadlines, metadata, futures; and what threads may not do is told in one sentence."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.adapters.grpc_services.bank_fleets import PROTO
from tests.adapters.grpc_services.bank_pair import Pair

from snapline.adapters.grpc.member_threads import HistoryOverError, RegisteredThread, in_new_thread
from snapline.errors import UsageError

pytestmark = pytest.mark.timeout(60)

FAIL, SLOW, MIRROR = "/more.More/Fail", "/more.More/Slow", "/more.More/Mirror"
SLOW_S = 0.3


def fail(request: bytes, context: Any) -> bytes:
    if request == b"abort":
        context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
    if request == b"raise":
        raise ValueError("of the handler")
    context.set_code(grpc.StatusCode.OUT_OF_RANGE)
    context.set_details("too far")
    return b""


def slow(request: bytes, context: Any) -> bytes:
    time.sleep(SLOW_S)
    return request


def mirror(request: bytes, context: Any) -> bytes:
    context.set_trailing_metadata((("mirrored", "yes"),))
    return dict(context.invocation_metadata())["shown"].encode() + request


async def fail_later(request: bytes, context: Any) -> bytes:
    if request == b"abort":
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
    if request == b"raise":
        raise ValueError("of the handler")
    context.set_code(grpc.StatusCode.OUT_OF_RANGE)
    context.set_details("too far")
    return b""


async def slow_later(request: bytes, context: Any) -> bytes:
    await asyncio.sleep(SLOW_S)
    return request


async def mirror_later(request: bytes, context: Any) -> bytes:
    return mirror(request, context)


HANDLERS: dict[str, dict[str, Any]] = {
    "a": {"Fail": fail, "Slow": slow, "Mirror": mirror},
    "b": {"Fail": fail_later, "Slow": slow_later, "Mirror": mirror_later},
}
FAILS = [(b"abort", 5, "no such thing"), (b"raise", 2, "ValueError"), (b"code", 11, "too far")]
"""Request, gRPC's code, and words of the details."""


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Its banks hand on nothing."""
    (tmp_path / "stop").touch()
    made = Pair(tmp_path)
    for name, handlers in HANDLERS.items():
        methods: dict[str, Any] = {
            method: grpc.unary_unary_rpc_method_handler(does) for method, does in handlers.items()
        }
        made.more[name] = [grpc.method_handlers_generic_handler("more.More", methods)]
    return made


def run(pair: Pair, work: Callable[[], Awaitable[None]]) -> None:
    async def go(pair: Pair) -> None:
        await pair.go_back(None)
        await work()

    pair.run(go)


async def in_thread(pair: Pair, function: Callable[[], Any]) -> Any:
    """A thread of the service does this."""
    return await pair.threads.run(RegisteredThread(pair.plan), function, in_new_thread)


def test_errors_of_handlers_come_with_their_code_and_details(pair: Pair) -> None:
    async def work() -> None:
        waits = pair.threaded.channel(pair.addresses["b"]).unary_unary(FAIL)
        awaits: Any = pair.awaiting.member.channel(pair.addresses["a"]).unary_unary(FAIL)
        for request, code, words in FAILS:
            with pytest.raises(grpc.RpcError) as raised:
                await in_thread(pair, partial(waits, request))
            assert (raised.value.code().value[0], words in str(raised.value.details())) == (code, True)
            with pytest.raises(grpc.RpcError) as raised:
                await awaits(request)
            assert (raised.value.code().value[0], words in str(raised.value.details())) == (code, True)

    run(pair, work)


def test_metadata_goes_both_ways(pair: Pair) -> None:
    async def work() -> None:
        waits = pair.threaded.channel(pair.addresses["b"]).unary_unary(MIRROR)
        shown = (("shown", "one"),)
        response, call = await in_thread(pair, lambda: waits.with_call(b"1", metadata=shown))
        assert response == b"one1" and call.code() is grpc.StatusCode.OK
        assert call.trailing_metadata()["mirrored"] == "yes"
        awaits: Any = pair.awaiting.member.channel(pair.addresses["a"]).unary_unary(MIRROR)
        made = awaits(b"2", metadata=shown)
        assert await made == b"one2"
        assert (await made.trailing_metadata())["mirrored"] == "yes"

    run(pair, work)


def test_a_deadline_passes_and_the_call_leaves_the_ledger(pair: Pair) -> None:
    async def work() -> None:
        nobody = pair.threaded.channel("127.0.0.1:1").unary_unary(SLOW)
        waits = pair.threaded.channel(pair.addresses["b"]).unary_unary(SLOW)
        for method in (waits, nobody):
            with pytest.raises(grpc.RpcError) as raised:
                await in_thread(pair, partial(method, b"", timeout=SLOW_S / 3))
            assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert not pair.members["a"].ledger.pending
        assert await in_thread(pair, lambda: waits(b"in time", timeout=60.0)) == b"in time"

    run(pair, work)


def test_futures_run_side_by_side_and_can_be_given_up(pair: Pair) -> None:
    async def work() -> None:
        waits = pair.threaded.channel(pair.addresses["b"]).unary_unary(SLOW)

        def beside() -> list[bytes]:
            calls = [waits.future(bytes([each])) for each in range(8)]
            assert not any(call.done() for call in calls)
            return [call.result() for call in calls]

        began_s = time.monotonic()
        assert await in_thread(pair, beside) == [bytes([each]) for each in range(8)]
        assert time.monotonic() - began_s < 4 * SLOW_S

        def give_up() -> None:
            call: Any = waits.future(b"")
            assert call.cancel() and call.cancelled() and call.done()
            with pytest.raises(grpc.FutureCancelledError):
                call.result()
            with pytest.raises(UsageError, match="time-out of its own"):
                waits.future(b"").result(1.0)
            with pytest.raises(UsageError, match="nobody is called"):
                waits.future(b"").add_done_callback(print)

        await in_thread(pair, give_up)
        assert len(pair.members["a"].ledger.pending) == 2  # those that nobody has given up

    run(pair, work)


def test_an_unknown_thread_is_refused_with_one_sentence(pair: Pair) -> None:
    async def work() -> None:
        waits = pair.threaded.channel(pair.addresses["b"]).unary_unary(SLOW)
        for does in (
            lambda: waits(b""),
            lambda: waits.future(b""),
            lambda: pair.threaded.sleep(0),
            pair.threaded.changed,
        ):
            with pytest.raises(UsageError, match="this thread is unknown to the member"):
                await asyncio.to_thread(does)

    run(pair, work)


def test_strangers_are_served_as_ever(pair: Pair) -> None:
    protos: Any = grpc.protos(PROTO)

    def asks() -> list[int]:
        with grpc.insecure_channel(pair.addresses["a"]) as channel:
            plain: Any = channel
            stub = pair.services.BankStub(channel)
            one = protos.Tokens(amount=3)
            found = [stub.Swap(one), *stub.Spread(one), stub.Collect(iter([one, one])), *stub.Trade(iter([one, one]))]
            with pytest.raises(grpc.RpcError, match="no such thing"):
                plain.unary_unary(FAIL)(b"abort")
            return [each.amount for each in found]

    async def work() -> None:
        assert await asyncio.to_thread(asks) == [1, 1, 1, 0, 1, 1]
        assert pair.waiting.kept.tokens == 100 + 2 + 1 + 6 + 4
        assert not pair.threads.gate.begun, "a thread that has ended is taken for one that goes on"

    run(pair, work)


def test_a_stream_that_a_stranger_keeps_open_holds_up_no_cut(pair: Pair) -> None:
    protos: Any = grpc.protos(PROTO)
    may_end = threading.Event()

    def requests() -> Iterator[Any]:
        yield protos.Tokens(amount=3)
        may_end.wait()

    def asks() -> None:
        with grpc.insecure_channel(pair.addresses["a"]) as channel:
            responses = pair.services.BankStub(channel).Trade(requests())
            assert next(responses).amount == 1
            first.set()
            assert not list(responses)

    first = threading.Event()

    async def work() -> None:
        asking = asyncio.create_task(asyncio.to_thread(asks))
        await asyncio.to_thread(first.wait)
        await ready(pair)
        may_end.set()
        await asking

    run(pair, work)


def test_a_lock_across_a_call_holds_up_no_cut(pair: Pair) -> None:
    """One waits for its answer with the lock, the other inside for the lock: to nobody's advantage, but they come through."""

    async def work() -> None:
        lock, waits = threading.Lock(), pair.threaded.channel(pair.addresses["b"]).unary_unary(SLOW)

        def locked() -> None:
            with lock:
                waits(b"")

        threads = [asyncio.create_task(in_thread(pair, locked)) for _ in range(2)]
        await asyncio.sleep(SLOW_S / 2)
        await ready(pair)
        await asyncio.wait_for(asyncio.gather(*threads), 5 * SLOW_S)

    run(pair, work)


async def ready(pair: Pair) -> None:
    """A cut comes in."""
    async with asyncio.timeout(2.0):
        while not pair.members["a"]._front.ready():
            await asyncio.sleep(0.005)
    pair.members["a"]._front.on_cut(0)


def test_threads_of_before_end_and_the_fleet_waits_for_them(pair: Pair) -> None:
    """One sleeps, one waits for an answer and tries again whatever comes, and one computes: what they say last is said before the restore."""
    said: list[str] = []
    restored = pair.waiting.restore

    def restore(state: bytes) -> None:
        said.append("restored")
        restored(state)

    async def work() -> None:
        waits = pair.threaded.channel(pair.addresses["b"]).unary_unary(SLOW)

        def tries_again() -> None:
            try:
                while True:
                    try:
                        waits(b"")
                    except Exception:
                        said.append("shown to who tries again")
            finally:
                time.sleep(0.05)
                said.append("asked")

        def computes() -> None:
            time.sleep(0.2)
            with pytest.raises(HistoryOverError):
                pair.threaded.tell("b", "late")
            said.append("computed")

        def sleeps() -> None:
            try:
                pair.threaded.sleep(1000)
            finally:
                said.append("slept")

        pair.waiting.restore = restore  # type: ignore[method-assign]
        for function in (tries_again, computes, sleeps):
            pair.threaded.start(function)
        await asyncio.sleep(0.1)
        await asyncio.wait_for(pair.go_back(None), 5.0)
        assert said == ["slept", "asked", "computed", "restored"] or said == ["asked", "slept", "computed", "restored"]

    run(pair, work)


def test_listed_calls_are_made_and_listed_streams_are_refused(pair: Pair) -> None:
    protos: Any = grpc.protos(PROTO)

    async def work() -> None:
        stub = pair.services.BankStub(pair.threaded.channel(pair.addresses["b"], listed=["*"]))
        assert (await in_thread(pair, lambda: stub.Swap(protos.Tokens(amount=3)))).amount == 1
        with pytest.raises(UsageError, match=r"Spread is listed and has streams.*member\.outside"):
            await in_thread(pair, lambda: list(stub.Spread(protos.Tokens(amount=3))))
        assert not pair.members["a"].ledger.pending and not await in_thread(pair, lambda: pair.threaded.unsettled)

    run(pair, work)


def test_who_waits_outside_holds_up_no_cut_and_ends_with_its_history(pair: Pair) -> None:
    async def work() -> None:
        may_end = threading.Event()
        ended: list[str] = []

        def waits() -> None:
            try:
                with pair.threaded.outside():
                    may_end.wait()
                ended.append("came in again")
            except HistoryOverError:
                ended.append("history is over")

        pair.threaded.start(waits)
        await asyncio.sleep(0.05)
        await ready(pair)
        going = asyncio.create_task(pair.go_back(None))
        await asyncio.sleep(0.05)
        assert not going.done(), "the fleet has gone back while it ran"
        may_end.set()
        await going
        assert ended == ["history is over"]

    run(pair, work)
