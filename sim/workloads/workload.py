"""Workload of a simulated fleet: the fleet itself, the condition for its end, its invariants over cuts, and its CPU costs.

Theory of operation
-------------------
In most patterns, the workload checks ledgers (`LedgerWorkload`). For a user's own fleet, the user provides inputs and invariants.

*Inputs* for a user's fleet are provided as a list, as a function that generates them, or as a file with one input per line. An input is
`(agent, message)` or `(agent, message, key)`, as in `snapline.Client.send_many`. A message in such an input may also be `(type, fields)`.
Each line in a file is a JSON object in the gateway's format: `{"agent": "till1", "type": "Order", "fields": {"number": 7}}`.

*Invariants* that a user provides may be added to any workload (`CheckedWorkload`). The user's invariant is called for every complete cut,
after the simulator's oracles have verified that the cut is consistent. The function `at_end` is called with the final states when the fleet
is idle. Idleness is a stable property, so the simulator can detect it in a complete cut without activity. Both functions may have one of
these results:

- None, a true value or "" means that the invariant holds.
- A sentence, a false value or a failed `assert` means that the invariant is violated.
- Any other exception makes the run "broken", because the invariant could not be decided.
"""

import copy
import functools
import importlib
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec

import snapline
from snapline.agent_runtime.agent import Message
from snapline.agent_runtime.fleet import Fleet, load_function
from snapline.agent_runtime.snapshots.snapshot_cut import Cut
from snapline.client.sends_and_asks import AgentInput, input_of
from snapline.errors import SnaplineError, UsageError
from snapline.messages.client_requests import GivenInput
from snapline.protocols.names import is_autonomous
from snapline.protocols.policy import Single
from snapline.sim.faults.fault_kinds import duration_ns
from snapline.sim.scenario import FleetPart, TriggerPart
from snapline.sim.workloads.ledger import (
    CutContents,
    InvariantViolatedError,
    Ledger,
    Nudge,
    Plan,
    check_members,
    check_pairs,
    check_timers,
    check_work,
    contents_of,
    name_of,
    states_of,
)
from snapline.sim.world.kernel import SECOND_NS


class Costs(msgspec.Struct, frozen=True):
    """CPU costs of a host's work, in nanoseconds of virtual time.

    Attributes:
        turn_ns: cost of a turn, which is one call of a plain handler and the turn's share of the overhead.
        batch_ns: cost of handling one batch of all other pending events.
        capture_ns: fixed cost of capturing an agent's state (measured value: 2.5 ms for fifty agents).
        capture_byte_ns: additional cost of capturing each byte of an agent's state.
        send_ns: additional cost of sending a message under a logged protocol, for the sender's log entry and the protocol's stamp.
    """

    turn_ns: int = 20_000
    batch_ns: int = 30_000
    capture_ns: int = 50_000
    capture_byte_ns: int = 1
    send_ns: int = 0

    def for_messages(self, times: int) -> "Costs":
        """Return the costs for a run in which each message represents `times` real messages. Agents' states are assumed to grow by the same
        factor."""
        return msgspec.structs.replace(
            self,
            turn_ns=times * self.turn_ns,
            send_ns=times * self.send_ns,
            capture_byte_ns=times * self.capture_byte_ns,
        )


OWN_TURN_NS = 1_000_000
"""Cost of a turn in a user's fleet. With a lower cost, two agents on the same host would take tens of thousands of
useless turns between faults."""

PERIOD_MAX_S = 1.0
"""Maximum checkpoint period in a user's fleet. A run lasts only a few seconds of virtual time, and invariants are checked only in its cuts.
"""

PERIOD_S = 0.5
"""Checkpoint period of a fleet with manual checkpoints. In the simulator, there is no operator who requests checkpoints."""

Make = Callable[[int], snapline.Agent]

Choose = Callable[[str, int], int]
"""Function that takes a choice's name and n, and draws a number from 0 to n - 1. Zero is the benign choice."""

RAISES_ONE_IN = 8
"""The handler of one input in eight usually fails."""


