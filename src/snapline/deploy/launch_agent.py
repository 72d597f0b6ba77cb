"""Run a launch agent, which starts and watches a launcher's processes on another machine as its children.

    python -m snapline.deploy.launch_agent bridge FOLDER     connect the standard streams to FOLDER's launch agent, and start it if
    necessary python -m snapline.deploy.launch_agent serve FOLDER      run the launch agent until a launcher closes it or it has been idle
    for a while

The launcher connects to a launch agent through a program, such as `ssh`, that runs the *bridge* command on another machine. The launch
agent keeps running without a connection. If a connection breaks, the processes keep running, and any launcher finds them when it connects
again. The processes die with the launch agent (`deploy/parent_watch.py`). A launch agent exits after it has had neither child processes nor
connections for some time.

The launcher that opened a launch agent most recently *holds* it. The launch agent rejects commands from all other launchers. So two
launchers never control the same processes, and a delayed command cannot start a process after the launch agent was closed.

The socket and the processes' keys are in a memory-backed folder (`runtime_folder`) that only the current user can read.
"""

import argparse
import asyncio
import contextlib
import fcntl
import hashlib
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from snapline.deploy.data_directory import LOGS_FOLDER, PORT_ATTEMPTS_MAX, PORTS, is_free
from snapline.deploy.launch_agent_client import (
    LINE_BYTES_MAX,
    LaunchAgentGreeting,
    LaunchAgentReply,
    LaunchAgentRequest,
    encode_line,
)
from snapline.deploy.launching import Handle, ProcessSpec
from snapline.deploy.local import LocalLauncher
from snapline.deploy.plan import PRIVATE
from snapline.deploy.running_fleet import LAST_SNAPSHOT_S, STOP_GRACE_S
from snapline.deploy.supervisor import Exit
from snapline.errors import ExternalFailureError, SnaplineError, UsageError
from snapline.folders import make_private
from snapline.security.printable import printable

IDLE_S = 60.0
"""Time in seconds after which an idle launch agent exits. A launcher starts a process within moments of opening the launch agent."""

LOOK_S = 1.0
"""Interval in seconds between two checks whether the launch agent is idle."""

START_LIMIT_S, START_LOOK_S = 60.0, 0.02
"""Time limit in seconds for a new launch agent to start listening, and the polling interval. Starting takes half a second, or ten times as
long on a busy machine."""

SHUTDOWN_GRACE_S = 10.0
"""Time limit in seconds for open requests, and then for open connections, to finish when the launch agent exits."""

END_GRACE_S = LAST_SNAPSHOT_S + STOP_GRACE_S
"""Time in seconds between SIGTERM and SIGKILL when Slurm's time limit or a SIGTERM ends this launch agent. Hosts take a last snapshot
during this time."""

NOT_RUNNING = 69
"""Exit code of a bridge with `--must-run` that finds no running launch agent (EX_UNAVAILABLE of sysexits.h)."""

MEMORY = Path("/dev/shm")
SOCKET, KEYS = "post.sock", "keys"


def runtime_folder(key: str) -> Path:
    """Return the folder that contains the socket and the keys of the launch agent for this `key`. The folder is in memory if the machine
    has a memory-backed file system.

    Raises:
        UsageError: If the parent folder belongs to another user, or other users can access it.
    """
    parent = MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())
    root = parent / f"snapline-posts-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise UsageError(f"{root} is not a folder of this user alone: remove it")
    return root / hashlib.sha256(key.encode()).hexdigest()[:16]


