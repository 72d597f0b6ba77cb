"""Provides `in_fleet`, a decorator that includes the actors of a plain Ray actor class in the cuts of a fleet.

    @ray.remote(max_restarts=-1)
    @in_fleet(banks, coordinator="10.0.0.5:7700", store="/shared/banks")
    class Bank: …

The decorator makes each actor of the class a member of the fleet (`MemberActor`). All calls from and to the actor pass through this member.
The member runs in the event loop in which Ray runs async methods. To start the member, the actor's process calls its own actor. Without
this call, nothing would call a restarted actor before its fleet has recovered.

Calls between members use Ray instead of gRPC. `ActorChannel` implements the channel interface that `MemberChannel` requires. The channel
looks up each actor by name and calls it.
"""

import asyncio
import functools
import inspect
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import grpc
import grpc.aio
import msgspec

from snapline.adapters.grpc.ledger import ANSWER_KEY, CALL_KEY, CallStamp
from snapline.adapters.grpc.member import Member
from snapline.adapters.grpc.member_call import CODES, MemberCall
from snapline.adapters.grpc.member_channel import METADATA, AbortedHandlerError, MemberChannel, UnaryHandler
from snapline.adapters.grpc.service_agent import ServiceAgent
from snapline.adapters.ray.fleet_refs import (
    METHOD,
    ActorCallError,
    ActorNames,
    FleetRef,
    MethodRun,
    Outcome,
    RecoverableActor,
    packed,
    ray_get,
    unpacked,
)
from snapline.agent_runtime.fleet import Fleet
from snapline.deploy.ray_cluster import load_ray
from snapline.errors import SnaplineError, UsageError
from snapline.security.transport import Security

Served = tuple[bytes, int, str, bytes]
"""Result of a call to a member's actor: the response, the number of gRPC's status code (0 means success), its details, and the stamp of the
answer, which is empty if there is none."""


class ActorChannel:
    """Channel for calls to one actor of the fleet, in whichever process the actor currently runs."""

    def __init__(self, name: str, names: ActorNames) -> None:
        self._name, self._names = name, names

    def unary_unary(self, method: str, *_: object) -> Any:
        """Return a callable that calls the given method of the actor. The callable takes a request and returns a response, both as
        bytes."""
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
        """Do nothing, because the channel holds no connection."""


class ActorAttempt:
    """One attempt of a call, with the interface of a grpc.aio call."""

    __slots__ = ("_future", "_name", "_names", "_stamp")

    def __init__(self, names: ActorNames, name: str, reference: Any) -> None:
        """Create the attempt from Ray's reference to the answer. `reference` is None if the actor does not currently exist."""
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
        """Return metadata that contains the answer's stamp, or empty metadata if the answer has no stamp."""
        return _trailing(self._stamp)

    def cancel(self) -> bool:
        """Stop waiting for the call. The called method continues to run."""
        return self._future.cancel()


def _trailing(stamp: bytes) -> Any:
    return grpc.aio.Metadata((ANSWER_KEY, stamp)) if stamp else grpc.aio.Metadata()


def _error(code: grpc.StatusCode, details: str, stamp: bytes) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), _trailing(stamp), details)


log = logging.getLogger("snapline.ray")

REFUSED_OPTIONS = {"num_returns": 1, "retry_exceptions": None, "tensor_transport": None}
"""Option of a Ray method call → the only value that is supported for calls within a fleet."""


BEGIN_S, BEGIN_AGAIN_S = 3.0, 0.1
"""Time limit of the call that a process makes to its own actor, and pause before the call is repeated, in seconds. The call is either
answered within milliseconds or lost."""


class FleetTerms(msgspec.Struct, frozen=True):
    """Arguments of the decorator `in_fleet`."""

    fleet: Fleet
    coordinator: str
    store: str
    security: Security | None


