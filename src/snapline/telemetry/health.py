"""Serve a process's liveness and readiness through gRPC's health service, optionally on a port that needs no certificate.

Container supervisors have no certificates, so their health checks would fail in the TLS handshake. `--health` opens a separate port that
serves only health checks. Its callers can read two states and nothing else.

The health port serves the method `Check`, which is answered at once, but not `Watch`, because each `Watch` call would occupy a slot for as
long as its caller wants. With 64 such calls from strangers, no slot would remain for Kubernetes' probes, and Kubernetes would kill the
process.

Liveness and readiness have separate service names, because the two checks have different consequences. A supervisor restarts a process that
is not alive. A restart cannot restore a lost majority, so liveness depends on no other process. If a process is alive but not ready, the
supervisor only waits.
"""

from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from snapline.channels.servers import address_error, client_options, listen_error, server_options, wait_until_free_async
from snapline.security.rpc_authorization import RpcGuard
from snapline.security.transport import Security

ALIVE, READY = "alive", "ready"
"""Names in the health service. A coordinator is ready while it is connected to a majority. A host is ready once it has joined its fleet."""

CHECKS_MAX = 64
"""Maximum number of concurrent calls at a health port. A supervisor makes one call at a time."""

CONNECTIONS_MAX, IDLE_MS_MAX = 64, 10_000
"""Maximum number of connections at a health port, and the idle time after which a connection is closed. A foreign
client can make gRPC hold about ten MiB of headers for each connection."""


async def begin(servicer: health.aio.HealthServicer) -> None:
    """Report the process as alive but not ready yet."""
    await tell(servicer, (ALIVE,), is_serving=True)
    await tell(servicer, (READY,), is_serving=False)


async def tell(servicer: health.aio.HealthServicer, names: Iterable[str], *, is_serving: bool) -> None:
    """Set the health status of each of these service names."""
    kinds = health_pb2.HealthCheckResponse
    for name in names:
        await servicer.set(name, kinds.SERVING if is_serving else kinds.NOT_SERVING)


async def open_health_server(stack: AsyncExitStack, servicer: health.aio.HealthServicer, address: str) -> None:
    """Serve health checks in plaintext at `address` until the exit stack unwinds. Do nothing if `address` is empty.

    Raises:
        AddressError, AddressBusyError: If the process cannot listen on the address.
    """
    if not address:
        return
    guard = RpcGuard(Security.insecure())
    options = {
        **dict(server_options()),
        "grpc.max_connection_idle_ms": IDLE_MS_MAX,
        "grpc.max_allowed_incoming_connections": CONNECTIONS_MAX,
    }
    server = grpc.aio.server(options=list(options.items()), interceptors=(guard,), maximum_concurrent_rpcs=CHECKS_MAX)
    check: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
        servicer.Check,
        health_pb2.HealthCheckRequest.FromString,
        health_pb2.HealthCheckResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(health.SERVICE_NAME, {"Check": check}),))
    await wait_until_free_async(address)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if port == 0:
        raise address_error(f"health cannot be served at {address}", listen_error(address), "choose another --health")
    await server.start()
    stack.push_async_callback(server.stop, None)


async def is_serving(address: str, name: str, timeout_s: float) -> bool:
    """Ask a process on its health port whether the service `name` is serving.

    Raises:
        grpc.RpcError: If no answer arrives before the deadline, or the process does not know the name.
    """
    async with grpc.aio.insecure_channel(address, options=client_options()) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=timeout_s)
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)
