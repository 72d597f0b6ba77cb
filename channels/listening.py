"""Listening addresses of servers: why one cannot be used, and whether that may pass.

A port is in use for a moment while the process before it dies; a name is not known before DNS has heard of it. Both are waited for, and are the
world's fault if they do not pass. Everything else is a wrong address.
"""

import asyncio
import errno
import socket
import time

from snapline.errors import ExternalFailureError, UsageError

PORT_WAIT_S = 3.0
"""Longest wait for an error that may pass: a killed process frees its ports within a second."""

PORT_LOOK_S = 0.1


class AddressError(UsageError):
    """Error for an unusable address: it is no address, or none of this machine."""


class AddressBusyError(ExternalFailureError):
    """Error for a busy address: the port is in use, or the name of the machine is unknown."""


def why_not(address: str) -> OSError | ValueError | None:
    """Return the error that keeps a server from listening at `host:port`, found by binding. None: no error."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except (OSError, ValueError) as error:
        return error
    return None


def may_pass(error: BaseException | None) -> bool:
    """Return whether the same address may work a moment later."""
    return isinstance(error, socket.gaierror) or getattr(error, "errno", None) == errno.EADDRINUSE


def address_error(sentence: str, error: BaseException | None, advice: str) -> AddressError | AddressBusyError:
    """The error for who cannot listen: `sentence: the system's reason; advice`."""
    reason = getattr(error, "strerror", None) or str(error or "is the port taken?")
    kind = AddressBusyError if error is None or may_pass(error) else AddressError
    return kind(f"{sentence}: {reason}; {advice}")


async def until_free(address: str) -> bool:
    """Run `wait_until_free` in a thread: a name lookup may take seconds."""
    return await asyncio.to_thread(wait_until_free, address)


def wait_until_free(address: str) -> bool:
    """Wait while the port is in use or the name is unknown, for `PORT_WAIT_S` at most; returns whether that has passed."""
    deadline_s = time.monotonic() + PORT_WAIT_S
    while is_busy := _is_busy(address):
        if time.monotonic() > deadline_s:
            break
        time.sleep(PORT_LOOK_S)
    return not is_busy


def _is_busy(address: str) -> bool:
    return not address.startswith("unix:") and not address.endswith(":0") and may_pass(why_not(address))
