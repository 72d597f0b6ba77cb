"""Start AutoGen's process from the host, and run turns in that process. This module also defines the messages of AutoGen agents.

Messages between AutoGen agents are snapline messages. Agents and clients may send them.

The process has no state that cannot be rebuilt, since the host owns states and messages. If the process dies, the host restarts it. Each
turn that was open in the process is begun again with the replies received before, in the same order. Messages that a turn had already sent
are not sent again.
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

from snapline.adapters.autogen.pipe_protocol import read_frame, to_bytes
from snapline.agent_runtime.agent import Message
from snapline.errors import DivergenceError, ExternalFailureError


class KeptValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """An encoded value of AutoGen.

    Attributes:
        form: encoding of `body`. "json": JSON. "message": AutoGen's JSON serializer of `type`. "pickle": a pickle, in base64.
        type: name of the message's class.
    """

    form: str
    body: str
    type: str = ""


class AutogenMessage(Message, frozen=True):
    """A message for a handler of an AutoGen agent.

    Attributes:
        message: message of a type that the agent handles.
        sender: AutoGen id, `type/key`, of the sending agent, or "".
        topic: `type/source` to which the message was published; "" if the message was sent to this agent.
        id: id of the message.
        turn, call: turn and call to which the answer belongs; "" if no answer is expected.
    """

    message: KeptValue
    sender: str = ""
    topic: str = ""
    id: str = ""
    turn: str = ""
    call: int = 0


class AutogenAnswer(Message, frozen=True):
    """Return value or error of a handler.

    Attributes:
        turn, call: copied from the message that this answers.
        value: the return value, or the error.
    """

    value: KeptValue
    is_error: bool = False
    turn: str = ""
    call: int = 0


class ForwardedMessage(Message, frozen=True):
    """A message to an AutoGen agent, `to`, that may not exist yet. The agent that creates agents handles it."""

    to: str
    message: AutogenMessage


class AgentWanted(Message, frozen=True):
    """Request to create an AutoGen agent if it does not exist."""

    agent: str


class StateGiven(Message, frozen=True):
    """Request to set an agent's state to `state`, if the agent's current state is the expected one."""

    state: KeptValue
    before: KeptValue | None = None


PYTHON_VARIABLE = "SNAPLINE_AUTOGEN_PYTHON"
"""Environment variable: the Python interpreter of AutoGen's environment."""

SOCKET_VARIABLE = "SNAPLINE_AUTOGEN_SOCKET"
"""Environment variable: address of a program that runs turns itself, instead of a process started by the host."""

ENDS_MAX = 3
"""Largest number of times that AutoGen's process may end in one segment of a turn. After that the message is dead-lettered, since it may be
the cause."""

AGAIN_S = 2.0
"""Pause after a failure before the process is restarted or the program reconnected. Turns wait meanwhile, since their messages are not the
cause."""

HELLO_S = 120.0
"""Longest time to import a program with its dependencies."""

log = logging.getLogger(__name__)


class AutogenWorkerError(ExternalFailureError):
    """AutoGen's process has ended, or cannot be started."""


class TurnItem(msgspec.Struct, frozen=True):
    """Message sent by a turn. `call`: number of the awaited reply; -1: none."""

    to: list[str]
    message: KeptValue
    sender: str = ""
    topic: str = ""
    id: str = ""
    call: int = -1

    def comparison_key(self) -> list[Any]:
        """Return the part of the item that must be equal when the turn is rerun."""
        return [self.to, self.topic, self.message.type, self.call]


class TurnSegment(msgspec.Struct, frozen=True):
    """Result of a turn up to its next wait or its end.

    Attributes:
        state: new state of the agent at the end of the turn; None: unchanged.
        answer: return value of the handler.
        error: error that the handler raised; `text` is its readable form.
    """

    items: list[TurnItem]
    is_over: bool
    state: KeptValue | None = None
    answer: KeptValue | None = None
    error: KeptValue | None = None
    text: str = ""


class ReceivedReply(msgspec.Struct, frozen=True):
    """A reply received by a turn."""

    call: int
    value: KeptValue
    is_error: bool

    def frame(self, agent: str) -> dict[str, Any]:
        answer = {"value": msgspec.to_builtins(self.value), "is_error": self.is_error}
        return {"do": "go on", "turn": agent, "call": self.call, "answer": answer}


class _BlockedTurn(msgspec.Struct):
    """A turn that is open in AutoGen's process.

    `mark`: digest of the begin frame and the received replies. `skip`: comparison keys of items already sent, which are not sent again.
    """

    mark: bytes
    skip: list[list[Any]]


