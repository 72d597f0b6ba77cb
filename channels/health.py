"""How a process says that it lives and that it is ready: gRPC's health service, also at a door that asks for no certificate.

Those who start containers ask for health without certificates, and get no further than a TLS handshake. `--health` opens a door where
nothing but health is served: who reaches it hears two words, and can do nothing.

There are two names since the questions have different consequences. Who does not *live* is killed and started again, which brings no
lost majority back: so that name depends on nobody else. Who is not *ready* is only waited for.
"""

from collections.abc import Iterable
from contextlib import AsyncExitStack

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from snapline.channels.doors import DoorKeeper
from snapline.channels.listening import address_error, until_free, why_not
from snapline.channels.options import client_options, server_options
from snapline.channels.security import Security

ALIVE, READY = "alive", "ready"
"""Names in the health service. A coordinator is ready while it hears a majority, a host once it has joined its fleet."""

QUESTIONS_MAX = 64
"""At once at a health door: whoever supervises asks one at a time."""


async def begin(servicer: health.aio.HealthServicer) -> None:
    """The process lives, and is not ready yet."""
    await tell(servicer, (ALIVE,), is_serving=True)
    await tell(servicer, (READY,), is_serving=False)


async def tell(servicer: health.aio.HealthServicer, names: Iterable[str], *, is_serving: bool) -> None:
    """Answer so from now on, for each of these names."""
    kinds = health_pb2.HealthCheckResponse
    for name in names:
        await servicer.set(name, kinds.SERVING if is_serving else kinds.NOT_SERVING)


async def open_health_door(stack: AsyncExitStack, servicer: health.aio.HealthServicer, address: str) -> None:
    """Serve health, and nothing else, in plaintext at `address` until the stack unwinds; nowhere if it is empty.

    Raises:
        AddressError, AddressBusyError: nobody can listen there.
    """
    if not address:
        return
    guard = DoorKeeper(Security.insecure())
    server = grpc.aio.server(options=server_options(), interceptors=(guard,), maximum_concurrent_rpcs=QUESTIONS_MAX)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await until_free(address)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if port == 0:
        raise address_error(f"health cannot be served at {address}", why_not(address), "choose another --health")
    await server.start()
    stack.push_async_callback(server.stop, None)


async def is_serving(address: str, name: str, timeout_s: float) -> bool:
    """Whether the process with a health door at `address` says so of this name.

    Raises:
        grpc.RpcError: nobody answers in time, or the name is unknown there.
    """
    async with grpc.aio.insecure_channel(address, options=client_options()) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=timeout_s)
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)
