"""`snapline output …` and `snapline effect …` show agents' outputs and consumers' positions, and show and settle external effects."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import PARTIAL, Connection, Display, command, limit_option
from snapline.cli.output import (
    Document,
    DocumentTables,
    OutputFormat,
    Printer,
    document,
    readable,
    rows_of,
    text,
    utc_time,
)
from snapline.errors import CoordinatorUnavailableError, NotFoundError, SnaplineError, UsageError
from snapline.security.printable import printable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from snapline.agent_runtime.effect_ledger import Effect
    from snapline.agent_runtime.message_encoding import Output, OutputsReverted
    from snapline.client.client import Client


ACKNOWLEDGE_S = 1.0
"""Interval in seconds between two acknowledgements while outputs arrive. After a crash, outputs that were printed since the last
acknowledgement may be printed again."""

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
consumers = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Named consumers of outputs.")
app.add_typer(consumers, name="consumers")


@dataclass(frozen=True)
class OutputSource(Connection):
    """Options that specify either a running fleet, or a store whose fleet need not run."""

    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="STORE",
            help="Store to read directly, as path or URL: no process needs to run, and no class of the fleet is loaded.",
        ),
    ] = None


@app.command("tail")
@command
def tail(
    source: OutputSource,
    display: Display,
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]", help="Topic to print.", show_default="all")] = "",
    after: Annotated[
        str,
        typer.Option(
            "--after", metavar="CURSOR", help="Cursor after which to begin.", show_default="the oldest that is kept"
        ),
    ] = "",
    consumer: Annotated[
        str,
        typer.Option(
            "--consumer",
            metavar="NAME",
            help="Named consumer: continue from its saved position, and advance it.",
            show_default=False,
        ),
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new outputs, until the fleet ends.")] = False,
) -> None:
    """Print released outputs, oldest first, one per line.

    An output is released when a complete snapshot contains its turn, so that no failure undoes it. In JSON each line is a document,
    `Output` or `OutputsUndone` (after a restore), with the `cursor` from which to continue. With --consumer the position is saved every
    second and at the end; after a crash the last outputs may be repeated.

    Roles: reading needs `viewer`, `approver`, `operator`, `admin` or `client`; --consumer one of the last three. Exit codes: 2: no such cursor,
    or not permitted. 4: no such consumer, or later outputs were deleted. 6: a file is damaged. 10: no such store.
    """
    lines = _Lines(display)
    if source.store is None:
        source.call_agents(lambda client: _tail(client, lines, topic, after, consumer, follow=follow))
        return
    if source.coordinator is not None or source.data_dir is not None:
        raise UsageError("--store is read at rest, a coordinator is asked: give one of them")
    if follow or consumer:
        raise UsageError(
            "--follow and --consumer take a fleet that runs: give --data-dir or --coordinator, not --store"
        )
    from snapline.agent_runtime.snapshots.snapshot_reader import open_store

    lines.show_all(open_store(source.store).outputs(topic, after=after))


@consumers.command("list")
@command
def list_consumers(connection: Connection, display: Display) -> None:
    """List the named consumers of outputs, and their positions. Unread outputs are kept for them, a week at most."""
    from snapline.messages.answers import document_of

    reply = connection.ask(lambda client: client.read_consumers(connection.timeout))
    display.printer().result(document_of(reply), _show_consumers)


@consumers.command("forget")
@command
def forget(
    connection: Connection,
    display: Display,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Consumer.")],
) -> None:
    """Remove a named consumer, so that no outputs are kept for it. Requires the role `operator` or `admin`.

    If it returns, it begins with the oldest outputs that are kept.
    """
    connection.ask(lambda client: client.forget_consumer(name, connection.timeout))
    display.printer().result(document("ConsumerForgotten", consumer=name), _show_forgotten)


async def _tail(client: "Client", lines: "_Lines", topic: str, after: str, consumer: str, *, follow: bool) -> None:
    async with _acknowledging(client, consumer, lines, lines.printer):
        async for output in client.outputs(topic, after=after, consumer=consumer, follow=follow):
            lines.show(output)


@contextlib.asynccontextmanager
async def _acknowledging(client: "Client", consumer: str, lines: "_Lines", printer: Printer) -> AsyncIterator[None]:
    """Acknowledge the printed outputs periodically while the block runs, and once more at its end."""

    async def keep() -> None:
        while True:
            await asyncio.sleep(ACKNOWLEDGE_S)
            await acknowledge()

    async def acknowledge() -> None:
        cursor = lines.take_cursor()
        if cursor:
            await client.acknowledge(consumer, cursor)

    keeping = asyncio.create_task(keep()) if consumer else None
    try:
        yield
    finally:
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            try:
                await acknowledge()
            except CoordinatorUnavailableError as error:  # the fleet has ended
                printer.warning(f"what was printed last is not acknowledged for consumer {consumer}: {error}")


class _Lines:
    """Prints each output on one line."""

    def __init__(self, display: Display) -> None:
        self.printer = display.printer()
        self._is_json = self.printer.format is OutputFormat.JSON
        self._cursor = ""

    def take_cursor(self) -> str:
        """Return the cursor of the last output that was printed since the previous call, or "" if no output was printed."""
        cursor, self._cursor = self._cursor, ""
        return cursor

    def show_all(self, found: "Iterable[Output | OutputsReverted]") -> None:
        for each in found:
            self.show(each)

    def show(self, each: "Output | OutputsReverted") -> None:
        output_document = _document(each)
        line = json.dumps(readable(output_document), ensure_ascii=False) if self._is_json else _line(output_document)
        print(printable(line), flush=True)
        self._cursor = each.cursor


def _document(each: "Output | OutputsReverted") -> Document:
    from snapline.agent_runtime.message_encoding import Output
    from snapline.storage.timestamps import instant

    if not isinstance(each, Output):
        return document("OutputsUndone", after=each.after, epochs=list(each.epochs), cursor=each.cursor)
    return document(
        "Output",
        agent=each.agent,
        number=each.number,
        topic=each.topic,
        message=each.message,
        epoch=each.epoch,
        emitted=instant(each.emitted_ns / 1e9),
        cursor=each.cursor,
    )


def _line(shown: Document) -> str:
    if shown["kind"] == "OutputsUndone":
        return f"{shown['cursor']}  the fleet went back: what was given out after epoch {shown['after']} is undone"
    message = shown["message"]
    fields = f"{message['type']} {text(message['fields'])}" if isinstance(message, dict) else text(message)
    return f"{shown['cursor']}  {shown['agent']} {shown['number']}  {shown['topic']}  {fields}"


def _show_consumers(result: Document, tables: DocumentTables) -> None:
    rows = [[row.get("name"), row.get("cursor"), row.get("acknowledged")] for row in rows_of(result, "consumers")]
    tables.table(("CONSUMER", "CURSOR", "ACKNOWLEDGED"), rows)


def _show_forgotten(result: Document, tables: DocumentTables) -> None:
    tables.line(f"nothing is kept for consumer {result.get('consumer')} any more")


effects_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@effects_app.command("list")
@command
def list_effects(
    source: OutputSource,
    display: Display,
    agent: Annotated[
        str, typer.Option("--agent", metavar="AGENT", help="Agent whose effects to list.", show_default="all")
    ] = "",
    unsettled: Annotated[
        bool,
        typer.Option("--open", help="List only effects that have not ended, have failed, or are left."),
    ] = False,
    limit: Annotated[int | None, limit_option("newest effects")] = None,
) -> None:
    """List effects and their outcomes, oldest first, as far as complete snapshots contain them. Outputs are kept for a week.

    States: `open`: requested, and perhaps called. `waiting`: not called yet. `in doubt`: perhaps called by an earlier incarnation; it
    is called again or probed. `needs people`: in doubt, and waits for `effect resolve`. `done`. `failed`: its function raised, and it
    may have happened. `compensated`. `left`: not undone, though its turn failed permanently. Retry the turn's dead letter, which takes
    the effect over if it has a key, or undo it by hand. `undone`: the fleet was restored to before it. Only a running fleet shows
    `waiting`, `in doubt` and `needs people`.
    """
    from snapline.agent_runtime.effect_ledger import UNSETTLED

    effects = [x for x in _effects(source) if agent in ("", x.agent) and (not unsettled or x.fate in UNSETTLED)]
    printer = display.printer()
    newest = effects[-(printer.limit(limit) or len(effects)) :]
    result = document("Effects", effects=[_row(effect) for effect in newest])
    printer.result(result, partial(_show_effects, hidden=len(effects) - len(newest)))


@effects_app.command("show")
@command
def show_effect(
    source: OutputSource,
    display: Display,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Agent of the effect.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the effect.")],
) -> None:
    """Show one effect, with all its generations and compensations."""
    effects = [x for x in _effects(source) if x.agent == agent and key in (x.key, x.undoes)]
    if not effects:
        raise NotFoundError(f"agent {agent!r} has no effect {key!r}: see `snapline effect list --agent {agent}`")
    display.printer().result(document("Effects", effects=[_row(effect) for effect in effects]), _show_in_full)


@effects_app.command("resolve")
@command
def resolve_effect(
    connection: Connection,
    display: Display,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Agent of the effect.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the effect.")],
    result: Annotated[
        str | None,
        typer.Option("--result", metavar="JSON", help="Result of the effect, which has happened.", show_default=False),
    ] = None,
    not_done: Annotated[bool, typer.Option("--not-done", help="The effect has not happened: call it.")] = False,
) -> None:
    """Report the outcome of an effect in doubt, for which its agent waits.

    Exit codes: 0: the turn has accepted it. 2: the agent does not or no longer wait for an outcome, or not permitted. 4: no such
    effect, or the agent waits at another one. 9: unknown in time; repeating the command is safe.
    """
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


Agent = Annotated[str, typer.Argument(metavar="AGENT", help="Agent of the effects.")]
Keys = Annotated[list[str], typer.Argument(metavar="KEY…", help="Keys of the effects, as `effect list` shows them.")]


@effects_app.command("retry")
@command
def retry_effects(connection: Connection, display: Display, agent: Agent, keys: Keys) -> None:
    """Retry effects that failed, or that are in doubt and need an operator.

    A failed effect is retried by another turn of its dead letter, from the beginning of the turn. That turn takes over effects that were
    done under a key. A failed compensation, or an effect in doubt, is retried by another call. An effect in doubt may thereby happen
    twice. Exit codes for one KEY: 0: done, and a snapshot contains it.
    2: not possible or not permitted. 3: failed again, and a new dead letter. 4: no such agent. 9: unknown in time; repeating is safe.
    For several: 0, or 3 as the lines say.
    """
    limit_s = connection.timeout
    _run_for_each_key(connection, display, agent, keys, lambda client, key: client.retry_effect(agent, key, limit_s))


@effects_app.command("undo")
@command
def undo_effects(connection: Connection, display: Display, agent: Agent, keys: Keys) -> None:
    """Undo effects by their compensations, also those of successful turns.

    Each is undone once. The agent is not notified; if it requests the effect again, the effect is done again. Exit codes: those of
    `effect retry`.
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
    """Call `say` for each key, one after the other, and show the results.

    If there is only one key, raise the error of its call, otherwise show each error together with its key.
    """

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
    from snapline.agent_runtime.snapshots.snapshot_reader import open_store

    return open_store(source.store).effects()


