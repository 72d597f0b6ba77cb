"""The first words of the command line, each in a module of its own. A fleet starts many processes: none waits for what others import."""

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
"""The first word of a command → the module whose `app` has its verbs."""

WORDS = {
    "run": "run",
    "up": "up",
    "down": "up",
    "doctor": "doctor",
    "scale": "scale",
    "restart": "scale",
    "keep": "up_kept",
    "unit": "unit",
    "status": "status",
    "top": "top",
    "logs": "logs",
    "audit": "audit",
    "advise": "advise",
    "analyze": "analyze",
}
"""A command of one word → the module that has it as a function of that name. Two more are in `main.py`, which has all."""

HIDDEN = {"keep"}
"""What people do not type: `up` starts it."""


def add_noun(app: typer.Typer, noun: str) -> None:
    """Import the noun's module, and make its verbs known."""
    app.add_typer(import_module(f"snapline.cli.{NOUNS[noun]}").app, name=noun)


def add_word(app: typer.Typer, word: str) -> None:
    """Import the word's module, and make its command known."""
    app.command(word, hidden=word in HIDDEN)(getattr(import_module(f"snapline.cli.{WORDS[word]}"), word))


def app_of(first: str) -> typer.Typer:
    """The command line of this noun, or of this command of one word, alone."""
    app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(_nothing)  # so that one command alone is still called by its name
    if first in NOUNS:
        add_noun(app, first)
    else:
        add_word(app, first)
    return app


def _nothing() -> None:
    """Options that stand before the first word are for `main.py`."""
