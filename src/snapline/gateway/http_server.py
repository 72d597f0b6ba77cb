"""HTTP server for external users and programs. This module checks access and the listening address, limits connections, and shuts down the
server.

uvicorn waits indefinitely for the rest of an incomplete request, and for a client that does not read its response. `BoundedConnection`
closes a connection if the request is not complete in time or the response is not read in time. If too many connections are open, the
connection that has waited longest for the end of its request is closed. So idle connections cannot block other clients.

Pages of other web sites must not be able to use a user's browser to control the fleet or read its data. A page may use DNS rebinding: its
own domain name resolves to 127.0.0.1. The `Host` header then contains that domain name. All other requests from these pages are recognized
by the headers `Sec-Fetch-Site` and `Origin`, which a page in a browser cannot forge. Programs other than browsers send neither of these
headers.
"""

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import uvicorn
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from snapline.channels.servers import address_error, files_max, wait_until_free
from snapline.errors import UsageError
from snapline.security.transport import is_loopback

REQUEST_S_MAX = 30.0
"""Longest time in seconds for a request to arrive completely. It is enough for 16 MiB at 5 Mbit/s."""

READER_S_MAX = 60.0
"""Longest time in seconds for a reader to receive the data sent so far, which is at most 128 KiB and one part of a response. After this
time, the connection is closed."""

CONNECTIONS_MAX = 800
"""Largest number of connections. It is less than the 1,024 open files that many systems allow, and the number is also limited to half of
this process's limit on open files. A connection with an incomplete request takes about 30 KiB."""

HEAD_BYTES_MAX = 16 * 1024
"""Largest size in bytes of a request without its body. It is twice the size that browsers send with many cookies."""


class BoundedConnection(H11Protocol):
    """An HTTP connection with the limits described in the module docstring."""

    waiting_since_s = 0.0
    _ending: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Return whether the request is still incomplete."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # same as uvicorn's
        super().connection_made(transport)
        self._wait_for_request()
        if len(self.connections) > min(CONNECTIONS_MAX, files_max() // 2):
            open_ones = [each for each in self.connections if isinstance(each, BoundedConnection)]
            waiting = [each for each in open_ones if each.is_waiting and not each.transport.is_closing()]
            min(waiting, key=lambda each: each.waiting_since_s).cut()  # this may be the new connection itself

    def data_received(self, data: bytes) -> None:
        was_waiting = self.is_waiting
        super().data_received(data)
        if was_waiting and not self.is_waiting:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Handle the end of a response. uvicorn calls this method. The next request may begin in this method."""
        super().on_response_complete()
        self._stop_waiting()
        if self.is_waiting:
            self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_taking()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taking = self.loop.call_later(READER_S_MAX, self.cut)

    def resume_writing(self) -> None:
        self._stop_taking()
        super().resume_writing()

    def cut(self) -> None:
        """Close the connection immediately, even if a request or response is incomplete."""
        self.transport.abort()

    def _wait_for_request(self) -> None:
        self.waiting_since_s = self.loop.time()
        self._ending = self.loop.call_later(REQUEST_S_MAX, self.cut)

    def _stop_waiting(self) -> None:
        if self._ending is not None:
            self._ending.cancel()

    def _stop_taking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()


TOKEN_CHARACTERS_MIN = 16

GRACE_S = 5
"""Time in seconds for open requests to end at shutdown. After this time, open event streams are ended."""

_Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [_Message, Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]], Awaitable[None]
]


def check_exposure(host: str, token: str) -> None:
    """Check that the server requires a token if other machines can reach it, because anyone on these machines could otherwise use the
    fleet.

    Raises:
        UsageError: other machines could reach the server without a token, or the token is too short.
    """
    if not token and not is_loopback(f"{host}:0"):
        raise UsageError(
            f"--listen {host} can be reached from elsewhere: give --token-file, whose token requests must bear"
        )
    if token and len(token) < TOKEN_CHARACTERS_MIN:
        raise UsageError(f"a token of {len(token)} characters can be guessed: use {TOKEN_CHARACTERS_MIN} or more")


class _Server(uvicorn.Server):
    """Server that shuts down when it receives a signal, and leaves the exit code to the process. uvicorn's own server would raise the
    signal again after the shutdown."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end)
        yield

    def _end(self) -> None:
        self.should_exit = True


async def serve_app(app: AsgiApp, listen: tuple[str, int]) -> None:
    """Serve the application until SIGINT or SIGTERM arrives, after printing the server's address.

    Raises:
        AddressError: the address does not belong to this machine.
        AddressBusyError: the port is still in use, or the host name still cannot be resolved.
    """
    with listening(*listen) as server_socket:
        print(address_of(server_socket), flush=True)
        await server_of(app).serve([server_socket])


def server_of(app: AsgiApp) -> uvicorn.Server:
    """Return a uvicorn server for the application."""
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
    """Return a listening socket. Port 0 selects any free port.

    Raises:
        AddressError: the address does not belong to this machine.
        AddressBusyError: the port is still in use, or the host name still cannot be resolved.
    """
    wait_until_free(f"{host}:{port}")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise address_error(f"cannot listen on {host}:{port}", error, "choose another --listen") from error


OWN_SITE, TYPED = "same-origin", "none"
"""Values of `Sec-Fetch-Site`, in this order: for a request by one of our own pages, and for a request that a user has typed or opened from
a bookmark."""


def is_this_machine(host: str) -> bool:
    """Return whether a host name in a request always refers to this machine, regardless of the browser's name resolution."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_from_other_site(request: Request) -> bool:
    """Return whether the browser's headers show that a page of another site made this request."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site not in (None, OWN_SITE, TYPED):
        return True
    return origin is not None and origin.partition("://")[2] != request.headers.get("Host")


def has_no_site_header(request: Request) -> bool:
    """Return whether the request lacks a header that identifies the requesting page's site. This is the case for programs, old browsers and
    typed URLs."""
    return request.headers.get("Sec-Fetch-Site") in (None, TYPED) and "Origin" not in request.headers
