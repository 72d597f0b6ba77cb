"""Trace references of messages, appended to the name of the message's type after an `@`. No I/O, and no dependency on OpenTelemetry.

Only messages of sampled traces have a reference; the bytes of other messages do not change. A payload begins with the length of its type's name, and
the name (`encoding.py`). The name of a traced message has a *tail*:

    name | "@" | W3C traceparent, 55 characters | further turns to trace, two hexadecimal digits

So the reference is part of the message wherever the message is kept: in channel states, logs, outboxes, timers, inputs and dead letters. The tail of
a call is in the wrapped message; the tail of a creation follows its kind. A reply has no tail: its waiter is in the trace already.

A tail is ASCII: code that does not know tails reads a longer name. Other code that reads a payload must not depend on the tail: two messages that
differ only in their tails are equal (`without_tail`).
"""

import re
from typing import NamedTuple

from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.messages.payloads import CALL, CALL_ID_BYTES, MARK, REPLY, TAIL_BYTES

HOPS_MAX = 255
"""Largest number of successive turns in a trace. Fleets send in circles, and nobody reads longer traces."""

TAILED_NAME_BYTES_MAX, TAILED_KIND_BYTES_MAX = 255, 0xFFFF
"""Largest sizes with the tail: the length of a name has one byte, the length of a kind two. If the tail does not fit, the trace ends."""

_CREATE = b"\x00"
_CALL_BYTES = len(CALL) + CALL_ID_BYTES
_SAMPLED = 1

_TAIL = re.compile(rb"@00-([0-9a-f]{32})-([0-9a-f]{16})-01([0-9a-f]{2})")
_HEADER = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


class Traceparent(NamedTuple):
    """The span that a message comes from, and the number of further turns to trace."""

    trace: int
    span: int
    hops: int = HOPS_MAX

    def tail(self) -> bytes:
        """Return the tail for a payload; b"" where the trace ends."""
        return b"@00-%032x-%016x-01%02x" % self if self.hops > 0 else b""


def read_tail(tail: bytes) -> Traceparent | None:
    """Parse a tail; None if it is none."""
    match = _TAIL.fullmatch(tail)
    return None if match is None else _valid(int(match[1], 16), int(match[2], 16), int(match[3], 16))


def read_header(header: str) -> Traceparent | None:
    """Parse a W3C `traceparent` header; None if it is none, or its trace is not sampled."""
    match = _HEADER.fullmatch(header.strip())
    if match is None or not int(match[3], 16) & _SAMPLED:
        return None
    return _valid(int(match[1], 16), int(match[2], 16), HOPS_MAX)


def _valid(trace: int, span: int, hops: int) -> Traceparent | None:
    return Traceparent(trace, span, hops) if trace and span else None


class _Name(NamedTuple):
    """Place of the name of a message's type, or of the kind of a creation; its length is in the `width` bytes before `start`."""

    start: int
    end: int
    width: int

    def has_tail(self, payload: bytes) -> bool:
        return self.end - self.start >= TAIL_BYTES and payload.startswith(MARK, self.end - TAIL_BYTES)

    def changed(self, payload: bytes, name: bytes) -> bytes:
        """Return the payload with this name in its place."""
        length = len(name).to_bytes(self.width, "big")
        return b"".join((payload[: self.start - self.width], length, name, payload[self.end :]))


def _name_in(payload: bytes) -> _Name:
    offset = _CALL_BYTES if payload.startswith(CALL) else 0
    width = 2 if payload.startswith(_CREATE, offset) else 1
    start = offset + (3 if width == 2 else 1)
    return _Name(start, start + int.from_bytes(payload[start - width : start], "big"), width)


def tail_of(payload: bytes) -> bytes:
    """Return the tail of this message, call or creation; b"": it is not traced."""
    if not payload:
        return b""
    name = _name_in(payload)
    return payload[name.end - TAIL_BYTES : name.end] if name.has_tail(payload) else b""


def with_tail(payload: bytes, tail: bytes) -> bytes:
    """Return the message with this tail; unchanged if it has one, takes none, or there is no room."""
    if not payload or payload.startswith(REPLY):
        return payload
    name = _name_in(payload)
    size = name.end - name.start + len(tail)
    is_room = size <= (TAILED_NAME_BYTES_MAX if name.width == 1 else TAILED_KIND_BYTES_MAX)
    if not is_room or len(payload) + len(tail) > MESSAGE_BYTES_MAX or name.has_tail(payload):
        return payload
    return name.changed(payload, payload[name.start : name.end] + tail)


def without_tail(payload: bytes) -> bytes:
    """Return the message without its tail."""
    name = _name_in(payload)
    return name.changed(payload, payload[name.start : name.end - TAIL_BYTES]) if name.has_tail(payload) else payload


def is_of_type(payload: bytes, name: str) -> bool:
    """Return whether this is a message of that type, traced or not."""
    size, known = payload[0], name.encode()
    return payload.startswith(known, 1) and (
        size == len(known) or (size == len(known) + TAIL_BYTES and payload.startswith(MARK, 1 + len(known)))
    )