class AutogenWorker:
    """The process that runs a program's turns for this host, and its open turns."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._writer: asyncio.StreamWriter | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = 0
        self._standing: dict[str, _BlockedTurn] = {}

    async def segment(self, begin: dict[str, Any], heard: list[ReceivedReply], said: list[list[Any]]) -> TurnSegment:
        """Run a turn to its next wait. A turn that is not open in the process is begun again there.

        Args:
            begin: frame with which the turn begins.
            heard: replies received, in order; the process may not have the last one yet.
            said: comparison key of each item already sent.

        Raises:
            AutogenWorkerError: the process has ended during every attempt.
            DivergenceError: the rerun turn has sent different items.
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

    async def _segment(self, begin: dict[str, Any], heard: list[ReceivedReply], said: list[list[Any]]) -> TurnSegment:
        agent = begin["turn"]
        marks = _marks(begin, heard)
        turn = self._standing.get(agent)
        if turn is not None and turn.mark == marks[-1]:
            frames = [{"do": "go on", "turn": agent, "call": -1}]
        elif turn is not None and heard and turn.mark == marks[-2]:
            frames = [heard[-1].frame(agent)]
        else:
            turn = self._standing[agent] = _BlockedTurn(b"", list(said))
            frames = [{"do": "begin", **begin}, *(reply.frame(agent) for reply in heard)]
        items: list[TurnItem] = []
        for frame in frames:
            segment = await self._ask(frame)
            items += _unsent_items(segment.items, turn, agent)
            if segment.is_over:
                break
        if segment.is_over:
            del self._standing[agent]
            if turn.skip:
                raise _diverged(agent, turn.skip[0], "has ended")
        turn.mark = marks[-1]
        return msgspec.structs.replace(segment, items=items)

    async def _ask(self, frame: dict[str, Any]) -> TurnSegment:
        self._numbers += 1
        number = self._numbers
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            await self._write({**frame, "number": number})
            reply = await future
        finally:
            self._asked.pop(number, None)
        if reply.get("segment") is None:
            raise AutogenWorkerError(reply.get("failed") or "AutoGen's process does not know a turn of its own")
        return msgspec.convert(reply["segment"], TurnSegment)

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
        """Ensure that the process runs; retry until it can be started."""
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
        """Start the process. The new process ends when its socket is closed, so at the latest with this process."""
        python = os.environ.get(PYTHON_VARIABLE)
        if not python:
            raise AutogenWorkerError(
                f"{PYTHON_VARIABLE} is not set: let it name the Python of an environment that has autogen-core, such as "
                "/opt/autogen/bin/python"
            )
        if self._process is not None:
            self._process.poll()  # reaps the process
        parent_socket, child_socket = socket.socketpair()
        boot = Path(__file__).parent / "inside" / "boot.py"
        command: list[str] = [python, str(boot), str(Path(__file__).parents[2]), self._program]
        with child_socket:
            try:
                self._process = subprocess.Popen(command, stdin=child_socket.fileno(), stdout=child_socket.fileno())
            except OSError:
                parent_socket.close()
                raise
        return parent_socket

    async def _read(self, reader: asyncio.StreamReader) -> None:
        reason = "AutoGen's process has ended"
        try:
            while (frame := await read_frame(reader)) is not None:
                future = self._asked.get(frame["number"])
                if future is not None and not future.done():
                    future.set_result(frame)
        except (ValueError, OSError) as error:
            reason = f"AutoGen's process says what is no frame: {error}"
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._standing.clear()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(AutogenWorkerError(reason))


def _marks(begin: dict[str, Any], heard: list[ReceivedReply]) -> list[bytes]:
    """Return the marks of a turn after its beginning and after each reply.

    The last mark is that of a turn that has received all replies.
    """
    marks = [blake2b(json.dumps(begin, sort_keys=True).encode()).digest()]
    for reply in heard:
        marks.append(blake2b(marks[-1] + msgspec.msgpack.encode(reply)).digest())
    return marks


def _unsent_items(items: list[TurnItem], turn: _BlockedTurn, agent: str) -> list[TurnItem]:
    """Return the items that were not sent before the turn was begun again."""
    new_items = []
    for item in items:
        if not turn.skip:
            new_items.append(item)
            continue
        expected = turn.skip.pop(0)
        if item.comparison_key()[:3] != expected[:3]:
            raise _diverged(agent, expected, f"sends a {item.message.type} to {', '.join(item.to)}")
    return new_items


def _diverged(agent: str, expected: list[Any], what: str) -> DivergenceError:
    return DivergenceError(
        f"the turn of agent {agent!r} is run again, and now its handler {what}, where it had sent a {expected[2]} to {', '.join(expected[0])}: "
        "a handler that has awaited a reply must send the same again up to there. Its chance is the turn's; keep clocks and calls out of what decides "
        "whom it asks"
    )


_workers: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, AutogenWorker]]" = weakref.WeakKeyDictionary()


def worker_of(program: str) -> AutogenWorker:
    """Return the worker of this process."""
    workers = _workers.setdefault(asyncio.get_running_loop(), {})
    if program not in workers:
        workers[program] = AutogenWorker(program)
    return workers[program]
