"""Represents a complete cut, for `stop_when` and for display. A cut contains the agents' states and the other contents of their
checkpoints. The module renders both as HTML.

*The other contents of a checkpoint* are messages in transit, timers, spawns and dead letters. `Cut` and the snapshot reader show the same
contents but decode messages differently. So `Cut` and the snapshot reader each pass a decoder, which returns the type name and the decoded
message for a receiving agent and a payload.

*HTML* is for notebooks. All text from the store is escaped. Long tables are truncated with a note.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Protocol

import msgspec

from snapline.agent_runtime.agent import Agent, agent_type
from snapline.agent_runtime.effect_ledger import UNDO
from snapline.agent_runtime.fleet import Fleet, find_class, restored
from snapline.errors import StoreError
from snapline.messages.agent_commands import COMMAND_PREFIX
from snapline.messages.payloads import CREATE, plain_name, split_message, unwrapped
from snapline.storage.capture.saved_value_formats import plain, plain_value
from snapline.storage.capture.saved_values import FAILURES, ReadParts, read_record
from snapline.storage.disk.record import Buffer
from snapline.storage.packs.checkpoint import AgentCheckpoint, StatePart
from snapline.storage.store.store import Store

if TYPE_CHECKING:
    from snapline.storage.store.catalog import SnapshotSummary


Decode = Callable[[str, bytes], tuple[str, object]]

NS = 10**9


class TransitMessage(msgspec.Struct, frozen=True):
    """A message in transit, which the cut's states record as sent but not as consumed.

    Attributes:
        sender, receiver: ids of the sending and the receiving agent.
        number: sequence number of the message on its channel, or None while the message waits in the sender's outbox.
        message: the decoded message, or a dict of its fields if its class is not available. `message` is None for a creation message.
        type: type name of the message, or "" for a creation message.
    """

    sender: str
    receiver: str
    number: int | None
    message: object
    type: str = ""


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that its agent could not handle.

    Attributes:
        agent: id of the agent that could not handle the message.
        sender: sender of the message. The sender is the agent itself if the message came from a timer or can never arrive.
        message, type: as in `TransitMessage`, or None and "" if `on_start` failed.
        error: error of the last attempt.
        attempts: number of attempts to handle the message.
        time_s: time of the last attempt in seconds since 1970, or 0 if it is unknown.
        number: sequence number of the dead letter among all dead letters of the agent, over all its incarnations.
    """

    agent: str
    sender: str
    message: object
    type: str
    error: str
    attempts: int
    time_s: float
    number: int = 0


class PendingTimer(msgspec.Struct, frozen=True):
    """A timer that has not fired. `remaining_s` is its remaining delay when the agent took its checkpoint."""

    agent: str
    name: str
    remaining_s: float
    message: object
    type: str


class PendingTurn(msgspec.Struct, frozen=True):
    """An unfinished durable turn. `entries` is the number of entries in the turn's journal. `waits` names the request whose result the turn
    waits for, or is "" if the result has arrived."""

    agent: str
    sender: str
    message: object
    type: str
    entries: int
    waits: str


class PendingSpawn(msgspec.Struct, frozen=True):
    """A spawn request of `parent` that has not been granted yet. `kind` is the class of the new agent as "module:Class"."""

    parent: str
    agent: str
    kind: str


def messages_to(checkpoint: AgentCheckpoint, decode: Decode) -> Iterator[TransitMessage]:
    """Yield the messages in transit to an agent, grouped by channel and in order within each channel."""
    for sender, messages in checkpoint.in_transit.items():
        for message in messages:
            kind, decoded = decode(checkpoint.agent, message.payload)
            yield TransitMessage(sender, checkpoint.agent, message.number, decoded, kind)


def messages_parked(checkpoint: AgentCheckpoint, decode: Decode) -> Iterator[TransitMessage]:
    """Yield the messages in an agent's outbox, in order."""
    for parked in checkpoint.outbox:
        kind, decoded = decode(parked.receiver, parked.payload)
        yield TransitMessage(checkpoint.agent, parked.receiver, None, decoded, kind)


