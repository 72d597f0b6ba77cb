"""Definition of a fleet: its agents, how they are checkpointed, and when the fleet ends.

A checkpoint records an agent's class as its *kind*. The functions at the end of this module look up the classes of recorded kinds, check
that recorded states still fit these classes, and restore agents from checkpoints.
"""

import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NoReturn

import blake3
import msgspec

from snapline.agent_runtime.agent import UNDO_STATE_BYTES_MAX, Agent, AgentType, agent_type
from snapline.agent_runtime.message_encoding import encode_body, field_names
from snapline.agent_runtime.migrations import MigrationError, MigrationPlan, check_steps, load_state, plan_migration
from snapline.errors import EncodingError, FleetDefinitionError, SnaplineError, UsageError
from snapline.ids import check_id
from snapline.protocols.names import PROTOCOLS, is_autonomous
from snapline.protocols.policy import Adaptive, AnyOf, Every, EveryMessages, Manual, Policy, Single, format_policy
from snapline.storage.capture.declared_values import check_declared, difference, survives_round_trip
from snapline.storage.capture.encoder import StateEncoder, explain
from snapline.storage.capture.encoder import check as check_sharing
from snapline.storage.capture.image import ArenaPool, ChunkTable
from snapline.storage.disk.record import Buffer
from snapline.storage.packs.checkpoint import AgentCheckpoint

if TYPE_CHECKING:
    from snapline.agent_runtime.snapshots.snapshot_cut import Cut


DEFAULT_POLICY: Policy = Every(1.0)
"""Default checkpoint policy of fleets whose agents checkpoint on their own."""

LINE_PERIOD_LEAST_S = 0.5
"""Smallest time between two epochs that the coordinator of such a fleet makes from its recovery line. Each such epoch reads and writes all
states."""

LOG_BYTES_MAX = 256 * 1024 * 1024
"""Default limit of sender logs in the store."""

EPOCH_TIMEOUT_S = 60.0
"""Default time after which an unfinished epoch is aborted. Use a longer time for agents with longer turns."""

OBJECTIVE_MOST_S = 1e9
"""Largest value of `rpo_s` and `rto_s`, about thirty years. In nanoseconds such a value still fits into 64 bits."""

BUSY_LIMIT_S = 300.0
"""Default time for which agent code may block a host: long enough for a solver, and short enough to detect an endless loop soon."""

BUSY_LIMIT_S_MIN = 2.0
"""Smallest `busy_limit_s`. Shorter blockages are normal, and the event loop is checked only once a second."""

AgentSource = Agent | Callable[[], Agent]

Stubs = Mapping[str, Callable[..., object]]
"""Step name → stub: the simulator calls stubs instead of the steps' functions."""


