"""Replies to tools and hosts about users: their tokens, and the audit log of their calls."""

import msgspec


class MakeTokenReply(msgspec.Struct, frozen=True, gc=False):
    """Expiry of the token, by the leader's clock."""

    expires_ns: int


class RevokeTokenReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement: the token is revoked."""


class TokenStatus(msgspec.Struct, frozen=True, gc=False):
    """Token without its digest."""

    name: str
    role: str
    made_ns: int
    expires_ns: int
    is_expired: bool


class ReadTokensReply(msgspec.Struct, frozen=True, gc=False):
    """All tokens, in the order of their creation."""

    tokens: tuple[TokenStatus, ...]


class CheckTokenReply(msgspec.Struct, frozen=True, gc=False):
    """Bearer of the token; both empty if it is not valid."""

    name: str
    role: str


class RecordCallReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement: the call is recorded."""


class RecordedCall(msgspec.Struct, frozen=True, gc=False):
    """A user's call that changed state, as in `fleet_records.CallRecord`."""

    number: int
    made_ns: int
    name: str
    role: str
    is_borne: bool
    at: str
    call: str
    about: str
    outcome: str


class ReadAuditReply(msgspec.Struct, frozen=True, gc=False):
    """The last calls, oldest first; `dropped`: number of calls before or between them that are no longer stored."""

    calls: tuple[RecordedCall, ...]
    dropped: int
