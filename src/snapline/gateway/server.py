"""The gateway's process: one client, one server, until it is stopped."""

from snapline.agent_runtime.fleet import Fleet
from snapline.client.client import open_client
from snapline.gateway.app import Gateway
from snapline.gateway.http_server import serve_app
from snapline.gateway.openapi import openapi_of
from snapline.gateway.served_handlers import Served
from snapline.security.transport import Security

CLIENT_NAME = "gateway"


async def serve(
    address: str, security: Security, listen: tuple[str, int], *, token: str, fleet: Fleet | None, served: Served
) -> None:
    """Serve until SIGINT or SIGTERM; print the address.

    Raises:
        UsageError: the address cannot be listened on.
        CoordinatorUnavailableError: no coordinator answers at the address.
    """
    async with await open_client(address, security, CLIENT_NAME) as client:
        gateway = Gateway(client, token=token, openapi=openapi_of(fleet, served), served=served)
        await serve_app(gateway.app(), listen)
