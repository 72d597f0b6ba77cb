"""`snapline recovery …` computes the recovery line, reports past recoveries, and restores a snapshot.

`recovery restore` first shows which work the restore will undo.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import AcceptChanges, Connection, Display, Stale, command
from snapline.cli.output import Document, DocumentTables, count, document, rows_of, text, utc_time
from snapline.errors import NotFoundError, UsageError
from snapline.ids import check_failed

if TYPE_CHECKING:
    from snapline.agent_runtime.effect_ledger import Effect
    from snapline.client.client import Client


@command
def report(
    connection: Connection,
    display: Display,
    plan: Annotated[
        int | None, typer.Argument(metavar="[PLAN]", min=1, help="Plan of the recovery.", show_default="the newest")
    ] = None,
) -> None:
    """Report one recovery: time, reason, extent, and the outcome of effects that were open in its snapshot.

    Outcomes are known as long as outputs are kept: a week. Where agents checkpoint independently, the effects are those open in the
    epoch of the line. Exit code 4: no such recovery.
    """
    history = rows_of(connection.ask(lambda client: client.recovery_history(connection.timeout)), "recoveries")
    recoveries = [row for row in history if plan in (None, row.get("plan"))]
    if not recoveries:
        which = f"plan {plan} was no recovery" if plan is not None else "there was no recovery yet"
        raise NotFoundError(f"{which}: `snapline recovery history` lists them")
    line = recoveries[-1].get("line_epoch")
    assert isinstance(line, int), "an epoch"
    effects = connection.call_agents(lambda client: _open_at(client, line))
    rows = [{"agent": effect.agent, "key": effect.key, "name": effect.name, "fate": effect.fate} for effect in effects]
    display.printer().result(document("RecoveryReport", recovery=recoveries[-1], effects=rows), _show)


async def _open_at(client: "Client", epoch: int) -> "list[Effect]":
    from snapline.agent_runtime.effect_ledger import open_at
    from snapline.messages.effect_records import EFFECTS_TOPIC, EffectRecord

    records = [x async for x in client.outputs(EFFECTS_TOPIC, message_type=EffectRecord, follow=False)]
    return open_at(records, epoch)


def _show(result: Document, tables: DocumentTables) -> None:
    recovery = result.get("recovery")
    assert isinstance(recovery, dict), "a row of the history"
    fields = [
        (name, ", ".join(map(str, value)) if isinstance(value, list) else value) for name, value in recovery.items()
    ]
    tables.fields([(name, value) for name, value in fields if value not in ("", None, False)])
    rows = rows_of(result, "effects")
    if rows:
        tables.line()
        names = ("agent", "key", "name", "fate")
        tables.table(tuple(name.upper() for name in names), [[row[name] for name in names] for row in rows])


@command
def restore(
    connection: Connection,
    display: Display,
    snapshot: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Snapshot: epoch number, `last` for the newest complete one, tag, or four or more first digits of its "
            "root.",
        ),
    ],
    drop_inputs: Annotated[
        bool,
        typer.Option(
            "--drop-inputs",
            help="Drop the inputs that the snapshot has not consumed, instead of delivering them again.",
        ),
    ] = False,
    accept_changes: AcceptChanges = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Reason, for `recovery history`.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the restore would undo, and do nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Restore the fleet to a snapshot: everything since is undone, permanently.

    On a terminal it shows what that undoes, and asks; elsewhere it requires --yes (exit code 2). Later snapshots are discarded, and no
    recovery uses them. External effects are not undone. The snapshot must be an epoch that the coordinator keeps (`coordinator run
    --keep-epochs`). The command returns when the plan is committed; `snapline status` shows when the fleet runs. Requires the role
    `operator`. Exit codes: 2: the fleet cannot go back to that snapshot. 4: no such snapshot, or the coordinator does not keep it.
    """
    from snapline.messages.answers import document_of

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
    done = connection.ask(
        lambda client: client.restore(
            epoch, token, reason, drop_inputs, connection.timeout, accept_changes=accept_changes
        )
    )
    printer.result(document_of(done), _show_done)


def _token() -> str:
    """Return one token for the whole command, so that a resent request is recognized as the same restore."""
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
    more = f"; {named('epoch', void)} discarded" if void else ""
    tables.line(f"the fleet goes back to epoch {result.get('epoch')} by plan {result.get('plan')}{more}")


def _list(result: Document, name: str) -> list[object]:
    values = result.get(name)
    return values if isinstance(values, list) else []


