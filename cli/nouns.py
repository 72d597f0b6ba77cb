"""The nouns of the command line, each in a module of its own. A fleet starts many processes: none waits for what others import."""

from importlib import import_module

import typer

NOUNS = {
    "snapshot": "snapshot",
    "recovery": "recovery",
    "keys": "keys",
    "fleet": "fleet",
    "agent": "agent",
    "auth": "auth",
    "config": "configuration",
    "coordinator": "coordinator",
    "host": "hosts",
    "output": "outputs",
    "effect": "effects",
    "gateway": "gateway",
    "ui": "ui",
    "health": "health",
    "sim": "sim",
    "chaos": "chaos",
}
"""The first word of a command → the module whose `app` has its verbs. Commands of one word are in `main.py`, which has all."""


def add_noun(app: typer.Typer, noun: str) -> None:
    """Import the noun's module, and make its verbs known."""
    app.add_typer(import_module(f"snapline.cli.{NOUNS[noun]}").app, name=noun)


def app_of(noun: str) -> typer.Typer:
    """The command line of this noun alone."""
    app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, pretty_exceptions_enable=False)
    add_noun(app, noun)
    return app
