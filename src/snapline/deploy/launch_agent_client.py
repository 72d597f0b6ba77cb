"""Client for sending a launcher's requests to one launch agent.

This module defines the messages, a single connection, and a client that reconnects whenever necessary.

Each message is one line of JSON. The launch agent's first message is a greeting. A login shell may print other lines before the greeting,
so the launcher skips them. A connection uses the standard streams of a program such as `ssh`.

A broken connection does not mean that the processes have ended, so the client reconnects and resends its requests. Every request to a
launch agent can be repeated safely. The client waits for a process's exit until the launch agent reports the exit, or until a failed
connection shows that the launch agent has exited.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, Self

import msgspec

import snapline
from snapline.deploy.launching import Handle, ProcessSpec
from snapline.deploy.local import HERE
from snapline.deploy.supervisor import Exit
from snapline.errors import ExternalFailureError, SnaplineError, UsageError

GREETING_LINES_MAX = 200
"""Largest number of lines that a login shell may print before the greeting. A message of the day is shorter."""

LINE_BYTES_MAX = 4 << 20
"""Largest size in bytes of one request or reply. The largest request contains a command line and some certificates."""

RequestKind = Literal["hold", "port", "start", "watch", "status", "stop", "kill", "freeze", "thaw", "close"]

Fault = Literal["", "unheld", "replaced", "failed"]
"""Reason why a launch agent did not carry out a request. `unheld` means that no launcher holds the launch agent, for example after it
restarted. `replaced` means that another launcher has taken it over. `failed` means that carrying out the request failed. An empty string
means success."""


class LaunchAgentGreeting(msgspec.Struct, frozen=True):
    """The first line that a launch agent sends.

    Attributes:
        address: the address at which the caller reached the machine, or an empty string if this is unknown.
    """

    snapline: str
    address: str


class LaunchAgentRequest(msgspec.Struct, frozen=True):
    """A launcher's request to a launch agent.

    Attributes:
        holder: id of the launcher that sends the request.
        id: sequence number of the request on this connection.
        name, address: name and address of the coordinator that needs a port.
        handle: the process to which the request applies.
        files: certificates and keys, as a mapping from file name to content.
        shutdown: command to run before the process is ended because of Slurm's time limit.
        grace_s: seconds between SIGTERM and SIGKILL. Used only by `stop`.
    """

    holder: str
    word: RequestKind
    id: int = 0
    name: str = ""
    address: str = ""
    spec: ProcessSpec | None = None
    handle: Handle | None = None
    files: dict[str, bytes] = {}
    shutdown: tuple[str, ...] = msgspec.field(default=(), name="farewell")
    grace_s: float = 0.0


class LaunchAgentReply(msgspec.Struct, frozen=True):
    """A launch agent's reply to the request with this id."""

    id: int
    fault: Fault = ""
    reason: str = ""
    handle: Handle | None = None
    exit: Exit | None = None
    port: int = 0


def encode_line(said: msgspec.Struct) -> bytes:
    """Encode a message as one line of JSON."""
    return msgspec.json.encode(said) + b"\n"


STDERR_BYTES_MAX = 4096
"""Number of bytes kept from the end of the connecting program's stderr, to explain its exit."""

END_S = 5.0
"""Time limit in seconds for the connecting program to exit after its input is closed. If it takes longer, it is killed."""


class ConnectionLostError(ExternalFailureError):
    """The connection to a launch agent was lost. The request may or may not have been executed."""


class LaunchAgentMissingError(ExternalFailureError):
    """The connecting program exited before a launch agent replied.

    Attributes:
        said: the last output on the program's stderr.
    """

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said or f"exit code {code}")
        self.code = code
        self.said = said


class LaunchAgentConnection:
    """One connection to a launch agent."""

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
        """Run the program `command`, wait for the launch agent's greeting, and return the connection.

        Raises:
            LaunchAgentMissingError: If the program exited before it received a greeting.
            ExternalFailureError: If the program cannot be run, or the launch agent runs another version of snapline.
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
        """Send the request, and return the reply.

        Raises:
            ConnectionLostError: If the connection is closed or lost.
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
        """Close the connection by terminating the program."""
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


PAUSE_S, PAUSE_S_MAX = 0.2, 5.0
"""Pause in seconds before the client first retries a connection, and the maximum. The pause doubles with each attempt."""

DIAL_LIMIT_S = 60.0
"""Time limit in seconds for one attempt to connect. A busy machine takes a while to start Python."""

UNREACHED_S = 10.0
"""Time in seconds, in addition to the grace period, for which `stop` waits for an unreachable launch agent."""

CLOSE_S = 30.0
"""Time limit in seconds for a launch agent to end its processes. The limit includes two seconds of grace and a margin for a busy
machine."""

Dial = Callable[[], Awaitable[LaunchAgentConnection]]


class LaunchAgentGoneError(ExternalFailureError):
    """The launch agent has exited, and its processes have exited with it."""


class ReplacedError(UsageError):
    """The launch agent has been taken over by another launcher."""


