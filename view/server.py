"""The view's process: one client, one server, until somebody ends it."""

from snapline.channels.security import Security
from snapline.client.client import open_client
from snapline.conversation.coordinator_client import CoordinatorClient
from snapline.gateway.serving import serve_app
from snapline.view.app import View
from snapline.view.questions import FleetQuestions

CLIENT_NAME = "view"


async def serve(address: str, security: Security, listen: tuple[str, int], *, token: str) -> None:
    """Serve until SIGINT or SIGTERM; prints where.

    Raises:
        MisuseError: the address is taken, or cannot be listened on.
        CoordinatorUnavailableError: nobody answers there.
    """
    async with await open_client(address, security, CLIENT_NAME) as client:
        coordinator = CoordinatorClient(address, security)
        view = View(FleetQuestions(client, coordinator), token=token)
        try:
            await serve_app(view.app(), listen)
        finally:
            await view.close()
            await coordinator.close()
