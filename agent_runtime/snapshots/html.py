"""Snapshots as HTML, for notebooks. All text comes from a store and is escaped; long tables are truncated with a note."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Protocol

from snapline.agent_runtime.snapshots.cut_contents import DeadLetter, PendingTimer, TransitMessage

if TYPE_CHECKING:
    from snapline.storage.retention.catalog import SnapshotSummary

ROWS_MAX = 50
"""Largest number of rows of one table: more than a screen shows."""

TEXT_MAX = 200
"""Largest number of characters in a cell."""


class ShownAgent(Protocol):
    """The part of a `SavedAgent` that is shown."""

    agent: str
    kind: str
    host: str
    incarnation: int
    number: int
    is_unborn: bool
    dead_letter_count: int

    @property
    def channels(self) -> Mapping[str, Sequence[TransitMessage]]: ...
    @property
    def outbox(self) -> Sequence[TransitMessage]: ...
    @property
    def dead_letters(self) -> Sequence[DeadLetter]: ...
    @property
    def pending_timers(self) -> Sequence[PendingTimer]: ...
    def describe(self, *, reads_parts: bool = True) -> object: ...


class ShownCut(Protocol):
    """The part of a `Cut` that is shown."""

    epoch: int
    states: Mapping[str, object]

    def describe(self, agent: str) -> object: ...
    @property
    def in_transit(self) -> Sequence[TransitMessage]: ...
    @property
    def dead_letters(self) -> Sequence[DeadLetter]: ...
    @property
    def pending_timers(self) -> Sequence[PendingTimer]: ...


class ShownSnapshot(Protocol):
    """The part of a `Snapshot` that is shown."""

    epoch: int
    fleet: str
    created: str
    protocol: str
    root: str

    @property
    def agents(self) -> Mapping[str, ShownAgent]: ...


def of_store(location: str, summaries: Sequence["SnapshotSummary"]) -> str:
    """Show the newest snapshots of a store, oldest first."""
    newest = summaries[-ROWS_MAX:]
    rows = [
        (x.epoch, x.root[:12], x.created, x.trigger, x.agent_count, x.channel_state_messages, x.damage) for x in newest
    ]
    columns = ("epoch", "root", "created", "trigger", "agents", "in transit", "damage")
    hidden = len(summaries) - len(newest)
    more = f"<p>… and {hidden:,} older ones</p>" if hidden else ""
    return f"<h4>Store {escape(location)}</h4>{table(columns, rows)}{more}"


def of_snapshot(snapshot: ShownSnapshot) -> str:
    """Show a snapshot's agents and messages in transit. The first agents are read, large arrays are not."""
    names = list(snapshot.agents)[:ROWS_MAX]
    shown = [snapshot.agents[name] for name in names]
    agents = [(x.agent, x.host, x.incarnation, _text(_preview(x))) for x in shown]
    transit = [message for agent in shown for message in _in_transit(agent)]
    letters = [(x.agent, x.sender, _message(x), _last_line(x.error)) for agent in shown for x in agent.dead_letters]
    parts = [
        f"<h4>Snapshot {snapshot.epoch} of fleet {escape(snapshot.fleet)}</h4>",
        f"<p>created {escape(snapshot.created)}, protocol {escape(snapshot.protocol)}, root {snapshot.root[:12]}</p>",
        table(("agent", "host", "incarnation", "state"), agents, len(snapshot.agents)),
        _messages(transit),
    ]
    if letters:
        parts.append(table(("dead letter of", "from", "message", "error"), letters))
    if len(names) < len(snapshot.agents):
        parts.append(f"<p>messages and dead letters: of the first {len(names)} agents</p>")
    return "".join(parts)


def of_cut(cut: ShownCut) -> str:
    """Show a cut's agents and messages in transit. The states of the first agents are decoded."""
    names = list(cut.states)
    states = [(name, _text(cut.describe(name))) for name in names[:ROWS_MAX]]
    parts = [
        heading(f"Cut of epoch {cut.epoch}"),
        table(("agent", "state"), states, len(names)),
        _messages(cut.in_transit),
    ]
    if cut.pending_timers:
        rows = [(x.agent, x.name, f"{x.remaining_s:g} s", _message(x)) for x in cut.pending_timers]
        parts.append(table(("agent", "timer", "fires in", "message"), rows))
    if cut.dead_letters:
        letters = [(x.agent, x.sender, _message(x), _last_line(x.error)) for x in cut.dead_letters]
        parts.append(table(("dead letter of", "from", "message", "error"), letters))
    return "".join(parts)


def of_agent(agent: ShownAgent) -> str:
    """Show an agent's state field by field, with the first values of arrays; its messages, timers and dead letters."""
    state = agent.describe()
    fields = state.items() if isinstance(state, Mapping) else [("", state)]
    parts = [
        f"<h4>Agent {escape(agent.agent)}</h4>",
        f"<p>{escape(agent.kind)} on {escape(agent.host)}, incarnation {agent.incarnation}, checkpoint {agent.number}</p>",
        "<p>not born yet</p>"
        if agent.is_unborn
        else table(("field", "value"), [(str(name), _text(value)) for name, value in fields]),
        _messages(_in_transit(agent)),
    ]
    if agent.pending_timers:
        rows = [(x.name, f"{x.remaining_s:g} s", _message(x)) for x in agent.pending_timers]
        parts.append(table(("timer", "fires in", "message"), rows))
    if agent.dead_letters:
        letters = [(x.sender, _message(x), _last_line(x.error), x.attempts) for x in agent.dead_letters]
        parts.append(table(("dead letter from", "message", "error", "attempts"), letters, agent.dead_letter_count))
    return "".join(parts)


def _preview(agent: ShownAgent) -> object:
    return "(not born yet)" if agent.is_unborn else agent.describe(reads_parts=False)


def _in_transit(agent: ShownAgent) -> list[TransitMessage]:
    return [*(message for messages in agent.channels.values() for message in messages), *agent.outbox]


def _messages(messages: Sequence[TransitMessage]) -> str:
    if not messages:
        return "<p>nothing in transit</p>"
    rows = [(x.sender, x.receiver, "" if x.number is None else x.number, _message(x)) for x in messages]
    return table(("from", "to", "number", "message"), rows)


def _message(found: object) -> str:
    kind, message = getattr(found, "type", ""), getattr(found, "message", None)
    return f"{kind} {_text(message)}" if kind else _text(message)


def _last_line(error: str) -> str:
    """Return the line of a traceback that names the error."""
    return _text(error.rstrip().rpartition("\n")[2])


def _text(value: object) -> str:
    shown = value if isinstance(value, str) else json.dumps(_with_text_keys(value), ensure_ascii=False, default=str)
    return shown if len(shown) <= TEXT_MAX else shown[: TEXT_MAX - 1] + "…"


def _with_text_keys(value: object) -> object:
    """Make all keys text: JSON has no others."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list | tuple) else value


def heading(words: str) -> str:
    """Return a heading in a notebook's size."""
    return f"<h4>{escape(words)}</h4>"


def table(columns: Sequence[str], rows: Sequence[Iterable[object]], count: int | None = None) -> str:
    """Return the first rows of a table of `count` ones; all cells are escaped."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows[:ROWS_MAX])
    hidden = (len(rows) if count is None else count) - min(len(rows), ROWS_MAX)
    more = f"<p>… and {hidden:,} more</p>" if hidden > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
