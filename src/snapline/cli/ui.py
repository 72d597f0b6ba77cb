"""`snapline ui …`: the fleet in a browser."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from snapline.cli.command import command
from snapline.cli.options import Connection, check_address, read_token
from snapline.cli.ui_export import export
from snapline.errors import UsageError

RUNS = Path("runs")
"""Default folder of the reports of `snapline sim`."""

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


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
    allow_actions: Annotated[
        bool,
        typer.Option(
            "--allow-actions", help="Who may look may act too: snapshots, restores, forks, draining and killing hosts."
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="TRACE",
            help="Show this trace: a file, or a folder of hosts' traces; alone if no fleet is named.",
        ),
    ] = None,
    reports: Annotated[
        list[Path] | None,
        typer.Option(
            "--reports",
            metavar="DIR",
            help="Show reports of simulations in this folder too, or alone if no fleet is named. Repeatable.",
            show_default="runs, if it is there",
        ),
    ] = None,
) -> None:
    """Show the fleet in a browser, live; it changes nothing unless --allow-actions is given. See docs/ui.md."""
    try:
        from snapline.gateway.http_server import check_exposure
        from snapline.view.view_app import serve as serve_view
        from snapline.view.view_app import serve_files
    except ModuleNotFoundError as error:
        raise UsageError(f"the view needs {error.name!r}: pip install 'snapline[ui]'") from error

    host, _, port = check_address(listen, "--listen").rpartition(":")
    token, security = read_token(token_file), connection.security()
    check_exposure(host.strip("[]"), token)
    if allow_actions and security.is_tls and not token:
        raise UsageError(
            "--allow-actions lends what this certificate may do to whoever reaches the page: give --token-file too"
        )
    if trace is not None and not trace.exists():
        raise UsageError(f"there is no trace {trace}: name a file, or the folder that hosts traced into")
    if (trace is not None or reports) and connection.coordinator is None and connection.data_dir is None:
        if allow_actions:
            raise UsageError("--allow-actions needs a fleet: give --data-dir or --coordinator too")
        asyncio.run(serve_files((host.strip("[]"), int(port)), token=token, trace=trace, reports=reports or ()))
        return
    folder = connection.folder() if connection.coordinator is None else None
    serving = serve_view(
        connection.address(),
        security,
        (host.strip("[]"), int(port)),
        token=token,
        may_act=allow_actions,
        folder=folder if allow_actions else None,
        trace=trace,
        reports=reports or ([RUNS] if RUNS.is_dir() else []),
    )
    asyncio.run(serving)


app.command("export")(export)
