"""The command line: `snapline NOUN VERB`, and the table of its commands and groups; see docs/cli.md.

A process imports only the module of its own command, and a command imports heavy libraries (gRPC, NumPy, the store) inside its functions. So
`snapline --help` and every command start quickly.
"""

import functools
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup


class CommandGroup(NamedTuple):
    """A top-level command or group.

    `module`: its module in `snapline.cli`. `says`: its text in the list of commands; for a single command, the start of its docstring.
    `app`: the typer app of a group in its module.
    """

    module: str
    says: str
    is_hidden: bool = False
    app: str = "app"


COMMANDS = {
    "demo": CommandGroup("demo", "Rank modules on several hosts, kill one, and kill the coordinator's leader."),
    "run": CommandGroup("run", "Run a whole fleet on this machine."),
    "up": CommandGroup("up", "Take a fleet up, and leave it running."),
    "down": CommandGroup("up", "Take a fleet down that `snapline up` has taken up."),
    "doctor": CommandGroup("doctor", "Look whether this machine, a store and a fleet are as they should be."),
    "scale": CommandGroup("hosts", "Give a fleet that runs more hosts, or fewer."),
    "restart": CommandGroup("hosts", "Start every process of a fleet anew, one after the other, while it runs."),
    "keep": CommandGroup("up", "Keep the fleet of this folder: what `snapline up` starts in the background.", True),
    "unit": CommandGroup("processes", "Print a unit for systemd that starts a coordinator or a host."),
    "status": CommandGroup("status", "Show phase, hosts and epochs of the fleet."),
    "top": CommandGroup("status", "Show the fleet in the terminal, as it changes, until q or Ctrl-C."),
    "logs": CommandGroup("logs", "Print what all processes of a fleet have printed, by time, oldest first."),
    "audit": CommandGroup(
        "auth", "Show what operators and admins have asked of the fleet to change it, and what they were refused."
    ),
    "advise": CommandGroup("advise", "Say which protocol and interval suit the fleet, and why."),
    "analyze": CommandGroup("analyze", "Analyse a trace: recovery line, domino effect, useless checkpoints."),
    "version": CommandGroup("doctor", "Print the version."),
}
"""Top-level commands; each is a function of that name in its module."""

GROUPS = {
    "snapshot": CommandGroup("snapshot", "Take, list, show, verify, compare, fork, move, keep and prune snapshots."),
    "recovery": CommandGroup("recovery", "Where the fleet would, or did, go back to."),
    "keys": CommandGroup("keys", "Make key files; rotate and show the keys of a store."),
    "fleet": CommandGroup("fleet", "Fleets as they are written."),
    "agent": CommandGroup(
        "agent", "Agents: where they live, what they hold, inputs for them, letters they could not take."
    ),
    "auth": CommandGroup("auth", "Certificates and tokens: who may do what in a fleet."),
    "config": CommandGroup("up", "Settings: what they are, and where they come from."),
    "coordinator": CommandGroup("coordinator", "The process that decides, and its replicas."),
    "host": CommandGroup("hosts", "The processes that run agents."),
    "output": CommandGroup("outputs", "What agents have given to the outside."),
    "effect": CommandGroup("outputs", "What agents have done outside.", app="effects_app"),
    "gateway": CommandGroup("gateway", "A fleet behind HTTP."),
    "ui": CommandGroup("ui", "The fleet in a browser."),
    "health": CommandGroup("health", "Ask a host or a coordinator that was started with --health."),
    "sim": CommandGroup("sim", "Run fleets in virtual time, with faults from a seed, and judge every guarantee."),
    "chaos": CommandGroup(
        "chaos", "Carry the simulator's faults out on real processes, and judge them by their store."
    ),
}
"""Command groups; `app` of a group's module has its commands."""


def app_of(first: str) -> typer.Typer:
    """Return the typer app of one group or of one top-level command alone."""
    app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
    app.callback()(_nothing)  # without a callback, typer would drop the name of a single command
    group = GROUPS.get(first) or COMMANDS[first]
    module = import_module(f"snapline.cli.{group.module}")
    if first in GROUPS:
        app.add_typer(getattr(module, group.app), name=first, help=group.says)
    else:
        app.command(first, hidden=group.is_hidden)(getattr(module, first))
    return app


@functools.cache
def command_of(first: str) -> Any:
    """Build the Click command of a group or command. It takes tens of milliseconds, so the fork server does it before it forks."""
    return typer.main.get_command(app_of(first))


def _nothing() -> None:
    """Options that stand before the first word are for `main.py`."""


class AllCommands(Mapping[str, Any]):
    """Click commands by name; each is imported when it is looked up."""

    def __getitem__(self, first: str) -> Any:
        if first not in COMMANDS and first not in GROUPS:
            raise KeyError(first)
        return command_of(first).commands[first]

    def __iter__(self) -> Iterator[str]:
        return iter([*COMMANDS, *GROUPS])

    def __len__(self) -> int:
        return len(COMMANDS) + len(GROUPS)


class RootGroup(TyperGroup):
    """Root command with all top-level commands and groups."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = AllCommands()  # type: ignore[assignment]  # it is only read

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands from the tables above, without importing them."""
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