def dead_letters(checkpoint: AgentCheckpoint, decode: Decode) -> Iterator[DeadLetter]:
    """Yield the dead letters in a checkpoint, oldest first. A checkpoint contains only the agent's newest dead letters."""
    for number, dead_letter in zip(checkpoint.dead_letter_numbers.numbers, checkpoint.dead_letters, strict=True):
        kind, decoded = decode(checkpoint.agent, dead_letter.payload)
        time_s = dead_letter.time_ns / NS
        yield DeadLetter(
            checkpoint.agent, dead_letter.sender, decoded, kind, dead_letter.error, dead_letter.attempts, time_s, number
        )


def pending_timers(checkpoint: AgentCheckpoint, decode: Decode) -> Iterator[PendingTimer]:
    """Yield the agent's timers that have not fired."""
    for timer in checkpoint.own_timers:
        kind, decoded = decode(checkpoint.agent, timer.payload)
        yield PendingTimer(checkpoint.agent, timer.name, timer.remaining_ns / NS, decoded, kind)


def pending_turns(checkpoint: AgentCheckpoint, decode: Decode) -> Iterator[PendingTurn]:
    """Yield the agent's unfinished durable turn, if there is one."""
    turn = checkpoint.turn
    if turn is not None:
        kind, decoded = decode(checkpoint.agent, turn.payload)
        awaited = turn.awaited
        waits = "" if awaited is None else f"{awaited.kind} {awaited.name}".rstrip()
        yield PendingTurn(checkpoint.agent, turn.sender, decoded, kind, checkpoint.journal_entries, waits)


def open_effects(checkpoint: AgentCheckpoint) -> Iterator[str]:
    """Yield a line for each open effect of the agent, and a line if the agent is currently undoing effects."""
    for opened in checkpoint.open_effects:
        yield f"{checkpoint.agent}: {opened.name}"
    undone = [stashed for stashed in checkpoint.stash if stashed.payload.startswith(UNDO)]
    if undone or (checkpoint.turn is not None and checkpoint.turn.payload.startswith(UNDO)):
        yield f"{checkpoint.agent}: undoing"


def turns_with_effects(checkpoint: AgentCheckpoint) -> Iterator[str]:
    """Yield a line for the agent's unfinished durable turn if the turn has performed effects."""
    effects = checkpoint.effects
    if checkpoint.turn is not None and effects is not None and effects.made:
        yield f"{checkpoint.agent}: a turn that has done {', '.join(effect.name for effect in effects.made)}"


def deferred_messages(checkpoint: AgentCheckpoint, decode: Decode) -> Iterator[TransitMessage]:
    """Yield the messages that the agent has received but will handle only after its durable turn has ended. Operators' commands are no
    messages."""
    for stashed in checkpoint.stash:
        if stashed.payload[:1] == COMMAND_PREFIX:
            continue
        kind, decoded = decode(checkpoint.agent, stashed.payload)
        yield TransitMessage(stashed.sender, checkpoint.agent, None, decoded, kind)


def pending_spawns(checkpoint: AgentCheckpoint) -> Iterator[PendingSpawn]:
    """Yield the spawn requests of an agent that have not been granted yet."""
    for spawn in checkpoint.spawns:
        yield PendingSpawn(checkpoint.agent, spawn.agent, plain_name(spawn.kind))


def decode_plainly(receiver: str, payload: bytes) -> tuple[str, object]:
    """Decode a message to a dict of its fields, without using the message's class. If the body cannot be decoded, return a text with its
    size instead. The body of a dead letter may be impossible to decode."""
    if payload[:1] in (CREATE, b""):
        return "", None
    name, body = "", memoryview(payload)
    try:
        name, body = split_message(unwrapped(payload))
        return name, plain_value(read_record(body))
    except FAILURES:
        return name, f"<{len(body)} bytes>"


