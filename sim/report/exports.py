"""Exports the recording of a run to other viewers: ShiViz (vector clocks) and Perfetto (Chrome trace events).

ShiViz
------
A ShiViz host represents a snapline agent. If only part of a long run is exported, clocks start at 1, and receives have no link to sends
before that part. A recovery is shown as an event of every agent that it rolls back. Events that a recovery has undone remain in the
exported log, because they did happen. `diagrams/event_history.py` computes the clocks.

Perfetto
--------
A host is shown as a process, and an agent as a thread of its initial host's process. All actions of an agent at the same virtual time form
one slice, because turns take no virtual time. Each pair of a send and a receive is shown as a flow between two slices. Each period during
which a host is up is shown as a slice of the host's first thread. Epochs are shown as spans of the process "coordinator", because several
epochs may be in progress at once.
"""

import json
from collections.abc import Iterable, Iterator
from typing import assert_never

from snapline.diagrams.event_history import ClockStep, shiviz_log
from snapline.recovery.trace import CheckpointTaken, Event, MessageReceived, MessageSent, Recovery
from snapline.sim.world.recording import EpochSpan, HostSpan, Recording, TimedEvent

SHIVIZ_EVENTS_MAX = 20_000
"""Maximum number of events that are exported. Of a longer recording, only the last events are exported. Browsers cannot
draw more events, and clocks grow with the number of agents."""

SLICE_MAX_NS = 1_000
"""Maximum duration of a slice. Events take no time, so without a duration a slice would be invisible."""

COORDINATOR = "coordinator"
NO_INITIAL_HOST = "spawned later"
"""Name of the process that contains agents without an initial host."""


# -- ShiViz -------------------------------------------------------------------------------------------------------------


def to_shiviz(recording: Recording) -> str:
    """Return the last `SHIVIZ_EVENTS_MAX` events as a ShiViz log."""
    return shiviz_log(step for timed in recording.events[-SHIVIZ_EVENTS_MAX:] for step in _clock_steps(timed))


def _clock_steps(timed: TimedEvent) -> Iterator[ClockStep]:
    event = timed.event
    for agent, words in _steps(timed):
        leaves = event.message if isinstance(event, MessageSent) else None
        yield ClockStep(agent, words, leaves, (event.message,) if isinstance(event, MessageReceived) else ())


def _steps(timed: TimedEvent) -> Iterator[tuple[str, str]]:
    """Yield each agent that the event affects, with a description of the agent's action. A recovery may affect several agents. Any other
    event affects one agent."""
    event = timed.event
    if isinstance(event, Recovery):
        for agent, number in event.line.items():
            if number is not None:
                yield agent, f"recovery: back to checkpoint {number}, {timed.t_ns} ns"
    else:
        yield event.agent, f"{_words(event)}, {timed.t_ns} ns"


def _words(event: Event) -> str:
    match event:
        case CheckpointTaken():
            return f"checkpoint {event.number} ({event.kind})"
        case MessageSent():
            return f"send {event.message} to {event.to}"
        case MessageReceived():
            return f"receive {event.message}"
        case _:
            assert_never(event)


# -- Perfetto -----------------------------------------------------------------------------------------------------------

Entry = dict[str, object]


def to_perfetto(recording: Recording) -> bytes:
    """Return the recording as JSON in the format of Chrome trace events."""
    places = _Places(recording)
    entries = [
        *places.metadata(),
        *(_host_slice(span, places, _end_ns(recording)) for span in recording.hosts),
        *(entry for span in recording.epochs.values() for entry in _epoch_entries(span, places, _end_ns(recording))),
        *_slices(recording, places),
        *_recoveries(recording, places),
        *_flows(recording, places),
    ]
    rows = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries)
    return f'{{"displayTimeUnit":"ns","traceEvents":[\n{rows}\n]}}\n'.encode()


class _Places:
    """Assigns process numbers to hosts and thread numbers to agents. Thread 0 of each process represents the host itself."""

    def __init__(self, recording: Recording) -> None:
        hosts = dict.fromkeys([COORDINATOR, *(span.host for span in recording.hosts), *recording.placed.values()])
        self._process = {host: number for number, host in enumerate(hosts, 1)}
        self._elsewhere = len(self._process) + 1
        self._thread: dict[str, tuple[int, int]] = {}
        self._threads: dict[int, int] = {}
        for agent in recording.agents:
            self._place(agent, recording.placed)
        for timed in recording.events:
            event = timed.event
            for agent in event.line if isinstance(event, Recovery) else (event.agent,):
                self._place(agent, recording.placed)

    def _place(self, agent: str, placed: dict[str, str]) -> None:
        if agent in self._thread:
            return
        process = self._process[placed[agent]] if agent in placed else self._elsewhere
        self._threads[process] = self._threads.get(process, 0) + 1
        self._thread[agent] = (process, self._threads[process])

    def host(self, host: str) -> Entry:
        return {"pid": self._process[host], "tid": 0}

    def agent(self, agent: str) -> Entry:
        process, thread = self._thread[agent]
        return {"pid": process, "tid": thread}

    def metadata(self) -> Iterator[Entry]:
        """Yield the metadata entries that name processes and threads."""
        processes = dict(self._process)
        if any(process == self._elsewhere for process, _ in self._thread.values()):
            processes[NO_INITIAL_HOST] = self._elsewhere
        for host, process in processes.items():
            yield {"name": "process_name", "ph": "M", "pid": process, "args": {"name": host}}
        for agent in self._thread:
            yield {"name": "thread_name", "ph": "M", **self.agent(agent), "args": {"name": agent}}


