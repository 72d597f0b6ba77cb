"""Defines a fleet: its agents, how they are checkpointed, and when the fleet ends.

A checkpoint records an agent's class as its *kind*. The functions at the end of this module look up the classes of recorded kinds and
restore agents from checkpoints. Further functions check that recorded states still fit the classes.
"""

import importlib
import inspect
import math
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NoReturn

import blake3
import msgspec

import snapline
from snapline.agent_runtime.agent import UNDO_STATE_BYTES_MAX, Agent, AgentType, agent_type
from snapline.agent_runtime.dependency_report import AgentSource, DeclaredDependencies
from snapline.agent_runtime.message_encoding import encode_body, field_names
from snapline.agent_runtime.migrations import MigrationError, MigrationPlan, check_steps, load_state, plan_migration
from snapline.errors import EncodingError, FleetDefinitionError, SnaplineError, UsageError
from snapline.ids import check_id
from snapline.messages.dependencies import WARN
from snapline.protocols.names import GLOBAL, LOCAL, PROTOCOLS, is_autonomous, problem_of_recovery
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
"""Default checkpoint policy of fleets whose agents checkpoint independently."""

LINE_PERIOD_LEAST_S = 0.5
"""Minimum time between two epochs that the coordinator makes from the recovery line of a fleet whose agents checkpoint independently. Each
such epoch reads and writes all states."""

LOG_BYTES_MAX = 256 * 1024 * 1024
"""Default limit on the size of the sender logs in the store."""

EPOCH_TIMEOUT_S = 60.0
"""Default time after which an unfinished epoch is aborted. Increase it if agents have turns that take longer."""

OBJECTIVE_MOST_S = 1e9
"""Largest value of `rpo_s` and `rto_s`, about thirty years. In nanoseconds such a value still fits into 64 bits."""

BUSY_LIMIT_S = 300.0
"""Default time for which agent code may block a host. It is long enough for a solver, and short enough to detect an endless loop soon."""

BUSY_LIMIT_S_MIN = 2.0
"""Smallest valid `busy_limit_s`. Shorter blocking is normal, and the event loop is checked only once a second."""

Stubs = Mapping[str, Callable[..., object]]
"""Mapping from step names to stubs, which the simulator calls instead of the steps' functions."""


