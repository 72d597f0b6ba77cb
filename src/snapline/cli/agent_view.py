"""`snapline agent state` and `snapline agent describe`: state and status of an agent."""

from typing import Annotated

import typer

from snapline.cli.command import command
from snapline.cli.options import Connection, Display
from snapline.cli.output import Document, DocumentTables, count, document, rows_of, text
from snapline.cli.snapshot import show_message
from snapline.cli.snapshot_field import show_field, show_state

Agent = Annotated[str, typer.Argument(metavar="AGENT", help="Its id.")]


@command
def state(
    connection: Connection,
    display: Display,
    agent: Agent,
    live: Annotated[
        bool, typer.Option("--live", help="As it is now, between two turns; a recovery may undo it.")
    ] = False,
    field: Annotated[
        str, typer.Option("--field", metavar="PATH", help="Only this field, such as mind.notes[3].text.")
    ] = "",
) -> None:
    """Show an agent's state in the newest snapshot, or as it is now.

    A host of the fleet tells it, so without the fleet's code; `snapline snapshot show --agent` reads other snapshots.
    """
    import msgspec

    agent_state = connection.call_agents(
        lambda client: client.state(agent, live=live, field=field, timeout_s=connection.timeout)
    )
    display.printer().result(document("AgentState", **_about(msgspec.structs.asdict(agent_state))), _show_agent_state)


@command
def describe(connection: Connection, display: Display, agent: Agent) -> None:
    """Show how an agent stands: its life, its durable turn, what waits, its keys, its dead letters, its last checkpoint."""
    description = connection.call_agents(lambda client: client.describe(agent, connection.timeout))
    display.printer().result(description, _show_description)


def _about(told: dict[str, object]) -> dict[str, object]:
    """Rename the field `kind`, because documents use that name for their own kind."""
    return {"agent_kind" if name == "kind" else name: value for name, value in told.items()}


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
    for name in result.get("spawns") or ():  # type: ignore[attr-defined]  # a list of names
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
        tables.line(f"  {count(turn['put_off'], 'message')} put off until it is over")


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
