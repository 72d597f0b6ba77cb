"""Runs the fleet of one AutoGen program.

`SnaplineRuntime` starts `python -m snapline.adapters.autogen.session FOLDER`. `SnaplineRuntime` communicates with this process through a
socket, and ends the process by closing the socket.

The process runs a coordinator and hosts, whose data is in FOLDER. The turns of the fleet's agents run in the program, to which `worker.py`
connects through the socket. Messages that the program sends outside of turns are passed to the fleet. When the fleet is stopped, it takes a
snapshot, from which the next start continues.
"""

import asyncio
import base64
import contextlib
import io
import os
import shutil
import socket
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import msgspec

import snapline
from snapline.adapters.autogen.agents import AGENT_CREATOR, PROGRAM, fleet
from snapline.adapters.autogen.pipe_protocol import agent_name, autogen_id, read_frame, to_bytes
from snapline.adapters.autogen.worker import (
    SOCKET_VARIABLE,
    AgentWanted,
    AutogenMessage,
    ForwardedMessage,
    KeptValue,
    StateGiven,
    TurnItem,
)
from snapline.agent_runtime.snapshots.snapshot_cut import Cut, load_cut
from snapline.client.client import Client
from snapline.deploy.local import LocalFleet
from snapline.errors import AgentMissingError, CoordinatorUnavailableError, SnaplineError
from snapline.storage.store.store import Store

ACCEPT_TIMEOUT_S = 120.0
"""Longest time in seconds to wait until the fleet accepts a message. The fleet may be starting or recovering."""

START_S = 60.0
"""Longest time in seconds to wait until the coordinator answers."""

CHECK_PERIOD_S = 0.02
"""Pause in seconds between two snapshots while the session waits until no work is pending."""

TRIES, AGAIN_S = 100, 0.05
"""Number of attempts to find a new agent, and pause between them in seconds. Several attempts are needed because the coordinator learns of
a new agent with a short delay."""


