"""One call to a coordinator or to agents, for synchronous commands."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from snapline.security.printable import printable

if TYPE_CHECKING:
    from snapline.client.client import Client
    from snapline.messages.coordinator_client import CoordinatorClient
    from snapline.security.transport import Security

_Reply = TypeVar("_Reply")

CLIENT_NAME = "cli"
"""Sender name of inputs from a client without a certificate."""


def ask(address: str, security: "Security", call: "Callable[[CoordinatorClient], Awaitable[_Reply]]") -> _Reply:
    """Make one call, with retries, and return its reply; raises like `CoordinatorClient`. The call has its own time limit."""
    return asyncio.run(_ask(address, security, call))


async def _ask(address: str, security: "Security", call: "Callable[[CoordinatorClient], Awaitable[_Reply]]") -> _Reply:
    from snapline.messages.coordinator_client import CoordinatorClient, retry_until_available

    client = CoordinatorClient(address, security, on_trouble=_print_error)
    try:
        return await retry_until_available(lambda: call(client))
    finally:
        await client.close()


def call_agents(address: str, security: "Security", call: "Callable[[Client], Awaitable[_Reply]]") -> _Reply:
    """Call a fleet's agents and return the result; raises like `Client`."""
    return asyncio.run(_call_agents(address, security, call))


async def _call_agents(address: str, security: "Security", call: "Callable[[Client], Awaitable[_Reply]]") -> _Reply:
    from snapline.client.client import open_client

    async with await open_client(address, security, CLIENT_NAME) as client:
        return await call(client)


def _print_error(trouble: str) -> None:
    print(printable(f"snapline: {trouble}"), file=sys.stderr, flush=True)
