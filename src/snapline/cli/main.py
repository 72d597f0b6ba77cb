"""The command line: `snapline NOUN VERB`; see docs/cli.md.

A command is imported when it is called, and heavy libraries (gRPC, NumPy, the store) inside commands, so that `snapline --help` is fast.
"""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from snapline.cli.groups import COMMANDS, GROUPS, AllCommands


class RootGroup(TyperGroup):
    """Root command with all top-level commands and groups."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = AllCommands()  # type: ignore[assignment]  # it is only read

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands from the tables in `groups.py`, without importing them."""
        texts = {name: word.says for name, word in {**COMMANDS, **GROUPS}.items() if not word.is_hidden}
        with formatter.section("Commands"):
            formatter.write_dl(list(texts.items()))


app = typer.Typer(
    cls=RootGroup,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Consistent global checkpoints of running fleets of agents, and exact recovery.",
)


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=lambda given: _print_version(given), help="Print the version."
        ),
    ] = False,
) -> None:
    """Takes what stands before the command's name."""


def _print_version(is_wanted: bool) -> None:
    from snapline.compiled import version_text

    if is_wanted:
        typer.echo(f"snapline {version_text()}")
        raise typer.Exit