class Fleet:
    """Definition of a fleet of agents; every host must use the same one.

    Args:
        name: the fleet's name; `[A-Za-z0-9_.-]{1,128}`.
        agents: agent id → agent, or a function without arguments that makes the agent. If functions are given, each host makes only its own
            agents. The functions must make the same agents in every process.
        protocol: the checkpointing protocol, fixed for the fleet's life. Coordinated: "chandy-lamport" (Lai and Yang's stamps with Chandy
            and Lamport's markers), "koo-toueg". Agents checkpoint on their own: "uncoordinated", and communication-induced "bcs", "hmnr",
            "fdas", "fdi", "bhmr", "nras", "cbr", "cas" (docs/protocols.md compares them).
        triggers: when to take checkpoints. Coordinated fleets accept one `Every` for all agents together; without it, checkpoints are taken
            manually (`snapline snapshot create`). Agents that checkpoint on their own do so as soon as one of `Every`, `EveryMessages`,
            `Adaptive` requires a checkpoint; default: every second. With `Manual()` only `ctx.checkpoint()` and the protocol take
            checkpoints.
        stop_when: predicate called with each complete cut (or only the newest, if the predicate is slow); `True` ends the fleet. It must be a stable
            property, one that stays true once it is true (Chandy and Lamport 1985, section 1), such as "all agents are done and nothing is in
            transit".
        epoch_timeout_s: time after which an unfinished epoch is aborted.
        log_bytes_max: limit of sender logs in the store. Above it, a fleet whose recovery line does not advance (domino effect) is paused
            briefly for a consistent cut, after which the logs are deleted.
        place: placement rules: agent id, or id prefix followed by an asterisk → one or more hosts. The first matching rule applies, as long as one of
            its hosts is present. A spawned agent starts on the host of its parent.
        rpo_s, rto_s: objectives in seconds: the most work that a failure may undo, and the longest recovery, from the first suspicion of a
            failure until all hosts have applied the recovery plan. These objectives change no behaviour: the coordinator reports missed
            objectives in `snapline status`, in the view and in its log. None: no report.
        busy_limit_s: if agent code blocks a host's event loop for this time, the host process exits and the fleet recovers
            (docs/durable-turns.md, "What may block"). None: never. Hosts of one fleet may differ in this.
        simulate: name of a step → stub. Only `snapline sim` and the pytest fixture call the stub, with the step's arguments, instead of the
            step's function. The stub of an effect has the effect's name; its probe is `NAME/probe`, its compensation `NAME/undo`.
            Alternatively, a function without arguments that makes this mapping for each run, so that runs share no stubs.
        compensation_modules: modules or packages whose functions may be compensations of effects, in addition to the packages of the agents' classes.
            Functions in other modules are never called, even if data in the store names them.

    Raises:
        FleetDefinitionError: the definition is not valid.
    """

    def __init__(
        self,
        name: str,
        *,
        agents: Mapping[str, AgentSource],
        protocol: str = "chandy-lamport",
        triggers: Iterable[Single] = (),
        stop_when: "Callable[[Cut], bool] | None" = None,
        epoch_timeout_s: float = EPOCH_TIMEOUT_S,
        log_bytes_max: int = LOG_BYTES_MAX,
        place: Mapping[str, str | Iterable[str]] | None = None,
        simulate: Stubs | Callable[[], Stubs] | None = None,
        rpo_s: float | None = None,
        rto_s: float | None = None,
        busy_limit_s: float | None = BUSY_LIMIT_S,
        compensation_modules: Iterable[str] = (),
    ) -> None:
        self.name = check_id(name, "fleet")
        self.agents = dict(agents)
        self.protocol = protocol
        if isinstance(triggers, Every | EveryMessages | Adaptive | Manual):
            raise FleetDefinitionError(f"triggers is a list: write triggers=[{triggers!r}]")
        self.triggers = tuple(triggers)
        self.stop_when = stop_when
        self.epoch_timeout_s = epoch_timeout_s
        self.log_bytes_max = log_bytes_max
        self.place = places_of(place or {})
        self.simulate = simulate
        self.rpo_s = rpo_s
        self.rto_s = rto_s
        self.busy_limit_s = busy_limit_s
        self.compensation_modules = _modules_of(compensation_modules)
        self.classes: dict[str, type[Agent]] = {}  # cache of classes, by kind; even a large fleet has few kinds
        self._check()

    def _check(self) -> None:
        if not self.agents:
            raise FleetDefinitionError(f"fleet {self.name!r} has no agents: give at least one")
        for agent, source in self.agents.items():
            if not isinstance(agent, str):
                raise FleetDefinitionError(f"agent {agent!r} is named by a {type(agent).__qualname__}: use text")
            check_id(agent)
            if not isinstance(source, Agent) and not callable(source):
                raise FleetDefinitionError(
                    f"agent {agent!r} is a {type(source).__qualname__}: give a snapline.Agent, or a function that makes one"
                )
        for agent_class in dict.fromkeys(type(source) for source in self.agents.values() if isinstance(source, Agent)):
            check_steps(agent_class)
        if self.protocol not in PROTOCOLS:
            raise FleetDefinitionError(f"protocol {self.protocol!r} is not known: use one of {', '.join(PROTOCOLS)}")
        self._check_triggers()
        if not isinstance(self.log_bytes_max, int) or self.log_bytes_max <= 0:
            raise FleetDefinitionError(f"log_bytes_max is a number of bytes above 0, not {self.log_bytes_max!r}")
        if not _is_duration(self.epoch_timeout_s):
            raise FleetDefinitionError(f"epoch_timeout_s must be above 0, it is {self.epoch_timeout_s!r}")
        if self.busy_limit_s is not None and not BUSY_LIMIT_S_MIN <= self.busy_limit_s <= OBJECTIVE_MOST_S:
            raise FleetDefinitionError(
                f"busy_limit_s is a time of {BUSY_LIMIT_S_MIN:g} seconds or more, or None, not {self.busy_limit_s!r}"
            )
        self._check_objectives()
        if self.stop_when is not None and not callable(self.stop_when):
            raise FleetDefinitionError(f"stop_when is {self.stop_when!r}: give a function that takes a snapline.Cut")
        if self.simulate is not None and not callable(self.simulate):
            check_stubs(self.simulate)

    def _check_objectives(self) -> None:
        for name, time_s in (("rpo_s", self.rpo_s), ("rto_s", self.rto_s)):
            if time_s is not None and not _is_objective(time_s):
                raise FleetDefinitionError(f"{name} is a time in seconds above 0, or None, not {time_s!r}")
        if self.rpo_s is not None and self.period_ns >= self.rpo_s * 1e9:
            raise FleetDefinitionError(
                f"rpo_s={self.rpo_s:g} cannot be kept with an epoch every {self.period_ns / 1e9:g} s: "
                "let epochs come more often, or allow more to be lost"
            )

    def _check_triggers(self) -> None:
        for trigger in self.triggers:
            if not isinstance(trigger, Every | EveryMessages | Adaptive | Manual):
                raise FleetDefinitionError(f"{trigger!r} is no trigger: use snapline.Every(seconds=…) above 0")
        if is_autonomous(self.protocol):
            return
        for trigger in self.triggers:
            if not isinstance(trigger, Every):
                raise FleetDefinitionError(
                    f"{trigger!r} is for agents that checkpoint on their own; {self.protocol} takes snapline.Every"
                )
        if len(self.triggers) > 1:
            raise FleetDefinitionError("give at most one snapline.Every: the shorter one would hide the other")

    @property
    def policy(self) -> Policy:
        """Return the policy by which agents checkpoint on their own."""
        if not self.triggers:
            return DEFAULT_POLICY
        return self.triggers[0] if len(self.triggers) == 1 else AnyOf(self.triggers)

    @property
    def period_ns(self) -> int:
        """Return the nanoseconds between two periodic epochs; 0 = no periodic epochs."""
        periods = [trigger.seconds for trigger in self.triggers if isinstance(trigger, Every)]
        if is_autonomous(self.protocol):
            return round(max(LINE_PERIOD_LEAST_S, min(periods, default=1.0)) * 1e9)
        return round(periods[0] * 1e9) if periods else 0

    def make(self, agent: str) -> Agent:
        """Make one agent in its initial state and check that it can be checkpointed.

        Raises:
            FleetDefinitionError, EncodingError: the agent cannot be made or checkpointed; the message names the agent and the field.
        """
        source = self.agents[agent]
        agent_object = source if isinstance(source, Agent) else source()
        if not isinstance(agent_object, Agent):
            raise FleetDefinitionError(
                f"the function for agent {agent!r} made a {type(agent_object).__qualname__}, no Agent"
            )
        known = agent_type(type(agent_object))
        check_steps(type(agent_object))
        image = encode_unchecked(agent, agent_object, known)
        check_state_image(agent, agent_object, known, image)
        try:
            check_sharing(agent_object.state)
        except EncodingError as error:
            raise EncodingError(unsavable(agent, known, error)) from error
        self._check_class(agent, type(agent_object))
        if len(image) > UNDO_STATE_BYTES_MAX and agent_object.on_error is None:
            raise FleetDefinitionError(
                f"the state of agent {agent!r} takes {len(image):,} bytes, more than the {UNDO_STATE_BYTES_MAX:,} of "
                f"which an image is taken before every turn: set on_error in class {type(agent_object).__qualname__} "
                "to 'undo' (and pay for it), 'keep' or 'recover'"
            )
        if isinstance(source, Agent):
            # The agent in the definition stays unchanged, since a later recovery to the initial states starts from it
            # again.
            agent_object = restore_agent(type(agent_object), image)
        return agent_object

    def _check_class(self, agent: str, agent_class: type[Agent]) -> None:
        """Refuse a class that another process could not find by its name during a recovery."""
        try:
            module: object = sys.modules[agent_class.__module__]
            found_class = reduce(getattr, agent_class.__qualname__.split("."), module)
        except (KeyError, AttributeError):
            found_class = None
        if found_class is not agent_class and not any(type(source) is agent_class for source in self.agents.values()):
            raise FleetDefinitionError(
                f"agent {agent!r} is of class {agent_class.__qualname__}, which cannot be found by that name: "
                "define it at module level"
            )

    def kind_of(self, agent: str) -> str:
        """Return the kind that is recorded for the agent's class. The agent itself need not have been made yet."""
        source = self.agents[agent]
        if isinstance(source, Agent):
            return agent_type(type(source)).kind
        function = getattr(source, "func", source)
        named = function if hasattr(function, "__qualname__") else type(function)  # a repr would have a memory address
        return f"{getattr(named, '__module__', '')}:{named.__qualname__}()"

    def definition_digest(self) -> bytes:
        """Return a digest that is equal on hosts that define the same fleet; the coordinator rejects hosts with another digest."""
        when = (self.period_ns, format_policy(self.policy), self.epoch_timeout_s, self.log_bytes_max)
        parts = (self.name, self.protocol, when, self.stop_when is None)
        agents = tuple((agent, self.kind_of(agent)) for agent in self.agents)
        # a fleet that uses none of these options keeps the digest of earlier versions
        places = (tuple(self.place.items()),) if self.place else ()
        objective_values = {"rpo_s": self.rpo_s, "rto_s": self.rto_s}
        objectives = tuple([(name, float(time_s)) for name, time_s in objective_values.items() if time_s is not None])
        return blake3.blake3(msgspec.msgpack.encode((parts, agents, *places, *objectives))).digest()

    def definition_parts(self) -> tuple[str, ...]:
        """Return the parts of the definition that the digest covers, as `name=value`; a rejection shows which of them differ."""
        agents = [f"{agent} ({self.kind_of(agent)})" for agent in self.agents]
        names = ", ".join(sorted(agents))
        if len(names) > AGENTS_CHARACTERS_MAX:
            digest = blake3.blake3(names.encode()).hexdigest(length=4)
            names = f"{len(agents):,} of digest {digest}"
        parts = {
            "agents": names,
            "protocol": self.protocol,
            "triggers": format_policy(self.policy) or "none",
            "epoch_timeout_s": f"{self.epoch_timeout_s:g}",
            "log_bytes_max": str(self.log_bytes_max),
            "place": str(self.place or "none")[:AGENTS_CHARACTERS_MAX],
            "rpo_s": str(self.rpo_s),
            "rto_s": str(self.rto_s),
            "stop_when": "none" if self.stop_when is None else "given",
        }
        return tuple([f"{name}={value}" for name, value in parts.items()])