class Workload:
    """A fleet that the simulator runs, with its invariants. This base class has no invariants.

    Attributes:
        ends: whether `is_done` eventually becomes true.
        requests_rollbacks: whether agents may request rollbacks (`ctx.rollback`). If agents may request rollbacks, an operator rolls the
            fleet back when a request has been refused.
        asks_people: whether agents ask for approvals (`ctx.approval`), which a simulated person answers.
        was_rolled_back: whether the fleet was rolled back to a point before a complete epoch, either on purpose or because some of the
            epoch's bytes were lost. The attribute is set before `check_end` is called.
        failure: traceback of an unexpected exception in an invariant, or "" if there was none.
        calling_plan: recovery plan of the host whose call a stub is answering.
        inputs: the user's inputs, which replace `input_of`, or None if the user provides no inputs.
    """

    requests_rollbacks = False
    asks_people = False
    was_rolled_back = False

    def __init__(self, fleet: Fleet, *, ends: bool = False, costs: Costs | None = None) -> None:
        self.fleet = fleet
        self.ends = ends
        self.costs = costs or Costs()
        self.failure, self.calling_plan = "", 0
        self.inputs: GivenInputs | None = None

    def check_cut(self, cut: snapline.Cut) -> str | None:
        """Return a sentence that describes a violated invariant in the cut, or None if all invariants hold."""
        return None

    def input_of(self, agent: str, client: str, serial: int, choose: Choose) -> snapline.Message | None:
        """Return input number `serial` of a client, addressed to this agent, or None if the agent accepts no inputs. No two inputs may be
        identical."""
        return None

    @property
    def takes_inputs(self) -> bool:
        """Return whether the fleet's agents accept inputs from clients."""
        return self.inputs is not None or type(self).input_of is not Workload.input_of

    def is_done(self, states: Mapping[str, object]) -> bool:
        """Return whether no agent will take another turn, because there are no messages left to send or consume and no timer is set."""
        return False

    def check_end(self, states: Mapping[str, object]) -> str | None:
        """Return a sentence that describes a violated invariant in the final states, or None if all invariants hold. This method is called
        only when `is_done` is true."""
        return None


def user_workload(fleet: Fleet, every: str = "") -> Workload:
    """Return a workload without invariants for a user's fleet. If `every` is not "", it is the checkpoint period, and it replaces the
    fleet's own triggers."""
    copied = copy.copy(fleet)  # do not change the user's object
    copied.triggers = user_triggers(fleet, every)
    return Workload(copied, costs=Costs(turn_ns=OWN_TURN_NS))


def user_triggers(fleet: Fleet, every: str) -> tuple[Single, ...]:
    """Return the checkpoint triggers of a user's fleet, with periods of at most `PERIOD_MAX_S`. If `every` is not "", return a trigger with
    this period instead.

    Raises:
        UsageError: If `every` is not a valid duration.
    """
    if every:
        return (snapline.Every(duration_ns(every) / SECOND_NS),)
    if not fleet.triggers and not is_autonomous(fleet.protocol):
        return (snapline.Every(PERIOD_S),)
    return tuple([_quick(trigger) for trigger in fleet.triggers])


def _quick(trigger: Single) -> Single:
    match trigger:
        case snapline.Every() if trigger.seconds > PERIOD_MAX_S:
            return snapline.Every(PERIOD_MAX_S, trigger.jitter)
        case _:
            return trigger


