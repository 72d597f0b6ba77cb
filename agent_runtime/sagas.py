"""Implements the effects that handlers request: checks, compensations and sagas. This module does no I/O.

A compensation may run in another process after a recovery, long after its handler has ended. So the compensation is stored as
`module:function` with encoded arguments. The arguments are decoded as the types that the function declares.

The stored name is untrusted: anyone who can write to the store must not be able to call arbitrary Python functions. So names are looked up
only in the fleet's own modules. These modules are the packages of the fleet's agent classes and the modules listed in
`Fleet(compensation_modules=…)`.
"""

import asyncio
import contextlib
import functools
import importlib
import inspect
import sys
import typing
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from snapline.agent_runtime.durable import (
    FAILED,
    REFUSED,
    EffectIntent,
    EffectWork,
    TurnJournal,
    argument_digest,
    encode_argument,
    read_result,
)
from snapline.agent_runtime.message_encoding import message_decoder
from snapline.errors import DivergenceError, EffectFailedError, MessageTooLargeError, UsageError
from snapline.messages.effect_records import readable
from snapline.storage.packs.checkpoint import JournalEntry, MadeEffect

ARGUMENTS_BYTES_MAX = 64 * 1024
"""Largest total size of one compensation's arguments. They are kept in the agent's checkpoints until the turn ends, and in the ledger."""


def reference_of(effect: str, compensate: Sequence[Any], own: Sequence[str]) -> tuple[str, list[bytes]]:
    """Return a compensation `(function, *args)` in stored form: `"module:function"` and the encoded arguments. `own` is the result of
    `fleet.own_modules`.

    Raises:
        UsageError: If another process could not find the function, or none of the modules in `own` defines it.
        EncodingError: If an argument cannot be encoded.
        MessageTooLargeError: If the arguments together are too large.
    """
    if not isinstance(compensate, tuple) or not compensate or not callable(compensate[0]):
        raise UsageError(f"compensate of effect {effect!r} is {compensate!r}: give (function, *arguments)")
    function, *arguments = compensate
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__qualname__", "")
    if module and not _is_own(module, own):
        raise UsageError(
            f"compensate of effect {effect!r} is a function of module {module}, which is in no package of this agent's class: name the module in "
            "Fleet(compensation_modules=[…])"
        )
    if _found(module, name, own) is not function:
        raise UsageError(
            f"compensate of effect {effect!r} is {function!r}, and must be a function at the top of a module: it may have to run after a "
            "recovery, in another process, which finds it by its name"
        )
    kinds = _types_of(function, len(arguments))
    encoded = [encode_argument(effect, argument, kind) for argument, kind in zip(arguments, kinds, strict=False)]
    size_bytes = sum([len(argument) for argument in encoded])
    if size_bytes > ARGUMENTS_BYTES_MAX:
        raise MessageTooLargeError(
            f"the arguments of the compensation of effect {effect!r} take {size_bytes:,} bytes, the limit is {ARGUMENTS_BYTES_MAX:,}: put "
            "what is large into shared storage, and give its name"
        )
    return f"{module}:{name}", encoded


def load_undo(effect: str, reference: str, arguments: Sequence[bytes], own: Sequence[str]) -> Callable[..., Any]:
    """Return the compensation bound to its arguments. The caller of the result passes only `key`. If the function is missing or not in
    `own`, calling the result raises UsageError."""
    module, _, name = reference.partition(":")
    if module and not _is_own(module, own):
        return functools.partial(_foreign, effect, reference)
    function = _found(module, name, own)
    if function is None:
        return functools.partial(_gone, effect, reference)
    try:
        return functools.partial(function, *_arguments_of(function, arguments))
    except Exception as error:  # the arguments' own classes may raise anything
        return functools.partial(_unreadable, effect, reference, str(error))


def undo_error(effect: str, reference: str, arguments: Sequence[bytes], own: Sequence[str]) -> str:
    """Return why `load_undo` finds no compensation that could be called, or "". Nothing is called."""
    loaded = load_undo(effect, reference, arguments, own)
    if not isinstance(loaded, functools.partial) or loaded.func not in (_foreign, _gone, _unreadable):
        return ""
    try:
        loaded(key="")
    except UsageError as error:
        return str(error)
    return ""


def _is_own(module: str, own: Sequence[str]) -> bool:
    return any(module == own_module or module.startswith(f"{own_module}.") for own_module in own)