def _row(effect: "Effect") -> dict[str, object]:
    import msgspec

    from snapline.storage.timestamps import instant

    row: dict[str, object] = msgspec.structs.asdict(effect)
    return row | {"asked": instant(effect.asked_ns / 1e9)}


LEFT_NOTE = (
    "`left`: the turn failed, and did not undo the effect: retry its dead letter (`snapline agent dead-letters list`), or undo the "
    "effect by hand."
)
"""Explanation beneath a list with such effects."""


def _show_effects(result: Document, tables: DocumentTables, hidden: int) -> None:
    rows = rows_of(result, "effects")
    columns = ("AGENT", "KEY", "NAME", "FATE", "ASKED (UTC)", "RESULT")
    tables.table(columns, [_effect_cells(row) for row in rows], optional=("RESULT", "NAME", "ASKED (UTC)"))
    tables.rest(hidden, hidden + len(rows), "older")
    if any(row["fate"] == "left" for row in rows):
        tables.line(LEFT_NOTE)


def _effect_cells(row: Document) -> list[object]:
    key = row["key"] if row["generation"] == 1 else f"{row['key']}#{row['generation']}"
    return [row["agent"], key, row["name"], row["fate"], utc_time(row["asked"]), row["result"]]


def _show_in_full(result: Document, tables: DocumentTables) -> None:
    for row in rows_of(result, "effects"):
        for name, value in row.items():
            if value not in ("", 0) and name != "asked_ns":
                tables.line(f"{name:<14} {value}")
        tables.line("")
