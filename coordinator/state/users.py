"""Tokens of users, and the audit log of what operators and admins have requested: rules of the replicated state.

A token is known by its digest alone (`security/tokens.py`). What changes the fleet in the name of a token is recorded with that digest,
and is refused here if the token is no longer valid: from the entry on that revokes it, nobody acts by it, whichever replica was asked.

Both tables are bounded, and so is the part of each that one host may fill: then it evicts only its own entries. The last admitted calls
and the last refused ones are kept apart: a user without rights cannot evict what others did from the log. Calls are numbered without a gap,
so what was dropped can be counted.
"""

import hmac

from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import (
    APPLIED,
    REFUSED,
    UNCHANGED,
    CallRecord,
    FleetImage,
    OperationResult,
    TokenRecord,
    is_id,
)
from snapline.security.tokens import ALLOWED, PEOPLE
from snapline.security.tokens import REFUSED as REFUSED_CALL

TOKENS_MAX = 256
"""Largest number of tokens: as many as a fleet may have hosts; each call of a user compares its token with all."""

CALLS_KEPT, REFUSALS_KEPT = 2000, 500
"""Numbers of records kept: at most some 500 bytes each, and frozen with the state: below 2 MiB of the 16 that it may have. `snapline audit` of
every night, kept elsewhere, holds more."""

HOST_SHARE = 8
"""Share of a table that one host's calls fill at most, as a divisor: an eighth, 250 and 62."""

DIGEST_BYTES = 32


def apply(image: FleetImage, kind: op.OfPeople, now_ns: int) -> OperationResult:
    """Apply one of these operations."""
    match kind:
        case op.MakeToken():
            return _make_token(image, kind, now_ns)
        case op.RevokeToken():
            return _revoke_token(image, kind)
        case op.RecordCall():
            return _record_call(image, kind, now_ns)


def bearer_of(image: FleetImage, digest: bytes, now_ns: int) -> tuple[str, str] | None:
    """Name and role of the bearer of the token with this digest; None if it is not valid.

    All are compared, each in the same time: the duration reveals nothing of the right one.
    """
    found = None
    for name, record in image.tokens.items():
        is_it = hmac.compare_digest(record.digest, digest)
        if is_it and now_ns < record.expires_ns:
            found = (name, record.role)
    return found


def _make_token(image: FleetImage, kind: op.MakeToken, now_ns: int) -> OperationResult:
    if not is_id(kind.name) or kind.role not in PEOPLE or len(kind.digest) != DIGEST_BYTES:
        return OperationResult(REFUSED, f"a token has a name, and one of the roles {', '.join(PEOPLE)}")
    good = {name: record for name, record in image.tokens.items() if now_ns < record.expires_ns}
    known = good.get(kind.name)
    if known is not None and (known.role, known.digest, known.expires_ns) == (kind.role, kind.digest, kind.expires_ns):
        return OperationResult(UNCHANGED)
    if known is not None:
        return OperationResult(REFUSED, f"there is a token {kind.name}: revoke it first, or choose another name")
    if len(good) >= TOKENS_MAX:
        return OperationResult(REFUSED, f"a fleet has at most {TOKENS_MAX} tokens: revoke one that nobody uses")
    image.tokens = {**good, kind.name: TokenRecord(kind.role, kind.digest, now_ns, kind.expires_ns)}
    return OperationResult(APPLIED)


def _revoke_token(image: FleetImage, kind: op.RevokeToken) -> OperationResult:
    if image.tokens.pop(kind.name, None) is None:
        return OperationResult(UNCHANGED, f"there is no token {kind.name}")
    return OperationResult(APPLIED)


def _record_call(image: FleetImage, kind: op.RecordCall, now_ns: int) -> OperationResult:
    is_borne = bool(kind.digest)
    if is_borne and kind.outcome == ALLOWED and bearer_of(image, kind.digest, now_ns) != (kind.name, kind.role):
        return OperationResult(REFUSED, f"the token of {kind.name} is not good any more")
    image.calls_made += 1
    made = CallRecord(
        image.calls_made, now_ns, kind.name, kind.role, is_borne, kind.at, kind.call, kind.about, kind.outcome
    )
    table, kept = (image.refusals, REFUSALS_KEPT) if kind.outcome == REFUSED_CALL else (image.calls, CALLS_KEPT)
    if kind.at:
        own = [place for place, each in enumerate(table) if each.at == kind.at]
        if len(own) >= kept // HOST_SHARE:
            del table[own[0]]
    table.append(made)
    del table[:-kept]
    return OperationResult(APPLIED, number=made.number)
