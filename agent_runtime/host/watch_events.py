"""What a host core says of messages where a judge watches (`is_watched`); see `events.py` for the rest."""

from snapline.agent_runtime.host.events import Command


class MessageLeft(Command, frozen=True, gc=False):
    """The next message of a logged channel has left its sender's outbox; said where a judge watches.

    `is_in_turn`: its sender's rule has seen a message already whose turn has not ended.
    """

    sender: str
    receiver: str
    is_in_turn: bool


class MessageTaken(Command, frozen=True, gc=False):
    """A message or an input was consumed in the middle of a durable turn: by the turn, or, `is_stashed`, to have its own turn later."""

    agent: str
    what: str
    sender: str
    payload: bytes
    is_stashed: bool