AGENTS_CHARACTERS_MAX = 400
"""Largest number of characters that agents' names take in a rejection message; further agents are only counted."""


def own_modules(agent_class: type, listed: Iterable[str]) -> tuple[str, ...]:
    """Return the modules whose functions may undo effects of agents of this class; their submodules are included. `listed`: modules that
    the fleet names.

    For a class of snapline itself, only the package around the class is returned, not all of snapline.
    """
    modules = [base.__module__ for base in agent_class.__mro__ if base not in Agent.__mro__]
    packages = [name.rpartition(".")[0] if name.startswith("snapline.") else name.partition(".")[0] for name in modules]
    return tuple(dict.fromkeys((*packages, *listed)))


def _modules_of(given: object) -> tuple[str, ...]:
    modules = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    for module in modules:
        if isinstance(given, str) or not isinstance(module, str) or not all(map(str.isidentifier, module.split("."))):
            raise FleetDefinitionError(
                f"compensation_modules names modules, such as ['shop.refunds'], and not {given!r}"
            )
    return modules


def places_of(place: object) -> dict[str, tuple[str, ...]]:
    """Parse `Fleet(place=…)` into rules.

    Raises:
        FleetDefinitionError: the value is not such a mapping; the message names the rule.
    """
    if not isinstance(place, Mapping):
        raise FleetDefinitionError(f"place is a {type(place).__qualname__}: give a dictionary, agents → hosts")
    rules: dict[str, tuple[str, ...]] = {}
    for agents, host_names in place.items():
        hosts = (
            (host_names,)
            if isinstance(host_names, str)
            else tuple(host_names)
            if isinstance(host_names, Iterable)
            else ()
        )
        try:
            if not isinstance(agents, str):
                raise UsageError("agents are named by text")
            check_id((agents[:-1] or "any") if agents.endswith("*") else agents)
            rules[agents] = tuple([check_id(host, "host") for host in hosts])
        except UsageError as error:
            raise FleetDefinitionError(f"place={{{agents!r}: {host_names!r}}}: {error}") from error
        if not hosts:
            raise FleetDefinitionError(f"place={{{agents!r}: {host_names!r}}}: name a host, or several")
    return rules


