"""Merges the traces written by a fleet's hosts into one trace of the whole fleet.

Theory of operation
-------------------
Each run of a host process writes its own trace file. The file contains `checkpoint`, `send` and `receive` lines with wall-clock times, in
the order in which the events happened on that host. When agents start on this host or return to a checkpoint, the file contains a line
`{"event":"plan","plan":n,"line":{agent: checkpoint}}`. The lines between two consecutive plan lines of a file form a *section*. Each
recovery plan is committed once for the whole fleet, and from then on messages of older plans are rejected (G9). So in the merged trace, all
sections of plan n come before all sections of plan n + 1. A `recovery` line separates the sections of two plans. This line is the union of
the hosts' plan lines for the later plan.

The merge interleaves the sections of one plan. The lines of each file stay in order, each send precedes its receive, and otherwise the line
with the earliest time comes first. Clocks have no other effect: with different clocks, the result is another valid order of the same
execution (Lamport 1978, section 1).

A channel's message numbers are reused after a rollback, so a message id in the merged trace contains the plan under which the message was
sent, for example `a/2>b:5`. A message that is delivered again after a rollback keeps its id. The merge applies every rollback, so it knows
which sends a recovery line keeps.

If a process is killed, the end of its trace file is lost, but every line before a durable checkpoint is preserved. The merge handles the
resulting gaps by the following rules.

- A receive whose send is missing is omitted together with all events that depend on it. Dependent events are the agent's later events, and
  the receives of messages that the agent has sent in these events. The recovery has undone the omitted events, because otherwise an orphan
  would remain. If a recovery line keeps a later checkpoint of an agent with omitted events, a file is missing, which is an error.
- An incomplete last line of a file is dropped.
- An agent may be missing from all lines of a plan because it was not placed, or because the host that should have loaded it died too early.
  If an agent that is missing from the plan has events under it, the agent was created again, so it returns to checkpoint 0. If an agent
  that is missing from the plan has no events under it, the agent keeps its latest state that has received no undone message. If the agent
  had left the fleet, that state is its last one. If the agent's creation is undone, there is no state to keep. If the agent was not loaded,
  its true state is not later than that state, and the next plan shows it.
- If a recovery line contains a checkpoint that was not traced, the checkpoint is the agent's next one, after all its traced events. A
  tentative checkpoint is traced only when its round commits, and the host may have died in between.

A checkpoint number may be missing from the trace because the agent's state could not be saved, or because the agent did not exist yet. To
keep the numbering, the merge inserts the missing checkpoint directly after the previous checkpoint, with the same state. This is safe
because no rollback returns to a later state before the agent's next saved checkpoint.

Traces of sampled messages are merged in the same way. The result describes only the sampled messages. Markers are skipped.

Parts of traces
---------------
`merge_traces` creates one execution for analysis, and requires complete traces. `gather` only orders the lines of all hosts and keeps all
of them, including markers and undone events. `gather` also accepts incomplete traces, such as the last few seconds of a running fleet, and
files whose ends are lost. If the send of a message was not traced, `gather` returns the receive without a send. As in a merge, a `Recovery`
between two plans contains the union of the hosts' plan lines. Messages keep the names that hosts gave them. A name may be reused after a
rollback, and then refers to the last message sent with this name.

Lines in the trace of a host
----------------------------

    {"event": "plan", "plan": 2, "line": {"a": 5}, "time_ns": …}                agents on this host begin, or return to a checkpoint
    {"event": "checkpoint", "agent": "a", "index": 6, "kind": "coordinated", "epochs": [4], "time_ns": …}
    {"event": "send", "agent": "a", "message": "a>b:17", "to": "b", "time_ns": …}
    {"event": "receive", "agent": "b", "message": "a>b:17", "time_ns": …}
    {"event": "send_marker", "host": "h1", "to": "h2", "epoch": 4, "time_ns": …}     one marker for all channels of a link
    {"event": "receive_marker", "host": "h2", "from": "h1", "epoch": 4, "time_ns": …}

The lines are in the order of the events on that host. Across hosts, the send of a message precedes its receive, and otherwise clocks
determine the order. Markers are sent by hosts and not by agents, so the analysis of a trace ignores them.
"""

