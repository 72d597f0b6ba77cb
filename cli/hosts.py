"""`snapline host …`: what tools ask about single hosts, and `host run`, which is in `processes.py`."""

from typing import Annotated

import typer

from snapline.cli import processes
from snapline.cli.command import command
from snapline.cli.options import Connection, Display
from snapline.cli.output import document
from snapline.ids import check_id

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="The processes that run agents.")
app.command("run")(processes.host_run)


@app.command("forget")
@command
def forget(
    connection: Connection,
    display: Display,
    host: Annotated[str, typer.Argument(metavar="ID", help="A host that is lost or has left.")],
) -> None:
    """Drop the record of a host that does not come back.

    It is dropped by itself after ten minutes. A process that comes back under the name is a new host.
    """
    name = check_id(host, "host")
    connection.ask(lambda client: client.forget_host(name, connection.timeout))
    display.printer().result(
        document("HostForgotten", host=name), lambda shown, tables: tables.line(f"host {shown['host']} is forgotten")
    )
