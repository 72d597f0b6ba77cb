"""State of a scripted agent, and markers in channels."""

import msgspec

from snapline.sim.script.message_history import ScriptedMessage


class ScriptedMarker(msgspec.Struct, frozen=True):
    """Marker on a channel. `last_number`: unused by plain Chandy-Lamport."""

    epoch: int
    last_number: int = 0


class Image(msgspec.Struct, frozen=True):
    """Checkpoint: the agent's state, the numbers of its channels, and its core if the protocol saves it."""

    state: tuple[str, ...] = ()
    sent: dict[str, int] = {}
    received: dict[str, int] = {}
    core: bytes = b""


class ScriptedAgent:
    """One agent. Its state is the list of the messages that its turns consumed.

    Attributes:
        sent, received: last number sent and consumed, by the other end of the channel.
        mailbox: messages that have arrived and are not consumed.
        outbox: messages that a turn has handed over and that are not sent.
        is_busy: a turn is running.
        running: message that the running turn consumes; None for a turn without a message.
        phase: "living", "left" (its leave is committed, but epochs still need it) or "gone".
        failure: error that its core raised; the agent cannot be used until the fleet is rolled back.
        images: checkpoints by number.
    """

    def __init__(self, name: str, first_image: Image) -> None:
        self.name = name
        self.phase = "living"
        self.images = [first_image]
        self.roll_back(0)

    def roll_back(self, number: int) -> None:
        """Restore a checkpoint and discard the later ones."""
        del self.images[number + 1 :]
        image = self.images[number]
        self.state = list(image.state)
        self.sent = dict(image.sent)
        self.received = dict(image.received)
        self.mailbox: list[ScriptedMessage] = []
        self.outbox: list[tuple[str, str]] = []
        self.running: ScriptedMessage | None = None
        self.has_running_turn = False
        self.failure = ""

    def image(self, core: bytes = b"") -> Image:
        """Return a checkpoint of the current state."""
        return Image(tuple(self.state), dict(self.sent), dict(self.received), core)