def stubs_of(fleet: Fleet) -> Stubs | None:
    """Return the stubs of one simulated run; None if the fleet has none.

    Raises:
        FleetDefinitionError: the stubs are not valid.
    """
    if not callable(fleet.simulate):
        return fleet.simulate
    stubs = fleet.simulate()
    check_stubs(stubs)
    return stubs


def check_stubs(stubs: object) -> None:
    """Raise FleetDefinitionError unless the value is a mapping of names to functions."""
    if not isinstance(stubs, Mapping):
        raise FleetDefinitionError(f"simulate is a {type(stubs).__qualname__}: give a dictionary, step's name → stub")
    for name, stub in stubs.items():
        if not isinstance(name, str) or not callable(stub):
            raise FleetDefinitionError(
                f"simulate has {name!r}: {stub!r}: give a step's name, and a function as its stub"
            )


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < math.inf


def _is_objective(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= OBJECTIVE_MOST_S


def restore_agent(agent_class: type[Agent], image: bytes) -> Agent:
    """Return an agent of `agent_class` with the state from `image`; the constructor is not called."""
    agent_object = agent_class.__new__(agent_class)
    agent_object.state = agent_type(agent_class).state_decoder.decode(image)
    return agent_object


def encode_state(agent: str, made: Agent, known: AgentType, handlers: Iterable[str] = ()) -> bytes:
    """Encode an agent's state, and check that it decodes to an equal state.

    Raises:
        EncodingError: the state cannot be saved; the message names the agent, the field, the handlers that may have caused the error, and
            the next step.
    """
    image = encode_unchecked(agent, made, known, handlers)
    if known.state_type is not None:
        try:
            check_declared(made.state, known.state_type, "state")
        except EncodingError as error:
            raise EncodingError(unsavable(agent, known, error, handlers)) from error
    return image


def encode_unchecked(agent: str, made: Agent, known: AgentType, handlers: Iterable[str] = ()) -> bytes:
    """Encode an agent's state like `encode_state`, but without its check. The caller calls `check_state_image` afterwards.

    Raises:
        EncodingError: the state cannot be encoded; the message names the agent, the field, the handlers that may have caused the error, and
            the next step.
    """
    try:
        if known.agent_class.allow_pickle:
            return StateEncoder(ArenaPool(), allow_pickle=True).encode_inline(made.state)
        return encode_body(made.state)
    except EncodingError as error:
        raise EncodingError(unsavable(agent, known, error, handlers)) from error
    except (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
        raise EncodingError(unsavable(agent, known, explain(made.state, error), handlers)) from error


def unsavable(agent: str, known: AgentType, why: object, handlers: Iterable[str] = ()) -> str:
    """Describe why a state cannot be saved, and what to store instead."""
    after = " or ".join(handlers)
    return (
        f"the state of agent {agent!r} ({known.state_name}) cannot be saved{after and f' after {after}'}: {why}; "
        "keep numbers, text, bytes, lists, dicts, sets, structs, dataclasses or NumPy arrays there"
    )


def check_skeleton(agent: str, known: AgentType, skeleton: Buffer, handlers: Iterable[str] = ()) -> None:
    """Refuse a state in which a field holds another type than declared. Such a state could be written, but a recovery from it would fail.

    Raises:
        EncodingError: a field holds another type; the message names the agent, the field, and the handlers that may have caused it.
    """
    try:
        known.state_reader.decode(skeleton)
    except Exception as error:
        raise EncodingError(
            f"the state of agent {agent!r} ({known.state_name}) does not come back as declared: {error}; "
            f"{' or '.join(handlers) or 'a handler'} of class {known.agent_class.__qualname__} puts something else there"
        ) from error


def check_state_image(agent: str, made: Agent, known: AgentType, image: bytes) -> None:
    """Refuse a state that cannot be decoded again, or that decodes to another state.

    Raises:
        FleetDefinitionError: the state is refused; the message names the agent and the problem.
    """
    where = f"the state of agent {agent!r} does not come back as declared"
    if known.state_type is None and made.state is not None:
        raise FleetDefinitionError(f"{where}: declare `state: …` in class {known.agent_class.__qualname__}")
    try:
        back = known.state_reader.decode(image)
    except Exception as error:
        raise FleetDefinitionError(f"{where} ({known.state_name}): {error}") from error
    if type(back) is not type(made.state) and (field_names(type(back)) or field_names(type(made.state))):
        raise FleetDefinitionError(
            f"{where}: it is a {type(made.state).__qualname__}, the state of class "
            f"{known.agent_class.__qualname__} is declared as {known.state_name}"
        )
    if known.state_type is not None and not survives_round_trip(made.state, known.state_type):
        raise FleetDefinitionError(f"{where}: {difference(made.state, known.state_type, 'state')}")


def load_fleet(target: str, arguments: Mapping[str, str]) -> Fleet:
    """Load `MODULE:FLEET`, where FLEET is a Fleet or a function that returns one; `arguments` are passed to the function.

    Raises:
        FleetDefinitionError: `target` or an argument is wrong; the message is one sentence.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise FleetDefinitionError(f"{target!r} does not name a fleet: write MODULE:FLEET, such as my_agents:fleet")
    target_object = _attribute(_import(module_name), module_name, attribute)
    if isinstance(target_object, Fleet):
        if arguments:
            raise FleetDefinitionError(
                f"{target} is a fleet, not a function: it takes no --arg {next(iter(arguments))}"
            )
        return target_object
    if not callable(target_object):
        raise FleetDefinitionError(
            f"{target} is a {type(target_object).__qualname__}: name a snapline.Fleet or a function"
        )
    try:
        inspect.signature(target_object).bind(**arguments)
    except TypeError as error:
        raise FleetDefinitionError(f"--arg does not fit {target}: {error}") from error
    try:
        fleet = target_object(**arguments)
    except SnaplineError:
        raise
    except Exception as error:
        options = "".join(f" --arg {key}={value}" for key, value in arguments.items())
        raise FleetDefinitionError(f"{target}{options} raised {type(error).__name__}: {error}") from error
    if not isinstance(fleet, Fleet):
        raise FleetDefinitionError(f"{target}() returned a {type(fleet).__qualname__}, no snapline.Fleet")
    return fleet


def load_function(target: str) -> Callable[..., object]:
    """Load the function that `MODULE:FUNCTION` names.

    Raises:
        FleetDefinitionError: `target` is wrong; the message is one sentence.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise FleetDefinitionError(
            f"{target!r} does not name a function: write MODULE:FUNCTION, such as my_tests:no_coin_is_lost"
        )
    function = _attribute(_import(module_name), module_name, attribute, "a function")
    if not callable(function):
        raise FleetDefinitionError(f"{target} is a {type(function).__qualname__}: name a function")
    return function


def _import(module_name: str) -> object:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    if module_name.startswith("."):
        raise FleetDefinitionError(f"there is no module {module_name!r}: write its full name")
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise FleetDefinitionError(
                f"there is no module {module_name!r}: run from the folder that holds it, or set PYTHONPATH"
            ) from error
        raise FleetDefinitionError(f"module {module_name!r} needs {error.name!r}, which is not installed") from error
    except SyntaxError as error:
        raise FleetDefinitionError(f"module {module_name!r} does not parse: {error}") from error
    except SnaplineError:
        raise
    except Exception as error:
        raise FleetDefinitionError(
            f"module {module_name!r} cannot be imported: {type(error).__name__}: {error} "
            f"(`python -c 'import {module_name}'` shows where)"
        ) from error


def _attribute(module: object, module_name: str, attribute: str, wanted: str = "a snapline.Fleet") -> object:
    value = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise FleetDefinitionError(f"module {module_name!r} has no {attribute!r}: name {wanted} in it")
        value = getattr(value, part)
    return value


REFUSALS_NAMED_MAX = 3
"""Largest number of classes named when a recovery line is refused. The coordinator accepts reasons of 2,000 characters, and each class
takes up to 500."""


def find_class(fleet: Fleet, kind: str) -> type[Agent]:
    """Return the agent class recorded as `module:Class`.

    Only subclasses of Agent are returned, so that a name from a checkpoint or a peer cannot run other code.

    Raises:
        EncodingError: no agent class has this name.
    """
    known = fleet.classes.get(kind)
    if known is None:
        known = fleet.classes[kind] = _look_for(fleet, kind)
    return known


def class_of(fleet: Fleet, kind: str) -> type[Agent] | None:
    """Return the class recorded as `kind`; None if the class is missing. Records of a missing class can still be read."""
    try:
        return find_class(fleet, kind)
    except EncodingError:
        return None


def _look_for(fleet: Fleet, kind: str) -> type[Agent]:
    for source in fleet.agents.values():
        if isinstance(source, Agent) and agent_type(type(source)).kind == kind:
            return type(source)
    module, _, name = kind.partition(":")
    try:
        candidate = reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise EncodingError(
            f"there is no agent class {kind!r} in this code: run the code that wrote the checkpoint"
        ) from error
    if not isinstance(candidate, type) or not issubclass(candidate, Agent):
        raise EncodingError(f"{kind!r} is no agent class: run the code that wrote the checkpoint")
    return candidate


def plan_line(fleet: Fleet, checkpoints: Iterable[AgentCheckpoint]) -> dict[str, MigrationPlan]:
    """Return the mapping from agent to migration plan for all checkpoints of a recovery line. Unborn agents have no plan.

    This function runs no migration and decodes no state. It either refuses the whole fleet or confirms that all versions can be loaded.

    Raises:
        MigrationError: a class is missing, or a state cannot be migrated to its class's version. The message names one agent of each class and
            version, and the migration to write.
    """
    plans: dict[str, MigrationPlan] = {}
    refused: dict[tuple[str, int], EncodingError] = {}
    for checkpoint in checkpoints:
        if checkpoint.is_unborn:
            continue
        try:
            plans[checkpoint.agent] = plan_migration(find_class(fleet, checkpoint.kind), checkpoint)
        except EncodingError as error:
            refused.setdefault((checkpoint.kind, checkpoint.state_version), error)
    if refused:
        _refuse(list(refused.values()))
    return plans


def _refuse(errors: list[EncodingError]) -> NoReturn:
    reasons = "; ".join([str(error) for error in errors[:REFUSALS_NAMED_MAX]])
    more = len(errors) - REFUSALS_NAMED_MAX
    raise MigrationError(f"{reasons}; and {more} more classes or versions" if more > 0 else reasons) from errors[0]


def restored(fleet: Fleet, checkpoint: AgentCheckpoint, contents: Sequence[Buffer] = ()) -> Agent:
    """Return the agent of a checkpoint; `contents` are the bytes of the parts of its state.

    Raises:
        EncodingError: the class is missing, the state's type has changed without a migration, or the state does not decode.
    """
    return revive(plan_migration(find_class(fleet, checkpoint.kind), checkpoint), checkpoint, contents)[0]


def revive(plan: MigrationPlan, checkpoint: AgentCheckpoint, contents: Sequence[Buffer]) -> tuple[Agent, ChunkTable]:
    """Return the agent of a checkpoint, and the chunks of the parts of its state (no chunks after a migration).

    Raises:
        EncodingError: the state does not decode, or a migration failed.
    """
    agent = plan.agent_class.__new__(plan.agent_class)
    state = load_state(plan, checkpoint, contents)
    agent.state = state.state
    return agent, state.table
