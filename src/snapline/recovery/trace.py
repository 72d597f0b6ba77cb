"""The trace format: the checkpoints, sends and receives of all agents in one global order, as lines of JSON.

Theory of operation
-------------------
A trace is a log of one execution. Each line is one JSON object, as in the following examples.

    {"snapline_trace": 1, "agents": ["a", "b"]}                            the header; optional, only in the first line
    {"event": "checkpoint", "agent": "a", "index": 1, "kind": "basic"}     index and kind ("basic", "forced") are optional
    {"event": "send", "agent": "a", "message": "m1", "to": "b"}
    {"event": "receive", "agent": "b", "message": "m1"}
    {"event": "recovery", "line": {"a": 1, "b": null}}

The order of the lines respects each agent's own order, and a message is sent before it is received. Every agent has an initial checkpoint
with the number 0, which has no line. Later checkpoints are numbered 1, 2, 3 …. Unknown fields and blank lines are ignored. An unknown event
is an error, since ignoring it would change the execution.

A `recovery` line undoes, for each agent that it names, all events after the named checkpoint. An agent keeps its live state if its entry is
null or missing. The numbers of undone checkpoints are reused. An undone send is removed, and its message id may be reused. If a receive is
undone, its message is in transit again. A `Trace` contains only the events that no recovery has undone, because later failures can return
only to states of that execution (G3). A recovery line that keeps a receive but undoes its send creates an orphan (G1), so it is rejected.

For example, take the following trace.

    {"snapline_trace": 1, "agents": ["a", "b"]}
    {"event": "checkpoint", "agent": "a"}
    {"event": "send", "agent": "a", "message": "m1", "to": "b"}
    {"event": "receive", "agent": "b", "message": "m1"}
    {"event": "checkpoint", "agent": "b", "index": 1, "kind": "forced"}
    {"event": "send", "agent": "b", "message": "m2", "to": "a"}
    {"event": "receive", "agent": "a", "message": "m2"}

For the trace above, `snapline analyze TRACE --failed b -o json` prints the following document.

    {
      "apiVersion": "snapline/v1", "kind": "TraceAnalysis",
      "agents": ["a", "b"],
      "failed": ["b"],
      "recovery_line": {"a": 1, "b": 0},
      "rollback": {"a": {"checkpoints": 0, "events": 2}, "b": {"checkpoints": 1, "events": 2}},
      "in_transit": [],
      "domino": {"rolled_back": 2, "depth": 2, "reached_initial": ["b"]},
      "useless": {"b": [1]},
      "obsolete": {"a": [0], "b": [1]},
      "checkpoints": {"basic": 1, "forced": 1}
    }

A trace is read in one pass. Reading takes time linear in the number of lines, even with recoveries, because each event is undone at most
once.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NoReturn, assert_never

import msgspec

from snapline.errors import TraceError

FORMAT = 1

EVENTS = ("checkpoint", "send", "receive", "recovery")

Kind = Literal["basic", "forced"]


class CheckpointTaken(
    msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="checkpoint", rename={"number": "index"}
):
    """An agent saved its state as the checkpoint `number`."""

    agent: str
    number: int
    kind: Kind = "basic"


class MessageSent(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="send"):
    """An agent sent a message. `message` is the message's id. An id may be reused only if its send was undone."""

    agent: str
    message: str
    to: str


class MessageReceived(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="receive"):
    """A turn of `agent` consumed the message with the id `message`."""

    agent: str
    message: str


class Recovery(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="recovery"):
    """A recovery returned the agents in `line` to checkpoints. If an agent's entry is None or missing, the agent kept its live state."""

    line: dict[str, int | None]


class Header(msgspec.Struct, frozen=True, gc=False):
    """The first line of a trace, with the format and the agents that are known at the start."""

    snapline_trace: int = FORMAT
    agents: list[str] = []


Event = CheckpointTaken | MessageSent | MessageReceived


