"""Compensation of effects: references to compensations, and the message of the turn that runs them. No I/O.

A compensation may run in another process, after a recovery, long after its handler has ended. So it is stored as `module:function`, with encoded
arguments, which are decoded as the function declares them.

Names are read from the store, and a writer of the store must not be able to call arbitrary Python functions. So names are looked up in the fleet's
own modules only: the packages of its agents' classes, and those that `Fleet(compensation_modules=…)` lists.
"""

import functools
import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from snapline.agent_runtime.encoding import message_decoder
from snapline.agent_runtime.results import encode_argument
from snapline.errors import MessageTooLargeError, UsageError
from snapline.storage.packs.saved_effects import MadeEffect

UNDO = b"\x05@undo"
"""Head of the message, before the effects: no type can have this name."""

UNDO_NAME = "@undo"

ARGUMENTS_BYTES_MAX = 64 * 1024
"""Largest size of one compensation's arguments. They are in the agent's checkpoints until its turn ends, and in the ledger."""

_decoder = msgspec.msgpack.Decoder(list[MadeEffect])


def undo_payload(made: Sequence[MadeEffect]) -> bytes:
    """Return the message of the turn that undoes these, in this order."""
    return UNDO + msgspec.msgpack.encode(list(made))


def read_undo(body: bytes | memoryview) -> list[MadeEffect]:
    """Decode the effects to undo; `body`: the bytes behind the name. Raises msgspec.MsgspecError."""
    return _decoder.decode(body)


def reference_of(effect: str, compensate: Sequence[Any], own: Sequence[str]) -> tuple[str, list[bytes]]:
    """Return a compensation `(function, *args)` in stored form: `"module:function"`, and its arguments. `own`: see `fleet.own_modules`.

    Raises:
        UsageError: another process could not find the function, or it is in none of these modules.
        EncodingError: an argument cannot be encoded.
        MessageTooLargeError: the arguments are too large together.
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
    """Return the function that is defined there: a module's imports from elsewhere are not its own."""
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
    """Return the declared types of its positional parameters; Any for more arguments than those."""
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
