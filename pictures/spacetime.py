"""Space-time diagrams: what happened where and when, and which cut a recovery used.

One horizontal line per agent or host, time to the right, messages as arrows, checkpoints as marks, the cut as a line
through its records. Here is what a diagram holds; `spacetime_svg` draws it. Beside the used cut a message is one of
three things (Chandy and Lamport 1985, section 2):

- *in transit*: it left before its sender's record, and came after its receiver's, or never;
- *orphan*: it left after the sender's record and came before the receiver's; a consistent cut has none (G1);
- *ordinary*: on one side of the cut at both ends.

Only times of one line are compared with each other, never clocks of two. A time equal to the record's counts as before
it. Where lines are hosts there is no one record per line; then the maker of the diagram says what each message is.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from snapline.errors import MisuseError

CheckpointKind = Literal["initial", "basic", "forced", "coordinated"]
MessageState = Literal["ordinary", "in-transit", "orphan"]
BandKind = Literal["recovery", "undone"]


class Checkpoint(msgspec.Struct, frozen=True):
    """A record of one line's state. `label` is for tooltips, such as "epoch 3"."""

    line: str
    time_ns: int
    kind: CheckpointKind = "coordinated"
    label: str = ""


class Message(msgspec.Struct, frozen=True):
    """A message; `received_ns` is None if it never was, `state` None to have it found from the cut."""

    sender: str
    receiver: str
    sent_ns: int
    received_ns: int | None = None
    label: str = ""
    state: MessageState | None = None


class Kill(msgspec.Struct, frozen=True):
    """The end of a line, until it runs again at `restarted_ns` (None: never)."""

    line: str
    time_ns: int
    restarted_ns: int | None = None
    label: str = "killed"


class Band(msgspec.Struct, frozen=True):
    """A stretch of time across all lines: a recovery, or work that a recovery undid."""

    start_ns: int
    end_ns: int
    kind: BandKind = "recovery"
    label: str = ""


class Diagram(msgspec.Struct, frozen=True):
    """What to draw. Times are nanoseconds of any clock.

    Attributes:
        title: the picture's name.
        lines: agents or hosts from top to bottom; all other parts name lines from here.
        cut: line → time of the record that the used cut takes from it; empty if no cut is to be drawn.
        cut_label: for the legend, such as "cut of epoch 3".
    """

    title: str
    lines: list[str]
    checkpoints: list[Checkpoint] = []
    messages: list[Message] = []
    kills: list[Kill] = []
    bands: list[Band] = []
    cut: dict[str, int] = {}
    cut_label: str = "cut used"

    def __post_init__(self) -> None:
        named = (
            {checkpoint.line for checkpoint in self.checkpoints} | {kill.line for kill in self.kills} | set(self.cut)
        )
        named |= {message.sender for message in self.messages} | {message.receiver for message in self.messages}
        unknown = sorted(named - set(self.lines))
        if unknown:
            raise MisuseError(f"diagram {self.title!r} has no line for {', '.join(unknown)}: name it in `lines`")
        if len(set(self.lines)) != len(self.lines):
            raise MisuseError(f"diagram {self.title!r} names a line twice: name each once in `lines`")

    def times(self) -> list[int]:
        """Every time that is named, in no order."""
        times = [checkpoint.time_ns for checkpoint in self.checkpoints]
        times += [time for band in self.bands for time in (band.start_ns, band.end_ns)]
        for first, last in (
            *((message.sent_ns, message.received_ns) for message in self.messages),
            *((kill.time_ns, kill.restarted_ns) for kill in self.kills),
        ):
            times += [first] if last is None else [first, last]
        return times + list(self.cut.values())


def message_state(message: Message, cut: Mapping[str, int]) -> MessageState:
    """What a message is beside a cut. One end on a line without record lies outside the cut."""
    if message.state is not None:
        return message.state
    is_sent_inside = message.sender in cut and message.sent_ns <= cut[message.sender]
    is_received_inside = (
        message.receiver in cut and message.received_ns is not None and message.received_ns <= cut[message.receiver]
    )
    if is_sent_inside == is_received_inside or not cut:
        return "ordinary"
    return "in-transit" if is_sent_inside else "orphan"
