"""`TorchState`: a torch model in training that is part of an agent's state.

The problem: the state of a training run is spread over many live objects (the model's parameters and buffers, the optimizer's moments and
hyperparameters, schedulers, random number generators). `state_dict()` returns only a snapshot of this state: for example, an optimizer
returns a new dictionary at each call. If a state contained such a dictionary, it would be outdated after the next training step, without
any error.

The solution: a `TorchState` refers to the live objects and copies nothing. At a capture, the encoder calls `record()`, which reads the
state dictionaries of the live objects. Tensors in the result become parts of the image, like any other tensors. A decoded `TorchState` is
not live: it contains the saved data until the agent has rebuilt the model and the optimizer and has called `load_into`.

- A *live* state was created by `of(model, optimizer)`, or `load_into` has been called on it. The `record()` of a live state reads the live
  objects.
- A *held* state was decoded from a checkpoint. The `record()` of a held state returns the saved data, so the state may be captured again
  immediately.

Invariants:

1. A record shows the state at the time of the capture, which is between two turns (G1).
2. The parts have the same positions at each capture, so that untrained layers are not stored again: first the model, then the optimizer,
   then everything else. In the optimizer, new entries come after the existing parameters.
3. `load_into` checks everything that can be checked before it changes anything. After `load_into`, the model, the optimizer and the random
   numbers are bit for bit as captured (G3), even if `Optimizer.load_state_dict` would round moments to the data type of the weights.
4. Tied weights are stored only once, and they must also be tied in the model into which they are loaded.

Some things are not saved, because `state_dict()` does not contain them: gradients, `requires_grad`, the train or eval mode, non-persistent
buffers, devices, and random generators of devices other than the CPU. The code that builds the model must set these things.

**Plain data.** `fold` converts the `state_dict()` of a model, an optimizer or a scheduler to plain data, and `unfold` converts it back. The
problem: state dictionaries may be nested in any way, and they have no declared types. With MessagePack alone, a tuple would be restored as
a list, and a tensor that has two names would be restored as two tensors. So values that MessagePack cannot represent get a mark, which is a
dict with the single key `""`.

    {"": ["tuple", [item, …]]}              a tuple
    {"": ["set", [item, …]]}                a set, sorted
    {"": ["dict", [[key, value], …]]}       a dict with a key that is empty or not text
    {"": ["counter", [[key, count], …]]}    collections.Counter
    {"": ["number", array]}                 a NumPy scalar, as an array without dimensions
    {"": ["same", [key, …]]}                the same tensor as the tensor at this path

Tensors, arrays and generators are left unchanged, in the order of the dictionaries. So the order of these values, and their positions in
the list of parts, are the same at each capture if the dictionaries keep their order.

Invariants:

1. Either `unfold(fold(x))` equals x in types and values (except that an OrderedDict becomes a dict), or `fold` refuses x (G3).
2. A tensor is stored once and restored as one object, no matter how many names it has within a section. Each section (the model, the
   optimizer, …) is loaded separately. If a tensor is in two sections, it is refused, because it would be restored as two tensors.
3. `same` contains a path rather than a number, so that a migration may remove entries without changing the references to other tensors.
"""

import collections
import contextlib
import random
import typing
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from snapline.errors import EncodingError, UsageError
from snapline.storage.capture import numpy_and_torch, values
from snapline.storage.capture.numpy_and_torch import numpy_if_loaded

MARK = ""
_ATOMS = frozenset({type(None), bool, int, float, str, bytes})

_Path = tuple[Any, ...]
_Memory = tuple[Any, ...]


