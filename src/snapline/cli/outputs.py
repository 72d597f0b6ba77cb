"""`snapline output …`: outputs of agents, and the position of each consumer."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import command
from snapline.cli.options import Connection, Display
from snapline.cli.output import Document, DocumentTables, OutputFormat, Printer, document, readable, rows_of, text
from snapline.errors import CoordinatorUnavailableError, UsageError
from snapline.security.printable import printable

if TYPE_CHECKING:
    from snapline.agent_runtime.output_reading import Output, OutputsReverted
    from snapline.client.client import Client

ACKNOWLEDGE_S = 1.0
"""Interval between acknowledgements while outputs come. After a crash, outputs printed since the last one may be printed again."""

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
consumers = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Named readers of outputs.")
app.add_typer(consumers, name="consumers")


@dataclass(frozen=True)
class OutputSource(Connection):
    """A running fleet, or a store at rest."""

    store: Annotated[
        str | None, typer.Option("--store", metavar="STORE", help="Read the store there, without a coordinator.")
    ] = None


@app.command("tail")
@command
def tail(
    source: OutputSource,
    display: Display,
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]", help="Only these.", show_default="all")] = "",
    after: Annotated[
        str,
        typer.Option("--after", metavar="CURSOR", help="Those that come after it.", show_default="all that are kept"),
    ] = "",
    consumer: Annotated[
        str,
        typer.Option(
            "--consumer",
            metavar="NAME",
            help="Go on where this reader has come to, and move it on.",
            show_default=False,
        ),
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they come, until the fleet ends.")] = False,
) -> None:
    """Print outputs, oldest first, one to a line.

    An output is printed when a complete snapshot holds its turn, so that no failure takes it back. In JSON each line is a document.
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
    from snapline.agent_runtime.snapshots.reader import open_store

    lines.show_all(open_store(source.store).outputs(topic, after=after))


@consumers.command("list")
@command
def list_consumers(connection: Connection, display: Display) -> None:
    """List the named readers, and how far each has come. What one of them has not had is kept for it, a week at most."""
    from snapline.messages.documents import document_of

    reply = connection.ask(lambda client: client.read_consumers(connection.timeout))
    display.printer().result(document_of(reply), _show_consumers)


@consumers.command("forget")
@command
def forget(
    connection: Connection,
    display: Display,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The reader.")],
) -> None:
    """Keep nothing for a named reader any more. Should it come back, it begins with the oldest outputs that are kept."""
    connection.ask(lambda client: client.forget_consumer(name, connection.timeout))
    display.printer().result(document("ConsumerForgotten", consumer=name), _show_forgotten)


async def _tail(client: "Client", lines: "_Lines", topic: str, after: str, consumer: str, *, follow: bool) -> None:
    async with _acknowledging(client, consumer, lines, lines.printer):
        async for output in client.outputs(topic, after=after, consumer=consumer, follow=follow):
            lines.show(output)


@contextlib.asynccontextmanager
async def _acknowledging(client: "Client", consumer: str, lines: "_Lines", printer: Printer) -> AsyncIterator[None]:
    """Acknowledge printed outputs, periodically and at the end."""

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
            except CoordinatorUnavailableError as error:  # The fleet has ended.
                printer.warning(f"what was printed last is not acknowledged for consumer {consumer}: {error}")


class _Lines:
    """Prints outputs, each on a line."""

    def __init__(self, display: Display) -> None:
        self.printer = display.printer()
        self._is_json = self.printer.format is OutputFormat.JSON
        self._cursor = ""

    def take_cursor(self) -> str:
        """Return the cursor of the last output printed since the last call; "": none."""
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
    from snapline.agent_runtime.output_reading import Output
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
