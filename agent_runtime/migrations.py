"""Migrates states that were saved by older versions of an agent's class to the current version.

*Problem.* A checkpoint outlives the code that wrote it. `Agent.state_version` numbers the versions of a class's state. A function marked
`@migrates(Worker, from_version=3)` converts plain data of version 3 to plain data of version 4.

*Plain data* is MessagePack data without declared types. Records become dicts, sets and tuples become lists, enums become their values,
UUIDs become text, histories become lists, blobs become bytes, and arrays remain arrays. So a migration step does not need the class that
saved the state.

*Model.* A step is a pure function. A step may run again, even in another process, in each recovery to the same checkpoint. Steps run in a
worker thread before any agent runs. A fleet is restored to a recovery line as a whole, so the recovery line is also checked as a whole.

1. `plan_migration` runs for each checkpoint of the recovery line on the host. `plan_migration` runs no step and decodes no state. It
   detects errors that a retry cannot fix: a state version newer than the class, a missing step, or fields that differ although the version
   is the same.
2. Once every checkpoint has a plan, `load_state` runs for each checkpoint. Each step runs once, in order, on data to which no other code
   holds a reference.
3. The agents are installed only after all states have been loaded. If any migration fails, no agent is installed, and the host exits with
   `MigrationError`. The recovery plan then waits for a host with matching code.

*Results of steps* are encoded, and then decoded as the declared type, with the same hooks that read checkpoints. So results may contain
sets, enums, records and NumPy numbers. Values that could not be saved again are rejected. A list becomes a history if its field is declared
as a history. An array is copied only if another object owns its memory, or two arrays share the memory.

*Inheritance.* Each class that sets `state_version` has its own version numbers. A subclass that does not set `state_version` shares the
version numbers of its base class. Such a subclass inherits or overrides the steps of the base class. A subclass that sets `state_version`
inherits no steps, because a step for version 3 of the base class must not run for version 3 of the subclass.

Guarantees: this module implements parts of G3 (a restored state is a saved state or its migration) and of G11 (no data is used before all
of it has been checked).
"""

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from snapline.agent_runtime.agent import Agent, agent_type, state_version_of
from snapline.agent_runtime.message_encoding import describe_failure, state_decoder
from snapline.errors import EncodingError, FleetDefinitionError, StoreError
from snapline.storage.capture.decoder import RestoredState, StateDecoder
from snapline.storage.capture.image import ChunkTable
from snapline.storage.capture.numpy_and_torch import numpy_if_loaded
from snapline.storage.capture.values import (
    BLOB_EXTENSION,
    BLOB_MODULE,
    HISTORY_EXTENSION,
    HISTORY_MODULE,
    check_array,
    decode_declared,
    decode_own_value,
    encode_value,
    is_a,
    record_type_of,
)
from snapline.storage.disk.record import Buffer
from snapline.storage.packs.checkpoint import AgentCheckpoint

if TYPE_CHECKING:
    import numpy as np

_STEPS = "__snapline_migrations__"
"""Name of the class attribute that maps a version to the function that migrates to the next version. The attribute is looked up only in the
class's own `__dict__`."""

_KEPT_EXTENSION = 127
"""Extension code that stands for an array, with the array's index in a list as its data. The encoded bytes never leave this module."""

_Function = TypeVar("_Function", bound=Callable[[Any], Any])


class MigrationError(EncodingError):
    """Raised if a saved state cannot be migrated to the current version of its class. No data is lost, and the fleet continues once it runs
    the right code.

    So this error, like other usage errors, ends only the host whose code does not match, and not the fleet.
    """

    exit_code = 2


class MigrationStep(msgspec.Struct, frozen=True):
    """The migration step from one version to the next version."""

    from_version: int
    function: Callable[[Any], Any]


class MigrationPlan(msgspec.Struct, frozen=True):
    """The plan for migrating the state in one checkpoint to the current version of the agent's class.

    Attributes:
        agent_class: current class of the agent.
        steps: steps to run, in order. The list is empty if the state already has the current version.
    """

    agent: str
    agent_class: type[Agent]
    steps: tuple[MigrationStep, ...] = ()

    def describe(self, step: MigrationStep) -> str:
        """Return the start of an error message. The text names a step and the agent for which the step ran."""
        versions = f"from version {step.from_version} to {step.from_version + 1}"
        name = getattr(step.function, "__qualname__", repr(step.function))
        return f"the migration of {self.agent_class.__qualname__} {versions} ({name}), run for agent {self.agent!r},"


