"""A host's side of the pipe: starts AutoGen's process, and has it run turns.

That process knows nothing that it could not be told again: states and messages are the host's. So one that has died is started anew, and each turn that stood in it is begun again there, and told in the old order what it had heard.
What it had said is not said again.
"""

import asyncio
import json
import logging
import os
import socket
import subprocess
import weakref
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from snapline.adapters.autogen.frames import read_frame, to_bytes
from snapline.adapters.autogen.messages import KeptValue
from snapline.errors import DivergenceError, ExternalFailureError

PYTHON_VARIABLE = "SNAPLINE_AUTOGEN_PYTHON"
"""The interpreter of AutoGen's environment."""

SOCKET_VARIABLE = "SNAPLINE_AUTOGEN_SOCKET"
"""Address of a program that runs turns itself: in place of a process of the host's own."""

ENDS_MAX = 3
"""Number of times that AutoGen's process may end in one segment of a turn. Then the message is dead-lettered: it may be the cause."""

AGAIN_S = 2.0
"""Before a process is started again that cannot be started, or a program called again that does not listen. Their turns wait so long: it is not the messages' fault."""

HELLO_S = 120.0
"""Longest time to import a program, with all that it imports."""

log = logging.getLogger(__name__)


class AutogenWorkerError(ExternalFailureError):
    """AutoGen's process has ended, or cannot be started."""


class TurnItem(msgspec.Struct, frozen=True):
    """Message that a turn sends. `call`: the number of the reply that it awaits; -1: none."""

    to: list[str]
    message: KeptValue
    sender: str = ""
    topic: str = ""
    id: str = ""
    call: int = -1

    def likeness(self) -> list[Any]:
        """The same when a turn is run again."""
        return [self.to, self.topic, self.message.type, self.call]


class TurnSegment(msgspec.Struct, frozen=True):
    """Result of a turn up to where it waits, or is over.

    Attributes:
        state: of the agent when the turn is over; None: as it was.
        answer: what its handler has returned; `error`: or raised, with `text` for people.
    """

    items: list[TurnItem]
    is_over: bool
    state: KeptValue | None = None
    answer: KeptValue | None = None
    error: KeptValue | None = None
    text: str = ""


class HeardReply(msgspec.Struct, frozen=True):
    """A reply that a turn has got."""

    call: int
    value: KeptValue
    is_error: bool

    def frame(self, agent: str) -> dict[str, Any]:
        answer = {"value": msgspec.to_builtins(self.value), "is_error": self.is_error}
        return {"do": "go on", "turn": agent, "call": self.call, "answer": answer}


class _StandingTurn(msgspec.Struct):
    """A turn in AutoGen's process. `mark`: of what it was begun with and has heard; `skip`: so much of what it says has been said."""

    mark: bytes
    skip: list[list[Any]]


