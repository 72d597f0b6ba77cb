"""Search for the reason why a replayed turn diverges: state outside checkpoints that its handler uses.

Theory of operation
-------------------
The replay oracles (`replay_oracles.py`) detect that a replayed turn diverges. This module searches only for the reason, so that the
violation names a line. The search follows a handler's bytecode through functions and classes of the agents' own modules. It records the
global variables and class attributes that the handler uses, and the handler's calls of clocks and random generators. Values are recorded
before the first turn of an agent class in a run. The reason is a variable whose value has changed by the end of the run, or else one of the
calls.

The next run in this process starts with the earlier values of those variables, as in a new process, unless other code has changed them.

Constants, caches with reproducible values and unread counters are never reported, since no replay diverges because of them.
"""

import contextlib
import copy
import dis
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import msgspec

from snapline.agent_runtime.agent import Agent, AgentType
from snapline.agent_runtime.fleet import own_modules

LEFT = "__snapline_left__"
"""Name of the attribute in a user's module under which changed values are kept."""

OUTSIDE = ("random", "time", "uuid", "secrets", "datetime", "os")
"""Modules with functions that return a different value on each call."""

INSTEAD = "ctx.random(), ctx.now() or ctx.step()"

FUNCTIONS_MAX = 1_000
"""Maximum number of functions searched per handler; further functions are not checked."""

COPIED_BYTES_MAX = 2**20
"""Maximum size in bytes of a variable's value that is copied. Larger values, such as data loaded by a module, are compared by size and not
reset."""

ITEMS_MAX = 10_000
"""Maximum number of items in a container that is checked."""

_CONTAINERS = (list, bytearray, dict, set)

REASONS_MAX = 2
"""Maximum number of reasons in one report; further reasons usually have the same cause."""

_Key = tuple[str, str]
"""Module, or module and class, and the name of the variable there."""


class Use(msgspec.Struct, frozen=True):
    """A source location at which a handler uses a variable or calls an outside function."""

    key: _Key
    place: str
    is_call: bool = False
    is_set: bool = False


class Variable:
    """A global variable in `names`, or a class attribute of `of_class`."""

    def __init__(self, name: str, names: dict[str, Any], of_class: type | None = None) -> None:
        self._name = name
        self._names = names
        self._class = of_class

    def get(self) -> Any:  # values have arbitrary types
        return self._names.get(self._name) if self._class is None else vars(self._class).get(self._name)

    def bind(self, value: Any) -> None:
        """Bind the name to this object."""
        if self._class is None:
            self._names[self._name] = value
        else:
            setattr(self._class, self._name, value)

    def set(self, other: Any) -> None:
        """Set the variable to another value. A container is changed in place, since other names may refer to it."""
        if not _filled(self.get(), other):
            self.bind(other)

    def left(self) -> dict[_Key, tuple[bytes, object]]:
        """Return the values that earlier runs in this process have left in variables, and the values before those runs. The module stores
        both."""
        module = sys.modules.get(self._class.__module__) if self._class is not None else None
        names = self._names if self._class is None else vars(module) if module is not None else {}
        values: dict[_Key, tuple[bytes, object]] = names.setdefault(LEFT, {})
        return values


def _filled(value: Any, other: Any) -> bool:  # of whatever types they are
    """Fill a container with the contents of another one; return False if the values are not containers."""
    match value, other:
        case (list(), list()) | (bytearray(), bytearray()):
            value[:] = other
        case (dict(), dict()) | (set(), set()):
            value.clear()
            value.update(other)
        case _:
            return False
    return True