class Fleet:
    """Definition of a fleet of agents. All hosts of the fleet must use the same definition.

    Args:
        name: the fleet's name, which must match `[A-Za-z0-9_.-]{1,128}`.
        agents: mapping from agent ids to agents, or to functions that create the agents and take no arguments. If functions are given, each
            host creates only its own agents. A function must create the same agent in every process.
        protocol: the checkpointing protocol, which cannot be changed during the fleet's life. The coordinated protocols are
            "chandy-lamport" (Lai and Yang's stamps combined with Chandy and Lamport's markers) and "koo-toueg". The independent protocols
            are "uncoordinated" and the communication-induced protocols "bcs", "hmnr", "fdas", "fdi", "bhmr", "nras", "cbr" and "cas"
            (docs/protocols.md compares them).
        triggers: conditions under which checkpoints are taken. A fleet with a coordinated protocol accepts one `Every` trigger, which
            applies to all agents together. Without this trigger, checkpoints are taken only on request (`snapline snapshot create`). With
            an independent protocol, an agent takes a checkpoint as soon as one of the triggers `Every`, `EveryMessages` or `Adaptive`
            requires it. By default, each agent with an independent protocol takes a checkpoint every second. With `Manual()`, only
            `ctx.checkpoint()` and the protocol itself cause checkpoints.
        stop_when: predicate that is called with each complete cut. If the predicate is slow, it is called only with the newest cut. The
            fleet ends when the predicate returns True. The predicate must test a stable property, which stays true once it is true (Chandy
            and Lamport 1985, section 1). An example is "all agents are done and no messages are in transit".
        epoch_timeout_s: time in seconds after which an unfinished epoch is aborted.
        log_bytes_max: limit in bytes on the size of the sender logs in the store. If the recovery line does not advance (domino effect) and
            the logs exceed this limit, the fleet is paused briefly to take a consistent cut. After the consistent cut, the logs are
            deleted.
        place: placement rules, as a mapping from an agent id to one or more hosts. The key can also be a prefix of agent ids, followed by
            an asterisk. The first matching rule that names at least one present host applies. A spawned agent starts on the host of the
            agent that spawned it.
        rpo_s, rto_s: recovery point objective and recovery time objective in seconds. The recovery point objective limits how much work a
            failure may undo. The recovery time objective limits the time from the first suspicion of a failure until all hosts have applied
            the recovery plan. The coordinator only reports missed objectives, in `snapline status`, in the web view and in its log. If an
            objective is None, the coordinator does not report it.
        busy_limit_s: time in seconds for which agent code may block a host's event loop. After this time, the host process exits and the
            fleet recovers (docs/durable-turns.md, "What may block"). If `busy_limit_s` is None, the process never exits because of blocking
            agent code. Hosts of the same fleet may use different values.
        simulate: mapping from step names to stub functions. `snapline sim` and the pytest fixture call a stub with the step's arguments in
            place of the step's function. Other runs ignore the stubs. For an effect named NAME, the stub of the effect is `NAME`, the stub
            of its probe is `NAME/probe`, and the stub of its compensation is `NAME/undo`. The stub of a step's fallback is `NAME/fallback`. Alternatively, pass a function without arguments
            that creates a new mapping for each run, so that runs share no stubs.
        recovery: what starts again after a failure. "global" starts all agents from a consistent snapshot. "local" needs the protocol
            "chandy-lamport". Each host then commits the changes of its agents to its log, and nothing leaves a host before it is committed.
            So all agents start from their newest commits, and a failure undoes nothing that another host, a client or a service has seen.
            Final answers and effects wait for a commit, not for a snapshot.
        compensation_modules: modules or packages whose functions may serve as compensations of effects, in addition to the packages of the
            agents' classes. A compensation in any other module is never called, even if data in the store refers to it.
        keep_answers: whether the results of steps and effects, and decisions on approvals, stay in the store as long as there is a snapshot
            from which they can be used (`snapline answers`). Otherwise they go with the host logs, when no recovery needs them.
        dependencies: names of distributions whose versions each host reports, such as "openai". The versions of Python, snapline, msgspec,
            grpcio and numpy, and digests of the modules that define agents and messages, are always reported (docs/dependencies.md).
        variables: names of environment variables of which each host reports a keyed digest, if the store is encrypted.
        describes: further facts that each host reports as they are, such as `{"model": "gpt-5"}`.
        on_change: what happens if a restore, a fork or a restart would go on with other dependencies: "warn", "refuse" or "ignore", or a
            mapping from "version", "source", "variable" or "description" to one of these. A recovery after a failure is never refused.

    Raises:
        FleetDefinitionError: If the definition is invalid.
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
        recovery: str = GLOBAL,
        compensation_modules: Iterable[str] = (),
        keep_answers: bool = False,
        dependencies: Iterable[str] = (),
        variables: Iterable[str] = (),
        describes: Mapping[str, str] | None = None,
        on_change: str | Mapping[str, str] = WARN,
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
        self.recovery = recovery
        self.compensation_modules = _modules_of(compensation_modules)
        self.keep_answers = keep_answers
        self.declared = DeclaredDependencies(dependencies, variables, describes or {}, on_change)
        self.classes: dict[str, type[Agent]] = {}  # cache by kind, unbounded since even a large fleet has few kinds
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
        if problem := problem_of_recovery(self.recovery, self.protocol):
            raise FleetDefinitionError(problem)
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
        """Return the policy that decides when agents checkpoint independently."""
        if not self.triggers:
            return DEFAULT_POLICY
        return self.triggers[0] if len(self.triggers) == 1 else AnyOf(self.triggers)

    @property
    def period_ns(self) -> int:
        """Return the time in nanoseconds between two periodic epochs, or 0 if the fleet has no periodic epochs."""
        periods = [trigger.seconds for trigger in self.triggers if isinstance(trigger, Every)]
        if is_autonomous(self.protocol):
            return round(max(LINE_PERIOD_LEAST_S, min(periods, default=1.0)) * 1e9)
        return round(periods[0] * 1e9) if periods else 0

    def make(self, agent: str) -> Agent:
        """Create an agent in its initial state, and check that the agent can be checkpointed.

        Raises:
            FleetDefinitionError, EncodingError: If the agent cannot be created or checkpointed. The error message names the agent and the
                field.
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
        if self.recovery == LOCAL and agent_object.capture == "fork":
            raise FleetDefinitionError(
                f'agent {agent!r} has capture="fork", and recovery="local" saves its state many times a second: write capture="copy" in class '
                f"{type(agent_object).__qualname__}"
            )
        if len(image) > UNDO_STATE_BYTES_MAX and agent_object.on_error is None:
            raise FleetDefinitionError(
                f"the state of agent {agent!r} takes {len(image):,} bytes, more than the {UNDO_STATE_BYTES_MAX:,} of "
                f"which an image is taken before every turn: set on_error in class {type(agent_object).__qualname__} "
                "to 'undo' (and pay for it), 'keep' or 'recover'"
            )
        if isinstance(source, Agent):
            # Return a copy, since a later recovery to the initial states needs the unchanged agent from the definition.
            agent_object = restore_agent(type(agent_object), image)
        return agent_object

    def _check_class(self, agent: str, agent_class: type[Agent]) -> None:
        """Raise FleetDefinitionError for a class that another process could not find by its name during a recovery."""
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
        """Return the kind under which checkpoints record the agent's class, without creating the agent."""
        source = self.agents[agent]
        if isinstance(source, Agent):
            return agent_type(type(source)).kind
        function = getattr(source, "func", source)
        named = function if hasattr(function, "__qualname__") else type(function)  # a repr contains a memory address
        return f"{getattr(named, '__module__', '')}:{named.__qualname__}()"

    def definition_digest(self) -> bytes:
        """Return a digest that is equal on all hosts with the same fleet definition. The coordinator rejects hosts with a different
        digest."""
        when = (self.period_ns, format_policy(self.policy), self.epoch_timeout_s, self.log_bytes_max)
        parts = (self.name, self.protocol, when, self.stop_when is None)
        agents = tuple((agent, self.kind_of(agent)) for agent in self.agents)
        # If a fleet uses none of these options, its digest is the same as in earlier versions.
        places = (tuple(self.place.items()),) if self.place else ()
        objective_values = {"rpo_s": self.rpo_s, "rto_s": self.rto_s}
        objectives = tuple([(name, float(time_s)) for name, time_s in objective_values.items() if time_s is not None])
        recovery = () if self.recovery == GLOBAL else (("recovery", self.recovery),)
        return blake3.blake3(msgspec.msgpack.encode((parts, agents, *places, *objectives, *recovery))).digest()

    def definition_parts(self) -> tuple[str, ...]:
        """Return the parts of the definition that the digest covers, in the form `name=value`. When a host is rejected, the error message
        shows which parts of its definition differ."""
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
            "recovery": self.recovery,
            "stop_when": "none" if self.stop_when is None else "given",
        }
        return tuple([f"{name}={value}" for name, value in parts.items()])


