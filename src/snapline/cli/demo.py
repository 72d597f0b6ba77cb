"""`snapline demo`: its options. The demo itself is in `demo_run.py`."""

from pathlib import Path
from typing import Annotated

import typer

from snapline.cli.command import Display, command
from snapline.cli.ui import ViewOptions


@command
def demo(
    display: Display,
    view: ViewOptions,
    source: Annotated[
        str | None,
        typer.Option(
            "--source", metavar="DIR", help="Python source to rank.", show_default="the standard library's own"
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Keep everything there.", show_default="a temporary folder"),
    ] = None,
    hosts: Annotated[int, typer.Option("--hosts", min=2, metavar="N", help="Number of host processes.")] = 4,
    protocol: Annotated[
        str, typer.Option("--protocol", metavar="NAME", help="Checkpointing protocol (docs/protocols.md).")
    ] = "chandy-lamport",
) -> None:
    """Rank modules on several hosts, kill one, and kill the coordinator's leader.

    The ranks are compared with those of an undisturbed run.
    """
    from snapline.cli.demo_run import run_demo

    raise typer.Exit(
        run_demo(
            source=source,
            data_dir=data_dir,
            hosts=hosts,
            protocol=protocol,
            output=display.printer().format.value,
            ui_port=view.port(),
        )
    )
