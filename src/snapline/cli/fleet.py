"""Loads the fleet definition MODULE:FLEET for all commands, and defines `snapline fleet check`.

`fleet check` checks that a fleet definition can run, and whether it can go on from a snapshot, but starts no fleet. If a reference to a fleet definition is invalid, the error
message names the problem.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import Display, FleetArguments, FleetReference, allow_current_folder, command, parse_arguments
from snapline.cli.output import Document, DocumentTables, count, document, integer_of, rows_of, show_changes, size
from snapline.cli.snapshot_retention import SNAPSHOT_HELP, StorePlace
from snapline.errors import FleetDefinitionError, SnaplineError, UsageError

if TYPE_CHECKING:
    from snapline.agent_runtime.agent import AgentType
    from snapline.agent_runtime.fleet import Fleet


def check_reference(reference: str) -> None:
    """Check a reference to a fleet definition for misspelt names before anything is started. The check does not run the fleet's own module.

    Raises:
        FleetDefinitionError: If the reference is not MODULE:FLEET, or the module does not exist.
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
        FleetDefinitionError: If the fleet cannot be loaded, for example because the user's module or function raises an error.
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
    """Create every agent as a host would. Return, by class name, the agent type and the state sizes of its agents.

    Raises:
        FleetDefinitionError: If an agent cannot be created, or its state cannot be saved. The message names the agent and the field.
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


app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@command
def check(
    place: StorePlace,
    display: Display,
    fleet: FleetReference,
    arg: FleetArguments = None,
    snapshot: Annotated[str, typer.Option("--at", metavar="ID", help=SNAPSHOT_HELP)] = "latest",
) -> None:
    """Check a fleet's definition: make every agent, and save and load its state. With --store or --data-dir, also check whether this code
    can go on from the store's latest snapshot.

    Starts nothing and writes nothing. Shows classes, the messages that they handle, and the size of their largest state.

    The snapshot's states, messages and timers are decoded, and open durable turns run again up to their waits. Steps and effects are not
    carried out, but handlers run. Turns that begin after the snapshot, and plain handlers, are not checked: take a snapshot first. Exit
    code 2: something is wrong.
    """
    import msgspec

    from snapline.agent_runtime.snapshots.snapshot_check import check_snapshot
    from snapline.messages.dependencies import refused
    from snapline.protocols.names import is_autonomous
    from snapline.protocols.policy import format_policy

    check_reference(fleet)
    loaded = load(fleet, parse_arguments(arg))
    by_class = make_agents(loaded)
    classes = [
        {
            "class": kind,
            "state": agent_type.state_name,
            "agents": len(sizes),
            "state_bytes_max": max(sizes),
            "on_error": agent_type.agent_class.on_error or "undo",
            "handles": {name: handler.name for name, handler in agent_type.handlers.items()},
        }
        for kind, (agent_type, sizes) in by_class.items()
    ]
    result = document(
        "FleetCheck",
        fleet=loaded.name,
        protocol=loaded.protocol,
        policy=format_policy(loaded.policy) if loaded.triggers or is_autonomous(loaded.protocol) else "by hand",
        has_stop_when=loaded.stop_when is not None,
        agents=len(loaded.agents),
        classes=classes,
    )
    is_refused = False
    if place.store is not None or place.data_dir is not None:
        store = place.open()
        with contextlib.redirect_stdout(sys.stderr):  # handlers may print
            checked = check_snapshot(store, store.resolve(snapshot), loaded)
        result["snapshot"] = msgspec.to_builtins(checked)
        is_refused = bool(checked.incompatibilities or refused(checked.dependencies))
    display.printer().result(result, _show)
    if is_refused:
        raise typer.Exit(UsageError.exit_code)


def _show(result: Document, tables: DocumentTables) -> None:
    tables.fields((name, result.get(name)) for name in ("fleet", "protocol", "policy", "agents"))
    tables.line()
    rows = [
        (row["class"], row["agents"], row["state"], size(row["state_bytes_max"]), row["on_error"], _handles(row))
        for row in rows_of(result, "classes")
    ]
    tables.table(("CLASS", "AGENTS", "STATE", "LARGEST", "ON ERROR", "HANDLES"), rows)
    if not result["has_stop_when"]:
        tables.line()
        tables.line("it has no stop_when: it runs until it is interrupted")
    checked = result.get("snapshot")
    if isinstance(checked, dict):
        _show_snapshot(checked, tables)


def _show_snapshot(checked: Document, tables: DocumentTables) -> None:
    counts = [count(integer_of(checked, name), name[:-1]) for name in ("agents", "messages", "turns")]
    incompatibilities = rows_of(checked, "incompatibilities")
    fits = "does not fit" if incompatibilities else "fits"
    tables.line()
    tables.line(f"snapshot {checked.get('epoch')} {fits}: checked {', '.join(counts)}")
    show_changes(checked, tables)
    if incompatibilities:
        tables.table(
            ("AGENT", "PART", "REASON"), [(x.get("agent"), x.get("part"), x.get("reason")) for x in incompatibilities]
        )


def _handles(row: Document) -> str:
    handlers = row["handles"]
    return ", ".join(sorted(handlers)) if isinstance(handlers, dict) else ""


app.command("check")(check)
