"""What the space-time diagram of a run shows: a window of its events, and what cuts and recoveries make of them.

Theory of operation
-------------------
An event is its *position* in `Recording.events`; that order respects each agent's own and causality. One pass over all
events finds, by position:

- what a recovery undid: everything of an agent after the checkpoint that the recovery's line names;
- the cuts: a complete epoch names checkpoints by number; numbers are used again after a recovery, so a number means the
  last checkpoint of that number at the moment when the epoch was complete;
- messages: one arrow for each send. After a recovery a message may be received again: the arrow then has two ends.

An event is *inside* a cut if it lies before the cut's checkpoint of its agent and was not undone by then. So beside the
cuts shown a message is an *orphan* if some cut holds its receive but not its send (G1), *in transit* if some cut holds its
send but not its receive (G2), else *undone* if a recovery undid its send, else *ordinary*. What the run itself names an
orphan is one too. A message from or to an agent that a cut does not hold says nothing about that cut.

Nothing here is taken from what the product computed but the numbers of checkpoints.
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from typing import Literal

import msgspec

from snapline.recovery.trace import CheckpointTaken, Kind, MessageReceived, MessageSent, Recovery
from snapline.sim.result import Result
from snapline.sim.world.recording import EpochSpan, Recording

ArrowState = Literal["undone", "ordinary", "in-transit", "orphan"]

ARROW_STATES: tuple[ArrowState, ...] = ("undone", "ordinary", "in-transit", "orphan")
"""From the least to the most telling: what comes later lies on top."""

EVENTS_MAX = 10_000
"""Of a picture; more are a grey wall and a file of many megabytes."""

LANES_MAX = 60
"""Agents of a picture: more fit on no page."""

CUTS_MAX = 40
"""Complete epochs, and recoveries; the last ones are drawn."""

AFTER_SHARE = 5
"""A fifth of the window, at most, lies after the violation: what led to it matters more."""

INITIAL = -1
"""The position of every initial checkpoint."""


class Mark(msgspec.Struct, frozen=True, gc=False):
    """A checkpoint. `epochs`: the complete ones whose cut holds it."""

    agent: str
    number: int
    kind: Kind
    position: int
    is_undone: bool
    epochs: tuple[int, ...]


class Arrow(msgspec.Struct, frozen=True, gc=False):
    """A message.

    Attributes:
        sent: position of its send; None if the run never sent it.
        received: positions of its receives, ascending; more than one after recoveries.
        words: what it is beside the cuts; empty if ordinary.
    """

    message: str
    sender: str
    receiver: str
    sent: int | None
    received: tuple[int, ...]
    state: ArrowState
    words: str


class Cut(msgspec.Struct, frozen=True):
    """A line through the diagram: a complete epoch's cut, or a recovery line. `positions`: by agent."""

    kind: Literal["cut", "line"]
    label: str
    positions: dict[str, int]


class Undone(msgspec.Struct, frozen=True, gc=False):
    """A recovery at position `end` undid what the agent did after `start`."""

    agent: str
    start: int
    end: int


class Story(msgspec.Struct, frozen=True):
    """What to draw. `first` and `last` are the window's positions; `last` is `first` - 1 if there are no events."""

    first: int
    last: int
    agents: list[str]
    marks: list[Mark]
    arrows: list[Arrow]
    cuts: list[Cut]
    undone: list[Undone]
    notes: list[str]

    def shows(self, position: int) -> bool:
        """The position lies in the window."""
        return self.first <= position <= self.last


def tell(recording: Recording, result: Result, *, events_max: int = EVENTS_MAX, agents_max: int = LANES_MAX) -> Story:
    """The story of at most `events_max` events around the first violation, or the last ones of a run without any."""
    first, last = window_of(recording, result, events_max)
    past = _Past(recording)
    orphans = {orphan.message: orphan.text for orphan in recording.orphans}
    agents, notes = _lanes(recording, past, (first, last), orphans, agents_max)
    lanes = frozenset(agents)
    cuts = [cut for cut in past.cuts if _touches(cut, lanes, first, last)]
    complete, lines = _by_kind(cuts)
    if len(recording.events) > last - first + 1:
        notes.insert(0, f"Events {first:,} to {last:,} of {len(recording.events):,}.")
    if recording.is_cut:
        notes.append("The recording was full before the run ended.")
    if len(complete) > CUTS_MAX:
        notes.append(f"{CUTS_MAX} of {len(complete):,} cuts drawn.")
    shown = complete[-CUTS_MAX:]
    return Story(
        first=first,
        last=last,
        agents=agents,
        marks=past.marks(lanes, first, last, shown),
        arrows=past.arrows(lanes, first, last, shown, orphans),
        cuts=shown + lines[-CUTS_MAX:],
        undone=[part for part in past.undone if part.agent in lanes and part.start < last and part.end >= first],
        notes=notes,
    )


