"""Describe the content of a space-time diagram, independently of its source.

The source is an external trace, a simulator's recording, or hosts' traces.

A scene has one lane for each agent, with events from left to right. Messages are arrows, checkpoints are marks, and cuts are lines through
the agents' records. Every part is at a *place*, which is a number that never decreases along a lane or from a send to its receive. A place
is a position in an order of events, a column, or a time in nanoseconds. Other modules convert their data to a `Scene`, and `svg` draws the
scene. Relative to a cut, a message has one of three states (Chandy and Lamport 1985, section 2):

- *in transit*: The message was sent before the sender's record, and received after the receiver's record or never received.
- *orphan*: The message was sent after the sender's record and received before the receiver's record. A consistent cut has no orphans (G1).
- *ordinary*: Both ends of the message are on the same side of the cut.

A fourth state does not depend on a cut: a message is *undone* if it was sent after the record to which a recovery rolled its sender back.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from snapline.errors import UsageError

Position = float

MarkKind = Literal["initial", "basic", "forced", "coordinated"]
State = Literal["marker", "undone", "ordinary", "in-transit", "orphan"]
BarKind = Literal["up", "crash", "complete", "aborted", "open", "fault", "point", "healed"]

STATES: tuple[State, ...] = ("marker", "undone", "ordinary", "in-transit", "orphan")
"""Message states, from the least to the most important. More important states are drawn on top. A marker is not a message of an agent."""

Ticks = Callable[[float], Iterable[tuple[Position, str]]]
"""Function that returns the positions and texts of the axis's ticks. The function's argument is the smallest distance between two ticks, in
places."""


class Mark(msgspec.Struct, frozen=True, gc=False):
    """A checkpoint in the diagram.

    Attributes:
        number: number of the checkpoint, or None if readers do not know its number.
        is_useless: whether the checkpoint is on a Z-cycle.
        is_obsolete: whether no later recovery line can contain the checkpoint.
        words: further description of the checkpoint.
        href: address that a click opens.
    """

    agent: str
    place: Position
    kind: MarkKind
    number: int | None = None
    is_on_line: bool = False
    is_undone: bool = False
    is_useless: bool = False
    is_obsolete: bool = False
    words: tuple[str, ...] = ()
    href: str = ""


class Arrow(msgspec.Struct, frozen=True, gc=False):
    """A message in the diagram.

    Attributes:
        sender: sending agent, or an empty string if the message was never sent.
        sent: place of the send, or None if the message was never sent.
        received: places of the receives, ascending. After a recovery, a message may be received again.
        words: further description of the message.
    """

    message: str
    sender: str
    receiver: str
    sent: Position | None
    received: tuple[Position, ...] = ()
    state: State = "ordinary"
    words: tuple[str, ...] = ()


class EventDot(msgspec.Struct, frozen=True, gc=False):
    """An event that is drawn as a dot on its lane.

    Attributes:
        event: id of the event.
        is_chosen: whether this event is the chosen event, which is described in detail.
        is_past: whether this event happened before the chosen event.
        href: address that a click opens.
    """

    agent: str
    place: Position
    event: str
    words: str
    is_chosen: bool = False
    is_past: bool = False
    href: str = ""


class Front(msgspec.Struct, frozen=True):
    """A cut or a recovery line, drawn as a line through one place of each agent. `name` is written above the line."""

    kind: Literal["cut", "line"]
    label: str
    places: Mapping[str, Position]
    name: str = ""


class Band(msgspec.Struct, frozen=True):
    """A stretch of one agent's lane, or of all lanes if `agent` is None.

    The bands of undone events and recoveries are shaded. Where an agent is undone or down, its lane is a broken line.
    """

    start: Position
    end: Position
    kind: Literal["undone", "recovery", "down"]
    agent: str | None = None
    label: str = ""


class Sign(msgspec.Struct, frozen=True):
    """A sign on a lane that the agent fails or keeps its live state."""

    agent: str
    place: Position
    kind: Literal["kill", "alive"]
    words: str


class Alarm(msgspec.Struct, frozen=True):
    """A violation of a guarantee, drawn as a mark through all lanes."""

    place: Position
    label: str
    words: str


class Bar(msgspec.Struct, frozen=True):
    """A stretch in a track above the lanes. For a point in time, `end` equals `start`."""

    start: Position
    end: Position
    kind: BarKind
    label: str
    words: str


class Track(msgspec.Struct, frozen=True):
    """A track above the lanes. If its bars overlap, it is drawn in several rows."""

    label: str
    bars: Sequence[Bar]


class Scene(msgspec.Struct, frozen=True):
    """The content of one picture.

    Attributes:
        heading: name of the picture.
        words: summary in one line.
        agents: names of the lanes from top to bottom, to which all other parts refer.
        hosts: the lanes that belong to hosts.
        first, last: the places at the left and right edges. Parts outside the edges are omitted or cut off.
        axis: text that says what the ticks count.
        notes: texts about omissions.
        meanings: texts that replace the usual texts of the legend, by name (`style.LEGEND`).
        legend: names in the legend, or None for those that occur in the scene.
        values: values for `data-*` attributes of the picture.

    Raises:
        UsageError: If a part is on an unknown lane, or a lane occurs twice.
    """

    heading: str
    agents: Sequence[str]
    first: Position
    last: Position
    ticks: Ticks
    hosts: Collection[str] = ()
    words: str = ""
    axis: str = ""
    marks: Sequence[Mark] = ()
    arrows: Sequence[Arrow] = ()
    spots: Sequence[EventDot] = ()
    fronts: Sequence[Front] = ()
    bands: Sequence[Band] = ()
    signs: Sequence[Sign] = ()
    alarms: Sequence[Alarm] = ()
    tracks: Sequence[Track] = ()
    notes: Sequence[str] = ()
    meanings: Mapping[str, str] = {}
    legend: Sequence[str] | None = None
    values: Mapping[str, object] = {}

    def __post_init__(self) -> None:
        named = {part.agent for parts in (self.marks, self.spots, self.bands, self.signs) for part in parts}
        named |= {agent for arrow in self.arrows for agent in (arrow.sender, arrow.receiver)}
        unknown = sorted(name for name in named - set(self.agents) if name)
        if unknown:
            raise UsageError(f"picture {self.heading!r} has no lane for {', '.join(unknown)}: name it in `agents`")
        if len(set(self.agents)) != len(self.agents):
            raise UsageError(f"picture {self.heading!r} names a lane twice: name each once in `agents`")

    def shows(self, start: Position, end: Position) -> bool:
        """Return whether a part of this stretch lies between the edges."""
        return start <= self.last and end >= self.first


def state_at_cut(cut: Mapping[str, Position], arrow: Arrow) -> State:
    """Return the state of a message relative to a cut. The state is ordinary if the cut lacks the sender or the receiver.

    An event at the same place as a record counts as before the record.
    """
    of, to = cut.get(arrow.sender), cut.get(arrow.receiver)
    if of is None or to is None or arrow.sent is None:
        return "ordinary"
    is_sent_inside, is_received_inside = arrow.sent <= of, any(place <= to for place in arrow.received)
    if is_sent_inside == is_received_inside:
        return "ordinary"
    return "in-transit" if is_sent_inside else "orphan"


def round_step(least: float) -> int:
    """Return the smallest number among 1, 2, 5, 10, 20, 50 … that is not below `least`."""
    unit = 1
    while 10 * unit < least:
        unit *= 10
    return next(step for step in (unit, 2 * unit, 5 * unit, 10 * unit) if step >= least)


def counted(first: int, last: int) -> Ticks:
    """Return the ticks of an axis that counts events."""

    def ticks(least: float) -> Iterator[tuple[Position, str]]:
        step = round_step(least)
        for place in range(-(-first // step) * step, last + 1, step):
            yield place, f"{place:,}"

    return ticks


def clock(first_ns: int, last_ns: int, *, origin_ns: int = 0) -> Ticks:
    """Return the ticks of an axis in nanoseconds, counted from `origin_ns`."""

    def ticks(least: float) -> Iterator[tuple[Position, str]]:
        step = round_step(least)
        units = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
        unit_ns, unit = next(pair for pair in units if step % pair[0] == 0)
        for offset in range(-(-(first_ns - origin_ns) // step) * step, last_ns - origin_ns + 1, step):
            yield origin_ns + offset, f"{offset // unit_ns} {unit}"

    return ticks
