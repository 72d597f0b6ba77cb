"""`snapline config …`: the settings of `up`, `down` and `status`, and their origins."""

from typing import Annotated

import typer

from snapline.cli.command import command
from snapline.cli.options import Display
from snapline.cli.output import Document, DocumentTables, document, rows_of
from snapline.cli.settings import UserSettings

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
contexts = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Named places, such as test and prod.")
app.add_typer(contexts, name="context")

Context = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="A [context.NAME] of snapline.toml; else that in use.")
]


@app.command("show")
@command
def show(
    display: Display,
    context: Context = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
) -> None:
    """Show every setting: flag before environment before snapline.toml before default."""
    settings = UserSettings(context)
    rows = [
        {"key": key, "value": value, **({"origin": where} if origin else {})} for key, value, where in settings.all()
    ]
    display.printer().result(document("Settings", context=settings.context, settings=rows), _show)


@contexts.command("list")
@command
def list_contexts(display: Display) -> None:
    """List the contexts of snapline.toml, and which is in use."""
    settings = UserSettings()
    rows = [{"name": name, "in_use": name == settings.context} for name in settings.contexts]
    display.printer().result(document("Contexts", contexts=rows), _show_contexts)


@contexts.command("use")
@command
def use(display: Display, name: Annotated[str, typer.Argument(metavar="NAME", help='A context; "" for none.')]) -> None:
    """Use a context from now on, in this folder."""
    UserSettings().use(name)
    sentence = f"context {name} is in use" if name else "no context is in use"
    display.printer().result(document("ContextUsed", context=name), lambda _, tables: tables.line(sentence))


def _show(result: Document, tables: DocumentTables) -> None:
    rows = rows_of(result, "settings")
    columns = [name for name in ("key", "value", "origin") if not rows or name in rows[0]]
    tables.table([name.upper() for name in columns], [[row.get(name) for name in columns] for row in rows])


def _show_contexts(result: Document, tables: DocumentTables) -> None:
    rows = rows_of(result, "contexts")
    tables.table(("CONTEXT", ""), [(row.get("name"), "in use" if row.get("in_use") else "") for row in rows])