class Trace(msgspec.Struct, frozen=True):
    """An execution without the events that recoveries have undone.

    Attributes:
        agents: the agents in the header, then the other agents in the order of their first event.
        events: the events in the global order. Every receive comes after its send. Each agent's checkpoints are numbered 1, 2, 3 ….
    """

    agents: list[str]
    events: list[Event]


class _CheckpointLine(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="checkpoint"):
    """The trace line of a checkpoint. The checkpoint number is optional."""

    agent: str
    index: int | None = None
    kind: Kind = "basic"


_Line = _CheckpointLine | MessageSent | MessageReceived | Recovery

_encoder = msgspec.json.Encoder()
_decode = msgspec.json.Decoder(_Line).decode


def encode(item: Event | Recovery | Header) -> bytes:
    """Return `item` as a line of a trace, including the newline."""
    return _encoder.encode(item) + b"\n"


def read_trace(lines: Iterable[bytes]) -> Trace:
    """Read a trace from its lines. The lines may end with newlines.

    Raises:
        TraceError: If a line is invalid or contradicts earlier lines. The error message names the lines concerned.
    """
    return _read(lines).trace()


def read_items(lines: Iterable[bytes]) -> list[Event | Recovery]:
    """Return all items of a trace in order, including recoveries and undone events.

    Raises:
        TraceError: If a line is invalid or contradicts earlier lines.
    """
    return _read(lines).items


def _read(lines: Iterable[bytes]) -> "_Reader":
    reader = _Reader()
    for number, line in enumerate(lines, 1):
        try:
            item = _decode(line)
        except msgspec.DecodeError as error:
            reader.read_other(number, line, error)
        else:
            reader.read(number, item)
    return reader


class _History:
    """The events of one agent that have been read so far and that no recovery has undone.

    Attributes:
        starts: for each checkpoint number, how many of the agent's events precede or equal that checkpoint.
    """

    __slots__ = ("positions", "starts")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.starts = [0]


