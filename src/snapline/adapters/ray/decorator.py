"""`in_fleet`: decorator that includes a class of plain Ray actors in the cuts of a fleet.

@ray.remote(max_restarts=-1)
@in_fleet(banks, coordinator="10.0.0.5:7700", store="/shared/banks")
class Bank: …
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from snapline.adapters.grpc.service_agent import ServiceAgent
from snapline.adapters.ray.actor_channel import Served
from snapline.adapters.ray.member_actor import FleetTerms, MemberActor, through_fleet
from snapline.agent_runtime.fleet import Fleet
from snapline.errors import UsageError
from snapline.security.transport import Security


def actor_fleet(name: str, actors: Iterable[str], **options: Any) -> Fleet:
    """Return a fleet of Ray actors with these names. `options`: options of `snapline.Fleet`, such as `triggers`.

    Raises:
        FleetDefinitionError: the definition is invalid.
    """
    names = list(actors)
    return Fleet(
        name, agents={actor: ServiceAgent() for actor in names}, place={actor: actor for actor in names}, **options
    )


def in_fleet(fleet: Fleet, *, coordinator: str, store: str, security: Security | None = None) -> Callable[[type], type]:
    """Make a class whose actors are part of this fleet's cuts and roll back with it. Apply it beneath `@ray.remote`.

    An actor's Ray name is its agent's id. Ray still creates, calls, restarts and kills it.

    Args:
        fleet: the same fleet for all its actors; their agents are `ServiceAgent`s, each placed on a host of its name.
        coordinator, store: as for `snapline host run`.
        security: as for a host; without it everything runs on one machine.

    Raises:
        UsageError: the decorated object is no plain class, or has a method that a cut cannot hold.
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
    """Return the class that is passed to Ray. Its objects hold the member, which holds the user's object."""

    constructor: Any = kind.__init__  # type: ignore[misc]  # of this very class

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
    """Yield the methods that can be called from outside.

    Raises:
        UsageError: a cut cannot hold one of them.
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
    """Copy the name and signature of the user's function, but no `__wrapped__`: Ray would follow it and change the user's function."""
    functools.update_wrapper(made, function)
    made.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]  # as inspect says
    del made.__wrapped__  # type: ignore[attr-defined]  # of update_wrapper
    return made
