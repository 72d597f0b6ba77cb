"""Arguments, answers and states of actors as bytes. What JSON gives back as it was is JSON, everything else a pickle, as Ray makes them.

Actors of the fleet are kept by their names: the handle that comes out is of whoever bears the name then. In JSON a handle is {"ray actor": name}.
"""

import io
import json
import math
import pickle
from functools import cache
from importlib import import_module
from typing import Any

from snapline.adapters.ray.actor_names import ActorNames
from snapline.deploy.ray_cluster import load_ray
from snapline.errors import EncodingError

PICKLE_MARK = b"\x80"
"""First byte of a pickle, and of no text of JSON."""

ACTOR = "ray actor"
"""Key of a handle in JSON. A dictionary of the user's that has it is pickled."""


class NotCapturable:
    """Stand-in for something of this process, which says what to do with it instead of being kept."""

    unkeepable = ""


def packed(value: object, names: ActorNames, *, is_compared: bool = False) -> bytes:
    """A value as bytes. `is_compared`: equal values give equal bytes, in every process, as far as a pickle can: which strings are one object, and the order of sets,
    are of a process.

    Raises:
        EncodingError: it holds what cannot be kept.
    """
    if is_tree(value, set()):
        return json.dumps(value, separators=(",", ":"), default=lambda handle: {ACTOR: _name(handle, names)}).encode()
    try:
        return _pickled(value, names, is_compared=is_compared)
    except EncodingError:
        raise
    except Exception as error:  # whatever the value's class does
        raise EncodingError(f"{type(value).__qualname__}: {error}") from error


def packed_state(state: object, names: ActorNames, actor: str) -> bytes:
    """Return an actor's object, packed, as its `__getstate__` gives it.

    Raises:
        EncodingError: it cannot be kept; says which attribute.
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
    """Return the value again. It runs what a pickle says."""
    if not payload.startswith(PICKLE_MARK):
        if ACTOR.encode() not in payload:
            return json.loads(payload)
        return json.loads(payload, object_hook=lambda each: names.handle(each[ACTOR]) if ACTOR in each else each)
    unpickler = _pickling()[1](io.BytesIO(payload))
    unpickler.names = names
    return unpickler.load()


def is_tree(value: object, seen: set[int]) -> bool:
    """Return whether JSON gives it back as it was. What is in two places would come back as two."""
    kind = type(value)
    if value is None or kind is str or kind is int or kind is bool:
        return True
    if kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]  # a float, by the line above
    if id(value) in seen:
        return kind is _handle_type()
    seen.add(id(value))
    if isinstance(value, list) and kind is list:
        return all(is_tree(each, seen) for each in value)
    if isinstance(value, dict) and kind is dict:
        return all(type(key) is str and key != ACTOR and is_tree(each, seen) for key, each in value.items())
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
        except (ValueError, RecursionError) as error:  # without a memo nothing can hold itself
            if isinstance(error, EncodingError) or not is_fast:
                raise
    raise AssertionError("the last way returns or raises")


@cache
def _pickling() -> tuple[Any, Any]:
    """Classes that pickle and unpickle as Ray does, and know actors by name. Ray is loaded here, and not before."""
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
