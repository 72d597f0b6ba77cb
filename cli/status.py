"""`snapline status`: what the coordinator knows about the fleet now."""

from snapline.cli.command import command
from snapline.cli.options import Connection, Display
from snapline.cli.output import Document, Tables, document, rows_of


@command
def status(connection: Connection, display: Display) -> None:
    """Show phase, hosts and epochs of the fleet."""
    from snapline.cli import remote

    reply = remote.plain(connection.ask(lambda client: client.status(connection.timeout)))
    display.printer().result(document("FleetStatus", **reply), _show)


def _show(result: Document, tables: Tables) -> None:
    hosts = rows_of(result, "hosts")
    tables.fields((name, value) for name, value in result.items() if name not in ("apiVersion", "kind", "hosts"))
    if not hosts:
        return
    tables.line()
    names = ("host", "state", "address", "host_start", "agents", "turns", "dead_letters", "parked")
    tables.table(
        [name.replace("_", " ").upper() for name in names], [[row.get(name) for name in names] for row in hosts]
    )
    for row in hosts:
        for turn in rows_of(row, "busy"):
            elapsed_ns = turn.get("elapsed_ns")
            elapsed = f"{elapsed_ns / 1e9:.1f} s" if isinstance(elapsed_ns, int) else "a while"
            tables.line(f"{row.get('host')}: {turn.get('agent')} has been in one turn for {elapsed}")
