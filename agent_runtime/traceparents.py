"""How a message says to which trace it belongs: in the name of its type, behind an `@`. No I/O, and nothing of OpenTelemetry.

Only messages of sampled traces say anything; every other one has the bytes that it always had. A payload begins with the length of its
type's name, and the name (`encoding.py`); there a traced one has a *tail*:

    name | "@" | W3C traceparent, 55 characters | turns that it is still followed through, two hexadecimal digits

So it is part of the message wherever that is kept: in channel states, logs, outboxes, timers, inputs and dead letters. A call has its tail in the
message that it wraps, a creation behind its kind. A reply has none: who waits for it is in the trace already.

A tail is ASCII: whoever reads names as text and knows of no tails reads a longer name. What else reads a payload must not depend on it:
two messages that differ in their tails are the same (`without_tail`).
"""

import re
from typing import NamedTuple

from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.messages.payloads import CALL, CALL_ID_BYTES, MARK, REPLY, TAIL_BYTES

HOPS_MAX = 255
"""Turns, one after another, that a trace is followed through. Fleets send in circles, and a longer one is read by nobody."""

NAME_BYTES_MAX, KIND_BYTES_MAX = 255, 0xFFFF
"""With the tail: one byte says the length of a name, two that of a kind. Where there is no room the trace ends."""

_CREATE = b"\x00"
_CALL_BYTES = len(CALL) + CALL_ID_BYTES
_SAMPLED = 1

_TAIL = re.compile(rb"@00-([0-9a-f]{32})-([0-9a-f]{16})-01([0-9a-f]{2})")
_HEADER = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


class Traceparent(NamedTuple):
    """The span that a message comes from, and how many further turns are followed."""

    trace: int
    span: int
    hops: int = HOPS_MAX

    def tail(self) -> bytes:
        """As a payload bears it; b"" where nothing is followed any more."""
        return b"@00-%032x-%016x-01%02x" % self if self.hops > 0 else b""


def read_tail(tail: bytes) -> Traceparent | None:
    """What a tail says; None if it is none."""
    found = _TAIL.fullmatch(tail)
    return None if found is None else _valid(int(found[1], 16), int(found[2], 16), int(found[3], 16))


def read_header(header: str) -> Traceparent | None:
    """What a W3C `traceparent` header says; None if it is none, or its trace is not sampled."""
    found = _HEADER.fullmatch(header.strip())
    if found is None or not int(found[3], 16) & _SAMPLED:
        return None
    return _valid(int(found[1], 16), int(found[2], 16), HOPS_MAX)


def _valid(trace: int, span: int, hops: int) -> Traceparent | None:
    return Traceparent(trace, span, hops) if trace and span else None


class _Name(NamedTuple):
    """Where the name of a message's type, or the kind of a creation, stands: what says its length is `width` bytes before `start`."""

    start: int
    end: int
    width: int

    def has_tail(self, payload: bytes) -> bool:
        return self.end - self.start >= TAIL_BYTES and payload.startswith(MARK, self.end - TAIL_BYTES)

    def changed(self, payload: bytes, name: bytes) -> bytes:
        """The payload with this name in its place."""
        length = len(name).to_bytes(self.width, "big")
        return b"".join((payload[: self.start - self.width], length, name, payload[self.end :]))


def _name_in(payload: bytes) -> _Name:
    at = _CALL_BYTES if payload.startswith(CALL) else 0
    width = 2 if payload.startswith(_CREATE, at) else 1
    start = at + (3 if width == 2 else 1)
    return _Name(start, start + int.from_bytes(payload[start - width : start], "big"), width)


def tail_of(payload: bytes) -> bytes:
    """The tail of this message, call or creation; b"": nobody follows it."""
    if not payload:
        return b""
    name = _name_in(payload)
    return payload[name.end - TAIL_BYTES : name.end] if name.has_tail(payload) else b""


def with_tail(payload: bytes, tail: bytes) -> bytes:
    """The same message with this tail; as it is if it has one, takes none, or there is no room."""
    if not payload or payload.startswith(REPLY):
        return payload
    name = _name_in(payload)
    size = name.end - name.start + len(tail)
    is_room = size <= (NAME_BYTES_MAX if name.width == 1 else KIND_BYTES_MAX)
    if not is_room or len(payload) + len(tail) > MESSAGE_BYTES_MAX or name.has_tail(payload):
        return payload
    return name.changed(payload, payload[name.start : name.end] + tail)


def without_tail(payload: bytes) -> bytes:
    """The message as it would be if nobody followed it."""
    name = _name_in(payload)
    return name.changed(payload, payload[name.start : name.end - TAIL_BYTES]) if name.has_tail(payload) else payload


def is_of_type(payload: bytes, name: str) -> bool:
    """Is this a message of that type, followed or not?"""
    size, known = payload[0], name.encode()
    return payload.startswith(known, 1) and (
        size == len(known) or (size == len(known) + TAIL_BYTES and payload.startswith(MARK, 1 + len(known)))
    )