import heapq
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeVar, assert_never

import msgspec

from snapline.errors import TraceError
from snapline.recovery.trace import CheckpointTaken, Event, Header, MessageReceived, MessageSent, Recovery, encode


class PlanLine(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="plan"):
    """A recovery plan has started on this host. The agents in `line` start from these checkpoints, and other agents continue from their
    current state."""

    plan: int
    line: dict[str, int]
    time_ns: int = 0


class CheckpointLine(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="checkpoint"):
    """An agent took a checkpoint. `epochs` lists the epochs that contain the checkpoint."""

    agent: str
    index: int
    kind: Literal["basic", "forced", "coordinated"] = "basic"
    time_ns: int = 0
    epochs: tuple[int, ...] = ()


class SendLine(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="send"):
    """A message of an agent has left the agent's outbox."""

    agent: str
    message: str
    to: str
    time_ns: int = 0


class ReceiveLine(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="receive"):
    """A turn of an agent has consumed a message."""

    agent: str
    message: str
    time_ns: int = 0


class SendMarkerLine(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="send_marker"):
    """A host has sent a marker on the link to another host, because all its agents have recorded their states."""

    host: str
    to: str
    epoch: int
    time_ns: int = 0

    @property
    def message(self) -> str:
        """Return the name of the marker, which is the same on both hosts."""
        return f"{self.host}>{self.to}#{self.epoch}"


class ReceiveMarkerLine(
    msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="receive_marker", rename={"sender": "from"}
):
    """A host has received a marker from another host."""

    host: str
    sender: str
    epoch: int
    time_ns: int = 0

    @property
    def message(self) -> str:
        """Return the name of the marker, which is the same on both hosts."""
        return f"{self.sender}>{self.host}#{self.epoch}"


EventLine = CheckpointLine | SendLine | ReceiveLine
MarkerLine = SendMarkerLine | ReceiveMarkerLine
HostLine = EventLine | MarkerLine

Line = TypeVar("Line", bound=HostLine)

decode_line = msgspec.json.Decoder(PlanLine | HostLine).decode


def numbered_lines(name: str, lines: Iterable[bytes]) -> Iterator[tuple[int, PlanLine | HostLine]]:
    """Parse the lines of a host's trace file, and yield each line with its number. The last line may be incomplete because the process may
    have been killed. An incomplete last line is omitted. Error messages contain the file name `name`.

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
    if torn is not None and isinstance(
        torn[1], msgspec.ValidationError
    ):  # the JSON is valid, but it is not a trace line
        raise _no_line(name, *torn) from torn[1]


def _no_line(name: str, number: int, error: msgspec.DecodeError) -> TraceError:
    return TraceError(f"{name}: line {number}: no line of a host's trace: {error}")


def interleaved(queues: Sequence[deque[Line]], sent: Container[str]) -> Iterator[Line]:
    """Yield all lines. The lines of each queue stay in order, each send precedes its receive, and otherwise the line with the earliest time
    comes first.

    The caller must add each yielded send to `sent` before it requests the next line.

    Raises:
        TraceError: If the order of the files implies that a message was received before it was sent.
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


