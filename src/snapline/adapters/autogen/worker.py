"""Starts AutoGen's process from the host, and runs turns in that process. This module also defines the messages of AutoGen agents.

Messages between AutoGen agents are snapline messages, so other agents and clients can also send them.

The process holds no state that cannot be rebuilt, because the host owns states and messages. If the process dies, the host restarts it.
Each turn that was in progress is rerun with the replies that it had received, in the same order. Messages that the interrupted turn had
already sent are not sent again.
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
    """An encoded AutoGen message, state, answer or error.

    Attributes:
        form: encoding of `body`, either "json", "message" or "pickle". "message" means AutoGen's JSON serializer for `type`. "pickle" means
            a pickle in base64.
    """

    form: str
    body: str
    type: str = ""


class AutogenMessage(Message, frozen=True):
    """A message for a handler of an AutoGen agent.

    Attributes:
        message: the encoded message, of a type that the agent handles.
        sender: AutoGen id `type/key` of the sending agent. Empty if no agent has sent the message.
        topic: topic `type/source` to which the message was published. Empty if the message was sent to this agent directly.
        turn, call: id of the turn that waits for the answer, and number of the call within that turn. `turn` is empty if no turn waits for
            the answer.
    """

    message: KeptValue
    sender: str = ""
    topic: str = ""
    id: str = ""
    turn: str = ""
    call: int = 0


class AutogenAnswer(Message, frozen=True):
    """The return value of a handler, or the error that it has raised.

    Attributes:
        turn, call: copied from the AutogenMessage that was handled.
        value: the return value, or the error if `is_error` is set.
    """

    value: KeptValue
    is_error: bool = False
    turn: str = ""
    call: int = 0


class ForwardedMessage(Message, frozen=True):
    """A message for the AutoGen agent `to`, which may not exist yet. The message is sent to the agent that creates AutoGen agents."""

    to: str
    message: AutogenMessage


class AgentWanted(Message, frozen=True):
    """Request to create an AutoGen agent unless it already exists."""

    agent: str


class StateGiven(Message, frozen=True):
    """Request to set an agent's state to `state` if its current state is `before`."""

    state: KeptValue
    before: KeptValue | None = None


PYTHON_VARIABLE = "SNAPLINE_AUTOGEN_PYTHON"
"""Name of the environment variable that contains the path of the Python interpreter in AutoGen's environment."""

SOCKET_VARIABLE = "SNAPLINE_AUTOGEN_SOCKET"
"""Name of the environment variable that contains the socket of a program that runs turns itself. If it is set, the host may use that
program instead of starting a process."""

ENDS_MAX = 3
"""Number of times that AutoGen's process may die during one segment of a turn. After that, the turn fails, since the message may be the
cause."""

AGAIN_S = 2.0
"""Pause in seconds after the process could not be started, or the program could not be reached, before the next attempt. Turns wait
meanwhile, since their messages are not the cause."""

HELLO_S = 120.0
"""Longest time in seconds for the process to import the program with its dependencies."""

log = logging.getLogger(__name__)


class AutogenWorkerError(ExternalFailureError):
    """AutoGen's process died or could not be started."""


class TurnItem(msgspec.Struct, frozen=True):
    """A message that a turn has sent. `call` is the number of the call that awaits the reply, or -1 if the sender awaits no reply."""

    to: list[str]
    message: KeptValue
    sender: str = ""
    topic: str = ""
    id: str = ""
    call: int = -1

    def comparison_key(self) -> list[Any]:
        """Return the fields that a rerun of the turn must reproduce."""
        return [self.to, self.topic, self.message.type, self.call]


class TurnSegment(msgspec.Struct, frozen=True):
    """Result of running a turn until it next waits or ends.

    Attributes:
        state: new state of the agent. None if the turn has not ended or has left the state unchanged.
        answer: return value of the handler. None if the turn has not ended or has failed.
        error: error that the handler has raised. `text` is the error in readable form.
    """

    items: list[TurnItem]
    is_over: bool
    state: KeptValue | None = None
    answer: KeptValue | None = None
    error: KeptValue | None = None
    text: str = ""


class ReceivedReply(msgspec.Struct, frozen=True):
    """A reply that a turn has received."""

    call: int
    value: KeptValue
    is_error: bool

    def frame(self, agent: str) -> dict[str, Any]:
        answer = {"value": msgspec.to_builtins(self.value), "is_error": self.is_error}
        return {"do": "go on", "turn": agent, "call": self.call, "answer": answer}


class _BlockedTurn(msgspec.Struct):
    """A turn that is in progress in AutoGen's process and is currently blocked.

    `mark` is a digest of the frame that began the turn and of all received replies. `skip` contains the comparison keys of items that were
    already sent, and that the rerun must not send again.
    """

    mark: bytes
    skip: list[list[Any]]


class AutogenWorker:
    """Connection to the process that runs a program's turns for this host. The object also tracks which turns are in progress in that
    process."""

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
        """Run a turn until it next waits or ends. If the turn is not in progress in the process, it is rerun there from its beginning.

        Args:
            heard: replies received so far, in order. The process may not have received the last reply yet.
            said: comparison keys of the items that the turn had already sent.

        Raises:
            AutogenWorkerError: the process died in every attempt.
            DivergenceError: the rerun turn sent different items than its first run.
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
        """Ensure that AutoGen's process is running. If the process cannot be started, keep retrying until it starts."""
        async with self._starting:
            while self._writer is None:
                try:
                    await self._start_once()
                except (OSError, AutogenWorkerError, TimeoutError) as error:
                    log.warning("AutoGen's agents are suspended, and are tried again in %g s: %s", AGAIN_S, error)
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
        """Start AutoGen's process, and return the parent's end of the socket pair that connects to it. AutoGen's process exits when this
        socket is closed, at the latest when the host process exits."""
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
    """Return the digests that identify a turn's progress at its beginning and after each reply.

    The last digest belongs to the turn after its last reply.
    """
    marks = [blake2b(json.dumps(begin, sort_keys=True).encode()).digest()]
    for reply in heard:
        marks.append(blake2b(marks[-1] + msgspec.msgpack.encode(reply)).digest())
    return marks


def _unsent_items(items: list[TurnItem], turn: _BlockedTurn, agent: str) -> list[TurnItem]:
    """Return the items that the turn had not sent before it was rerun. Raise DivergenceError if an item differs from the item that the
    first run sent."""
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
    """Return the worker for this program in the current event loop."""
    workers = _workers.setdefault(asyncio.get_running_loop(), {})
    if program not in workers:
        workers[program] = AutogenWorker(program)
    return workers[program]
