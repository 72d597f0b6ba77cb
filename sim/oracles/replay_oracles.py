"""Oracles that replay surviving histories and durable turns, and compare the results with the original run (G3).

Theory of operation
-------------------
*Histories.* At the end of a run, each agent has one surviving history, which consists of the turns that were not rolled back. For each
turn, the ground truth has recorded the message, the values that `ctx.random()` and `ctx.now()` returned, and the plan. The oracle replays
these turns with a new object, in the same order, without failures, checkpoints and restores. The new object must send the same messages and
reach the same state as the real agent. If it does, a run without failures can reach the fleet's state. Guarantee G3 consists of this check
and of "exactly-once", which checks that each consumed message was sent and was consumed once and in order. States are compared as bytes. If
the bytes differ, both states are decoded and encoded again, because a restored state may represent a value differently, such as `1` for
`1.0`. For an agent that failed with `on_error = "keep"`, the replay ends at the failure, because the fleet guarantees only an unchanged
state.

A user's fleet is replayed twice. The first replay uses the values that the run has left in module variables. The second replay uses the
values that these variables have in a new process. If a handler depends on a variable whose value a recovery does not reset, at least one of
the replays differs from the run.

*Durable turns.* The histories of agents with durable turns are not replayed. Instead, the oracle replays each durable turn when it ends. A
handler that is replayed from its journal must make the same requests in the same order and produce the same state. A recovery runs the
handler from the turn's first state and answers its requests from the journal. Crashes during a turn are rare, so in a user's fleet, the
oracle replays every durable turn that has waited, when the turn ends. The oracle restores a new object as a recovery would, uses the turn's
journal entries, and discards all effects. If a handler makes a different request, it diverges from its journal, either in the oracle's
replay or in a recovery (`DivergenceError`). In both cases the oracle reports the same violation, which names the agent, the handler and the
line. A turn is not replayed if it never waited, if it failed, if it is a compensation, or if its state cannot be restored.

If a user's fleet diverges, `DivergenceReasons` searches for the reason.

Reasons for divergences
-----------------------
The oracles above detect a replayed turn that diverges. The search for reasons only explains the divergence. The search looks for state that
the turn's handler uses and that checkpoints do not contain. With its result, the violation can name a line of code. The search follows a
handler's bytecode through the functions and classes of the agents' own modules. The search records which global variables and class
attributes the handler uses, and where it calls clocks or random generators. The values of these variables are recorded before an agent
class runs its first turn. The reported reason is a variable whose value has changed by the end of the run. If no variable has changed, the
reported reason is a call of a clock or random generator.

The next run in this process starts with the variables' original values, as in a new process, unless other code has changed them.

Constants, caches with reproducible values and counters that are never read cause no divergence, so they are never reported.
"""

import contextlib
import copy
import dis
import functools
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import msgspec

from snapline.agent_runtime.agent import Agent, AgentType, Handler, agent_type
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import GUARD, LATE_REPLY, SegmentEnd, TurnJournal, read_call
from snapline.agent_runtime.fleet import Fleet, encode_state, find_class, own_modules, restore_agent
from snapline.agent_runtime.guarded_handlers import guarded
from snapline.agent_runtime.host.host_events import StartTurn, TurnEnded, TurnFailed
from snapline.agent_runtime.message_encoding import encode_body, encode_ordered
from snapline.agent_runtime.turn_environment import Heartbeats, TurnEnvironment
from snapline.errors import DivergenceError
from snapline.messages.payloads import CREATE, read_creation, split_message
from snapline.sim.oracles.ground_truth_records import AgentHistory, Report, StepOutcome, Turn, show
from snapline.storage.log.log_record import LoggedEntry
from snapline.storage.packs.checkpoint import AbandonedTurn, JournalEntry, SavedTurn

LEFT = "__snapline_left__"
"""Name of the attribute that stores changed values in a user's module."""

OUTSIDE = ("random", "time", "uuid", "secrets", "datetime", "os")
"""Modules with functions that return a different value on each call."""

INSTEAD = "ctx.random(), ctx.now() or ctx.step()"

FUNCTIONS_MAX = 1_000
"""Maximum number of functions that are searched for each handler. Further functions are not checked."""