class AutogenWorker:
    """The process that runs a program's turns for this host, and what stands in it."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._writer: asyncio.StreamWriter | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = 0
        self._standing: dict[str, _StandingTurn] = {}

    async def segment(self, begin: dict[str, Any], heard: list[HeardReply], said: list[list[Any]]) -> TurnSegment:
        """Have a turn go on to where it stands next. It may be in the process already, or have to be begun there again.

        Args:
            begin: the frame that it begins with.
            heard: the replies that it has got, in order; the process may not know the last one yet.
            said: of each item that it has sent, its likeness.

        Raises:
            AutogenWorkerError: the process has ended each time in the middle of this.
            DivergenceError: run again it has sent something else.
        """
        for _ in range(ENDS_MAX):
            await self._start()
            try:
                return await self._segment(begin, heard, said)
            except AutogenWorkerError as error:
                self._standing.pop(begin["turn"], None)
                log.warning("%s; the turn of agent %s is begun again in another one", error, begin["turn"])
            except asyncio.CancelledError:
                self._drop(begin["turn"])
                raise
        raise AutogenWorkerError(
            f"AutoGen's process has ended {ENDS_MAX} times in the middle of a turn of agent {begin['turn']!r}: its own log says why"
        )

    async def close(self) -> None:
        """End the process."""
        if self._writer is not None:
            self._writer.close()
        if self._reading is not None:
            await self._reading
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)

    async def _segment(self, begin: dict[str, Any], heard: list[HeardReply], said: list[list[Any]]) -> TurnSegment:
        agent = begin["turn"]
        marks = _marks(begin, heard)
        turn = self._standing.get(agent)
        if turn is not None and turn.mark == marks[-1]:
            frames = [{"do": "go on", "turn": agent, "call": -1}]
        elif turn is not None and heard and turn.mark == marks[-2]:
            frames = [heard[-1].frame(agent)]
        else:
            turn = self._standing[agent] = _StandingTurn(b"", list(said))
            frames = [{"do": "begin", **begin}, *(each.frame(agent) for each in heard)]
        items: list[TurnItem] = []
        for frame in frames:
            found = await self._ask(frame)
            items += _unsaid(found.items, turn, agent)
            if found.is_over:
                break
        if found.is_over:
            del self._standing[agent]
            if turn.skip:
                raise _diverged(agent, turn.skip[0], "has ended")
        turn.mark = marks[-1]
        return msgspec.structs.replace(found, items=items)

    async def _ask(self, frame: dict[str, Any]) -> TurnSegment:
        self._numbers += 1
        number = self._numbers
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            await self._write({**frame, "number": number})
            found = await answer
        finally:
            self._asked.pop(number, None)
        if found.get("segment") is None:
            raise AutogenWorkerError(found.get("failed") or "AutoGen's process does not know a turn of its own")
        return msgspec.convert(found["segment"], TurnSegment)

    async def _write(self, frame: dict[str, Any]) -> None:
        if self._writer is None:
            raise AutogenWorkerError("AutoGen's process has ended")
        try:
            self._writer.write(to_bytes(frame))
            await self._writer.drain()
        except OSError as error:
            raise AutogenWorkerError(f"AutoGen's process has ended: {error}") from error

    def _drop(self, agent: str) -> None:
        self._standing.pop(agent, None)
        if self._writer is not None:
            self._writer.write(to_bytes({"do": "drop", "turn": agent}))

    # -- the process ---------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """See that there is a process; wait for one as long as there can be none."""
        async with self._starting:
            while self._writer is None:
                try:
                    await self._start_once()
                except (OSError, AutogenWorkerError, TimeoutError) as error:
                    log.warning("AutoGen's agents stand, and are tried again in %g s: %s", AGAIN_S, error)
                    await asyncio.sleep(AGAIN_S)

    async def _start_once(self) -> None:
        path = os.environ.get(SOCKET_VARIABLE)
        if path and not self._program:
            reader, writer = await asyncio.open_unix_connection(path)
        else:
            reader, writer = await asyncio.open_connection(sock=self._spawn())
        try:
            async with asyncio.timeout(HELLO_S):
                hello = await read_frame(reader)
            if hello is None or hello["hello"]:
                raise AutogenWorkerError(hello["hello"] if hello else "AutoGen's process has ended at once")
        except BaseException:
            writer.close()
            raise
        self._writer = writer
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))

    def _spawn(self) -> socket.socket:
        """Start it. It ends when this process does: then nobody is at the other end of its socket."""
        python = os.environ.get(PYTHON_VARIABLE)
        if not python:
            raise AutogenWorkerError(
                f"{PYTHON_VARIABLE} is not set: let it name the Python of an environment that has autogen-core, such as "
                "/opt/autogen/bin/python"
            )
        if self._process is not None:
            self._process.poll()  # so that it is no zombie
        ours, theirs = socket.socketpair()
        boot = Path(__file__).parent / "inside" / "boot.py"
        command: list[str] = [python, str(boot), str(Path(__file__).parents[2]), self._program]
        with theirs:
            try:
                self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno())
            except OSError:
                ours.close()
                raise
        return ours

    async def _read(self, reader: asyncio.StreamReader) -> None:
        why = "AutoGen's process has ended"
        try:
            while (frame := await read_frame(reader)) is not None:
                answer = self._asked.get(frame["number"])
                if answer is not None and not answer.done():
                    answer.set_result(frame)
        except (ValueError, OSError) as error:
            why = f"AutoGen's process says what is no frame: {error}"
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._standing.clear()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(AutogenWorkerError(why))


def _marks(begin: dict[str, Any], heard: list[HeardReply]) -> list[bytes]:
    """Return the marks of a turn that was begun so, after each reply: the last is that of a turn that has received all."""
    marks = [blake2b(json.dumps(begin, sort_keys=True).encode()).digest()]
    for each in heard:
        marks.append(blake2b(marks[-1] + msgspec.msgpack.encode(each)).digest())
    return marks


def _unsaid(items: list[TurnItem], turn: _StandingTurn, agent: str) -> list[TurnItem]:
    """Return the items that have not been sent before the turn was begun again."""
    fresh = []
    for item in items:
        if not turn.skip:
            fresh.append(item)
            continue
        expected = turn.skip.pop(0)
        if item.likeness()[:3] != expected[:3]:
            raise _diverged(agent, expected, f"sends a {item.message.type} to {', '.join(item.to)}")
    return fresh


def _diverged(agent: str, expected: list[Any], what: str) -> DivergenceError:
    return DivergenceError(
        f"the turn of agent {agent!r} is run again, and now its handler {what}, where it had sent a {expected[2]} to {', '.join(expected[0])}: "
        "a handler that has awaited a reply must send the same again up to there. Its chance is the turn's; keep clocks and calls out of what decides "
        "whom it asks"
    )


_workers: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, AutogenWorker]]" = weakref.WeakKeyDictionary()


def worker_of(program: str) -> AutogenWorker:
    """The one of this process."""
    known = _workers.setdefault(asyncio.get_running_loop(), {})
    if program not in known:
        known[program] = AutogenWorker(program)
    return known[program]