class LaunchAgent:
    """Server that starts and watches one launcher's processes on this machine."""

    def __init__(self, runtime: Path, data_dir: Path) -> None:
        self._runtime = runtime
        self._launcher = LocalLauncher(data_dir)
        self._holder = ""
        self._ports: dict[str, int] = {}  # by coordinator, because each coordinator keeps its port
        self._latest: dict[str, Handle] = {}  # by name
        self._shutdown_commands: dict[str, tuple[str, ...]] = {}  # by name
        self._evicted: set[Handle] = set()  # handles that this launch agent ended, because it exits
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = asyncio.Event()

    async def serve(self, idle_s: float) -> None:
        """Serve requests until a launcher closes the launch agent or it has been idle for `idle_s`. Afterwards, end all processes and
        remove all files."""
        make_private(self._runtime)
        shutil.rmtree(self._runtime / KEYS, ignore_errors=True)  # keys that a killed launch agent left behind
        (self._runtime / SOCKET).unlink(missing_ok=True)
        scratch = self._runtime / f"{SOCKET}.new"  # renamed once the server listens, so that connecting never fails
        scratch.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._on_connection, scratch, limit=LINE_BYTES_MAX)
        scratch.rename(self._runtime / SOCKET)
        watch = asyncio.create_task(self._end_when_idle(idle_s))
        try:
            await self._is_over.wait()
        finally:
            watch.cancel()
            (self._runtime / SOCKET).unlink(missing_ok=True)
            server.close()
            await asyncio.gather(*(self._launcher.stop(handle, END_GRACE_S) for handle in self._evicted))
            await self._launcher.close()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=SHUTDOWN_GRACE_S)
            for writer in self._connections.values():
                writer.close()
            if self._connections:
                await asyncio.wait(self._connections, timeout=SHUTDOWN_GRACE_S)
            shutil.rmtree(self._runtime, ignore_errors=True)

    def end(self) -> None:
        """End all processes on this machine and exit, although no launcher has commanded it."""
        self._evicted |= set(self._latest.values())
        self._is_over.set()

    async def shut_down(self) -> bool:
        """Run all shutdown commands concurrently. After each command, end the process to which it belongs. The launch agent calls this when
        Slurm's time limit is near.

        Return False if no shutdown commands are registered.
        """
        await asyncio.gather(
            *(self._shut_down_process(name, command) for name, command in self._shutdown_commands.items())
        )
        return bool(self._shutdown_commands)

    async def _shut_down_process(self, name: str, command: tuple[str, ...]) -> None:
        handle = self._latest[name]
        if await self._launcher.status(handle) is None:
            process = await asyncio.create_subprocess_exec(
                *self._with_private_paths(name, command), stdin=subprocess.DEVNULL
            )
            await process.wait()
            self._evicted.add(handle)
            await self._launcher.stop(handle, END_GRACE_S)

    async def _end_when_idle(self, idle_s: float) -> None:
        since_s = time.monotonic()
        while time.monotonic() - since_s < idle_s:
            await asyncio.sleep(min(LOOK_S, idle_s))
            running = [await self._launcher.status(handle) is None for handle in self._latest.values()]
            if self._connections or any(running):
                since_s = time.monotonic()
        self._is_over.set()

    # -- requests ----------------------------------------------------------------------------------------------------------

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            while line := await reader.readline():
                request = msgspec.json.decode(line, type=LaunchAgentRequest)
                reply = asyncio.create_task(self._reply(request, writer))
                self._tasks.add(reply)
                reply.add_done_callback(self._tasks.discard)
        except (OSError, ValueError):  # the connection broke while a line was being sent
            pass
        finally:
            del self._connections[task]
            writer.close()

    async def _reply(self, request: LaunchAgentRequest, writer: asyncio.StreamWriter) -> None:
        answer = await self.answer(request)
        with contextlib.suppress(OSError):
            writer.write(encode_line(answer))
            await writer.drain()
        if request.word == "close" and not answer.fault:
            self._is_over.set()

    async def answer(self, request: LaunchAgentRequest) -> LaunchAgentReply:
        """Execute the request and return the reply. Return a fault if the sender does not hold this launch agent or the request fails."""
        if request.word == "hold":
            self._holder = request.holder
        if request.holder != self._holder:
            return LaunchAgentReply(request.id, fault="replaced" if self._holder else "unheld")
        try:
            return await self._carry_out(request)
        except (SnaplineError, OSError) as error:
            return LaunchAgentReply(request.id, fault="failed", reason=str(error))

    async def _carry_out(self, request: LaunchAgentRequest) -> LaunchAgentReply:
        launcher, handle = self._launcher, request.handle
        match request.word:
            case "hold":
                return LaunchAgentReply(request.id)
            case "port":
                return LaunchAgentReply(request.id, port=self._port(request.name, request.address))
            case "start":
                assert request.spec is not None
                return LaunchAgentReply(
                    request.id, handle=await self._start(request.spec, request.files, request.shutdown)
                )
            case "close":
                await launcher.close()
                return LaunchAgentReply(request.id)
        assert handle is not None
        match request.word:
            case "watch":
                return LaunchAgentReply(request.id, exit=self._exit_to_report(handle, await launcher.watch(handle)))
            case "status":
                return LaunchAgentReply(request.id, exit=self._exit_to_report(handle, await launcher.status(handle)))
            case "stop":
                return LaunchAgentReply(
                    request.id, exit=self._exit_to_report(handle, await launcher.stop(handle, request.grace_s))
                )
            case "kill":
                await launcher.kill(handle)
            case "freeze":
                await launcher.freeze(handle)
            case "thaw":
                await launcher.thaw(handle)
        return LaunchAgentReply(request.id)

    def _exit_to_report(self, handle: Handle, found: Exit | None) -> Exit | None:
        """Return the exit that is reported to the launcher.

        If this launch agent itself ended the host, hide the exit code. The exit code is 0 in this case, which would mean that the fleet has
        ended.
        """
        if found is None or handle not in self._evicted:
            return found
        return Exit(None, "ended by its place", found.last_words, found.log)

    async def _start(self, spec: ProcessSpec, files: Mapping[str, bytes], shutdown: tuple[str, ...]) -> Handle:
        """Start a process and return its handle. If the request is repeated because the reply was lost, no second process is started."""
        latest = self._latest.get(spec.name)
        if latest is not None and latest.instance == spec.instance:
            return latest
        if files:
            self._write_keys(spec.name, files)
        command = (sys.executable, *self._with_private_paths(spec.name, spec.command)[1:])
        handle = await self._launcher.start(msgspec.structs.replace(spec, command=command))
        self._latest[spec.name] = handle
        if shutdown:
            self._shutdown_commands[spec.name] = (sys.executable, *shutdown[1:])
        return handle

    def _with_private_paths(self, name: str, command: tuple[str, ...]) -> list[str]:
        return [word.replace(PRIVATE, str(self._runtime / KEYS / name)) for word in command]

    def _write_keys(self, name: str, files: Mapping[str, bytes]) -> None:
        folder = self._runtime / KEYS / name
        for parent in (folder.parent, folder):
            parent.mkdir(mode=0o700, exist_ok=True)
        for file, content in files.items():
            (folder / file).touch(mode=0o600)
            (folder / file).write_bytes(content)

    def _port(self, name: str, address: str) -> int:
        if name not in self._ports:
            attempts = random.sample(PORTS, PORT_ATTEMPTS_MAX)
            taken = self._ports.values()
            port = next((port for port in attempts if port not in taken and is_free(address, port)), None)
            if port is None:
                raise ExternalFailureError(f"no free port on {address} between {PORTS.start} and {PORTS.stop}")
            self._ports[name] = port
        return self._ports[name]


