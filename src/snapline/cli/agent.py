"""`snapline agent …`: placement and state of agents, their inputs, and the dead letters that no turn could handle."""

import os
import sys
from typing import Annotated

import typer

from snapline.cli import agent_dead_letters, agent_view
from snapline.cli.command import command
from snapline.cli.options import Connection, Display
from snapline.cli.output import Document, DocumentTables, concern_lines, count, document, last_line, rows_of
from snapline.cli.snapshot import Source, show_message
from snapline.errors import NotFoundError, UsageError

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
letters = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Messages that no turn could take, and what it said."
)
app.add_typer(letters, name="dead-letters")

NOTHING = "<0 bytes>"
"""Representation of an empty payload in documents."""

Snapshot = Annotated[
    str, typer.Option("--snapshot", metavar="ID", help="Epoch number, `latest`, tag, or first digits of a root.")
]


@app.command("list")
@command
def list_agents(connection: Connection, display: Display) -> None:
    """List the agents that take turns, and where each of them lives."""
    from snapline.messages.documents import document_of

    reply = document_of(connection.ask(lambda client: client.locate_all(connection.timeout)))
    status = document_of(connection.ask(lambda client: client.status(connection.timeout)))
    concerns = [row for row in rows_of(status, "concerns") if row.get("agents")]
    display.printer().result({**reply, "concerns": concerns}, _show_agents)


@app.command("send")
@command
def send_input(
    connection: Connection,
    display: Display,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent that is to have it.")],
    kind: Annotated[str, typer.Argument(metavar="TYPE", help="Name of the message's type.")],
    text: Annotated[str, typer.Argument(metavar="JSON", help="Its fields; `-` reads them from stdin.")],
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="The same key again is the same input.", show_default="a random one"),
    ] = None,
) -> None:
    """Give an agent an input, and wait until it is in the fleet's log for good.

    It takes effect exactly once then. Where the outcome is not known, give it again with the same key.
    """
    fields = _fields_of(text)
    receipt = connection.call_agents(lambda client: client.send(agent, (kind, fields), key, connection.timeout))
    result = document(
        "Receipt", agent=receipt.agent, number=receipt.number, key=receipt.key, is_repeated=receipt.is_repeated
    )
    display.printer().result(result, _show_receipt)


@app.command("ask")
@command
def ask_agent(
    connection: Connection,
    display: Display,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent that is to answer.")],
    kind: Annotated[str, typer.Argument(metavar="TYPE", help="Name of the message's type.")],
    text: Annotated[str, typer.Argument(metavar="JSON", help="Its fields; `-` reads them from stdin.")],
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="The same key again is the same input.", show_default="a random one"),
    ] = None,
    early: Annotated[bool, typer.Option("--early", help="Take the answer at once; a recovery may undo it.")] = False,
) -> None:
    """Give an agent an input, and wait for its answer.

    The answer is final: a complete snapshot holds it. Where it does not come in time, ask again with the same key.
    """
    fields = _fields_of(text)
    reply = connection.call_agents(lambda client: client.ask(agent, (kind, fields), key, early, connection.timeout))
    result = document(
        "Reply", agent=reply.agent, number=reply.number, key=reply.key, is_early=reply.is_early, message=reply.message
    )
    display.printer().result(result, _show_reply)


app.command("state")(agent_view.state)
app.command("describe")(agent_view.describe)


def _fields_of(text: str) -> object:
    """Return the JSON text unchanged after checking it.

    Raises:
        UsageError: the text is not JSON; the message says where.
    """
    import msgspec

    from snapline.messages.json_text import read_json

    raw = sys.stdin.buffer.read() if text == "-" else os.fsencode(text)
    try:
        read_json(raw)
    except UsageError as error:
        raise UsageError(f"the message is no JSON ({error}): write its fields as '{{\"name\": value}}'") from error
    return msgspec.Raw(raw)


@letters.command("list")
@command
def list_dead_letters(source: Source, display: Display, snapshot: Snapshot = "latest") -> None:
    """List the dead letters of all agents in a snapshot.

    An agent keeps its newest hundred; older ones are only counted.
    """
    snapshot_document = source.read("show", snapshot)
    rows = [
        _row(agent, number, dead_letter)
        for agent in rows_of(snapshot_document, "agents")
        for number, dead_letter in _numbered(agent)
    ]
    counts = {str(agent["agent"]): _total(agent) for agent in rows_of(snapshot_document, "agents")}
    result = document(
        "DeadLetterList",
        epoch=snapshot_document.get("epoch"),
        dead_letter_count=sum(counts.values()),
        agents={agent: found for agent, found in counts.items() if found},
        dead_letters=rows,
    )
    display.printer().result(result, _show_list)


