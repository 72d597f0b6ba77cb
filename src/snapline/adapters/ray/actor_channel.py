"""Ray as a replacement of gRPC: the channel interface that `MemberChannel` uses, implemented by calls to an actor that is found by name."""

import asyncio
from collections.abc import Generator
from functools import partial
from importlib import import_module
from typing import Any

import grpc
import grpc.aio

from snapline.adapters.grpc.ledger import ANSWER_KEY, CALL_KEY
from snapline.adapters.grpc.member_call import CODES
from snapline.adapters.ray.payloads import ActorNames

Served = tuple[bytes, int, str, bytes]
"""Result of a member's actor: the response, gRPC's status code (0: success), its details, and an answer's stamp (empty: none)."""


class ActorChannel:
    """Calls one actor of the fleet, whatever process it runs in."""

    def __init__(self, name: str, names: ActorNames) -> None:
        self._name, self._names = name, names

    def unary_unary(self, method: str, *_: object) -> Any:
        """Return a callable for this method, with requests and responses in bytes."""
        return partial(self._attempt, method)

    def _attempt(self, method: str, request: bytes, *, metadata: Any, timeout: float | None = None) -> "ActorAttempt":
        [stamp] = [value for key, value in metadata if key == CALL_KEY]
        try:
            return ActorAttempt(
                self._names, self._name, self._names.handle(self._name)._snapline_serve.remote(stamp, method, request)
            )
        except (ValueError, import_module("ray.exceptions").RayError):
            return ActorAttempt(self._names, self._name, None)

    async def close(self, grace: float | None = None) -> None:
        """Do nothing: the channel holds no connection."""


class ActorAttempt:
    """One attempt of a call, with the interface of a grpc.aio call."""

    __slots__ = ("_future", "_name", "_names", "_stamp")

    def __init__(self, names: ActorNames, name: str, reference: Any) -> None:
        """`reference`: Ray's reference to the answer; None: the actor does not exist now."""
        self._names, self._name = names, name
        self._stamp = b""
        if reference is not None:
            self._future: asyncio.Future[Served] = asyncio.wrap_future(reference.future())
        else:
            self._future = asyncio.get_running_loop().create_future()
            self._future.set_exception(import_module("ray.exceptions").RayActorError())

    def __await__(self) -> Generator[Any, None, bytes]:
        return self._response().__await__()

    async def _response(self) -> bytes:
        try:
            response, code, details, self._stamp = await self._future
        except import_module("ray.exceptions").RayError as error:
            self._names.forget(self._name)
            raise _error(grpc.StatusCode.UNAVAILABLE, f"actor {self._name!r}: {type(error).__name__}", b"") from error
        if code:
            raise _error(CODES.get(code, grpc.StatusCode.UNKNOWN), details, self._stamp)
        return response

    async def trailing_metadata(self) -> Any:
        """Return metadata with the answer's stamp, if it has one."""
        return _trailing(self._stamp)

    def cancel(self) -> bool:
        """Stop waiting for the call; the actor's work is not stopped."""
        return self._future.cancel()


def _trailing(stamp: bytes) -> Any:
    return grpc.aio.Metadata((ANSWER_KEY, stamp)) if stamp else grpc.aio.Metadata()


def _error(code: grpc.StatusCode, details: str, stamp: bytes) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), _trailing(stamp), details)
