"""`--ui`: the view next to a fleet that a command runs, for as long as it runs.

The view is a separate process with a lower CPU priority than the fleet, and nothing waits for it. If it does not start, or dies, the
command prints a warning and the fleet continues.
"""

import asyncio
import contextlib
import importlib.util
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.cli.progress import FleetProgress
    from snapline.deploy.child import Child
    from snapline.deploy.local import LocalFleet

HERE = "127.0.0.1"
LIBRARIES = ("starlette", "uvicorn")
NAME = "view"

ERROR_PREFIX = "snapline: "
"""Prefix of the error line of a failed command."""

NICENESS = 5
"""CPU niceness of the view, set once it listens; with it from the start, startup is too slow."""

LOOK_S = 0.1
"""Time between polls for the leader and the view's address."""


@dataclass(frozen=True)
class ViewOptions:
    """Options of commands that show their fleet in a browser."""

    ui: Annotated[
        bool, typer.Option("--ui", help="Show the fleet in a browser until the command ends; it prints where.")
    ] = False
    ui_port: Annotated[
        int | None,
        typer.Option(
            "--ui-port",
            min=0,
            max=65_535,
            metavar="PORT",
            help=f"The same, at this port of {HERE}.",
            show_default="any that is free",
        ),
    ] = None

    def port(self) -> int | None:
        """Return the port to listen on, 0: any free one; None: no view.

        Raises:
            UsageError: the extra is missing.
            ExternalFailureError: the port stays in use.
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
    """Run the view while the block runs; `port`: from `ViewOptions.port`."""
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
            with contextlib.suppress(OSError):  # it may have ended meanwhile
                os.setpriority(os.PRIO_PROCESS, child.pid, NICENESS)
            progress.note(f"the fleet in a browser: {address}")
        code = await child.wait()
        last = child.last_line()
        reason = last.removeprefix(ERROR_PREFIX) if last.startswith(ERROR_PREFIX) else describe_exit(code)
        hint = f"`snapline ui serve --data-dir {folder}` shows it again"
        progress.warn(f"the view has ended ({reason}); the fleet goes on, and {hint}")
    finally:
        is_there = child.exit_code is None
        await child.kill()  # it only reads, so it can be killed at any time
        if is_there and address:
            progress.note(f"the view at {address} has ended with the fleet")


async def _address_of(child: "Child") -> str:
    """Wait for the URL that the view prints once it listens; "" if it has ended."""
    while child.exit_code is None:
        line = child.last_line()
        if line.startswith("http://"):
            return line
        await asyncio.sleep(LOOK_S)
    return ""
