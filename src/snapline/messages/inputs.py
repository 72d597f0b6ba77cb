"""Client requests to a host, and its answers: inputs for its agents, and the outcome of each.

Names are those of `inputs.proto`; `input_wire.py` encodes them. A request holds at most `INPUTS_MAX` inputs, and their payloads
together are no larger than one message between agents. Therefore the cost of a request is bounded, and a client with more inputs
makes several requests.
"""

import msgspec

INPUTS_MAX = 1000
"""Largest number of inputs in one request: encoding its batch and answering it then take milliseconds."""

PART_BYTES = 1024 * 1024
"""Size of a message of a request; a larger input is split into parts. A server accepts at most 2 MiB at once."""

KEY_CHARACTERS_MAX = 128
"""Largest length of a key, the same as of an id. An agent's checkpoints hold the keys of its last inputs."""

ACCEPTED, REPEATED, RETRY, REFUSED, NOT_PUBLIC = "accepted", "repeated", "retry", "refused", "not public"
"""Outcomes of an input: durable now; durable before; retry later; rejected permanently; rejected because no public handler accepts it."""


class GivenInput(msgspec.Struct, frozen=True, gc=False):
    """Input from a client.

    Attributes:
        key: idempotency key; two inputs with the same key are one input.
        payload: MessagePack behind its type's name, as `encode_message` makes it; if `type` is set, JSON of that type.
        public_only: deliver only to a handler that is marked public.
    """

    agent: str
    key: str
    payload: bytes
    type: str = ""
    public_only: bool = False


class InputOutcome(msgspec.Struct, frozen=True, gc=False):
    """Outcome of one input.

    Attributes:
        status: "accepted", "repeated", "retry", "refused" or "not public".
        number: its number among the inputs of its agent; 0: none.
        reason: why it was not accepted.
        host, address: location of the agent, if it is not here and its location is known.
    """

    status: str
    number: int = 0
    reason: str = ""
    host: str = ""
    address: str = ""


REPLIED, BURIED, UNKNOWN = "replied", "buried", "unknown"
"""Outcomes of an accepted input: its turn has run; it is a dead letter; its key is unknown. "retry": ask again."""


class AskOutcome(msgspec.Struct, frozen=True, gc=False):
    """Result of one input.

    Attributes:
        status: "replied", "buried", "retry" or "unknown".
        number: its number among the inputs of its agent; 0: none.
        type: name of the answer's type; empty: the turn gave no answer.
        body: the answer as MessagePack.
        reason: reason for "retry" and "unknown".
        host, address: location of the agent, if it is not here and its location is known.
    """

    status: str
    number: int = 0
    type: str = ""
    body: bytes = b""
    reason: str = ""
    host: str = ""
    address: str = ""