class MemberActor:
    """The actor that runs in this process as a member of the fleet.

    Attributes:
        loop: Ray's event loop, which is set by the first call.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self, terms: FleetTerms, make: Callable[[], object]) -> None:
        """Create the member of this actor. Ray calls this constructor. `make` creates the user's object.

        Raises:
            UsageError: no agent of the fleet has the actor's name.
            EncodingError: an attribute of the user's object cannot be saved.
        """
        context = load_ray().get_runtime_context()
        self.name = str(context.get_actor_name() or "")
        _check_name(self.name, terms.fleet)
        self._terms = terms
        members = [name for name, agent in terms.fleet.agents.items() if isinstance(agent, ServiceAgent)]
        self._names = ActorNames(members)
        self._ended = ""
        self._member: Member | None = None
        self._running: asyncio.Task[None] | None = None
        self._inside: set[asyncio.Task[Any]] = set()
        self._channels: dict[str, MemberChannel] = {}
        self._methods: dict[tuple[str, str], Any] = {}
        self._handlers: dict[tuple[str, bool], UnaryHandler] = {}
        _here.append(self)
        self._kept = RecoverableActor(make(), self.name, self._names)
        self._kept.capture()  # reports attributes that cannot be saved to the actor's creator now instead of at the first cut
        threading.Thread(target=_begun, args=(context.current_actor,), daemon=True).start()

    # ---- lifecycle ----------------------------------------------------------------------------------------------------

    def begin(self) -> Member:
        """Return the member. If the member has not been started yet, start it in the running event loop first."""
        if self._member is not None:
            return self._member
        terms, ray = self._terms, load_ray()
        self.loop = asyncio.get_running_loop()
        address = "127.0.0.1" if terms.security is None else ray.util.get_node_ip_address()
        self._member = Member(
            self._kept,
            agent=self.name,
            fleet=terms.fleet,
            coordinator=terms.coordinator,
            store=terms.store,
            listen=f"{address}:0",
            security=terms.security,
        )
        self._kept.begun = self._member.ledger.begun
        self._kept.restored = lambda: self.start(self._report_finished())
        for name in terms.fleet.agents:
            if name in self._names:
                channel: Any = ActorChannel(
                    name, self._names
                )  # implements all methods of grpc.aio.Channel that are used here
                self._channels[name] = self._member.channel(name, channel)
        ray.get = ray_get(ray.get, self.loop, self._kept.waits)
        self._running = self.loop.create_task(self._run(self._member))
        return self._member

    async def _run(self, member: Member) -> None:
        try:
            await member.run()
            self._ended = f"fleet {self._terms.fleet.name!r} has ended"
        except SnaplineError as error:
            self._ended = str(error)
        except Exception as error:
            log.exception("actor %s is no member any more", self.name)
            self._ended = repr(error)
        for task in list(self._inside):
            task.cancel()

    def start(self, work: Coroutine[Any, Any, Any]) -> object:
        """Run a coroutine as a task that is cancelled when the fleet rolls back."""
        return self.begin().start(work)

    # ---- incoming calls ------------------------------------------------------------------------------------------------

    async def serve(self, stamp: bytes, method: str, request: bytes) -> Served:
        """Serve a call that comes from another member."""
        METADATA.set(((CALL_KEY, stamp),))
        context = ServedByRay()
        try:
            response = await self._entered(method, request, context)
        except AbortedHandlerError as error:
            return b"", error.code, error.details, context.stamp
        except ActorCallError as error:
            return b"", int(grpc.StatusCode.UNAVAILABLE.value[0]), str(error), b""
        return response, 0, "", context.stamp

    async def serve_external(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Serve a call from a caller that is not a member of the fleet.

        Raises:
            ActorCallError: the fleet has rolled back or ended.
            Exception: the error that the method raised.
        """
        METADATA.set(())
        return await self._entered(method, (args, kwargs), ServedByRay())

    async def _entered(self, method: str, request: Any, context: "ServedByRay") -> Any:
        member, task = self.begin(), asyncio.current_task()
        plan = member.plan
        assert task is not None
        self._inside.add(task)
        try:
            if self._ended:
                raise ActorCallError(f"actor {self.name!r} does nothing any more: {self._ended}")
            return await self._handler(method, is_member=isinstance(request, bytes)).serve(request, context)
        except asyncio.CancelledError:
            if plan and plan == member.plan and not self._ended:
                raise  # cancelled by Ray
            task.uncancel()
            reason = self._ended or "its fleet has gone back to a cut, and the call is of what came after it"
            raise ActorCallError(f"{method} of actor {self.name!r} has ended: {reason}") from None
        finally:
            self._inside.discard(task)

    def _handler(self, method: str, *, is_member: bool) -> UnaryHandler:
        made = self._handlers.get((method, is_member))
        if made is None:
            made = self._made_handler(method) if is_member else self._external_handler(method)
            self._handlers[method, is_member] = made
        return made

    def _made_handler(self, method: str) -> UnaryHandler:
        async def function(request: bytes, _: object) -> Outcome:
            args, kwargs = unpacked(request, self._names)
            return await self._kept.outcome(method, args, kwargs)

        return UnaryHandler(self.begin(), function, self._packed_outcome)

    def _external_handler(self, method: str) -> UnaryHandler:
        async def function(request: tuple[Sequence[Any], Mapping[str, Any]], _: object) -> Any:
            return await self._kept.run(method, *request)

        return UnaryHandler(self.begin(), function, _as_it_is)

    def _packed_outcome(self, outcome: Outcome) -> bytes:
        try:
            if outcome.raised is None:
                return packed([True, outcome.value], self._names)
            return packed([False, outcome.lines, outcome.raised], self._names)
        except UsageError as error:
            return packed([False, "", error], self._names)

    async def forget(self, plan: int, ids: Sequence[str]) -> None:
        """Delete the stored answers to the given calls, because the calling member, which runs under this plan, no longer needs them."""
        member = self.begin()
        if await member.admit(CallStamp(plan, 0, "")):
            member.ledger.forget(ids)

    async def _report_finished(self) -> None:
        """Immediately report the calls that have finished because of a recovery.

        A report with the next call would come too late for an actor that waits for one of these calls to be repeated.
        """
        member = self.begin()
        for name in self._channels:
            while ids := member.ledger.finished_calls_for(name):
                try:
                    await self._names.handle(name)._snapline_forget.remote(member.plan, list(ids))
                except (ValueError, load_ray().exceptions.RayError):
                    member.ledger.requeue_finished(name, ids)
                    break
                member.ledger.confirm_finished(name, ids)

    # ---- outgoing calls ------------------------------------------------------------------------------------------------

    def called(self, invocation: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
        """Call a method of an actor from this process. If the actor belongs to the fleet, make the call through the member. `invocation` is
        Ray's own function for the call.

        Raises:
            UsageError: an argument or option is not supported within a fleet, or the caller is not a method of the actor.
        """
        variables = _variables(invocation)
        method = variables["self"]
        target = self._names.name_of(method._actor)
        if target is None:
            return invocation(args, kwargs)
        description = f"{method._method_name} of actor {target!r}"
        run = METHOD.get()
        if run is None:
            raise UsageError(
                f"{description} is called outside of a method: the constructor runs again whenever Ray restarts the actor, and what threads do is in "
                "no cut. Call it in a method"
            )
        for option, usual in REFUSED_OPTIONS.items():
            if variables.get(option, usual) not in (usual, False):
                raise UsageError(
                    f"{description} is called with {option}={variables[option]!r}, which calls within a fleet do not know"
                )
        request = packed([list(args or ()), dict(kwargs or {})], self._names, is_compared=True)
        return self._call(run, target, method._method_name, request)

    def _call(self, run: MethodRun, target: str, method: str, request: bytes) -> FleetRef:
        known = self._methods.get((target, method))
        if known is None:
            known = self._methods[target, method] = self._channels[target].unary_unary(method)

        def make() -> MemberCall:
            made: MemberCall = known(request)
            return made

        return FleetRef(self, run, make, f"{method} of actor {target!r}")

    def opened(self, response: bytes) -> Any:
        """Decode the response to a call of a method. Return the method's result, or raise the method's error."""
        is_well, *values = unpacked(response, self._names)
        if is_well:
            return values[0]
        lines, error = values
        raise load_ray().exceptions.RayTaskError("", lines, error).as_instanceof_cause()

    def changed(self, value: object) -> None:
        """Declare that the calling method must not be rerun, as described for the module's function `changed`."""
        run = METHOD.get()
        if run is None or self._kept.is_threaded or self._member is None:
            raise UsageError(
                "changed() is for async methods: one that waits in ray.get is run again from its beginning, where its object is as it was"
            )
        self._member.changed(Outcome(value))


class ServedByRay:
    """Replacement for gRPC's context object. The object collects the data that the handling of a call sets in addition to the response.

    Attributes:
        stamp: stamp of the answer, or empty if the answer has no stamp.
    """

    stamp = b""

    def code(self) -> None:
        """Return None, because actor methods do not set a status code."""

    def set_trailing_metadata(self, trailing: Any) -> None:
        """Store the stamp that the trailing metadata contains."""
        self.stamp = dict(trailing).get(ANSWER_KEY, b"")

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing: Any = ()) -> None:
        """Abort the call by raising AbortedHandlerError, as gRPC's method does."""
        self.set_trailing_metadata(trailing)
        raise AbortedHandlerError(code.value[0], details)