COPIED_BYTES_MAX = 2**20
"""Maximum size in bytes of a variable's value that is copied. Larger values, such as data loaded by a module, are compared by size and not
reset."""

ITEMS_MAX = 10_000
"""Maximum number of items in a container that is checked."""

_CONTAINERS = (list, bytearray, dict, set)

REASONS_MAX = 2
"""Maximum number of reasons in one report. Further reasons usually have the same cause."""

_Key = tuple[str, str]
"""The module of a variable, or its module and class, and the variable's name."""


class Use(msgspec.Struct, frozen=True):
    """A source location at which a handler uses a variable or calls a clock or random generator."""

    key: _Key
    place: str
    is_call: bool = False
    is_set: bool = False


class Variable:
    """A global variable in the namespace `names`, or an attribute of the class `of_class`."""

    def __init__(self, name: str, names: dict[str, Any], of_class: type | None = None) -> None:
        self._name = name
        self._names = names
        self._class = of_class

    def get(self) -> Any:  # values have arbitrary types
        return self._names.get(self._name) if self._class is None else vars(self._class).get(self._name)

    def bind(self, value: Any) -> None:
        """Make the variable refer to this object."""
        if self._class is None:
            self._names[self._name] = value
        else:
            setattr(self._class, self._name, value)

    def set(self, other: Any) -> None:
        """Give the variable a new value. A container is changed in place, because other names may refer to it."""
        if not _filled(self.get(), other):
            self.bind(other)

    def left(self) -> dict[_Key, tuple[bytes, object]]:
        """Return the values that earlier runs in this process have left in variables, and the values that the variables had before. Both
        kinds of values are stored in the user's module."""
        module = sys.modules.get(self._class.__module__) if self._class is not None else None
        names = self._names if self._class is None else vars(module) if module is not None else {}
        values: dict[_Key, tuple[bytes, object]] = names.setdefault(LEFT, {})
        return values


def _filled(value: Any, other: Any) -> bool:  # the values may have any types
    """Replace the contents of a container with those of another container. Return False if the values are not containers."""
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
    """Finds the state outside checkpoints that agents' handlers use in one run."""

    def __init__(self) -> None:
        self._uses: dict[type[Agent], dict[str, list[Use]]] = {}
        self._variables: dict[_Key, Variable] = {}
        self._before: dict[_Key, bytes] = {}
        self._first: dict[_Key, object] = {}

    def look(self, known: AgentType) -> None:
        """Record which variables an agent class uses. The caller must do this before the class runs its first turn. Later calls for the
        same class have no effect."""
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
        """Record the variable. If its value is the one that the previous run has left, first reset it to its value in a new process."""
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
        """Give the variables, within a `with` block, the values that they had before the run, as in a new process."""
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
        """Return possible reasons for a divergence, each with a handler and the location where it uses the state. If `handler` is set, only
        that handler is considered."""
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
    """Return the text, in which paths inside the current folder are replaced with relative paths."""
    return text.replace(f"{Path.cwd()}/", "")