def window_of(recording: Recording, result: Result, events_max: int) -> tuple[int, int]:
    """First and last position: around the first violation, or the end of the run."""
    total = len(recording.events)
    around = total
    if result.violations:
        around = bisect_left(recording.events, result.violations[0].t_ns + 1, key=lambda timed: timed.t_ns)
    end = min(total, around + events_max // AFTER_SHARE)
    first = max(0, end - events_max)
    return first, min(total, first + events_max) - 1


def _by_kind(cuts: list[Cut]) -> tuple[list[Cut], list[Cut]]:
    return [cut for cut in cuts if cut.kind == "cut"], [cut for cut in cuts if cut.kind == "line"]


def _touches(cut: Cut, lanes: frozenset[str], first: int, last: int) -> bool:
    """Some of the cut lies within; the initial states are within a window that begins at the start."""
    floor = first if first else INITIAL
    return any(floor <= position <= last for agent, position in cut.positions.items() if agent in lanes)


def _lanes(
    recording: Recording, past: "_Past", window: tuple[int, int], orphans: Mapping[str, str], agents_max: int
) -> tuple[list[str], list[str]]:
    """The agents to show: those with orphans first, then the busiest ones; in the order of the recording."""
    counts = dict.fromkeys([*recording.agents, *past.known], 0)
    if len(counts) <= agents_max:
        return list(counts), []
    for timed in recording.events[window[0] : window[1] + 1]:
        event = timed.event
        if isinstance(event, Recovery):
            continue
        counts[event.agent] += 1
        if not isinstance(event, CheckpointTaken) and event.message in orphans:
            counts[event.agent] += len(recording.events)
    busiest = sorted(counts, key=lambda agent: -counts[agent])[:agents_max]  # sorting is stable
    chosen = frozenset(busiest)
    return [agent for agent in counts if agent in chosen], [f"{agents_max} of {len(counts):,} agents drawn."]


class _Sent:
    """One send and its receives."""

    __slots__ = ("message", "position", "received", "receiver", "sender")

    def __init__(self, message: str, sender: str, receiver: str, position: int | None) -> None:
        self.message = message
        self.sender = sender
        self.receiver = receiver
        self.position = position
        self.received: list[int] = []


class _Past:
    """All that happened, by position.

    Attributes:
        undone_at: by position, that of the recovery which undid the event; 0 if none did. No recovery that undoes
            anything stands at 0.
        undone: stretches of agents.
        cuts: of complete epochs and of recoveries, in their order.
        known: agents in the order in which events name them.
        _histories: agent → positions of its events that survive so far.
        _starts: agent → by checkpoint number, how many of these come until it, itself included.
        _latest: (agent, number) → position of the last checkpoint so numbered.
    """

    def __init__(self, recording: Recording) -> None:
        self._events = recording.events
        self.undone_at = array("q", bytes(8 * len(recording.events)))
        self.undone: list[Undone] = []
        self.cuts: list[Cut] = []
        self.known: dict[str, None] = {}
        self._histories: dict[str, list[int]] = {}
        self._starts: dict[str, list[int]] = {}
        self._latest: dict[tuple[str, int], int] = {}
        self._sent: dict[str, _Sent] = {}
        self._messages: list[_Sent] = []
        complete = [span for span in recording.epochs.values() if span.outcome == "complete"]
        self._walk(sorted(complete, key=lambda span: span.ended_ns))

    def _walk(self, complete: list[EpochSpan]) -> None:
        waiting = iter([*complete, None])
        span = next(waiting)
        for position, timed in enumerate(self._events):
            while span is not None and span.ended_ns < timed.t_ns:
                self._add_cut(span)
                span = next(waiting)
            event = timed.event
            if isinstance(event, Recovery):
                self._recover(position, event.line)
                continue
            self._history(event.agent).append(position)
            if isinstance(event, CheckpointTaken):
                self._starts[event.agent].append(len(self._histories[event.agent]))
                self._latest[event.agent, event.number] = position
            elif isinstance(event, MessageSent):
                self._history(event.to)
                sent = self._sent[event.message] = _Sent(event.message, event.agent, event.to, position)
                self._messages.append(sent)
            else:
                self._receive(position, event)
        while span is not None:
            self._add_cut(span)
            span = next(waiting)

    def _history(self, agent: str) -> list[int]:
        history = self._histories.get(agent)
        if history is None:
            history = self._histories[agent] = []
            self._starts[agent] = [0]
            self.known[agent] = None
        return history

    def _receive(self, position: int, event: MessageReceived) -> None:
        sent = self._sent.get(event.message)
        if sent is None or sent.receiver != event.agent:
            # Received by somebody, and never sent to it: an arrow from nowhere.
            sent = _Sent(event.message, "", event.agent, None)
            self._sent.setdefault(event.message, sent)
            self._messages.append(sent)
        sent.received.append(position)

    def _add_cut(self, span: EpochSpan) -> None:
        positions = {}
        for agent, number in span.cut.items():
            position = INITIAL if number == 0 else self._latest.get((agent, number))
            if position is not None:
                positions[agent] = position
        if positions:
            self.cuts.append(Cut("cut", f"epoch {span.epoch}", positions))

    def _recover(self, position: int, line: Mapping[str, int | None]) -> None:
        positions = {}
        for agent, number in line.items():
            history, starts = self._history(agent), self._starts[agent]
            if number is None or not 0 <= number < len(starts):
                positions[agent] = position
                continue
            start = starts[number]
            positions[agent] = history[start - 1] if start else INITIAL
            if start < len(history):
                self.undone.append(Undone(agent, positions[agent], position))
            for undone in history[start:]:
                self.undone_at[undone] = position
            del history[start:], starts[number + 1 :]
        if positions:
            self.cuts.append(Cut("line", f"recovery {_back(line)}", positions))

    def marks(self, lanes: frozenset[str], first: int, last: int, cuts: list[Cut]) -> list[Mark]:
        """The checkpoints in the window."""
        epochs: dict[int, tuple[int, ...]] = {}
        for cut in cuts:
            for position in cut.positions.values():
                epochs[position] = (*epochs.get(position, ()), int(cut.label.removeprefix("epoch ")))
        found = []
        for position in range(first, last + 1):
            event = self._events[position].event
            if isinstance(event, CheckpointTaken) and event.agent in lanes:
                is_undone = self.undone_at[position] > 0
                held = epochs.get(position, ())
                found.append(Mark(event.agent, event.number, event.kind, position, is_undone, held))
        return found

    def arrows(
        self, lanes: frozenset[str], first: int, last: int, cuts: list[Cut], orphans: Mapping[str, str]
    ) -> list[Arrow]:
        """The messages with an end in the window, each once, the most telling ones last."""
        found = []
        for sent in self._messages:
            ends = [*([] if sent.position is None else [sent.position]), *sent.received]
            is_shown = any(first <= end <= last for end in ends)
            if is_shown and sent.receiver in lanes and (sent.sender in lanes or sent.position is None):
                found.append(self._arrow(sent, cuts, orphans))
        found.sort(key=lambda arrow: ARROW_STATES.index(arrow.state))
        return found

    def _arrow(self, sent: _Sent, cuts: list[Cut], orphans: Mapping[str, str]) -> Arrow:
        beside: dict[ArrowState, list[str]] = {"orphan": [], "in-transit": []}
        for cut in cuts:
            state = self._beside(sent, cut)
            if state != "ordinary":
                beside[state].append(cut.label)
        state, words = "ordinary", ""
        if sent.message in orphans:
            state, words = "orphan", f"orphan: {orphans[sent.message]}"
        elif beside["orphan"]:
            state, words = "orphan", f"orphan of the cut of {', '.join(beside['orphan'])}"
        elif sent.position is None:
            state, words = "orphan", "received, but never sent"
        elif beside["in-transit"]:
            state, words = "in-transit", f"in transit in the cut of {', '.join(beside['in-transit'])}"
        elif self.undone_at[sent.position]:
            state, words = "undone", "undone by a recovery"
        return Arrow(sent.message, sent.sender, sent.receiver, sent.position, tuple(sent.received), state, words)

    def _beside(self, sent: _Sent, cut: Cut) -> ArrowState:
        to = cut.positions.get(sent.receiver)
        of = cut.positions.get(sent.sender)
        if to is None or of is None or sent.position is None:
            return "ordinary"
        is_sent_inside = self._is_inside(sent.position, of)
        is_received_inside = any(self._is_inside(position, to) for position in sent.received)
        if is_sent_inside == is_received_inside:
            return "ordinary"
        return "in-transit" if is_sent_inside else "orphan"

    def _is_inside(self, position: int, checkpoint: int) -> bool:
        return position < checkpoint and not 0 < self.undone_at[position] <= checkpoint


def _back(line: Mapping[str, int | None]) -> str:
    """How many agents go back, in words."""
    back = sum(number is not None for number in line.values())
    return "in which no agent goes back" if not back else f"of {back:,} agent{'s' * (back != 1)}"
