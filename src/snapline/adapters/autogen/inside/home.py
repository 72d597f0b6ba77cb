"""Runs a fleet for one AutoGen program, and runs the fleet's turns inside the program itself.

The fleet belongs to a `SnaplineRuntime`, which the program uses in place of `SingleThreadedAgentRuntime`. The fleet's processes run in
snapline's environment (`session.py`). The fleet's processes own the states and messages, which survive a crash of the fleet's hosts. Turns
run in the program's own event loop and use the program's own objects.
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

from snapline.adapters.autogen.inside import turns
from snapline.adapters.autogen.inside.live_turn import Item, track_tasks
from snapline.adapters.autogen.inside.turns import TurnRunner, serve_frames
from snapline.adapters.autogen.inside.value_encoding import EncodedValue
from snapline.adapters.autogen.pipe_protocol import read_frame, to_bytes

SNAPLINE_PYTHON = "SNAPLINE_PYTHON"
"""Name of the environment variable that contains the path of the Python interpreter in snapline's environment."""


SHUTDOWN_STEPS = 10
"""Number of event loop steps by which a sender is cancelled later than the handler of its message."""


class TurnGate:
    """Gate that each turn passes before it begins. While the gate is closed, turns wait at the gate and can be admitted one by one."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_open = False

    @property
    def waiting(self) -> int:
        """Number of turns that wait at the gate."""
        return sum(not future.done() for future in self._waiting)

    async def __call__(self) -> None:
        if self._is_open:
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        await place

    def open(self) -> None:
        """Open the gate for all turns."""
        self._is_open = True
        while self.admit_one():
            pass

    def close(self) -> None:
        """Close the gate, so that new turns wait at it."""
        self._is_open = False

    def admit_one(self) -> bool:
        """Admit the first waiting turn. Return whether a turn was waiting."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return True
        return False


class ProgramFleet:
    """Starts and stops the processes of a program's fleet, and sends requests to them.

    Attributes:
        gate: gate that each of the fleet's turns passes before it begins.
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
        """Send a message and wait for the answer. The answer is returned as soon as the turn that handles the message has ended in this
        process."""
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
        """Send a message to each receiver listed in the item's `to` field. Return when the fleet has accepted the message."""
        await self.up()
        await self._say({"do": "send", "item": item})

    # -- lifecycle -----------------------------------------------------------------------------------------------------

    async def up(self) -> None:
        """Start the fleet if it is not running."""
        async with self._changing:
            if not self._is_up:
                await self._open()
                await self._say({"do": "start", "hosts": self._hosts})
                self._is_up = True

    async def idle(self) -> None:
        """Wait until the fleet has no pending work."""
        if self._is_up:
            await self._say({"do": "idle"})

    async def down(self) -> None:
        """Take a snapshot and stop the fleet. The next call of `up` starts the fleet from this snapshot."""
        async with self._changing:
            if self._is_up:
                self._is_up = False
                await self._say({"do": "stop"})

    async def save(self) -> dict[str, Any]:
        """Take a snapshot of the fleet, including all messages in transit. Return the snapshot and the agents' states in readable form."""
        await self.up()
        return await self._say({"do": "save"})

    async def give(self, agent: str, state: EncodedValue, before: EncodedValue | None) -> None:
        """Set an agent's state to `state` if its current state is `before`."""
        await self.up()
        await self._say({"do": "give", "agent": agent, "state": state, "before": before})

    async def load(self, snapshot: str) -> None:
        """Replace the fleet's data with a saved snapshot."""
        async with self._changing:
            await self._open()
            self._is_up = False
            await self._say({"do": "load", "snapshot": snapshot})

    async def end(self) -> None:
        """Stop the fleet and delete its data."""
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
        turns.replace_sources()
        track_tasks(asyncio.get_running_loop())
        self._folder = Path(tempfile.mkdtemp(prefix="snapline-"))
        self._server = await asyncio.start_unix_server(self._serve, self._folder / "socket")
        self._process, ours = _session(snapline_python(self._given_python), self._folder)
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(to_bytes({**frame, "number": number}))
            await self._writer.drain()
            reply = await future
        finally:
            del self._asked[number]
        if "failed" in reply:
            raise RuntimeError(reply["failed"])
        return reply

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while (frame := await read_frame(reader)) is not None:
            future = self._asked.get(frame["number"])
            if future is not None and not future.done():
                future.set_result(frame)
        for future in self._asked.values():
            if not future.done():
                future.set_exception(RuntimeError("the runtime's fleet has ended: its output says why"))


def _session(python: str, folder: Path) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the session process in snapline's environment. The session process exits when the returned socket is closed."""
    parent_socket, child_socket = socket.socketpair()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-m", "snapline.adapters.autogen.session", str(folder)]
    with child_socket:
        return subprocess.Popen(
            command, stdin=child_socket.fileno(), stdout=child_socket.fileno(), env=environment
        ), parent_socket


def snapline_python(given: str) -> str:
    """Return the path of the Python interpreter of snapline's environment. Raise RuntimeError if no interpreter is configured."""
    python = given or os.environ.get(SNAPLINE_PYTHON, "")
    if not python:
        raise RuntimeError(
            f"snapline's environment is not configured: give `python=`, or set {SNAPLINE_PYTHON} to the Python of its environment"
        )
    return python
