"""`snapline ui export`: writes the view to one file, for users without access to the fleet."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import command
from snapline.cli.options import Display
from snapline.cli.output import Document, DocumentTables, document, size
from snapline.cli.outputs import OutputSource
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.security.transport import Security
    from snapline.view.html_export import ExportedScreen, Redaction

ExportResult = tuple[str, list["ExportedScreen"]]


@command
def export(
    source: OutputSource,
    display: Display,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it, such as fleet.html.")],
    snapshot: Annotated[
        str,
        typer.Option(
            "--snapshot", metavar="ID", help="Which is in it: epoch number, `latest`, tag, or digits of a root."
        ),
    ] = "latest",
    no_states: Annotated[
        bool,
        typer.Option(
            "--no-states",
            help="Leave out what agents hold and say: of states, messages, outputs and effects only sizes and digests.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file of this name.")] = False,
) -> None:
    """Write what the view shows to one HTML file, for a bug report; it needs no network and no scripts.

    In it are: how the fleet stands, hosts and agents with their names and addresses; how epochs ended; ONE SNAPSHOT WITH THE STATES OF ITS
    AGENTS AND THE MESSAGES IN TRANSIT; what each failure would cost; recoveries, with their reasons; what waits; the newest outputs; effects
    with arguments and results. With --no-states no contents, but still names, figures and the reasons of failures, which may quote an
    exception. Of a store at rest (--store) what it knows without a coordinator. Look into the file before you send it.
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
    display.printer().result(result, _show)


async def _export_store(location: str, snapshot: str, redaction: "Redaction | None") -> ExportResult:
    from snapline.view.html_export import StoreAtRest, store_screens

    return await store_screens(StoreAtRest(location), snapshot, redaction)


async def _export_fleet(
    address: str, security: "Security", snapshot: str, redaction: "Redaction | None"
) -> ExportResult:
    from snapline.cli.remote import CLIENT_NAME
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


def _show(result: Document, tables: DocumentTables) -> None:
    epoch = result.get("epoch")
    snapshot_text = f"epoch {epoch}" if epoch else "no snapshot"
    contents = "with contents" if result.get("has_states") else "without contents"
    tables.line(f"{result.get('file')}: {snapshot_text}, {contents}, {size(result.get('size_bytes'))}")
