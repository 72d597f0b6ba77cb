"""`snapline host …`: queries and commands for single hosts, and `host run`, which is in `processes.py`."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli import processes
from snapline.cli import rebalance as moving
from snapline.cli.command import command
from snapline.cli.options import Connection, Display
from snapline.cli.output import Document, DocumentTables, concern_lines, document, rows_of
from snapline.cli.progress import FleetProgress
from snapline.errors import NotFoundError
from snapline.ids import check_id
from snapline.security.printable import printable

if TYPE_CHECKING:
    from snapline.messages.coordinator_client import CoordinatorClient

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.command("run")(processes.host_run)

MOVE_S = 60.0
"""Time limit for agents to move, which takes an epoch and a plan."""

LINES = 50
COLUMNS = ("host", "state", "agents", "is_drained", "address", "host_start", "turns", "dead_letters", "agents_standing")

HostId = Annotated[str, typer.Argument(metavar="ID", help="The host.")]
HostIds = Annotated[list[str], typer.Argument(metavar="ID…", help="The hosts.")]
Within = Annotated[float, typer.Option("--within", min=0.1, metavar="SECONDS", help="For the agents to move.")]


@app.command("list")
@command
def list_hosts(connection: Connection, display: Display) -> None:
    """List the hosts, and how many agents each has."""
    display.printer().result(_host_list(connection), _show_hosts)


@app.command("describe")
@command
def describe(connection: Connection, display: Display, host: HostId) -> None:
    """Show how a host stands, and which agents live there."""
    from snapline.messages.documents import document_of

    name = check_id(host, "host")
    rows = [row for row in rows_of(_host_list(connection), "hosts") if row["host"] == name]
    if not rows:
        raise NotFoundError(f"no host {name!r} in this fleet: `snapline host list` lists its hosts")
    located = document_of(connection.ask(lambda client: client.locate_all(connection.timeout)))
    agents = [str(row.get("agent")) for row in rows_of(located, "agents") if row.get("host") == name]
    display.printer().result(document("HostDescription", **{**rows[0], "living_here": agents}), _show_host)


@app.command("drain")
@command
def drain(connection: Connection, display: Display, hosts: HostIds, within: Within = MOVE_S) -> None:
    """Have agents leave hosts, and keep them away.

    They move by a plan from a snapshot that is taken for it; nothing is lost. A host that is drained has no agents, and can be ended
    without anybody noticing. The mark stays when its process is started again.
    """
    names = tuple(dict.fromkeys([check_id(host, "host") for host in hosts]))
    _move(connection, display, lambda note: lambda client: moving.drain(client, names, time.monotonic() + within, note))


@app.command("resume")
@command
def resume(connection: Connection, display: Display, hosts: HostIds) -> None:
    """Let agents come to drained hosts again: with the next recovery, or by `host spread`."""
    names = [check_id(host, "host") for host in hosts]
    _move(connection, display, lambda _: lambda client: client.move_agents(resumed=names))


@app.command("spread")
@command
def spread(connection: Connection, display: Display, within: Within = MOVE_S) -> None:
    """Move agents so that all hosts have equally many."""
    _move(connection, display, lambda note: lambda client: moving.spread(client, time.monotonic() + within, note))


@app.command("kill")
@command
def kill(connection: Connection, display: Display, host: HostId) -> None:
    """End a host's process, as a failure would: its agents go back to the last snapshot, on other hosts.

    What the process still says counts no more, even if it cannot be reached to hear that it is over. Who keeps the fleet starts it
    again. Drain it before, and nothing goes back.
    """
    name = check_id(host, "host")
    starts = [row["host_start"] for row in rows_of(_host_list(connection), "hosts") if row["host"] == name]
    start = int(str(starts[0])) if starts else 0  # the host generation: a repeated call must not end a later one
    connection.ask(lambda client: client.end_host(name, connection.timeout, host_start=start))
    display.printer().result(
        document("HostEnded", host=name), lambda shown, tables: tables.line(f"host {shown['host']} is ended")
    )


@app.command("logs")
@command
def logs(
    connection: Connection,
    host: Annotated[str, typer.Argument(metavar="ID", help="A host or a coordinator.")],
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, metavar="N", help="So many, the last ones.")] = LINES,
) -> None:
    """Print the end of a process's log, of a fleet whose folder is on this machine."""
    from snapline.cli.fleet_locations import logs_of

    folder = logs_of(connection.folder())
    file = folder / f"{check_id(host, 'host')}.log"
    if not file.is_file():
        names = sorted([path.stem for path in folder.glob("*.log")]) if folder.is_dir() else []
        hint = f"there are logs of {', '.join(names)}" if names else "there are none: on other machines they stay there"
        raise NotFoundError(f"no log of {host!r} in {folder}: {hint}")
    _print_end(file, lines)


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


def _host_list(connection: Connection) -> Document:
    """Return the hosts, and the concerns about them."""
    from snapline.messages.documents import document_of

    status = document_of(connection.ask(lambda client: client.status(connection.timeout)))
    concerns = [row for row in rows_of(status, "concerns") if row.get("hosts")]
    return document("HostList", hosts=rows_of(status, "hosts"), concerns=concerns)


def _move(connection: Connection, display: Display, work: "_Work") -> None:
    """Run the work, then show the hosts with their agents."""
    progress = FleetProgress(display.printer())
    connection.ask(work(progress.note))
    display.printer().result(_host_list(connection), _show_hosts)


_Work = Callable[[moving.Note], "Callable[[CoordinatorClient], Awaitable[object]]"]


def _show_hosts(result: Document, tables: DocumentTables) -> None:
    headings = [name.removeprefix("is_").replace("_", " ").upper() for name in COLUMNS]
    tables.table(headings, [[row.get(name) for name in COLUMNS] for row in rows_of(result, "hosts")])
    for line in concern_lines(result):
        tables.line(f"! {line}")


def _show_host(result: Document, tables: DocumentTables) -> None:
    agents = result["living_here"]
    assert isinstance(agents, list)
    hidden = ("apiVersion", "kind", "busy", "living_here")
    tables.fields({name: value for name, value in result.items() if name not in hidden}.items())
    for agent in agents:
        tables.line(f"  {agent}")


def _print_end(file: Path, lines: int) -> None:
    with file.open("rb") as opened:
        size = opened.seek(0, 2)
        opened.seek(max(0, size - lines * 1000))
        for line in opened.read().decode(errors="replace").splitlines()[-lines:]:
            print(printable(line))
