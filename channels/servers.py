"""Settings of servers: gRPC options, listening addresses, and notifications to systemd.

*gRPC options*, the same for every server and client of snapline. C-core sends and answers keepalive pings itself, in threads
that do not hold the GIL. So pings distinguish a busy process (user code blocks its event loop or its interpreter) from one
that is dead, frozen or unreachable. The stream to a busy process stays open; the stream to a dead one breaks within 2 s.
Liveness of hosts and links relies on this (docs/decisions/0084). gRPC's defaults are wrong for long streams:

- A server disconnects a client that pings an idle link (`too_many_pings`).
- A frozen peer is noticed only after 60 s.
- A lost server is dialled again only after up to 1.8 s.
- A message above 4 MiB breaks the stream at the receiver only.
- Two processes may listen on one port.

*Listening addresses.* Two errors of an address may be transient: a port in use while the previous process ends, and a host
name that DNS does not know yet. Servers wait for both, and report an external failure if they last. Every other error means
that the address is wrong.

*Notifications to systemd*, if it started the process: ready, stopping, and alive (`sd_notify(3)`). Each is a datagram to the
socket that NOTIFY_SOCKET names; without that variable nothing is sent. If the unit sets `WatchdogSec`, the event loop sends
heartbeats. A hanging loop sends none, and systemd kills the process. *Ready* means that the process listens. It does not wait
for peers: otherwise the first of three coordinators would time out before the second starts.
"""

import asyncio
import contextlib
import errno
import os
import resource
import socket
import time
from collections.abc import AsyncIterator

from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.errors import ExternalFailureError, UsageError

PING_INTERVAL_MS = 1000
"""Time without a byte from the peer after which a ping is sent."""

PING_TIMEOUT_MS = 1000
"""Time for the peer to answer a ping. A dead, frozen or unreachable peer is detected 2 s after its last byte. gRPC's default: 60 s."""

PING_INTERVAL_MIN_MS = 500
"""Shortest interval between pings that a server accepts; below `PING_INTERVAL_MS`, so that clocks may drift."""

RECONNECT_MIN_MS = 50
RECONNECT_MAX_MS = 500
"""Reconnecting takes 0.05–0.3 s instead of 0.75–1.84 s. Calls that fail at once must not be retried faster."""

RECEIVE_BYTES_MAX = 2 * 1024 * 1024
"""Largest message that a server accepts: gRPC holds a message twice before the caller can be authenticated. Frames, Raft
batches and parts of host reports are little over 1 MiB; answers to clients may be larger."""

METADATA_BYTES_MAX = 16 * 1024
"""Largest metadata of one call: a token, and an id of a call or a trace. gRPC's own bound, fixed here against changes."""

STREAMS_MAX = 64
"""Largest number of concurrent calls on one connection: a host has one or two, tools a handful. Further calls wait at the caller."""

CONNECTIONS_MAX = 2_000
"""Largest number of connections at one port; further ones are closed at once. A fleet has 256 hosts with two connections each, its replicas,
tools and clients. A silent connection costs 50 KB for `HANDSHAKE_MS_MAX`. At most half of the file limit is used, since stores need files too."""

HANDSHAKE_MS_MAX = 10_000
"""Time for a new connection to complete its TLS handshake; gRPC's default: 120 s."""

_Options = list[tuple[str, int | str]]


def _common_options() -> _Options:
    return [
        ("grpc.keepalive_time_ms", PING_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ]


def server_options() -> _Options:
    """Return options for `grpc.aio.server`. A port in use is an error, even if only the child of a dead process holds the port."""
    return [
        *_common_options(),
        ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", PING_INTERVAL_MIN_MS),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS_MAX),
        ("grpc.max_allowed_incoming_connections", min(CONNECTIONS_MAX, files_max() // 2)),
    ]


def files_max() -> int:
    """Return the number of files that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX * 2 if soft == resource.RLIM_INFINITY else soft


def client_options(server_name: str | None = None) -> _Options:
    """Return options for a client channel; each has its own connection, so a new channel presents the newest certificate.

    Args:
        server_name: DNS name that the server's certificate must carry, instead of the address's.
    """
    options = [
        *_common_options(),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.initial_reconnect_backoff_ms", RECONNECT_MIN_MS),
        ("grpc.min_reconnect_backoff_ms", RECONNECT_MIN_MS),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_MAX_MS),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if server_name is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
    return options


PORT_WAIT_S = 3.0
"""Longest wait for a transient error to end; a killed process frees its ports within a second."""

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


SOCKET, WATCHDOG_US, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"

HEARTBEATS_PER_TIMEOUT = 3
"""Number of heartbeats per watchdog timeout, so that one may be late and one lost."""


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