class DivergenceReasons:
    """State outside checkpoints that the agents' handlers use in one run."""

    def __init__(self) -> None:
        self._uses: dict[type[Agent], dict[str, list[Use]]] = {}
        self._variables: dict[_Key, Variable] = {}
        self._before: dict[_Key, bytes] = {}
        self._first: dict[_Key, object] = {}

    def look(self, known: AgentType) -> None:
        """Record what an agent class uses, before its first turn. Later calls for the same class have no effect."""
        if known.agent_class in self._uses:
            return
        search = _Search(own_modules(known.agent_class, ()), known.agent_class)
        functions = {handler.name: handler.function for handler in known.handlers.values()}
        functions["on_start"] = known.agent_class.on_start
        self._uses[known.agent_class] = {name: search.uses_of(function) for name, function in functions.items()}
        for key, variable in search.variables.items():
            if key not in self._variables:
                self._note(key, variable)

    def _note(self, key: _Key, variable: Variable) -> None:
        """Record the variable. If only the previous run has changed it, first reset it to its value in a new process."""
        left_image, first = variable.left().pop(key, (b"", None))
        if left_image == _image(variable.get()):
            variable.set(copy.deepcopy(first))
        self._variables[key], self._before[key] = variable, _image(variable.get())
        if len(self._before[key]) <= COPIED_BYTES_MAX and not _is_large(variable.get()):
            with contextlib.suppress(Exception):  # values that cannot be copied are not reset
                self._first[key] = copy.deepcopy(variable.get())

    def finish(self) -> None:
        """Record the values that the run has left in variables, so that the next run can reset them."""
        for key in self._changed():
            if key in self._first:
                variable = self._variables[key]
                variable.left()[key] = _image(variable.get()), self._first[key]

    @contextlib.contextmanager
    def fresh(self) -> Iterator[None]:
        """Within a `with` block, give the variables their values from before the run, as in a new process."""
        changed = {key: self._variables[key].get() for key in self._changed() if key in self._first}
        present = {key: copy.copy(value) for key, value in changed.items() if isinstance(value, _CONTAINERS)}
        for key in changed:
            self._variables[key].set(copy.deepcopy(self._first[key]))
        try:
            yield
        finally:
            for key, value in changed.items():
                self._variables[key].bind(value)
                if key in present:
                    _filled(value, present[key])

    def _changed(self) -> list[_Key]:
        return [key for key, variable in self._variables.items() if _image(variable.get()) != self._before[key]]

    def reasons(self, agent_class: type[Agent], handler: str = "") -> list[tuple[str, str]]:
        """Return possible reasons for the divergence, with locations of handlers and of the use. If `handler` is set, only that handler is
        considered."""
        found = {name: uses for name, uses in self._uses.get(agent_class, {}).items() if handler in ("", name)}
        texts = [reason for key in self._changed() if (reason := _reason_of(agent_class, found, key))]
        if not texts:
            texts = [reason for name, uses in found.items() if (reason := _call_in(agent_class, name, uses))]
        return texts[:REASONS_MAX]


def place_of(agent_class: type, handler: str) -> str:
    """Return the name of a handler with its file and line."""
    function = getattr(agent_class, handler, None)
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    return f"{handler} ({relative(code.co_filename)}:{code.co_firstlineno})" if code else handler


def relative(text: str) -> str:
    """Return the text with paths in the current folder made relative."""
    return text.replace(f"{Path.cwd()}/", "")


def _reason_of(agent_class: type[Agent], uses: dict[str, list[Use]], key: _Key) -> tuple[str, str] | None:
    """Return the reason, and the location of a handler that uses a changed variable, preferably of one that sets the variable."""
    of_key = [(name, use) for name, each in uses.items() for use in each if use.key == key and not use.is_call]
    if not of_key:
        return None
    handler, use = next((pair for pair in of_key if pair[1].is_set), of_key[0])
    holder, name = key
    kind = f"the class attribute {holder.rpartition(':')[2]}.{name}" if ":" in holder else f"the global variable {name}"
    verb, changed = ("changes", "") if use.is_set else ("uses", " has changed since the run began and")
    text = f"{verb} {kind}, at {use.place}, which{changed} no checkpoint holds: keep it in the agent's state"
    return place_of(agent_class, handler), text


def _call_in(agent_class: type[Agent], handler: str, uses: list[Use]) -> tuple[str, str] | None:
    call = next((use for use in uses if use.is_call), None)
    if call is None:
        return None
    return place_of(agent_class, handler), f"calls {call.key[1]}, at {call.place}: use {INSTEAD}"


