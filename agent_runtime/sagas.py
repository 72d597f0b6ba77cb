"""Effects from the handlers' side: checks, compensations, and sagas. This module does no I/O.

A compensation may run in another process, after a recovery, long after its handler has ended. So it is stored as `module:function`, with encoded
arguments, which are decoded as the function declares them. The message of the turn that runs compensations contains both.

Names are read from the store, and a writer of the store must not be able to call arbitrary Python functions. So names are looked up in the fleet's
own modules only: the packages of its agents' classes, and those that `Fleet(compensation_modules=…)` lists.
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
"""Largest size of one compensation's arguments. The arguments are in the agent's checkpoints until its turn ends, and in the ledger."""


def reference_of(effect: str, compensate: Sequence[Any], own: Sequence[str]) -> tuple[str, list[bytes]]:
    """Return a compensation `(function, *args)` in stored form: `"module:function"`, and its arguments. `own`: see `fleet.own_modules`.

    Raises:
        UsageError: another process could not find the function, or it is in none of these modules.
        EncodingError: an argument cannot be encoded.
        MessageTooLargeError: the total size of the arguments is too large.
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
    """Return the compensation with its arguments, to be called with its key. A compensation that is missing, or not in `own`, raises when called."""
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


def _is_own(module: str, own: Sequence[str]) -> bool:
    return any(module == own_module or module.startswith(f"{own_module}.") for own_module in own)


def _found(module: str, name: str, own: Sequence[str]) -> Callable[..., Any] | None:
    """Return the function that is defined in that module; functions imported from other modules do not count."""
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
    """Return the declared types of the function's positional parameters, with Any for further arguments."""
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
"""Longest time that one call may take: a day. After a recovery a probe waits for this time."""


class EffectOptions(msgspec.Struct, frozen=True):
    """Options of `ctx.effect` besides name, function and arguments."""

    key: str
    compensate: tuple[Any, ...] | None
    probe: Callable[..., Any] | None
    timeout_s: float
    waits_s: tuple[float, ...]
    repeatable: bool


UNDO_OPTIONS = EffectOptions("", None, None, 30.0, (1.0, 5.0, 30.0), True)
"""Options of compensations: users cannot set them, and compensations must not fail easily."""


def do_nothing(*, key: str) -> None:
    """Do nothing: reaching this point is all that was requested."""


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
    """Check a requested effect, and return its work.

    Raises:
        UsageError: an option or the function is not valid for an effect.
        EncodingError: the effect's arguments cannot be encoded.
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
    """Return the work of an effect's compensation; `function` is bound to its arguments."""
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
    """Return the outcome of an effect from the journal.

    Raises:
        EffectFailedError: the effect's function raised each time.
        UsageError: the key belongs to another effect.
        EncodingError: the result does not have the type that the function declares.
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
    """A block of a durable turn whose effects are all done, or all undone. Made by `ctx.saga`.

    `undo` runs the compensation of one effect. Effects of a completed inner block are undone with the outer block.
    """

    def __init__(self, name: str, open_sagas: "list[Saga]", undo: Callable[[MadeEffect], Awaitable[None]]) -> None:
        self.name = name
        self._open = open_sagas
        self._undo = undo
        self._made: list[MadeEffect] = []

    def add(self, made: MadeEffect) -> None:
        """Add an effect of this block that was done, or that has failed and may have been done."""
        self._made.append(made)

    async def __aenter__(self) -> Self:
        if self in self._open:
            raise UsageError(f"saga {self.name!r} is open already: make one for each block with ctx.saga")
        self._made = []  # effects of an earlier use of this block are kept
        self._open.append(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.remove(self)
        if error is None and self._open:
            self._open[-1]._made.extend(self._made)
        # The handler itself cancels, and may catch the cancellation outside the block. Ending the handler is not a
        # failure of the block.
        if isinstance(error, Exception | asyncio.CancelledError) and not isinstance(error, DivergenceError):
            await self._undo_all(error)

    async def _undo_all(self, error: BaseException) -> None:
        for effect in reversed(self._made):
            try:
                await self._undo(effect)
            except EffectFailedError as failed:
                with contextlib.suppress(TypeError, AttributeError):  # no note can be added to the error
                    error.add_note(f"saga {self.name!r}: {failed}")


def not_undone(failed: Sequence[tuple[MadeEffect, EffectFailedError]]) -> str:
    """Return the names of the effects whose compensations failed."""
    details = "; ".join(
        [f"{effect.name!r} (key {effect.key}): {error.error}: {error.reason}" for effect, error in failed]
    )
    return f"not undone: {details}. Retry this dead letter to try these again"
