"""`snapline status` and `snapline top` show the fleet as the coordinator currently sees it, once or live in the terminal."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import Connection, Display, Stale, command
from snapline.cli.output import Document, DocumentTables, concern_lines, count, rows_of
from snapline.cli.progress import DEGRADED
from snapline.cli.snapshot_transfer import describe
from snapline.protocols.names import CHANDY_LAMPORT

if TYPE_CHECKING:
    from rich.console import Console

    from snapline.client.client import Client
    from snapline.messages.status import FleetStatus


WAITING = ("inputs_waiting", "outputs_waiting", "output_bytes_waiting", "agents_full", "agents_standing")
"""Names of a host's counters that are shown only if they are not zero."""

SHOWN_IF_ZERO = ("agents", "epochs_begun", "epochs_completed", "last_complete_epoch")
"""Names of the fleet's figures that tell an operator something even if they are zero. Tables leave out all others that are."""

OPTIONAL = ("HOST START", "PARKED", "ADDRESS")
"""Columns of hosts that narrow terminals leave out, the first ones first."""

NOTHING_TO_SHOW = ("–", "none yet")
"""Descriptions of losses that tables leave out."""


@command
def status(connection: Connection, display: Display, stale: Stale = False) -> None:
    """Show the fleet's phase, hosts, epochs and concerns, and what a failure would cost.

    A line with `!` is a concern: a condition that needs attention, with its remedy. `doctor`, `top`, `ui serve`, `host list` and `agent
    list` show concerns too. Three lines show the cost of failures. `at_risk`: the work lost if all hosts failed now. `recoveries`: how
    long the last recoveries took, and what they undid. `interval`: how often epochs occur, and how long agents wait for them.

    `leader` is the replica that leads, `term` counts elections, `caller_role` is the role of the caller. The table leaves out most
    figures that are zero; JSON has all.
    """
    from snapline.messages.answers import document_of

    reply = connection.ask(lambda client: client.status(connection.timeout, stale=stale))
    display.printer().result(document_of(reply), partial(_show, reply))


def _store_line(result: Document) -> str:
    """Describe the store's state and location in one line. If the store is degraded, include the problem."""
    store = result.get("store")
    if not isinstance(store, Mapping):
        return ""
    place, state = store.get("location", ""), store.get("state", "")
    if state != DEGRADED:
        return f"{state}: {place}" if state else f"{place}"
    line = f"degraded for {_seconds(store.get('since_s'))}: {store.get('reason')}"
    wait_s = store.get("next_try_s")
    wait = f", next try in {_seconds(wait_s)}" if wait_s else ""
    return f"{line}{wait}, {store.get('skipped')} skipped: {place}"


def _losses(status: "FleetStatus") -> Document:
    """Describe the work at risk, the recovery times and the cost of the checkpoint interval, each in one line."""
    from snapline.view.display_text import describe_interval, describe_recoveries, describe_work_at_risk

    lines = {
        "at_risk": describe_work_at_risk(status),
        "recoveries": describe_recoveries(status.loss),
        "interval": describe_interval(status.interval),
    }
    return {name: line for name, line in lines.items() if line not in NOTHING_TO_SHOW}


def _seconds(value: object) -> str:
    return f"{value:.1f} s" if isinstance(value, int | float) else "a while"


def _show_hosts(hosts: list[Document], names: tuple[str, ...], tables: DocumentTables) -> None:
    headings = [name.replace("_", " ").upper() for name in names]
    tables.table(headings, [[row.get(name) for name in names] for row in hosts], optional=OPTIONAL)


