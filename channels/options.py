"""gRPC options of every server and client of snapline.

C-core sends and answers keepalive pings itself, in threads that hold no lock of Python's. So they tell a process that is
busy (its event loop, or its interpreter, is held by somebody's code) from one that is dead, frozen or cut off: the stream
of the first stands, that of the second breaks within 2 s. Liveness of hosts and links rests on this (docs/decisions/0084).

The defaults of gRPC are wrong for long streams: a server kills a
client that pings an idle link (`too_many_pings`), a frozen peer is noticed after 60 s, a lost server is dialled again
after up to 1.8 s, a message above 4 MiB kills the stream at the receiver only, and two processes may listen on one port.
"""

import resource

from snapline.channels.channel import MESSAGE_BYTES_MAX

PING_INTERVAL_MS = 1000
"""Time without a byte from the peer after which a ping is sent."""

PING_TIMEOUT_MS = 1000
"""The peer is dead, frozen or cut off if that ping is not answered in this time: it is found 2 s after its last byte. 60 s by default."""

PING_INTERVAL_MIN_MS = 500
"""A server takes pings this often; below `PING_INTERVAL_MS`, so that clocks may drift."""

RECONNECT_MIN_MS = 50
RECONNECT_MAX_MS = 500
"""Back in 0.05–0.3 s instead of 0.75–1.84 s; calls that fail at once must not be retried faster."""

RECEIVE_BYTES_MAX = 2 * 1024 * 1024
"""Largest message that a server takes: gRPC holds a message twice before anybody can ask whose it is. Frames, batches of Raft
and parts of what hosts say are a MiB and some; answers to clients may be larger."""

METADATA_BYTES_MAX = 16 * 1024
"""Largest metadata of one call: a token, and an id of a call or a trace. gRPC's own bound, fixed here against changes."""

STREAMS_MAX = 64
"""Calls at once on one connection: a host has one or two, tools a handful. More wait at the caller."""

CONNECTIONS_MAX = 2_000
"""Largest number of connections at one port; the next is closed at once. A fleet has 256 hosts with two each, its replicas and tools, and clients of
agents. A silent one costs 50 KB, until `HANDSHAKE_MS_MAX` are over. At most half of the process's open files: stores need some too."""

HANDSHAKE_MS_MAX = 10_000
"""Deadline for a new connection to show its certificate; 120 s by default."""

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
    """Return options for `grpc.aio.server`. A port in use is an error, even while a dead process's child holds it."""
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
    """Return how many files this process may have open."""
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
