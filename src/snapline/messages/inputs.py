"""Client requests to a host, and its answers: inputs for its agents, and the outcome of each.

Names are those of `inputs.proto`; `input_wire.py` makes bytes of them. Bounds of one request: `INPUTS_MAX` inputs, their payloads
together no larger than one message between agents may be. So its reader knows the largest cost, and a client with
more inputs makes several requests.
"""

import msgspec

INPUTS_MAX = 1000
"""Largest number in one request: answering it is then a matter of milliseconds, and encoding its batch too."""

PART_BYTES = 1024 * 1024
"""A request goes in messages of about this size, and an input above it in parts: a server takes no more than 2 MiB at once."""

KEY_CHARACTERS_MAX = 128
"""Largest length of a key, as of an id. Keys of the last inputs are in their agent's checkpoints."""

ACCEPTED, REPEATED, RETRY, REFUSED, NOT_PUBLIC = "accepted", "repeated", "retry", "refused", "not public"
"""Outcomes of an input: durable now, or before; not taken just now, or permanently, the last since no public handler takes it."""


class GivenInput(msgspec.Struct, frozen=True, gc=False):
    """Input from a client.

    Attributes:
        key: the same key twice is one input.
        payload: MessagePack behind its type's name, as `encode_message` makes it; if there is a `type`, JSON of that type.
        public_only: a handler that is not marked public does not take it.
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
        number: among the inputs of its agent; 0: it has none.
        reason: why it was not taken.
        host, address: where the agent lives, if it is not here and that is known.
    """

    status: str
    number: int = 0
    reason: str = ""
    host: str = ""
    address: str = ""


REPLIED, BURIED, UNKNOWN = "replied", "buried", "unknown"
"""Outcomes of an accepted input: it had its turn, or is a dead letter; or its key is not known. "retry": ask again."""


class AskOutcome(msgspec.Struct, frozen=True, gc=False):
    """Result of one input.

    Attributes:
        status: "replied", "buried", "retry" or "unknown".
        number: among the inputs of its agent; 0: it has none.
        type: name of the answer's type; empty: the turn gave no answer.
        body: the answer as MessagePack.
        reason: of "retry" and "unknown".
        host, address: where the agent lives, if it is not here and that is known.
    """

    status: str
    number: int = 0
    type: str = ""
    body: bytes = b""
    reason: str = ""
    host: str = ""
    address: str = ""
