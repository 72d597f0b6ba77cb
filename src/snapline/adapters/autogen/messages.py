"""Messages between AutoGen's agents, as messages of ours. Anybody may send them: agents of ours, and clients."""

import msgspec

from snapline.agent_runtime.agent import Message


class KeptValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value of AutoGen's.

    Attributes:
        form: "json": `body` is the value as JSON. "message": as AutoGen's JSON serializer of `type` says it. "pickle": a pickle, in base64.
        type: name of the message's class.
    """

    form: str
    body: str
    type: str = ""


class AutogenMessage(Message, frozen=True):
    """A message for a handler of an AutoGen agent.

    Attributes:
        message: of a type that the agent handles.
        sender: AutoGen's id, `type/key`, of the agent that has sent it, or "".
        topic: `type/source`, where it was published; "": it was sent to this agent.
        id: of the message.
        turn, call: whom to answer; "": nobody.
    """

    message: KeptValue
    sender: str = ""
    topic: str = ""
    id: str = ""
    turn: str = ""
    call: int = 0


class AutogenAnswer(Message, frozen=True):
    """Value that a handler has returned, or error that it has raised.

    Attributes:
        turn, call: of the message that it answers.
        value: what it has returned; of an error that error.
    """

    value: KeptValue
    is_error: bool = False
    turn: str = ""
    call: int = 0


class ForwardedMessage(Message, frozen=True):
    """A message to an AutoGen agent, `to`, that a fleet may not have yet: for the agent that makes them."""

    to: str
    message: AutogenMessage


class AgentWanted(Message, frozen=True):
    """An AutoGen agent that is to be there."""

    agent: str


class StateGiven(Message, frozen=True):
    """An agent is to be in `state`, if it is in the one before."""

    state: KeptValue
    before: KeptValue | None = None
