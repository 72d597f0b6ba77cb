"""HTTP server for people and programs outside: who may reach it, where it listens, and how it ends."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import uvicorn

from snapline.channels.listening import address_error, wait_until_free
from snapline.errors import UsageError
from snapline.gateway.connections import HEAD_BYTES_MAX, BoundedConnection
from snapline.security.transport import is_loopback

TOKEN_CHARACTERS_MIN = 16

GRACE_S = 5
"""Time for requests that are under way when it is stopped; streams of events end then."""

_Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [_Message, Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]], Awaitable[None]
]


def check_exposure(host: str, token: str) -> None:
    """Refuse to listen without a token beyond this machine: everyone who can reach it may talk to the fleet.

    Raises:
        UsageError: it would listen beyond this machine, and require no token; or one that can be guessed.
    """
    if not token and not is_loopback(f"{host}:0"):
        raise UsageError(
            f"--listen {host} can be reached from elsewhere: give --token-file, whose token requests must bear"
        )
    if token and len(token) < TOKEN_CHARACTERS_MIN:
        raise UsageError(f"a token of {len(token)} characters can be guessed: use {TOKEN_CHARACTERS_MIN} or more")


class _Server(uvicorn.Server):
    """Ends at a signal, and leaves the process its own exit code: uvicorn's would raise the signal once more."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end)
        yield

    def _end(self) -> None:
        self.should_exit = True


async def serve_app(app: AsgiApp, listen: tuple[str, int]) -> None:
    """Serve until SIGINT or SIGTERM; prints the address.

    Raises:
        AddressError: it is no address of this machine.
        AddressBusyError: the port stays in use, or the name unknown.
    """
    with listening(*listen) as server_socket:
        print(address_of(server_socket), flush=True)
        await server_of(app).serve([server_socket])


def server_of(app: AsgiApp) -> uvicorn.Server:
    """Return the server of an application."""
    config = uvicorn.Config(
        app,
        http=BoundedConnection,
        ws="none",
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        log_level="warning",
        timeout_graceful_shutdown=GRACE_S,
        lifespan="off",
    )
    return _Server(config)


def address_of(server_socket: socket.socket) -> str:
    """Return where a browser finds it."""
    host, port = server_socket.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0: any.

    Raises:
        AddressError: it is no address of this machine.
        AddressBusyError: the port stays in use, or the name unknown.
    """
    wait_until_free(f"{host}:{port}")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise address_error(f"cannot listen on {host}:{port}", error, "choose another --listen") from error
