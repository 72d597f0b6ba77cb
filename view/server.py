"""The view's process: one client, one server, until somebody ends it."""

from pathlib import Path

from snapline.channels.security import Security
from snapline.client.client import open_client
from snapline.client.hosts import HostCalls
from snapline.conversation.coordinator_client import CoordinatorClient, patiently
from snapline.gateway.serving import serve_app
from snapline.view.acting import Operators
from snapline.view.app import View
from snapline.view.questions import FleetQuestions

CLIENT_NAME = "view"


async def serve(
    address: str,
    security: Security,
    listen: tuple[str, int],
    *,
    token: str,
    may_act: bool = False,
    folder: Path | None = None,
    trace: Path | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; prints where. `may_act`: operators may act here; `folder`: the fleet's, if it is on this machine; `trace`: shown beside it.

    Raises:
        MisuseError: the address is taken, or cannot be listened on.
        CoordinatorUnavailableError: nobody answers there.
    """
    async with await patiently(lambda: open_client(address, security, CLIENT_NAME)) as client:
        coordinator = CoordinatorClient(address, security)
        operators = Operators(coordinator, folder, has_certificates=security.is_tls) if may_act else None
        hosts = HostCalls(security, CLIENT_NAME)
        view = View(FleetQuestions(client, coordinator, hosts), token=token, operators=operators, trace=trace)
        try:
            await serve_app(view.app(), listen)
        finally:
            await view.close()
            await hosts.close()
            await coordinator.close()


async def serve_trace(trace: Path, listen: tuple[str, int], *, token: str) -> None:
    """The same without a fleet: a trace alone.

    Raises:
        MisuseError: the address is taken, or cannot be listened on.
    """
    view = View(None, token=token, trace=trace)
    try:
        await serve_app(view.app(), listen)
    finally:
        await view.close()
