"""Types of a snapshot in the view: the document of `snapline snapshot show`."""

from collections.abc import Iterator

import msgspec

Plain = dict[str, object]


class CutMessage(msgspec.Struct, frozen=True):
    """Message sent but not received inside the cut."""

    number: int = 0
    message: object = None


class CutChannel(msgspec.Struct, frozen=True):
    """A channel and its in-transit messages."""

    sender: str
    receiver: str
    in_transit: tuple[CutMessage, ...] = ()


class CutAgent(msgspec.Struct, frozen=True):
    """One agent in the cut. Items of lists have the form of the document."""

    agent: str
    kind: str = ""
    host: str = ""
    incarnation: int = 0
    checkpoint: int = 0
    is_unborn: bool = False
    is_leaving: bool = False
    state_type: str = ""
    state: object = None
    outbox: tuple[Plain, ...] = ()
    spawns: tuple[Plain, ...] = ()
    timers: tuple[Plain, ...] = ()
    durable_turn: Plain | None = None
    put_off: tuple[Plain, ...] = ()
    dead_letters: tuple[Plain, ...] = ()
    dead_letter_count: int = 0

    def rest(self) -> "Iterator[tuple[str, tuple[Plain, ...] | Plain]]":
        """Yield the parts that most agents do not have, by name."""
        for name in ("durable_turn", "timers", "outbox", "put_off", "spawns", "dead_letters"):
            value = getattr(self, name)
            if value:
                yield name.replace("_", " "), value


class CutFacts(msgspec.Struct, frozen=True):
    """One snapshot. Times are RFC 3339 in UTC."""

    epoch: int
    root: str = ""
    created: str = ""
    trigger: str = ""
    fleet: str = ""
    protocol: str = ""
    plan: int = 0
    hosts: tuple[str, ...] = ()
    state_bytes: int = 0
    channel_state_messages: int = 0
    channel_state_bytes: int = 0
    agents: tuple[CutAgent, ...] = ()
    channels: tuple[CutChannel, ...] = ()

    def messages(self) -> Iterator[tuple[CutChannel, CutMessage]]:
        """Yield the in-transit messages, channel by channel."""
        for channel in self.channels:
            for message in channel.in_transit:
                yield channel, message


def cut_of(document: dict[str, object]) -> CutFacts:
    """Return the document's facts. msgspec.ValidationError: the document is not a snapshot."""
    return msgspec.convert(document, CutFacts)
