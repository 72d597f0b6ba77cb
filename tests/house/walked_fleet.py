"""A whole fleet in one process, traced: coordinator, two hosts and a tool, on one event loop, with real streams and a store on disk.

`python -m tests.house.walked_fleet FILE` runs it and writes, as JSON, for each way of docs/four-ways.md, and each time that it was gone, the
functions of the product that were entered, as `file:qualified name`. The fleet sends messages, makes epochs, is asked for its recovery line, and
recovers from a host whose stream breaks. Calls of all threads are in one list, in the order in which they began.
"""

import asyncio
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

import grpc.aio
import msgspec
from typer.main import get_command

import snapline
from snapline.agent_runtime.host.process import Host, HostOptions
from snapline.cli import main
from snapline.coordinator.service.server import ADDRESS_FILE, CoordinatorOptions, run_coordinator
from snapline.security.transport import Security

LIMIT_S = 45.0
"""It takes five seconds: one of them is waited for the stream, by the product's own clock."""

PAUSE_S, BALL_S, EPOCH_S = 0.02, 0.1, 0.4
"""Between two looks, two messages, two epochs."""

AWAY_S = 2.0
"""Longer than a stream that broke is waited for."""

PACKAGE = "/snapline/"


class Walk:
    """What was entered, and where in that list something began."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.marks: dict[str, int] = {}
        self._names: dict[CodeType, str] = {}

    def mark(self, name: str) -> None:
        self.marks.setdefault(name, len(self.calls))

    def look(self, frame: FrameType, event: str, _argument: object) -> None:
        """For `sys.setprofile`."""
        if event == "call":
            code = frame.f_code
            if code not in self._names:
                folder, _, file = code.co_filename.rpartition(PACKAGE)
                self._names[code] = f"{file}:{code.co_qualname}" if folder else ""
            if name := self._names[code]:
                self.calls.append(name)

    def between(self, first: str, last: str) -> list[str]:
        return self.calls[self.marks[first] : self.marks[last]]


WALK = Walk()


class Ball(snapline.Message):
    hits: int


class Hits(msgspec.Struct):
    hits: int = 0


class Player(snapline.Agent):
    """Ping sends to pong whenever its timer fires, also under every plan that follows."""

    state: Hits

    async def on_start(self, ctx: snapline.Context) -> None:
        if ctx.agent == "ping":
            ctx.set_timer("next", BALL_S, Ball(hits=0))

    @snapline.handler
    async def on_ball(self, message: Ball, ctx: snapline.Context) -> None:
        self.state.hits += 1
        WALK.mark(f"{ctx.agent} {ctx.incarnation} {self.state.hits}")
        if ctx.agent == "ping":
            ctx.set_timer("next", BALL_S, Ball(hits=self.state.hits))
            ctx.send("pong", Ball(hits=self.state.hits))


FLEET = snapline.Fleet(
    "walked",
    agents={"ping": Player(Hits()), "pong": Player(Hits())},
    triggers=[snapline.Every(seconds=EPOCH_S)],
)


def make_host(name: str, address: str, store: Path) -> Host:
    return Host(
        HostOptions(
            host=name,
            instance=name,
            fleet=FLEET,
            coordinator=address,
            store=str(store),
            security=Security.loopback(),
        )
    )


async def until(is_so: Callable[[], object]) -> None:
    while not is_so():
        await asyncio.sleep(PAUSE_S)


def ask_line(address: str) -> None:
    get_command(main.app_of("recovery"))(
        ["recovery", "line", "--failed", "host:h1", "--coordinator", address], standalone_mode=False
    )


PUBLISHED = "coordinator/leader/epochs/publishing.py:RefPublisher.on_published"

EPOCHS, MESSAGES = 5, range(2, 6)
"""So many tries has a way: another epoch, or a frame of another kind, may be under way when one begins."""


async def walk(folder: Path) -> None:
    store, data_dir = folder / "store", folder / "coordinator"
    options = CoordinatorOptions(data_dir=data_dir, store=str(store), hosts_expected=2, rejoin_grace_s=0.1)
    tasks = [asyncio.ensure_future(run_coordinator(options))]
    await until((data_dir / ADDRESS_FILE).exists)
    address = json.loads((data_dir / ADDRESS_FILE).read_text())["address"]
    hosts = [make_host(name, address, store) for name in ("h1", "h2")]
    tasks += [asyncio.ensure_future(host.run()) for host in hosts]
    await until(lambda: f"pong 1 {MESSAGES[-1]}" in WALK.marks and WALK.calls.count(PUBLISHED) > EPOCHS)
    WALK.mark("asked")
    await asyncio.to_thread(ask_line, address)
    WALK.mark("answered")
    break_stream(hosts[1])
    await until(lambda: any(name.startswith("ping 2") for name in WALK.marks))
    await asyncio.sleep(BALL_S)
    WALK.mark("recovered")


def break_stream(host: Host) -> None:
    """Its stream to the coordinator breaks at the next directive, and is not dialled again for a while."""
    session = host._session
    attend, take = session._attend, session._take

    async def stay_away(channel: grpc.aio.Channel) -> None:
        await asyncio.sleep(AWAY_S)
        session._attend = attend  # type: ignore[method-assign]

    def end_stream(data: bytes) -> None:
        session._attend, session._take = stay_away, take  # type: ignore[method-assign]
        raise asyncio.InvalidStateError("the stream breaks")

    session._take = end_stream  # type: ignore[method-assign]


def ways() -> dict[str, list[list[str]]]:
    """By a way's number: what was entered from its beginning to its end, each time that it was gone."""
    ends = [place + 1 for place, name in enumerate(WALK.calls[: WALK.marks["asked"]]) if name == PUBLISHED]
    return {
        "1": [WALK.between(f"ping 1 {number}", f"pong 1 {number}") for number in MESSAGES],
        "2": [WALK.calls[first:last] for first, last in pairwise(ends)],
        "3": [WALK.between("answered", "recovered")],
        "4": [WALK.between("asked", "answered")],
    }


def run(result: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        threading.setprofile(WALK.look)
        sys.setprofile(WALK.look)
        asyncio.new_event_loop().run_until_complete(asyncio.wait_for(walk(Path(folder)), LIMIT_S))
        sys.setprofile(None)
        result.write_text(json.dumps(ways()))


if __name__ == "__main__":
    run(Path(sys.argv[1]))
    os._exit(0)  # hosts and coordinator are not asked to end
