"""Bearer tokens: credentials of a user, instead of a certificate. No I/O.

A token has 256 random bits. The fleet stores only its SHA-256 digest. Passwords need a salt and a slow hash because people choose guessable ones;
random tokens do not. A stolen digest does not reveal the token.

On the wire a token is gRPC metadata, `authorization: Bearer …`, and only inside TLS: gRPC refuses to send it otherwise.
"""

import hashlib
import secrets
from collections.abc import Iterable

USER_ROLES = ("viewer", "operator", "admin")
"""Roles that a token may have. Hosts, replicas, launchers and clients authenticate with certificates."""

ALLOWED, REFUSED, FAILED = "allowed", "refused", "failed"
"""Outcomes of a call: allowed; refused; allowed but failed."""

SUBJECT_CHARACTERS_MAX = 300
"""Largest length of a call's subject in the audit log; longer texts are cut."""

TOKEN_BYTES = 32

PREFIX = "snapline_"
"""Prefix by which people and secret scanners recognise a token."""

METADATA_KEY, SCHEME = "authorization", "Bearer "

TOKEN_CHARACTERS_MAX = 200
"""Largest length of a token; longer ones are invalid, and are not hashed."""

INVALID_TOKEN_DIGEST = b"-"
"""Digest of a credential that cannot be a token. No real digest is this short."""


def new_token() -> str:
    """Return a new, unique token."""
    return PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def digest_of(token: str) -> bytes:
    """Return the digest that the fleet keeps of a token."""
    return hashlib.sha256(token.encode(errors="replace")).digest()


def token_digest_in(metadata: Iterable[tuple[str, str | bytes]]) -> bytes | None:
    """Return the digest of the token that a call carries; None if it carries none. Several tokens, or a foreign one, are invalid."""
    values = [value for key, value in metadata if key == METADATA_KEY]
    if not values:
        return None
    value = values[0]
    if (
        len(values) > 1
        or not isinstance(value, str)
        or len(value) > TOKEN_CHARACTERS_MAX
        or not value.startswith(SCHEME)
    ):
        return INVALID_TOKEN_DIGEST
    return digest_of(value.removeprefix(SCHEME))


def clipped(text: str) -> str:
    """Clip the subject of a call for the audit log."""
    return text if len(text) <= SUBJECT_CHARACTERS_MAX else text[: SUBJECT_CHARACTERS_MAX - 1] + "…"
