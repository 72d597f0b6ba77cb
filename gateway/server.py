"""The gateway's process: one client, one server, until somebody ends it."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

import uvicorn

from snapline.agent_runtime.fleet import Fleet
from snapline.channels.security import Security, is_loopback
from snapline.client.client import open_client
from snapline.errors import MisuseError
from snapline.gateway.app import Gateway
from snapline.gateway.openapi import openapi_of

CLIENT_NAME = "gateway"
TOKEN_CHARACTERS_MIN = 16

GRACE_S = 5
"""For requests that are under way when it is ended; streams of outputs end then."""


def check_exposure(host: str, token: str) -> None:
    """Whoever may reach the gateway may speak to the fleet.

    Raises:
        MisuseError: it would listen beyond this machine, and ask for no token; or for one that can be guessed.
    """
    if not token and not is_loopback(f"{host}:0"):
        raise MisuseError(
            f"--listen {host} can be reached from elsewhere: give --token-file, whose token requests must bear"
        )
    if token and len(token) < TOKEN_CHARACTERS_MIN:
        raise MisuseError(f"a token of {len(token)} characters can be guessed: use {TOKEN_CHARACTERS_MIN} or more")


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


async def serve(address: str, security: Security, listen: tuple[str, int], *, token: str, fleet: Fleet | None) -> None:
    """Serve until SIGINT or SIGTERM; prints where.

    Raises:
        MisuseError: the address is taken, or cannot be listened on.
        CoordinatorUnavailableError: nobody answers there.
    """
    async with await open_client(address, security, CLIENT_NAME) as client:
        app = Gateway(client, token=token, openapi=openapi_of(fleet)).app()
        with _listening(*listen) as server_socket:
            host, port = server_socket.getsockname()[:2]
            print(f"http://{host}:{port}", flush=True)
            config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=GRACE_S, lifespan="off")
            await _Server(config).serve([server_socket])


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise MisuseError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
