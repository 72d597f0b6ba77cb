"""Base classes and decorators with which users define agents, messages and handlers.

An agent is a long-lived, stateful, single-threaded actor. An agent has one typed state object and handles one message at a time. The
effects of a message take place either all together or not at all: the message is consumed, the state changes, and outgoing messages are
sent.
"""

import dis
import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from types import FunctionType, NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, overload

import msgspec

from snapline.agent_runtime.guards import HandlerGuard, OnViolation, TurnOutput, handler_guard
from snapline.agent_runtime.message_encoding import (
    NAME_BYTES_MAX,
    field_names,
    message_decoder,
    message_head,
    message_name,
    state_decoder,
)
from snapline.errors import FleetDefinitionError

OnError = Literal["undo", "keep", "recover"]
UNDO_STATE_BYTES_MAX = 64 * 1024
"""Largest encoded state for which `on_error` defaults to "undo". A class with a larger state must set `on_error`."""

WAIT_S_MAX = 86_400.0
"""Longest wait before a message is retried: one day. Later messages to the same agent wait until the message has been retried."""

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

_Function = TypeVar("_Function", bound=Callable[..., Any])


@typing.dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Message(msgspec.Struct, frozen=True):
    """Base class of messages. Any msgspec.Struct or dataclass may also be sent as a message. Preferably it is frozen."""


@overload
def handler(function: _Function, /) -> _Function: ...


@overload
def handler(
    *,
    durable: bool = False,
    thread: bool = False,
    public: bool = False,
    guard: Callable[[Any, TurnOutput], str | None] | None = None,
    on_violation: OnViolation = "retry",
) -> Callable[[_Function], _Function]: ...


def handler(
    function: Any = None,
    /,
    *,
    durable: bool = False,
    thread: bool = False,
    public: bool = False,
    guard: Callable[[Any, TurnOutput], str | None] | None = None,
    on_violation: OnViolation = "retry",
) -> Any:
    """Mark a method as the handler for the message type with which its `message` parameter is annotated.

    If the annotation is a union (`message: Deposit | Withdrawal`), the method handles each type in the union. With `durable=True`, a turn
    of this handler may wait (`ctx.step`, `ctx.call`, `ctx.sleep`, `ctx.receive`). After a recovery, the turn continues where it stopped.

    All handlers on a host share its event loop, so if one handler blocks, all other agents on that host must wait. With `thread=True`, the
    handler runs in a thread and may block. An `async def` handler has its own event loop in that thread. The turn is atomic like any plain
    turn. Until the handler returns, the agent starts no other turn and takes no checkpoint, and no other code accesses its state.

    If a recovery undoes the turn while a threaded handler runs, the thread continues, but its state changes are discarded, and its context
    raises `UsageError`. External calls by the thread may therefore be repeated, as in any plain turn. Threaded handlers must use locks to
    access state that agents share, such as module globals.

    With `public=True`, the handler can also be called through the HTTP gateway (docs/gateway.md). Agents and `snapline.Client` can call
    every handler, whether public or not.

    With `guard=check`, `check(self, output)` returns why the turn must not pass on its `TurnOutput`, or None. A durable turn passes on
    messages at each wait, so its guard checks at each wait what has come since the wait before, and the rest at the end. The guard must be
    pure, and must not wait. A violation drops what was checked, and raises GuardViolationError at the wait or at the end of the handler. If
    the handler does not catch it, `on_violation` decides: "retry" is another attempt, up to `Agent.retries` (a plain turn is retried, a
    durable one begins again as with `ctx.restart_turn`), "escalate" makes the message a dead letter at once, and another handler
    `fallback(self, message, ctx)` takes over, with the state from before the turn. The guard checks the fallback too.

    Raises:
        FleetDefinitionError: If `durable` and `thread` are both set, because a durable turn makes its blocking calls with `ctx.step`; or if
            `guard` or `on_violation` is invalid.
    """
    if durable and thread:
        raise FleetDefinitionError(
            "a handler is durable or runs in a thread, not both: what blocks in a durable turn belongs in ctx.step"
        )
    kind = "durable" if durable else "thread" if thread else "plain"
    checked = handler_guard(guard, on_violation, is_durable=durable)
    if function is None:
        return functools.partial(_mark, kind=kind, is_public=public, guard=checked)
    return _mark(function, kind=kind, is_public=public, guard=checked)