class UserWorkload(Workload):
    """Workload for a fleet about which the simulator knows only that it eventually becomes idle. The work is finished when the fleet is
    idle."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet, ends=True)

    def is_done(self, states: Mapping[str, object]) -> bool:
        return True  # called only when the fleet is idle


class LedgerWorkload(Workload):
    """Workload whose agents keep ledgers (`ledger.py`).

    Attributes:
        total: initial amount of work, which equals the total number of messages that the agents will send.
    """

    def __init__(self, fleet: Fleet, *, total: int, ends: bool) -> None:
        super().__init__(fleet, ends=ends)
        self.total = total

    def check_cut(self, cut: snapline.Cut) -> str | None:
        try:
            self.check_contents(contents_of(cut))
        except InvariantViolatedError as error:
            return str(error)
        return None

    def input_of(self, agent: str, client: str, serial: int, choose: Choose) -> snapline.Message | None:
        return nudge(client, serial, choose)

    def check_contents(self, books: CutContents) -> None:
        """Check all ledger invariants.

        Raises:
            InvariantViolatedError: If an invariant is violated.
        """
        check_members(books, self.fleet.agents)
        check_pairs(books)
        check_work(books, self.total)
        check_timers(books)

    def is_done(self, states: Mapping[str, object]) -> bool:
        takes = 0
        for state in states.values():
            if not isinstance(state, Ledger) or state.is_ticking:
                return False
            takes += state.takes
        return self.ends and takes == self.total

    def check_end(self, states: Mapping[str, object]) -> str | None:
        try:
            books = CutContents(states_of(states), {}, {}, {}, 0)
            self.check_contents(books)
        except InvariantViolatedError as error:
            return f"at the end: {error}"
        left = sum([state.work for state in books.states.values()])
        return f"at the end: {left} of work is not done" if left else None


def nudge(client: str, serial: int, choose: Choose) -> Nudge:
    """Return an input that most patterns accept. The input causes a turn and an answer."""
    return Nudge(client, serial, choose("raises", RAISES_ONE_IN) == RAISES_ONE_IN - 1)


def make_fleet(part: FleetPart, make: Make, *, own: list[Single] | None = None) -> Fleet:
    """Return a pattern's fleet. `make` creates the agent with the given index. If `own` is not None, its checkpoint triggers replace the
    scenario's trigger."""
    agents = {name_of(index): functools.partial(make, index) for index in range(part.agents)}
    triggers = triggers_of(part.protocol, part.trigger) if own is None else own
    return Fleet(part.pattern.name, agents=agents, protocol=part.protocol, triggers=triggers)


def with_protocol(fleet: Fleet, part: FleetPart) -> Fleet:
    """Return a fleet with the same agents, but with the protocol and checkpoint trigger of the scenario.

    The returned fleet has no `stop_when`, because `stop_when` requires epochs. Without `stop_when`, the run ends when the fleet is idle.

    Raises:
        FleetDefinitionError: If the checkpoint trigger is not valid for the protocol.
    """
    return Fleet(
        fleet.name,
        agents=fleet.agents,
        protocol=part.protocol,
        triggers=triggers_of(part.protocol, part.trigger),
        epoch_timeout_s=fleet.epoch_timeout_s,
        log_bytes_max=fleet.log_bytes_max,
        simulate=fleet.simulate,
        recovery=part.recovery,
    )


def triggers_of(protocol: str, trigger: TriggerPart) -> list[Single]:
    """Return the scenario's checkpoint trigger in the form that the constructor of `Fleet` accepts. The constructor rejects a trigger that
    is invalid for the protocol.

    Raises:
        UsageError: If a value is invalid.
    """
    match trigger.kind:
        case "period":
            return [snapline.Every(trigger.every_ns / SECOND_NS, trigger.jitter)]
        case "messages":
            return [snapline.EveryMessages(trigger.messages)]
        case "adaptive":
            return [snapline.Adaptive(least_s=trigger.every_ns / SECOND_NS)]
        case "none":
            return [snapline.Manual()] if is_autonomous(protocol) else []


def plan_of(part: FleetPart, pause_ns: int) -> Plan:
    """Return the settings that all agents in a pattern share."""
    return Plan(part.agents, part.pattern.payload_bytes, pause_ns)


def pause_ns(part: FleetPart, senders: int) -> int:
    """Return how long each of `senders` agents must pause after a message, in nanoseconds, so that together they keep the pattern's message
    rate. Return 0 if the pattern has no message rate."""
    rate = part.pattern.rate_per_s
    return max(1, round(senders * SECOND_NS / rate)) if rate else 0


def check_agents(part: FleetPart, *, least: int = 2, most: int = 0) -> None:
    """Check that the pattern supports the number of agents in the scenario.

    Raises:
        UsageError: If there are too few or too many agents.
    """
    if part.agents < least:
        raise UsageError(f"fleet.agents is {part.agents}: pattern {part.pattern.name} needs at least {least}")
    if most and part.agents > most:
        raise UsageError(f"fleet.agents is {part.agents}: pattern {part.pattern.name} takes at most {most}")


