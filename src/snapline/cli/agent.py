"""`snapline agent …` shows the placement, state and status of agents, sends inputs, and handles dead letters, which are messages that no
turn could handle."""

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import PARTIAL, Connection, Display, command, limit_option
from snapline.cli.hosts import MOVE_S, Within, place_agents
from snapline.cli.output import (
    Document,
    DocumentTables,
    concern_lines,
    count,
    document,
    last_line,
    rows_of,
    text,
)
from snapline.cli.progress import FleetProgress
from snapline.cli.snapshot import Source, show_message
from snapline.cli.snapshot_state import show_field, show_state
from snapline.errors import NotFoundError, UsageError
from snapline.ids import check_id

if TYPE_CHECKING:
    from snapline.client.operator_commands import DeadLetterResult


DeadLetterAgent = Annotated[str, typer.Argument(metavar="AGENT", help="Agent that could not process them.")]
Numbers = Annotated[
    list[int] | None, typer.Argument(metavar="[NUMBER]…", min=1, help="Numbers of dead letters.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="All current dead letters of the agent.")]


@command
def retry(
    connection: Connection, display: Display, agent: DeadLetterAgent, numbers: Numbers = None, every: All = False
) -> None:
    """Process dead letters again, and wait until a snapshot contains the outcome.

    Each gets exactly one turn, despite crashes. One that fails again is a new dead letter. Exit code 3: not all were processed; the
    outcomes say why.
    """
    chosen = _chosen(numbers, every=every)
    results = connection.call_agents(lambda client: client.retry_dead_letters(agent, chosen, connection.timeout))
    _end(display, agent, results)


@command
def drop(
    connection: Connection, display: Display, agent: DeadLetterAgent, numbers: Numbers = None, every: All = False
) -> None:
    """Discard dead letters permanently, and wait until a snapshot reflects it.

    They stay counted. Exit code 3: not all were discarded; the outcomes say why.
    """
    chosen = _chosen(numbers, every=every)
    results = connection.call_agents(lambda client: client.drop_dead_letters(agent, chosen, connection.timeout))
    _end(display, agent, results)


def _chosen(numbers: list[int] | None, *, every: bool) -> list[int] | None:
    """Return the numbers of the chosen dead letters, or None if all dead letters are chosen.

    Raises:
        UsageError: If neither numbers nor --all are given, or if both are given.
    """
    if bool(numbers) == every:
        raise UsageError("which dead letters? Give their numbers, or --all")
    return None if every else numbers


def _end(display: Display, agent: str, results: "Sequence[DeadLetterResult]") -> None:
    import msgspec

    rows = msgspec.to_builtins(results)
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


Agent = Annotated[str, typer.Argument(metavar="AGENT", help="Id of the agent.")]


@command
def state(
    connection: Connection,
    display: Display,
    agent: Agent,
    live: Annotated[
        bool, typer.Option("--live", help="Show the live state between two turns, which a recovery may undo.")
    ] = False,
    field: Annotated[
        str, typer.Option("--field", metavar="PATH", help="Show only this field, such as mind.notes[3].text.")
    ] = "",
) -> None:
    """Show an agent's state in the newest snapshot, or its live state.

    A host answers, without the fleet's code, with at most 16 MiB of JSON. `snapline snapshot show --agent` reads other snapshots, and
    stores of fleets that do not run. Exit codes: 2: too large, no such path, or not permitted. 4: no such agent, field or snapshot, or
    the agent has stopped. 6: the snapshot is damaged. 9: no answer in time. 13: the fleet has ended.
    """
    import msgspec

    agent_state = connection.call_agents(
        lambda client: client.state(agent, live=live, field=field, timeout_s=connection.timeout)
    )
    display.printer().result(document("AgentState", **_about(msgspec.structs.asdict(agent_state))), _show_agent_state)


@command
def describe(connection: Connection, display: Display, agent: Agent) -> None:
    """Describe an agent: lifecycle, durable turn, waiting messages, keys, dead letters, last checkpoint.

    Also its class, host and incarnation. `life` is `unborn`, `starting`, `running`, `failed` or `stopping`. For a durable turn it shows
    the newest journal entries, and what the turn waits for since when. Exit codes: those of `agent state`.
    """
    description = connection.call_agents(lambda client: client.describe(agent, connection.timeout))
    display.printer().result(description, _show_description)


def _about(status: dict[str, object]) -> dict[str, object]:
    """Rename the field `kind` to `agent_kind`, because documents use `kind` for the kind of document."""
    return {"agent_kind" if name == "kind" else name: value for name, value in status.items()}


def _show_agent_state(result: Document, tables: DocumentTables) -> None:
    as_of = "now: a recovery may undo it" if result.get("is_live") else f"epoch {result.get('epoch')}"
    names = ("agent", "agent_kind", "host", "incarnation")
    tables.fields([*((name, result.get(name)) for name in names), ("as of", f"{as_of}, {result.get('time')}")])
    value = result.get("state")
    tables.line()
    if result.get("is_unborn"):
        tables.line("(not born yet)")
    elif isinstance(value, dict) and not result.get("field"):
        show_state(value, tables)
    else:
        show_field({"value": value}, tables)


def _show_description(result: Document, tables: DocumentTables) -> None:
    names = ("agent", "agent_kind", "host", "incarnation", "life")
    waiting = ("messages_waiting", "inputs_waiting", "inputs_consumed", "keys", "outbox")
    tables.fields(
        [
            *((name, result.get(name)) for name in names),
            ("turn", _turn(result)),
            *((name, result.get(name)) for name in waiting),
            ("checkpoint", result.get("checkpoint")),
            ("snapshot", _snapshot(result.get("snapshot"))),
            ("dead_letters", result.get("dead_letter_count")),
        ]
    )
    _show_durable_turn(result.get("durable_turn"), tables)
    for name in result.get("spawns") or ():  # type: ignore[attr-defined]  # this value is a list of names
        tables.line(f"asked for agent {name}")
    for timer in rows_of(result, "timers"):
        tables.line(f"timer {timer.get('name')} in {timer.get('remaining_s')} s")
    for dead_letter in rows_of(result, "dead_letters"):
        summary = f"{show_message(dead_letter.get('message'))}: {text(dead_letter.get('error'))}"
        tables.line(f"dead letter {dead_letter.get('number')} from {dead_letter.get('sender')}: {summary}")


def _show_durable_turn(turn: object, tables: DocumentTables) -> None:
    if not isinstance(turn, dict):
        return
    heading = f"durable turn for {show_message(turn.get('message'))} from {turn.get('sender')}"
    if turn.get("problem"):
        tables.line(f"{heading} IS BLOCKED: {text(turn['problem'])}")
    elif turn.get("waits_for") is None:
        tables.line(f"{heading} goes on")
    else:
        tables.line(f"{heading} waits for {turn['waits_for']}, for {turn.get('waits_s'):.3g} s")
    effect = turn.get("effect")
    if isinstance(effect, dict):
        tables.line(f"  effect {effect.get('name')}, key {effect.get('key')}: {effect.get('stands')}")
    for entry in rows_of(turn, "journal"):
        tables.line(f"  {entry.get('number')}. {entry.get('asked')}: {entry.get('outcome')}")
    if turn.get("put_off"):
        tables.line(f"  {count(turn['put_off'], 'message')} deferred until it is over")


def _turn(result: Document) -> str | None:
    turn, attempts = result.get("turn"), result.get("attempts")
    failed = f", {count(attempts, 'attempt')} failed" if isinstance(attempts, int) and attempts else ""
    if isinstance(turn, dict):
        return f"{turn.get('what')} from {turn.get('sender')}{failed}"
    if result.get("retry_s") is not None:
        return f"its next message is tried again in {result.get('retry_s')} s{failed}"
    return None


def _snapshot(newest: object) -> str:
    if not isinstance(newest, dict):
        return "in none yet"
    if "problem" in newest:
        return f"not known: {newest['problem']}"
    return f"epoch {newest.get('epoch')} of {newest.get('time')} has checkpoint {newest.get('checkpoint')}"


app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
dead_letters = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Dead letters: messages that no turn could process."
)
app.add_typer(dead_letters, name="dead-letters")

NOTHING = "<0 bytes>"
"""Text that represents an empty payload in documents."""

Snapshot = Annotated[
    str,
    typer.Option(
        "--snapshot",
        metavar="ID",
        help="Snapshot: epoch number, `latest`, tag, or four or more first digits of its root.",
    ),
]


@app.command("list")
@command
def list_agents(connection: Connection, display: Display) -> None:
    """List the agents that take turns, and their hosts.

    `state` is `alive`; `lost`, from the loss of the host until the fleet has recovered; or `unplaced`, while the fleet forms. In JSON
    each agent has its host's address, and `phase` and `reason` are those of `snapline status`.
    """
    from snapline.messages.answers import document_of

    reply = document_of(connection.ask(lambda client: client.locate_all(connection.timeout)))
    status = document_of(connection.ask(lambda client: client.status(connection.timeout)))
    concerns = [row for row in rows_of(status, "concerns") if row.get("agents")]
    display.printer().result({**reply, "concerns": concerns}, _show_agents)


@app.command("move")
@command
def move(
    connection: Connection,
    display: Display,
    agents: Annotated[list[str], typer.Argument(metavar="AGENT...", help="Ids of the agents.", show_default=False)],
    host: Annotated[
        str, typer.Option("--to", metavar="HOST", help="Host to which the agents move.", show_default=False)
    ],
    within: Within = MOVE_S,
) -> None:
    """Move agents to a host of the fleet. They stay there until their host fails or is drained, or agents are spread.

    Agents move by a recovery plan from a fresh snapshot; nothing is lost. With local recovery, they move alone, and all others go on.
    Exit codes: 2: the host is drained or not alive, or placement forbids it. 4: no such agent or host. 9: not moved --within the limit.
    """
    names, name = tuple(dict.fromkeys([check_id(agent, "agent") for agent in agents])), check_id(host, "host")
    progress = FleetProgress(display.printer())
    connection.ask(lambda client: place_agents(client, names, name, time.monotonic() + within, progress.note))
    display.printer().result(document("AgentsMoved", agents=list(names), host=name), _show_moved)


def _show_moved(result: Document, tables: DocumentTables) -> None:
    agents = result["agents"]
    tables.line(f"{', '.join(map(str, agents if isinstance(agents, list) else []))} run on {result['host']}")


@app.command("send")
@command
def send_input(
    connection: Connection,
    display: Display,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Agent that gets the input.")],
    kind: Annotated[str, typer.Argument(metavar="TYPE", help="Name of a message type that the agent handles.")],
    text: Annotated[str, typer.Argument(metavar="JSON", help="Fields of the message; `-` reads them from stdin.")],
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="Key of the input; the same key again is the same input.",
            show_default="a random one",
        ),
    ] = None,
) -> None:
    """Send an input to an agent, and wait until the input is durable.

    From then on it takes effect exactly once. The command retries until --timeout, also during a recovery. If the input has been
    accepted before under its key, the answer has the first number, and `is_repeated`. Needs a certificate of the role `client`, if
    there are certificates.

    Exit codes: 9: it may have been accepted; repeat it with the key in the message. 13: the fleet has ended. 14: it was not accepted.
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
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Agent that answers.")],
    kind: Annotated[str, typer.Argument(metavar="TYPE", help="Name of a message type that the agent handles.")],
    text: Annotated[str, typer.Argument(metavar="JSON", help="Fields of the message; `-` reads them from stdin.")],
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="Key of the input; the same key again is the same input.",
            show_default="a random one",
        ),
    ] = None,
    early: Annotated[bool, typer.Option("--early", help="Return the answer at once; a recovery may undo it.")] = False,
) -> None:
    """Send an input to an agent, and wait for its answer.

    The answer is final: a complete snapshot contains it. In JSON `message` has the `type` and `fields` of the answer; it is null if the
    turn gave none. Exit codes: those of `agent send`. 3: the input became a dead letter. 9: also if it was accepted and the answer is
    late; ask again with the key in the message.
    """
    fields = _fields_of(text)
    reply = connection.call_agents(lambda client: client.ask(agent, (kind, fields), key, early, connection.timeout))
    result = document(
        "Reply", agent=reply.agent, number=reply.number, key=reply.key, is_early=reply.is_early, message=reply.message
    )
    display.printer().result(result, _show_reply)


app.command("state")(state)
app.command("describe")(describe)


def _fields_of(text: str) -> object:
    """Check that `text` is JSON, and return it as raw JSON.

    Raises:
        UsageError: If the text is not JSON. The message says where.
    """
    import msgspec

    from snapline.messages.json_text import read_json

    raw = sys.stdin.buffer.read() if text == "-" else os.fsencode(text)
    try:
        read_json(raw)
    except UsageError as error:
        raise UsageError(f"the message is no JSON ({error}): write its fields as '{{\"name\": value}}'") from error
    return msgspec.Raw(raw)


ERRORS_MAX = 10
"""Largest number of errors whose dead letters are counted beneath the table."""


@dead_letters.command("list")
@command
def list_dead_letters(
    source: Source,
    display: Display,
    snapshot: Snapshot = "latest",
    limit: Annotated[int | None, limit_option("dead letters")] = None,
) -> None:
    """List the dead letters of all agents in a snapshot, by agent, oldest first, and count those with the same error.

    A message whose turn fails more often than its agent's `retries` allow becomes a dead letter. An agent keeps its newest hundred,
    numbered from its first one; older ones are only counted. Messages to an agent that has stopped are counted in `status` alone.
    """
    printer = display.printer()
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
        errors=dict(Counter(map(_reason, rows)).most_common()),
        dead_letters=rows[: printer.limit(limit)],
    )
    printer.result(result, _show_list)


@dead_letters.command("show")
@command
def show_dead_letter(
    source: Source,
    display: Display,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Agent that could not process it.")],
    number: Annotated[
        int | None,
        typer.Argument(
            metavar="[NUMBER]", min=1, help="Number of the dead letter in the list.", show_default="the newest"
        ),
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


dead_letters.command("retry")(retry)
dead_letters.command("drop")(drop)


def _numbered(agent: Document) -> list[tuple[int, Document]]:
    """Return an agent's dead letters with their numbers. The number of a dead letter does not change when other dead letters are
    removed."""
    return [
        (number, dead_letter)
        for dead_letter in rows_of(agent, "dead_letters")
        if isinstance(number := dead_letter.get("number"), int)
    ]


def _total(agent: Document) -> int:
    counted = agent.get("dead_letter_count")
    return max(counted if isinstance(counted, int) else 0, len(rows_of(agent, "dead_letters")))


def _row(agent: Document, number: int, dead_letter: Document) -> dict[str, object]:
    return {"agent": agent.get("agent"), "number": number, **dead_letter}


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
        tables.wrapped("! ", line)
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
    errors = result["errors"]
    assert isinstance(errors, dict) and isinstance(total, int), "made above"
    kept = sum(errors.values())
    tables.rest(kept - len(rows), kept)
    if dropped := total - kept:
        tables.line(
            f"and {count(dropped, 'other')}, which {'is' if dropped == 1 else 'are'} not kept: older, or dropped"
        )
    if len(errors) < kept:
        tables.line()
        tables.table(("COUNT", "ERROR"), [(number, error) for error, number in list(errors.items())[:ERRORS_MAX]])
        if len(errors) > ERRORS_MAX:
            tables.line(f"and {count(len(errors) - ERRORS_MAX, 'other error')}")


def _show_one(result: Document, tables: DocumentTables) -> None:
    names = ("agent", "number", "epoch", "sender", "attempts")
    tables.fields([*((name, result.get(name)) for name in names), ("message", _message(result))])
    tables.line()
    tables.line(str(result.get("error", "")).rstrip())


def _message(dead_letter: Document) -> str:
    """Format a message whose turn has failed. If the agent's first turn failed, which handles no message, return `(on_start)`."""
    message = dead_letter.get("message")
    return "(on_start)" if message == NOTHING else show_message(message)


def _reason(dead_letter: Document) -> str:
    """Return the last line of the dead letter's traceback."""
    return last_line(str(dead_letter.get("error", "")))
