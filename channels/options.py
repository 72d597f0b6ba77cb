"""gRPC options of every server and client of snapline.

C-core sends and answers keepalive pings itself, in threads that do not hold the GIL. So pings distinguish a busy process
(user code blocks its event loop or its interpreter) from one that is dead, frozen or unreachable. The stream to a busy
process stays open; the stream to a dead one breaks within 2 s. Liveness of hosts and links relies on this (docs/decisions/0084).

gRPC's defaults are wrong for long streams:

- A server disconnects a client that pings an idle link (`too_many_pings`).
- A frozen peer is noticed only after 60 s.
- A lost server is dialled again only after up to 1.8 s.
- A message above 4 MiB breaks the stream at the receiver only.
- Two processes may listen on one port.
"""

import resource

from snapline.channels.channel import MESSAGE_BYTES_MAX

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
"""Concurrent calls on one connection: a host has one or two, tools a handful. Further calls wait at the caller."""

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
    """Return options for `grpc.aio.server`. A port in use is an error, even if only a dead process's child holds it."""
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
