"""Prevents child processes that user code forks (`multiprocessing`, `os.fork`) from interfering with this process.

A forked child shares three things with its parent. Each shared object could stop the child or disturb the parent.

- *Signals.* asyncio's handler writes each signal number to a socket that parent and child share, so a SIGTERM to the child would end the
  parent. Therefore a child resets the handlers that `handle_signal` has installed. These signals are blocked until the child has reset the
  handlers.
- *The event loop.* Parent and child share one epoll instance. If a child closes the event loop that it has inherited, the parent's
  descriptors are removed from the epoll instance. The parent then receives no more events. Therefore a child replaces its descriptor of the
  epoll instance with a descriptor of a different file.
- *Sockets of the fleet.* A child that outlives its parent would keep the parent's port and streams open. Peers would not notice the
  parent's death. The parent's successor would share the port with a socket on which no process accepts connections. Therefore a child
  replaces the descriptors of these sockets, too. Descriptors that user code has opened remain open in the child.

A child never continues with its parent's work. A child exits when it returns from user code (`exit_if_child`).

Programs that a child starts with `exec` (subprocess) inherit none of this, because `exec` resets signal handlers and the descriptors are
close-on-exec.
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
"""Exit code of a forked child that returns from user code, and must not continue to run as its parent would. It is EX_SOFTWARE of
sysexits.h."""


class _Process:
    """State of this process that concerns forked children.

    Attributes:
        has_hook: whether `os.register_at_fork` has been called. A registration with `os.register_at_fork` cannot be undone.
        signals: signals whose handlers a child resets to the default action.
        loop, ports: the event loop, and the function that returns the ports of sockets that a child must drop. `loop` and `ports` are None
            if a child must drop nothing.
        is_child: whether this process was forked from a process that had the hook.
    """

    def __init__(self) -> None:
        self.has_hook = False
        self.signals: dict[int, None] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self.ports: Callable[[], Iterable[int]] | None = None
        self.is_child = False


_process = _Process()


class _Forking(threading.local):
    """The state of a thread that forks. `mask` is the set of signals that were blocked before the fork."""

    mask: frozenset[int] | set[int] = frozenset()


_forking = _Forking()


def handle_signal(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, handler: Callable[..., object], *arguments: object
) -> None:
    """Install `handler` for this signal on the event loop. The handler runs in this process but not in forked children.

    Raises:
        NotImplementedError, RuntimeError, ValueError: As for `add_signal_handler`.
    """
    loop.add_signal_handler(number, handler, *arguments)
    _process.signals[number] = None
    _register()


def close_in_children(loop: asyncio.AbstractEventLoop, ports: Callable[[], Iterable[int]]) -> None:
    """Make forked children drop this event loop, and drop all sockets whose local or remote port is one of these ports. The ports on which
    this process is currently listening are added."""
    listened = listening_ports()
    _process.loop, _process.ports = loop, lambda: {*listened, *ports()}
    _register()


def exit_if_child() -> None:
    """Exit this process if it is a forked child. Call this function after user code has returned or raised."""
    if _process.is_child:
        error = sys.exc_info()[1]
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(_code_of(error) if isinstance(error, SystemExit) else CHILD_EXIT_CODE)


def _code_of(error: SystemExit) -> int:
    """Return the exit code that Python uses for this exception."""
    return (error.code & 0xFF) if isinstance(error.code, int) else int(error.code is not None)


def listening_ports() -> frozenset[int]:
    """Return the TCP ports on which this process listens."""
    return frozenset([port for _, port, _, is_listening in _tcp_sockets() if is_listening])


def port_of(address: str) -> int:
    """Return the port of an address `HOST:PORT`, or 0 if the address contains no port."""
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
    """Detach the child process from its parent. This function runs on the child's only thread. Errors are ignored, so that user code can
    run in any case."""
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
    """Return the descriptors of the event loop and of the fleet's sockets that the child has inherited."""
    descriptors: list[int] = []
    selector = getattr(_process.loop, "_selector", None)
    if selector is not None:
        descriptors.append(selector.fileno())
    ports = frozenset(_process.ports()) if _process.ports is not None else frozenset()
    for descriptor, local, remote, _ in _tcp_sockets() if ports else ():
        if local in ports or remote in ports:
            descriptors.append(descriptor)
    return descriptors


def _tcp_sockets() -> list[tuple[int, int, int, bool]]:
    """Return the descriptor, local port, remote port (0 if not connected) and listening state of each TCP socket of this process."""
    sockets: list[tuple[int, int, int, bool]] = []
    try:
        descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:  # not Linux
        return sockets
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # the descriptor used to list the directory is already closed
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                sockets += _tcp_socket(descriptor)
    return sockets


def _tcp_socket(descriptor: int) -> list[tuple[int, int, int, bool]]:
    probe = socket.socket(fileno=descriptor)
    try:
        if probe.family not in (socket.AF_INET, socket.AF_INET6) or probe.type != socket.SOCK_STREAM:
            return []
        is_listening = bool(probe.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        return [(descriptor, _port(probe.getsockname()), _remote_port(probe), is_listening)]
    finally:
        probe.detach()


def _remote_port(connected: socket.socket) -> int:
    try:
        return _port(connected.getpeername())
    except OSError:
        return 0


def _port(address: object) -> int:
    return address[1] if isinstance(address, tuple) and isinstance(address[1], int) else 0