# -- the two programs -----------------------------------------------------------------------------------------------------


def serve(
    key: str, data_dir: Path, *, idle_s: float, on_time_limit: Callable[[], Awaitable[bool]] | None = None
) -> None:
    """Run the launch agent until it ends.

    SIGTERM shuts the launch agent down cleanly. SIGUSR1 runs the shutdown commands. If there were shutdown commands, the launch agent then
    exits, unless `on_time_limit` returns True.
    """

    async def run() -> None:
        post = LaunchAgent(runtime_folder(key), data_dir)
        partings: list[asyncio.Task[None]] = []

        async def shut_down() -> None:
            if await post.shut_down() and (on_time_limit is None or not await on_time_limit()):
                post.end()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, post.end)
        loop.add_signal_handler(signal.SIGUSR1, lambda: partings.append(asyncio.create_task(shut_down())))
        await post.serve(idle_s)

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    asyncio.run(run())


def bridge(key: str, data_dir: Path, code: str, *, must_run: bool) -> None:
    """Connect the standard streams to the launch agent. If the launch agent is not running, start it, or fail if `must_run` is set."""
    import snapline

    runtime = runtime_folder(key)
    joined = _join(runtime) if must_run else _join_or_start(key, runtime, data_dir, code)
    address = os.environ.get("SSH_CONNECTION", "").split(" ")
    greeting = LaunchAgentGreeting(snapline.__version__, address[2] if len(address) == 4 else "")
    os.write(sys.stdout.fileno(), encode_line(greeting))
    threading.Thread(target=_pump_in, args=(joined,), daemon=True).start()
    with contextlib.suppress(OSError):
        while received := joined.recv(65_536):
            _write_all(received)
    sys.stdout.flush()
    os._exit(0)  # the other thread is still waiting for input that may never come


