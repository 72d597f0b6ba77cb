"""What a member's channel and interceptor cost a unary call of 1 KiB, beside plain gRPC: `python benchmarks/grpc_calls.py [ROUNDS] [--threads]`.

With grpc.aio; with `--threads` server and stubs are those of threads.

One server process serves the same method on two ports, plain and as a member of a fleet; this process calls both, in turns, over one connection each:
one call after the other, and 16 at a time. The fleet takes a cut a second meanwhile. Ratios are of the processor time of both processes, which other
programs of the machine disturb less, and of the time that passes.
"""

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio

import snapline
from snapline.adapters.grpc.member import Member
from snapline.adapters.grpc.service_agent import ServiceAgent
from snapline.adapters.grpc.threaded_member import ThreadedMember

METHOD = "/bench.Echo/Say"
PAYLOAD = b"x" * 1024
CALLS, BESIDE = 400, 16

FLEET = snapline.Fleet(
    "bench",
    agents={"caller": ServiceAgent(), "server": ServiceAgent()},
    place={"caller": "caller", "server": "server"},
    triggers=[snapline.Every(seconds=1.0)],
)


class Nothing:
    """A service without a state."""

    def capture(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        pass

    def on_cut(self, epoch: int) -> None:
        pass

    def ready(self) -> bool:
        return True


async def say(request: bytes, context: Any) -> bytes:
    return request


async def open_server(interceptors: list[Any], address: str) -> Any:
    server = grpc.aio.server(interceptors=interceptors)
    handlers: dict[str, Any] = {"Say": grpc.unary_unary_rpc_method_handler(say)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    server.add_insecure_port(address)
    await server.start()
    return server


async def serve(folder: str) -> None:
    member = member_of(folder, "server")
    servers = [
        await open_server([], f"unix:{folder}/plain"),
        await open_server([member.interceptor], f"unix:{folder}/member"),
    ]
    await member.run()
    del servers


def member_of(folder: str, agent: str) -> Member:
    address = Path(folder, "address").read_text()
    return Member(Nothing(), agent=agent, fleet=FLEET, coordinator=address, store=f"{folder}/store")


def threaded_member_of(folder: str, agent: str, service: Nothing) -> ThreadedMember:
    address = Path(folder, "address").read_text()
    return ThreadedMember(service, agent=agent, fleet=FLEET, coordinator=address, store=f"{folder}/store")


def serve_threads(folder: str) -> None:
    member = threaded_member_of(folder, "server", Nothing())
    servers = []
    given: dict[str, list[grpc.ServerInterceptor]] = {"plain": [], "member": [member.interceptor]}
    for name, interceptors in given.items():
        server = grpc.server(ThreadPoolExecutor(BESIDE), interceptors=interceptors)
        handlers: dict[str, Any] = {"Say": grpc.unary_unary_rpc_method_handler(lambda request, context: request)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
        server.add_insecure_port(f"unix:{folder}/{name}")
        server.start()
        servers.append(server)
    member.run()


@contextmanager
def processes(folder: str, *options: str) -> Iterator[int]:
    """The coordinator and the server; yields the id of the server's process."""
    address = f"127.0.0.1:{20000 + os.getpid() % 20000}"
    Path(folder, "address").write_text(address)
    where = ["--listen", address, "--data-dir", f"{folder}/c", "--store", f"{folder}/store", "--hosts", "2"]

    def start(*arguments: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    coordinator = start("-m", "snapline", "coordinator", "run", *where)
    server = start(__file__, "--serve", folder, *options)
    try:
        yield server.pid
    finally:
        for process in (server, coordinator):
            process.kill()
            process.wait()


class Took(NamedTuple):
    """Durations of calls, in seconds."""

    processor_s: float
    passed_s: float


Call = Callable[[bytes], Awaitable[bytes]]


async def calls(call: Call, beside: int) -> None:
    async def some() -> None:
        for _ in range(CALLS // beside):
            await call(PAYLOAD)

    await asyncio.gather(*(some() for _ in range(beside)))


def processor_s(pid: int) -> float:
    """Processor time of a process so far."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


async def measured(call: Call, beside: int, pids: list[int]) -> Took:
    begun_s, used_s = time.perf_counter(), sum(map(processor_s, pids))
    await calls(call, beside)
    return Took((sum(map(processor_s, pids)) - used_s) / CALLS, (time.perf_counter() - begun_s) / CALLS)


async def measure(folder: str, rounds: int, server: int) -> None:
    member = member_of(folder, "caller")
    running = asyncio.create_task(member.run())
    plain: Any = grpc.aio.insecure_channel(f"unix:{folder}/plain").unary_unary(METHOD)
    ours: Any = member.channel(f"unix:{folder}/member").unary_unary(METHOD)
    while not member.plan:
        await asyncio.sleep(0.05)
    pids = [os.getpid(), server]
    for name, beside in (("one after the other", 1), (f"{BESIDE} at a time", BESIDE)):
        pairs = []
        for number in range(rounds + 2):
            order = (plain, ours) if number % 2 else (ours, plain)
            took = {call: await measured(call, beside, pids) for call in order}
            pairs.append((took[plain], took[ours]))
        report_both(name, pairs[2:])
    running.cancel()
    await asyncio.wait([running])


class CallingThreads(Nothing):
    """Client that calls from several threads, once, and ends the process."""

    def __init__(self, folder: str, rounds: int, server: int) -> None:
        self._folder, self._rounds, self._pids = folder, rounds, [os.getpid(), server]
        self.member = threaded_member_of(folder, "caller", self)
        self._plain: Any = grpc.insecure_channel(f"unix:{folder}/plain").unary_unary(METHOD)
        self._ours: Any = self.member.channel(f"unix:{folder}/member").unary_unary(METHOD)

    def restore(self, state: bytes) -> None:
        self.member.start(self._measure)

    def _measure(self) -> None:
        for name, beside in (("one after the other", 1), (f"{BESIDE} at a time", BESIDE)):
            pairs = []
            for number in range(self._rounds + 2):
                order = (self._plain, self._ours) if number % 2 else (self._ours, self._plain)
                took = {call: self._measured(call, beside) for call in order}
                pairs.append((took[self._plain], took[self._ours]))
            report_both(name, pairs[2:])
        signal.raise_signal(signal.SIGTERM)

    def _measured(self, call: Any, beside: int) -> Took:
        """Threads of plain calls are outside all the time, so that they hold up no cut."""
        ended = threading.Semaphore(0)

        def some() -> None:
            with nullcontext() if call is self._ours else self.member.outside():
                for _ in range(CALLS // beside):
                    call(PAYLOAD)
            ended.release()

        begun_s, used_s = time.perf_counter(), sum(map(processor_s, self._pids))
        for _ in range(beside):
            self.member.start(some)
        with self.member.outside():
            for _ in range(beside):
                ended.acquire()
        used_s = sum(map(processor_s, self._pids)) - used_s
        return Took(used_s / CALLS, (time.perf_counter() - begun_s) / CALLS)


def report_both(name: str, pairs: "list[tuple[Took, Took]]") -> None:
    for kind, field in (("processor", 0), ("time", 1)):
        report(f"{name}, {kind}", [(one[field], other[field]) for one, other in pairs])


def report(name: str, pairs: list[tuple[float, float]]) -> None:
    quartiles = statistics.quantiles([ours / plain for plain, ours in pairs], n=4)
    plain_us, ours_us = (1e6 * statistics.median(each) for each in zip(*pairs, strict=True))
    print(
        f"{name:31} plain {plain_us:6.1f} µs, member {ours_us:6.1f} µs a call; ratio of {len(pairs)} pairs: "
        f"median {quartiles[1]:.3f}, quartiles {quartiles[0]:.3f} to {quartiles[2]:.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=20)
    parser.add_argument("--serve")
    parser.add_argument("--threads", action="store_true")
    options = parser.parse_args()
    if options.serve:
        if options.threads:
            serve_threads(options.serve)
        else:
            asyncio.run(serve(options.serve))
        return
    how = ["--threads"] if options.threads else []
    with tempfile.TemporaryDirectory() as folder, processes(folder, *how) as server:
        if options.threads:
            CallingThreads(folder, options.rounds, server).member.run()
        else:
            asyncio.run(measure(folder, options.rounds, server))


if __name__ == "__main__":
    main()
