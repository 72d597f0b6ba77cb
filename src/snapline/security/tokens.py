"""Bearer tokens, which users can present instead of a certificate of their own. This module does no I/O.

A token contains 256 random bits. The fleet stores only the SHA-256 digest of each token, and a stolen digest does not reveal the token.
Unlike passwords, random tokens cannot be guessed, so they need neither a salt nor a slow hash.

A token is sent as gRPC metadata: `authorization: Bearer …`. Tokens are sent only over TLS, since gRPC refuses to send them in plaintext.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable

USER_ROLES = ("viewer", "approver", "operator", "admin")
"""Roles that a token may have. Hosts, replicas, launchers and clients authenticate with certificates."""

ALLOWED, REFUSED, FAILED = "allowed", "refused", "failed"
"""Outcomes of a call in the audit log. "failed" means that the call was allowed but failed."""

SUBJECT_CHARACTERS_MAX = 300
"""Largest length of the description of a call's subject in the audit log, in characters. Longer texts are truncated."""

TOKEN_BYTES = 32

PREFIX = "snapline_"
"""Prefix by which people and secret scanners can recognize a token."""

METADATA_KEY, SCHEME = "authorization", "Bearer "

TOKEN_CHARACTERS_MAX = 200
"""Largest length of the metadata value that contains a token, in characters. A longer value is invalid, and is not hashed."""

INVALID_TOKEN_DIGEST = b"-"
"""Digest used for a credential that cannot be a token. No real digest is this short."""


def new_token() -> str:
    """Return a new random token."""
    return PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def is_token(text: str) -> bool:
    """Return whether the text has the form of a token."""
    return re.fullmatch(re.escape(PREFIX) + "[A-Za-z0-9_-]{43}", text) is not None


def digest_of(token: str) -> bytes:
    """Return the digest of a token. The fleet stores only this digest."""
    return hashlib.sha256(token.encode(errors="replace")).digest()


def token_digest_in(metadata: Iterable[tuple[str, str | bytes]]) -> bytes | None:
    """Return the digest of the token in a call's metadata. Return None if the metadata contains no token. If the metadata contains several
    tokens, or a value that cannot be a token, return INVALID_TOKEN_DIGEST."""
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
    """Truncate the text that describes a call in the audit log."""
    return text if len(text) <= SUBJECT_CHARACTERS_MAX else text[: SUBJECT_CHARACTERS_MAX - 1] + "…"
