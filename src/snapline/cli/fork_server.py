"""Runs the fork server, from which a launcher forks its child processes (`deploy/child.py`).

The fork server has already imported all modules, and has a single thread. The fork server is started as `python -m snapline.cli.fork_server
DESCRIPTOR LAUNCHER ROOM`.

DESCRIPTOR is the file descriptor of the fork server's socket to the launcher. LAUNCHER is the launcher's process id, because the fork
server exits when the launcher exits. ROOM consists of blanks. A child process overwrites the blanks of ROOM with its own command line, so
that `ps` and similar tools show it. In a child, `serve` returns the arguments of the command, which the child runs like `python -m snapline
WORDS`.
"""

import contextlib
import ctypes
import importlib
import os
import select
import socket
import sys

import msgspec

from snapline.cli.garbage_collection import collect_rarely, freeze_imported
from snapline.cli.main import command_of
from snapline.deploy.child import (
    MESSAGE_BYTES,
    REQUESTS,
    Ended,
    Forked,
    ForkRefused,
    Ready,
    Reap,
    ServerMessage,
    StartFork,
)
from snapline.deploy.parent_watch import ORPHANED, tie_to
from snapline.deploy.starting import FORK_SERVER
from snapline.errors import ExternalFailureError
from snapline.package_stamp import check_unmixed

IMPORTED = (
    "importlib.metadata",
    "snapline.cli.coordinator",
    "snapline.cli.hosts",
    "snapline.cli.processes",
    "snapline.cli.fleet",
    "snapline.agent_runtime.host.process",
    "snapline.coordinator.service.server",
)
"""Modules that the hosts and coordinators of any fleet import, and the module that defines the version."""

FORKED_GROUPS = ("coordinator", "host")

ARGUMENTS_AT = (48, 49)
"""Numbers of the fields in /proc/PID/stat that contain the start and end address of the command line. Fields are counted from 1, as in
proc(5)."""


def main() -> None:
    """Import all modules and serve the launcher's requests. In a forked child, run the requested command."""
    tie_to(int(sys.argv[2]))
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    collect_rarely()
    from snapline.storage.capture import forked

    forked.prepare()  # before anything imports gRPC
    for name in IMPORTED:
        importlib.import_module(name)
    for noun in FORKED_GROUPS:
        command_of(noun)
    name_process([sys.executable, "-m", FORK_SERVER])
    try:
        check_unmixed()
    except ExternalFailureError:
        os._exit(1)  # the launcher then starts its children as new programs
    freeze_imported()
    words = serve(socket.socket(fileno=int(sys.argv[1])))
    if words is None:
        os._exit(0)  # nothing is open, and the launcher waits for this exit
    from snapline.__main__ import main as run

    sys.argv = [sys.argv[0], *words]
    run()


def serve(connection: socket.socket) -> list[str] | None:
    """Fork children on request until the launcher exits, then return None. In a forked child, return the child's arguments."""
    server_pid = os.getpid()
    connection.setblocking(True)
    files = stamps()
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    running: dict[int, int] = {}  # pidfd → pid
    tell(connection, Ready())
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != connection.fileno():
                poll.unregister(descriptor)
                os.close(descriptor)
                tell(connection, ended(running.pop(descriptor)))
                continue
            received, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 1)
            if not received:
                return None
            match REQUESTS.decode(received):
                case Reap(pid):
                    os.waitpid(pid, 0)
                case StartFork() as wanted if reason := reason_against(wanted, files):
                    os.close(descriptors[0])
                    tell(connection, ForkRefused(reason))
                case StartFork() as wanted:
                    pid = os.fork()
                    if pid == 0:
                        connection.detach()
                        become_child(wanted, descriptors[0], server_pid)
                        return wanted.words
                    os.close(descriptors[0])
                    pidfd = os.pidfd_open(pid)
                    running[pidfd] = pid
                    poll.register(pidfd, select.POLLIN)
                    tell(connection, Forked(pid))


def tell(connection: socket.socket, word: ServerMessage) -> None:
    """Send a message to the launcher. Exit if the launcher no longer exists."""
    try:
        connection.send(msgspec.msgpack.encode(word))
    except OSError:
        sys.exit(ORPHANED)


def ended(pid: int) -> Ended:
    """Return a child's exit status without reaping the child.

    Until the child is reaped, its process id is not reused. So the launcher learns of the exit before the process id is reused.
    """
    status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert status is not None
    return Ended(pid, status.si_status if status.si_code == os.CLD_EXITED else -status.si_status)


def stamps() -> dict[str, int]:
    """Return the modification times in nanoseconds of all imported files."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {file: os.stat(file).st_mtime_ns for file in files if file and os.path.isfile(file)}


def reason_against(wanted: StartFork, files: dict[str, int]) -> str:
    """Return the reason why a forked child would behave differently from a new `python -m snapline` process, or "" if there is none."""
    if wanted.folder != os.getcwd():
        return f"the folder is {wanted.folder}"
    for file, stamp in files.items():
        try:
            if os.stat(file).st_mtime_ns != stamp:
                return f"{file} has changed"
        except OSError:
            return f"{file} is gone"
    return ""


def become_child(wanted: StartFork, log: int, server: int) -> None:
    """Prepare a forked child in the same way as `parent_watch.py` and a normal start of Python would."""
    os.setsid()
    tie_to(server)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # only open descriptors: the limit may be a billion
        if descriptor > 2:
            with contextlib.suppress(OSError):  # this is the descriptor of the listing itself
                os.close(descriptor)
    for name, value in {**os.environ, **wanted.changes}.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = (
                value  # unchanged ones, too: their text is in the memory where the command line is written
            )
    name_process([sys.executable, "-m", "snapline", *wanted.words])


def name_process(words: list[str]) -> None:
    """Overwrite the command line of this process that other processes see. The kernel shows the new command line as long as its last byte
    is NUL."""
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = (int(fields[at - 3]) for at in ARGUMENTS_AT)
    line = b"\0".join(word.encode() for word in words)[: end - start - 1]
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