def _mark(function: _Function, *, kind: str, is_public: bool, guard: HandlerGuard | None) -> _Function:
    function.__snapline_handler__ = kind, is_public, guard  # type: ignore[attr-defined]  # read back by _find_handlers
    return function


class Handler(msgspec.Struct, frozen=True):
    """One handler of an agent class."""

    name: str
    function: Callable[..., Any]
    message_type: type
    decoder: Any  # msgspec.msgpack.Decoder of message_type
    awaits: bool  # whether the handler's coroutine may suspend, and so needs its own task
    is_durable: bool = False
    is_threaded: bool = False
    is_public: bool = False
    guard: HandlerGuard | None = None


class AgentType(msgspec.Struct, frozen=True):
    """Facts about one agent class that the runtime found by inspection."""

    kind: str  # "module:Class"
    agent_class: type["Agent"]
    handlers: dict[str, Handler]  # by message name
    heads: dict[bytes, Handler]  # by the first bytes of the encoded message
    state_type: Any
    state_name: str
    state_fields: dict[str, str]
    state_decoder: Any
    state_reader: Any  # like `state_decoder`, but reads arrays as views, to check that an image can be decoded
    start_awaits: bool
    retries: int
    waits_ns: tuple[int, ...]  # waiting time before each retry; empty if retries do not wait


class Agent:
    """Base class of agents. Subclasses annotate `state` and mark handlers with `@snapline.handler`.

    Attributes:
        state: all data of the agent that checkpoints contain. The type must be a msgspec.Struct or dataclass, and may contain NumPy arrays.
            All other attributes of the instance are lost in a restart.
        on_error: treatment of the agent's state if a handler raises an error after changing the state. "undo", the default for states up to
            64 KiB, restores a copy taken before the turn. "keep" leaves the state as it is, and suits handlers that raise errors only
            before they change the state. "recover" treats the error as a crash of the agent, and suits states that are too large to be
            copied before every turn.
        allow_pickle: whether fields declared as `snapline.Pickled[...]` may be saved and loaded. Loading a pickle runs code that the pickle
            contains. Set this option only if nobody else can write to the store.
        capture: how the state is captured for a checkpoint. With "copy", arrays are copied and all other values are encoded, both between
            two turns. With "fork", a child process encodes the state while the agent continues. "fork" suits states with hundreds of
            thousands of small objects. "fork" differs from "copy" only in epochs of the protocol chandy-lamport.
        retries: maximum number of retries before a message becomes a dead letter. A number means that messages are retried without delay. A
            tuple such as `(0.5, 5, 60)` contains the delay in seconds before each retry. While a message waits for a retry, the agent
            handles no other message, but it can still take checkpoints. After a recovery, the message is retried immediately, and the retry
            count starts again from zero. With on_error = "recover", the time that the recovery takes is the only delay.
        state_version: version number of the state's format, 0 or more. Increase the version by one when the state's fields or their
            meanings change, and write a migration from the previous version (`snapline.migrates`). A subclass that sets `state_version` has
            its own sequence of version numbers.
    """

    on_error: ClassVar[OnError | None] = None
    retries: ClassVar[int | Sequence[float]] = 2
    allow_pickle: ClassVar[bool] = False
    capture: ClassVar[Literal["copy", "fork"]] = "copy"
    state_version: ClassVar[int] = 0
    state: Any

    def __init__(self, state: Any = None) -> None:
        self.state = state

    async def on_start(self, ctx: Any) -> None:
        """Run as the agent's first turn. If the agent is restored from a later checkpoint, this method is not run again."""


_types: dict[type[Agent], AgentType] = {}


def agent_type(agent_class: type[Agent]) -> AgentType:
    """Inspect an agent class, and return its description.

    Raises:
        FleetDefinitionError: If a handler has no message type, two handlers have the same message type, or the state's type cannot be
            saved.
    """
    known = _types.get(agent_class)
    if known is None:
        known = _types[agent_class] = _inspect(agent_class)
    return known


