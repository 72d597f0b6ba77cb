"""Control access to the view, which requires either a loopback address or a token for signing in.

This module also creates form tokens and the HTTP headers of every page.

Scripts of other web sites must not be able to read the view through a viewer's browser (`gateway/http_server.py`). If no token is set, the
view responds only to requests that name a loopback host. If a token is set, the view requires a cookie, which requests from other sites do
not carry.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable

from starlette.datastructures import QueryParams
from starlette.requests import Request

from snapline.gateway.http_server import is_this_machine

COOKIE = "snapline-view"
SESSION_S = 12 * 3600
SESSIONS_MAX = 256
FORM_BYTES_MAX = 4096

POLICY = "; ".join(
    [
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'"),
        *("form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'"),
    ]
)
"""Content security policy that forbids content from other sites and inline content, so that browsers run only the view's own files."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Sessions:
    """The signed-in sessions. `token` is the token for signing in, or "" if viewers need not sign in."""

    def __init__(self, token: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._digest = hashlib.sha256(token.encode()).digest() if token else b""
        self._now_s = now_s
        self._until_s: dict[str, float] = {}
        self._secret = secrets.token_bytes(32)

    @property
    def is_token_required(self) -> bool:
        """Return whether viewers must sign in."""
        return bool(self._digest)

    def is_valid_token(self, token: str) -> bool:
        """Return whether `token` is the correct token."""
        return hmac.compare_digest(hashlib.sha256(token.encode()).digest(), self._digest)

    def begin(self) -> str:
        """Start a session and return its name. If there are too many sessions, the oldest one is ended."""
        while len(self._until_s) >= SESSIONS_MAX:
            del self._until_s[next(iter(self._until_s))]
        name = secrets.token_urlsafe(32)
        self._until_s[name] = self._now_s() + SESSION_S
        return name

    def end(self, request: Request) -> None:
        """End the requester's session."""
        self._until_s.pop(_cookie_of(request), None)

    def may(self, request: Request) -> bool:
        """Return whether the requester may read the view."""
        if not self.is_token_required:
            return is_this_machine(request.url.hostname or "")
        return self._has_bearer_token(request) or self._until_s.get(_cookie_of(request), float("-inf")) > self._now_s()

    def name_of(self, request: Request) -> str:
        """Return the name of the requester's session. Return "" if no token is required or the request itself contains the token.

        All requests in one session share its confirmation pages.
        """
        return _cookie_of(request) if self.is_token_required and not self._has_bearer_token(request) else ""

    def form_token(self, request: Request) -> str:
        """Return the token that forms in the requester's session must contain. Pages of other sites cannot read this token."""
        return hmac.new(self._secret, self.name_of(request).encode(), hashlib.sha256).hexdigest()

    def is_own_form(self, request: Request, token: str) -> bool:
        """Return whether this form token belongs to the requester's session."""
        return hmac.compare_digest(token.encode(), self.form_token(request).encode())

    def _has_bearer_token(self, request: Request) -> bool:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.is_valid_token(token)


def _cookie_of(request: Request) -> str:
    return request.cookies.get(COOKIE, "")


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a submitted form, or an empty dict if the request body is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            return {}
    return dict(QueryParams(bytes(body)))