class Cut:
    """One complete epoch: the state of each agent, and all messages in transit.

    Attributes:
        epoch: number of the epoch.
        states: the agents' states, decoded when they are accessed. Agents that have not been created yet are missing.
        in_transit: messages in channels and outboxes, and messages that durable turns have deferred, in order within each channel.
        dead_letters: newest dead letters of each agent, oldest first.
        dead_letter_count: number of dead letters of all agents since the fleet's start, excluding those that a retry has handled.
        timers: total number of pending timers.
        pending_timers: all timers that have not fired.
        pending_turns: unfinished durable turns. For agents with an unfinished turn, `states` contains the state from before that turn.
        open_effects: unfinished effects and compensations, as text of the form `agent: effect`. While any effects are open, `stop_when`
            does not end the fleet.
        turns_with_effects: unfinished durable turns that have performed effects, as text of the form `agent: a turn that has done effect,
            effect`. `stop_when` waits some seconds for these turns to end.
        pending_spawns: agents whose spawn requests have not been granted yet. Once a request has been granted, the creation message is in
            transit instead.
    """

    def __init__(
        self,
        epoch: int,
        checkpoints: Mapping[str, AgentCheckpoint],
        fleet: Fleet,
        read_parts: ReadParts | None = None,
    ) -> None:
        self.epoch = epoch
        self._checkpoints = dict(checkpoints)
        self._fleet = fleet
        self.states: Mapping[str, object] = _States(self._checkpoints, fleet, read_parts or _no_parts)

    @property
    def in_transit(self) -> tuple[TransitMessage, ...]:
        return tuple(
            message
            for checkpoint in self._checkpoints.values()
            for messages in (messages_to, messages_parked, deferred_messages)
            for message in messages(checkpoint, self._decode)
        )

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        return tuple(x for checkpoint in self._checkpoints.values() for x in dead_letters(checkpoint, self._decode))

    @property
    def dead_letter_count(self) -> int:
        return sum(checkpoint.dead_letter_count for checkpoint in self._checkpoints.values())

    @property
    def timers(self) -> int:
        return len(self.pending_timers)

    @property
    def pending_timers(self) -> tuple[PendingTimer, ...]:
        return tuple(x for checkpoint in self._checkpoints.values() for x in pending_timers(checkpoint, self._decode))

    @property
    def pending_turns(self) -> tuple[PendingTurn, ...]:
        return tuple(x for checkpoint in self._checkpoints.values() for x in pending_turns(checkpoint, self._decode))

    @property
    def open_effects(self) -> tuple[str, ...]:
        return tuple(x for checkpoint in self._checkpoints.values() for x in open_effects(checkpoint))

    @property
    def turns_with_effects(self) -> tuple[str, ...]:
        return tuple(x for checkpoint in self._checkpoints.values() for x in turns_with_effects(checkpoint))

    @property
    def pending_spawns(self) -> tuple[PendingSpawn, ...]:
        return tuple(x for checkpoint in self._checkpoints.values() for x in pending_spawns(checkpoint))

    def __repr__(self) -> str:
        transit = sum(
            [
                len(checkpoint.outbox) + sum(map(len, checkpoint.in_transit.values()))
                for checkpoint in self._checkpoints.values()
            ]
        )
        return f"<Cut of epoch {self.epoch}: {len(self.states)} agents, {transit} messages in transit>"

    def describe(self, agent: str) -> object:
        """Return an agent's state as plain JSON values. For a large array, only the type and size are shown, and the data is not read.

        Raises:
            KeyError: If the cut contains no such agent.
        """
        return describe_state(self._checkpoints[agent])

    def _repr_html_(self) -> str:
        return of_cut(self)

    @property
    def is_quiet(self) -> bool:
        """Return whether the fleet is idle: no message is in transit, no timer is set, no durable turn is unfinished, and no agent is about
        to start."""
        return all(
            not checkpoint.in_transit
            and not checkpoint.outbox
            and not checkpoint.timers
            and not checkpoint.spawns
            and checkpoint.turn is None
            and not checkpoint.stash
            and (checkpoint.is_unborn or checkpoint.is_started)
            for checkpoint in self._checkpoints.values()
        )

    def _decode(self, receiver: str, payload: bytes) -> tuple[str, object]:
        checkpoint = self._checkpoints.get(receiver)
        if checkpoint is None or checkpoint.is_unborn:
            return decode_plainly(receiver, payload)
        return decode_for(find_class(self._fleet, checkpoint.kind), payload)


