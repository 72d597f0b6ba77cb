"""Bearer tokens: what a person sends to say who they are, instead of a certificate of their own.

A token is 256 bits of chance. The fleet keeps its SHA-256 alone. Passwords need a salt and a slow hash, since people choose few of them; of
tokens there are too many to try, whoever has the digests and however fast they hash. Whoever steals digests has no token.

On the wire it is gRPC metadata, `authorization: Bearer …`, and only inside TLS: gRPC refuses to send it otherwise.
"""

import hashlib
import secrets
from collections.abc import Iterable

PEOPLE = ("viewer", "operator", "admin")
"""Roles that a token may have: those of people. Hosts, replicas, launchers and clients prove who they are by certificate."""

ALLOWED, REFUSED, FAILED = "allowed", "refused", "failed"
"""Outcomes of a call: allowed; refused; or allowed, and then failed."""

ABOUT_CHARACTERS_MAX = 300
"""Largest length of a call's subject in the audit log: names and numbers; more is cut."""

TOKEN_BYTES = 32

PREFIX = "snapline_"
"""Prefix by which people and secret scanners recognise a token."""

METADATA_KEY, SCHEME = "authorization", "Bearer "

TOKEN_CHARACTERS_MAX = 200
"""Largest length of a token; longer ones are invalid, and are not hashed."""

NO_TOKEN = b"-"
"""Stands for what was borne as a token and cannot be one. No digest is so short."""


def new_token() -> str:
    """Return a new, unique token."""
    return PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def digest_of(token: str) -> bytes:
    """Return the digest that the fleet keeps of a token."""
    return hashlib.sha256(token.encode(errors="replace")).digest()


def borne_in(metadata: Iterable[tuple[str, str | bytes]]) -> bytes | None:
    """Digest of the token that a call bears; None if it bears none. More than one, or no token of ours, is never good."""
    found = [value for key, value in metadata if key == METADATA_KEY]
    if not found:
        return None
    value = found[0]
    if (
        len(found) > 1
        or not isinstance(value, str)
        or len(value) > TOKEN_CHARACTERS_MAX
        or not value.startswith(SCHEME)
    ):
        return NO_TOKEN
    return digest_of(value.removeprefix(SCHEME))


def clipped(text: str) -> str:
    """Clip the subject of a call for the audit log."""
    return text if len(text) <= ABOUT_CHARACTERS_MAX else text[: ABOUT_CHARACTERS_MAX - 1] + "…"
