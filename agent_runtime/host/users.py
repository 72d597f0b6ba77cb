"""User checks at a host. The host knows no tokens and keeps no audit log, so it asks the coordinator.

Answers about tokens are cached for some seconds, for read-only calls: a user who watches an agent makes many. Before a call that changes something,
the coordinator records the call and checks the token again, so a revoked token cannot change anything.
"""

import asyncio
import time

from snapline.errors import CoordinatorUnavailableError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.security.rpc_authorization import ERROR_KEY, Caller
from snapline.security.transport import Identity, Security

TOKEN_CACHE_S = 5.0
"""Time in seconds for which a revoked token may still read."""

CACHED_TOKENS_MAX = 256
"""Largest number of cached tokens, as many as a fleet may have; invalid tokens count too."""

COORDINATOR_REQUESTS_MAX = 4
"""Largest number of concurrent requests to the coordinator: a caller that tries many tokens has to wait."""

ASK_S = 5.0
"""Time to wait for the coordinator's answer: an election takes a second or two."""


class CoordinatorUsers:
    """Users known to a host from the coordinator's answers."""

    def __init__(self, address: str, security: Security) -> None:
        self._address = address
        self._security = security
        self._client: CoordinatorClient | None = None
        self._generation = 0
        self._known: dict[bytes, tuple[float, Identity | None]] = {}
        self._asking = asyncio.Semaphore(COORDINATOR_REQUESTS_MAX)
        self._closing: set[asyncio.Task[None]] = set()

    async def holder(self, digest: bytes) -> Identity | None:
        """Return the bearer of this token; see `rpc_authorization.People`."""
        async with self._asking:
            until_s, identity = self._known.get(digest, (0.0, None))
            if time.monotonic() < until_s:
                return identity
            answer = await self._connected().check_token(digest, ASK_S)
        identity = Identity(answer.role, answer.name) if answer.name else None
        self._known.pop(digest, None)
        while len(self._known) >= CACHED_TOKENS_MAX:
            del self._known[next(iter(self._known))]
        self._known[digest] = time.monotonic() + TOKEN_CACHE_S, identity
        return identity

    async def record(self, caller: Caller, call: str, about: str, outcome: str) -> None:
        """Have a call recorded; see `rpc_authorization.People`."""
        proof = {"digest": caller.digest, "certificate": caller.certificate}
        await self._connected().record_call(ASK_S, **proof, call=call, about=about, outcome=outcome)

    def redirect_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((ERROR_KEY, CoordinatorUnavailableError.__name__),)

    async def close(self) -> None:
        """Close the clients: the host ends."""
        for task in self._closing:
            task.cancel()
        if self._client is not None:
            await self._client.close()

    def _connected(self) -> CoordinatorClient:
        """Return a client with the newest certificate."""
        if self._client is not None and self._generation != self._security.generation:
            task = asyncio.create_task(_close_later(self._client))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
            self._client = None
        if self._client is None:
            self._client = CoordinatorClient(self._address, self._security)
            self._generation = self._security.generation
        return self._client


async def _close_later(client: CoordinatorClient) -> None:
    """Close the client when the calls that it had under way are over."""
    try:
        await asyncio.sleep(ASK_S)
    finally:
        await client.close()
