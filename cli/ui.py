"""`snapline ui …`: the fleet in a browser."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from snapline.cli.command import command
from snapline.cli.options import Connection, check_address, token_in
from snapline.errors import MisuseError

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="The fleet in a browser.")


@app.callback()
def ui() -> None:
    """The fleet in a browser."""


@app.command("serve")
@command
def serve(
    connection: Connection,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where browsers come in; port 0: any.")
    ] = "127.0.0.1:8088",
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="People sign in with the token in it. Needed beyond loopback."
        ),
    ] = None,
) -> None:
    """Show the fleet in a browser, live, and change nothing; see docs/ui.md."""
    try:
        from snapline.gateway.serving import check_exposure
        from snapline.view.server import serve as serve_view
    except ModuleNotFoundError as error:
        raise MisuseError(f"the view needs {error.name!r}: pip install 'snapline[ui]'") from error

    host, _, port = check_address(listen, "--listen").rpartition(":")
    token = token_in(token_file)
    check_exposure(host.strip("[]"), token)
    asyncio.run(serve_view(connection.address(), connection.security(), (host.strip("[]"), int(port)), token=token))