@letters.command("show")
@command
def show_dead_letter(
    source: Source,
    display: Display,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent that could not take it.")],
    number: Annotated[
        int | None, typer.Argument(metavar="[NUMBER]", min=1, help="Its number in the list.", show_default="the newest")
    ] = None,
    snapshot: Snapshot = "latest",
) -> None:
    """Show one dead letter: the message, and the whole error."""
    snapshot_document = source.read("show", snapshot, agent)
    by_number = {at: dead_letter for row in rows_of(snapshot_document, "agents") for at, dead_letter in _numbered(row)}
    wanted = max(by_number, default=0) if number is None else number
    if wanted not in by_number:
        raise NotFoundError(_missing(agent, number, sorted(by_number), snapshot_document.get("epoch")))
    dead_letter = {"agent": agent, "number": wanted, **by_number[wanted]}
    display.printer().result(document("DeadLetter", epoch=snapshot_document.get("epoch"), **dead_letter), _show_one)


letters.command("retry")(agent_dead_letters.retry)
letters.command("drop")(agent_dead_letters.drop)


def _numbered(agent: Document) -> list[tuple[int, Document]]:
    """Return an agent's dead letters with their numbers, which do not change when others are removed."""
    return [
        (number, dead_letter)
        for dead_letter in rows_of(agent, "dead_letters")
        if isinstance(number := dead_letter.get("number"), int)
    ]


def _total(agent: Document) -> int:
    counted = agent.get("dead_letter_count")
    return max(counted if isinstance(counted, int) else 0, len(rows_of(agent, "dead_letters")))


def _row(agent: Document, number: int, letter: Document) -> dict[str, object]:
    return {"agent": agent.get("agent"), "number": number, **letter}


def _missing(agent: str, number: int | None, numbers: list[int], epoch: object) -> str:
    if not numbers:
        return f"agent {agent!r} has no dead letters in epoch {epoch}: `snapline agent dead-letters list` names those that have"
    is_row = numbers[-1] - numbers[0] + 1 == len(numbers)
    choices = f"{numbers[0]} to {numbers[-1]}" if is_row else ", ".join(map(str, numbers))
    return f"agent {agent!r} has no dead letter {number} in epoch {epoch}: give one of {choices}"


def _show_receipt(result: Document, tables: DocumentTables) -> None:
    repeated = "yes: its key was known" if result.get("is_repeated") else None
    tables.fields([*((name, result.get(name)) for name in ("agent", "number", "key")), ("repeated", repeated)])


def _show_reply(result: Document, tables: DocumentTables) -> None:
    message = result.get("message")
    answer = "it answered nothing" if message is None else show_message(message)
    early = "yes: a recovery may undo it" if result.get("is_early") else None
    tables.fields(
        [*((name, result.get(name)) for name in ("agent", "number", "key")), ("early", early), ("answer", answer)]
    )


def _show_agents(result: Document, tables: DocumentTables) -> None:
    names = ("agent", "state", "host", "incarnation")
    tables.table(
        [name.upper() for name in names], [[row.get(name) for name in names] for row in rows_of(result, "agents")]
    )
    for line in concern_lines(result):
        tables.line(f"! {line}")
    if result.get("phase") != "running":
        reason = result.get("reason")
        tables.line(f"the fleet is {result.get('phase')}{f': {reason}' if reason else ''}")


def _show_list(result: Document, tables: DocumentTables) -> None:
    total, rows = result["dead_letter_count"], rows_of(result, "dead_letters")
    if not total:
        tables.line(f"no dead letters in epoch {result.get('epoch')}")
        return
    tables.table(
        ("AGENT", "NUMBER", "FROM", "MESSAGE", "ATTEMPTS", "ERROR"),
        [
            (row["agent"], row["number"], row.get("sender"), _message(row), row.get("attempts"), _reason(row))
            for row in rows
        ],
    )  # fmt: skip
    dropped = total - len(rows) if isinstance(total, int) else 0
    if dropped:
        tables.line(
            f"and {count(dropped, 'other')}, which {'is' if dropped == 1 else 'are'} not kept: older, or dropped"
        )


def _show_one(result: Document, tables: DocumentTables) -> None:
    names = ("agent", "number", "epoch", "sender", "attempts")
    tables.fields([*((name, result.get(name)) for name in names), ("message", _message(result))])
    tables.line()
    tables.line(str(result.get("error", "")).rstrip())


def _message(letter: Document) -> str:
    """Return the text of the message that failed; the first turn of an agent has none."""
    message = letter.get("message")
    return "(on_start)" if message == NOTHING else show_message(message)


def _reason(letter: Document) -> str:
    """Return the last line of the traceback."""
    return last_line(str(letter.get("error", "")))
