"""`snapline snapshot history`: outcomes of the last epochs, and their durations."""

from datetime import UTC, datetime
from typing import Any

from snapline.cli.command import command
from snapline.cli.options import Connection, Display
from snapline.cli.output import Document, DocumentTables, rows_of, size, text

PHASES = (("start_delay_s", "start"), ("capture_s", "capture"), ("alignment_s", "alignment"), ("store_s", "store"))


@command
def history(connection: Connection, display: Display) -> None:
    """How the last epochs ended: when, how long, how large, who was last, and why they were aborted."""
    result = connection.ask(lambda client: client.read_snapshots("history", timeout_s=connection.timeout))
    display.printer().result(result, _show)


def _show(result: Document, tables: DocumentTables) -> None:
    rows = rows_of(result, "epochs")
    if not rows:
        tables.line("no epoch has ended yet")
        return
    heads = ("EPOCH", "BEGUN", "TRIGGER", "STATUS", "TOOK", "NEW", "STATE", "IN TRANSIT", "LAST", "WHY")
    tables.table(heads, [_row(row) for row in rows])


def _row(row: Document) -> tuple[object, ...]:
    last: Any = row.get("last")
    return (
        row.get("epoch"),
        datetime.fromtimestamp(_number(row, "begun_s"), UTC).strftime("%Y-%m-%d %H:%M:%S"),
        row.get("trigger"),
        row.get("status"),
        f"{_number(row, 'took_s'):.3f} s",
        _size(row, "new_bytes"),
        _size(row, "state_bytes"),
        "–" if row.get("channel_state_messages") is None else row.get("channel_state_messages"),
        "–" if not last else f"{last['host']} {last.get('agent', '')}".rstrip(),
        text(row.get("reason")) if row.get("reason") else _phases(last),
    )


def _phases(last: Any) -> str:
    """Return the durations of the last host's four phases, in order."""
    if not last or last.get("store_s") is None:
        return "–"
    return ", ".join([f"{name} {last[key] * 1000:.1f} ms" for key, name in PHASES])


def _size(row: Document, name: str) -> str:
    value = row.get(name)
    return size(value) if isinstance(value, int) else "–"


def _number(row: Document, name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
