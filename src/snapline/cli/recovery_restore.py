"""`snapline recovery restore`: restore the fleet to a snapshot on purpose. The command first shows what is undone."""

import sys
from typing import Annotated

import typer

from snapline.cli.command import command
from snapline.cli.options import Connection, Display
from snapline.cli.output import Document, DocumentTables, rows_of
from snapline.errors import UsageError

ROWS_MAX = 20
"""Largest number of rows shown, as in `recovery line`."""


@command
def restore(
    connection: Connection,
    display: Display,
    snapshot: Annotated[
        str, typer.Argument(metavar="ID", help="Epoch number, `last`, tag, or first digits of a root.")
    ],
    drop_inputs: Annotated[
        bool, typer.Option("--drop-inputs", help="Drop inputs that it has not consumed; else they are given again.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for `recovery history`.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would undo, and do nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Take the fleet back to a snapshot, for good: what happened since is undone.

    On a terminal it shows what that is and asks; elsewhere it needs --yes. Later snapshots are void from then on, and no recovery
    uses them. What was done outside stays done.
    """
    from snapline.messages.documents import document_of

    if not (yes or dry_run or (sys.stdin.isatty() and sys.stdout.isatty())):
        raise UsageError("this takes the whole fleet back: look with --dry-run, then give --yes")
    printer = display.printer()
    preview = connection.ask(
        lambda client: client.preview_restore(snapshot, connection.timeout, drop_inputs=drop_inputs)
    )
    if dry_run:
        printer.result(document_of(preview), _show_preview)
        return
    if not yes:
        printer.result(document_of(preview), _show_preview)
        typer.confirm(f"Take the fleet back to epoch {preview.epoch}?", abort=True, err=True)
    epoch, token = str(preview.epoch), _token()
    done = connection.ask(lambda client: client.restore(epoch, token, reason, drop_inputs, connection.timeout))
    printer.result(document_of(done), _show_done)


def _token() -> str:
    """Return one token for the whole command, so that a repeated call is the same restore."""
    import secrets

    return secrets.token_hex(16)


def _show_preview(result: Document, tables: DocumentTables) -> None:
    import msgspec

    from snapline.messages.answers import RestorePreview
    from snapline.view.display_text import undone_in_fleet, undone_outside_fleet

    preview = msgspec.convert(result, RestorePreview)
    for line in undone_in_fleet(preview):
        tables.line(line)
    _show_inputs(result, tables)
    for line in undone_outside_fleet(preview):
        tables.line(line)


def _show_inputs(result: Document, tables: DocumentTables) -> None:
    rows = rows_of(result, "inputs")
    if not rows:
        tables.line("no inputs came later")
        return
    word = "dropped" if result.get("is_dropping_inputs") else "given again"
    tables.table(
        ("AGENT", "INPUTS", "FROM NUMBER", "MISSING"),
        [(row.get("agent"), f"{row.get('count')} {word}", row.get("first"), _missing(row)) for row in rows[:ROWS_MAX]],
    )
    if len(rows) > ROWS_MAX:
        tables.line(f"and {len(rows) - ROWS_MAX:,} more; `-o json` has them all")


def _missing(row: Document) -> str:
    missing = _list(row, "missing")
    return f"{missing[0]} to {missing[-1]}" if missing else ""


def _show_done(result: Document, tables: DocumentTables) -> None:
    from snapline.view.display_text import named

    void = _list(result, "void_epochs")
    more = f"; {named('epoch', void)} void" if void else ""
    tables.line(f"the fleet goes back to epoch {result.get('epoch')} by plan {result.get('plan')}{more}")


def _list(result: Document, name: str) -> list[object]:
    values = result.get(name)
    return values if isinstance(values, list) else []