def _reason_of(agent_class: type[Agent], uses: dict[str, list[Use]], key: _Key) -> tuple[str, str] | None:
    """Return a handler that uses a changed variable, with the reason to report. Prefer a handler that sets the variable."""
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
    """A search through the code of handlers for uses of state outside checkpoints."""

    def __init__(self, own: tuple[str, ...], agent_class: type[Agent]) -> None:
        self._own = own
        self._class = agent_class
        self.variables: dict[_Key, Variable] = {}

    def uses_of(self, function: object) -> list[Use]:
        """Return the uses of state outside checkpoints in a function and in all functions of the agents' own modules that it calls."""
        uses: list[Use] = []
        waiting, seen = [function], dict[CodeType, None]()
        while waiting and len(seen) < FUNCTIONS_MAX:
            unwrapped = inspect.unwrap(waiting.pop(0))  # type: ignore[arg-type]  # the object may have any type
            if not isinstance(unwrapped, FunctionType) or unwrapped.__code__ in seen:
                continue
            seen[unwrapped.__code__] = None
            for code in _codes(unwrapped.__code__):
                waiting += self._follow(code, unwrapped.__globals__, uses)
        return uses

    def _follow(self, code: CodeType, names: dict[str, Any], found: list[Use]) -> Iterator[object]:
        """Record the uses of such state in one code object, and yield the functions that the code may call."""
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
        """Record the use of an attribute of a module, of a class, or of a value that may be the agent itself. Yield the functions to which
        the attribute may refer."""
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
    """Yield the code object and all code objects that are nested in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _functions_of(of_class: type) -> Iterator[object]:
    return (value for value in vars(of_class).values() if isinstance(value, FunctionType))


def _is_variable(value: object) -> bool:
    """Return whether the value can change during a run. Modules, functions, classes and objects of certain libraries count as
    unchangeable."""
    if isinstance(value, ModuleType | type) or callable(value):
        return False
    return not type(value).__module__.startswith(("snapline", "logging", "threading", "re", "typing"))


def _is_large(value: object) -> bool:
    return isinstance(value, (*_CONTAINERS, str, bytes, tuple, frozenset)) and len(value) > ITEMS_MAX


def _image(value: Any) -> bytes:
    """Return bytes that represent a value in comparisons. The bytes encode the value's contents or, if that is not possible, the value's
    type."""
    if _is_large(value):
        return f"{len(value)} items".encode()
    try:
        return msgspec.msgpack.encode(value, enc_hook=_plain_value, order="deterministic")
    except Exception:  # user classes may raise anything
        return type(value).__qualname__.encode()


def _plain_value(value: object) -> object:
    known = getattr(value, "__dict__", None)
    return {str(name): each for name, each in known.items()} if known else type(value).__qualname__


NOT_POSSIBLE = "not possible"


class ReplayOracle:
    """Oracle that replays the surviving histories of one run.

    Attributes:
        is_own: whether the fleet is a user's fleet. If so, the fleet's module variables are checked, and its durable turns are replayed.
    """

    def __init__(self, report: Report, fleet: Fleet, *, is_own: bool) -> None:
        self.is_own = is_own
        self._fleet = fleet
        self._suspects = DivergenceReasons()
        self._classes: dict[str, type[Agent]] = {}
        self._first: dict[str, bytes] = {}
        self.durable = DurableOracle(report, self._suspects, is_again=is_own)

    def on_turn(self, agent: str, known: AgentType, made: Agent) -> None:
        """Record the start of a turn. Only the agent's first turn is recorded, because the agent then has its initial state."""
        if agent not in self._classes:
            self._suspects.look(known)
            self._classes[agent] = known.agent_class
            with contextlib.suppress(Exception):  # the capture checks report such a state
                image = encode_body(made.state)
                known.state_decoder.decode(image)
                self._first[agent] = image

    def finish(self) -> None:
        """Stop the search for reasons at the end of the run."""
        self._suspects.finish()

    def check(self, history: AgentHistory, state: bytes | None) -> str:
        """Replay a history. Return "" if the replay agrees with the run, `NOT_POSSIBLE` if the history cannot be replayed, otherwise the
        difference and its reason."""
        first = self._first.get(history.agent)
        different = replay(self._fleet, history, state, first)
        if not different and self.is_own:
            with self._suspects.fresh():
                different = replay(self._fleet, history, state, first)
        known = self._classes.get(history.agent)
        if not different or different == NOT_POSSIBLE or known is None:
            return different
        why = [f"{handler} {reason}" for handler, reason in self._suspects.reasons(known)]
        return f"{different}: {'; '.join(why)}" if why else different


class _NotPossibleError(Exception):
    """Raised if a history cannot be replayed."""