# ---- registration -----------------------------------------------------------------------------------------------------


def migrates(agent_class: type[Agent], *, from_version: int) -> Callable[[_Function], _Function]:
    """Register a function as the migration step from one version of an agent class's state to the next.

        @snapline.migrates(Worker, from_version=3)
        def split_name(state: dict) -> dict: ...

    The function gets the plain data of a state with version `from_version`, may change these data in place, and returns the plain data for
    version `from_version + 1`. The function must be pure, because it runs whenever a checkpoint with that version is restored. The same
    function may be registered for several classes.

    Raises:
        FleetDefinitionError: If the class already has a step from this version, `from_version` is not below the class's `state_version`, or
            the function is not a valid step.
    """
    if not (isinstance(agent_class, type) and issubclass(agent_class, Agent)):
        raise FleetDefinitionError(
            f"snapline.migrates takes a class of agents, not {agent_class!r}: name the class, not its state"
        )
    version, name = state_version_of(agent_class), agent_class.__qualname__
    if type(from_version) is not int or from_version < 0:
        raise FleetDefinitionError(f"from_version of a migration of {name} is {from_version!r}: use 0 or more")
    if from_version >= version:
        raise FleetDefinitionError(
            f"a migration of {name} from version {from_version} leads beyond its state_version, {version}: "
            f"set state_version = {from_version + 1} in the class"
        )

    def register(function: _Function) -> _Function:
        _check_function(function, name)
        steps: dict[int, Callable[[Any], Any]] = agent_class.__dict__.get(_STEPS, {})
        if from_version in steps:
            raise FleetDefinitionError(
                f"{name} has two migrations from version {from_version}, {steps[from_version].__qualname__} "
                f"and {function.__qualname__}: keep one"
            )
        setattr(agent_class, _STEPS, {**steps, from_version: function})
        return function

    return register


def _check_function(function: object, class_name: str) -> None:
    """Reject a function that is not a plain function of one argument."""
    if not callable(function):
        raise FleetDefinitionError(f"a migration of {class_name} is {function!r}: mark a function")
    name = getattr(function, "__qualname__", repr(function))
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_kind(function) for is_kind in kinds):
        raise FleetDefinitionError(
            f"migration {name} of {class_name} must be a plain function that returns the new state"
        )
    try:
        inspect.signature(function).bind({})
    except TypeError as error:
        raise FleetDefinitionError(
            f"migration {name} of {class_name} must take one argument, the state as plain data: {error}"
        ) from error
    except ValueError:
        pass  # some C functions have no signature


def steps_of(agent_class: type[Agent]) -> dict[int, Callable[[Any], Any]]:
    """Return the steps that apply to a class: its own steps, and the steps of base classes whose versions it shares."""
    steps: dict[int, Callable[[Any], Any]] = {}
    for base in agent_class.__mro__:
        for version, function in base.__dict__.get(_STEPS, {}).items():
            steps.setdefault(version, function)
        if "state_version" in base.__dict__:
            break
    return steps


def check_steps(agent_class: type[Agent]) -> None:
    """Reject a class with a gap between its first step and its current version.

    Raises:
        FleetDefinitionError: If a step is missing. The message names the first missing step.
    """
    steps, version = steps_of(agent_class), state_version_of(agent_class)
    missing = _first_missing(steps, min(steps, default=version), version)
    if missing is not None:
        raise FleetDefinitionError(
            f"{agent_class.__qualname__} has migrations from version {min(steps)}, but none from {missing} to "
            f"{missing + 1}, and its state_version is {version}: write {_decorator(agent_class, missing)}"
        )


def _first_missing(steps: dict[int, Callable[[Any], Any]], first: int, version: int) -> int | None:
    """Return the first version from `first` to `version - 1` that has no step, or None if every version has a step.

    The number of checks is at most the number of steps plus one.
    """
    for step_version in range(first, version):
        if step_version not in steps:
            return step_version
    return None


def _decorator(agent_class: type[Agent], from_version: int) -> str:
    return f"@snapline.migrates({agent_class.__qualname__}, from_version={from_version})"


# ---- planning ---------------------------------------------------------------------------------------------------------


