"""References returned by a member's calls of other members: awaited, given to `ray.get`, or dropped, like Ray's own."""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

import grpc
import grpc.aio

from snapline.adapters.grpc.ledger import DivergedCallError
from snapline.adapters.ray.payloads import NotCapturable
from snapline.errors import ExternalFailureError, UsageError

if TYPE_CHECKING:
    from snapline.adapters.grpc.member_call import MemberCall


class ActorCallError(ExternalFailureError):
    """A call between actors of a fleet without an answer: the fleet was rolled back, or has ended."""


class RefMember(Protocol):
    """Interface of the actor in which references are created."""

    loop: asyncio.AbstractEventLoop

    def start(self, work: Any) -> object:
        """Run this until the fleet rolls back."""

    def opened(self, response: bytes) -> Any:
        """Return the result of the method, or raise its error."""


class WaitingLife(Protocol):
    """Interface of `ActorLife`, documented there."""

    async def wait(self, references: "Sequence[FleetRef]", timeout_s: float | None) -> list[Any]: ...


class MethodRun:
    """A method that runs in this process.

    Attributes:
        life: life of the object that the method belongs to.
        method: name of the method.
        error: set if a call was not made, since the rerun method called something else than before.
    """

    def __init__(self, life: WaitingLife, method: str) -> None:
        self.life, self.method = life, method
        self.error: DivergedCallError | None = None
        self._held: WeakSet[FleetRef] = WeakSet()

    def add(self, reference: "FleetRef") -> None:
        """Register a call made by this method."""
        self._held.add(reference)

    def end(self) -> None:
        """Leave calls that were not awaited to the member. Raise DivergedCallError if `error` is set."""
        for reference in list(self._held):
            reference.leave()
        if self.error is not None:
            raise self.error


METHOD: ContextVar[MethodRun | None] = ContextVar("METHOD", default=None)


class FleetRef(NotCapturable):
    """See the module. It can be awaited once, by the method that made the call or its tasks. If it is dropped, the member takes the answer.

    Attributes:
        error: reason why the call was not made.
    """

    unkeepable = "a call of another actor of the fleet is given, or kept: await it, and give or keep what it returns"

    def __init__(self, member: RefMember, run: MethodRun, make: Callable[[], "MemberCall"], what: str) -> None:
        """`make`: makes the call, in the member's loop. `what`: description of the call for errors."""
        self.error: Exception | None = None
        self._member, self._run, self._what = member, run, what
        self._call: MemberCall | None = None
        self._is_awaited = self._is_left = False
        run.add(self)
        if is_in(member.loop):
            self._make(make)
        else:
            member.loop.call_soon_threadsafe(self._make, make)

    def _make(self, make: Callable[[], "MemberCall"]) -> None:
        try:
            self._call = make()
        except DivergedCallError as error:
            self.error = self._run.error = error
        except grpc.aio.AioRpcError as error:
            self.error = ActorCallError(str(error.details()))

    def __await__(self) -> Generator[Any, None, Any]:
        return self._response().__await__()

    async def _response(self) -> Any:
        if self.error is not None:
            raise self.error
        if self._is_awaited or self._is_left:
            raise UsageError(
                f"the answer to {self._what} was taken already: a call is awaited once, and by the method that made it"
            )
        self._is_awaited = True
        assert self._call is not None, "made before anything else that its thread asks of the loop"
        try:
            response: bytes = await self._call
        except grpc.aio.AioRpcError as error:
            raise ActorCallError(f"{self._what}: {error.details()}") from None
        return self._member.opened(response)

    def leave(self) -> None:
        """Leave the answer to the member."""
        if self._call is not None and not self._is_awaited and not self._is_left:
            self._is_left = True
            self._member.start(_taken(self._call))

    def __del__(self) -> None:
        if self._call is not None and not self._is_awaited and not self._is_left and not self._member.loop.is_closed():
            self._member.loop.call_soon_threadsafe(_take, self._member, self._call)


def _take(member: RefMember, call: "MemberCall") -> None:
    member.start(_taken(call))


async def _taken(call: "MemberCall") -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):  # the fleet was rolled back: no caller waits
        await call.answer()


def is_in(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the caller runs in the loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def ray_get(
    plain: Callable[..., Any], loop: asyncio.AbstractEventLoop, waits: Callable[[str], None]
) -> Callable[..., Any]:
    """Return `ray.get` extended to calls of members. `waits` gets the name of the method that waits."""

    def get(object_refs: Any, *, timeout: float | None = None, **options: Any) -> Any:
        if isinstance(object_refs, FleetRef):
            return got([object_refs], timeout)[0]
        if not isinstance(object_refs, list) or not any(isinstance(each, FleetRef) for each in object_refs):
            return plain(object_refs, timeout=timeout, **options)
        ours = iter(got([each for each in object_refs if isinstance(each, FleetRef)], timeout))
        return [
            next(ours) if isinstance(each, FleetRef) else plain(each, timeout=timeout, **options)
            for each in object_refs
        ]

    def got(references: Sequence[FleetRef], timeout_s: float | None) -> list[Any]:
        run = METHOD.get()
        if run is None or is_in(loop):
            raise UsageError(
                "ray.get of a call within the fleet is for methods of classes without async ones: await it here"
            )
        waits(run.method)
        return asyncio.run_coroutine_threadsafe(run.life.wait(references, timeout_s), loop).result()

    get.__doc__ = plain.__doc__
    return get