class _Draws(TurnEnvironment):
    """Environment for a replayed handler. The environment returns the recorded random numbers, times and step outcomes in order."""

    def __init__(self) -> None:
        self.left: list[object] = []

    def now_ns(self) -> int:
        drawn = self._next("asks for the time")
        return drawn if isinstance(drawn, int) else 0

    def random(self) -> float:
        drawn = self._next("draws")
        return drawn if isinstance(drawn, float) else 0.0

    async def step(self, name: str, function: Callable[[], Any]) -> Any:  # the function's own result
        drawn = self._next(f"runs step {name!r}")
        if isinstance(drawn, StepOutcome):
            if drawn.error is not None:
                raise drawn.error
            return copy.deepcopy(drawn.value)
        raise LookupError(f"it runs step {name!r} where it did not")

    def beating(self, name: str, function: Callable[[], Any], _beat: Heartbeats, _heartbeat_s: float | None) -> Any:
        return self.step(name, function)

    async def pause(self, seconds: float) -> None:
        """Return immediately, because the time has already passed in the run."""

    async def limited(self, running: Awaitable[Any], seconds: float) -> Any:  # the result of the awaited coroutine
        return await running

    def _next(self, what: str) -> object:
        if not self.left:
            raise LookupError(f"it {what} more often than it did")
        return self.left.pop(0)


def replay(fleet: Fleet, history: AgentHistory, state: bytes | None, first: bytes | None = None) -> str:
    """Replay a history. Return "" if the replay agrees with the run, `NOT_POSSIBLE` if the history cannot be replayed, otherwise a
    description of the difference. If `state` is None, only the sent messages are compared.

    `first` is the agent's initial state. If `first` is None, the replay begins with the state in which the fleet creates the agent now.
    """
    try:
        return _run(fleet, history, state, first)
    except _NotPossibleError:
        return NOT_POSSIBLE


def _run(fleet: Fleet, history: AgentHistory, state: bytes | None, first: bytes | None) -> str:
    draws = _Draws()
    agent: Agent | None = fleet.make(history.agent) if history.agent in fleet.agents else None
    if agent is not None and first is not None:
        agent.state = agent_type(type(agent)).state_decoder.decode(first)
    for number, turn in enumerate(history.log, 1):
        if turn.what.startswith("buried"):
            agent = agent or _first_state(fleet, turn)
            continue
        if turn.what == "segment" or turn.what.startswith("taken"):
            raise _NotPossibleError
        if turn.what == "create":
            agent = _first_state(fleet, turn)
        if agent is None or turn.draws is None:
            raise _NotPossibleError
        draws.left = list(turn.draws)
        different = _take_turn(agent, turn, Context(history.agent, turn.plan, turn.sender, draws))
        if different or draws.left:
            return f"turn {number} of {history.agent} ({turn.what}), run again, {different or 'draws less often'}"
    if state is None or agent is None:
        return ""
    return _compare(history, agent, state)


def _first_state(fleet: Fleet, turn: Turn) -> Agent | None:
    """Return the agent that a creation message made, even if the message is dead-lettered. Return None if the message made no agent."""
    if turn.payload[:1] != CREATE:
        return None
    kind, image = read_creation(turn.payload)
    try:
        return restore_agent(find_class(fleet, kind), image)
    except Exception:
        return None  # this is the reason for which the creation was dead-lettered


def _take_turn(agent: Agent, turn: Turn, ctx: Context) -> str:
    """Replay one turn, and describe how the replay differs from the recorded turn."""
    try:
        coroutine = _call(agent, turn, ctx)
        if coroutine is not None:
            coroutine.send(None)
            coroutine.close()
            raise _NotPossibleError
    except StopIteration:
        pass
    except _NotPossibleError:
        raise
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"
    ended = ctx.outcome()
    sends, spawns = ended.sends, ended.spawns
    if sends == turn.sends and spawns == turn.spawns:
        return ""
    first = f", such as {show(turn.sends[0][1])}" if turn.sends else ""
    return f"sends {len(sends)} messages, not the {len(turn.sends)} that it sent{first}"


def _call(agent: Agent, turn: Turn, ctx: Context) -> Any:  # a user's handler returns a coroutine or None
    if turn.what in ("start", "create"):
        return agent.on_start(ctx)
    call, payload = read_call(turn.payload)
    name, body = split_message(payload)
    if name == LATE_REPLY:
        return None
    known = agent_type(type(agent))
    handler = known.handlers[name]
    if handler.is_durable:
        raise _NotPossibleError
    ctx.begin(call=call)
    image_of = functools.partial(encode_state, ctx.agent, agent, known)
    return guarded(handler, agent, known, ctx, image_of)(agent, handler.decoder.decode(body), ctx)


