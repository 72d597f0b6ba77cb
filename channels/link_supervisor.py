"""Notifications to systemd, if it started the process: ready, stopping, and alive (`sd_notify(3)`).

Each notification is a datagram to the socket that NOTIFY_SOCKET names; without it nothing is sent. Where the unit has a `WatchdogSec`, the event
loop itself repeats that it is alive: one that hangs is silent, and is killed.

*Ready* means here that the process listens. It does not wait for others: the first of three coordinators would be given up before the second is started.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator

SOCKET, WATCHDOG_US, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"

BEATS = 3
"""Heartbeats per watchdog timeout: one may be late, and one lost."""


@contextlib.asynccontextmanager
async def supervised() -> AsyncIterator[None]:
    """Ready while inside; stopping afterwards."""
    notify("READY=1")
    watchdog = asyncio.create_task(_keep_alive(beat_s())) if beat_s() else None
    try:
        yield
    finally:
        if watchdog is not None:
            watchdog.cancel()
        notify("STOPPING=1")


def beat_s() -> float:
    """Return the time between heartbeats, in seconds; 0: none are wanted."""
    wanted = os.environ.get(WATCHDOG_US, "")
    is_ours = os.environ.get(WATCHDOG_PID, str(os.getpid())) == str(os.getpid())
    return int(wanted) / 1e6 / BEATS if is_ours and wanted.isdecimal() else 0.0


def notify(word: str) -> None:
    """Send one notification; it is lost if nobody listens."""
    address = os.environ.get(SOCKET, "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as said:
        said.sendto(word.encode(), "\0" + address[1:] if address.startswith("@") else address)


async def _keep_alive(pause_s: float) -> None:
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(pause_s)