def plan_migration(agent_class: type[Agent], checkpoint: AgentCheckpoint) -> MigrationPlan:
    """Plan how to migrate a saved state to the current version of its class, without running a step or decoding the state.

    Raises:
        MigrationError: If the state cannot be migrated to the current version. The message names the agent, the versions, the fields that
            differ, and the step to write.
    """
    saved, version = checkpoint.state_version, state_version_of(agent_class)
    where = f"agent {checkpoint.agent!r} ({agent_class.__qualname__})"
    changes = field_changes(checkpoint.state_fields, agent_type(agent_class).state_fields)
    if saved == version:
        if changes:
            raise MigrationError(
                f"the state type of {where} has changed since the checkpoint was taken ({changes}), state_version is "
                f"{version} as before, and there is no migration: set state_version = {version + 1} and write "
                f"{_decorator(agent_class, version)}, run the code that wrote it, or start with a fresh --data-dir"
            )
        return MigrationPlan(checkpoint.agent, agent_class)
    differing = f" ({changes})" if changes else ""
    versions = f"{where} was saved with state version {saved}, the class has {version}{differing}"
    if saved > version:
        raise MigrationError(f"{versions}: the checkpoint is of newer code: run that, no migration leads back")
    steps = steps_of(agent_class)
    missing = _first_missing(steps, saved, version)
    if missing is not None:
        raise MigrationError(
            f"{versions}, and there is no migration from {missing} to {missing + 1}: write "
            f"{_decorator(agent_class, missing)}, or run the code that wrote it"
        )
    return MigrationPlan(
        checkpoint.agent,
        agent_class,
        tuple([MigrationStep(step_version, steps[step_version]) for step_version in range(saved, version)]),
    )


def field_changes(saved: dict[str, str], declared: dict[str, str]) -> str:
    """Describe how the fields of two versions of a state differ. Return "" if the fields are the same."""
    changes = [f"{name}: {saved[name]} is gone" for name in saved if name not in declared]
    changes += [f"{name}: {declared[name]} is new" for name in declared if name not in saved]
    changes += [
        f"{name}: {saved[name]} became {declared[name]}"
        for name in saved
        if name in declared and saved[name] != declared[name]
    ]
    return "; ".join(changes)


# ---- running the steps ------------------------------------------------------------------------------------------------


def load_state(plan: MigrationPlan, checkpoint: AgentCheckpoint, contents: Sequence[Buffer] = ()) -> RestoredState:
    """Return the state in a checkpoint, migrated to the current version of its class, together with the state's chunk table.

    After a migration, the chunk table is empty. The parts of the migrated state may differ from the stored parts, so the next checkpoint
    captures the whole state.

    Args:
        contents: bytes of each part of the checkpoint, already checked, in buffers that the state then owns.

    Raises:
        MigrationError: If the state cannot be decoded, or a step failed. The message names the agent and the step.
        DamagedDataError: If a part is damaged.
    """
    if plan.steps:
        return RestoredState(state_of(plan, migrate(plan, plain_of(plan, checkpoint, contents))), ChunkTable())
    decoder: StateDecoder = agent_type(plan.agent_class).state_decoder
    try:
        return decoder.restore(checkpoint.state, checkpoint.parts, contents)
    except StoreError:
        raise
    except Exception as error:
        raise MigrationError(
            f"the saved state of agent {plan.agent!r} does not decode as {checkpoint.state_type} ({error}): "
            "run the code that wrote it"
        ) from error


def plain_of(plan: MigrationPlan, checkpoint: AgentCheckpoint, contents: Sequence[Buffer] = ()) -> object:
    """Return a saved state as plain data that the caller may change.

    Raises:
        MigrationError: If the state cannot be read without its type, because it contains a pickle or a dict whose keys are records.
        DamagedDataError: If a part is damaged.
    """
    try:
        if not checkpoint.parts:
            return msgspec.msgpack.decode(checkpoint.state, ext_hook=_plain_extension)
        return _plain(state_decoder(Any).restore(checkpoint.state, checkpoint.parts, contents).state)
    except StoreError:
        raise
    except Exception as error:
        raise MigrationError(
            f"the saved state of agent {plan.agent!r} cannot be migrated ({error}): pickles, and dicts with records as "
            "keys, can only be read by the code that wrote them"
        ) from error


def _plain_extension(code: int, data: memoryview) -> object:
    """Decode an extension value. Histories become lists and blobs become bytes, because the declared types are not known yet."""
    if code == HISTORY_EXTENSION:
        return msgspec.msgpack.decode(data, ext_hook=_plain_extension)
    return bytes(data) if code == BLOB_EXTENSION else decode_own_value(code, data)