def _compare(history: AgentHistory, agent: Agent, state: bytes) -> str:
    known = agent_type(type(agent))
    image = encode_state(history.agent, agent, known)
    if image == state or _plain(known, image) == _plain(known, state):
        return ""
    return f"{history.agent} ended in another state than its {history.turns} turns, run again, lead to"


def _plain(known: AgentType, state: bytes) -> bytes:
    """Return the state in the encoding that it has after a restore."""
    try:
        return encode_body(known.state_decoder.decode(state))
    except Exception:
        return state  # the state cannot be decoded, so the bytes are compared


_ADVICE = ": a durable handler must"
"""Start of the advice in the product's error message. The oracle replaces this advice with its own advice."""


class _Clock(TurnEnvironment):
    """Clock that returns the times that the turn's last segment read in the run."""

    def __init__(self, draws: Sequence[object]) -> None:
        self._left = [draw for draw in draws if isinstance(draw, int)]
        self.journal: TurnJournal | None = None

    def now_ns(self) -> int:
        assert self.journal is not None
        return self._left.pop(0) if self.journal.is_beyond and self._left else 0


NOT_AWAITED = ("now", GUARD)
"""Kinds of journal entries for which a turn does not wait."""


class DurableRun(msgspec.Struct):
    """A durable turn with its cause, its first state, and the outcomes of its requests."""

    what: str
    sender: str
    payload: bytes
    state: bytes
    entries: list[JournalEntry]
    logged: tuple[LoggedEntry, ...]
    seed: bytes = b""
    is_repeated: bool = False
    abandoned: list[AbandonedTurn] = []


class DurableOracle:
    """Oracle that replays the durable turns of one run. If `is_again` is False, it replays no turns and reports only divergences in
    recoveries."""

    def __init__(self, report: Report, suspects: DivergenceReasons, *, is_again: bool) -> None:
        self._report = report
        self._suspects = suspects
        self._is_again = is_again
        self._runs: dict[tuple[str, int], DurableRun] = {}

    def on_started(self, turn: StartTurn, state: bytes) -> None:
        """Record the start of a turn or of a turn's next segment. `state` is the agent's encoded state."""
        if not self._is_again:
            return
        place, saved = (turn.agent, turn.incarnation), turn.turn
        if saved is not None:
            run = DurableRun(saved.what, saved.sender, saved.payload, state, list(saved.journal), turn.logged)
            run.seed, run.is_repeated, run.abandoned = saved.seed, True, saved.abandoned
            self._runs[place] = run
        elif turn.what != "segment":
            run = DurableRun(turn.what, turn.sender, turn.payload, state, [], turn.logged)
            run.abandoned = list(turn.abandoned)
            self._runs[place] = run
        elif place in self._runs:
            self._runs[place].entries += turn.group or [found for found in (turn.found,) if found is not None]

    def on_failed(self, t_ns: int, failed: TurnFailed, turn: StartTurn, known: AgentType | None) -> None:
        """Report a handler that diverged from its journal when a recovery replayed it. After any other failure, only end the record of the
        turn."""
        payload = self._runs.pop((failed.agent, failed.incarnation), None)
        if not failed.is_divergent:
            return
        begin_payload = (
            turn.turn.payload if turn.turn is not None else turn.payload if payload is None else payload.payload
        )
        difference = failed.error.strip().rpartition("\n")[2].partition(": ")[2]
        self._say(t_ns, failed.agent, known, begin_payload, difference)

    def on_ended(
        self, t_ns: int, ended: TurnEnded, known: AgentType | None, made: Agent, draws: Sequence[object]
    ) -> None:
        """Record the end of a turn's segment. If the turn has ended, replay it."""
        run = self._runs.get((ended.agent, ended.incarnation))
        if run is None:
            return
        if ended.pause is not None:
            run.entries += ended.pause.entries
            run.seed = ended.pause.seed
            return
        del self._runs[ended.agent, ended.incarnation]
        run.entries += ended.entries
        if not ended.is_durable or not run.seed or known is None:
            return
        difference = _departs(ended, run, known, made, draws)
        if difference:
            self._say(t_ns, ended.agent, known, run.payload, difference)

    def _say(self, t_ns: int, agent: str, known: AgentType | None, payload: bytes, said: str) -> None:
        handler = _handler_of(known, payload)
        named, why = "its handler", f"draw chance and time from {INSTEAD}"
        if handler is not None and known is not None:
            named = place_of(known.agent_class, handler.name)
            reasons = self._suspects.reasons(known.agent_class, handler.name)
            why = f"it {'; it '.join([reason for _, reason in reasons])}" if reasons else why
        said = relative(said.partition(_ADVICE)[0])
        text = f"{agent}: {named}, run again by the journal of its turn, departs from it: {said}; {why}"
        self._report("replay", "G3", t_ns, text)


