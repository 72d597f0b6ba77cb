"""Compute how recoveries and cuts affect the events in a trace.

Theory of operation
-------------------
The *position* of an event is its index in an order that respects causality and the order of each agent's events. As events are added, this
module computes:

- Undone events. A recovery undoes all events of an agent after the agent's checkpoint on the recovery line.
- Cuts. A cut contains one checkpoint number for each agent. Checkpoint numbers are reused after a recovery. A number in a cut therefore
  refers to the latest checkpoint with this number when the cut is added.
- Messages. Each send of a message has one arrow. If the message is received again after a recovery, its arrow has several heads.

An event is *inside* a cut if it precedes its agent's checkpoint in the cut, and was not undone before that checkpoint was taken. For a set
of cuts, a message is an *orphan* if a cut contains its receive but not its send (G1). A message is *in transit* if a cut contains its send
but not its receive (G2). A message that is neither an orphan nor in transit is *undone* if a recovery has undone its send, and *ordinary*
otherwise. The caller may specify additional orphans. A cut that does not contain both the sender and the receiver does not affect the
message's state.

Vector clocks, and logs for ShiViz
----------------------------------
The vector clocks are those of Fidge and Mattern (1988). An event increments its own lane's entry, and merges the clocks that it *takes* by
taking the maximum of each entry. A receive event takes the clock that the send event *left*. Events that are not counted pass on clocks
without incrementing an entry. So events that are omitted from a picture still connect the events that are shown. The entries of the shown
events are 1, 2, 3 and so on without gaps, as ShiViz requires.

A ShiViz log has two lines for each event: the event's lane and clock as JSON, and the event's description. The first line of the file is
the regular expression for parsing events. The second line of the file could contain a separator for several executions, and is empty.
"""

import json
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

import msgspec

from snapline.diagrams.scene import Arrow, Band, Front, Mark, State
from snapline.diagrams.style import clean
from snapline.recovery.trace import CheckpointTaken, Event, MessageReceived, MessageSent, Recovery

INITIAL = -1
"""The position of each agent's initial checkpoint."""


