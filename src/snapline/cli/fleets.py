"""Loads MODULE:FLEET from the command line, with a clear error message for everything that can be wrong with it."""

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING

from snapline.cli.options import allow_current_folder
from snapline.errors import FleetDefinitionError, SnaplineError, UsageError

if TYPE_CHECKING:
    from snapline.agent_runtime.agent import AgentType
    from snapline.agent_runtime.fleet import Fleet


def check_reference(reference: str) -> None:
    """Find misspelt names before anything is started, without running the fleet's own module.

    Raises:
        FleetDefinitionError: the reference is not MODULE:FLEET, or there is no such module.
    """
    module, colon, attribute = reference.partition(":")
    if not module or not colon or not attribute:
        raise FleetDefinitionError(f"{reference!r} does not name a fleet: write MODULE:FLEET, such as my_agents:fleet")
    allow_current_folder()
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module}.".startswith(f"{error.name}."):
            raise FleetDefinitionError(f"module {module!r} needs {error.name!r}, which is not installed") from error
        spec = None
    except Exception as error:  # importing a parent package of the module failed
        raise FleetDefinitionError(f"module {module!r} cannot be imported: {type(error).__name__}: {error}") from error
    if spec is None:
        raise FleetDefinitionError(
            f"there is no module {module!r}: run from the folder that holds it, or set PYTHONPATH"
        )


def load(reference: str, arguments: Mapping[str, str]) -> "Fleet":
    """Load the fleet that MODULE:FLEET names.

    Raises:
        FleetDefinitionError: the fleet cannot be loaded, for example because the user's module or function raises.
    """
    from snapline.agent_runtime.fleet import load_fleet

    allow_current_folder()
    try:
        return load_fleet(reference, arguments)
    except SnaplineError:
        raise
    except Exception as error:
        options = "".join(f" --arg {key}={value}" for key, value in arguments.items())
        raise FleetDefinitionError(f"{reference}{options} raised {type(error).__name__}: {error}") from error


def make_agents(fleet: "Fleet") -> "dict[str, tuple[AgentType, list[int]]]":
    """Make every agent as a host would; return the type of each class, and the sizes of its agents' states.

    Raises:
        FleetDefinitionError: an agent cannot be made, or its state cannot be saved; the message names agent and field.
    """
    from snapline.agent_runtime.agent import agent_type
    from snapline.agent_runtime.fleet import encode_state

    by_class: dict[str, tuple[AgentType, list[int]]] = {}
    for agent in fleet.agents:
        try:
            instance = fleet.make(agent)
        except UsageError as error:
            raise FleetDefinitionError(str(error)) from error
        except Exception as error:
            raise FleetDefinitionError(
                f"the function for agent {agent!r} raised {type(error).__name__}: {error}"
            ) from error
        kind = agent_type(type(instance))
        by_class.setdefault(kind.kind, (kind, []))[1].append(len(encode_state(agent, instance, kind)))
    return by_class
