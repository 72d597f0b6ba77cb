"""Traces of hosts merged into one order, unchanged: with markers and undone events.

`merge.py` merges the same lines into one execution for analysis, and needs complete traces. This module accepts parts: traces that begin in
the middle, such as the last seconds of a running fleet, and files whose ends are lost. Missing events are not guessed: a message whose send was
not traced has no send. As in `merge.py`, plans follow each other with a `Recovery` between them, the union of the hosts' lines.
Messages keep the names that hosts gave them. After a rollback a name is used again, and then means the last send with this name.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never

import msgspec

from snapline.recovery.host_trace import (
    CheckpointLine,
    HostLine,
    PlanLine,
    ReceiveLine,
    ReceiveMarkerLine,
    SendLine,
    SendMarkerLine,
    interleaved,
    numbered_lines,
)
from snapline.recovery.trace import CheckpointTaken, Event, MessageReceived, MessageSent, Recovery


class TracedMarkerSend(msgspec.Struct, frozen=True, gc=False):
    """A marker item has left its host. `message` names it."""

    host: str
    message: str
    to: str
    epoch: int


class MarkerCame(msgspec.Struct, frozen=True, gc=False):
    """A marker received by another host."""

    host: str
    message: str
    sender: str
    epoch: int


Marker = TracedMarkerSend | MarkerCame


class TracedEvent(msgspec.Struct, frozen=True, gc=False):
    """A traced event.

    Attributes:
        host: host of the event; "" if unknown, and for a recovery.
        time_ns: time since 1970 by the clock of that host; 0 if unknown.
        epochs: epochs that a checkpoint records. plan: number of a recovery's plan.
    """

    event: Event | Marker | Recovery
    host: str = ""
    time_ns: int = 0
    epochs: tuple[int, ...] = ()
    plan: int = 0


class HostPart(msgspec.Struct, frozen=True):
    """Trace of one run of a host, in its order; plan lines precede the events under them."""

    host: str
    lines: Sequence[PlanLine | HostLine]


def read_part(name: str, host: str, lines: Iterable[bytes]) -> HostPart:
    """Read the file of a host. `name`: name of the file, for errors.

    Raises:
        TraceError: a line is invalid. The last line may be incomplete.
    """
    return HostPart(host, [line for _, line in numbered_lines(name, lines)])


def gather(parts: Iterable[HostPart]) -> list[TracedEvent]:
    """Return all events, in one order.

    Raises:
        TraceError: the parts contradict each other.
    """
    plans: dict[int, list[_Section]] = {}
    for part in parts:
        for plan, section in _sections(part).items():
            plans.setdefault(plan, []).append(section)
    return list(_events(plans))


class _Section:
    """Events of one host under one plan. `line` None: the trace began under this plan."""

    __slots__ = ("host", "line", "lines", "time_ns")

    def __init__(self, host: str) -> None:
        self.host = host
        self.lines: deque[HostLine] = deque()
        self.line: dict[str, int] | None = None
        self.time_ns = 0


def _sections(part: HostPart) -> dict[int, _Section]:
    """Return the sections by plan, in their order. Lines before the first plan line belong to the plan before it."""
    sections: dict[int, _Section] = {}
    here = _Section(part.host)
    for line in part.lines:
        if not isinstance(line, PlanLine):
            here.lines.append(line)
            continue
        if not sections and here.lines:
            sections[line.plan - 1] = here
        here = sections.setdefault(line.plan, _Section(part.host))
        if line.line:
            here.line, here.time_ns = {**(here.line or {}), **line.line}, line.time_ns
    return sections or {0: here}


def _events(plans: Mapping[int, Sequence[_Section]]) -> Iterator[TracedEvent]:
    is_first = True
    for plan in sorted(plans):
        sections = plans[plan]
        line = {agent: number for section in sections for agent, number in (section.line or {}).items()}
        if line and not is_first:
            time_ns = max(section.time_ns for section in sections)
            yield TracedEvent(Recovery(dict(line)), time_ns=time_ns, plan=plan)
        is_first = False
        yield from _under_plan(sections)


def _under_plan(sections: Sequence[_Section]) -> Iterator[TracedEvent]:
    homes: dict[int, str] = {}
    for section in sections:
        homes.update(dict.fromkeys(map(id, section.lines), section.host))
    missing = _Missing(section.lines for section in sections)
    for line in interleaved([section.lines for section in sections], missing):
        missing.take(line)
        yield _traced(line, homes[id(line)])


class _Missing:
    """Messages that a receive need not wait for: sent messages, and messages whose send was not traced."""

    def __init__(self, queues: Iterable[Iterable[HostLine]]) -> None:
        self._waiting = {
            line.message for queue in queues for line in queue if isinstance(line, SendLine | SendMarkerLine)
        }

    def __contains__(self, message: object) -> bool:
        return message not in self._waiting

    def take(self, line: HostLine) -> None:
        if isinstance(line, SendLine | SendMarkerLine):
            self._waiting.discard(line.message)


def _traced(line: HostLine, host: str) -> TracedEvent:
    match line:
        case CheckpointLine():
            checkpoint = CheckpointTaken(line.agent, line.index, "forced" if line.kind == "forced" else "basic")
            return TracedEvent(checkpoint, host, line.time_ns, line.epochs)
        case SendLine():
            event: Event | Marker = MessageSent(line.agent, line.message, line.to)
        case ReceiveLine():
            event = MessageReceived(line.agent, line.message)
        case SendMarkerLine():
            event = TracedMarkerSend(line.host, line.message, line.to, line.epoch)
        case ReceiveMarkerLine():
            event = MarkerCame(line.host, line.message, line.sender, line.epoch)
        case _:
            assert_never(line)
    return TracedEvent(event, host, line.time_ns)
