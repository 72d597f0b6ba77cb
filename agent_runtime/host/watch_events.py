"""What a host core says of messages where a judge watches (`is_watched`); see `events.py` for the rest."""

from snapline.agent_runtime.host.events import Command


class MessageLeft(Command, frozen=True, gc=False):
    """The next message of a logged channel has left its sender's outbox; said where a judge watches.

    `is_in_turn`: its sender's rule has seen a message already whose turn has not ended.
    """

    sender: str
    receiver: str
    is_in_turn: bool


class WordTaken(Command, frozen=True, gc=False):
    """An operator's word was consumed without a turn: this is `told`."""

    agent: str
    payload: bytes
    told: bytes


class EffectTold(Command, frozen=True, gc=False):
    """The core itself has emitted a word of the ledger for an agent: nothing of that is in what a turn says of its end."""

    agent: str
    payload: bytes


class MessageTaken(Command, frozen=True, gc=False):
    """A message or an input was consumed in the middle of a durable turn: by the turn, or, `is_stashed`, to have its own turn later."""

    agent: str
    what: str
    sender: str
    payload: bytes
    is_stashed: bool
