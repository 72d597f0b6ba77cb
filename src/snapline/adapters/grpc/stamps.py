"""Stamps in the metadata of calls and answers between services of a fleet, and the rules that follow from them.

A request carries its caller's plan and recorded epoch, a response those of its sender. These are Lai and Yang's stamps, applied to calls: a receiver
of a message that was sent after a record makes that record first. So no cut contains an answer that was not given in it, or a request that
was not made.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

CALL_KEY, ANSWER_KEY = "snapline-call-bin", "snapline-answer-bin"
"""Keys in the metadata of requests, and in the trailing metadata of responses. gRPC transmits values of -bin keys unchanged."""


class CallStamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Stamp of a request.

    Attributes:
        plan, epoch: the caller's incarnation, and its newest recorded epoch.
        id: id of the call.
        digest: digest of the request, if a handler makes it.
        over: calls whose answers are no longer needed.
        wants_stamp: stamp the response in any case, since the caller does not know yet whether a member answers there.
    """

    plan: int
    epoch: int
    id: str
    digest: bytes = b""
    over: Sequence[str] = ()
    wants_stamp: bool = True


class AnswerStamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Stamp of a response; omitted if it would equal the request's and the caller knows that a member answers.

    `is_refused`: the request was of an older plan, and was not handled.
    """

    plan: int
    epoch: int
    is_refused: bool = False


Verdict = Literal["take", "record", "wait", "refuse"]
"""Accept the request; record its epoch first; wait for its plan first; or refuse it."""

_encode = msgspec.msgpack.Encoder().encode
_decode_call = msgspec.msgpack.Decoder(CallStamp).decode
_decode_answer = msgspec.msgpack.Decoder(AnswerStamp).decode


def judge(stamp: CallStamp, *, plan: int, is_loaded: bool, recorded: int) -> Verdict:
    """Decide whether a service under this plan, with this recorded epoch, may accept a request. Guarantees G9, and G1 for calls."""
    if stamp.plan < plan:
        return "refuse"
    if stamp.plan > plan or not is_loaded:
        return "wait"
    return "record" if stamp.epoch > recorded else "take"


def encode_stamp(stamp: CallStamp | AnswerStamp) -> bytes:
    """Return a stamp as a metadata value."""
    return _encode(stamp)


def call_stamp(metadata: "Iterable[tuple[str, str | bytes]] | None") -> CallStamp | None:
    """Return the stamp of a request; None if its caller is not in a fleet.

    Raises:
        msgspec.MsgspecError: the stamp is invalid.
    """
    for key, value in metadata or ():
        if key == CALL_KEY:
            return _decode_call(bytes_of(value))
    return None


def answer_stamp(metadata: Any) -> AnswerStamp | None:
    """Return the stamp of a response, from grpc.aio's Metadata; None if no service of a fleet answered.

    Raises:
        msgspec.MsgspecError: the stamp is invalid.
    """
    value = metadata.get(ANSWER_KEY)
    return None if value is None else _decode_answer(bytes_of(value))


def bytes_of(value: str | bytes) -> bytes:
    """Return a value as bytes, the type that gRPC uses for -bin keys."""
    return value if isinstance(value, bytes) else value.encode()
