"""MODULE:FLEET on the command line, with one clear sentence for everything that can be wrong with it."""

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
        FleetDefinitionError: it is not MODULE:FLEET, or there is no such module.
    """
    module, colon, attribute = reference.partition(":")
    if not module or not colon or not attribute:
        raise FleetDefinitionError(f"{reference!r} does not name a fleet: write MODULE:FLEET, such as my_agents:fleet")
    allow_current_folder()
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module}.".startswith(f"{error.name}."):
            raise FleetDefinitionError(f"module {module!r} needs {error.name!r}, which is not installed") from error
        found = None
    except Exception as error:  # a package above the module raised while it was imported
        raise FleetDefinitionError(f"module {module!r} cannot be imported: {type(error).__name__}: {error}") from error
    if found is None:
        raise FleetDefinitionError(
            f"there is no module {module!r}: run from the folder that holds it, or set PYTHONPATH"
        )


def load(reference: str, arguments: Mapping[str, str]) -> "Fleet":
    """The fleet that MODULE:FLEET names.

    Raises:
        FleetDefinitionError: it cannot be had; also when the user's own module or function raises.
    """
    from snapline.agent_runtime.fleet import load_fleet

    allow_current_folder()
    try:
        return load_fleet(reference, arguments)
    except SnaplineError:
        raise
    except Exception as error:
        given = "".join(f" --arg {key}={value}" for key, value in arguments.items())
        raise FleetDefinitionError(f"{reference}{given} raised {type(error).__name__}: {error}") from error


def make_agents(fleet: "Fleet") -> "dict[str, tuple[AgentType, list[int]]]":
    """Make every agent as a host would; returns for each class what is known of it, and the sizes of its agents' states.

    Raises:
        FleetDefinitionError: one cannot be made, or its state cannot be saved; names agent and field.
    """
    from snapline.agent_runtime.agent import agent_type
    from snapline.agent_runtime.fleet import encode_state

    found: dict[str, tuple[AgentType, list[int]]] = {}
    for agent in fleet.agents:
        try:
            made = fleet.make(agent)
        except UsageError as error:
            raise FleetDefinitionError(str(error)) from error
        except Exception as error:
            raise FleetDefinitionError(
                f"the function for agent {agent!r} raised {type(error).__name__}: {error}"
            ) from error
        known = agent_type(type(made))
        found.setdefault(known.kind, (known, []))[1].append(len(encode_state(agent, made, known)))
    return found
