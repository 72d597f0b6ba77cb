"""`snapline gateway run` makes a fleet available over HTTP."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from snapline.cli.command import Connection, check_address, command, read_token
from snapline.errors import UsageError

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def gateway() -> None:
    "HTTP gateway for a fleet's agents."


@app.command("run")
@command
def run(
    connection: Connection,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address to listen at; port 0: any free one.")
    ] = "127.0.0.1:8080",
    fleet: Annotated[
        str | None,
        typer.Option("--fleet", metavar="MODULE:FLEET", help="Fleet whose message types /openapi.json describes."),
    ] = None,
    serve: Annotated[
        list[str] | None,
        typer.Option(
            "--serve",
            metavar="AGENT/TYPE",
            help="Also serve these handlers that are not marked public, such as 'desk-*/Order'. Repeatable.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the token that requests must carry. Required beyond loopback.",
        ),
    ] = None,
    approvals: Annotated[
        bool,
        typer.Option(
            "--approvals",
            help="Let people list and answer approvals. With certificates, each request carries a token of the fleet.",
        ),
    ] = False,
) -> None:
    """Serve a fleet's agents over HTTP until interrupted, and print the address.

    Requests become inputs, outputs are server-sent events, and /openapi.json describes the requests. Serves handlers marked
    `@snapline.handler(public=True)`. With certificates it needs one of the role `client`. Needs snapline[http]. Exit codes: 0: ended by
    a signal. 2: wrong option, address in use, or the extra is missing. 8: no coordinator answers.
    """
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
        serve_gateway(
            *(connection.address(), connection.security(), place),
            token=token,
            fleet=loaded,
            served=served,
            has_approvals=approvals,
        )
    )