class Merged(msgspec.Struct, frozen=True):
    """The merged trace of a fleet.

    Attributes:
        items: the header, the events and the recoveries, in the order of the trace (see `recovery/trace.py`).
        omitted: for each agent whose last events are omitted although no recovery has undone them, the message (such as `a>b:5`) whose send
            is missing. The mapping is empty if all hosts ended normally.
    """

    items: list[Header | Event | Recovery]
    omitted: dict[str, str] = msgspec.field(name="left_out")

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the trace, each as JSON with a newline."""
        return map(encode, self.items)


def merge_traces(files: Mapping[str, Iterable[bytes]]) -> Merged:
    """Merge the traces of all hosts.

    Args:
        files: for each file name, the lines of the file, which may end with newlines. Error messages contain the file name. Pass all files
            of one fleet, starting with the fleet's first start.

    Raises:
        TraceError: If a line is invalid or contradicts other lines, or if a host's file is missing.
    """
    sections: dict[int, list[_Section]] = {}
    for name in sorted(files):
        for section in _sections(name, files[name]):
            sections.setdefault(section.plan, []).append(section)
    merger = _Merger()
    for plan in sorted(sections):
        merger.add(plan, sections[plan])
    return merger.merged()


# -- files --------------------------------------------------------------------------------------------------------------


class _Section:
    """The events of one host process under one recovery plan."""

    __slots__ = ("events", "file", "line", "plan")

    def __init__(self, file: str, plan: int, line: dict[str, int]) -> None:
        self.file = file
        self.plan = plan
        self.line = line
        self.events: list[EventLine] = []


def _sections(name: str, lines: Iterable[bytes]) -> list[_Section]:
    sections: list[_Section] = []
    for number, item in numbered_lines(name, lines):
        if isinstance(item, PlanLine):
            if sections and item.plan <= sections[-1].plan:
                raise TraceError(f"{name}: line {number}: plan {item.plan} comes after plan {sections[-1].plan}")
            sections.append(_Section(name, item.plan, item.line))
        elif isinstance(item, SendMarkerLine | ReceiveMarkerLine):
            continue
        elif not sections:
            raise TraceError(f"{name}: line {number}: agent {item.agent!r} moves before any plan has placed it")
        else:
            sections[-1].events.append(item)
    return sections


def _union(plan: int, sections: Sequence[_Section]) -> dict[str, int]:
    """Return the complete recovery line of a plan, which is the union of the hosts' plan lines."""
    line: dict[str, int] = {}
    for section in sections:
        for agent, number in section.line.items():
            if line.setdefault(agent, number) != number:
                raise TraceError(
                    f"{section.file}: plan {plan} puts agent {agent!r} at checkpoint {number}, another file at "
                    f"{line[agent]}: merge the files of one fleet only"
                )
    return line


def _events_by_agent(plan: int, sections: Sequence[_Section]) -> dict[str, list[EventLine]]:
    events: dict[str, list[EventLine]] = {}
    homes: dict[str, _Section] = {}
    for section in sections:
        for line in section.events:
            home = homes.setdefault(line.agent, section)
            if home is not section:
                raise TraceError(
                    f"{section.file} and {home.file}: agent {line.agent!r} moves in both under plan {plan}: "
                    "merge the files of one fleet only"
                )
            events.setdefault(line.agent, []).append(line)
    return events


# -- what is lost -------------------------------------------------------------------------------------------------------


class _Cut(msgspec.Struct, frozen=True, gc=False):
    """The position from which an agent's events under one plan are omitted. The event with the index `first` and all later events are
    omitted because no file contains the send of `message`."""

    first: int
    message: str


def _find_lost(own: Mapping[str, Sequence[EventLine]], sent: Container[str]) -> dict[str, _Cut]:
    """Return, for each agent whose last events must be omitted, the position from which they are omitted. `sent` contains the messages sent
    under earlier plans that the recovery line keeps."""
    receives: dict[str, tuple[str, int]] = {}
    sends: set[str] = set()
    for agent, lines in own.items():
        for position, line in enumerate(lines):
            if isinstance(line, ReceiveLine):
                receives[line.message] = agent, position
            elif isinstance(line, SendLine):
                sends.add(line.message)
    pending = [
        (agent, position, message)
        for message, (agent, position) in receives.items()
        if message not in sends and message not in sent
    ]
    cuts: dict[str, _Cut] = {}
    while pending:
        agent, first, message = pending.pop()
        end = cuts[agent].first if agent in cuts else len(own[agent])
        if first >= end:
            continue
        cuts[agent] = _Cut(first, message)
        for line in own[agent][first:end]:
            if isinstance(line, SendLine) and line.message in receives:
                pending.append((*receives[line.message], message))
    return cuts


