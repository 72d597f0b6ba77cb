"""`snapline ui …` and `--ui` show the fleet in a browser, or export it to one file for readers who have no access to the fleet.

With `--ui`, the browser view runs as long as the command runs the fleet. The browser view is a separate process with a lower CPU priority
than the fleet, and the fleet never waits for it. If the browser view does not start or dies, the command prints a warning, and the fleet
continues.
"""

import asyncio
import contextlib
import importlib.util
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import RUNS, Connection, Display, check_address, command, read_token
from snapline.cli.output import Document, DocumentTables, document, size
from snapline.cli.outputs import OutputSource
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.cli.progress import FleetProgress
    from snapline.deploy.child import Child
    from snapline.deploy.local import LocalFleet
    from snapline.security.transport import Security
    from snapline.view.html_export import ExportedScreen, Redaction


ExportResult = tuple[str, list["ExportedScreen"]]


@command
def export(
    source: OutputSource,
    display: Display,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, such as fleet.html.")],
    snapshot: Annotated[
        str,
        typer.Option(
            "--snapshot",
            metavar="ID",
            help="Snapshot: epoch number, `latest`, tag, or four or more first digits of its root.",
        ),
    ] = "latest",
    no_states: Annotated[
        bool,
        typer.Option(
            "--no-states",
            help="Omit contents: of states, messages, outputs and effects only sizes and digests.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write the browser view to one HTML file, for a bug report; it needs no network and no scripts.

    The file contains status, hosts and agents with their names and addresses; epochs; ONE SNAPSHOT WITH THE STATES OF ITS AGENTS AND
    THE MESSAGES IN TRANSIT; the cost of each failure; recoveries with their reasons; waiting work; the newest outputs; effects with
    arguments and results. With --no-states it has no contents, but still names, figures and reasons of failures, which may quote an
    exception. Look into the file before you send it.

    Only you can read the file; it is written whole or not at all. With --store it shows a store without a coordinator. Missing parts
    are a sentence in the file; `epoch` is 0 without a snapshot. Exit codes: 2: wrong option, the file exists, or snapline[ui] is
    missing. 8: no coordinator answers. 10: no store.
    """
    try:
        from snapline.view.html_export import Redaction, check_free, epoch_of, export_page, write_file
    except ModuleNotFoundError as error:
        raise UsageError(f"the view needs {error.name!r}: pip install 'snapline[ui]'") from error

    check_free(file, is_forced=force)
    redaction = Redaction() if no_states else None
    if source.store is not None:
        if source.coordinator is not None or source.data_dir is not None:
            raise UsageError("--store is read at rest, a coordinator is asked: give one of them")
        fleet, screens = asyncio.run(_export_store(source.store, snapshot, redaction))
    else:
        fleet, screens = asyncio.run(_export_fleet(source.address(), source.security(), snapshot, redaction))
    about = _about(fleet, source.store, has_states=not no_states)
    written = write_file(file, export_page(fleet, screens, about), is_forced=force)
    result = document(
        "UiExport", file=str(file), fleet=fleet, epoch=epoch_of(screens), has_states=not no_states, size_bytes=written
    )
    display.printer().result(result, _show_export)


async def _export_store(location: str, snapshot: str, redaction: "Redaction | None") -> ExportResult:
    from snapline.view.html_export import StoreAtRest, store_screens

    return await store_screens(StoreAtRest(location), snapshot, redaction)


async def _export_fleet(
    address: str, security: "Security", snapshot: str, redaction: "Redaction | None"
) -> ExportResult:
    from snapline.cli.command import CLIENT_NAME
    from snapline.view.fleet_queries import open_fleet_queries
    from snapline.view.html_export import FleetExport

    async with open_fleet_queries(address, security, CLIENT_NAME) as (questions, _):
        return await FleetExport(questions, snapshot, redaction).screens()


def _about(fleet: str, store: str | None, *, has_states: bool) -> str:
    import snapline

    where = f"a store at rest, {store}" if store is not None else "the running fleet"
    contents = (
        "Contents of states and messages are in it."
        if has_states
        else "Contents are left out: in their place stand their size as JSON and a digest. What is alike has one digest in this file; elsewhere it says nothing."
    )
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return f"{fleet or 'A fleet'} as it stood at {when}, from {where}, by snapline {snapline.__version__}. Times are UTC. {contents}"


def _show_export(result: Document, tables: DocumentTables) -> None:
    epoch = result.get("epoch")
    snapshot_text = f"epoch {epoch}" if epoch else "no snapshot"
    contents = "with contents" if result.get("has_states") else "without contents"
    tables.line(f"{result.get('file')}: {snapshot_text}, {contents}, {size(result.get('size_bytes'))}")


app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def ui() -> None:
    "Browser view of a fleet."


ReportsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--reports",
        metavar="DIR",
        help="Folder of simulation reports to show. Repeatable.",
        show_default="runs, if it exists",
    ),
]


@app.command("serve")
@command
def serve(
    connection: Connection,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address to listen at; port 0: any free one.")
    ] = "127.0.0.1:8088",
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="File with the token for signing in. Required beyond loopback."
        ),
    ] = None,
    allow_actions: Annotated[
        bool,
        typer.Option(
            "--allow-actions",
            help="Allow actions: take, tag, pin, restore and fork snapshots, drain and kill hosts. With certificates it "
            "needs the role `operator` and --token-file.",
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="TRACE",
            help="Trace for the Space-time screen: a file as for `analyze`, or a folder of hosts' traces.",
        ),
    ] = None,
    reports: ReportsOption = None,
) -> None:
    """Show the fleet in a browser, live, and print the address; it changes nothing unless --allow-actions is given.

    Without --data-dir and --coordinator it shows traces and reports alone. With certificates it needs one of the role `viewer`. Needs
    snapline[ui]. Exit codes: 0: ended by a signal. 2: wrong option, address in use, no such trace, or the extra is missing. 8: no
    coordinator answers.
    """
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


HERE = "127.0.0.1"
LIBRARIES = ("starlette", "uvicorn")
NAME = "view"

ERROR_PREFIX = "snapline: "
"""Prefix of the error line that a failed command prints."""

NICENESS = 5
"""CPU niceness of the view. The niceness is set after the view has started to listen, because startup would otherwise be too slow."""

LOOK_S = 0.1
"""Interval in seconds between two polls for the leader and for the view's address."""


@dataclass(frozen=True)
class ViewOptions:
    """Options for commands that can show their fleet in a browser."""

    ui: Annotated[
        bool,
        typer.Option(
            "--ui",
            help="Show the fleet in a browser until the command ends; a line on stderr has the address. The view is a "
            "process of its own: if it dies, the fleet goes on.",
        ),
    ] = False
    ui_port: Annotated[
        int | None,
        typer.Option(
            "--ui-port",
            min=0,
            max=65_535,
            metavar="PORT",
            help=f"Show the fleet in a browser, at this port of {HERE}.",
            show_default="any that is free",
        ),
    ] = None

    def port(self) -> int | None:
        """Return the port for the browser view, 0 for any free port, or None if no view is requested.

        Raises:
            UsageError: If the extra `snapline[ui]` is not installed.
            ExternalFailureError: If the port is still in use after a while.
        """
        if not self.ui and self.ui_port is None:
            return None
        for name in LIBRARIES:
            if importlib.util.find_spec(name) is None:
                raise UsageError(f"--ui needs {name!r}: pip install 'snapline[ui]'")
        from snapline.gateway.http_server import listening

        listening(HERE, self.ui_port or 0).close()
        return self.ui_port or 0


@contextlib.asynccontextmanager
async def shown_in_browser(fleet: "LocalFleet", port: int | None, progress: "FleetProgress") -> AsyncIterator[None]:
    """Run the browser view while the block runs. `port` is the value of `ViewOptions.port`, where None means no view."""
    if port is None:
        yield
        return
    showing = asyncio.create_task(_show(fleet, port, progress))
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


async def _show(fleet: "LocalFleet", port: int, progress: "FleetProgress") -> None:
    from snapline.deploy.child import Child, describe_exit
    from snapline.deploy.data_directory import LOGS_FOLDER

    while not await fleet.leader():
        await asyncio.sleep(LOOK_S)
    folder, listen = fleet.data_dir, ("--listen", f"{HERE}:{port}")
    command = [sys.executable, "-m", "snapline", "ui", "serve", "--data-dir", str(folder.absolute()), *listen]
    try:
        child = Child.start(NAME, command, log_path=folder / LOGS_FOLDER / f"{NAME}.log")
    except OSError as error:
        progress.warn(f"the view did not start ({error.strerror or error}); the fleet goes on")
        return
    address = ""
    try:
        address = await _address_of(child)
        if address:
            with contextlib.suppress(OSError):  # the view may have ended in the meantime
                os.setpriority(os.PRIO_PROCESS, child.pid, NICENESS)
            progress.note(f"the fleet in a browser: {address}")
        code = await child.wait()
        last = child.last_line()
        reason = last.removeprefix(ERROR_PREFIX) if last.startswith(ERROR_PREFIX) else describe_exit(code)
        hint = f"`snapline ui serve --data-dir {folder}` shows it again"
        progress.warn(f"the view has ended ({reason}); the fleet goes on, and {hint}")
    finally:
        is_there = child.exit_code is None
        await child.kill()  # the view only reads, so it can be killed at any time
        if is_there and address:
            progress.note(f"the view at {address} has ended with the fleet")


async def _address_of(child: "Child") -> str:
    """Return the URL that the browser view prints as soon as it is listening. Return "" if the view has exited."""
    while child.exit_code is None:
        line = child.last_line()
        if line.startswith("http://"):
            return line
        await asyncio.sleep(LOOK_S)
    return ""