AGENTS_CHARACTERS_MAX = 400
"""Largest length of the list of agents in a rejection message. A longer list is replaced by a count and a digest."""


def own_modules(agent_class: type, listed: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that may contain compensations for effects of agents of this class. The submodules of the returned modules may
    contain compensations too. `listed` contains the modules in `Fleet(compensation_modules=…)`.

    If the class is part of snapline, return only the package that contains the class, instead of all of snapline.
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
        FleetDefinitionError: If `place` is not a mapping, or a rule is invalid. The error message names the invalid rule.
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
    """Return the stubs for one simulated run, or None if the fleet defines no stubs.

    Raises:
        FleetDefinitionError: If the stubs are invalid.
    """
    if not callable(fleet.simulate):
        return fleet.simulate
    stubs = fleet.simulate()
    check_stubs(stubs)
    return stubs


def check_stubs(stubs: object) -> None:
    """Raise FleetDefinitionError unless `stubs` is a mapping from names to functions."""
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
    """Return an agent of class `agent_class` with the state in `image`, without calling the constructor."""
    agent_object = agent_class.__new__(agent_class)
    agent_object.state = agent_type(agent_class).state_decoder.decode(image)
    return agent_object


def encode_state(agent: str, made: Agent, known: AgentType, handlers: Iterable[str] = ()) -> bytes:
    """Encode an agent's state, and check that decoding it yields an equal state.

    Raises:
        EncodingError: If the state cannot be saved. The error message names the agent, the field, the handlers that may have caused the
            error, and the next step.
    """
    image = encode_unchecked(agent, made, known, handlers)
    if known.state_type is not None:
        try:
            check_declared(made.state, known.state_type, "state")
        except EncodingError as error:
            raise EncodingError(unsavable(agent, known, error, handlers)) from error
    return image


def encode_unchecked(agent: str, made: Agent, known: AgentType, handlers: Iterable[str] = ()) -> bytes:
    """Encode an agent's state like `encode_state`, but without checking that decoding it yields an equal state. The caller must call
    `check_state_image` afterwards.

    Raises:
        EncodingError: If the state cannot be encoded. The error message names the agent, the field, the handlers that may have caused the
            error, and the next step.
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
    """Return an error message that explains why a state cannot be saved, and which types it may contain instead."""
    after = " or ".join(handlers)
    return (
        f"the state of agent {agent!r} ({known.state_name}) cannot be saved{after and f' after {after}'}: {why}; "
        "keep numbers, text, bytes, lists, dicts, sets, structs, dataclasses or NumPy arrays there"
    )


def check_skeleton(agent: str, known: AgentType, skeleton: Buffer, handlers: Iterable[str] = ()) -> None:
    """Raise an error for a state in which a field's value does not have the declared type. A state with a value of another type could be
    written, but a recovery from it would fail.

    Raises:
        EncodingError: If a field's value does not have the declared type. The error message names the agent, the field, and the handlers
            that may have caused the wrong type.
    """
    try:
        known.state_reader.decode(skeleton)
    except Exception as error:
        raise EncodingError(
            f"the state of agent {agent!r} ({known.state_name}) does not come back as declared: {error}; "
            f"{' or '.join(handlers) or 'a handler'} of class {known.agent_class.__qualname__} puts something else there"
        ) from error


def check_state_image(agent: str, made: Agent, known: AgentType, image: bytes) -> None:
    """Raise an error for a state whose image cannot be decoded, or whose image decodes to a different state.

    Raises:
        FleetDefinitionError: If the image cannot be decoded or decodes to a different state. The error message names the agent and the
            problem.
    """
    where = f"the state of agent {agent!r} does not come back as declared"
    if known.state_type is None and made.state is not None:
        raise FleetDefinitionError(f"{where}: declare `state: …` in class {known.agent_class.__qualname__}")
    try:
        back = known.state_reader.decode(image)
    except Exception as error:
        if made.state is None:
            name = known.agent_class.__qualname__
            raise FleetDefinitionError(
                f"agent {agent!r} has no state: pass one, such as {name}({known.state_name}(…))"
            ) from error
        raise FleetDefinitionError(f"{where} ({known.state_name}): {error}") from error
    if type(back) is not type(made.state) and (field_names(type(back)) or field_names(type(made.state))):
        raise FleetDefinitionError(
            f"{where}: it is a {type(made.state).__qualname__}, the state of class "
            f"{known.agent_class.__qualname__} is declared as {known.state_name}"
        )
    if known.state_type is not None and not survives_round_trip(made.state, known.state_type):
        raise FleetDefinitionError(f"{where}: {difference(made.state, known.state_type, 'state')}")


def load_fleet(target: str, arguments: Mapping[str, str]) -> Fleet:
    """Load `MODULE:FLEET`. FLEET is either a Fleet or a function that returns a Fleet when called with `arguments`.

    Raises:
        FleetDefinitionError: If `target` or an argument is invalid. The error message is a single sentence.
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
    except (Exception, SystemExit) as error:
        options = "".join(f" --arg {key}={value}" for key, value in arguments.items())
        raise FleetDefinitionError(
            f"{target}{options} raised {type(error).__name__}: {error}{where_raised(error)}"
        ) from error
    if not isinstance(fleet, Fleet):
        raise FleetDefinitionError(f"{target}() returned a {type(fleet).__qualname__}, no snapline.Fleet")
    return fleet


def load_function(target: str) -> Callable[..., object]:
    """Load the function that `MODULE:FUNCTION` names.

    Raises:
        FleetDefinitionError: If `target` is invalid. The error message is a single sentence.
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
    except SystemExit as error:
        raise FleetDefinitionError(
            f"module {module_name!r} cannot be imported: it calls sys.exit({error.code!r}){where_raised(error)}"
        ) from error
    except Exception as error:
        raise FleetDefinitionError(
            f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}{where_raised(error)}"
        ) from error


def where_raised(error: BaseException) -> str:
    """Return " (FILE, line N)" for the line of a fleet's definition that was running when `error` was raised, or "" if there is none.

    It is the innermost line outside snapline, the standard library and installed packages; of an installed definition just the innermost.
    """
    lines = [frame for frame in traceback.extract_tb(error.__traceback__)[1:] if os.path.isfile(frame.filename)]
    lines = [frame for frame in lines if frame.filename != importlib.__file__]
    installed = (os.path.dirname(snapline.__file__), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
    own = [frame for frame in lines if not frame.filename.startswith(installed)]
    found = (own or lines)[-1:]
    return "".join(f" ({os.path.basename(frame.filename)}, line {frame.lineno})" for frame in found)


def _attribute(module: object, module_name: str, attribute: str, wanted: str = "a snapline.Fleet") -> object:
    value = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise FleetDefinitionError(f"module {module_name!r} has no {attribute!r}: name {wanted} in it")
        value = getattr(value, part)
    return value


REFUSALS_NAMED_MAX = 3
"""Largest number of classes that an error message names when a recovery line is rejected. The coordinator accepts messages of up to 2,000
characters, and each class takes up to 500."""


def find_class(fleet: Fleet, kind: str) -> type[Agent]:
    """Return the agent class that was recorded as `kind`, in the form `module:Class`.

    Only subclasses of Agent are returned, so that a name in a checkpoint or from a peer cannot select any other code.

    Raises:
        EncodingError: If no agent class has this name.
    """
    known = fleet.classes.get(kind)
    if known is None:
        known = fleet.classes[kind] = _look_for(fleet, kind)
    return known


def class_of(fleet: Fleet, kind: str) -> type[Agent] | None:
    """Return the class that was recorded as `kind`, or None if the class no longer exists. Records of a missing class can still be read."""
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
    """Return a migration plan for each agent, computed from all checkpoints of a recovery line. Agents that have not been spawned yet at
    the recovery line get no plan.

    This function neither runs migrations nor decodes states. The function either rejects the whole recovery line or confirms that every
    state's version can be loaded.

    Raises:
        MigrationError: If a class is missing, or if a state cannot be migrated to the version of its class. For each affected class and
            version, the message names one agent and the migration that must be written.
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
    """Return the agent that a checkpoint contains. `contents` contains the bytes of each part of the agent's state.

    Raises:
        EncodingError: If the class is missing, the state's type has changed without a migration, or the state cannot be decoded.
    """
    return revive(plan_migration(find_class(fleet, checkpoint.kind), checkpoint), checkpoint, contents)[0]


def revive(plan: MigrationPlan, checkpoint: AgentCheckpoint, contents: Sequence[Buffer]) -> tuple[Agent, ChunkTable]:
    """Return the agent that a checkpoint contains, and the chunks of the parts of its state. After a migration, there are no chunks.

    Raises:
        EncodingError: If the state cannot be decoded, or if a migration failed.
    """
    agent = plan.agent_class.__new__(plan.agent_class)
    state = load_state(plan, checkpoint, contents)
    agent.state = state.state
    return agent, state.table
