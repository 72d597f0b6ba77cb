"""Children that user code forks (`multiprocessing`, `os.fork`) must not act for this process.

A forked child inherits more than its memory. Three things are shared with the parent, and each can stop or confuse it:

- *Signals.* asyncio's handler writes each signal's number into a socket that parent and child share: SIGTERM for the child ends the parent, and
  not the child. In a child the handlers that `handle_signal` has set are gone again; until they are, these signals wait.
- *The event loop.* Parent and child share one epoll instance. A child that closes "its" loop takes the parent's descriptors out of it, and
  the parent hears nothing any more. In a child that descriptor is another file.
- *Sockets of the fleet.* A child that outlives its parent would keep the parent's port and streams open: peers would see no stream
  break, and the process that takes the parent's place would share its port with nobody who accepts. In a child these descriptors are other files,
  too. What the user has opened stays.

A child never goes on as its parent: where it comes back from user code it ends (`end_if_child`).

Programs that a child becomes by `exec` (subprocess) inherit none of this: handlers are reset, and our descriptors are close-on-exec.
"""

import asyncio
import contextlib
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterable

CHILD_EXIT_CODE = 70
"""Exit code of a child that returned from user code: it must not continue as its parent (EX_SOFTWARE of sysexits.h)."""


class _Process:
    """State of this process.

    Attributes:
        has_hook: `os.register_at_fork` has been called; that cannot be undone.
        signals: those that end a child at once.
        loop, ports: of the event loop and the sockets that a child does not keep; None: of none.
        is_child: forked from a process that had the hook.
    """

    def __init__(self) -> None:
        self.has_hook = False
        self.signals: dict[int, None] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self.ports: Callable[[], Iterable[int]] | None = None
        self.is_child = False


_process = _Process()


class _Forking(threading.local):
    """State of a thread that forks. `mask`: the signals blocked before."""

    mask: frozenset[int] | set[int] = frozenset()


_forking = _Forking()


def handle_signal(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, handler: Callable[..., object], *arguments: object
) -> None:
    """Call `handler` on the loop for this signal, in this process and in none of its children.

    Raises:
        NotImplementedError, RuntimeError, ValueError: as `add_signal_handler`.
    """
    loop.add_signal_handler(number, handler, *arguments)
    _process.signals[number] = None
    _register()


def keep_from_children(loop: asyncio.AbstractEventLoop, ports: Callable[[], Iterable[int]]) -> None:
    """Children keep neither this loop nor sockets of these ports; those that this process listens on now are added."""
    listened = listening_ports()
    _process.loop, _process.ports = loop, lambda: {*listened, *ports()}
    _register()


def end_if_child() -> None:
    """Call it where user code has come back, or has raised: a child ends here."""
    if _process.is_child:
        error = sys.exc_info()[1]
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(_code_of(error) if isinstance(error, SystemExit) else CHILD_EXIT_CODE)


def _code_of(error: SystemExit) -> int:
    """Return the exit code that Python would use."""
    return (error.code & 0xFF) if isinstance(error.code, int) else int(error.code is not None)


def listening_ports() -> frozenset[int]:
    """TCP ports that this process listens on."""
    return frozenset([port for _, port, _, is_listening in _tcp_sockets() if is_listening])


def port_of(address: str) -> int:
    """The port in `HOST:PORT`; 0: there is none."""
    port = address.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0


def _register() -> None:
    if not _process.has_hook:
        _process.has_hook = True
        os.register_at_fork(before=_hold_signals, after_in_parent=_release_signals, after_in_child=_after_fork)


def _hold_signals() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _process.signals)


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _after_fork() -> None:
    """Runs in the child, on the one thread that it has. What it cannot do it leaves: it must not keep user code from running."""
    _process.is_child = True
    with contextlib.suppress(Exception):
        wakeup = signal.set_wakeup_fd(-1)
        for number in _process.signals:
            signal.signal(number, signal.SIG_DFL)
        with open(os.devnull, "rb") as nothing:
            for descriptor in [wakeup, *_inherited()]:
                if descriptor >= 0:
                    os.dup2(nothing.fileno(), descriptor, inheritable=False)
    _release_signals()


def _inherited() -> list[int]:
    """Descriptors that the child has of the loop and of the fleet."""
    found: list[int] = []
    selector = getattr(_process.loop, "_selector", None)
    if selector is not None:
        found.append(selector.fileno())
    ports = frozenset(_process.ports()) if _process.ports is not None else frozenset()
    for descriptor, local, remote, _ in _tcp_sockets() if ports else ():
        if local in ports or remote in ports:
            found.append(descriptor)
    return found


def _tcp_sockets() -> list[tuple[int, int, int, bool]]:
    """Descriptor, local port, remote port (0: none), and whether it listens."""
    found: list[tuple[int, int, int, bool]] = []
    try:
        descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:  # not Linux
        return found
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # that of the listing is closed by now
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                found += _tcp_socket(descriptor)
    return found


def _tcp_socket(descriptor: int) -> list[tuple[int, int, int, bool]]:
    looked_at = socket.socket(fileno=descriptor)
    try:
        if looked_at.family not in (socket.AF_INET, socket.AF_INET6) or looked_at.type != socket.SOCK_STREAM:
            return []
        is_listening = bool(looked_at.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        return [(descriptor, _port(looked_at.getsockname()), _remote_port(looked_at), is_listening)]
    finally:
        looked_at.detach()


def _remote_port(connected: socket.socket) -> int:
    try:
        return _port(connected.getpeername())
    except OSError:
        return 0


def _port(address: object) -> int:
    return address[1] if isinstance(address, tuple) and isinstance(address[1], int) else 0