_here: list[MemberActor] = []


def here() -> MemberActor | None:
    """Return the member in this process, or None if this process does not run an actor of a fleet."""
    return _here[0] if _here else None


def changed(value: object = None) -> None:
    """Declare that the calling async method must not be rerun after a recovery.

    Call this function atomically with the change of the object's state, and before making further calls.

    `value` is the result that the method's caller receives if the fleet recovers from a cut taken before the method ends.

    Raises:
        DivergedCallError: the rerun method made fewer calls than its first run.
        UsageError: the caller is not an async method of an actor in a fleet.
    """
    actor = here()
    if actor is None:
        raise UsageError("changed() is for methods of actors of a fleet")
    actor.changed(value)


def through_fleet(invocation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Wrap the function with which Ray calls an actor's method, so that calls made by a member pass through the fleet. Ray calls this
    wrapper in any process that uses the actor (`__ray_invocation_decorator__`)."""

    def invoked(args: Any, kwargs: Any) -> Any:
        actor = here()
        return invocation(args, kwargs) if actor is None else actor.called(invocation, args, kwargs)

    return invoked


def _begun(actor: Any) -> None:
    """Call the process's own actor to start its member, and repeat the call until it is answered. While Ray restarts an actor, it loses
    even calls from the actor's own process."""
    ray = load_ray()
    while True:
        try:
            ray.get(actor._snapline_begin.remote(), timeout=BEGIN_S)
            return
        except ray.exceptions.RayTaskError:  # the member cannot be started, and callers will get the error
            return
        except ray.exceptions.RayError:
            time.sleep(BEGIN_AGAIN_S)


def _variables(invocation: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """Return the closure variables of the function with which Ray calls an actor's method. The variables contain the method as `self`, and
    the options of the call."""
    cells = invocation.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(invocation.__code__.co_freevars, cells, strict=True)}


def _as_it_is(value: Any) -> Any:
    return value


def _check_name(name: str, fleet: Fleet) -> None:
    if not name:
        raise UsageError(
            f"an actor of fleet {fleet.name!r} has a name, which is its agent's: write .options(name=…).remote(…)"
        )
    if not isinstance(fleet.agents.get(name), ServiceAgent):
        raise UsageError(
            f"actor {name!r} is no actor of fleet {fleet.name!r}, which has {', '.join(sorted(fleet.agents))}: name it in actor_fleet(…)"
        )


def actor_fleet(name: str, actors: Iterable[str], **options: Any) -> Fleet:
    """Return the definition of a fleet of Ray actors with the given names. `options` are additional arguments of `snapline.Fleet`, such as
    `triggers`.

    Raises:
        FleetDefinitionError: the definition is invalid.
    """
    names = list(actors)
    return Fleet(
        name, agents={actor: ServiceAgent() for actor in names}, place={actor: actor for actor in names}, **options
    )


def in_fleet(fleet: Fleet, *, coordinator: str, store: str, security: Security | None = None) -> Callable[[type], type]:
    """Return a decorator for a class whose actors become part of this fleet's cuts and roll back with the fleet. Put the decorator directly
    beneath `@ray.remote`.

    An actor's name in Ray must be the id of its agent. Ray still creates, calls, restarts and kills the actors as usual.

    Args:
        fleet: definition of the fleet, which must be identical for all its actors. Each agent must be a `ServiceAgent` that is placed on a
            host with the agent's id as its name.
        coordinator, store: as for the command `snapline host run`.
        security: security options, as for a host. If None, all processes must run on the same machine.

    Raises:
        UsageError: the decorated object is not a plain class, or the class has a method that cannot be included in a cut.
    """
    terms = FleetTerms(fleet, coordinator, store, security)
    if not any(isinstance(agent, ServiceAgent) for agent in fleet.agents.values()):
        raise UsageError(f"fleet {fleet.name!r} has no ServiceAgent that could stand for an actor: see actor_fleet(…)")

    def decorated(kind: type) -> type:
        if not isinstance(kind, type):
            raise UsageError(f"place @in_fleet beneath @ray.remote, directly above the class; it was given {kind!r}")
        return _joined(kind, terms)

    return decorated


def _joined(kind: type, terms: FleetTerms) -> type:
    """Return the class that replaces the user's class in Ray. Each object of this class contains a member, which contains the user's
    object."""

    constructor: Any = kind.__init__  # type: ignore[misc]  # the constructor of this class

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        self._snapline = MemberActor(terms, lambda: kind(*args, **kwargs))

    async def _snapline_begin(self: Any) -> None:
        self._snapline.begin()

    async def _snapline_serve(self: Any, stamp: bytes, method: str, request: bytes) -> Served:
        served: Served = await self._snapline.serve(stamp, method, request)
        return served

    async def _snapline_forget(self: Any, plan: int, ids: list[str]) -> None:
        await self._snapline.forget(plan, ids)

    inside = {
        "__init__": _as(constructor, __init__),
        "_snapline_begin": _snapline_begin,
        "_snapline_forget": _snapline_forget,
        "_snapline_serve": _snapline_serve,
    }
    methods = {name: _entered(name, function) for name, function in _methods_of(kind)}
    about = {"__doc__": kind.__doc__, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (), {**methods, **inside, **about})


def _methods_of(kind: type) -> Iterable[tuple[str, Callable[..., Any]]]:
    """Yield the name and the function of each method that callers outside the class can call.

    Raises:
        UsageError: one of the methods cannot be included in a cut.
    """
    for name, function in inspect.getmembers(kind, inspect.isroutine):
        if name.startswith("_") and name != "__call__":
            continue
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(
                f"method {name!r} of {kind.__qualname__} is a generator: a call within a fleet has one answer. Return a list"
            )
        if hasattr(function, "__ray_concurrency_group__"):
            raise UsageError(
                f"method {name!r} of {kind.__qualname__} has a concurrency group: what changes an actor runs in one event loop, or one thread"
            )
        if name != "__call__" or inspect.isfunction(function):
            yield name, function


def _entered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    async def entered(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._snapline.serve_external(name, args, kwargs)

    entered.__ray_invocation_decorator__ = through_fleet  # type: ignore[attr-defined]  # Ray's hook
    return _as(function, entered)


def _as(function: Callable[..., Any], made: Callable[..., Any]) -> Callable[..., Any]:
    """Copy the name and signature of the user's function to `made`, without setting `__wrapped__`.

    If `__wrapped__` were set, Ray would modify the user's function.
    """
    functools.update_wrapper(made, function)
    made.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]  # as inspect says
    del made.__wrapped__  # type: ignore[attr-defined]  # of update_wrapper
    return made
