"""State that the host of a script keeps for one agent, and the markers in channels."""

import msgspec

from snapline.sim.script.book import ScriptedMessage


class ScriptedMarker(msgspec.Struct, frozen=True):
    """A marker on a channel; `last_number` is without meaning for the markers of plain Chandy-Lamport."""

    epoch: int
    last_number: int = 0


class Image(msgspec.Struct, frozen=True):
    """A checkpoint: the agent's state, the numbers of its channels, and its core where the protocol keeps it there."""

    state: tuple[str, ...] = ()
    sent: dict[str, int] = {}
    received: dict[str, int] = {}
    core: bytes = b""


class ScriptedAgent:
    """One agent. Its state is the list of the messages that its turns consumed.

    Attributes:
        sent, received: by the other end of the channel, the last number sent and consumed.
        mailbox: arrived, not consumed. outbox: handed over, not sent.
        is_busy: a turn runs. running: the message that it consumes; None for a turn of its own.
        phase: "living", "left" (its leave is committed, epochs still need it) or "gone".
        failure: what its core raised; it is of no use until the fleet is set back.
        images: its checkpoints by number.
    """

    def __init__(self, name: str, first_image: Image) -> None:
        self.name = name
        self.phase = "living"
        self.images = [first_image]
        self.set_back(0)

    def set_back(self, number: int) -> None:
        """Be as at that checkpoint; later ones never were."""
        del self.images[number + 1 :]
        image = self.images[number]
        self.state = list(image.state)
        self.sent = dict(image.sent)
        self.received = dict(image.received)
        self.mailbox: list[ScriptedMessage] = []
        self.outbox: list[tuple[str, str]] = []
        self.running: ScriptedMessage | None = None
        self.is_busy = False
        self.failure = ""

    def image(self, core: bytes = b"") -> Image:
        """A checkpoint of the present state."""
        return Image(tuple(self.state), dict(self.sent), dict(self.received), core)
