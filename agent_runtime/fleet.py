"""A fleet: which agents there are, how they are checkpointed, and when they are done."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import blake3
import msgspec

from snapline.agent_runtime.agent import UNDO_STATE_BYTES_MAX, Agent, AgentType, agent_type
from snapline.agent_runtime.encoding import describe_failure, encode_body
from snapline.errors import EncodingError, FleetDefinitionError
from snapline.ids import check_id

if TYPE_CHECKING:
    from snapline.agent_runtime.cut import Cut

PROTOCOLS = ("chandy-lamport",)
EPOCH_TIMEOUT_S = 60.0
"""An epoch that has not completed by then is aborted. Raise it for agents whose turns last longer."""

AgentSource = Agent | Callable[[], Agent]


class Every(msgspec.Struct, frozen=True):
    """Trigger: a checkpoint of the fleet every so many seconds."""

    seconds: float


class Fleet:
    """A fleet of agents, as every host of it must define it.

    Args:
        name: names the fleet; `[A-Za-z0-9_.-]{1,128}`.
        agents: agent id → agent, or a function without arguments that makes it. With functions a host makes only the
            agents that are placed on it. They must make the same agents in every process.
        protocol: the checkpointing protocol: "chandy-lamport".
        triggers: when to take checkpoints. Without one they are taken by hand (`snapline snapshot create`).
        stop_when: called with each complete cut (or the newest, if it is slower than they come); `True` ends the
            fleet. Only stable properties make sense: ones that stay true once they are (Chandy and Lamport 1985,
            section 1), such as "everybody is done and nothing is in transit".
        epoch_timeout_s: an epoch that has not completed by then is aborted.

    Raises:
        FleetDefinitionError: the fleet cannot be run as it is written.
    """

    def __init__(
        self,
        name: str,
        *,
        agents: Mapping[str, AgentSource],
        protocol: str = "chandy-lamport",
        triggers: Iterable[Every] = (),
        stop_when: "Callable[[Cut], bool] | None" = None,
        epoch_timeout_s: float = EPOCH_TIMEOUT_S,
    ) -> None:
        self.name = check_id(name, "fleet")
        self.agents = dict(agents)
        self.protocol = protocol
        self.triggers = tuple(triggers)
        self.stop_when = stop_when
        self.epoch_timeout_s = epoch_timeout_s
        self._check()

    def _check(self) -> None:
        if not self.agents:
            raise FleetDefinitionError(f"fleet {self.name!r} has no agents: give at least one")
        for agent, source in self.agents.items():
            check_id(agent)
            if not isinstance(source, Agent) and not callable(source):
                raise FleetDefinitionError(
                    f"agent {agent!r} is a {type(source).__qualname__}: give a snapline.Agent, or a function that makes one"
                )
        if self.protocol not in PROTOCOLS:
            raise FleetDefinitionError(f"protocol {self.protocol!r} is not known: use one of {', '.join(PROTOCOLS)}")
        for trigger in self.triggers:
            if not isinstance(trigger, Every) or trigger.seconds <= 0:
                raise FleetDefinitionError(f"{trigger!r} is no trigger: use snapline.Every(seconds=…) above 0")
        if len(self.triggers) > 1:
            raise FleetDefinitionError("give at most one snapline.Every: the shorter one would hide the other")
        if self.epoch_timeout_s <= 0:
            raise FleetDefinitionError("epoch_timeout_s must be above 0")

    @property
    def period_ns(self) -> int:
        """Nanoseconds between two periodic checkpoints; 0 = none."""
        return round(self.triggers[0].seconds * 1e9) if self.triggers else 0

    def make(self, agent: str) -> Agent:
        """Make one agent in its initial state and check that it can be checkpointed.

        Raises:
            FleetDefinitionError, EncodingError: it cannot; names the agent and the field.
        """
        source = self.agents[agent]
        made = source if isinstance(source, Agent) else source()
        if not isinstance(made, Agent):
            raise FleetDefinitionError(f"the function for agent {agent!r} made a {type(made).__qualname__}, no Agent")
        image = encode_state(agent, made, agent_type(type(made)))
        if len(image) > UNDO_STATE_BYTES_MAX and made.on_error is None:
            raise FleetDefinitionError(
                f"the state of agent {agent!r} takes {len(image):,} bytes, more than the {UNDO_STATE_BYTES_MAX:,} of "
                f"which an image is taken before every turn: set on_error in class {type(made).__qualname__} "
                "to 'undo' (and pay for it), 'keep' or 'recover'"
            )
        if isinstance(source, Agent):
            # The definition stays as it was written: a later recovery to the initial states starts from it again.
            made = clone(made, image)
        return made

    def kind_of(self, agent: str) -> str:
        """What to record as the agent's class before it has been made."""
        source = self.agents[agent]
        if isinstance(source, Agent):
            return agent_type(type(source)).kind
        function = getattr(source, "func", source)
        return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', repr(function))}()"

    def definition_digest(self) -> bytes:
        """Equal on hosts that define the same fleet; hosts that disagree are turned away."""
        parts = (self.name, self.protocol, self.period_ns, self.epoch_timeout_s)
        agents = tuple((agent, self.kind_of(agent)) for agent in self.agents)
        return blake3.blake3(msgspec.msgpack.encode((parts, agents))).digest()


def clone(agent: Agent, image: bytes) -> Agent:
    """A second agent of the same class with the state of `image`."""
    return restore_agent(type(agent), image)


def restore_agent(agent_class: type[Agent], image: bytes) -> Agent:
    """An agent of `agent_class` with the state of `image`, without calling its constructor."""
    made = agent_class.__new__(agent_class)
    made.state = agent_type(agent_class).state_decoder.decode(image)
    return made


def encode_state(agent: str, made: Agent, known: AgentType) -> bytes:
    """Encode an agent's state.

    Raises:
        EncodingError: names agent, field and next step.
    """
    try:
        return encode_body(made.state)
    except (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
        raise EncodingError(
            f"the state of agent {agent!r} ({known.state_name}) cannot be saved: {describe_failure(made.state, error)}; "
            "keep numbers, text, bytes, lists, dicts, sets, structs, dataclasses or NumPy arrays there"
        ) from error


def load_fleet(target: str, arguments: Mapping[str, str]) -> Fleet:
    """Load `MODULE:FLEET`, where FLEET is a Fleet or a function that returns one; `arguments` are the function's.

    Raises:
        FleetDefinitionError: one sentence on what is wrong with `target` or an argument.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise FleetDefinitionError(f"{target!r} does not name a fleet: write MODULE:FLEET, such as my_agents:fleet")
    found = _attribute(_import(module_name), module_name, attribute)
    if isinstance(found, Fleet):
        if arguments:
            raise FleetDefinitionError(
                f"{target} is a fleet, not a function: it takes no --arg {next(iter(arguments))}"
            )
        return found
    if not callable(found):
        raise FleetDefinitionError(f"{target} is a {type(found).__qualname__}: name a snapline.Fleet or a function")
    try:
        inspect.signature(found).bind(**arguments)
    except TypeError as error:
        raise FleetDefinitionError(f"--arg does not fit {target}: {error}") from error
    made = found(**arguments)
    if not isinstance(made, Fleet):
        raise FleetDefinitionError(f"{target}() returned a {type(made).__qualname__}, no snapline.Fleet")
    return made


def _import(module_name: str) -> object:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
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


def _attribute(module: object, module_name: str, attribute: str) -> object:
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise FleetDefinitionError(f"module {module_name!r} has no {attribute!r}: name a snapline.Fleet in it")
        found = getattr(found, part)
    return found
