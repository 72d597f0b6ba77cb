"""Messages between AutoGen agents, as snapline messages. Agents and clients may send them."""

import msgspec

from snapline.agent_runtime.agent import Message


class KeptValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value of AutoGen.

    Attributes:
        form: encoding of `body`. "json": JSON. "message": AutoGen's JSON serializer of `type`. "pickle": a pickle, in base64.
        type: name of the message's class.
    """

    form: str
    body: str
    type: str = ""


class AutogenMessage(Message, frozen=True):
    """A message for a handler of an AutoGen agent.

    Attributes:
        message: message of a type that the agent handles.
        sender: AutoGen id, `type/key`, of the sending agent, or "".
        topic: `type/source` where it was published; "": it was sent to this agent.
        id: id of the message.
        turn, call: where to send the answer; "": no answer is expected.
    """

    message: KeptValue
    sender: str = ""
    topic: str = ""
    id: str = ""
    turn: str = ""
    call: int = 0


class AutogenAnswer(Message, frozen=True):
    """Return value or error of a handler.

    Attributes:
        turn, call: of the message that it answers.
        value: the return value, or the error.
    """

    value: KeptValue
    is_error: bool = False
    turn: str = ""
    call: int = 0


class ForwardedMessage(Message, frozen=True):
    """A message to an AutoGen agent, `to`, that may not exist yet; handled by the agent that creates agents."""

    to: str
    message: AutogenMessage


class AgentWanted(Message, frozen=True):
    """Request to create an AutoGen agent if it does not exist."""

    agent: str


class StateGiven(Message, frozen=True):
    """Request to set an agent's state to `state`, if its current state is the expected one."""

    state: KeptValue
    before: KeptValue | None = None