def _handler_of(known: AgentType | None, payload: bytes) -> Handler | None:
    try:
        name, _ = split_message(read_call(payload)[1])
    except Exception:  # the payload cannot be read
        return None
    return known.handlers.get(name) if known is not None else None


def _departs(ended: TurnEnded, run: DurableRun, known: AgentType, made: Agent, draws: Sequence[object]) -> str:
    """Describe how the replayed turn differs from the original turn. Return "" if it does not differ, or if the turn cannot be replayed."""
    handler, clock = _handler_of(known, run.payload), _Clock(draws)
    if handler is None or not handler.is_durable:
        return ""
    call, message = read_call(run.payload)
    first = SavedTurn(run.what, run.sender, run.payload, run.seed, "", run.entries, abandoned=run.abandoned)
    journal = clock.journal = TurnJournal(b"", first, run.logged, own_modules=own_modules(known.agent_class, ()))
    ctx = Context(ended.agent, ended.incarnation, run.sender, clock)
    ctx.begin(call=call, journal=journal)
    try:
        replayed = restore_agent(known.agent_class, run.state)
        decoded = handler.decoder.decode(split_message(message)[1])
    except Exception:  # the capture checks report a state that cannot be restored
        return ""
    function = guarded(handler, replayed, known, ctx, lambda: run.state)
    difference = _asks(function(replayed, decoded, ctx), journal)
    if difference or (draws and any(entry.kind == "effect" for entry in run.entries) and run.is_repeated):
        return difference  # effects read the clock too, and their reads cannot be distinguished
    outcome = ctx.outcome(is_durable=True)
    receivers, sent = ([to for to, _ in sends] for sends in (outcome.sends, ended.sends))
    if any(entry.kind not in NOT_AWAITED for entry in ended.entries):
        sent = sent[len(sent) - len(receivers) :]  # what was sent before adopted results has left at the end too
    if receivers != sent:
        return f"it sends {len(receivers)} messages at its end, not {len(sent)}"
    return "it leaves another state than it did" if _differ(known, replayed, made) else ""


def _asks(coroutine: Any, journal: TurnJournal) -> str:
    """Run the handler to its end with answers from the journal. Describe how the handler diverges, or return "" if it does not diverge."""
    try:
        request = coroutine.send(None)
    except StopIteration:
        journal.end()
        return str(journal.divergence) if journal.divergence is not None else ""
    except DivergenceError as error:
        return str(journal.divergence or error)
    except Exception as error:
        return (
            str(journal.divergence) if journal.divergence is not None else f"it raises {type(error).__name__}: {error}"
        )
    frame = coroutine.cr_frame
    place = f", at {frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
    with contextlib.suppress(Exception):  # a handler that refuses to close stays suspended
        coroutine.close()
    if not isinstance(request, SegmentEnd):
        return f"it awaits a {type(request).__qualname__}{place}"
    return (
        str(journal.divergence)
        if journal.divergence
        else f"it asks for {request.waits.kind} {request.waits.name!r}{place}, where it had ended"
    )


def _differ(known: AgentType, again: Agent, made: Agent) -> bool:
    """Return whether the states still differ after they are decoded and encoded as in a restore."""
    images = [encode_ordered(agent.state) for agent in (again, made)]
    if images[0] == images[1]:
        return False
    try:
        decoded = [encode_ordered(known.state_decoder.decode(image)) for image in images]
    except Exception:  # the capture checks report a state that cannot be decoded
        return False
    return decoded[0] != decoded[1]