def _found(module: str, name: str, own: Sequence[str]) -> Callable[..., Any] | None:
    """Return the function with this name if the module itself defines it, otherwise None."""
    if not _is_own(module, own) or not name.isidentifier():
        return None
    try:
        function = getattr(sys.modules.get(module) or importlib.import_module(module), name, None)
    except Exception:  # importing a module may raise anything
        return None
    is_its = (getattr(function, "__module__", ""), getattr(function, "__qualname__", "")) == (module, name)
    return function if callable(function) and is_its else None


def _arguments_of(function: Callable[..., Any], arguments: Sequence[bytes]) -> list[object]:
    kinds = _types_of(function, len(arguments))
    return [message_decoder(kind).decode(argument) for kind, argument in zip(kinds, arguments, strict=False)]


def _types_of(function: Callable[..., Any] | None, count: int) -> list[Any]:
    """Return the declared types of the function's positional parameters, followed by Any for each further argument."""
    if function is None:
        return [Any] * count
    try:
        declared = [
            parameter for parameter in inspect.signature(function).parameters.values() if parameter.kind in _POSITIONAL
        ]
    except (TypeError, ValueError):  # a builtin without a signature
        declared = []
    hints = _hints_of(function)
    return [hints.get(parameter.name, Any) for parameter in declared] + [Any] * count


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # evaluating an annotation may raise anything
        return {}


def _gone(effect: str, reference: str, *, key: str) -> None:
    raise UsageError(
        f"effect {effect!r} is undone by {reference}, and there is no such function any more: bring it back, and retry"
    )


def _foreign(effect: str, reference: str, *, key: str) -> None:
    raise UsageError(
        f"effect {effect!r} is undone by {reference}, which is in no package of the agent's class, and nothing else is called: if it is yours, name "
        "its module in Fleet(compensation_modules=[…]), and retry"
    )


def _unreadable(effect: str, reference: str, reason: str, *, key: str) -> None:
    raise UsageError(
        f"effect {effect!r} is undone by {reference}, which does not take the arguments that were kept: {reason}"
    )


KEY_CHARACTERS_MAX = 256

_ENDINGS = ("/undo",)

CALL_S_MAX = 86_400.0
"""Largest `timeout_s` of an effect: one day. After a recovery a probe waits until the timeout of the earlier call has passed."""


class EffectOptions(msgspec.Struct, frozen=True):
    """The parameters of `ctx.effect` other than name, function and arguments."""

    key: str
    compensate: tuple[Any, ...] | None
    probe: Callable[..., Any] | None
    timeout_s: float
    waits_s: tuple[float, ...]
    repeatable: bool


UNDO_OPTIONS = EffectOptions("", None, None, 30.0, (1.0, 5.0, 30.0), True)
"""Options for all compensations, with several retries, since a compensation should fail only if nothing else helps. Users cannot set
them."""


def do_nothing(*, key: str) -> None:
    """Do nothing. `ctx.before_risk` uses this function because it needs only the wait that precedes an effect."""


def effect_work(
    journal: TurnJournal,
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: EffectOptions,
    *,
    asked_ns: int,
    saga: str,
) -> EffectWork:
    """Check a requested effect, and return the work that performs it.

    Raises:
        UsageError: If an option is invalid, or the function cannot be used for an effect.
        EncodingError: If the effect's arguments cannot be encoded.
    """
    _check(journal, name, options)
    compensate, own_modules = options.compensate, journal.own_modules
    undo, undo_arguments = reference_of(name, compensate, own_modules) if compensate is not None else ("", [])
    digest = argument_digest(name, (name, options.key, args))
    intent = EffectIntent(
        options.key or f"@{journal.effect_id(digest).hex()}",
        readable(args),
        asked_ns,
        undo,
        undo_arguments,
        saga=saga[:KEY_CHARACTERS_MAX],
        timeout_s=float(options.timeout_s),
        has_probe=options.probe is not None,
        is_repeatable=bool(options.repeatable),
    )
    probe = functools.partial(options.probe, *args) if options.probe is not None else None
    return EffectWork(functools.partial(function, *args), digest, intent, probe, options.timeout_s, options.waits_s)


