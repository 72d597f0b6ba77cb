"""`snapline top`: the fleet in a terminal, live."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import command
from snapline.cli.options import Connection

if TYPE_CHECKING:
    from rich.console import Console

    from snapline.client.client import Client

CLIENT_NAME = "top"
LINES = 10_000
"""Number of lines without a terminal, large enough to show everything."""


@command
def top(
    connection: Connection,
    every: Annotated[
        float,
        typer.Option("--every", min=0.2, max=3600, metavar="SECONDS", help="Interval between two status requests."),
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print it once; so where there is no terminal.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours; so does the variable NO_COLOR.")] = False,
) -> None:
    """Show the fleet in the terminal, as it changes, until q or Ctrl-C."""
    from rich.console import Console

    from snapline.cli import remote

    is_live = sys.stdout.isatty() and not once
    console = Console(no_color=no_color or None, width=None if sys.stdout.isatty() else 200, highlight=False)

    async def show(client: "Client") -> None:
        await (_follow(client, console, every) if is_live else _once(client, console))

    remote.call_agents(connection.address(), connection.security(), show)


async def _once(client: "Client", console: "Console") -> None:
    """Print the fleet once, after two samples, because rates need two heartbeats of the hosts."""
    from snapline.view.terminal import draw
    from snapline.view.watch import PERIOD_S, FleetWatch

    watch = FleetWatch(client)
    await watch.now()
    await asyncio.sleep(PERIOD_S)
    console.print(draw(await watch.now(), lines=LINES))


async def _follow(client: "Client", console: "Console", every_s: float) -> None:
    from rich.live import Live

    from snapline.view.terminal import draw
    from snapline.view.watch import FleetWatch

    watch = FleetWatch(client, every_s)
    over = asyncio.Event()
    with _keys(over), Live(console=console, screen=True, auto_refresh=False) as live:

        async def look() -> None:
            async for heard in watch.follow():
                live.update(draw(heard, lines=console.height), refresh=True)

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
    """Set `over` on `q`, if stdin is a terminal."""
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
