"""A launcher's requests to one launch agent, over as many connections as necessary.

A broken connection proves nothing about the processes, so the client reconnects and repeats its requests. All requests to a launch agent may be
repeated. Waiting for an exit lasts until the launch agent reports it, or until dialling shows that the launch agent is gone permanently.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from snapline.deploy.launch_agent_connection import ConnectionLostError, LaunchAgentConnection
from snapline.deploy.launch_agent_messages import LaunchAgentReply, LaunchAgentRequest, Word
from snapline.deploy.launching import Exit, Handle, ProcessSpec
from snapline.deploy.local import HERE
from snapline.errors import ExternalFailureError, SnaplineError, UsageError

PAUSE_S, PAUSE_S_MAX = 0.2, 5.0
"""Pause between two attempts to reconnect to a launch agent; doubled each time, up to the maximum."""

DIAL_LIMIT_S = 60.0
"""Time limit for one attempt to connect: a busy machine takes a while to start Python."""

UNREACHED_S = 10.0
"""Time in addition to the grace period that a stop waits for an unreachable launch agent."""

CLOSE_S = 30.0
"""Time limit for a launch agent to end its processes: two seconds of grace, and a margin for a busy machine."""

Dial = Callable[[], Awaitable[LaunchAgentConnection]]


class LaunchAgentGoneError(ExternalFailureError):
    """The launch agent has ended, and its processes with it."""


class ReplacedError(UsageError):
    """A second launcher has taken the launch agent over."""


class LaunchAgentClient:
    """One launcher's client of one launch agent.

    Attributes:
        where: the launcher's name of the machine.
        address: address of the machine, from the greeting; empty before the first connection.
        is_replaced: whether another launcher has taken the launch agent over.
    """

    def __init__(self, where: str, holder: str, dial: Dial, on_note: Callable[[str], None] = lambda note: None) -> None:
        """Create the client. `dial` opens a connection; it raises LaunchAgentGoneError if the launch agent is gone permanently."""
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
        """Take the launch agent over for this launcher. Unlike other calls, this one does not retry a failed connection.

        Raises:
            SnaplineError: the launch agent cannot be reached.
        """
        async with self._dial_lock:
            self._line = await self._connect()
        self._is_held = True
        await self._call(LaunchAgentRequest(self._holder, "hold"))

    async def port(self, name: str, address: str) -> int:
        """Return a free port on that machine for this coordinator; the same one each time."""
        return (await self._call(LaunchAgentRequest(self._holder, "port", name=name, address=address))).port

    async def start(self, spec: ProcessSpec, files: Mapping[str, bytes], shutdown: tuple[str, ...] = ()) -> Handle:
        """Start like `Launcher.start`. The command `shutdown` runs before the process is ended because the place's time is up."""
        request = LaunchAgentRequest(self._holder, "start", spec=spec, files=dict(files), shutdown=shutdown)
        handle = (await self._call(request)).handle
        assert handle is not None
        return msgspec.structs.replace(handle, where=self.where)

    async def watch(self, handle: Handle) -> Exit:
        """Watch; see `Launcher.watch`."""
        return await self._exit("watch", handle) or self._gone("gone")

    async def status(self, handle: Handle) -> Exit | None:
        """Return the status; see `Launcher.status`."""
        return await self._exit("status", handle)

    async def stop(self, handle: Handle, grace_s: float) -> Exit:
        """Stop like `Launcher.stop`; give up on an unreachable launch agent after `grace_s` and `UNREACHED_S`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s + UNREACHED_S):
                return await self._exit("stop", handle, grace_s) or self._gone("gone")
        return self._gone(f"{self.where} does not answer")

    async def kill(self, handle: Handle) -> None:
        """Kill; see `Launcher.kill`."""
        await self._send("kill", handle)

    async def freeze(self, handle: Handle) -> None:
        """Freeze; see `Launcher.freeze`."""
        await self._send("freeze", handle)

    async def thaw(self, handle: Handle) -> None:
        """Thaw; see `Launcher.thaw`."""
        await self._send("thaw", handle)

    async def close(self) -> None:
        """End the launch agent and its processes, unless it was never held or another launcher holds it.

        Raises:
            ExternalFailureError: the launch agent cannot be reached.
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
        """Close the connection and open no other; the processes there keep running."""
        self._is_closed = True
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    async def _send(self, word: Word, handle: Handle) -> None:
        with contextlib.suppress(LaunchAgentGoneError, ReplacedError):
            await self._call(LaunchAgentRequest(self._holder, word, handle=_as_local(handle)))

    async def _exit(self, word: Word, handle: Handle, grace_s: float = 0.0) -> Exit | None:
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
                if answer.fault == "unheld":  # it was restarted: its processes are gone, as it will report
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
        """Return the connection; reconnect as often as necessary."""
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
    """Return the handle as the launch agent's local launcher knows it."""
    return msgspec.structs.replace(handle, where=HERE)