def _kept(section: _Section, cuts: Mapping[str, _Cut]) -> deque[EventLine]:
    if not cuts:
        return deque(section.events)
    rest = {agent: cut.first for agent, cut in cuts.items()}
    kept: deque[EventLine] = deque()
    for line in section.events:
        events_left = rest.get(line.agent)
        if events_left is not None:
            if events_left == 0:
                continue
            rest[line.agent] = events_left - 1
        kept.append(line)
    return kept


# -- the fleet ----------------------------------------------------------------------------------------------------------


class _History:
    """The events of one agent that have been merged so far and that no recovery has undone.

    Attributes:
        events: the events in the order in which they happened at the agent.
        starts: for each checkpoint number, how many of the agent's events precede or equal that checkpoint.
    """

    __slots__ = ("events", "starts")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.starts = [0]

    @property
    def last(self) -> int:
        return len(self.starts) - 1

    def sent_after(self, number: int) -> Iterator[str]:
        for event in self.events[self.starts[number] :]:
            if isinstance(event, MessageSent):
                yield event.message

    def last_without(self, undone: Container[str]) -> int | None:
        """Return the latest checkpoint before the agent first received one of these messages, or None if it has received none of them."""
        for position, event in enumerate(self.events):
            if isinstance(event, MessageReceived) and event.message in undone:
                return bisect_right(self.starts, position) - 1
        return None


