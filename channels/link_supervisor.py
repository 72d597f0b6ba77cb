"""Notifications to systemd, if it started the process: ready, stopping, and alive (`sd_notify(3)`).

Each notification is a datagram to the socket that NOTIFY_SOCKET names; without that variable nothing is sent. If the unit sets `WatchdogSec`, the
event loop sends heartbeats. A hanging loop sends none, and systemd kills the process.

*Ready* means that the process listens. It does not wait for peers: otherwise the first of three coordinators would time out before the second starts.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator

SOCKET, WATCHDOG_US, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"

HEARTBEATS_PER_TIMEOUT = 3
"""Heartbeats per watchdog timeout: one may be late, and one lost."""


@contextlib.asynccontextmanager
async def supervised() -> AsyncIterator[None]:
    """Report ready on entry and stopping on exit."""
    notify("READY=1")
    watchdog = asyncio.create_task(_keep_alive(watchdog_interval_s())) if watchdog_interval_s() else None
    try:
        yield
    finally:
        if watchdog is not None:
            watchdog.cancel()
        notify("STOPPING=1")


def watchdog_interval_s() -> float:
    """Return the time between heartbeats, in seconds; 0 if no heartbeats are wanted."""
    timeout_us = os.environ.get(WATCHDOG_US, "")
    is_ours = os.environ.get(WATCHDOG_PID, str(os.getpid())) == str(os.getpid())
    return int(timeout_us) / 1e6 / HEARTBEATS_PER_TIMEOUT if is_ours and timeout_us.isdecimal() else 0.0


def notify(word: str) -> None:
    """Send one notification; it is lost if no process listens on the socket."""
    address = os.environ.get(SOCKET, "")
    if not address.startswith(("/", "@")):
        return
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
    ):
        sender.sendto(word.encode(), "\0" + address[1:] if address.startswith("@") else address)


async def _keep_alive(pause_s: float) -> None:
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(pause_s)
