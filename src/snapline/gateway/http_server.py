"""HTTP server for external users and programs: access, listening address, and shutdown."""

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
"""Time for open requests to end at shutdown; event streams end then."""

_Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [_Message, Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]], Awaitable[None]
]


def check_exposure(host: str, token: str) -> None:
    """Refuse to listen beyond this machine without a token, since everyone who can reach the server may use the fleet.

    Raises:
        UsageError: it would listen beyond this machine without a token, or with one that can be guessed.
    """
    if not token and not is_loopback(f"{host}:0"):
        raise UsageError(
            f"--listen {host} can be reached from elsewhere: give --token-file, whose token requests must bear"
        )
    if token and len(token) < TOKEN_CHARACTERS_MIN:
        raise UsageError(f"a token of {len(token)} characters can be guessed: use {TOKEN_CHARACTERS_MIN} or more")


class _Server(uvicorn.Server):
    """Ends at a signal and leaves the exit code to the process; uvicorn would raise the signal again."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end)
        yield

    def _end(self) -> None:
        self.should_exit = True


async def serve_app(app: AsgiApp, listen: tuple[str, int]) -> None:
    """Serve until SIGINT or SIGTERM; print the address.

    Raises:
        AddressError: the address does not belong to this machine.
        AddressBusyError: the port remains in use, or the name unknown.
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
    """Return the server's URL for a browser."""
    host, port = server_socket.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0: any free port.

    Raises:
        AddressError: the address does not belong to this machine.
        AddressBusyError: the port remains in use, or the name unknown.
    """
    wait_until_free(f"{host}:{port}")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise address_error(f"cannot listen on {host}:{port}", error, "choose another --listen") from error
