"""Children of a launcher that are forked from one process that has imported everything: most of a start is imports.

A launcher starts one *fork server* (`cli/fork_server.py`) and sends it requests over a socket pair; with the request goes the log
that the child writes to. The server stays alone with its one thread and nothing of gRPC but its code, so that a fork of it is safe.

The children are the server's, and die with it, as the server dies with its launcher (`deploy/parent_watch.py`). It reports how each has ended and
reaps it on command: until then the child's id is not reused, and a signal to it meets it or nothing.

A server refuses when the code that it has imported is no longer what lies on the disk. Then, and for every other program, and where a variable is
needed that counts when a program starts, a child is started in the usual way: a launcher never needs the server.
"""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import msgspec

from snapline.deploy.starting import begin, take_begun

FORKABLE = (sys.executable, "-m", "snapline")
"""Prefix of the command lines that a server can run."""

READ_AT_EXEC = ("LD_", "PYTHON", "GRPC_", "MALLOC_", "GLIBC_")
"""Variables that begin so are read when a program starts or is imported."""

REPLY_S = 10.0
"""A fork takes milliseconds. Who has not answered by then does not fork any more."""

CLOSE_S = 2.0
"""Time to read the last messages, and end: milliseconds, unless it hangs."""

READY_S = 20.0
"""Time limit for all imports, on a busy machine."""

MESSAGE_BYTES = 1 << 17


class StartFork(msgspec.Struct, frozen=True, tag=True):
    """Start `snapline WORDS`; `changes` to the server's environment, None: without it."""

    words: list[str]
    changes: dict[str, str | None]
    folder: str


class Reap(msgspec.Struct, frozen=True, tag=True):
    """The launcher knows of this end."""

    pid: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """All is imported."""


class Forked(msgspec.Struct, frozen=True, tag=True):
    """A child was started."""

    pid: int


class ForkRefused(msgspec.Struct, frozen=True, tag=True):
    """None was: start it otherwise."""

    reason: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A child has ended; `code` is minus the signal's number if a signal ended it."""

    pid: int
    code: int


Request = StartFork | Reap
Word = Ready | Forked | ForkRefused | Ended
REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
WORDS: msgspec.msgpack.Decoder[Word] = msgspec.msgpack.Decoder(Word)


def end_group(pid: int) -> None:
    """Kill what a process that has ended, and is not reaped yet, has left of its group: its children must not work on for a run that is over."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def is_forkable(command: Sequence[str]) -> bool:
    """Return whether a server can run this command line."""
    return tuple(command[: len(FORKABLE)]) == FORKABLE


class ForkedProcess:
    """A child of a fork server.

    Attributes:
        returncode: None while it runs; minus the signal's number if a signal ended it.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)  # not reaped yet: it is this child
        self._on_end: Callable[[], None] = lambda: None

    def when_ended(self, then: Callable[[], None]) -> None:
        """Call it once, when the process has ended."""
        self._on_end = then
        if self.returncode is not None:
            then()

    def end(self, code: int) -> None:
        """Record the child's exit code and its end."""
        self.returncode = code
        os.close(self._pidfd)
        self._on_end()

    def await_kill(self) -> None:
        """Await the end of a child whose server is gone: the kernel kills it."""
        loop = asyncio.get_running_loop()

        def killed() -> None:
            loop.remove_reader(self._pidfd)
            self.end(-signal.SIGKILL)

        loop.add_reader(self._pidfd, killed)


class ForkServer:
    """The launcher's end. Call everything in the event loop in which it was started.

    Attributes:
        is_open: children can be forked.
    """

    def __init__(self, process: subprocess.Popen[bytes], door: socket.socket, environment: Mapping[str, str]) -> None:
        self._process = process
        self._door = door
        self._environment = dict(environment)
        self._children: dict[int, ForkedProcess] = {}
        self.is_open = False

    @classmethod
    async def start(cls, environment: Mapping[str, str]) -> Self | None:
        """Start it with this environment, tied to this process; None if it does not come up."""
        begun = take_begun() or begin(environment)
        server, door = cls(*begun), begun.door
        try:
            door.setblocking(False)
            async with asyncio.timeout(READY_S):
                said = await asyncio.get_running_loop().sock_recv(door, MESSAGE_BYTES)
        except (TimeoutError, OSError):
            said = b""
        except BaseException:
            server.close()
            raise
        if not said:
            server.close()
            return None
        server.is_open = True
        asyncio.get_running_loop().add_reader(door, server._listen)
        return server

    def fork(self, command: Sequence[str], log: int, environment: Mapping[str, str]) -> ForkedProcess | None:
        """Start a child with this environment, its output to the descriptor `log`; None: start it otherwise.

        It blocks for some milliseconds, so that no cancellation falls between a process and our knowledge of it.
        """
        changes = self._changes(environment)
        if not self.is_open or not is_forkable(command) or changes is None:
            return None
        request = msgspec.msgpack.encode(StartFork(list(command[len(FORKABLE) :]), changes, os.getcwd()))
        try:
            socket.send_fds(self._door, [request], [log])
        except OSError:  # too large, or it is gone
            return None
        answer = self._await_answer()
        if not isinstance(answer, Forked):
            return None
        try:
            child = self._children[answer.pid] = ForkedProcess(answer.pid)
        except ProcessLookupError:  # the server was killed since, and the child with it
            return None
        return child

    def _changes(self, environment: Mapping[str, str]) -> dict[str, str | None] | None:
        """Return the differences from the server's environment; None: some variable only counts when a program starts."""
        names = {*environment, *self._environment}
        changes = {x: environment.get(x) for x in names if environment.get(x) != self._environment.get(x)}
        return None if any(name.startswith(READ_AT_EXEC) for name in changes) else changes

    def _await_answer(self) -> Word | None:
        """None: there will be none, and no child is left of which we do not know."""
        while self.is_open:
            readable, _, _ = select.select([self._door], [], [], REPLY_S)
            if not readable:
                self._process.kill()  # and read what it had said, to its end
                continue
            word = self._receive()
            if isinstance(word, Ended):
                self._note_end(word)
            elif word is not None:
                return word
        return None

    def _listen(self) -> None:
        word = self._receive()
        if isinstance(word, Ended):
            self._note_end(word)

    def _receive(self) -> Word | None:
        """Return the next message. None: the server is gone, or has sent no more than was read while a child was started."""
        try:
            said = self._door.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            said = b""
        if said:
            return WORDS.decode(said)
        self._lose()
        return None

    def _note_end(self, word: Ended) -> None:
        child = self._children.pop(word.pid, None)
        end_group(word.pid)
        if child is not None:
            child.end(word.code)
        try:
            self._door.send(msgspec.msgpack.encode(Reap(word.pid)))
        except OSError:
            self._lose()

    def _lose(self) -> None:
        """Close: the server is gone, and so are its children in a moment."""
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().remove_reader(self._door)
            for child in self._children.values():
                child.await_kill()
            self._children.clear()

    def close(self) -> None:
        """End it, and all that it has started. It has reaped what has ended when this returns."""
        limit_s = CLOSE_S if self.is_open else 0.0
        self._lose()
        self._door.close()
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
