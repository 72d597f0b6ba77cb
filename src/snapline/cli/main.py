"""Defines the command line `snapline NOUN VERB` and the table of its commands and groups (docs/cli.md).

A process imports only the module of the command that it runs. Commands import heavy libraries (gRPC, NumPy, the store) inside their
functions. So `snapline --help` and all commands start quickly.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup


class CommandGroup(NamedTuple):
    """A top-level command or a command group.

    `module` is the name of its module in `snapline.cli`. `says` is its description in the list of commands. For a single command, this is
    the beginning of the docstring. `app` is the name of the group's typer app in that module.
    """

    module: str
    says: str
    is_hidden: bool = False
    app: str = "app"


COMMANDS = {
    "demo": CommandGroup(
        "demo", "Rank modules on several hosts, kill a host and the coordinator's leader, and compare the ranks."
    ),
    "run": CommandGroup("run", "Run a whole fleet on this machine, and end with it."),
    "up": CommandGroup("up", "Start a fleet in the background, and return when all hosts take part."),
    "down": CommandGroup("up", "End a fleet that `snapline up` has started, after a last snapshot."),
    "doctor": CommandGroup("doctor", "Check this machine, a store and a fleet for problems, without changing them."),
    "scale": CommandGroup("hosts", "Change the number of hosts of a running fleet."),
    "restart": CommandGroup("hosts", "Restart every process of a fleet, one after the other, while the fleet runs."),
    "keep": CommandGroup("up", "Keep the fleet of this folder: what `snapline up` starts in the background.", True),
    "unit": CommandGroup("processes", "Print a systemd unit that starts a coordinator or a host."),
    "status": CommandGroup(
        "status", "Show the fleet's phase, hosts, epochs and concerns, and what a failure would cost."
    ),
    "top": CommandGroup("status", "Show the fleet in the terminal, and update it until q or Ctrl-C."),
    "logs": CommandGroup("logs", "Print the output of all processes of a fleet, ordered by time, oldest first."),
    "audit": CommandGroup("auth", "Show changes to the fleet that operators and admins requested, oldest first."),
    "advise": CommandGroup(
        "advise", "Recommend a protocol and a checkpoint interval for a running fleet, with reasons."
    ),
    "analyze": CommandGroup(
        "analyze", "Analyse a trace: recovery line, domino effect, useless and obsolete checkpoints."
    ),
    "health": CommandGroup("health", "Check whether a host or coordinator process is alive or ready."),
    "version": CommandGroup("doctor", "Print the version, and whether the cores are compiled."),
}
"""Top-level commands. Each is a function with the command's name in its module."""

GROUPS = {
    "snapshot": CommandGroup("snapshot", "Take, list, show, verify, compare, fork, export, keep and prune snapshots."),
    "recovery": CommandGroup("recovery", "Recovery lines, past recoveries, and restores."),
    "keys": CommandGroup("keys", "Make key files; rotate and show the keys of a store."),
    "fleet": CommandGroup("fleet", "Definitions of fleets."),
    "agent": CommandGroup("agent", "Agents: their hosts, states, inputs and dead letters."),
    "auth": CommandGroup("auth", "Certificates and tokens of a fleet."),
    "config": CommandGroup("up", "Settings and their origins."),
    "coordinator": CommandGroup("coordinator", "The coordinator and its replicas."),
    "host": CommandGroup("hosts", "Hosts, the processes that run agents."),
    "output": CommandGroup("outputs", "Outputs: what agents have published to clients."),
    "effect": CommandGroup("outputs", "External effects of agents.", app="effects_app"),
    "answers": CommandGroup("answers", "Recorded answers, on which forks and tests run."),
    "approval": CommandGroup("approvals", "Questions of agents that wait for people."),
    "gateway": CommandGroup("gateway", "HTTP gateway for a fleet's agents."),
    "ui": CommandGroup("ui", "Browser view of a fleet."),
    "sim": CommandGroup("sim", "Simulate fleets in virtual time with seeded faults, and check every guarantee."),
    "chaos": CommandGroup(
        "chaos", "Inject the simulator's faults into real processes, and check the fleet's guarantees."
    ),
}
"""Command groups. The typer app in a group's module contains the group's commands."""


_NO_NUMBER = re.compile(r"(?P<given>.*) is not (a valid (int|float)|in the range )", re.DOTALL)
"""Beginning of typer's message about a value that is no number, or not in the range of its option."""


class ExplainingGroup(TyperGroup):
    """A command group that says in plain words which number an option takes."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the arguments name."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _explain_number(error.message, getattr(error.param, "type", None))
            raise


def _explain_number(message: str, kind: Any) -> str:
    """Return `'two' is not a whole number of 1 or more.` for a value of an option of that kind, and any other message unchanged."""
    found = _NO_NUMBER.match(message)
    if found is None:
        return message
    noun = "a whole number" if kind.name.startswith("int") else "a number"
    least, most = getattr(kind, "min", None), getattr(kind, "max", None)
    if least is not None:
        noun += f" of {_shown(least)} or more" if most is None else f" from {_shown(least)} to {_shown(most)}"
    return f"{found['given']} is not {noun}."


def _shown(limit: float) -> str:
    return f"{limit:,}".removesuffix(".0")


def app_of(first: str) -> typer.Typer:
    """Return the typer app of a group, or a typer app that contains a single top-level command."""
    app = typer.Typer(
        cls=ExplainingGroup,
        rich_markup_mode=None,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    app.callback()(_nothing)  # without a callback, typer would omit the name of a single command
    group = GROUPS.get(first) or COMMANDS[first]
    module = import_module(f"snapline.cli.{group.module}")
    if first in GROUPS:
        app.add_typer(getattr(module, group.app), name=first, help=group.says)
    else:
        app.command(first, hidden=group.is_hidden)(getattr(module, first))
    return app


@functools.cache
def command_of(first: str) -> Any:
    """Build the Click command of a group or command. This takes tens of milliseconds, so the fork server calls this function before it
    forks."""
    return typer.main.get_command(app_of(first))


def _nothing() -> None:
    """Do nothing. Options that precede the first word are handled by `main.py`."""


class AllCommands(Mapping[str, Any]):
    """Maps names to Click commands. A command is imported when it is looked up."""

    def __getitem__(self, first: str) -> Any:
        if first not in COMMANDS and first not in GROUPS:
            raise KeyError(first)
        return command_of(first).commands[first]

    def __iter__(self) -> Iterator[str]:
        return iter([*COMMANDS, *GROUPS])

    def __len__(self) -> int:
        return len(COMMANDS) + len(GROUPS)


class RootGroup(ExplainingGroup):
    """The root command, which contains all top-level commands and groups."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = AllCommands()  # type: ignore[assignment]  # Click only reads this mapping

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands from the tables in this module, without importing the commands."""
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
            "--version",
            is_eager=True,
            callback=lambda given: _print_version(given),
            help="Print the version, and whether the cores are compiled.",
        ),
    ] = False,
) -> None:
    """Takes what stands before the command's name."""


def _print_version(is_wanted: bool) -> None:
    from snapline.compiled import version_text

    if is_wanted:
        typer.echo(f"snapline {version_text()}")
        raise typer.Exit
