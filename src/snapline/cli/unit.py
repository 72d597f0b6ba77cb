"""`snapline unit`: units for systemd, for hosts and coordinators that a machine starts when it boots."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from snapline.cli.command import command

HERE = "@SNAPLINE@"
"""Placeholder in a unit for the command that runs snapline here."""


class UnitKind(StrEnum):
    """Kinds of units."""

    COORDINATOR = "coordinator"
    HOST = "host"


@command
def unit(kind: Annotated[UnitKind, typer.Argument(help="What it starts.")]) -> None:
    """Print a unit for systemd that starts a coordinator or a host.

    Write it to /etc/systemd/system/snapline-coordinator@.service or snapline-host@.service; what it needs to know is in
    the file that it names.
    """
    import snapline.deploy

    folder = Path(snapline.deploy.__file__).parent / "systemd"
    text = (folder / f"snapline-{kind.value}@.service").read_text()
    hardened = text.replace("@HARDENING@\n", (folder / "hardening.conf").read_text())
    typer.echo(hardened.replace(HERE, f"{sys.executable} -m snapline"), nl=False)