def lanes_of(agents: int, length: int) -> list[range]:
    """Divide the agents into lanes of at least `length` agents. If there are fewer than `length` agents, they form a single lane."""
    lanes = max(1, agents // length)
    return [range(lane * agents // lanes, (lane + 1) * agents // lanes) for lane in range(lanes)]


# -- a user's inputs ----------------------------------------------------------------------------------------------------

Inputs = Sequence[AgentInput] | Callable[..., Iterable[AgentInput]] | Path | str
"""Inputs that a test provides. A function takes either no argument or a `random.Random`. A string is "module:name" or a file path."""

MakeInputs = Callable[[Random], Iterable[AgentInput]]

GENERATED_INPUTS_MAX = 100
"""Maximum number of inputs that a run takes from a function."""


class RecordedInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The input that one line of an input file describes."""

    agent: str
    type: str
    fields: Any = {}
    key: str | None = None


class GivenInputs:
    """Inputs that the user provides for a fleet.

    Attributes:
        count: number of inputs, or None if it is unknown because a function generates the inputs.
    """

    def __init__(self, inputs: Inputs) -> None:
        """Accept inputs in any of the supported forms.

        Raises:
            UsageError: If `inputs` has an unsupported form.
        """
        self.count: int | None = None
        self._make: MakeInputs
        match inputs:
            case str() if ":" in inputs and not Path(inputs).exists():
                self._keep(_load_named(inputs))
            case str() | Path():
                self._keep(_read_recorded(Path(inputs)))
            case _:
                self._keep(inputs)

    def _keep(self, inputs: Any) -> None:  # Any: unchecked user input
        if callable(inputs):
            self._make = _maker_of(inputs)
        elif isinstance(inputs, Iterable):
            listed = [each for each in inputs]
            for each in listed:
                _check(each, "k")
            self.count, self._make = len(listed), lambda _: listed
        else:
            raise UsageError(
                f"inputs {inputs!r} cannot be given: use a list of (agent, message), a function that makes them, "
                "'module:name', or the path of a file with a JSON object on each line"
            )

    def inputs_of_run(self, chance: Random) -> Iterator[AgentInput]:
        """Return an iterator over the inputs of one run. If a function generates the inputs, it is called with `chance`."""
        most = GENERATED_INPUTS_MAX if self.count is None else self.count
        return islice(iter(self._make(chance)), most)


def to_given_input(each: AgentInput, key: str) -> GivenInput:
    """Return an input in the form that a client sends. If the input has no idempotency key, it gets the key `key`.

    Raises:
        SnaplineError: If a client could not send the input.
    """
    return input_of(each[0], each[1], each[2] if len(each) > 2 and each[2] is not None else key)


def _check(each: object, key: str) -> None:
    try:
        if isinstance(each, tuple) and 2 <= len(each) <= 3 and isinstance(each[0], str):
            to_given_input(each, key)
            return
    except SnaplineError as error:
        raise UsageError(f"{each!r} is no input: {error}") from error
    raise UsageError(f"{each!r} is no input: write (agent, message) or (agent, message, key)")


def _maker_of(function: Callable[..., Iterable[AgentInput]]) -> MakeInputs:
    try:
        takes_chance = bool(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        takes_chance = False
    return function if takes_chance else lambda _: function()


def _load_named(reference: str) -> object:
    module, _, name = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"inputs {reference!r} cannot be loaded: {error}") from error


def _read_recorded(place: Path) -> list[AgentInput]:
    try:
        lines = place.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"inputs {str(place)!r} cannot be read: {error.strerror or error}") from error
    inputs: list[AgentInput] = []
    for number, line in enumerate(lines, 1):
        try:
            record = msgspec.json.decode(line, type=RecordedInput) if line.strip() else None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UsageError(f"{place}:{number} is no input: {error}") from error
        if record is not None:
            inputs.append((record.agent, (record.type, record.fields), record.key))
    return inputs


# -- a user's invariants ------------------------------------------------------------------------------------------------

Invariant = Callable[[Cut], object]
AtEnd = Callable[[Mapping[str, object]], object]

STATE_SHOWN = 100
"""Maximum number of characters to show of the state that an invariant read last."""

_Seen = TypeVar("_Seen")


def checked(inner: Workload, part: FleetPart) -> Workload:
    """Return the workload with the scenario's user-defined invariants added.

    Raises:
        FleetDefinitionError: If a function named by the scenario does not exist.
    """
    if not part.invariant and not part.at_end:
        return inner
    invariant = load_function(part.invariant) if part.invariant else None
    return CheckedWorkload(inner, invariant=invariant, at_end=load_function(part.at_end) if part.at_end else None)


class CheckedWorkload(Workload):
    """A workload with additional invariants provided by the user."""

    def __init__(self, inner: Workload, *, invariant: Invariant | None, at_end: AtEnd | None) -> None:
        super().__init__(inner.fleet, ends=inner.ends or at_end is not None, costs=inner.costs)
        self.inputs = inner.inputs
        self._inner = inner
        self._invariant, self._at_end = invariant, at_end
        self._quiet: Cut | None = None

    @property
    def takes_inputs(self) -> bool:
        return self.inputs is not None or self._inner.takes_inputs

    def input_of(self, agent: str, client: str, serial: int, choose: Choose) -> Message | None:
        return self._inner.input_of(agent, client, serial, choose)

    def check_cut(self, cut: Cut) -> str | None:
        if self._at_end is not None and cut.is_quiet:
            self._quiet = cut
        broken = self._inner.check_cut(cut)
        if broken or self._invariant is None:
            return broken
        cut.states = read = _ReadStates(cut.states)
        return self._ask(self._invariant, cut, read=read)

    def is_done(self, states: Mapping[str, object]) -> bool:
        """Return whether the fleet is idle. If `at_end` was given, a cut without activity must show that the fleet is idle, because timers
        may be set even if all hosts are idle."""
        if self._inner.ends and not self._inner.is_done(states):
            return False
        return self._at_end is None or self._quiet is not None

    def check_end(self, states: Mapping[str, object]) -> str | None:
        broken = self._inner.check_end(states) if self._inner.ends else None
        if broken or self._at_end is None:
            return broken
        if self._quiet is not None and any(agent not in states for agent in self._quiet.states):
            states = dict(
                self._quiet.states
            )  # if `stop_when` has ended the fleet, its hosts are gone, or have returned without agents
        read = _ReadStates(states)
        return self._ask(self._at_end, read, read=read, when="at the end: ")

    def _ask(
        self, question: Callable[[_Seen], object], seen: _Seen, *, read: "_ReadStates", when: str = ""
    ) -> str | None:
        name = getattr(question, "__name__", "the invariant").replace("<lambda>", "the invariant")
        try:
            answer = question(seen)
            if isinstance(answer, str):
                return f"{when}{answer}" if answer else None
            return (
                None
                if answer is None or answer
                else f"{when}{name} is {answer!r} ({_place_of(question)}{read.last_state_text()})"
            )
        except AssertionError as error:
            first, *others = (str(error) or "assert").splitlines()
            return "\n".join([f"{when}{name}: {first} ({_line_of(error)}{read.last_state_text()})", *others])
        except Exception as error:
            trace = error.__traceback__ and error.__traceback__.tb_next  # skip this function's own stack frame
            self.failure = "".join([f"{name} raised\n", *traceback.format_exception(type(error), error, trace)])
            return f"{when}{name} raised ({_line_of(error, below=1)}{read.last_state_text()})"


class _ReadStates(Mapping[str, object]):
    """The agents' states. The mapping remembers which state was read last, because a failing invariant is usually about that state."""

    def __init__(self, states: Mapping[str, object]) -> None:
        self._states = states
        self._last: str | None = None

    def __getitem__(self, agent: str) -> object:
        self._last = agent
        return self._states[agent]

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def last_state_text(self) -> str:
        """Describe the state that was read last, in a form that can be appended to a source location."""
        if self._last is None:
            return "; it read no state"
        if self._last not in self._states:
            return f"; there is no agent {self._last!r}"
        try:
            shown = repr(self._states[self._last])
        except Exception as error:  # raised by the user's own `__repr__`
            shown = f"<its repr raised {type(error).__name__}>"
        if len(shown) > STATE_SHOWN:
            shown = f"{shown[:STATE_SHOWN]}…"
        return f"; the last state it read: {self._last}, {' '.join(shown.split())}"


def _line_of(error: Exception, below: int | None = None) -> str:
    """Return the source location at which the error was raised. If `below` is given, return the location in the stack frame that is `below`
    levels below the frame that caught the error."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = frames[-1] if below is None else frames[: below + 1][-1]
    return f"{frame.filename}:{frame.lineno}"


def _place_of(question: Callable[[_Seen], object]) -> str:
    code = getattr(question, "__code__", None)
    return (
        f"{code.co_filename}:{code.co_firstlineno}" if code else getattr(type(question), "__qualname__", "a callable")
    )