class PastEvents:
    """All events with their positions, which are also their horizontal coordinates in the scene.

    Attributes:
        undone: intervals of lanes that contain undone events.
        fronts: cuts and recovery lines, in the order in which they were added.
        known: agents, in the order of their first occurrence.
        _time_of: function that formats the time of a position.
        _events: events by position.
        _undone_at: for each position, the position of the recovery that undid its event, or 0 if the event was not undone. A recovery at
            position 0 has no earlier events to undo.
        _histories: for each agent, the positions of its events that have not been undone.
        _starts: for each agent, its checkpoints in ascending order, each with its number and the number of surviving events up to it.
            Events before the first known checkpoint belong to checkpoint 0, because a trace need not start at the beginning.
        _latest: for each agent and checkpoint number, the position of the latest checkpoint with this number.
        _sent: the latest send of each message.
        _messages: all messages, in the order of their sends.
    """

    def __init__(self, time_of: Callable[[int], str]) -> None:
        self.undone: list[Band] = []
        self.fronts: list[Front] = []
        self.known: dict[str, None] = {}
        self._time_of = time_of
        self._events: list[Event | Recovery | None] = []
        self._undone_at = array("q")
        self._histories: dict[str, list[int]] = {}
        self._starts: dict[str, list[tuple[int, int]]] = {}
        self._latest: dict[tuple[str, int], int] = {}
        self._sent: dict[str, _Message] = {}
        self._messages: list[_Message] = []

    def add(self, event: Event | Recovery) -> None:
        """Add the next event."""
        position = len(self._events)
        self._events.append(event)
        self._undone_at.append(0)
        if isinstance(event, Recovery):
            self._recover(position, event.line)
            return
        self._history(event.agent).append(position)
        if isinstance(event, CheckpointTaken):
            self._starts[event.agent].append((event.number, len(self._histories[event.agent])))
            self._latest[event.agent, event.number] = position
        elif isinstance(event, MessageSent):
            self._history(event.to)
            sent = self._sent[event.message] = _Message(event.message, event.agent, event.to, position)
            self._messages.append(sent)
        else:
            self._receive(position, event)

    def skip_position(self) -> None:
        """Add a position without an event."""
        self._events.append(None)
        self._undone_at.append(0)

    def is_undone(self, position: int) -> bool:
        """Return whether a recovery has undone the event at this position."""
        return self._undone_at[position] > 0

    def _history(self, agent: str) -> list[int]:
        history = self._histories.get(agent)
        if history is None:
            history = self._histories[agent] = []
            self._starts[agent] = [(0, 0)]
            self.known[agent] = None
        return history

    def _receive(self, position: int, event: MessageReceived) -> None:
        sent = self._sent.get(event.message)
        if sent is None or sent.receiver != event.agent:
            # The message was received but never sent to this agent, so its arrow has no start.
            sent = _Message(event.message, "", event.agent, None)
            self._sent.setdefault(event.message, sent)
            self._messages.append(sent)
        sent.received.append(position)

    def add_cut(self, name: str, numbers: Mapping[str, int]) -> None:
        """Add a cut that consists of the current checkpoints with these numbers."""
        found = {agent: self._latest.get((agent, number), INITIAL) for agent, number in numbers.items()}
        positions = {agent: at for agent, at in found.items() if at != INITIAL or numbers[agent] == 0}
        if positions:
            self.fronts.append(Front("cut", f"cut of {name}", positions, name))

    def _recover(self, position: int, line: Mapping[str, int | None]) -> None:
        positions = {}
        for agent, number in line.items():
            history, starts = self._history(agent), self._starts[agent]
            if number is None or not 0 <= number <= starts[-1][0]:
                positions[agent] = position
                continue
            index = bisect_right(starts, number, key=_number_of) - 1
            start = starts[index][1]
            positions[agent] = history[start - 1] if start else INITIAL
            if start < len(history):
                self.undone.append(Band(positions[agent], position, "undone", agent, "undone by a recovery"))
            for undone in history[start:]:
                self._undone_at[undone] = position
            del history[start:], starts[index + 1 :]
        if positions:
            rolled_back = sum(number is not None for number in line.values())
            extent = (
                f"of {rolled_back:,} agent{'s' * (rolled_back != 1)}" if rolled_back else "in which no agent goes back"
            )
            self.fronts.append(Front("line", f"recovery {extent}", positions))

    def marks(self, first: int, last: int, cuts: Sequence[Front] = ()) -> Iterator[Mark]:
        """Yield the marks of the checkpoints from position `first` to `last`."""
        cut_names: dict[float, list[str]] = {}
        for cut in cuts:
            for place in cut.places.values():
                cut_names.setdefault(place, []).append(cut.name)
        for position in range(first, last + 1):
            event = self._events[position]
            if isinstance(event, CheckpointTaken):
                cut_words = f"in the cut of {', '.join(cut_names[position])}" if position in cut_names else ""
                yield Mark(
                    agent=event.agent,
                    place=position,
                    kind=event.kind,
                    number=event.number,
                    is_undone=self._undone_at[position] > 0,
                    words=(cut_words, self._time_of(position)),
                )

    def arrows(self, first: int, last: int, cuts: Sequence[Front], orphans: Mapping[str, str]) -> Iterator[Arrow]:
        """Yield an arrow for each message whose arrow lies at least partly between positions `first` and `last`. `orphans` maps each
        additional orphan to the reason why it is one."""
        for message in self._messages:
            ends = message.received if message.position is None else (message.position, *message.received)
            if ends[0] <= last and ends[-1] >= first:
                state, reason = self._state(message, cuts, orphans)
                sent = "never sent" if message.position is None else f"sent {self._time_of(message.position)}"
                times = ", again ".join(map(self._time_of, message.received))
                descriptions = (reason, sent, f"received {times}" if times else "never received")
                received = tuple(message.received)
                yield Arrow(
                    message.id, message.sender, message.receiver, message.position, received, state, descriptions
                )

    def _state(self, sent: "_Message", cuts: Sequence[Front], orphans: Mapping[str, str]) -> tuple[State, str]:
        """Return the state of a message, and why it has this state."""
        cuts_by_state: dict[State, list[str]] = {"ordinary": [], "orphan": [], "in-transit": []}
        for cut in cuts:
            cuts_by_state[self._state_at_cut(sent, cut)].append(cut.label)
        if sent.id in orphans:
            return "orphan", f"orphan: {orphans[sent.id]}"
        if cuts_by_state["orphan"]:
            return "orphan", f"orphan of the {', '.join(cuts_by_state['orphan'])}"
        if sent.position is None:
            return "orphan", "received, but never sent"
        if cuts_by_state["in-transit"]:
            return "in-transit", f"in transit in the {', '.join(cuts_by_state['in-transit'])}"
        if self._undone_at[sent.position]:
            return "undone", "undone"
        return "ordinary", ""

    def _state_at_cut(self, sent: "_Message", cut: Front) -> State:
        of, to = cut.places.get(sent.sender), cut.places.get(sent.receiver)
        if to is None or of is None or sent.position is None:
            return "ordinary"
        is_sent_inside = self._is_inside(sent.position, of)
        is_received_inside = any(self._is_inside(position, to) for position in sent.received)
        if is_sent_inside == is_received_inside:
            return "ordinary"
        return "in-transit" if is_sent_inside else "orphan"

    def _is_inside(self, position: int, checkpoint: float) -> bool:
        return position < checkpoint and not 0 < self._undone_at[position] <= checkpoint