class LaunchAgentClient:
    """A launcher's client of one launch agent.

    Attributes:
        address: the machine's address from the greeting; empty before the first connection.
        is_replaced: whether another launcher has taken over the launch agent.
    """

    def __init__(self, where: str, holder: str, dial: Dial, on_note: Callable[[str], None] = lambda note: None) -> None:
        """Create a client. `dial` opens a connection, or raises LaunchAgentGoneError if the launch agent has exited permanently."""
        self.where = where
        self.address = ""
        self.is_replaced = False
        self._holder = holder
        self._dial = dial
        self._on_note = on_note
        self._line: LaunchAgentConnection | None = None
        self._dial_lock = asyncio.Lock()
        self._is_held = self._is_closed = False

    async def hold(self) -> None:
        """Take over the launch agent for this launcher. Unlike the other methods, this method does not retry a failed connection.

        Raises:
            SnaplineError: If the launch agent cannot be reached.
        """
        async with self._dial_lock:
            self._line = await self._connect()
        self._is_held = True
        await self._call(LaunchAgentRequest(self._holder, "hold"))

    async def port(self, name: str, address: str) -> int:
        """Return a free port for this coordinator on the launch agent's machine. Repeated calls for the same coordinator return the same
        port."""
        return (await self._call(LaunchAgentRequest(self._holder, "port", name=name, address=address))).port

    async def start(self, spec: ProcessSpec, files: Mapping[str, bytes], shutdown: tuple[str, ...] = ()) -> Handle:
        """Same as `Launcher.start`, but also register `shutdown` as the process's shutdown command.

        The launch agent runs this command before it ends the process because of Slurm's time limit.
        """
        request = LaunchAgentRequest(self._holder, "start", spec=spec, files=dict(files), shutdown=shutdown)
        handle = (await self._call(request)).handle
        assert handle is not None
        return msgspec.structs.replace(handle, where=self.where)

    async def watch(self, handle: Handle) -> Exit:
        """Same as `Launcher.watch`."""
        return await self._exit("watch", handle) or self._gone("gone")

    async def status(self, handle: Handle) -> Exit | None:
        """Same as `Launcher.status`."""
        return await self._exit("status", handle)

    async def stop(self, handle: Handle, grace_s: float) -> Exit:
        """Same as `Launcher.stop`, but give up if the launch agent is unreachable for `grace_s + UNREACHED_S` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s + UNREACHED_S):
                return await self._exit("stop", handle, grace_s) or self._gone("gone")
        return self._gone(f"{self.where} does not answer")

    async def kill(self, handle: Handle) -> None:
        """Same as `Launcher.kill`."""
        await self._send("kill", handle)

    async def freeze(self, handle: Handle) -> None:
        """Same as `Launcher.freeze`."""
        await self._send("freeze", handle)

    async def thaw(self, handle: Handle) -> None:
        """Same as `Launcher.thaw`."""
        await self._send("thaw", handle)

    async def close(self) -> None:
        """End the launch agent and its processes. If this launcher does not hold the launch agent, leave the processes running.

        Raises:
            ExternalFailureError: If the launch agent cannot be reached.
        """
        try:
            if self._is_held:
                async with asyncio.timeout(CLOSE_S):
                    await self._call(LaunchAgentRequest(self._holder, "close"))
        except (LaunchAgentGoneError, ReplacedError):
            pass
        except TimeoutError:
            raise ExternalFailureError(f"{self.where} does not answer") from None
        finally:
            await self.leave()

    async def leave(self) -> None:
        """Close the connection permanently. The launch agent's processes keep running."""
        self._is_closed = True
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    async def _send(self, word: RequestKind, handle: Handle) -> None:
        with contextlib.suppress(LaunchAgentGoneError, ReplacedError):
            await self._call(LaunchAgentRequest(self._holder, word, handle=_as_local(handle)))

    async def _exit(self, word: RequestKind, handle: Handle, grace_s: float = 0.0) -> Exit | None:
        try:
            request = LaunchAgentRequest(self._holder, word, handle=_as_local(handle), grace_s=grace_s)
            exit_ = (await self._call(request)).exit
        except (LaunchAgentGoneError, ReplacedError) as error:
            return self._gone(str(error))
        return exit_ and msgspec.structs.replace(exit_, log=f"{self.where}:{exit_.log}")

    def _gone(self, text: str) -> Exit:
        return Exit(None, text, log=self.where)

    async def _call(self, request: LaunchAgentRequest) -> LaunchAgentReply:
        while True:
            line = await self._connected()
            try:
                answer = await line.call(request)
                if answer.fault == "unheld":  # the launch agent restarted, so its processes are gone, as it will report
                    await line.call(LaunchAgentRequest(self._holder, "hold"))
                    continue
            except ConnectionLostError:
                await self._drop(line)
                continue
            if answer.fault == "replaced":
                self.is_replaced = True
                raise ReplacedError(f"another `snapline up` has taken this fleet over on {self.where}")
            if answer.fault:
                raise ExternalFailureError(f"{self.where}: {answer.reason}")
            return answer

    async def _drop(self, line: LaunchAgentConnection) -> None:
        if self._line is line:
            self._line = None
            await line.close()

    async def _connected(self) -> LaunchAgentConnection:
        """Return the open connection. Reconnect as often as necessary."""
        async with self._dial_lock:
            pause_s = PAUSE_S
            while self._line is None:
                if self._is_closed:
                    raise LaunchAgentGoneError(f"{self.where} is not asked any more")
                try:
                    self._line = await self._connect()
                except LaunchAgentGoneError:
                    raise
                except SnaplineError as error:
                    if pause_s == PAUSE_S:
                        self._on_note(f"{error}; it is tried again")
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_S_MAX)
            return self._line

    async def _connect(self) -> LaunchAgentConnection:
        try:
            async with asyncio.timeout(DIAL_LIMIT_S):
                line = await self._dial()
        except TimeoutError:
            raise ExternalFailureError(f"{self.where} does not answer within {DIAL_LIMIT_S:g} s") from None
        self.address = line.greeting.address or self.address
        return line


def _as_local(handle: Handle) -> Handle:
    """Return the handle that the launch agent's local launcher uses for the process."""
    return msgspec.structs.replace(handle, where=HERE)
