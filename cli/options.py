"""Options that several commands share, in groups; `cli/command.py` unfolds them."""

import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from snapline.cli.output import OutputFormat, Printer
from snapline.errors import MisuseError

if TYPE_CHECKING:
    from snapline.channels.coordinator_client import CoordinatorClient
    from snapline.channels.security import Security

_Reply = TypeVar("_Reply")

TIMEOUT_S = 120.0
"""Default limit for a call to a coordinator: a snapshot may take its fleet's own limit, 60 s unless it says otherwise. A
coordinator that is not there is known much sooner."""

TIMEOUT_S_MAX = 86_400.0
"""Every wait ends: a day at most."""

FleetReference = Annotated[
    str, typer.Argument(metavar="MODULE:FLEET", help="A snapline.Fleet, or a function that returns one.")
]
FleetArguments = Annotated[
    list[str] | None, typer.Option("--arg", metavar="KEY=VALUE", help="For a FLEET that is a function; repeatable.")
]


@dataclass(frozen=True)
class Display:
    """How results and progress appear."""

    output: Annotated[
        OutputFormat | None,
        typer.Option("--output", "-o", help="Form of the result.", show_default="table on a terminal, else json"),
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours; so does the variable NO_COLOR.")] = False

    def printer(self) -> Printer:
        """The printer these options ask for."""
        return Printer(self.output, quiet=self.quiet, no_color=self.no_color)


@dataclass(frozen=True)
class Trust:
    """Who may speak to us, and to whom we speak: all three files, `--insecure`, or this machine only."""

    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", metavar="FILE", help="Our certificate (PEM).")] = None
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key (PEM).")] = None
    tls_ca: Annotated[Path | None, typer.Option("--tls-ca", metavar="FILE", help="Certificates we trust (PEM).")] = None
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Plaintext on any network: only where nobody else can reach us.")
    ] = False

    def security(self) -> "Security":
        """What these options mean.

        Raises:
            MisuseError: they contradict each other.
        """
        from snapline.channels.security import Security

        files = (self.tls_cert, self.tls_key, self.tls_ca)
        if any(file is not None for file in files):
            if self.insecure:
                raise MisuseError("--insecure contradicts --tls-…: leave one out")
            if self.tls_cert is None or self.tls_key is None or self.tls_ca is None:
                raise MisuseError("--tls-cert, --tls-key and --tls-ca belong together: give all three")
            return Security.tls(authority=self.tls_ca, certificate=self.tls_cert, key=self.tls_key)
        return Security.insecure() if self.insecure else Security.loopback()


@dataclass(frozen=True)
class Connection(Trust):
    """Which coordinator to ask, and for how long."""

    coordinator: Annotated[
        str | None, typer.Option("--coordinator", metavar="HOST:PORT", help="Ask the coordinator there.")
    ] = None
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Ask the coordinator of the local fleet in this folder."),
    ] = None
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.1, max=TIMEOUT_S_MAX, metavar="SECONDS", help="Limit for the whole call."),
    ] = TIMEOUT_S

    def address(self) -> str:
        """Where to ask.

        Raises:
            MisuseError: the options do not say, or say it twice.
        """
        from snapline.deploy.data_directory import ADDRESS_FILE, read_address

        if self.coordinator is not None and self.data_dir is not None:
            raise MisuseError("--coordinator and --data-dir both name a coordinator: give one of them")
        if self.coordinator is not None:
            return check_address(self.coordinator, "--coordinator")
        if self.data_dir is None:
            raise MisuseError("whom to ask? Give --coordinator HOST:PORT, or --data-dir DIR of a local fleet")
        address = read_address(self.data_dir)
        if address is None:
            raise MisuseError(
                f"{self.data_dir / ADDRESS_FILE} names no coordinator: is {self.data_dir} the folder of a local fleet?"
            )
        return address

    def ask(self, call: "Callable[[CoordinatorClient], Awaitable[_Reply]]") -> _Reply:
        """Make one call, which should be limited by `timeout`; see `remote.ask` for what it raises."""
        from snapline.cli import remote

        return remote.ask(self.address(), self.security(), call)


def parse_arguments(pairs: list[str] | None) -> dict[str, str]:
    """`["a=1", "b=x=y"]` as `{"a": "1", "b": "x=y"}`.

    Raises:
        MisuseError: a pair without `=`, or a key given twice.
    """
    arguments: dict[str, str] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise MisuseError(f"--arg {pair!r} is not KEY=VALUE with a name as the key")
        if key in arguments:
            raise MisuseError(f"--arg {key}=… is given twice: give it once")
        arguments[key] = value
    return arguments


def check_address(address: str, option: str) -> str:
    """Return `address` if it is HOST:PORT, [IPv6]:PORT or unix:PATH.

    Raises:
        MisuseError: it is not.
    """
    host, _, port = address.rpartition(":")
    if address.startswith("unix:") or (host and port.isdecimal() and int(port) < 65_536):
        return address
    raise MisuseError(f"{option} {address!r} is no address: write HOST:PORT")


def allow_current_folder() -> None:
    """Make modules of the current folder importable, as `python -m` does and an installed script does not."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