def _check(journal: TurnJournal, name: str, options: EffectOptions) -> None:
    key = options.key
    if not journal.takes_effects:
        raise UsageError(
            f"effect {name!r} cannot be: the store overwrites objects, and an effect must be said in it before it is called. Use a store that "
            "creates objects only once"
        )
    if not 0 < len(name) <= KEY_CHARACTERS_MAX:
        raise UsageError(
            f"an effect is named by a text of 1 to {KEY_CHARACTERS_MAX} characters, this one by {name[:40]!r}"
        )
    if not isinstance(key, str) or len(key) > KEY_CHARACTERS_MAX or not (key + "x").isprintable():
        raise UsageError(
            f"key {key!r} of effect {name!r}: use a text of up to {KEY_CHARACTERS_MAX} printable characters"
        )
    if key.startswith("@") or "#" in key or key.endswith(_ENDINGS):
        raise UsageError(
            f"key {key!r} of effect {name!r} begins with '@', holds '#' or ends with '/undo': those are the runtime's"
        )
    if not 0 < options.timeout_s <= CALL_S_MAX:
        raise UsageError(
            f"timeout_s of effect {name!r} is {options.timeout_s}: a call takes more than 0 and up to {CALL_S_MAX:g} seconds"
        )
    if not options.repeatable and options.waits_s:
        raise UsageError(f"effect {name!r} is not repeatable, and has retries: leave one of them")


def undo_work(made: MadeEffect, function: Callable[..., Any], asked_ns: int, saga: str) -> EffectWork:
    """Return the work that compensates an effect. `function` must already be bound to its arguments."""
    intent = EffectIntent(
        made.key,
        f"{made.undo}({readable(function.args) if isinstance(function, functools.partial) else ''})",
        asked_ns,
        is_undo=True,
        generation=made.generation,
        saga=saga[:KEY_CHARACTERS_MAX],
        timeout_s=UNDO_OPTIONS.timeout_s,
    )
    digest = argument_digest(made.name, (made.name, made.key, made.undo, made.undo_arguments))
    return EffectWork(function, digest, intent, None, UNDO_OPTIONS.timeout_s, UNDO_OPTIONS.waits_s)


def read_outcome(
    name: str, key: str, entry: JournalEntry, function: Callable[..., Any]
) -> Any:  # the function's own result
    """Return the result of an effect from its journal entry.

    Raises:
        EffectFailedError: If every call of the effect's function raised an error.
        UsageError: If the key belongs to another effect.
        EncodingError: If the result does not have the type that the function declares.
    """
    if entry.outcome == REFUSED:
        raise UsageError(entry.result.decode())
    if entry.outcome == FAILED:
        error, reason = msgspec.msgpack.decode(entry.result, type=tuple[str, str])
        raise EffectFailedError(
            f"effect {name!r} failed: {error}: {reason}", step=name, error=error, reason=reason, key=key
        )
    return read_result(name, entry, function)


class Saga:
    """A block of a durable turn whose effects are either all performed or all undone. `ctx.saga` creates it.

    `undo` runs the compensation of one effect. If an outer block fails, the effects of its completed inner blocks are undone too.
    """

    def __init__(
        self,
        name: str,
        journal: TurnJournal,
        open_sagas: "list[Saga]",
        undo: Callable[[MadeEffect], Awaitable[None]],
    ) -> None:
        self.name = name
        self._journal = journal
        self._open = open_sagas
        self._undo = undo
        self._made: list[MadeEffect] = []

    def add(self, made: MadeEffect) -> None:
        """Add an effect that this block has performed or, if the effect failed, may have performed."""
        self._made.append(made)

    async def __aenter__(self) -> Self:
        if self in self._open:
            raise UsageError(f"saga {self.name!r} is open already: make one for each block with ctx.saga")
        if self._journal.grouped is not None:
            raise UsageError("a member of a group has no saga in it: open the saga around the group")
        self._made = []  # an earlier use has completed, so its effects are not undone
        self._open.append(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.remove(self)
        if error is None and self._open:
            self._open[-1]._made.extend(self._made)
        # A cancellation counts as a failure, since it comes from the handler, which may catch it outside the block. If the runtime ends the
        # handler, the block has not failed.
        if isinstance(error, Exception | asyncio.CancelledError) and not isinstance(error, DivergenceError):
            await self._undo_all(error)

    async def _undo_all(self, error: BaseException) -> None:
        for effect in reversed(self._made):
            try:
                await self._undo(effect)
            except EffectFailedError as failed:
                with contextlib.suppress(TypeError, AttributeError):  # errors of some classes accept no note
                    error.add_note(f"saga {self.name!r}: {failed}")


def not_undone(failed: Sequence[tuple[MadeEffect, EffectFailedError]]) -> str:
    """Return a message that names the effects whose compensations failed, with their errors."""
    details = "; ".join(
        [f"{effect.name!r} (key {effect.key}): {error.error}: {error.reason}" for effect, error in failed]
    )
    return f"not undone: {details}. Retry this dead letter to try these again"