class _Reader:
    """State of a trace reader between two lines.

    Attributes:
        items: all items read so far, including recoveries.
        _events: all events read so far, including undone events, but no recoveries. A *position* is an index into this list.
        _numbers: for each position, the number of the event's line in the trace.
        _sent, _received: for each message id, the position of the send or receive. An undone send or receive has no entry.
        _is_empty: whether only blank lines have been read so far.
    """

    def __init__(self) -> None:
        self.items: list[Event | Recovery] = []
        self._events: list[Event] = []
        self._numbers: list[int] = []
        self._histories: dict[str, _History] = {}
        self._sent: dict[str, int] = {}
        self._received: dict[str, int] = {}
        self._undone: set[int] = set()
        self._is_empty = True

    def trace(self) -> Trace:
        """Return the trace as read so far."""
        events = self._events
        if self._undone:
            events = [event for position, event in enumerate(events) if position not in self._undone]
        return Trace(list(self._histories), events)

    def read(self, number: int, item: _Line) -> None:
        """Add the item that line `number` of the trace contains."""
        self._is_empty = False
        match item:
            case MessageSent():
                self._read_send(number, item)
            case MessageReceived():
                self._read_receive(number, item)
            case _CheckpointLine():
                self._read_checkpoint(number, item)
            case Recovery():
                self._read_recovery(number, item.line)
            case _:
                assert_never(item)

    def read_other(self, number: int, line: bytes, error: msgspec.DecodeError) -> None:
        """Read a line that is not an event. The line may be blank, the header, or invalid."""
        if not line.strip():
            return
        try:
            fields = msgspec.json.decode(line)
        except msgspec.DecodeError:
            _fail(number, f"no JSON object: {error}")
        if not isinstance(fields, dict):
            _fail(number, "no JSON object: a trace has one object a line")
        if "snapline_trace" in fields:
            self._read_header(number, fields)
        elif "event" not in fields:
            _fail(number, f'no "event": name one of {", ".join(EVENTS)}')
        elif fields["event"] not in EVENTS:
            _fail(number, f"unknown event {fields['event']!r}: this release knows {', '.join(EVENTS)}")
        else:
            _fail(number, f"{fields['event']}: {error}")

    def _read_header(self, number: int, fields: Mapping[str, object]) -> None:
        if not self._is_empty:
            _fail(number, "the header belongs in the first line")
        version = fields["snapline_trace"]
        if type(version) is not int or version != FORMAT:
            _fail(number, f"this trace has format {version!r}, this release reads {FORMAT}")
        try:
            header = msgspec.convert(fields, Header)
        except msgspec.ValidationError as error:
            _fail(number, f"header: {error}")
        for agent in header.agents:
            if agent in self._histories:
                _fail(number, f"the header names agent {agent!r} twice: name each once")
            self._history(agent)
        self._is_empty = False

    def _read_checkpoint(self, number: int, line: _CheckpointLine) -> None:
        history = self._history(line.agent)
        due = len(history.starts)
        if line.index is not None and line.index != due:
            before = "its initial one has no line"
            if due > 1:
                before = f"line {self._numbers[history.positions[history.starts[-1] - 1]]} is its checkpoint {due - 1}"
            _fail(number, f"index {line.index} of agent {line.agent!r} is out of order: {before}, so {due} is due")
        self._add(number, CheckpointTaken(line.agent, due, line.kind), history)
        history.starts.append(len(history.positions))

    def _read_send(self, number: int, event: MessageSent) -> None:
        earlier = self._sent.get(event.message)
        if earlier is not None:
            _fail(
                number,
                f"message {event.message!r} was sent before, in line {self._numbers[earlier]}: "
                "give each message its own id",
            )
        self._sent[event.message] = len(self._events)
        self._add(number, event, self._history(event.agent))
        self._history(event.to)

    def _read_receive(self, number: int, event: MessageReceived) -> None:
        message = event.message
        sent = self._sent.get(message)
        if sent is None:
            _fail(number, f"{event.agent!r} receives message {message!r}, which no line before sends")
        send = self._events[sent]
        if isinstance(send, MessageSent) and send.to != event.agent:
            _fail(
                number,
                f"{event.agent!r} receives message {message!r}, which line {self._numbers[sent]} sends to {send.to!r}",
            )
        earlier = self._received.get(message)
        if earlier is not None:
            _fail(number, f"message {message!r} was received before, in line {self._numbers[earlier]}")
        self._received[message] = len(self._events)
        self._add(number, event, self._history(event.agent))

    def _read_recovery(self, number: int, line: Mapping[str, int | None]) -> None:
        undone = []
        for agent, checkpoint in line.items():
            history = self._history(agent)
            if checkpoint is None:
                continue
            last = len(history.starts) - 1
            if not 0 <= checkpoint <= last:
                _fail(number, f"agent {agent!r} has no checkpoint {checkpoint} here: its last one is {last}")
            start = history.starts[checkpoint]
            undone += history.positions[start:]
            del history.positions[start:], history.starts[checkpoint + 1 :]
        self._undo(number, undone)
        self.items.append(Recovery(dict(line)))

    def _undo(self, number: int, positions: list[int]) -> None:
        self._undone.update(positions)
        for position in positions:
            event = self._events[position]
            if isinstance(event, MessageReceived):
                del self._received[event.message]
        for position in positions:
            event = self._events[position]
            if not isinstance(event, MessageSent):
                continue
            received = self._received.get(event.message)
            if received is not None:
                _fail(
                    number,
                    f"message {event.message!r} would be an orphan: the line undoes its send, line "
                    f"{self._numbers[position]}, and keeps its receive, line {self._numbers[received]}",
                )
            del self._sent[event.message]

    def _history(self, agent: str) -> _History:
        history = self._histories.get(agent)
        if history is None:
            history = self._histories[agent] = _History()
        return history

    def _add(self, number: int, event: Event, history: _History) -> None:
        history.positions.append(len(self._events))
        self._events.append(event)
        self.items.append(event)
        self._numbers.append(number)


def _fail(number: int, sentence: str) -> NoReturn:
    raise TraceError(f"line {number}: {sentence}")