class _Search:
    """Search through the code of handlers for uses of state outside checkpoints.

    Attributes:
        variables: variables that the code uses.
    """

    def __init__(self, own: tuple[str, ...], agent_class: type[Agent]) -> None:
        self._own = own
        self._class = agent_class
        self.variables: dict[_Key, Variable] = {}

    def uses_of(self, function: object) -> list[Use]:
        """Return the uses in a function, and in all functions of the agents' own modules that the function calls."""
        uses: list[Use] = []
        waiting, seen = [function], dict[CodeType, None]()
        while waiting and len(seen) < FUNCTIONS_MAX:
            unwrapped = inspect.unwrap(waiting.pop(0))  # type: ignore[arg-type]  # whatever it is
            if not isinstance(unwrapped, FunctionType) or unwrapped.__code__ in seen:
                continue
            seen[unwrapped.__code__] = None
            for code in _codes(unwrapped.__code__):
                waiting += self._follow(code, unwrapped.__globals__, uses)
        return uses

    def _follow(self, code: CodeType, names: dict[str, Any], found: list[Use]) -> Iterator[object]:
        """Record the uses in one code object, and yield the functions that the code may call."""
        holder: object = None
        line = code.co_firstlineno
        for step in dis.get_instructions(code):
            line = step.positions.lineno if step.positions and step.positions.lineno else line
            place, name = f"{relative(code.co_filename)}:{line}", step.argval
            if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                found.append(self._variable(names, name, place, is_set=True))
            elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and name in names:
                holder = names[name]
                yield from self._value(names, name, holder, place, found)
                continue
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"):
                yield from self._attribute(holder, name, place, found, is_set=step.opname == "STORE_ATTR")
            holder = holder if step.opname in ("PUSH_NULL", "CACHE", "PRECALL") else None

    def _value(self, names: dict[str, Any], name: str, value: object, place: str, found: list[Use]) -> Iterator[object]:
        match value:
            case FunctionType() if self._is_own(value):
                yield value
            case type() if self._is_own(value):
                yield from _functions_of(value)
            case _ if getattr(value, "__module__", None) in OUTSIDE and callable(value) and not isinstance(value, type):
                found.append(Use(("", f"{getattr(value, '__module__', '')}.{name}"), place, is_call=True))
            case _ if _is_variable(value):
                found.append(self._variable(names, name, place, is_set=False))
            case _:
                pass

    def _variable(self, names: dict[str, Any], name: str, place: str, *, is_set: bool) -> Use:
        key = (str(names.get("__name__", "")), name)
        self.variables[key] = Variable(name, names)
        return Use(key, place, is_set=is_set)

    def _attribute(self, holder: object, name: str, place: str, found: list[Use], *, is_set: bool) -> Iterator[object]:
        """Follow an attribute of a module, of a class, or of a value that may be the agent itself."""
        if isinstance(holder, ModuleType):
            if holder.__name__ in OUTSIDE and holder.__name__ != "os":
                found.append(Use(("", f"{holder.__name__}.{name}"), place, is_call=True))
            elif self._is_own_name(holder.__name__):
                yield from self._value(vars(holder), name, getattr(holder, name, None), place, found)
                if is_set:
                    found.append(self._variable(vars(holder), name, place, is_set=True))
            return
        if isinstance(holder, type) and holder.__module__ in OUTSIDE:
            found.append(Use(("", f"{holder.__qualname__}.{name}"), place, is_call=True))
            return
        of_class = holder if isinstance(holder, type) and self._is_own(holder) else self._class
        for each in of_class.__mro__:
            value = vars(each).get(name)
            if value is None or not self._is_own(each):
                continue
            if isinstance(value, FunctionType):
                yield value
            elif _is_variable(value) and not hasattr(type(value), "__get__") and (holder is of_class or not is_set):
                key = (f"{each.__module__}:{each.__qualname__}", name)
                self.variables[key] = Variable(name, {}, each)
                found.append(Use(key, place, is_set=is_set))
            return

    def _is_own(self, value: Any) -> bool:
        return self._is_own_name(getattr(value, "__module__", None) or "")

    def _is_own_name(self, module: str) -> bool:
        return any(module == own or module.startswith(f"{own}.") for own in self._own)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code object and all code objects nested in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _functions_of(of_class: type) -> Iterator[object]:
    return (value for value in vars(of_class).values() if isinstance(value, FunctionType))


def _is_variable(value: object) -> bool:
    """Return whether the value may change: it is no module, function or class, and no object of certain libraries."""
    if isinstance(value, ModuleType | type) or callable(value):
        return False
    return not type(value).__module__.startswith(("snapline", "logging", "threading", "re", "typing"))


def _is_large(value: object) -> bool:
    return isinstance(value, (*_CONTAINERS, str, bytes, tuple, frozenset)) and len(value) > ITEMS_MAX


def _image(value: Any) -> bytes:
    """Return the bytes by which a value is compared: its contents if they can be encoded, else its type."""
    if _is_large(value):
        return f"{len(value)} items".encode()
    try:
        return msgspec.msgpack.encode(value, enc_hook=_plain, order="deterministic")
    except Exception:  # user classes may raise anything
        return type(value).__qualname__.encode()


def _plain(value: object) -> object:
    known = getattr(value, "__dict__", None)
    return {str(name): each for name, each in known.items()} if known else type(value).__qualname__
