"""One call to a coordinator, or one word to an agent, from a command that is not asynchronous itself."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from snapline.errors import CoordinatorUnavailableError

if TYPE_CHECKING:
    from snapline.channels.security import Security
    from snapline.client.client import Client
    from snapline.conversation.coordinator_client import CoordinatorClient

_Reply = TypeVar("_Reply")

CLIENT_NAME = "cli"
"""Whom inputs are from, where no certificate says it."""

PATIENCE_S, PAUSE_S = 2.0, 0.1
"""An unreachable coordinator is asked again for so long: it may be starting, or its machine too busy to answer in time."""


def ask(address: str, security: "Security", call: "Callable[[CoordinatorClient], Awaitable[_Reply]]") -> _Reply:
    """Make one call and return its reply; raises what `CoordinatorClient` raises. The call carries its own limit.

    The call may be made more than once. Nothing that tools ask for does harm twice: a second snapshot is one more.
    """
    return asyncio.run(_ask(address, security, call))


async def _ask(address: str, security: "Security", call: "Callable[[CoordinatorClient], Awaitable[_Reply]]") -> _Reply:
    from snapline.conversation.coordinator_client import CoordinatorClient

    client = CoordinatorClient(address, security, on_trouble=_tell)
    try:
        return await _patiently(lambda: call(client))
    finally:
        await client.close()


def speak(address: str, security: "Security", call: "Callable[[Client], Awaitable[_Reply]]") -> _Reply:
    """Speak to a fleet's agents and return what comes of it; raises what `Client` raises."""
    return asyncio.run(_speak(address, security, call))


async def _speak(address: str, security: "Security", call: "Callable[[Client], Awaitable[_Reply]]") -> _Reply:
    from snapline.client.client import open_client

    async with await _patiently(lambda: open_client(address, security, CLIENT_NAME)) as client:
        return await call(client)


async def _patiently(call: "Callable[[], Awaitable[_Reply]]") -> _Reply:
    """Until the coordinator answers, or has had its time."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await call()
        except CoordinatorUnavailableError:
            if time.monotonic() >= deadline_s:
                raise
        await asyncio.sleep(PAUSE_S)


def _tell(trouble: str) -> None:
    print(f"snapline: {trouble}", file=sys.stderr, flush=True)


def plain(reply: object) -> dict[str, object]:
    """A reply as plain values, by the names of its fields."""
    return msgspec.convert(msgspec.to_builtins(reply), dict[str, object])
