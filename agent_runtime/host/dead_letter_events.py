"""Commands of a host core about messages that become dead letters; see `events.py` for the rest."""

from snapline.agent_runtime.host.events import Command


class MessageDeadLettered(Command, frozen=True, gc=False):
    """A message, a timer or an input became a dead letter of its receiver: it was consumed without effect. `what`: kind of the turn."""

    agent: str
    what: str
    sender: str
    payload: bytes
    error: str


class UnroutableMessageDeadLettered(Command, frozen=True, gc=False):
    """A message that can never arrive became a dead letter of its sender. `is_refused_creation`: no other agent may have created it."""

    sender: str
    receiver: str
    payload: bytes
    error: str
    is_refused_creation: bool = False