class _Merger:
    """State of the merge after the sections of one plan and before the sections of the next.

    Attributes:
        _items: the merged trace, without its header.
        _sent: for each message name used by a host, the message's id in the merged trace. Undone sends have no entry.
        _cuts: for each agent whose last events under the newest plan are omitted, the position from which they are omitted.
    """

    def __init__(self) -> None:
        self._items: list[Event | Recovery] = []
        self._histories: dict[str, _History] = {}
        self._sent: dict[str, str] = {}
        self._cuts: dict[str, _Cut] = {}
        self._is_first = True

    def merged(self) -> Merged:
        for cut_agent, cut in self._cuts.items():
            sender = _sender(cut.message)
            if sender not in self._histories:
                raise TraceError(
                    f"agent {cut_agent!r} has received {cut.message!r}, or what follows from it, and no file traces "
                    f"{sender!r}: add its host's file"
                )
        items: list[Header | Event | Recovery] = [Header(agents=sorted(self._histories, key=_natural)), *self._items]
        return Merged(items, {agent: cut.message for agent, cut in self._cuts.items()})

    def add(self, plan: int, sections: Sequence[_Section]) -> None:
        """Add all events that happened under the next recovery plan."""
        line = _union(plan, sections)
        own = _events_by_agent(plan, sections)
        for agent, number in line.items():
            self._reach(plan, agent, number)
        if not self._is_first:
            self._recover(self._whole(line, own))
        self._is_first = False
        self._cuts = _find_lost(own, self._sent)
        gaps = self._gaps(own)
        for agent in own:
            self._fill(agent, gaps)
        for event_line in interleaved([_kept(section, self._cuts) for section in sections], self._sent):
            self._take(plan, event_line)
            if isinstance(event_line, CheckpointLine):
                self._fill(event_line.agent, gaps)

    # -- recovery -------------------------------------------------------------------------------------------------------

    def _reach(self, plan: int, agent: str, number: int) -> None:
        """Add a checkpoint in the recovery line if it was not traced. The added checkpoint must be the agent's next checkpoint."""
        last = self._history(agent).last
        if number <= last:
            return
        cut = self._cuts.get(agent)
        if cut is not None:
            raise TraceError(
                f"plan {plan} keeps checkpoint {number} of agent {agent!r}, which had received {cut.message!r}, or what "
                f"follows from it, and no file has the send of that: add the file of {_sender(cut.message)!r}"
            )
        if number > last + 1 or self._is_first:
            raise TraceError(
                f"plan {plan} puts agent {agent!r} at checkpoint {number}, and the last one traced before is {last}: "
                "trace a fleet from its first start, and merge all its files"
            )
        self._append(CheckpointTaken(agent, number))

    def _whole(self, line: Mapping[str, int], active: Iterable[str]) -> dict[str, int]:
        """Return the recovery line, extended by the agents that are missing from the plan but must roll back. Agents that keep their states
        have no entry."""
        complete = dict(line)
        for agent in active:
            if agent in self._histories:
                complete.setdefault(agent, 0)
        undone = {
            message for agent, number in complete.items() for message in self._histories[agent].sent_after(number)
        }
        unnamed = [agent for agent in self._histories if agent not in complete]
        is_moving = bool(undone)
        while is_moving:
            is_moving = False
            for agent in unnamed:
                history = self._histories[agent]
                number = history.last_without(undone)
                if number is not None and number < complete.get(agent, history.last + 1):
                    complete[agent] = number
                    undone.update(history.sent_after(number))
                    is_moving = True
        return complete

    def _recover(self, line: dict[str, int]) -> None:
        self._items.append(Recovery(dict(line)))
        undone: set[str] = set()
        for agent, number in line.items():
            history = self._histories[agent]
            undone.update(history.sent_after(number))
            del history.events[history.starts[number] :], history.starts[number + 1 :]
        if undone:
            self._sent = {message: name for message, name in self._sent.items() if name not in undone}

    # -- events ---------------------------------------------------------------------------------------------------------

    def _gaps(self, own: Mapping[str, Sequence[EventLine]]) -> dict[tuple[str, int], int]:
        """Find the gaps in each agent's checkpoint numbers. The result maps the agent and the checkpoint before a gap to the next traced
        checkpoint."""
        gaps: dict[tuple[str, int], int] = {}
        for agent, lines in own.items():
            last = self._history(agent).last
            for line in lines[: self._cuts[agent].first] if agent in self._cuts else lines:
                if not isinstance(line, CheckpointLine):
                    continue
                if line.index <= last:
                    raise TraceError(f"agent {agent!r} takes checkpoint {line.index} after checkpoint {last}")
                if line.index > last + 1:
                    gaps[agent, last] = line.index
                last = line.index
        return gaps

    def _fill(self, agent: str, gaps: Mapping[tuple[str, int], int]) -> None:
        last = self._histories[agent].last
        for number in range(last + 1, gaps.get((agent, last), 0)):
            self._append(CheckpointTaken(agent, number))

    def _take(self, plan: int, line: EventLine) -> None:
        match line:
            case SendLine():
                if not line.message.startswith(f"{line.agent}>{line.to}:"):
                    raise TraceError(
                        f"agent {line.agent!r} sends {line.message!r} to {line.to!r}: that is no message of it"
                    )
                if line.message in self._sent:
                    raise TraceError(f"agent {line.agent!r} sends {line.message!r} twice")
                name = self._sent[line.message] = f"{line.agent}/{plan}{line.message[len(line.agent) :]}"
                self._append(MessageSent(line.agent, name, line.to))
            case ReceiveLine():
                self._append(MessageReceived(line.agent, self._sent[line.message]))
            case CheckpointLine():
                kind: Literal["basic", "forced"] = "forced" if line.kind == "forced" else "basic"
                self._append(CheckpointTaken(line.agent, line.index, kind))

    def _append(self, event: Event) -> None:
        self._items.append(event)
        history = self._history(event.agent)
        history.events.append(event)
        if isinstance(event, CheckpointTaken):
            history.starts.append(len(history.events))

    def _history(self, agent: str) -> _History:
        return self._histories.setdefault(agent, _History())


def _sender(message: str) -> str:
    return message.partition(">")[0]


