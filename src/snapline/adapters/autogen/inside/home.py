"""A fleet for one AutoGen program, whose turns go on in the program itself.

A `SnaplineRuntime` that is used in place of `SingleThreadedAgentRuntime` has one. It is processes of snapline's environment (`session.py`): states and messages are there, and survive the program's hosts. Turns are
run here, in the program's own loop and with its own objects, whatever factory has made them.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from autogen_core import CancellationToken

from snapline.adapters.autogen.frames import read_frame, to_bytes
from snapline.adapters.autogen.inside import turn_chance
from snapline.adapters.autogen.inside.keeping import Kept
from snapline.adapters.autogen.inside.live_turn import Item, track_tasks
from snapline.adapters.autogen.inside.serving import serve_frames
from snapline.adapters.autogen.inside.turns import TurnRunner

SNAPLINE_PYTHON = "SNAPLINE_PYTHON"
"""The interpreter of snapline's environment."""


SHUTDOWN_STEPS = 10
"""Steps of the event loop: the sender of a cancelled message hears of it when its handler has."""


class TurnGate:
    """Turns begin while it is open; or one by one, when they are let through."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_open = False

    @property
    def waiting(self) -> int:
        """Number of turns that wait."""
        return sum(not each.done() for each in self._waiting)

    async def __call__(self) -> None:
        if self._is_open:
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        await place

    def open(self) -> None:
        """Open for all turns."""
        self._is_open = True
        while self.let_one():
            pass

    def close(self) -> None:
        """Close: from now on turns wait."""
        self._is_open = False

    def let_one(self) -> bool:
        """Let the first through, if there is one."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return True
        return False


class ProgramFleet:
    """The processes of a program's fleet, and what is said to them.

    Attributes:
        gate: of the fleet's turns.
    """

    def __init__(self, runner: TurnRunner, hosts: int, python: str) -> None:
        self.gate = TurnGate()
        runner.gate = self.gate
        self._runner = runner
        self._hosts = hosts
        self._given_python = python
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._server: asyncio.Server | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = 0
        self._is_up = False
        self._changing = asyncio.Lock()

    # -- messages ------------------------------------------------------------------------------------------------------

    async def ask(self, item: Item, token: CancellationToken) -> Any:
        """Send a message, and wait for what its turn answers: as soon as it has ended, in this process."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        token.link_future(answer)
        self._runner.heard[item["id"]] = answer
        try:
            await self.send(item)
            return await answer
        except asyncio.CancelledError:
            if token.is_cancelled():
                for _ in range(SHUTDOWN_STEPS):
                    await asyncio.sleep(0)
            raise
        finally:
            del self._runner.heard[item["id"]]

    async def send(self, item: Item) -> None:
        """Send a message to each of `to`; returns when the fleet has taken it."""
        await self.up()
        await self._say({"do": "send", "item": item})

    # -- its life ------------------------------------------------------------------------------------------------------

    async def up(self) -> None:
        """See that it runs."""
        async with self._changing:
            if not self._is_up:
                await self._open()
                await self._say({"do": "start", "hosts": self._hosts})
                self._is_up = True

    async def idle(self) -> None:
        """Wait until nothing is under way in it."""
        if self._is_up:
            await self._say({"do": "idle"})

    async def down(self) -> None:
        """Have it take a snapshot, and end its processes. The next `up` goes on from there."""
        async with self._changing:
            if self._is_up:
                self._is_up = False
                await self._say({"do": "stop"})

    async def save(self) -> dict[str, Any]:
        """A snapshot of it, with all messages under way, and for people each agent's state."""
        await self.up()
        return await self._say({"do": "save"})

    async def give(self, agent: str, state: Kept, before: Kept | None) -> None:
        """Have an agent be in this state, if it is in the one before."""
        await self.up()
        await self._say({"do": "give", "agent": agent, "state": state, "before": before})

    async def load(self, snapshot: str) -> None:
        """Become what was saved."""
        async with self._changing:
            await self._open()
            self._is_up = False
            await self._say({"do": "load", "snapshot": snapshot})

    async def end(self) -> None:
        """Leave nothing behind."""
        await self.down()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    async def _open(self) -> None:
        if self._writer is not None:
            return
        turn_chance.replace_sources()
        track_tasks(asyncio.get_running_loop())
        self._folder = Path(tempfile.mkdtemp(prefix="snapline-"))
        self._server = await asyncio.start_unix_server(self._serve, self._folder / "socket")
        self._process, ours = _session(snapline_python(self._given_python), self._folder)
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One host, as long as it lives."""
        writer.write(to_bytes({"hello": ""}))
        try:
            await serve_frames(self._runner, reader, writer)
        finally:
            writer.close()

    async def _say(self, frame: dict[str, Any]) -> dict[str, Any]:
        if self._writer is None:
            raise RuntimeError("the runtime's fleet has ended")
        self._numbers += 1
        number = self._numbers
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(to_bytes({**frame, "number": number}))
            await self._writer.drain()
            found = await answer
        finally:
            del self._asked[number]
        if "failed" in found:
            raise RuntimeError(found["failed"])
        return found

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while (frame := await read_frame(reader)) is not None:
            answer = self._asked.get(frame["number"])
            if answer is not None and not answer.done():
                answer.set_result(frame)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(RuntimeError("the runtime's fleet has ended: its output says why"))


def _session(python: str, folder: Path) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start it, in snapline's environment and not in this one's. It ends when nobody is at the other end of its socket."""
    ours, theirs = socket.socketpair()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-m", "snapline.adapters.autogen.session", str(folder)]
    with theirs:
        return subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno(), env=environment), ours


def snapline_python(given: str) -> str:
    """Raises RuntimeError if nobody says where it is."""
    found = given or os.environ.get(SNAPLINE_PYTHON, "")
    if not found:
        raise RuntimeError(
            f"where is snapline? Give `python=`, or set {SNAPLINE_PYTHON} to the Python of its environment"
        )
    return found