def _number_of(checkpoint: tuple[int, int]) -> int:
    return checkpoint[0]


class _Message(msgspec.Struct, gc=False):
    """One send of a message, and the positions of its receive events in ascending order. `position` is None if the message was received but
    never sent."""

    id: str
    sender: str
    receiver: str
    position: int | None
    received: list[int] = []


# -- vector clocks -----------------------------------------------------------------------------------------------------


SHIVIZ_PARSER = r"(?<host>\S*) (?<clock>\{.*\})\n(?<event>.*)"

Clock = dict[str, int]


class ClockStep(msgspec.Struct, frozen=True):
    """An event on one lane, for computing vector clocks.

    Attributes:
        leaves: name under which later events can take this event's clock.
        takes: names of the clocks to take, if earlier events have left them.
        is_counted: whether the event increments the clock. If `is_counted` is false, the event only passes on clocks.
    """

    lane: str
    words: str = ""
    leaves: Hashable = None
    takes: tuple[Hashable, ...] = ()
    is_counted: bool = True


def with_clocks(steps: Iterable[ClockStep]) -> Iterator[tuple[ClockStep, Clock]]:
    """Yield each counted step with its vector clock."""
    clocks: dict[str, Clock] = {}
    left: dict[Hashable, Clock] = {}
    for step in steps:
        clock = clocks.setdefault(step.lane, {})
        for name in step.takes:
            for lane, entry in left.get(name, {}).items():
                clock[lane] = max(clock.get(lane, 0), entry)
        if step.is_counted:
            clock[step.lane] = clock.get(step.lane, 0) + 1
        if step.leaves is not None:
            left[step.leaves] = dict(clock)
        if step.is_counted:
            yield step, clock


def past_of_last(steps: Sequence[ClockStep]) -> list[int]:
    """Return the indices of the last event and of all events that happened before it, without computing vector clocks."""
    latest: dict[str, int] = {}
    left: dict[Hashable, int] = {}
    causes: list[list[int]] = []
    for index, step in enumerate(steps):
        causes.append([left[name] for name in step.takes if name in left])
        if step.lane in latest:
            causes[-1].append(latest[step.lane])
        latest[step.lane] = index
        if step.leaves is not None:
            left[step.leaves] = index
    known: set[int] = set()
    waiting = [len(steps) - 1] if steps else []
    while waiting:
        index = waiting.pop()
        if index not in known:
            known.add(index)
            waiting += causes[index]
    return sorted(known)


def shiviz_log(steps: Iterable[ClockStep]) -> str:
    """Format the counted events as a log for ShiViz."""
    names = _Names()
    lines = [SHIVIZ_PARSER, ""]
    for step, clock in with_clocks(steps):
        named = {names.of(lane): entry for lane, entry in clock.items()}
        lines += [f"{names.of(step.lane)} {json.dumps(named)}", clean(step.words)]
    return "\n".join(lines) + "\n"


class _Names:
    """Mapping from each lane to a unique name without spaces."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._taken: dict[str, None] = {}

    def of(self, lane: str) -> str:
        """Return a lane's unique name. Repeated calls return the same name."""
        unique = self._names.get(lane)
        if unique is None:
            plain = re.sub(r"[\s{}\"\\]", "_", clean(lane)) or "_"
            unique = plain
            while unique in self._taken:
                unique = f"{unique}_"
            self._names[lane] = unique
            self._taken[unique] = None
        return unique