class TensorPlaces:
    """The paths of all tensors in a record. A tensor is identified by its memory, because `state_dict()` returns new objects at each
    call."""

    def __init__(self) -> None:
        self.distinct: list[Any] = []
        self._places: dict[_Memory, _Path] = {}

    def earlier(self, tensor: Any, path: _Path) -> _Path | None:
        """Return the path under which the tensor is already known. If the tensor is not known yet, remember `path` and return None.

        Raises:
            NotImplementedError: If the tensor is already in a different section, or if it cannot be saved.
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
    """Return a tuple that identifies a tensor by its memory, dtype, shape and strides. Return () if the tensor has no elements.

    Two views with different shapes count as different tensors, so their values are saved separately.
    """
    if not tensor.numel():
        return ()
    location = (str(tensor.device), tensor.data_ptr(), tensor.is_conj(), tensor.is_neg())
    return (*location, tensor.dtype, tuple(tensor.shape), tensor.stride())


def path_text(path: _Path) -> str:
    """Format a path as text, such as `model['0.weight']`."""
    return f"{path[0]}" + "".join([f"[{key!r}]" for key in path[1:]])


def fold(value: Any, path: _Path, places: TensorPlaces) -> Any:
    """Convert `value` to plain data.

    Args:
        path: name of the section, followed by the keys that lead to `value`.

    Raises:
        NotImplementedError: If a value cannot be saved. The message names the value's path.
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
    """Return the step that represents a key in a path: the key itself if decoding preserves it, and otherwise the key's repr."""
    return key if type(key) in (str, int) else repr(key)


def _fold_rare(value: Any, path: _Path) -> Any:
    numpy = numpy_if_loaded()
    if numpy is not None and isinstance(value, numpy.ndarray):
        return value  # The encoder handles arrays.
    if numpy is not None and isinstance(value, numpy.generic):
        return {MARK: ["number", numpy.array(value)]}
    if type(value) is random.Random or values.is_generator(value):
        return value
    raise NotImplementedError(
        f"a {type(value).__module__}.{type(value).__qualname__} in {path_text(path)}: keep numbers, text, tensors, "
        "arrays, lists, tuples, dicts and sets there"
    )


