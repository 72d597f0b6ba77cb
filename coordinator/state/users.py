"""Users' tokens, and the audit log of calls by operators and admins: rules of the replicated state.

A token is known by its digest alone (`security/tokens.py`). A call that changes the fleet is recorded with its token's digest, and is
refused here if the token is no longer valid. So a revoked token is useless on every replica from the log entry that revokes it.

Both tables are bounded, and so is each host's share of them: a host beyond its share evicts only its own entries. Admitted and refused calls
are kept in separate tables, so that a user without rights cannot evict the records of others. Calls are numbered without gaps, so dropped
records can be counted.
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
from snapline.security.tokens import ALLOWED, USER_ROLES
from snapline.security.tokens import REFUSED as REFUSED_CALL

TOKENS_MAX = 256
"""Largest number of tokens; each call of a user compares its token with all of them."""

CALLS_KEPT, REFUSALS_KEPT = 2000, 500
"""Numbers of records kept: some 500 bytes each, so below 2 MiB of the state's 16 MiB. Save the output of `snapline audit` regularly to keep
more."""

HOST_SHARE = 8
"""Divisor for the share of a table that one host's calls may fill: an eighth, 250 and 62 records."""

DIGEST_BYTES = 32


def apply(image: FleetImage, kind: op.UserOperation, now_ns: int) -> OperationResult:
    """Apply one of these operations."""
    match kind:
        case op.MakeToken():
            return _make_token(image, kind, now_ns)
        case op.RevokeToken():
            return _revoke_token(image, kind)
        case op.RecordCall():
            return _record_call(image, kind, now_ns)


def bearer_of(image: FleetImage, digest: bytes, now_ns: int) -> tuple[str, str] | None:
    """Return the name and role of the token with this digest; None: it is not valid.

    All tokens are compared in constant time, so the duration reveals nothing about them.
    """
    bearer = None
    for name, record in image.tokens.items():
        is_match = hmac.compare_digest(record.digest, digest)
        if is_match and now_ns < record.expires_ns:
            bearer = (name, record.role)
    return bearer


def _make_token(image: FleetImage, kind: op.MakeToken, now_ns: int) -> OperationResult:
    if not is_id(kind.name) or kind.role not in USER_ROLES or len(kind.digest) != DIGEST_BYTES:
        return OperationResult(REFUSED, f"a token has a name, and one of the roles {', '.join(USER_ROLES)}")
    valid_tokens = {name: record for name, record in image.tokens.items() if now_ns < record.expires_ns}
    existing = valid_tokens.get(kind.name)
    if existing is not None and (existing.role, existing.digest, existing.expires_ns) == (
        kind.role,
        kind.digest,
        kind.expires_ns,
    ):
        return OperationResult(UNCHANGED)
    if existing is not None:
        return OperationResult(REFUSED, f"there is a token {kind.name}: revoke it first, or choose another name")
    if len(valid_tokens) >= TOKENS_MAX:
        return OperationResult(REFUSED, f"a fleet has at most {TOKENS_MAX} tokens: revoke one that nobody uses")
    image.tokens = {**valid_tokens, kind.name: TokenRecord(kind.role, kind.digest, now_ns, kind.expires_ns)}
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
        own_indices = [index for index, earlier in enumerate(table) if earlier.at == kind.at]
        if len(own_indices) >= kept // HOST_SHARE:
            del table[own_indices[0]]
    table.append(made)
    del table[:-kept]
    return OperationResult(APPLIED, number=made.number)
