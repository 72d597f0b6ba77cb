"""`snapline recovery report`: report of one recovery."""

from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import command
from snapline.cli.options import Connection, Display
from snapline.cli.output import Document, DocumentTables, document, rows_of
from snapline.errors import NotFoundError

if TYPE_CHECKING:
    from snapline.agent_runtime.effect_ledger import Effect
    from snapline.client.client import Client


@command
def report(
    connection: Connection,
    display: Display,
    plan: Annotated[
        int | None, typer.Argument(metavar="[PLAN]", min=1, help="Of which recovery.", show_default="the newest")
    ] = None,
) -> None:
    """Tell of one recovery: when, why, how far back, and what came of the effects that were open where it went back to."""
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
