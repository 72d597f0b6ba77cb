"""`snapline effect …`: external effects of agents, and their outcomes."""

from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import PARTIAL, command
from snapline.cli.options import Connection, Display
from snapline.cli.output import Document, DocumentTables, document, rows_of
from snapline.cli.outputs import OutputSource
from snapline.errors import NotFoundError, SnaplineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from snapline.agent_runtime.effect_ledger import Effect
    from snapline.client.client import Client

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.command("list")
@command
def list_effects(
    source: OutputSource,
    display: Display,
    agent: Annotated[str, typer.Option("--agent", metavar="AGENT", help="Only this one's.", show_default="all")] = "",
    unsettled: Annotated[
        bool,
        typer.Option("--open", help="Only those that have not ended, have failed, or are left of a turn that failed."),
    ] = False,
) -> None:
    """List effects and what became of them, oldest first, as far as complete snapshots hold it."""
    from snapline.agent_runtime.effect_ledger import UNSETTLED

    effects = [x for x in _effects(source) if agent in ("", x.agent) and (not unsettled or x.fate in UNSETTLED)]
    display.printer().result(document("Effects", effects=[_row(effect) for effect in effects]), _show_effects)


@app.command("show")
@command
def show_effect(
    source: OutputSource,
    display: Display,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Whose effect.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="What it is known by.")],
) -> None:
    """Show one effect, in all its generations, and its compensations."""
    effects = [x for x in _effects(source) if x.agent == agent and key in (x.key, x.undoes)]
    if not effects:
        raise NotFoundError(f"agent {agent!r} has no effect {key!r}: see `snapline effect list --agent {agent}`")
    display.printer().result(document("Effects", effects=[_row(effect) for effect in effects]), _show_in_full)


@app.command("resolve")
@command
def resolve_effect(
    connection: Connection,
    display: Display,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Whose effect.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="What it is known by.")],
    result: Annotated[
        str | None, typer.Option("--result", metavar="JSON", help="It was done, and came to this.", show_default=False)
    ] = None,
    not_done: Annotated[bool, typer.Option("--not-done", help="It was not done: it is called.")] = False,
) -> None:
    """Say what came of an effect in doubt at which its agent stands, for nobody else can."""
    from snapline.messages.json_text import read_json

    if (result is None) == (not not_done):
        raise UsageError("what came of it? Give --result JSON, or --not-done")
    try:
        found = None if result is None else read_json(result)
    except UsageError as error:
        raise UsageError(f"--result is no JSON ({error}): a text stands in quotes, such as '\"receipt 7\"'") from error
    limit_s = connection.timeout
    connection.call_agents(
        lambda client: client.resolve_effect(agent, key, result=found, not_done=not_done, timeout_s=limit_s)
    )
    resolved = document("ResolvedEffect", agent=agent, key=key, said="not-done" if not_done else "done", result=found)
    display.printer().result(resolved, lambda shown, tables: tables.line(f"agent {agent} goes on from effect {key}"))


Agent = Annotated[str, typer.Argument(metavar="AGENT", help="Whose effects.")]
Keys = Annotated[list[str], typer.Argument(metavar="KEY…", help="What they are known by, as `effect list` shows them.")]


@app.command("retry")
@command
def retry_effects(connection: Connection, display: Display, agent: Agent, keys: Keys) -> None:
    """Have effects tried again: what has failed with its turn, a compensation that has failed, or what is in doubt and needs people.

    The turn of the first is its dead letter's, and runs from its beginning. The last may be done twice by that.
    """
    limit_s = connection.timeout
    _run_for_each_key(connection, display, agent, keys, lambda client, key: client.retry_effect(agent, key, limit_s))


@app.command("undo")
@command
def undo_effects(connection: Connection, display: Display, agent: Agent, keys: Keys) -> None:
    """Have effects undone by their compensations, also those whose turns have ended well.

    Each is undone once. Their agent is not told; if it asks for one of them again, that is done anew.
    """
    limit_s = connection.timeout
    _run_for_each_key(connection, display, agent, keys, lambda client, key: client.undo_effect(agent, key, limit_s))


def _run_for_each_key(
    connection: Connection,
    display: Display,
    agent: str,
    keys: list[str],
    say: "Callable[[Client, str], Awaitable[None]]",
) -> None:
    """Handle the keys in turn. The error of a single key is raised; with several keys, each error is shown next to its key."""

    async def each(client: "Client") -> list[dict[str, str]]:
        rows: list[dict[str, str]] = []
        for key in keys:
            try:
                await say(client, key)
                rows.append({"key": key, "outcome": "done", "reason": ""})
            except SnaplineError as error:
                if len(keys) == 1:
                    raise
                rows.append({"key": key, "outcome": "not done", "reason": str(error)})
        return rows

    rows = connection.call_agents(each)
    display.printer().result(document("SettledEffects", agent=agent, effects=rows), _show_settled)
    if any(row["reason"] for row in rows):
        raise typer.Exit(PARTIAL)


def _show_settled(result: Document, tables: DocumentTables) -> None:
    rows = rows_of(result, "effects")
    tables.table(("KEY", "OUTCOME", ""), [(row.get("key"), row.get("outcome"), row.get("reason")) for row in rows])


def _effects(source: OutputSource) -> "list[Effect]":
    if source.store is None:
        return source.call_agents(lambda client: client.effects())
    if source.coordinator is not None or source.data_dir is not None:
        raise UsageError("--store is read at rest, a coordinator is asked: give one of them")
    from snapline.agent_runtime.snapshots.reader import open_store

    return open_store(source.store).effects()


def _row(effect: "Effect") -> dict[str, object]:
    import msgspec

    from snapline.storage.timestamps import instant

    row: dict[str, object] = msgspec.structs.asdict(effect)
    return row | {"asked": instant(effect.asked_ns / 1e9)}


def _show_effects(result: Document, tables: DocumentTables) -> None:
    names = ("agent", "key", "name", "fate", "asked", "result")
    rows = [[_marked(row, name) for name in names] for row in rows_of(result, "effects")]
    tables.table(tuple(name.upper() for name in names), rows)


def _marked(row: Document, name: str) -> object:
    is_later = name == "key" and row["generation"] != 1
    return f"{row[name]}#{row['generation']}" if is_later else row[name]


def _show_in_full(result: Document, tables: DocumentTables) -> None:
    for row in rows_of(result, "effects"):
        for name, value in row.items():
            if value not in ("", 0) and name != "asked_ns":
                tables.line(f"{name:<14} {value}")
        tables.line("")
