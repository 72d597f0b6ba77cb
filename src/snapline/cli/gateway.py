"""`snapline gateway run`: a fleet behind HTTP."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from snapline.cli.command import Connection, check_address, command, read_token
from snapline.errors import UsageError

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def gateway() -> None:
    """A fleet behind HTTP."""


@app.command("run")
@command
def run(
    connection: Connection,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where requests come in; port 0: any.")
    ] = "127.0.0.1:8080",
    fleet: Annotated[
        str | None,
        typer.Option("--fleet", metavar="MODULE:FLEET", help="Its classes' message types go into /openapi.json."),
    ] = None,
    serve: Annotated[
        list[str] | None,
        typer.Option(
            "--serve",
            metavar="AGENT/TYPE",
            help="Serve handlers that are not marked public too, such as 'desk-*/Order'. Repeatable.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="Requests must bear the token in it. Needed beyond loopback."
        ),
    ] = None,
) -> None:
    """Take requests over HTTP for a fleet's agents, and give out what they emit; see docs/gateway.md."""
    try:
        from snapline.gateway.app import Served
        from snapline.gateway.app import serve as serve_gateway
        from snapline.gateway.http_server import check_exposure
    except ModuleNotFoundError as error:
        raise UsageError(f"the gateway needs {error.name!r}: pip install 'snapline[http]'") from error
    from snapline.agent_runtime.fleet import load_fleet

    host, _, port = check_address(listen, "--listen").rpartition(":")
    token = read_token(token_file)
    check_exposure(host.strip("[]"), token)
    served = Served(serve or ())
    loaded = load_fleet(fleet, {}) if fleet is not None else None
    place = host.strip("[]"), int(port)
    asyncio.run(
        serve_gateway(connection.address(), connection.security(), place, token=token, fleet=loaded, served=served)
    )