def _plain(value: Any) -> Any:
    """Replace histories by lists and blobs by bytes, because the declared types are not known yet. Dictionary keys are skipped, because
    they cannot contain histories or blobs."""
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    if type(value) is list:
        return [_plain(item) for item in value]
    if is_a(value, HISTORY_MODULE, "History"):
        return [_plain(item) for item in value]
    return value.data if is_a(value, BLOB_MODULE, "Blob") else value


def migrate(plan: MigrationPlan, plain: object) -> object:
    """Run all steps of a plan, and return plain data for the current version of the class. The steps may change `plain`.

    Raises:
        MigrationError: If a step raised an error or returned None. The message names the step and the agent.
    """
    for step in plan.steps:
        try:
            result = step.function(plain)
        except Exception as error:
            raise MigrationError(f"{plan.describe(step)} raised {type(error).__name__}: {error}; mend it") from error
        if result is None and plain is not None:
            raise MigrationError(f"{plan.describe(step)} returned None: return the state it has made")
        plain = result
    return plain


def state_of(plan: MigrationPlan, plain: object) -> object:
    """Convert the plain data from the last step to a state of the plan's class.

    Raises:
        MigrationError: If the data cannot be saved, or does not have the types that the class declares.
    """
    known = agent_type(plan.agent_class)
    arrays = _Arrays()
    last = plan.describe(plan.steps[-1]) if plan.steps else f"the plain state of agent {plan.agent!r}"
    try:
        encoded = msgspec.msgpack.Encoder(enc_hook=arrays.put).encode(plain)
    except Exception as error:
        raise MigrationError(
            f"{last} led to something that cannot be saved: {describe_failure(plain, error)}"
        ) from error
    try:
        return msgspec.msgpack.decode(encoded, type=known.state_type, ext_hook=arrays.get, dec_hook=_as_declared)
    except Exception as error:
        raise MigrationError(f"{last} led to something that is no {known.state_name}: {error}; mend it") from error


def _as_declared(declared: Any, value: object) -> object:
    """Decode a value as a type that msgspec does not support. Lists become histories, and bytes become blobs, where the type declares
    this."""
    origin = getattr(declared, "__origin__", declared)
    name = (getattr(origin, "__module__", ""), getattr(origin, "__qualname__", ""))
    if name == (HISTORY_MODULE, "History") and type(value) is list:
        records: Any = list[record_type_of(declared)]  # type: ignore[misc]  # known at run time only
        return origin(msgspec.convert(value, records, dec_hook=_as_declared))
    if name == (BLOB_MODULE, "Blob") and type(value) is bytes:
        return origin(value)
    return decode_declared(declared, value)


class _Arrays:
    """Keeps arrays out of the encoded bytes, so that a large array is not copied three times.

    Invariant: no two returned arrays share memory, and each is writable.
    """

    def __init__(self) -> None:
        self._arrays: list[np.ndarray[Any, Any]] = []
        self._owners: dict[int, object] = {}  # owners of memory by id; they are kept alive, so that no id is reused

    def put(self, value: object) -> object:
        """Append an array to the list, and encode it as its index in the list. The encoder calls this method as its hook."""
        numpy = numpy_if_loaded()
        if numpy is None or not isinstance(value, numpy.ndarray):
            return encode_value(value)
        check_array(value)
        self._arrays.append(self._owned(value))
        return msgspec.msgpack.Ext(_KEPT_EXTENSION, str(len(self._arrays) - 1).encode())

    def get(self, code: int, data: memoryview) -> object:
        """Return the array with the encoded index. The decoder calls this method as its hook."""
        return self._arrays[int(bytes(data))] if code == _KEPT_EXTENSION else _plain_extension(code, data)

    def _owned(self, array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        """Return the array itself if it is contiguous and writable and owns its memory exclusively. Otherwise return a copy."""
        import numpy

        owner = array
        while isinstance(owner.base, numpy.ndarray):
            owner = owner.base
        memory: object = owner if owner.base is None else owner.base
        is_whole = array.nbytes == owner.nbytes and array.flags.c_contiguous and array.flags.writeable
        if is_whole and id(memory) not in self._owners:
            self._owners[id(memory)] = memory
            return array
        return numpy.array(array, order="C")