def _pump_in(joined: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := os.read(sys.stdin.fileno(), 65_536):
            joined.sendall(chunk)
    os._exit(0)  # the caller is gone, but its requests continue in the launch agent


def _write_all(content: bytes) -> None:
    while content:
        content = content[os.write(sys.stdout.fileno(), content) :]


def _join(runtime: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(runtime / SOCKET))
    except OSError:
        connection.close()
        raise
    return connection


def _join_or_start(key: str, runtime: Path, data_dir: Path, code: str) -> socket.socket:
    with contextlib.suppress(OSError):
        return _join(runtime)
    lock = os.open(runtime.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two bridges together must start only one launch agent
        with contextlib.suppress(OSError):
            return _join(runtime)
        logs = data_dir / LOGS_FOLDER
        make_private(logs)
        with (logs / "post.log").open("ab") as log:
            started = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "snapline.deploy.launch_agent",
                    "serve",
                    key,
                    "--data-dir",
                    str(data_dir.absolute()),
                ],
                cwd=os.path.expanduser(code) or None,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return _await_launch_agent(started, runtime, logs)
    finally:
        os.close(lock)


def _await_launch_agent(started: "subprocess.Popen[bytes]", runtime: Path, logs: Path) -> socket.socket:
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s and started.poll() is None:
        with contextlib.suppress(OSError):
            return _join(runtime)
        time.sleep(START_LOOK_S)
    raise ExternalFailureError(f"the launch agent has not started: see {logs / 'post.log'}")


def main() -> None:
    """Run the bridge or the launch agent, depending on the command-line arguments."""
    parser = argparse.ArgumentParser(prog="python -m snapline.deploy.launch_agent")
    parser.add_argument("what", choices=("bridge", "serve"))
    parser.add_argument("key")
    parser.add_argument("--data-dir", type=Path, default=Path())
    parser.add_argument("--code", default="")
    parser.add_argument("--idle", type=float, default=IDLE_S)
    parser.add_argument("--must-run", action="store_true")
    arguments = parser.parse_args()
    try:
        if arguments.what == "serve":
            serve(arguments.key, arguments.data_dir, idle_s=arguments.idle)
        else:
            bridge(arguments.key, arguments.data_dir.expanduser(), arguments.code, must_run=arguments.must_run)
    except (SnaplineError, OSError) as error:
        print(printable(f"snapline: {error}"), file=sys.stderr)
        sys.exit(NOT_RUNNING if arguments.must_run else 1)


if __name__ == "__main__":
    main()
