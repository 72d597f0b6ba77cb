"""The command line: `snapline NOUN VERB`. Its pages are docs/cli.md.

Heavy libraries (gRPC, NumPy, the store) are imported inside commands: `snapline --help` must not wait for them.
"""

from pathlib import Path
from typing import Annotated

import typer

from snapline.cli.beside_view import BesideView
from snapline.cli.command import command
from snapline.cli.nouns import NOUNS, WORDS, add_noun, add_word
from snapline.cli.options import Display
from snapline.cli.output import document

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Consistent global checkpoints of running fleets of agents, and exact recovery.",
)


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=lambda given: _say_version(given), help="Print the version."),
    ] = False,
) -> None:
    """Takes what stands before the command's name."""


def _say_version(is_wanted: bool) -> None:
    import snapline

    if is_wanted:
        typer.echo(f"snapline {snapline.__version__}")
        raise typer.Exit


@app.command("demo")
@command
def demo(
    display: Display,
    view: BesideView,
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
    from snapline.cli.demo import run_demo

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


for word in WORDS:
    add_word(app, word)
for noun in NOUNS:
    add_noun(app, noun)


@app.command("version")
@command
def version(display: Display) -> None:
    """Print the version."""
    import platform

    import snapline

    result = document("Version", version=snapline.__version__, python=platform.python_version())
    display.printer().result(result, lambda shown, tables: tables.line(f"snapline {shown['version']}"))