def _natural(agent: str) -> list[str | int]:
    """Return a sort key that sorts `a2` before `a10`."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"(\d+)", agent))]


class TracedMarkerSend(msgspec.Struct, frozen=True, gc=False):
    """A host has sent a marker. `message` is the name of the marker, which is the same on both hosts."""

    host: str
    message: str
    to: str
    epoch: int


class MarkerCame(msgspec.Struct, frozen=True, gc=False):
    """A host has received a marker. `message` is the name of the marker, which is the same on both hosts."""

    host: str
    message: str
    sender: str
    epoch: int


Marker = TracedMarkerSend | MarkerCame


class TracedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event in a trace.

    Attributes:
        host: host on which the event happened, or "" if the host is unknown or the event is a recovery.
        time_ns: time since 1970 in nanoseconds, by the clock of that host, or 0 if it is unknown.
        epochs: the epochs that contain the checkpoint, if the event is a checkpoint.
        plan: number of the recovery plan, if the event is a recovery.
    """

    event: Event | Marker | Recovery
    host: str = ""
    time_ns: int = 0
    epochs: tuple[int, ...] = ()
    plan: int = 0


class HostPart(msgspec.Struct, frozen=True):
    """The trace of one run of a host process, in the order of events. A plan line precedes the events that happened under its plan."""

    host: str
    lines: Sequence[PlanLine | HostLine]


def read_part(name: str, host: str, lines: Iterable[bytes]) -> HostPart:
    """Read the trace file of a host. Error messages contain the file name `name`. The last line of the file may be incomplete.

    Raises:
        TraceError: a line is invalid.
    """
    return HostPart(host, [line for _, line in numbered_lines(name, lines)])


def gather(parts: Iterable[HostPart]) -> list[TracedEvent]:
    """Return the events of all hosts in one order.

    Raises:
        TraceError: If the traces contradict each other.
    """
    plans: dict[int, list[_HostSection]] = {}
    for part in parts:
        for plan, section in _host_sections(part).items():
            plans.setdefault(plan, []).append(section)
    return list(_events(plans))


class _HostSection:
    """The events of one host process under one recovery plan. `line` is None if the trace contains no plan line for this plan."""

    __slots__ = ("host", "line", "lines", "time_ns")

    def __init__(self, host: str) -> None:
        self.host = host
        self.lines: deque[HostLine] = deque()
        self.line: dict[str, int] | None = None
        self.time_ns = 0


def _host_sections(part: HostPart) -> dict[int, _HostSection]:
    """Return the host's section for each plan, in the order of plans. Lines before the first plan line belong to the plan before it."""
    sections: dict[int, _HostSection] = {}
    here = _HostSection(part.host)
    for line in part.lines:
        if not isinstance(line, PlanLine):
            here.lines.append(line)
            continue
        if not sections and here.lines:
            sections[line.plan - 1] = here
        here = sections.setdefault(line.plan, _HostSection(part.host))
        if line.line:
            here.line, here.time_ns = {**(here.line or {}), **line.line}, line.time_ns
    return sections or {0: here}


def _events(plans: Mapping[int, Sequence[_HostSection]]) -> Iterator[TracedEvent]:
    is_first = True
    for plan in sorted(plans):
        sections = plans[plan]
        line = {agent: number for section in sections for agent, number in (section.line or {}).items()}
        if line and not is_first:
            time_ns = max(section.time_ns for section in sections)
            yield TracedEvent(Recovery(dict(line)), time_ns=time_ns, plan=plan)
        is_first = False
        yield from _under_plan(sections)


def _under_plan(sections: Sequence[_HostSection]) -> Iterator[TracedEvent]:
    homes: dict[int, str] = {}
    for section in sections:
        homes.update(dict.fromkeys(map(id, section.lines), section.host))
    missing = _Missing(section.lines for section in sections)
    for line in interleaved([section.lines for section in sections], missing):
        missing.take(line)
        yield _traced(line, homes[id(line)])


class _Missing:
    """The set of messages whose receive need not wait for the send, because the send was already taken or was not traced."""

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