def decode_for(agent_class: type[Agent], payload: bytes) -> tuple[str, object]:
    """Decode a message as the type that its receiver's handler declares. If the receiver has no handler for the message, decode it to plain
    values. A message without a handler will become a dead letter."""
    with contextlib.suppress(Exception):
        name, body = split_message(unwrapped(payload))
        handler = agent_type(agent_class).handlers.get(name)
        if handler is not None and payload[:1] != CREATE:
            return name, handler.decoder.decode(body)
    return decode_plainly("", payload)


def _no_parts(agent: str, parts: Sequence[StatePart]) -> Sequence[Buffer]:
    if parts:
        raise StoreError(f"the state of agent {agent!r} has parts, and no store to read them from")
    return []


class _States(Mapping[str, object]):
    """Maps each agent's id to its state. When a state is accessed, `read_parts` reads the parts of the state that are stored outside the
    checkpoint."""

    def __init__(
        self,
        checkpoints: dict[str, AgentCheckpoint],
        fleet: Fleet,
        read_parts: ReadParts,
    ) -> None:
        self._read_parts = read_parts
        self._checkpoints = {agent: checkpoint for agent, checkpoint in checkpoints.items() if not checkpoint.is_unborn}
        self._fleet = fleet
        self._decoded: dict[str, object] = {}

    def __getitem__(self, agent: str) -> object:
        if agent not in self._decoded:
            checkpoint = self._checkpoints[agent]
            contents = self._read_parts(agent, checkpoint.parts)
            self._decoded[agent] = restored(self._fleet, checkpoint, contents).state
        return self._decoded[agent]

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkpoints)

    def __len__(self) -> int:
        return len(self._checkpoints)


def load_cut(store: Store, epoch: int, fleet: Fleet) -> Cut:
    """Read a complete epoch from the store.

    Raises:
        DamagedDataError: If data in the epoch is damaged.
        NotFoundError: If the store does not contain this epoch.
    """
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    checkpoints = {checkpoint.agent: checkpoint for checkpoint in store.read_checkpoints(manifest)}
    return Cut(epoch, checkpoints, fleet, store.part_reader(manifest).read)


def describe_state(checkpoint: AgentCheckpoint, read_parts: ReadParts | None = None) -> object:
    """Return a state for display, without using the state's classes. Without `read_parts`, only the type and size of large parts are shown.

    Raises:
        DamagedDataError: If a part is damaged.
    """
    if not checkpoint.state:
        return None
    read = None if read_parts is None else lambda part: read_parts(checkpoint.agent, [part])[0]
    try:
        return plain(checkpoint.state, checkpoint.parts, read)
    except FAILURES as error:
        return f"<{len(checkpoint.state)} bytes that only its own class can read: {error}>"


ROWS_MAX = 50
"""Largest number of rows shown of one table, which is more than fits on a screen."""

TEXT_MAX = 200
"""Largest number of characters shown in a table cell."""


class ShownAgent(Protocol):
    """Interface of `SavedAgent` that the HTML functions use."""

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
    """Interface of `Cut` that the HTML functions use."""

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
    """Interface of `Snapshot` that the HTML functions use."""

    epoch: int
    fleet: str
    created: str
    protocol: str
    root: str

    @property
    def agents(self) -> Mapping[str, ShownAgent]: ...


