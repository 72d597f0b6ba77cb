"""Content of a space-time diagram, independent of where the events come from.

The events come from an external trace, a recording of the simulator, or traces of hosts.

A scene has one lane for each agent, with the agent's events from left to right. Messages are arrows, checkpoints are marks, and a cut is a
line through one checkpoint of each agent. The horizontal coordinate of each part is its *place*. This number never decreases along a lane,
or from a send to its receive. A place is a position in the order of events, a column number, or a time in nanoseconds. Other modules
convert their data to a `Scene`, which the module `svg` draws. Relative to a cut, a message has one of three states (Chandy and Lamport
1985, section 2):

- *in transit*: The send is before the sender's checkpoint. The receive is after the receiver's checkpoint, or there is no receive.
- *orphan*: The send is after the sender's checkpoint, and the receive is before the receiver's checkpoint. A consistent cut has no orphans
  (G1).
- *ordinary*: Both the send and the receive are before the cut, or both are after the cut.

A fourth state does not depend on a cut. A message is *undone* if a recovery rolled its sender back to a checkpoint taken before the send.
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
        number: number of the checkpoint, or None if the number means nothing to readers.
        is_useless: whether the checkpoint is part of a Z-cycle.
        is_obsolete: whether no future recovery line can contain the checkpoint.
        words: additional description of the checkpoint.
        href: URL that a click opens.
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
        sender: the sending agent, or an empty string if the message was never sent.
        sent: place of the send, or None if the message was never sent.
        received: places of the receives, in ascending order. A message may be received again after a recovery.
        words: additional description of the message.
    """

    message: str
    sender: str
    receiver: str
    sent: Position | None
    received: tuple[Position, ...] = ()
    state: State = "ordinary"
    words: tuple[str, ...] = ()


class EventDot(msgspec.Struct, frozen=True, gc=False):
    """An event that is drawn as a dot on an agent's lane.

    Attributes:
        event: id of the event.
        is_chosen: whether the user has selected this event to see its details.
        is_past: whether this event happened before the selected event.
        href: URL that a click opens.
    """

    agent: str
    place: Position
    event: str
    words: str
    is_chosen: bool = False
    is_past: bool = False
    href: str = ""


class Front(msgspec.Struct, frozen=True):
    """A cut or a recovery line, drawn as a line through one place on each agent's lane. `name` is written above the line."""

    kind: Literal["cut", "line"]
    label: str
    places: Mapping[str, Position]
    name: str = ""


class Band(msgspec.Struct, frozen=True):
    """An interval of one agent's lane, or of all lanes if `agent` is None.

    Undone events and recoveries have a shaded background. Where the agent's events were undone or the agent is down, its lane is dashed.
    """

    start: Position
    end: Position
    kind: Literal["undone", "recovery", "down"]
    agent: str | None = None
    label: str = ""


class Sign(msgspec.Struct, frozen=True):
    """A symbol on an agent's lane, which shows that the agent fails or that it keeps its live state."""

    agent: str
    place: Position
    kind: Literal["kill", "alive"]
    words: str


class Alarm(msgspec.Struct, frozen=True):
    """A violation of a guarantee, drawn as a mark across all lanes."""

    place: Position
    label: str
    words: str


class Bar(msgspec.Struct, frozen=True):
    """An interval on a track above the lanes. For a single point in time, `end` equals `start`."""

    start: Position
    end: Position
    kind: BarKind
    label: str
    words: str


class Track(msgspec.Struct, frozen=True):
    """A labelled track above the lanes. If its bars overlap, the track is drawn in several rows."""

    label: str
    bars: Sequence[Bar]


class Scene(msgspec.Struct, frozen=True):
    """The content of one picture.

    Attributes:
        heading: heading of the picture.
        words: summary of the picture in one line.
        agents: names of the lanes, from top to bottom. All other parts refer to lanes by these names.
        hosts: the lanes that represent hosts.
        first, last: the places at the left and right edges of the picture. Parts outside the edges are omitted or clipped.
        axis: label that states what the axis counts.
        notes: texts that describe what the picture omits.
        meanings: texts that replace the default texts of legend entries, by the entry's name (`style.LEGEND`).
        legend: names of the legend's entries. If `legend` is None, the legend contains the entries that occur in the scene.
        values: values of `data-*` attributes for the picture.

    Raises:
        UsageError: If a part refers to an unknown lane, or two lanes have the same name.
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
        """Return whether an interval lies at least partly between the edges of the picture."""
        return start <= self.last and end >= self.first


def state_at_cut(cut: Mapping[str, Position], arrow: Arrow) -> State:
    """Return the state of a message relative to a cut. If the cut does not contain both the sender and the receiver, the state is
    "ordinary".

    An event at the same place as a checkpoint counts as before the checkpoint.
    """
    of, to = cut.get(arrow.sender), cut.get(arrow.receiver)
    if of is None or to is None or arrow.sent is None:
        return "ordinary"
    is_sent_inside, is_received_inside = arrow.sent <= of, any(place <= to for place in arrow.received)
    if is_sent_inside == is_received_inside:
        return "ordinary"
    return "in-transit" if is_sent_inside else "orphan"


def round_step(least: float) -> int:
    """Return the smallest number in the series 1, 2, 5, 10, 20, 50 … that is at least `least`."""
    unit = 1
    while 10 * unit < least:
        unit *= 10
    return next(step for step in (unit, 2 * unit, 5 * unit, 10 * unit) if step >= least)


def counted(first: int, last: int) -> Ticks:
    """Return the tick marks of an axis that counts events."""

    def ticks(least: float) -> Iterator[tuple[Position, str]]:
        step = round_step(least)
        for place in range(-(-first // step) * step, last + 1, step):
            yield place, f"{place:,}"

    return ticks


def clock(first_ns: int, last_ns: int, *, origin_ns: int = 0) -> Ticks:
    """Return the tick marks of a time axis in nanoseconds that starts at `origin_ns`."""

    def ticks(least: float) -> Iterator[tuple[Position, str]]:
        step = round_step(least)
        units = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
        unit_ns, unit = next(pair for pair in units if step % pair[0] == 0)
        for offset in range(-(-(first_ns - origin_ns) // step) * step, last_ns - origin_ns + 1, step):
            yield origin_ns + offset, f"{offset // unit_ns} {unit}"

    return ticks
