"""Who may look: whoever reaches a loopback address, or who has signed in with the token. And what browsers are told of every page.

Programs on other web sites must not read through somebody's browser. A page of theirs that makes its name point to 127.0.0.1 (DNS rebinding)
is known by the name it asks for, so on loopback without a token only names of this machine are answered; with a token the cookie is missing there.
"""

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Callable

from starlette.requests import Request

COOKIE = "snapline-view"
SESSION_S = 12 * 3600
SESSIONS_MAX = 256

POLICY = "; ".join(
    [
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'"),
        *("form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'"),
    ]
)
"""Nothing from elsewhere, nothing that stands in the page itself: only our own files run."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Sessions:
    """Who has signed in. `token`: what they have shown; "": nobody has to."""

    def __init__(self, token: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._digest = hashlib.sha256(token.encode()).digest() if token else b""
        self._now_s = now_s
        self._until_s: dict[str, float] = {}

    @property
    def is_asked_for(self) -> bool:
        """Is a token asked for at all?"""
        return bool(self._digest)

    def is_right(self, token: str) -> bool:
        """Is this the token?"""
        return hmac.compare_digest(hashlib.sha256(token.encode()).digest(), self._digest)

    def begin(self) -> str:
        """The name of a new session. The oldest one ends if there are too many."""
        while len(self._until_s) >= SESSIONS_MAX:
            del self._until_s[next(iter(self._until_s))]
        name = secrets.token_urlsafe(32)
        self._until_s[name] = self._now_s() + SESSION_S
        return name

    def end(self, request: Request) -> None:
        """Sign out."""
        self._until_s.pop(request.cookies.get(COOKIE, ""), None)

    def may(self, request: Request) -> bool:
        """May whoever asks look?"""
        if not self.is_asked_for:
            return is_this_machine(request.url.hostname or "")
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_right(token):
            return True
        return self._until_s.get(request.cookies.get(COOKIE, ""), float("-inf")) > self._now_s()


def is_this_machine(host: str) -> bool:
    """Does a browser that asks for this name mean this machine, whoever answers for names?"""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