def _us(time_ns: int) -> float:
    """Convert a time in nanoseconds to microseconds, which is the unit of the format. Nanoseconds become decimals."""
    return time_ns / 1000


def _end_ns(recording: Recording) -> int:
    times = [timed.t_ns for timed in recording.events[-1:]] + [span.until_ns for span in recording.hosts]
    return max([*times, *(span.ended_ns for span in recording.epochs.values())], default=0)


def _host_slice(span: HostSpan, places: _Places, end_ns: int) -> Entry:
    until_ns = span.until_ns or max(end_ns, span.from_ns)
    slice_: Entry = {"name": "up", "cat": "host", "ph": "X", **places.host(span.host)}
    return {**slice_, "ts": _us(span.from_ns), "dur": _us(until_ns - span.from_ns)}


def _epoch_entries(span: EpochSpan, places: _Places, end_ns: int) -> Iterator[Entry]:
    common: Entry = {"name": f"epoch {span.epoch}", "cat": "epoch", "id": span.epoch, **places.host(COORDINATOR)}
    arguments = {"outcome": span.outcome, "plan": span.plan, "cut": span.cut}
    yield {**common, "ph": "b", "ts": _us(span.begun_ns), "args": arguments}
    yield {**common, "ph": "e", "ts": _us(span.ended_ns or max(end_ns, span.begun_ns))}


def _slices(recording: Recording, places: _Places) -> Iterator[Entry]:
    """Yield slices. Each slice contains all actions of one agent at one virtual time."""
    open_: dict[str, tuple[int, list[Event]]] = {}
    orphans = {orphan.message: orphan.text for orphan in recording.orphans}
    for timed in recording.events:
        event = timed.event
        if isinstance(event, Recovery):
            continue
        current = open_.get(event.agent)
        if current is not None and current[0] == timed.t_ns:
            current[1].append(event)
            continue
        if current is not None:
            yield _slice(event.agent, current, timed.t_ns, places, orphans)
        open_[event.agent] = (timed.t_ns, [event])
    for agent, current in open_.items():
        yield _slice(agent, current, current[0] + SLICE_MAX_NS, places, orphans)


def _slice(agent: str, begun: tuple[int, list[Event]], next_ns: int, places: _Places, orphans: dict[str, str]) -> Entry:
    t_ns, events = begun
    kinds = dict.fromkeys(_kind(event) for event in events)
    arguments: Entry = {"events": [_words(event) for event in events]}
    messages = [event.message for event in events if not isinstance(event, CheckpointTaken)]
    if orphan_texts := {message: orphans[message] for message in messages if message in orphans}:
        arguments["orphans"] = orphan_texts
    common: Entry = {"name": ", ".join(kinds), "cat": "agent", "ph": "X", **places.agent(agent), "ts": _us(t_ns)}
    return {**common, "dur": _us(min(SLICE_MAX_NS, next_ns - t_ns)), "args": arguments}


def _kind(event: Event) -> str:
    match event:
        case CheckpointTaken():
            return f"{event.kind} checkpoint {event.number}"
        case MessageSent():
            return "send"
        case MessageReceived():
            return "receive"
        case _:
            assert_never(event)


def _recoveries(recording: Recording, places: _Places) -> Iterator[Entry]:
    for timed in recording.events:
        for agent, words in _steps(timed) if isinstance(timed.event, Recovery) else ():
            yield {"name": words, "cat": "recovery", "ph": "i", "s": "t", "ts": _us(timed.t_ns), **places.agent(agent)}


def _flows(recording: Recording, places: _Places) -> Iterator[Entry]:
    """Yield the entries of a flow for each receive. If a message is received again after a recovery, it has several flows."""
    sent: dict[str, tuple[int, str]] = {}
    for number, (timed, event) in enumerate(_messages(recording.events)):
        if isinstance(event, MessageSent):
            sent[event.message] = (timed.t_ns, event.agent)
        elif event.message in sent:
            t_ns, sender = sent[event.message]
            common: Entry = {"name": event.message, "cat": "message", "id": number}
            yield {**common, "ph": "s", "ts": _us(t_ns), **places.agent(sender)}
            yield {**common, "ph": "f", "bp": "e", "ts": _us(timed.t_ns), **places.agent(event.agent)}


def _messages(events: Iterable[TimedEvent]) -> Iterator[tuple[TimedEvent, MessageSent | MessageReceived]]:
    for timed in events:
        if isinstance(timed.event, MessageSent | MessageReceived):
            yield timed, timed.event