ROWS_MAX = 20
"""Largest number of rows in a table, because a fleet may have thousands of agents."""

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.command("line")
@command
def line(
    connection: Connection,
    display: Display,
    failed: Annotated[
        str,
        typer.Option(
            "--failed", metavar="A,B", help="Agents that fail; host:h1 stands for all agents of h1. Default: all."
        ),
    ] = "",
    each: Annotated[
        bool,
        typer.Option("--each", help="Show the cost of every single agent's and every single host's failure instead."),
    ] = False,
) -> None:
    """Show the recovery line: where the fleet would go back to if these agents failed now.

    With `chandy-lamport` and `koo-toueg` it is the last complete epoch for all agents. Otherwise the hosts are asked, without
    disturbing them, and agents that need not go back keep their live state. A recovery freezes the fleet first, so its line may be
    newer. Tables have the twenty most expensive rows; JSON has all.

    In JSON `recovery_line` has each agent's checkpoint, or null for the live state. `rollback` has, for each other agent, the
    checkpoint `to` which it goes back, the durable `checkpoints` passed over, and the `turns` lost, as far as reported. `in_transit`
    counts messages delivered again. `silent_hosts` did not answer within a second.
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
    """List the recoveries so far, oldest first.

    `rolled_back` counts agents that did not keep their live state, `checkpoints_lost` their durable checkpoints after the line. With
    `chandy-lamport` and `koo-toueg` all agents go back, and none are lost. `down` and `up` make a row with the reason `planned stop`,
    whose duration contains the time between them. `is_restore`: the fleet was restored on request; `void_epochs` are the epochs
    discarded then.
    """
    result = connection.ask(lambda client: client.recovery_history(connection.timeout, stale=stale))
    display.printer().result(result, _show_history)


app.command("report")(report)
app.command("restore")(restore)


def parse_failed(failed: str) -> list[str]:
    """Split `"a,host:h1"` into `["a", "host:h1"]`.

    Raises:
        UsageError: If a name is empty or not a valid id.
    """
    names = [name.strip() for name in failed.split(",")] if failed.strip() else []
    if "" in names:
        raise UsageError(f"--failed {failed!r} has an empty name: write --failed A,B")
    return check_failed(names)


def _show_first(columns: Sequence[str], rows: Sequence[Sequence[object]], tables: DocumentTables) -> None:
    """Print the first rows of a table. If more rows remain, print their number."""
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
    """Print the recovery line of an autonomous fleet.

    For each agent, the line contains the checkpoint to which it is rolled back, or "live" if it is not rolled back.
    """
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
    rows.sort(key=lambda row: row[1] == "live")  # rolled-back agents come first
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
        rows.sort(key=lambda row: row[0])  # the most expensive failures come first
    columns = ("FAILED", "ROLLED BACK", "CHECKPOINTS PASSED OVER", "TURNS LOST")
    _show_first(columns, [row for _, row in rows], tables)
    _show_silent(result, tables)


def _show_silent(result: Document, tables: DocumentTables) -> None:
    silent = result.get("silent_hosts")
    if isinstance(silent, list) and silent:
        tables.line(f"an estimate: not heard in time: {', '.join(map(text, silent))}")


def _show_history(result: Document, tables: DocumentTables) -> None:
    from snapline.coordinator.state.fleet_records import PLANNED_STOP

    recoveries = rows_of(result, "recoveries")
    if not recoveries:
        tables.line("no recoveries yet")
    else:
        columns = ("PLAN", "LINE EPOCH", "LOST", "SUSPECTED (UTC)", "TOOK", "ROLLED BACK", "IN TRANSIT")
        tables.table(columns, [_history_cells(row) for row in recoveries])
    for row in recoveries:
        stopped = "; its time counts from the stop" if row.get("reason") == PLANNED_STOP else ""
        tables.line(f"plan {row.get('plan')}: {text(row.get('reason'))}{stopped}")
        void = row.get("void_epochs")
        if row.get("is_restore") and isinstance(void, list) and void:
            from snapline.view.display_text import named  # imported late, because it imports msgspec

            tables.line(f"plan {row.get('plan')} went back on purpose: {named('epoch', void)} discarded")
    for row in rows_of(result, "condemned_epochs"):
        tables.line(f"epoch {row.get('epoch')} is not used any more: {row.get('path')}: {row.get('reason')}")


LOST_CHARACTERS_MAX = 7
"""Largest number of characters for the lost hosts of a recovery, whose number is shown otherwise: a row fits into 80 columns."""


def _history_cells(row: Document) -> list[object]:
    """Return a recovery's row in the table, without fractions of the second in which it began."""
    from snapline.view.display_text import seconds

    hosts, duration_s = _list(row, "lost_hosts"), row.get("duration_s")
    lost = ", ".join(sorted(map(str, hosts)))
    return [
        *(row.get("plan"), row.get("line_epoch")),
        lost if len(hosts) == 1 or len(lost) <= LOST_CHARACTERS_MAX else count(len(hosts), "host"),
        utc_time(row.get("suspected")),
        seconds(duration_s) if isinstance(duration_s, int | float) else "",
        *(row.get("rolled_back"), row.get("messages_delivered_again")),
    ]
