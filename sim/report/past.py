"""What cuts and recoveries make of a run's events, for its pictures.

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
from collections.abc import Iterable, Iterator, Mapping

from snapline.pictures.scene import Arrow, Band, Front, Mark, State
from snapline.recovery.trace import CheckpointTaken, MessageReceived, MessageSent, Recovery
from snapline.sim.report.words import seconds
from snapline.sim.world.recording import EpochSpan, Recording

INITIAL = -1
"""The position of every initial checkpoint."""


class SentMessage:
    """One send and its receives."""

    __slots__ = ("message", "position", "received", "receiver", "sender")

    def __init__(self, message: str, sender: str, receiver: str, position: int | None) -> None:
        self.message = message
        self.sender = sender
        self.receiver = receiver
        self.position = position
        self.received: list[int] = []


class RecordedPast:
    """All that happened, by position: what stands in a scene's parts here are positions.

    Attributes:
        undone_at: by position, that of the recovery which undid the event; 0 if none did. No recovery that undoes
            anything stands at 0.
        undone: stretches of agents.
        fronts: cuts of complete epochs, and recovery lines, in their order.
        known: agents in the order in which events name them.
        _histories: agent → positions of its events that survive so far.
        _starts: agent → by checkpoint number, how many of these come until it, itself included.
        _latest: (agent, number) → position of the last checkpoint so numbered.
    """

    def __init__(self, recording: Recording) -> None:
        self._events = recording.events
        self.undone_at = array("q", bytes(8 * len(recording.events)))
        self.undone: list[Band] = []
        self.fronts: list[Front] = []
        self.known: dict[str, None] = {}
        self._histories: dict[str, list[int]] = {}
        self._starts: dict[str, list[int]] = {}
        self._latest: dict[tuple[str, int], int] = {}
        self._sent: dict[str, SentMessage] = {}
        self._messages: list[SentMessage] = []
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
                sent = self._sent[event.message] = SentMessage(event.message, event.agent, event.to, position)
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
            sent = SentMessage(event.message, "", event.agent, None)
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
            self.fronts.append(Front("cut", f"cut of epoch {span.epoch}", positions, f"epoch {span.epoch}"))

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
                self.undone.append(Band(positions[agent], position, "undone", agent, "undone by a recovery"))
            for undone in history[start:]:
                self.undone_at[undone] = position
            del history[start:], starts[number + 1 :]
        if positions:
            self.fronts.append(Front("line", f"recovery {_back(line)}", positions))

    def marks(self, lanes: frozenset[str], first: int, last: int, cuts: Iterable[Front]) -> Iterator[Mark]:
        """The checkpoints in the window."""
        held: dict[float, list[str]] = {}
        for cut in cuts:
            for place in cut.places.values():
                held.setdefault(place, []).append(cut.name)
        for position in range(first, last + 1):
            timed, event = self._events[position], self._events[position].event
            if isinstance(event, CheckpointTaken) and event.agent in lanes:
                is_undone = self.undone_at[position] > 0
                cut_words = f"in the cut of {', '.join(held[position])}" if position in held else ""
                words = (cut_words, seconds(timed.t_ns))
                yield Mark(event.agent, position, event.kind, event.number, is_undone=is_undone, words=words)

    def arrows(
        self, lanes: frozenset[str], first: int, last: int, cuts: list[Front], orphans: Mapping[str, str]
    ) -> Iterator[Arrow]:
        """The messages with an end in the window, each once."""
        for sent in self._messages:
            ends = [*([] if sent.position is None else [sent.position]), *sent.received]
            is_shown = any(first <= end <= last for end in ends)
            if is_shown and sent.receiver in lanes and (sent.sender in lanes or sent.position is None):
                state, words = self._state(sent, cuts, orphans)
                said = (words, f"{self._sent_words(sent)}, {self._received_words(sent)}")
                yield Arrow(sent.message, sent.sender, sent.receiver, sent.position, tuple(sent.received), state, said)

    def _sent_words(self, sent: SentMessage) -> str:
        return "never sent" if sent.position is None else f"sent {seconds(self._events[sent.position].t_ns)}"

    def _received_words(self, sent: SentMessage) -> str:
        times = [seconds(self._events[position].t_ns) for position in sent.received]
        return f"received {', again '.join(times)}" if times else "never received"

    def _state(self, sent: SentMessage, cuts: list[Front], orphans: Mapping[str, str]) -> tuple[State, str]:
        """What a message is, and why."""
        beside: dict[State, list[str]] = {"ordinary": [], "orphan": [], "in-transit": []}
        for cut in cuts:
            beside[self._beside(sent, cut)].append(cut.name)
        if sent.message in orphans:
            return "orphan", f"orphan: {orphans[sent.message]}"
        if beside["orphan"]:
            return "orphan", f"orphan of the cut of {', '.join(beside['orphan'])}"
        if sent.position is None:
            return "orphan", "received, but never sent"
        if beside["in-transit"]:
            return "in-transit", f"in transit in the cut of {', '.join(beside['in-transit'])}"
        if self.undone_at[sent.position]:
            return "undone", "undone by a recovery"
        return "ordinary", ""

    def _beside(self, sent: SentMessage, cut: Front) -> State:
        of, to = cut.places.get(sent.sender), cut.places.get(sent.receiver)
        if to is None or of is None or sent.position is None:
            return "ordinary"
        is_sent_inside = self._is_inside(sent.position, of)
        is_received_inside = any(self._is_inside(position, to) for position in sent.received)
        if is_sent_inside == is_received_inside:
            return "ordinary"
        return "in-transit" if is_sent_inside else "orphan"

    def _is_inside(self, position: int, checkpoint: float) -> bool:
        return position < checkpoint and not 0 < self.undone_at[position] <= checkpoint


def _back(line: Mapping[str, int | None]) -> str:
    """How many agents go back, in words."""
    back = sum(number is not None for number in line.values())
    return "in which no agent goes back" if not back else f"of {back:,} agent{'s' * (back != 1)}"
