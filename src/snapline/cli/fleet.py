"""Loads the fleet definition MODULE:FLEET for all commands, and defines `snapline fleet check`.

`fleet check` checks that a fleet definition can run, and whether it can go on from a snapshot, but starts no fleet. If a reference to a fleet definition is invalid, the error
message names the problem.
"""

import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import (
    Connection,
    Display,
    FleetArguments,
    FleetReference,
    allow_current_folder,
    command,
    parse_arguments,
)
from snapline.cli.output import Document, DocumentTables, count, document, integer_of, rows_of, show_changes, size
from snapline.cli.snapshot_retention import SNAPSHOT_HELP, StorePlace
from snapline.errors import (
    CoordinatorUnavailableError,
    FleetDefinitionError,
    NotFoundError,
    SnaplineError,
    SnapshotAbortedError,
    UsageError,
)

if TYPE_CHECKING:
    from snapline.agent_runtime.agent import AgentType
    from snapline.agent_runtime.fleet import Fleet
    from snapline.messages.status import SnapshotOutcome
    from snapline.storage.store.store import Store


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
    except (Exception, SystemExit) as error:  # importing a parent package of the module failed
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


@dataclass(frozen=True)
class CheckedStore(Connection):
    """Options that specify the store of a fleet that may be running, and its coordinator."""

    store: Annotated[
        str | None,
        typer.Option("--store", metavar="STORE", help="Store: a path, file:///DIR, or the URL of an object store."),
    ] = None

    def open(self) -> "Store | None":
        """Open the store, or return None if the options specify none.

        Raises:
            UsageError: If the options specify a coordinator and no store, or two stores.
            StoreMissingError: If the store does not exist.
        """
        if self.store is None and self.data_dir is None and self.coordinator is None:
            return None
        return StorePlace(self.store, self.data_dir).open()

    def take_snapshot(self, store: "Store") -> str | None:
        """Take a snapshot of the fleet that runs on this store. Return its root, or None if the fleet does not run.

        Raises:
            CoordinatorUnavailableError: If the coordinator that --coordinator names does not answer.
            SnapshotAbortedError: If the snapshot is not complete.
            UsageError: If the coordinator writes to another store.
        """
        from snapline.deploy.data_directory import read_address

        if self.coordinator is not None:
            outcome = self.ask(lambda client: client.create_snapshot(self.timeout))
        else:
            address = read_address(self.data_dir) if self.data_dir is not None else None
            if address is None:
                return None
            try:
                outcome = asyncio.run(self._ask_once(address))
            except CoordinatorUnavailableError:
                return None
        if not outcome.is_complete:
            raise SnapshotAbortedError(
                f"epoch {outcome.epoch} was aborted: {outcome.reason}. Check again, or the latest snapshot: --no-snapshot"
            )
        try:
            store.resolve(outcome.root)
        except NotFoundError as error:
            raise UsageError(
                f"the coordinator writes its snapshots to another store than {store.location}: give that one"
            ) from error
        return outcome.root

    async def _ask_once(self, address: str) -> "SnapshotOutcome":
        """Ask the coordinator without retries, because a fleet that is stopped has left its address behind."""
        from snapline.messages.coordinator_client import CoordinatorClient

        client = CoordinatorClient(address, self.security())
        try:
            return await client.create_snapshot(self.timeout)
        finally:
            await client.close()


@command
def check(
    place: CheckedStore,
    display: Display,
    fleet: FleetReference,
    arg: FleetArguments = None,
    snapshot: Annotated[
        str | None, typer.Option("--at", metavar="ID", help=f"{SNAPSHOT_HELP} Then no snapshot is taken.")
    ] = None,
    no_snapshot: Annotated[
        bool, typer.Option("--no-snapshot", help="Check the latest snapshot also if the fleet runs.")
    ] = False,
) -> None:
    """Check a fleet's definition: make every agent, and save and load its state. With --store or --data-dir, also check whether this code
    can go on from the store's latest snapshot. If the fleet runs, take a snapshot first; with --store, give its --coordinator.

    Starts nothing. Shows classes, the messages that they handle, and the size of their largest state.

    The snapshot's states, messages and timers are decoded, and open durable turns run again up to their waits. Steps and effects are not
    carried out, but handlers run. Turns that begin after the snapshot, and plain handlers, are not checked. Exit code 2: something is
    wrong.
    """
    import msgspec

    from snapline.agent_runtime.snapshots.snapshot_check import check_snapshot
    from snapline.messages.dependencies import refused
    from snapline.protocols.names import is_autonomous
    from snapline.protocols.policy import format_policy

    printer = display.printer()
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
    store = place.open()
    if store is not None:
        taken = place.take_snapshot(store) if snapshot is None and not no_snapshot else None
        snapshot = taken or snapshot or "latest"
        with contextlib.redirect_stdout(sys.stderr):  # handlers may print
            checked = check_snapshot(store, store.resolve(snapshot), loaded)
        result["snapshot"] = {**msgspec.to_builtins(checked), "is_taken": taken is not None}
        is_refused = bool(checked.incompatibilities or refused(checked.dependencies))
        if place.data_dir is not None and snapshot == "latest" and not no_snapshot:
            printer.warning(f"no coordinator of {place.data_dir} answers, so the latest snapshot was checked")
    printer.result(result, _show)
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
    taken = ", taken now," if checked.get("is_taken") else ""
    tables.line(f"snapshot {checked.get('epoch')}{taken} {fits}: checked {', '.join(counts)}")
    show_changes(checked, tables)
    if incompatibilities:
        tables.table(
            ("AGENT", "PART", "REASON"), [(x.get("agent"), x.get("part"), x.get("reason")) for x in incompatibilities]
        )


def _handles(row: Document) -> str:
    handlers = row["handles"]
    return ", ".join(sorted(handlers)) if isinstance(handlers, dict) else ""


app.command("check")(check)