class ProgramSession:
    """Carries out the program's requests to its fleet.

    Attributes:
        has_ended: event that is set when the fleet has ended without a request to stop.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._local: LocalFleet | None = None
        self._client: Client | None = None
        self._watching: asyncio.Task[None] | None = None
        self.has_ended = asyncio.Event()
        self._made: set[str] = set()
        self._making = asyncio.Lock()

    async def answer(self, frame: dict[str, Any]) -> dict[str, Any]:
        """Carry out the request in a frame, and return the content of the reply."""
        match frame["do"]:
            case "start":
                await self.start(frame["hosts"])
            case "send":
                await self._send(msgspec.convert(frame["item"], TurnItem))
            case "idle":
                await self._idle()
            case "save":
                cut = await self._snapshot()
                return {"states": _states_of(cut), "snapshot": await asyncio.to_thread(self._pack, cut.epoch)}
            case "give":
                await self._give(frame)
            case "load":
                await self.stop()
                await asyncio.to_thread(self._unpack, frame["snapshot"])
            case "stop":
                if self._client is not None:
                    await self._snapshot()
                await self.stop()
        return {}

    async def start(self, hosts: int) -> None:
        """Start the fleet's processes from the newest snapshot in the folder."""
        environment = {SOCKET_VARIABLE: str(self._folder / "socket")}
        self._local = LocalFleet(
            data_dir=self._folder / "data", fleet=f"{fleet.__module__}:fleet", hosts=hosts, environment=environment
        )
        await self._local.start()
        async with asyncio.timeout(START_S):
            while self._client is None:
                with contextlib.suppress(CoordinatorUnavailableError):
                    self._client = await Client.connect(self._local.address, name="program")
        self._made.clear()
        self._watching = asyncio.create_task(self._watch(self._local))

    async def _watch(self, local: LocalFleet) -> None:
        """Wait until the fleet has ended without a request to stop, and set `has_ended`."""
        try:
            reason = f"the fleet has ended: {(await local.wait()).outcome}"
        except SnaplineError as error:
            reason = str(error)
        print(f"snapline: {reason}", file=sys.stderr)
        self.has_ended.set()

    async def stop(self) -> None:
        """Stop the fleet's processes."""
        if self._watching is not None:
            self._watching.cancel()
        if self._client is not None:
            await self._client.close()
        if self._local is not None:
            await self._local.stop()
        self._client = self._local = None

    # -- messages ------------------------------------------------------------------------------------------------------

    async def _send(self, item: TurnItem) -> None:
        """Send a message, and return when it has been accepted for each receiver.

        Every later snapshot contains the message until the turn that handles it has ended.
        """
        turn = "" if item.topic else PROGRAM
        message = AutogenMessage(item.message, item.sender, item.topic, item.id, turn)
        for to in item.to:
            forwarded = ForwardedMessage(to, message)
            await self._running().ask(
                AGENT_CREATOR, forwarded, early=True, timeout_s=ACCEPT_TIMEOUT_S, reply_type=AgentWanted
            )

    async def _give(self, frame: dict[str, Any]) -> None:
        request = StateGiven(*(frame[key] and msgspec.convert(frame[key], KeptValue) for key in ("state", "before")))
        await self._running().ask(await self._there(frame["agent"]), request, early=True, reply_type=StateGiven)

    async def _idle(self) -> None:
        """Take snapshots until one contains no pending work."""
        while not is_still(await self._snapshot()):
            await asyncio.sleep(CHECK_PERIOD_S)

    async def _there(self, to: str) -> str:
        """Return the snapline id of an agent, creating the agent if necessary."""
        name = agent_name(to)
        async with self._making:
            if name not in self._made:
                await self._running().ask(AGENT_CREATOR, AgentWanted(to), early=True, reply_type=AgentWanted)
                await self._until_known(name)
                self._made.add(name)
        return name

    async def _until_known(self, name: str) -> None:
        for _ in range(TRIES):
            if any(agent.agent == name for agent in await self._running().agents()):
                return
            await asyncio.sleep(AGAIN_S)
        raise AgentMissingError(f"agent {name!r} was asked for, and is not there")

    def _running(self) -> Client:
        if self._client is None:
            raise SnaplineError("the runtime is stopped")
        return self._client

    # -- snapshots -----------------------------------------------------------------------------------------------------

    async def _snapshot(self) -> Cut:
        made: dict[str, Any] = await self._running().snapshot()
        return await asyncio.to_thread(load_cut, self._store(), made["epoch"], fleet())

    def _store(self) -> Store:
        return Store.open(self._folder / "data" / "store")

    def _pack(self, epoch: int) -> str:
        """Return a packed, text-encoded store that contains only this snapshot."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            fork = Path(folder) / "fork"
            store = snapline.open_store(self._folder / "data" / "store", fleet=fleet())
            store.snapshot(epoch).fork(str(fork), name="program", inputs="copy", live=True)
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted(fork.rglob("*")):
                    archive.write(path, path.relative_to(fork))
        return base64.b64encode(packed.getvalue()).decode()

    def _unpack(self, packed: str) -> None:
        """Replace the fleet's data in the folder with a packed store."""
        shutil.rmtree(self._folder / "data", ignore_errors=True)
        with zipfile.ZipFile(io.BytesIO(base64.b64decode(packed))) as archive:
            archive.extractall(self._folder / "data" / "store")


def is_still(cut: Cut) -> bool:
    """Return whether no message is in transit and no turn is in progress."""
    return cut.is_quiet and not cut.pending_turns


def _states_of(cut: Cut) -> dict[str, Any]:
    """Return a map from AutoGen id to readable stored state, for each agent that has a stored state."""
    states = {autogen_id(agent): getattr(state, "kept", None) for agent, state in cut.states.items()}
    return {agent: msgspec.to_builtins(kept) for agent, kept in states.items() if agent and kept is not None}


def _error_of(error: BaseException) -> dict[str, Any]:
    return {"failed": f"{type(error).__name__}: {error}"}


async def main(folder: Path, channel: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=channel)
    session = ProgramSession(folder)
    tasks: set[asyncio.Task[None]] = set()

    async def answer(frame: dict[str, Any]) -> None:
        try:
            reply = await session.answer(frame)
        except Exception as error:
            reply = _error_of(error)
        writer.write(to_bytes({"number": frame["number"], **reply}))
        await writer.drain()

    async def read() -> None:
        while (frame := await read_frame(reader)) is not None:
            task = asyncio.create_task(answer(frame))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    ends = [asyncio.create_task(read()), asyncio.create_task(session.has_ended.wait())]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in list(tasks):
            task.cancel()
        await session.stop()


if __name__ == "__main__":
    opened = socket.socket(fileno=os.dup(0))
    os.dup2(2, 1)
    asyncio.run(main(Path(sys.argv[1]), opened))
