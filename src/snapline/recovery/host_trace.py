"""Lines in the trace of a host, and the order of the lines of several hosts.

    {"event": "plan", "plan": 2, "line": {"a": 5}, "time_ns": …}                agents here begin, or go back
    {"event": "checkpoint", "agent": "a", "index": 6, "kind": "coordinated", "epochs": [4], "time_ns": …}
    {"event": "send", "agent": "a", "message": "a>b:17", "to": "b", "time_ns": …}
    {"event": "receive", "agent": "b", "message": "a>b:17", "time_ns": …}
    {"event": "send_marker", "host": "h1", "to": "h2", "epoch": 4, "time_ns": …}     for all channels of a link together
    {"event": "receive_marker", "host": "h2", "from": "h1", "epoch": 4, "time_ns": …}

Lines are in the order of events on that host. Between hosts a message is sent before it is received; otherwise clocks
decide. Markers are not events of agents: an analysis of a trace skips them.
"""

import heapq
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Literal, TypeVar

import msgspec

from snapline.errors import TraceError


class PlanLine(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="plan"):
    """Start of a plan: the agents of `line` continue from these checkpoints; other agents continue from their current state."""

    plan: int
    line: dict[str, int]
    time_ns: int = 0


class CheckpointLine(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="checkpoint"):
    """Checkpoint of an agent. `epochs`: the epochs that it records."""

    agent: str
    index: int
    kind: Literal["basic", "forced", "coordinated"] = "basic"
    time_ns: int = 0
    epochs: tuple[int, ...] = ()


class SendLine(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="send"):
    """A message has left its agent's outbox."""

    agent: str
    message: str
    to: str
    time_ns: int = 0


class ReceiveLine(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="receive"):
    """A turn has consumed a message."""

    agent: str
    message: str
    time_ns: int = 0


class SendMarkerLine(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="send_marker"):
    """All agents of `host` have recorded: a marker item goes on the link to another host."""

    host: str
    to: str
    epoch: int
    time_ns: int = 0

    @property
    def message(self) -> str:
        """Identity that the two ends share."""
        return f"{self.host}>{self.to}#{self.epoch}"


class ReceiveMarkerLine(
    msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="receive_marker", rename={"sender": "from"}
):
    """A marker item was received."""

    host: str
    sender: str
    epoch: int
    time_ns: int = 0

    @property
    def message(self) -> str:
        """Identity that the two ends share."""
        return f"{self.sender}>{self.host}#{self.epoch}"


EventLine = CheckpointLine | SendLine | ReceiveLine
MarkerLine = SendMarkerLine | ReceiveMarkerLine
HostLine = EventLine | MarkerLine

Line = TypeVar("Line", bound=HostLine)

decode_line = msgspec.json.Decoder(PlanLine | HostLine).decode


def numbered_lines(name: str, lines: Iterable[bytes]) -> Iterator[tuple[int, PlanLine | HostLine]]:
    """Yield the lines of a host's file with their numbers. A killed process may leave an incomplete last line. `name`: file name, for errors.

    Raises:
        TraceError: a line is invalid.
    """
    torn: tuple[int, msgspec.DecodeError] | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if torn is not None:
            raise _no_line(name, *torn) from torn[1]
        try:
            yield number, decode_line(line)
        except msgspec.DecodeError as error:
            torn = number, error
    if torn is not None and isinstance(torn[1], msgspec.ValidationError):  # valid JSON, but not a line of a trace
        raise _no_line(name, *torn) from torn[1]


def _no_line(name: str, number: int, error: msgspec.DecodeError) -> TraceError:
    return TraceError(f"{name}: line {number}: no line of a host's trace: {error}")


def interleaved(queues: Sequence[deque[Line]], sent: Container[str]) -> Iterator[Line]:
    """Yield all lines: each queue in its order, each receive after its send, else the oldest first.

    The caller must add each send to `sent` before it requests the next line.

    Raises:
        TraceError: the receive of a message precedes its send.
    """
    ready: list[tuple[int, int]] = []
    awaited: dict[str, int] = {}
    moved = list(range(len(queues)))
    while True:
        for index in moved:
            if queues[index]:
                head = queues[index][0]
                if isinstance(head, ReceiveLine | ReceiveMarkerLine) and head.message not in sent:
                    awaited[head.message] = index
                else:
                    heapq.heappush(ready, (head.time_ns, index))
        if not ready:
            break
        _, index = heapq.heappop(ready)
        line = queues[index].popleft()
        yield line
        moved = [index]
        if isinstance(line, SendLine | SendMarkerLine) and line.message in awaited:
            moved.append(awaited.pop(line.message))
    if awaited:
        names = ", ".join(map(repr, awaited))
        raise TraceError(
            f"messages {names}: each is received before its send could come: the files contradict each other"
        )
