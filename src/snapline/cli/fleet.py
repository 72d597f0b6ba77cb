"""`snapline fleet check`: check that a fleet definition can run. Nothing is started."""

import typer

from snapline.cli.command import command
from snapline.cli.fleets import check_reference, load, make_agents
from snapline.cli.options import Display, FleetArguments, FleetReference, parse_arguments
from snapline.cli.output import Document, DocumentTables, document, rows_of, size

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@command
def check(display: Display, fleet: FleetReference, arg: FleetArguments = None) -> None:
    """Make every agent of a fleet, and see that its state can be saved and read again.

    Nothing is started and nothing is written. Exit code 2 with one sentence if something is wrong.
    """
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
    display.printer().result(result, _show)


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


def _handles(row: Document) -> str:
    handlers = row["handles"]
    return ", ".join(sorted(handlers)) if isinstance(handlers, dict) else ""


app.command("check")(check)
