"""Encodes the arguments, answers and states of actors.

Values that JSON reproduces exactly are encoded in JSON. All other values are pickled in the same way as in Ray.

Handles of the fleet's actors are stored as names, since a restarted actor gets a new id in Ray (`ActorNames`). Decoding returns a handle of
the actor that currently has that name. In JSON, a handle is encoded as {"ray actor": name}.
"""

import contextlib
import io
import json
import math
import pickle
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any

from snapline.deploy.ray_cluster import load_ray
from snapline.errors import EncodingError


class ActorNames:
    """The actors of one fleet, in the namespace of this process's Ray job. Handles that were looked up in Ray are cached."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._handles: dict[str, Any] = {}
        self._known: dict[Any, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def handle(self, name: str) -> Any:
        """Return a handle of this actor.

        Raises:
            ValueError: there is currently no actor with this name.
        """
        handle = self._handles.get(name)
        if handle is None:
            handle = self._handles[name] = load_ray().get_actor(name)
            self._known[handle._actor_id] = name
        return handle

    def forget(self, name: str) -> None:
        """Remove the cached handle of an actor that could not be reached, because a new actor may get its name."""
        self._handles.pop(name, None)

    def renew(self) -> None:
        """Remove all cached handles after a recovery, so that they are looked up again. Handles of former actors still map to their
        names."""
        self._handles.clear()

    def name_of(self, handle: Any) -> str | None:
        """Return the name of the handle's actor, or None if the actor does not belong to the fleet."""
        actor_id = handle._actor_id
        if actor_id not in self._known:
            for name in self._names:
                self._look(name)
        return self._known.get(actor_id)

    def _look(self, name: str) -> None:
        with contextlib.suppress(ValueError):  # the actor does not currently exist
            self._known[load_ray().get_actor(name)._actor_id] = name


PICKLE_MARK = b"\x80"
"""First byte of a pickle. No JSON text begins with this byte."""

ACTOR = "ray actor"
"""Key that marks a handle in JSON. If a user's dictionary contains this key, it is pickled."""


class NotCapturable:
    """Base class of objects that belong to this process and cannot be captured. `unkeepable` is the text of the error for such an object,
    which explains how to proceed."""

    unkeepable = ""


def packed(value: object, names: ActorNames, *, is_compared: bool = False) -> bytes:
    """Encode a value.

    `is_compared` means that equal values should have equal encodings in every process. Pickles do not guarantee this completely, because
    shared strings and the order of sets depend on the process.

    Raises:
        EncodingError: the value contains an object that cannot be saved.
    """
    if is_tree(value, set()):
        return json.dumps(value, separators=(",", ":"), default=lambda handle: {ACTOR: _name(handle, names)}).encode()
    try:
        return _pickled(value, names, is_compared=is_compared)
    except EncodingError:
        raise
    except Exception as error:  # a user's class may raise anything
        raise EncodingError(f"{type(value).__qualname__}: {error}") from error


def packed_state(state: object, names: ActorNames, actor: str) -> bytes:
    """Encode the state of an actor's object, which is the result of `__getstate__`.

    Raises:
        EncodingError: the state cannot be saved. The error names the attribute.
    """
    try:
        return packed(state, names)
    except EncodingError as error:
        _blame(state, names, actor)
        raise EncodingError(f"the state of actor {actor!r} cannot be kept: {error}") from error


def _blame(state: object, names: ActorNames, actor: str) -> None:
    for name, value in (state if isinstance(state, dict) else {}).items():
        try:
            packed(value, names)
        except EncodingError as error:
            raise EncodingError(
                f"attribute {name!r} of actor {actor!r} cannot be kept: {error}. Leave it out in __getstate__, and make it anew in __setstate__"
            ) from error


def unpacked(payload: bytes, names: ActorNames) -> Any:
    """Decode a value. If it is pickled, decoding may execute code."""
    if not payload.startswith(PICKLE_MARK):
        if ACTOR.encode() not in payload:
            return json.loads(payload)
        return json.loads(payload, object_hook=lambda each: names.handle(each[ACTOR]) if ACTOR in each else each)
    unpickler = _pickling()[1](io.BytesIO(payload))
    unpickler.names = names
    return unpickler.load()


def is_tree(value: object, seen: set[int]) -> bool:
    """Return whether JSON reproduces the value exactly. Handles of actors count as values that it reproduces.

    For example, JSON does not if the same list occurs in two places, since decoding would yield two lists.
    """
    kind = type(value)
    if value is None or kind is str or kind is int or kind is bool:
        return True
    if kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]  # a float, by the line above
    if id(value) in seen:
        return kind is _handle_type()
    seen.add(id(value))
    if isinstance(value, list) and kind is list:
        return all(is_tree(inner, seen) for inner in value)
    if isinstance(value, dict) and kind is dict:
        return all(type(key) is str and key != ACTOR and is_tree(inner, seen) for key, inner in value.items())
    return kind is _handle_type()


@cache
def _handle_type() -> type:
    kind: type = import_module("ray.actor").ActorHandle
    return kind


def _name(handle: Any, names: ActorNames) -> str:
    name = names.name_of(handle)
    if name is None:
        raise EncodingError(f"{handle!r} is not of the fleet: keep its name, and use ray.get_actor")
    return name


def _pickled(value: object, names: ActorNames, *, is_compared: bool) -> bytes:
    for is_fast in (True, False) if is_compared else (False,):
        buffer = io.BytesIO()
        pickler = _pickling()[0](buffer)
        pickler.names, pickler.is_compared, pickler.fast = names, is_compared, is_fast
        try:
            pickler.dump(value)
            return buffer.getvalue()
        except (ValueError, RecursionError) as error:  # without a memo, cycles cannot be pickled
            if isinstance(error, EncodingError) or not is_fast:
                raise
    raise AssertionError("the last way returns or raises")


@cache
def _pickling() -> tuple[Any, Any]:
    """Return a pickler class and an unpickler class that work like Ray's, except that they store actors by name. Ray is imported on
    demand."""
    ray = load_ray()
    base: Any = import_module("ray.cloudpickle").CloudPickler

    class ByName(base):
        names: ActorNames
        is_compared = False

        def persistent_id(self, obj: object) -> object:
            if isinstance(obj, _handle_type()):
                return ["actor", _name(obj, self.names)]
            if isinstance(obj, ray.ObjectRef):
                raise EncodingError(f"{obj!r} is of this run of Ray: give, or keep, the value that it stands for")
            if isinstance(obj, NotCapturable):
                raise EncodingError(obj.unkeepable)
            if self.is_compared and isinstance(obj, set | frozenset) and type(obj) in (set, frozenset):
                return [type(obj).__name__, sorted(packed(each, self.names, is_compared=True) for each in obj)]
            return None

    class FromNames(pickle.Unpickler):
        names: ActorNames

        def persistent_load(self, pid: Any) -> Any:
            kind, given = pid
            if kind == "actor":
                return self.names.handle(given)
            return {"set": set, "frozenset": frozenset}[kind](unpacked(each, self.names) for each in given)

    return ByName, FromNames