def of_store(location: str, summaries: Sequence["SnapshotSummary"]) -> str:
    """Return HTML that shows the newest snapshots of a store, oldest first."""
    newest = summaries[-ROWS_MAX:]
    rows = [
        (x.epoch, x.root[:12], x.created, x.trigger, x.agent_count, x.channel_state_messages, x.damage) for x in newest
    ]
    columns = ("epoch", "root", "created", "trigger", "agents", "in transit", "damage")
    hidden = len(summaries) - len(newest)
    more = f"<p>… and {hidden:,} older ones</p>" if hidden else ""
    return f"<h4>Store {escape(location)}</h4>{table(columns, rows)}{more}"


def of_snapshot(snapshot: ShownSnapshot) -> str:
    """Return HTML that shows a snapshot's agents and messages in transit. Only the first 50 agents are read, without their large arrays."""
    names = list(snapshot.agents)[:ROWS_MAX]
    shown = [snapshot.agents[name] for name in names]
    agents = [(x.agent, x.host, x.incarnation, _text(_preview(x))) for x in shown]
    transit = [message for agent in shown for message in _in_transit(agent)]
    dead_letters = [
        (x.agent, x.sender, _message(x), _last_line(x.error)) for agent in shown for x in agent.dead_letters
    ]
    parts = [
        f"<h4>Snapshot {snapshot.epoch} of fleet {escape(snapshot.fleet)}</h4>",
        f"<p>created {escape(snapshot.created)}, protocol {escape(snapshot.protocol)}, root {snapshot.root[:12]}</p>",
        table(("agent", "host", "incarnation", "state"), agents, len(snapshot.agents)),
        _messages(transit),
    ]
    if dead_letters:
        parts.append(table(("dead letter of", "from", "message", "error"), dead_letters))
    if len(names) < len(snapshot.agents):
        parts.append(f"<p>messages and dead letters: of the first {len(names)} agents</p>")
    return "".join(parts)


def of_cut(cut: ShownCut) -> str:
    """Return HTML that shows a cut's agents and messages in transit. States are shown only for the first 50 agents."""
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
        dead_letters = [(x.agent, x.sender, _message(x), _last_line(x.error)) for x in cut.dead_letters]
        parts.append(table(("dead letter of", "from", "message", "error"), dead_letters))
    return "".join(parts)


def of_agent(agent: ShownAgent) -> str:
    """Return HTML that shows one agent: the fields of its state with the first values of arrays, its messages, timers and dead letters."""
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
        dead_letters = [(x.sender, _message(x), _last_line(x.error), x.attempts) for x in agent.dead_letters]
        parts.append(table(("dead letter from", "message", "error", "attempts"), dead_letters, agent.dead_letter_count))
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
    """Return the last line of a traceback, which contains the error message."""
    return _text(error.rstrip().rpartition("\n")[2])


def _text(value: object) -> str:
    shown = value if isinstance(value, str) else json.dumps(_with_text_keys(value), ensure_ascii=False, default=str)
    return shown if len(shown) <= TEXT_MAX else shown[: TEXT_MAX - 1] + "…"


def _with_text_keys(value: object) -> object:
    """Convert all dictionary keys to text, because JSON allows only text keys."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list | tuple) else value


def heading(words: str) -> str:
    """Return an HTML heading of a suitable size for a notebook."""
    return f"<h4>{escape(words)}</h4>"


def table(columns: Sequence[str], rows: Sequence[Iterable[object]], count: int | None = None) -> str:
    """Return HTML for the first rows of a table that has `count` rows. All cells are escaped."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows[:ROWS_MAX])
    hidden = (len(rows) if count is None else count) - min(len(rows), ROWS_MAX)
    more = f"<p>… and {hidden:,} more</p>" if hidden > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
