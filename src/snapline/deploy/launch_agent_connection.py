"""A launcher's side of one connection to a launch agent, over the standard streams of a program such as `ssh`."""

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from typing import Self

import msgspec

import snapline
from snapline.deploy.launch_agent_messages import (
    GREETING_LINES_MAX,
    LINE_BYTES_MAX,
    LaunchAgentGreeting,
    LaunchAgentReply,
    LaunchAgentRequest,
    encode_line,
)
from snapline.errors import ExternalFailureError

STDERR_BYTES_MAX = 4096
"""Size of the end of the program's stderr that is kept to explain its exit."""

END_S = 5.0
"""Time limit for the program to end once its input is closed; after that it is killed."""


class ConnectionLostError(ExternalFailureError):
    """The connection is gone; the request may have been carried out."""


class LaunchAgentMissingError(ExternalFailureError):
    """The program ended before a launch agent answered.

    Attributes:
        code: the program's exit code.
        said: the end of its stderr.
    """

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said or f"exit code {code}")
        self.code = code
        self.said = said


class LaunchAgentConnection:
    """One connection to a launch agent.

    Attributes:
        greeting: the launch agent's first message.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.greeting = LaunchAgentGreeting("", "")
        self._process = process
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[LaunchAgentReply]] = {}
        self._stderr_tail = b""
        self._errors = asyncio.create_task(self._keep_errors())
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, command: Sequence[str]) -> Self:
        """Run the program, and wait for the launch agent's greeting.

        Raises:
            LaunchAgentMissingError: the program ended without a greeting.
            ExternalFailureError: the program cannot be run, or the launch agent has another version of snapline.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LINE_BYTES_MAX,
                start_new_session=True,  # a Ctrl-C at the terminal must reach the launcher only
            )
        except OSError as error:
            raise ExternalFailureError(f"{command[0]} cannot be run: {error.strerror}") from error
        connection = cls(process)
        try:
            await connection._greet()
        except BaseException:
            await connection.close()
            raise
        return connection

    async def call(self, request: LaunchAgentRequest) -> LaunchAgentReply:
        """Send the request, and wait for the answer.

        Raises:
            ConnectionLostError: the connection is gone.
        """
        if self._reading is None or self._reading.done():
            raise ConnectionLostError("the connection is closed")
        number = next(self._ids)
        future: asyncio.Future[LaunchAgentReply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        assert self._process.stdin is not None
        try:
            with contextlib.suppress(OSError):  # the reading task reports the end
                self._process.stdin.write(encode_line(msgspec.structs.replace(request, id=number)))
                await self._process.stdin.drain()
            return await future
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """End the program."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await self._reading
        await self._errors

    async def _greet(self) -> None:
        assert self._process.stdout is not None
        for _ in range(GREETING_LINES_MAX):
            line = await self._next_line()
            if not line:
                break
            with contextlib.suppress(msgspec.MsgspecError):
                self.greeting = msgspec.json.decode(line, type=LaunchAgentGreeting)
                if self.greeting.snapline != snapline.__version__:
                    raise ExternalFailureError(
                        f"snapline {self.greeting.snapline} is installed there, and {snapline.__version__} here: "
                        "install the same on both"
                    )
                self._reading = asyncio.create_task(self._read())
                return
        self._process.stdin.close() if self._process.stdin else None
        code = await self._process.wait()
        await self._errors
        raise LaunchAgentMissingError(code, self._stderr_tail.decode(errors="replace").strip())

    async def _next_line(self) -> bytes:
        assert self._process.stdout is not None
        try:
            return await self._process.stdout.readline()
        except (OSError, ValueError):
            return b""

    async def _read(self) -> None:
        while line := await self._next_line():
            with contextlib.suppress(msgspec.MsgspecError):
                answer = msgspec.json.decode(line, type=LaunchAgentReply)
                future = self._waiting.get(answer.id)
                if future is not None and not future.done():
                    future.set_result(answer)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionLostError("the connection is closed"))

    async def _keep_errors(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(STDERR_BYTES_MAX):
            self._stderr_tail = (self._stderr_tail + chunk)[-STDERR_BYTES_MAX:]
