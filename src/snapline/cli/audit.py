"""`snapline audit`: operator requests to the fleet (docs/security.md)."""

from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import command
from snapline.cli.options import Connection, Display
from snapline.cli.output import Document, DocumentTables, document, rows_of

if TYPE_CHECKING:
    from snapline.messages.users import RecordedCall


@command
def audit(
    connection: Connection,
    display: Display,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=2500, metavar="N", help="The last so many.")] = 50,
) -> None:
    """Show what operators and admins have asked of the fleet to change it, and what they were refused.

    Oldest first. Every call is written down before it is made. The last 2000 are kept, and the last 500 refused ones.
    """
    log = connection.ask(lambda client: client.read_audit(count, connection.timeout))
    rows = [_row(call) for call in log.calls]
    display.printer().result(document("Audit", calls=rows, dropped=log.dropped), _show)


def _row(each: "RecordedCall") -> dict[str, object]:
    from snapline.storage.timestamps import instant

    return {
        "number": each.number,
        "at": instant(each.made_ns / 1e9),
        "who": each.name,
        "role": each.role,
        "by": "token" if each.is_borne else "certificate",
        "host": each.at or None,
        "call": each.call,
        "about": each.about,
        "outcome": each.outcome,
    }


def _show(result: Document, tables: DocumentTables) -> None:
    columns = ("number", "at", "who", "role", "by", "host", "call", "outcome", "about")
    rows = [[row.get(name) for name in columns] for row in rows_of(result, "calls")]
    tables.table([name.upper() for name in columns], rows)
    if result.get("dropped"):
        tables.line(f"{result['dropped']} older ones are not kept any more")