def state_version_of(agent_class: type[Agent]) -> int:
    """Return the `state_version` of an agent class after validating it.

    Raises:
        FleetDefinitionError: If `state_version` is not an integer, or is negative.
    """
    version: object = agent_class.state_version
    if type(version) is not int or version < 0:
        raise FleetDefinitionError(
            f"{agent_class.__qualname__}.state_version is {version!r}: use a whole number from 0 on"
        )
    return version


def kind_of(agent_class: type[Agent]) -> str:
    """Return the name by which checkpoints refer to an agent class."""
    return f"{agent_class.__module__}:{agent_class.__qualname__}"


def _inspect(agent_class: type[Agent]) -> AgentType:
    if agent_class.on_error not in (None, "undo", "keep", "recover"):
        raise FleetDefinitionError(
            f"{agent_class.__qualname__}.on_error is {agent_class.on_error!r}: use 'undo', 'keep' or 'recover'"
        )
    state_version_of(agent_class)
    state_type = _state_type(agent_class)
    try:
        decoder = reader = state_decoder(state_type, allow_pickle=agent_class.allow_pickle)
    except (TypeError, NameError) as error:
        raise FleetDefinitionError(f"the state of {agent_class.__qualname__} cannot be saved: {error}") from error
    _refuse_generator(agent_class, "on_start", agent_class.on_start)
    retries, waits_ns = _retries_of(agent_class)
    handlers = _find_handlers(agent_class)
    return AgentType(
        kind=kind_of(agent_class),
        agent_class=agent_class,
        handlers=handlers,
        heads={
            message_head(name): handler for name, handler in handlers.items() if len(name.encode()) <= NAME_BYTES_MAX
        },
        state_type=state_type,
        state_name=getattr(state_type, "__qualname__", str(state_type)),
        state_fields=_fields_of(state_type),
        state_decoder=decoder,
        state_reader=reader,
        start_awaits=_suspends(agent_class.on_start),
        retries=retries,
        waits_ns=waits_ns,
    )


def _retries_of(agent_class: type[Agent]) -> tuple[int, tuple[int, ...]]:
    """Return the maximum number of retries of a message, and the delay in nanoseconds before each retry."""
    retries: object = agent_class.retries
    if type(retries) is int and retries >= 0:
        return retries, ()
    if isinstance(retries, list | tuple) and all(_is_wait(wait_s) for wait_s in retries):
        return len(retries), tuple(round(wait_s * 1e9) for wait_s in retries)
    raise FleetDefinitionError(
        f"{agent_class.__qualname__}.retries is {retries!r}: use a number from 0 on, or the seconds to wait before each retry, "
        "such as (0.5, 5, 60)"
    )


def _is_wait(wait_s: object) -> bool:
    is_number = isinstance(wait_s, int | float) and not isinstance(wait_s, bool)
    return is_number and 0 <= wait_s <= WAIT_S_MAX  # type: ignore[operator]  # it is a number


def _state_type(agent_class: type[Agent]) -> Any:
    try:
        hints = typing.get_type_hints(agent_class)
    except NameError as error:
        raise FleetDefinitionError(
            f"the annotations of {agent_class.__qualname__} cannot be read ({error}): define its types at module level"
        ) from error
    declared = hints["state"]
    return None if declared is Any else declared


def _fields_of(state_type: Any) -> dict[str, str]:
    """Return the declared type of each field as text, so that an error message can compare two versions of a class."""
    try:
        hints = typing.get_type_hints(state_type) if isinstance(state_type, type) else None
    except (TypeError, NameError):
        hints = None
    if hints is None:  # such as dict[str, int], which Python 3.14 takes for a type without annotations
        return {"": str(state_type)}
    return {name: _type_text(hints[name]) for name in field_names(state_type) or hints}


def _type_text(declared: Any) -> str:
    if isinstance(declared, type) and not typing.get_args(declared):
        return declared.__qualname__
    return str(declared).replace("typing.", "")


