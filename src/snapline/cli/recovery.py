"""`snapline recovery …`: the recovery line, and past recoveries of the fleet."""

from collections.abc import Sequence
from typing import Annotated

import typer

from snapline.cli import recovery_report, recovery_restore
from snapline.cli.command import command
from snapline.cli.options import Connection, Display, Stale
from snapline.cli.output import Document, DocumentTables, rows_of, text
from snapline.errors import UsageError
from snapline.ids import check_failed

ROWS_MAX = 20
"""Largest number of rows in a table; a fleet may have thousands of agents."""

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.command("line")
@command
def line(
    connection: Connection,
    display: Display,
    failed: Annotated[
        str, typer.Option("--failed", metavar="A,B", help="Agents that failed; host:h1 stands for all of its agents.")
    ] = "",
    each: Annotated[
        bool,
        typer.Option("--each", help="Instead: what every single agent's and every single host's failure would cost."),
    ] = False,
) -> None:
    """Show the recovery line for given failures.

    It is the newest consistent cut the fleet could go back to if these agents failed now. Where agents checkpoint by
    themselves, those that need not go back keep their live state.
    """
    names = parse_failed(failed)
    if each:
        if names:
            raise UsageError("--each answers for every single failure: leave out --failed")
        result = connection.ask(lambda client: client.recovery_lines(connection.timeout))
        display.printer().result(result, _show_each)
        return
    result = connection.ask(lambda client: client.recovery_line(names, connection.timeout))
    display.printer().result(result, _show_line)


@app.command("history")
@command
def history(connection: Connection, display: Display, stale: Stale = False) -> None:
    """List the recoveries so far, oldest first."""
    result = connection.ask(lambda client: client.recovery_history(connection.timeout, stale=stale))
    display.printer().result(result, _show_history)


app.command("report")(recovery_report.report)
app.command("restore")(recovery_restore.restore)


def parse_failed(failed: str) -> list[str]:
    """Split `"a,host:h1"` into `["a", "host:h1"]`.

    Raises:
        UsageError: a name is empty or no valid id.
    """
    names = [name.strip() for name in failed.split(",")] if failed.strip() else []
    if "" in names:
        raise UsageError(f"--failed {failed!r} has an empty name: write --failed A,B")
    return check_failed(names)


def _show_first(columns: Sequence[str], rows: Sequence[Sequence[object]], tables: DocumentTables) -> None:
    """Print the first rows, and the number of further ones."""
    tables.table(columns, rows[:ROWS_MAX])
    if len(rows) > ROWS_MAX:
        tables.line(f"and {len(rows) - ROWS_MAX:,} more; `-o json` has them all")


def _show_line(result: Document, tables: DocumentTables) -> None:
    if "rollback" in result:
        _show_autonomous_line(result, tables)
        return
    if result.get("epoch") == 0:
        tables.line("no epoch is complete yet: the fleet would start again from its initial states")
    else:
        names = ("epoch", "root", "rolled_back", "messages_delivered_again")
        tables.fields((name, result.get(name)) for name in names)
    line = result.get("recovery_line")
    if isinstance(line, dict) and line:
        tables.line()
        _show_first(("AGENT", "EPOCH"), list(line.items()), tables)


def _show_autonomous_line(result: Document, tables: DocumentTables) -> None:
    """Print the line of an autonomous fleet: a checkpoint for each agent that is rolled back, "live" for the others."""
    line, rollback, rolled_back = result.get("recovery_line"), result.get("rollback"), result.get("rolled_back")
    count = len(rolled_back) if isinstance(rolled_back, list) else 0
    tables.fields((("rolled_back", count), ("in_transit", result.get("in_transit")), ("epoch", result.get("epoch"))))
    _show_silent(result, tables)
    if not isinstance(line, dict) or not isinstance(rollback, dict):
        return
    rows = []
    for agent, number in line.items():
        cost = rollback.get(agent)
        if isinstance(cost, dict):
            rows.append([agent, number, cost.get("checkpoints"), cost.get("turns")])
        else:
            rows.append([agent, "live", "", ""])
    rows.sort(key=lambda row: row[1] == "live")  # agents that are rolled back come first
    tables.line()
    _show_first(("AGENT", "CHECKPOINT", "PASSED OVER", "TURNS LOST"), rows, tables)


def _show_each(result: Document, tables: DocumentTables) -> None:
    rows = []
    for row in rows_of(result, "lines"):
        rolled_back, turns = row.get("rolled_back"), row.get("turns", "")
        count = len(rolled_back) if isinstance(rolled_back, list) else 0
        cost = (-count, -turns if isinstance(turns, int) else 0)
        rows.append((cost, [row.get("failed"), count, row.get("checkpoints", ""), turns]))
    if len(rows) > ROWS_MAX:
        rows.sort(key=lambda row: row[0])  # most expensive first
    columns = ("FAILED", "ROLLED BACK", "CHECKPOINTS PASSED OVER", "TURNS LOST")
    _show_first(columns, [row for _, row in rows], tables)
    _show_silent(result, tables)


def _show_silent(result: Document, tables: DocumentTables) -> None:
    silent = result.get("silent_hosts")
    if isinstance(silent, list) and silent:
        tables.line(f"an estimate: not heard in time: {', '.join(map(text, silent))}")


def _show_history(result: Document, tables: DocumentTables) -> None:
    recoveries = rows_of(result, "recoveries")
    if not recoveries:
        tables.line("no recoveries yet")
    else:
        names = (
            "plan",
            "line_epoch",
            "lost_hosts",
            "suspected",
            "duration_s",
            "rolled_back",
            "messages_delivered_again",
        )
        columns = (*names, "reason")
        tables.table(
            [_heading(name) for name in columns], [[_cell(row.get(name)) for name in columns] for row in recoveries]
        )
    for row in recoveries:
        void = row.get("void_epochs")
        if row.get("is_restore") and isinstance(void, list) and void:
            from snapline.view.display_text import named  # it imports msgspec

            tables.line(f"plan {row.get('plan')} went back on purpose: {named('epoch', void)} void")
    for row in rows_of(result, "condemned_epochs"):
        tables.line(f"epoch {row.get('epoch')} is not used any more: {row.get('path')}: {row.get('reason')}")


def _heading(name: str) -> str:
    return name.replace("_", " ").upper()


def _cell(value: object) -> object:
    return ", ".join(map(text, value)) if isinstance(value, list) else value
