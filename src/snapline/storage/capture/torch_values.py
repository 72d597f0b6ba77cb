"""Converts a `state_dict()` of a model, an optimizer or a scheduler to plain data, and back.

Problem: such dictionaries are nested arbitrarily and have no declared types. MessagePack alone would restore a tuple as a list, and
one tensor under two names as two. So values that it cannot represent get a mark: a dict with the one key `""`.

    {"": ["tuple", [item, …]]}              {"": ["set", [item, …]]}, sorted
    {"": ["dict", [[key, value], …]]}       where a key is not text, or empty
    {"": ["counter", [[key, count], …]]}    collections.Counter
    {"": ["number", array]}                 a NumPy scalar, as an array without dimensions
    {"": ["same", [key, …]]}                the same tensor as the one at this path

Tensors, arrays and generators stay as they are, in the order of the dictionaries. So their order, and their place in the
list of parts, is the same at each capture as long as the dictionaries keep their order.

Invariants:

1. `unfold(fold(x))` equals x in types and values (an OrderedDict becomes a dict), or `fold` refuses x (G3).
2. A tensor is stored once and restored as one object, for any number of names in one section. A section is loaded
   as one piece: a tensor in two sections would be restored as two, so it is refused.
3. `same` contains a path, not a number, so that a migration may remove entries without shifting references to other tensors.
"""

import collections
import random
from typing import Any

import msgspec

from snapline.errors import EncodingError
from snapline.storage.capture import numpy_and_torch, values
from snapline.storage.capture.numpy_and_torch import numpy_if_loaded

MARK = ""
_ATOMS = frozenset({type(None), bool, int, float, str, bytes})

_Path = tuple[Any, ...]
_Memory = tuple[Any, ...]


class TensorPlaces:
    """Path of each tensor of a record, found by its memory: `state_dict()` makes new objects each time."""

    def __init__(self) -> None:
        self.distinct: list[Any] = []
        self._places: dict[_Memory, _Path] = {}

    def earlier(self, tensor: Any, path: _Path) -> _Path | None:
        """Return the known path of the tensor, or remember `path` and return None.

        Raises:
            NotImplementedError: the tensor is in another section, or cannot be saved.
        """
        numpy_and_torch.check_tensor(tensor)
        memory = memory_of(tensor)
        known = self._places.get(memory) if memory else None
        if known is None:
            self.distinct.append(tensor)
            if memory:
                self._places[memory] = path
        elif known[0] != path[0]:
            raise NotImplementedError(
                f"a tensor that stands both in {path_text(known)} and in {path_text(path)}, and would come back as two: "
                "keep a .clone() in one of them"
            )
        return known


def memory_of(tensor: Any) -> _Memory:
    """Return the identity of a tensor's memory, shape and strides; empty if it has no elements.

    Views of other shapes are different tensors: their values are saved separately.
    """
    if not tensor.numel():
        return ()
    location = (str(tensor.device), tensor.data_ptr(), tensor.is_conj(), tensor.is_neg())
    return (*location, tensor.dtype, tuple(tensor.shape), tensor.stride())


def path_text(path: _Path) -> str:
    """Return a path as text, such as `model['0.weight']`."""
    return f"{path[0]}" + "".join([f"[{key!r}]" for key in path[1:]])


def fold(value: Any, path: _Path, places: TensorPlaces) -> Any:
    """Return `value` as plain data.

    Args:
        path: the section's name, followed by keys.
        places: tensors of the whole record.

    Raises:
        NotImplementedError: a value cannot be saved; names its path.
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    if numpy_and_torch.is_tensor(value):
        known = places.earlier(value, path)
        return value if known is None else {MARK: ["same", list(known)]}
    if kind is list:
        return [fold(item, (*path, index), places) for index, item in enumerate(value)]
    if kind is tuple:
        return {MARK: ["tuple", [fold(item, (*path, index), places) for index, item in enumerate(value)]]}
    if kind in (dict, collections.OrderedDict, collections.Counter):
        return _fold_dict(value, path, places)
    if kind is set:
        return {
            MARK: ["set", sorted([fold(item, (*path, None), places) for item in value], key=msgspec.msgpack.encode)]
        }
    return _fold_rare(value, path)


def _fold_dict(value: Any, path: _Path, places: TensorPlaces) -> Any:
    is_counter = type(value) is collections.Counter
    if not is_counter and all(type(key) is str and key != MARK for key in value):
        return {key: fold(item, (*path, key), places) for key, item in value.items()}
    pairs = [[fold(key, path, places), fold(item, (*path, _step(key)), places)] for key, item in value.items()]
    return {MARK: ["counter" if is_counter else "dict", pairs]}


def _step(key: object) -> object:
    """Return a key as a step of a path: unchanged, if decoding preserves it."""
    return key if type(key) in (str, int) else repr(key)


def _fold_rare(value: Any, path: _Path) -> Any:
    numpy = numpy_if_loaded()
    if numpy is not None and isinstance(value, numpy.ndarray):
        return value  # the encoder handles it
    if numpy is not None and isinstance(value, numpy.generic):
        return {MARK: ["number", numpy.array(value)]}
    if type(value) is random.Random or values.is_generator(value):
        return value
    raise NotImplementedError(
        f"a {type(value).__module__}.{type(value).__qualname__} in {path_text(path)}: keep numbers, text, tensors, "
        "arrays, lists, tuples, dicts and sets there"
    )


class Unfolder:
    """Restores values from plain data; sections must come in the order in which they were folded.

    Raises, in `unfold`:
        EncodingError: the data is not a result of `fold`, or names a missing tensor.
    """

    def __init__(self) -> None:
        self._tensors: dict[_Path, Any] = {}

    def unfold(self, plain: Any, path: _Path) -> Any:
        """Return the value that `plain` represents."""
        if numpy_and_torch.is_tensor(plain):
            self._tensors[path] = plain
            return plain
        if type(plain) is list:
            return [self.unfold(item, (*path, index)) for index, item in enumerate(plain)]
        if type(plain) is not dict:
            return plain
        if MARK not in plain:
            return {key: self.unfold(item, (*path, key)) for key, item in plain.items()}
        try:
            mark, body = plain[MARK]
            return self._marked(mark, body, path)
        except (TypeError, ValueError, AttributeError) as error:
            raise EncodingError(f"the saved {path_text(path)} cannot be read: {error}") from error

    def _marked(self, word: str, body: Any, path: _Path) -> Any:
        match word:
            case "same":
                return self._same(tuple(body), path)
            case "tuple":
                return tuple(self.unfold(body, path))
            case "set":
                return set(self.unfold(body, path))
            case "number":
                return body[()]
            case "dict" | "counter":
                made = {}
                for key, item in body:
                    unfolded = self.unfold(key, path)
                    made[unfolded] = self.unfold(item, (*path, _step(unfolded)))
                return collections.Counter(made) if word == "counter" else made
        raise EncodingError(f"the saved {path_text(path)} is marked {word!r}, which is not known: use a newer snapline")

    def _same(self, known: _Path, path: _Path) -> Any:
        if known not in self._tensors:
            raise EncodingError(
                f"the saved {path_text(path)} is to be the tensor at {path_text(known)}, which is not there: "
                "a migration that takes one away must put it here"
            )
        return self._tensors[known]
