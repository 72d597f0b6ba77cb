"""`snapline agent dead-letters retry` and `drop`: operator commands for messages that no turn could handle."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import PARTIAL, command
from snapline.cli.options import Connection, Display
from snapline.cli.output import Document, DocumentTables, document, rows_of
from snapline.cli.snapshot import show_message
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.client.dead_letters import DeadLetterResult

Agent = Annotated[str, typer.Argument(metavar="AGENT", help="The agent that could not take them.")]
Numbers = Annotated[
    list[int] | None, typer.Argument(metavar="[NUMBER]…", min=1, help="Their numbers.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="All that there are now.")]


@command
def retry(connection: Connection, display: Display, agent: Agent, numbers: Numbers = None, every: All = False) -> None:
    """Give dead letters another turn, and wait until a snapshot holds what came of it.

    Each has its turn once, whatever dies. One that fails again is a new dead letter.
    """
    chosen = _chosen(numbers, every=every)
    results = connection.call_agents(lambda client: client.retry_dead_letters(agent, chosen, connection.timeout))
    _end(display, agent, results)


@command
def drop(connection: Connection, display: Display, agent: Agent, numbers: Numbers = None, every: All = False) -> None:
    """Forget dead letters for good, and wait until a snapshot has forgotten them. They stay counted."""
    chosen = _chosen(numbers, every=every)
    results = connection.call_agents(lambda client: client.drop_dead_letters(agent, chosen, connection.timeout))
    _end(display, agent, results)


def _chosen(numbers: list[int] | None, *, every: bool) -> list[int] | None:
    """Return the chosen numbers; None: all.

    Raises:
        UsageError: neither numbers nor --all are given, or both.
    """
    if bool(numbers) == every:
        raise UsageError("which dead letters? Give their numbers, or --all")
    return None if every else numbers


def _end(display: Display, agent: str, told: "Sequence[DeadLetterResult]") -> None:
    import msgspec

    rows = msgspec.to_builtins(told)
    display.printer().result(document("SettledLetters", agent=agent, dead_letters=rows), _show)
    if any(row["outcome"] not in ("handled", "dropped") for row in rows):
        raise typer.Exit(PARTIAL)


def _show(result: Document, tables: DocumentTables) -> None:
    rows = rows_of(result, "dead_letters")
    if not rows:
        tables.line(f"agent {result.get('agent')} has no dead letters")
        return
    tables.table(("NUMBER", "OUTCOME", ""), [(row.get("number"), row.get("outcome"), _more(row)) for row in rows])


def _more(row: Document) -> object:
    message = row.get("message")
    return row.get("reason") or ("" if message is None else f"answered {show_message(message)}")