def _find_handlers(agent_class: type[Agent]) -> dict[str, Handler]:
    handlers: dict[str, Handler] = {}
    for name, function in inspect.getmembers(agent_class, inspect.isfunction):
        kind, is_public, guard = getattr(function, "__snapline_handler__", ("", False, None))
        if not kind:
            continue
        is_durable, is_threaded = kind == "durable", kind == "thread"
        if is_durable:
            _check_durable(agent_class, name, function)
        if guard is not None and agent_class.on_error not in (None, "undo"):
            raise FleetDefinitionError(
                f"{agent_class.__qualname__}.{name} has a guard, and {agent_class.__qualname__}.on_error is {agent_class.on_error!r}: "
                "a violation undoes the turn, so leave on_error at 'undo'"
            )
        for message_type in _message_types(agent_class, name, function):
            other = handlers.get(message_name(message_type))
            if other is not None:
                raise FleetDefinitionError(
                    f"{agent_class.__qualname__} handles {message_type.__qualname__} twice, "
                    f"in {other.name} and {name}: keep one"
                )
            decoder = _decoder_of(agent_class, name, message_type)
            functions = [function, *([guard.fallback] if guard is not None and guard.fallback is not None else [])]
            awaits = is_durable or is_threaded or any(_suspends(each) for each in functions)
            handlers[message_name(message_type)] = Handler(
                name, function, message_type, decoder, awaits, is_durable, is_threaded, is_public, guard
            )
    return handlers


def _check_durable(agent_class: type[Agent], name: str, function: FunctionType) -> None:
    """Raise FleetDefinitionError if a handler cannot be durable. A durable turn is rerun from the state with which it started, which
    requires on_error = "undo"."""
    where = f"{agent_class.__qualname__}.{name}"
    if agent_class.on_error not in (None, "undo"):
        raise FleetDefinitionError(
            f"{where} is durable, and {agent_class.__qualname__}.on_error is {agent_class.on_error!r}: a durable turn is run again "
            "from the state that it began with, so leave on_error at 'undo'"
        )
    if not inspect.iscoroutinefunction(function):
        raise FleetDefinitionError(f"{where} is durable: write it `async def`")


def _decoder_of(agent_class: type[Agent], name: str, message_type: type) -> Any:
    try:
        return message_decoder(message_type)
    except (TypeError, NameError) as error:
        raise FleetDefinitionError(
            f"{agent_class.__qualname__}.{name} cannot take {message_type.__qualname__}: {error}"
        ) from error


def _refuse_generator(agent_class: type[Agent], name: str, function: Any) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise FleetDefinitionError(f"{agent_class.__qualname__}.{name} must not yield: send messages with ctx.send")


def _message_types(agent_class: type[Agent], name: str, function: FunctionType) -> tuple[type, ...]:
    """Return the message types that a handler accepts: one type, or all types of a union."""
    where = f"{agent_class.__qualname__}.{name}"
    _refuse_generator(agent_class, name, function)
    parameters = list(inspect.signature(function).parameters.values())
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise FleetDefinitionError(
            f"the annotations of {where} cannot be read ({error}): define message types at module level"
        ) from error
    annotation = hints.get(parameters[1].name) if len(parameters) == 3 else None
    is_union = typing.get_origin(annotation) in (typing.Union, UnionType)
    types = typing.get_args(annotation) if is_union else (annotation,)
    takes_them = all(parameter.kind in _BY_POSITION for parameter in parameters)
    if not takes_them or not all(isinstance(kind, type) and kind not in (Any, NoneType) for kind in types):
        raise FleetDefinitionError(
            f"{where} must be written `async def {name}(self, message: SomeMessage, ctx: snapline.Context)`, "
            "or with a union of message types"
        )
    return types


def _suspends(function: Any) -> bool:
    """Return whether a call of the function may return a coroutine that suspends.

    The bytecode of most handlers shows that they cannot suspend, so they need no task. For a plain function, the result is True, because
    the function may return another function's coroutine.
    """
    code = getattr(function, "__code__", None)
    if code is None or not code.co_flags & inspect.CO_COROUTINE:
        return True
    return any(
        instruction.opname in ("GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH")
        for instruction in dis.get_instructions(code)
    )