def _show(status: "FleetStatus", result: Document, tables: DocumentTables) -> None:
    hosts = rows_of(result, "hosts")
    elsewhere = ("apiVersion", "kind", "hosts", "concerns", "loss", "interval")
    fields = {
        name: value for name, value in result.items() if name not in elsewhere and (value or name in SHOWN_IF_ZERO)
    }
    fork, replicas = result.get("fork"), result.get("replicas")
    if isinstance(fork, Mapping):
        fields["fork"] = describe(fork)
    if isinstance(replicas, list) and replicas:
        fields["replicas"] = ", ".join(map(str, replicas))
    tables.fields({**fields, "store": _store_line(result), **_losses(status)}.items())
    for line in concern_lines(result):
        tables.wrapped("! ", line)
    if dead := sum([int(str(row.get("dead_letters") or 0)) for row in hosts]):
        failed = count(dead, "message could not be handled", "messages could not be handled")
        tables.line(f"! {failed}: `snapline agent dead-letters list` shows why")
    if not hosts:
        return
    tables.line()
    _show_hosts(hosts, ("host", "state", "address", "host_start", "agents", "turns", "dead_letters", "parked"), tables)
    if any(row.get(name) for row in hosts for name in WAITING):
        tables.line()
        _show_hosts(hosts, ("host", *WAITING), tables)
    if result.get("protocol") != CHANDY_LAMPORT and "log_bytes" in hosts[0]:
        tables.line()
        _show_hosts(hosts, ("host", "log_messages", "log_bytes", "checkpoints", "forced", "piggyback_bytes"), tables)
    for row in hosts:
        for turn in rows_of(row, "busy"):
            elapsed_ns = turn.get("elapsed_ns")
            elapsed = f"{elapsed_ns / 1e9:.1f} s" if isinstance(elapsed_ns, int) else "a while"
            tables.line(f"{row.get('host')}: {turn.get('agent')} has been in one turn for {elapsed}")


CLIENT_NAME = "top"
LINES = 10_000
"""Number of lines that are drawn without a terminal. The number is large enough to show everything."""


@command
def top(
    connection: Connection,
    every: Annotated[
        float,
        typer.Option("--every", min=0.2, max=3600, metavar="SECONDS", help="Interval between two status requests."),
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print the status once; the default without a terminal.")
    ] = False,
    no_color: Annotated[
        bool, typer.Option("--no-color", help="No colours; the variable NO_COLOR has the same effect.")
    ] = False,
) -> None:
    """Show the fleet in the terminal, and update it until q or Ctrl-C.

    If the screen is too short for all hosts, it shows those that are not alive and those with most turns. Exit codes: 0: ended with q.
    8: no coordinator answered at the start; later failures are shown, and the call is repeated. 130: ended with Ctrl-C.
    """
    from rich.console import Console

    is_live = sys.stdout.isatty() and not once
    console = Console(no_color=no_color or None, width=None if sys.stdout.isatty() else 200, highlight=False)

    async def show(client: "Client") -> None:
        await (_follow(client, console, every) if is_live else _once(client, console))

    connection.call_agents(show)


async def _once(client: "Client", console: "Console") -> None:
    """Print the fleet's status once, after two samples, because rates are computed from two heartbeats of each host."""
    from snapline.view.terminal import draw
    from snapline.view.watch import PERIOD_S, FleetWatch

    watch = FleetWatch(client)
    await watch.now()
    await asyncio.sleep(PERIOD_S)
    console.print(draw(await watch.now(), lines=LINES, width=console.width))


async def _follow(client: "Client", console: "Console", every_s: float) -> None:
    from rich.live import Live

    from snapline.view.terminal import draw
    from snapline.view.watch import FleetWatch

    watch = FleetWatch(client, every_s)
    over = asyncio.Event()
    with _keys(over), Live(console=console, screen=True, auto_refresh=False) as live:

        async def look() -> None:
            async for heard in watch.follow():
                live.update(draw(heard, lines=console.height, width=console.width), refresh=True)

        looking = asyncio.create_task(look())
        ended = asyncio.create_task(over.wait())
        try:
            await asyncio.wait((looking, ended), return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                looking.result()
        finally:
            looking.cancel()
            ended.cancel()
            await asyncio.gather(looking, ended, return_exceptions=True)
            await watch.close()


@contextlib.contextmanager
def _keys(over: asyncio.Event) -> Iterator[None]:
    """Set `over` when the user presses `q` or Esc, provided that stdin is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    import os
    import termios
    import tty

    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(file)

    def read() -> None:
        if os.read(file, 64).strip().lower() in (b"q", b"", b"\x1b"):
            over.set()

    tty.setcbreak(file)
    loop.add_reader(file, read)
    try:
        yield
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)
