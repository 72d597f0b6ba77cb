"""`snapline recovery restore`: take the fleet back to a snapshot on purpose. What that undoes is shown first."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from snapline.cli.command import command
from snapline.cli.options import Connection, Display
from snapline.cli.output import Document, DocumentTables, count, rows_of
from snapline.errors import MisuseError

ROWS_MAX = 20
"""As in `recovery line`."""

NAMED_MAX = 10


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
    from snapline.conversation.documents import document_of

    if not (yes or dry_run or (sys.stdin.isatty() and sys.stdout.isatty())):
        raise MisuseError("this takes the whole fleet back: look with --dry-run, then give --yes")
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
    """One for the whole command: if its call has to be made again it is the same restore."""
    import secrets

    return secrets.token_hex(16)


def named(what: str, of: Sequence[object]) -> str:
    """`epochs 4, 5, … are`, or `epoch 4 is`: for a sentence."""
    names = ", ".join(map(str, of[:NAMED_MAX])) + (", …" if len(of) > NAMED_MAX else "")
    return f"{what} {names} is" if len(of) == 1 else f"{what}s {names} are"


def _show_preview(result: Document, tables: DocumentTables) -> None:
    tables.line(f"epoch {result.get('epoch')}, taken {result.get('created')}, {result.get('age_s')} s ago")
    void = _list(result, "void_epochs")
    tables.line(f"{named('epoch', void)} void then" if void else "no later epoch is complete")
    gone, back = _list(result, "agents_gone"), _list(result, "agents_back")
    if gone:
        tables.line(f"{named('agent', gone)} gone: born later")
    if back:
        tables.line(f"{named('agent', back)} there again, having left since")
    _show_inputs(result, tables)
    for row in rows_of(result, "outputs"):
        tables.line(f"topic {row.get('topic')}: {_count(row.get('count'), 'released output')} taken back")
    effects = _list(result, "effects")
    if effects:
        tables.line(f"done outside since, and not taken back: {', '.join(map(str, effects))}")


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
    void = _list(result, "void_epochs")
    more = f"; {named('epoch', void)} void" if void else ""
    tables.line(f"the fleet goes back to epoch {result.get('epoch')} by plan {result.get('plan')}{more}")


def _list(result: Document, name: str) -> list[object]:
    found = result.get(name)
    return found if isinstance(found, list) else []


def _count(value: object, noun: str) -> str:
    number = value if isinstance(value, int) else 0
    return f"{count(number, noun)} {'is' if number == 1 else 'are'}"
