"""Provides settings for servers: gRPC options, listening addresses and notifications to systemd.

*gRPC options* are the same for all servers and clients of snapline. gRPC's C core sends and answers keepalive pings itself, in threads that
do not hold the GIL. So pings distinguish a process that user code blocks from a process that is dead, frozen or unreachable. The stream to
a busy process stays open, while the stream to a dead process breaks within 2 s. Failure detection for hosts and links relies on this
(docs/decisions/0084). gRPC's defaults are unsuitable for long-lived streams.

- A server disconnects a client that pings an idle link (`too_many_pings`).
- A frozen peer is detected only after 60 s.
- After a server is lost, redialling takes up to 1.8 s.
- A message larger than 4 MiB is rejected only by the receiver, which breaks the stream.
- Two processes can listen on the same port.

*Listening addresses.* Two errors may be transient: the port is still in use by a previous process that is ending, or DNS does not know the
host name yet. In both cases servers wait, and report an external failure if the error persists. Every other error means that the address is
invalid.

*Notifications to systemd* report that the process is ready, stopping or alive (`sd_notify(3)`). Notifications are sent if systemd has
started the process. Each notification is a datagram to the socket that NOTIFY_SOCKET names. If that variable is not set, no notifications
are sent. If the unit sets `WatchdogSec`, the event loop sends heartbeats to systemd. If the event loop hangs, the heartbeats stop, and
systemd kills the process. *Ready* means that the process is listening. *Ready* does not mean that the process's peers are running. Waiting
for peers would make the first of three coordinators time out before systemd starts the second one.
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
"""Time in milliseconds without data from the peer after which a ping is sent."""

PING_TIMEOUT_MS = 1000
"""Time in milliseconds within which the peer must answer a ping. So a dead, frozen or unreachable peer is detected 2 s after its last byte.
gRPC's default is 60 s."""

PING_INTERVAL_MIN_MS = 500
"""Shortest interval between pings that a server accepts, in milliseconds. It is less than `PING_INTERVAL_MS`, so that clocks may drift."""

RECONNECT_MIN_MS = 50
RECONNECT_MAX_MS = 500
"""Shortest and longest backoff before reconnecting, in milliseconds. With these values, reconnecting takes 0.05–0.3 s instead of 0.75–1.84
s. Callers must not retry calls that fail immediately at shorter intervals than this."""

CONNECT_MS_MAX = 5_000
"""Time in milliseconds within which a connection must be established: TCP, TLS and the peer's first frame. The default of gRPC is 20 s.
gRPC calls this limit `min_reconnect_backoff_ms`. A refused connection fails at once."""

RECEIVE_BYTES_MAX = 2 * 1024 * 1024
"""Largest message in bytes that a server accepts. The limit is low because gRPC holds two copies of a message before the caller can be
authenticated. Frames, Raft batches and parts of host reports are slightly larger than 1 MiB. Answers to clients may be larger."""

METADATA_BYTES_MAX = 16 * 1024
"""Largest size in bytes of the metadata of one call, which consists of a token and the id of a call or trace. It equals gRPC's default, and
is set here in case that default changes."""

STREAMS_MAX = 64
"""Largest number of concurrent calls on one connection. Hosts make one or two concurrent calls, and tools a handful. Further calls wait at
the caller."""

CONNECTIONS_MAX = 2_000
"""Largest number of connections at one port. Further connections are closed immediately. A fleet has up to 256 hosts with two connections
each, plus replicas, tools and clients. A connection on which the peer sends nothing takes 50 KB of memory for `HANDSHAKE_MS_MAX`. At most
half of the limit on open files is used for connections, since stores need files too."""

HANDSHAKE_MS_MAX = 10_000
"""Time in milliseconds within which a new connection must complete its TLS handshake. gRPC's default is 120 s."""

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
    """Return options for `grpc.aio.server`. With these options, listening on a port that is in use fails, even if only a child of a dead
    process holds the port."""
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
    """Return the maximum number of files that this process may have open at the same time."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX * 2 if soft == resource.RLIM_INFINITY else soft


def client_options(server_name: str | None = None) -> _Options:
    """Return the gRPC options for a client channel. Each channel has its own connection, so that a new channel presents the newest
    certificate.

    Args:
        server_name: DNS name to expect in the server's certificate, instead of the name in the address.
    """
    options = [
        *_common_options(),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.initial_reconnect_backoff_ms", RECONNECT_MIN_MS),
        ("grpc.min_reconnect_backoff_ms", CONNECT_MS_MAX),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_MAX_MS),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if server_name is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
    return options


PORT_WAIT_S = 3.0
"""Longest time in seconds to wait for a transient error to disappear. For comparison, the ports of a killed process become free within a
second."""

PORT_POLL_S = 0.1


class AddressError(UsageError):
    """Raised if the address is unusable because it is malformed or belongs to a different machine."""


class AddressBusyError(ExternalFailureError):
    """Raised if the address is currently unusable because the port is in use or the host name is unknown."""


def listen_error(address: str) -> OSError | ValueError | None:
    """Try to bind a socket to `host:port`. Return the error that prevents a server from listening there, or None if a server can listen."""
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
    """Return whether the error may be transient, so that a later attempt with the same address may succeed."""
    return isinstance(error, socket.gaierror) or getattr(error, "errno", None) == errno.EADDRINUSE


def address_error(sentence: str, error: BaseException | None, advice: str) -> AddressError | AddressBusyError:
    """Return the error for a server that cannot listen. The text has the form `sentence: the system's reason; advice`."""
    reason = getattr(error, "strerror", None) or str(error or "is the port taken?")
    kind = AddressBusyError if error is None or may_pass(error) else AddressError
    return kind(f"{sentence}: {reason}; {advice}")


async def wait_until_free_async(address: str) -> bool:
    """Run `wait_until_free` in a thread, because a name lookup may take seconds."""
    return await asyncio.to_thread(wait_until_free, address)


def wait_until_free(address: str) -> bool:
    """Wait while the port is in use or the host name is unknown, for at most `PORT_WAIT_S`. Return whether the address can be used now."""
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
"""Number of heartbeats per watchdog timeout. It is chosen so that one heartbeat may be late and one may be lost."""


@contextlib.asynccontextmanager
async def supervised() -> AsyncIterator[None]:
    """Notify systemd on entry that the process is ready, and on exit that it is stopping. In between, send heartbeats if the unit has a
    watchdog."""
    notify("READY=1")
    watchdog = asyncio.create_task(_keep_alive(watchdog_interval_s())) if watchdog_interval_s() else None
    try:
        yield
    finally:
        if watchdog is not None:
            watchdog.cancel()
        notify("STOPPING=1")


def watchdog_interval_s() -> float:
    """Return the time between heartbeats in seconds, or 0 if systemd expects no heartbeats from this process."""
    timeout_us = os.environ.get(WATCHDOG_US, "")
    is_ours = os.environ.get(WATCHDOG_PID, str(os.getpid())) == str(os.getpid())
    return int(timeout_us) / 1e6 / HEARTBEATS_PER_TIMEOUT if is_ours and timeout_us.isdecimal() else 0.0


def notify(word: str) -> None:
    """Send one notification to systemd. The notification is lost if no process is listening on the socket."""
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
