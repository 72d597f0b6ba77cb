"""Listening addresses of servers: why an address cannot be used, and whether the error is transient.

Two errors may be transient: a port in use while the previous process ends, and a host name that DNS does not know yet. Servers wait for both,
and report an external failure if they last. Every other error means that the address is wrong.
"""

import asyncio
import errno
import socket
import time

from snapline.errors import ExternalFailureError, UsageError

PORT_WAIT_S = 3.0
"""Longest wait for a transient error to pass: a killed process frees its ports within a second."""

PORT_POLL_S = 0.1


class AddressError(UsageError):
    """Error for an unusable address: it is malformed, or belongs to another machine."""


class AddressBusyError(ExternalFailureError):
    """Error for a busy address: the port is in use, or the host name is unknown."""


def listen_error(address: str) -> OSError | ValueError | None:
    """Try to bind `host:port`, and return the error that keeps a server from listening there; None if there is none."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
    except (OSError, ValueError) as error:
        return error
    return None


def may_pass(error: BaseException | None) -> bool:
    """Return whether the same address may work a moment later."""
    return isinstance(error, socket.gaierror) or getattr(error, "errno", None) == errno.EADDRINUSE


def address_error(sentence: str, error: BaseException | None, advice: str) -> AddressError | AddressBusyError:
    """Return the error of a server that cannot listen: `sentence: the system's reason; advice`."""
    reason = getattr(error, "strerror", None) or str(error or "is the port taken?")
    kind = AddressBusyError if error is None or may_pass(error) else AddressError
    return kind(f"{sentence}: {reason}; {advice}")


async def wait_until_free_async(address: str) -> bool:
    """Run `wait_until_free` in a thread: a name lookup may take seconds."""
    return await asyncio.to_thread(wait_until_free, address)


def wait_until_free(address: str) -> bool:
    """Wait while the port is in use or the name is unknown, for `PORT_WAIT_S` at most; return whether the error has passed."""
    deadline_s = time.monotonic() + PORT_WAIT_S
    while is_busy := _is_busy(address):
        if time.monotonic() > deadline_s:
            break
        time.sleep(PORT_POLL_S)
    return not is_busy


def _is_busy(address: str) -> bool:
    return not address.startswith("unix:") and not address.endswith(":0") and may_pass(listen_error(address))