class Unfolder:
    """Converts plain data back to the original values. The sections must be unfolded in the same order in which they were folded.

    `unfold` raises EncodingError if the data is not a result of `fold` or refers to a missing tensor.
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


RECORD_VERSION = 1

_NAMES_SHOWN_MAX = 3
"""Largest number of entries that an error names, since a wrong model differs in hundreds of entries."""


class _Saved(msgspec.Struct):
    """The saved contents. `objects` lists the names in `extra` whose values are state dictionaries of live objects."""

    model: dict[str, Any]
    metadata: Any
    optimizer: dict[str, Any] | None
    random: Any
    has_own_random: bool
    extra: dict[str, Any]
    objects: list[str]


@typing.final
class TorchState:
    """A model in training. Declare the state's field for a model in training as `TorchState`.

    Create it with `of`. In a restored agent, the object is not live until you have built the model and called `load_into`.
    """

    __slots__ = ("__weakref__", "_extra", "_is_drawing", "_keeps_random", "_model", "_optimizer", "_own", "_saved")

    def __init__(self) -> None:
        self._model: Any = None
        self._optimizer: Any = None
        self._extra: Mapping[str, Any] = {}
        self._keeps_random = False
        self._own: Any = None  # state of the agent's own random stream
        self._is_drawing = False
        self._saved: _Saved | None = None

    @classmethod
    def of(
        cls,
        model: Any,
        optimizer: Any = None,
        *,
        rng: bool = True,
        seed: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> "TorchState":
        """Return the state for a live model. The result refers to the given objects, whose contents are read at each capture.

        Args:
            model: a `torch.nn.Module`.
            optimizer: a `torch.optim.Optimizer` for the model's parameters.
            rng: whether to save the state of torch's CPU random generator, which the whole process shares.
            seed: seed of a random stream that belongs to this agent only. Use a seed if several agents share a process. See `randomness`.
                If a seed is given, `rng` has no effect.
            extra: map from names to additional plain data, or to objects that have `state_dict()` and `load_state_dict()`, such as a
                scheduler.

        Raises:
            UsageError: If `model` is not a torch module, or if `optimizer` is not a torch optimizer.
        """
        _check_torch_type(model, "a model", "state_dict", "load_state_dict", "parameters")
        if optimizer is not None:
            _check_torch_type(optimizer, "an optimizer", "state_dict", "load_state_dict", "param_groups")
        made = cls()
        made._model, made._optimizer = model, optimizer
        made._extra = {} if extra is None else extra
        made._keeps_random = rng or seed is not None
        if seed is not None:
            made._own = _torch().Generator().manual_seed(seed).get_state()
        return made

    def __repr__(self) -> str:
        return f"<TorchState, {'live' if self.is_live else 'held'}>"

    @property
    def is_live(self) -> bool:
        """Return whether there is a live model. After a restore, the result is False until `load_into` is called."""
        return self._model is not None

    @property
    def model(self) -> Any:
        """The live model.

        Raises:
            UsageError: If there is no model yet.
        """
        if self._model is None:
            raise UsageError(
                "this TorchState was restored and has no model yet: build one and call load_into(model, …)"
            )
        return self._model

    @property
    def optimizer(self) -> Any:
        """The live optimizer, or None if the state was created without one."""
        return self.model and self._optimizer

    @property
    def extra(self) -> Mapping[str, Any]:
        """Return the `extra` that was given to `of`. In a restored object, return the saved data of `extra` until `load_into` is called."""
        return self._extra

    def state_dict(self) -> dict[str, Any]:
        """Return the state dictionary of the live model, or the saved state dictionary if there is no live model. The saved dictionary
        allows a checkpoint to be inspected without a model. The caller must not change the dictionary."""
        return dict(self._saved.model if self._saved is not None else self.model.state_dict())

    # ---- random numbers ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def randomness(self) -> Iterator[None]:
        """Let torch draw random numbers from the agent's own stream within this block, independently of other agents in the process.

        The block must not await anything, because other agents would then draw from the same stream.

        Raises:
            UsageError: If the agent has no stream of its own, or if such a block is already active.
        """
        if self._own is None:
            raise UsageError("this TorchState has no random numbers of its own: make it with TorchState.of(…, seed=…)")
        if self._is_drawing:
            raise UsageError("two blocks of randomness() within each other would draw the same numbers: use one")
        torch = _torch()
        outer = torch.get_rng_state()
        self._is_drawing = True
        torch.set_rng_state(self._own)
        try:
            yield
        finally:
            self._own = torch.get_rng_state()
            torch.set_rng_state(outer)
            self._is_drawing = False

    def _random(self) -> Any:
        if self._is_drawing:
            raise NotImplementedError("a TorchState within randomness(): end the block before the turn ends")
        if self._own is not None:
            return self._own
        if self._saved is not None:
            return self._saved.random
        return _torch().get_rng_state() if self._keeps_random else None

    # ---- to a checkpoint -----------------------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        """Return the data to save now, which consists of plain data and the live tensors.

        Raises:
            NotImplementedError: If a value cannot be saved. The message names the value's path.
        """
        return self._fold(self._read(), TensorPlaces())

    def distinct_tensors(self) -> list[Any]:
        """Return all tensors of the record, with tied tensors only once. The tensors are needed to find other values in the state that use
        the same memory.

        If a value cannot be saved, the list ends before it, and encoding the state will raise an error.
        """
        places = TensorPlaces()
        with contextlib.suppress(NotImplementedError):
            self._fold(self._read(), places)
        return places.distinct

    def _read(self) -> _Saved:
        if self._saved is not None:
            return self._saved
        model = self.model.state_dict()
        objects = sorted([name for name, value in self._extra.items() if _has_state(value)])
        return _Saved(
            model=model,
            metadata=_plain_metadata(model),
            optimizer=None if self._optimizer is None else self._optimizer.state_dict(),
            random=self._random(),
            has_own_random=self._own is not None,
            extra={name: x.state_dict() if _has_state(x) else x for name, x in self._extra.items()},
            objects=objects,
        )

    def _fold(self, found: _Saved, places: TensorPlaces) -> dict[str, Any]:
        return {
            "version": RECORD_VERSION,
            "model": fold(found.model, ("model",), places),
            "optimizer": fold(found.optimizer, ("optimizer",), places),
            "extra": [[name, fold(value, (f"extra {name}",), places)] for name, value in found.extra.items()],
            "objects": found.objects,
            "metadata": fold(found.metadata, ("metadata",), places),
            "random": found.random if self._own is None else self._own,
            "has_own_random": found.has_own_random,
        }

    # ---- from a checkpoint ---------------------------------------------------------------------------------------------

    @classmethod
    def from_record(cls, record: Any) -> "TorchState":
        """Return the state that a decoded record represents. The state uses the record's tensors directly.

        Raises:
            EncodingError: If `record` was not created by a `TorchState`.
        """
        made = cls()
        try:
            if record["version"] != RECORD_VERSION:
                raise EncodingError(f"a saved TorchState is of version {record['version']!r}: use a newer snapline")
            made._saved = saved = _unfolded(record)
            made._extra = dict(saved.extra)
        except (TypeError, KeyError, ValueError, IndexError) as error:
            raise EncodingError(f"what was saved is no TorchState: {error!r}") from error
        made._keeps_random = saved.random is not None
        made._own = saved.random if saved.has_own_random else None
        return made

    def load_into(self, model: Any, optimizer: Any = None, *, extra: Mapping[str, Any] | None = None) -> None:
        """Load the saved data into a model and an optimizer that were built in the same way as the saved ones. Afterwards this object is
        live.

        Args:
            model: a model on any device, with the same names, shapes, dtypes and tied weights.
            optimizer: an optimizer with the same parameter groups, or None if no optimizer was saved.
            extra: a new object for each name whose `state_dict()` was saved. Plain data is not passed here, because it is available in the
                property `extra`.

        Raises:
            UsageError: If the objects do not match the saved data, or if this object is already live. If the error is raised, nothing has
                been changed, unless the `load_state_dict` of one of the objects has failed.
        """
        saved = self._saved
        if saved is None:
            raise UsageError("this TorchState is live already: load_into is for one that was restored")
        objects = dict(extra or {})
        _check_model(saved.model, model.state_dict())
        _check_optimizer(saved.optimizer, optimizer)
        if sorted(objects) != saved.objects:
            raise UsageError(
                f"extra must have {saved.objects or 'nothing'}, as when it was saved, not {sorted(objects)}"
            )
        try:
            _load(saved, model, optimizer, objects)
        except (TypeError, ValueError, KeyError, RuntimeError) as error:
            raise UsageError(
                f"what was saved cannot be loaded: {error}; build model and optimizer as before"
            ) from error
        if saved.random is not None and self._own is None:
            _torch().set_rng_state(saved.random)
        self._model, self._optimizer = model, optimizer
        self._extra = {name: objects.get(name, value) for name, value in saved.extra.items()}
        self._saved = None


def _torch() -> Any:
    """Return the module torch. If there is a model, torch has already been imported."""
    import torch  # type: ignore[import-not-found,unused-ignore]  # optional

    return torch


def _check_torch_type(value: object, what: str, *names: str) -> None:
    if not all(hasattr(value, name) for name in names) or isinstance(value, type):
        raise UsageError(f"a {type(value).__qualname__} is not {what} of torch: give TorchState.of the object itself")


def _has_state(value: object) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _plain_metadata(state_dict: Any) -> Any:
    """Return the version numbers of the model's modules, or None if there are none. The classes of the modules need these numbers to read
    older state dictionaries."""
    versions = getattr(state_dict, "_metadata", None)
    return None if versions is None else dict(versions)


def _unfolded(record: dict[str, Any]) -> _Saved:
    unfold = Unfolder().unfold
    return _Saved(
        model=dict(unfold(record["model"], ("model",))),
        optimizer=unfold(record["optimizer"], ("optimizer",)),
        extra={name: unfold(value, (f"extra {name}",)) for name, value in record["extra"]},
        objects=list(record["objects"]),
        metadata=unfold(record["metadata"], ("metadata",)),
        random=record["random"],
        has_own_random=bool(record["has_own_random"]),
    )


# ---- checks that objects match the saved data -----------------------------------------------------------------------


def _check_model(saved: dict[str, Any], present: Mapping[str, Any]) -> None:
    _refuse("are not in the model", [name for name in saved if name not in present])
    _refuse("were not saved", [name for name in present if name not in saved])
    _refuse("differ", [words for name in saved if (words := _difference(name, saved[name], present[name]))])
    one, present_ties = _ties(saved), _ties(present)
    names = [
        f"{name!r} with {(one.get(name) or present_ties[name])!r}"
        for name in saved
        if one.get(name) != present_ties.get(name)
    ]
    _refuse("are tied in one of both only", names)


def _refuse(what: str, names: list[str]) -> None:
    if names:
        more = ", …" if len(names) > _NAMES_SHOWN_MAX else ""
        shown = ", ".join(names[:_NAMES_SHOWN_MAX]) + more
        raise UsageError(
            f"the model is not the one that was saved: {len(names)} entries {what} ({shown}); build it as before"
        )


def _difference(name: str, saved: Any, present: Any) -> str:
    if not numpy_and_torch.is_tensor(saved) or not numpy_and_torch.is_tensor(present):
        return (
            ""
            if numpy_and_torch.is_tensor(saved) == numpy_and_torch.is_tensor(present)
            else f"{name}: a tensor in one of both"
        )
    if _torch().nn.parameter.is_lazy(present) or (saved.shape, saved.dtype) == (present.shape, present.dtype):
        return ""
    return f"{name}: {tuple(saved.shape)} {saved.dtype} became {tuple(present.shape)} {present.dtype}"


def _ties(state_dict: Mapping[str, Any]) -> dict[str, str]:
    """Return, for each tensor with several names, a map from each further name to the first name."""
    first: dict[Any, str] = {}
    ties = {}
    for name, value in state_dict.items():
        if (
            numpy_and_torch.is_tensor(value)
            and not _torch().nn.parameter.is_lazy(value)
            and (memory := memory_of(value))
        ):
            known = first.setdefault(memory, name)
            if known != name:
                ties[name] = known
    return ties


def _check_optimizer(saved: dict[str, Any] | None, optimizer: Any) -> None:
    if (saved is None) != (optimizer is None):
        raise UsageError(f"an optimizer was {'not ' if saved is None else ''}saved: call load_into accordingly")
    if saved is None:
        return
    sizes = [len(group["params"]) for group in saved["param_groups"]]
    present = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != present:
        raise UsageError(f"the optimizer has groups of {present} parameters, saved were {sizes}: build it as before")


# ---- loading --------------------------------------------------------------------------------------------------------


def _load(saved: _Saved, model: Any, optimizer: Any, objects: dict[str, Any]) -> None:
    wanted = OrderedDict(saved.model)
    if saved.metadata is not None:
        wanted._metadata = saved.metadata  # type: ignore[attr-defined]  # torch reads it there
    model.load_state_dict(wanted)
    if optimizer is not None and saved.optimizer is not None:
        optimizer.load_state_dict(saved.optimizer)
        _put_exactly(saved.optimizer, optimizer)
    for name, value in objects.items():
        value.load_state_dict(saved.extra[name])


def _put_exactly(saved: dict[str, Any], optimizer: Any) -> None:
    """Restore the saved moments exactly, because `load_state_dict` has converted float32 moments to the data type of their parameter, such
    as bfloat16."""
    indices = [index for group in saved["param_groups"] for index in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, parameter in zip(indices, parameters, strict=True):
        if index in saved["state"]:
            optimizer.state[parameter] = _as_saved(saved["state"][index], optimizer.state[parameter])


def _as_saved(saved: Any, loaded: Any) -> Any:
    """Return `saved`, after moving each of its tensors to the device of the corresponding tensor in `loaded`."""
    if numpy_and_torch.is_tensor(saved):
        return saved.to(loaded.device) if numpy_and_torch.is_tensor(loaded) else saved
    if type(saved) is dict and type(loaded) is dict:
        return {key: _as_saved(value, loaded.get(key)) for key, value in saved.items()}
    if type(saved) in (list, tuple) and type(loaded) is type(saved):
        return type(saved)([_as_saved(one, other) for one, other in zip(saved, loaded, strict=True)])
    return saved
