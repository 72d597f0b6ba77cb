"""Commands of a host core about messages, for an observer that watches (`is_watched`); see `events.py` for the rest."""

from snapline.agent_runtime.host.events import Command


class LoggedMessageSent(Command, frozen=True, gc=False):
    """The next message of a logged channel left its sender's outbox; emitted for an observer that watches.

    `is_in_turn`: the sender's rule has already processed a message whose turn has not ended.
    """

    sender: str
    receiver: str
    is_in_turn: bool


class OperatorCommandConsumed(Command, frozen=True, gc=False):
    """An operator command consumed without a turn; `told`: its reply."""

    agent: str
    payload: bytes
    told: bytes


class EffectRecordEmitted(Command, frozen=True, gc=False):
    """A ledger record that the core itself emitted for an agent: it is not among the outputs of a turn's end."""

    agent: str
    payload: bytes


class MessageConsumedInTurn(Command, frozen=True, gc=False):
    """A message or an input consumed in the middle of a durable turn: by the turn, or, `is_stashed`, to have its own turn later."""

    agent: str
    what: str
    sender: str
    payload: bytes
    is_stashed: bool
