"""The view's process: one client, one server, until it is stopped."""

from collections.abc import Sequence
from pathlib import Path

from snapline.gateway.http_server import serve_app
from snapline.security.transport import Security
from snapline.view.action_requests import Operators
from snapline.view.app import View
from snapline.view.fleet_queries import open_fleet_queries

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
    reports: Sequence[Path] = (),
) -> None:
    """Serve until SIGINT or SIGTERM; prints the address.

    Args:
        may_act: allow actions of operators.
        folder: folder of the fleet, if it is on this machine.
        trace: a trace to show in addition.
        reports: folders with reports of simulations.

    Raises:
        UsageError: the process cannot listen on the address, or one of `reports` is not a folder.
        CoordinatorUnavailableError: no coordinator answers there.
    """
    async with open_fleet_queries(address, security, CLIENT_NAME) as (questions, coordinator):
        operators = Operators(coordinator, folder, has_certificates=security.is_tls) if may_act else None
        await _serve(View(questions, token=token, operators=operators, trace=trace, reports=reports), listen)


async def serve_files(listen: tuple[str, int], *, token: str, trace: Path | None, reports: Sequence[Path]) -> None:
    """Serve without a fleet: a trace, reports of simulations, or both."""
    await _serve(View(None, token=token, trace=trace, reports=reports), listen)


async def _serve(view: View, listen: tuple[str, int]) -> None:
    try:
        await serve_app(view.app(), listen)
    finally:
        await view.close()
