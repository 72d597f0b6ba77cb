"""Browser headers of a request: which machine it is for, and which site's page it comes from.

Programs on other web sites must not act or read through a user's browser. A page of theirs that makes its name point to 127.0.0.1 (DNS rebinding)
is known by the name it requests, `Host`. Any other request is known by `Sec-Fetch-Site` and `Origin`, about which no page can make a browser
lie. Programs that are no browsers send neither.
"""

import ipaddress

from starlette.requests import Request

OWN_SITE, TYPED = "same-origin", "none"
"""`Sec-Fetch-Site` of a request by a page from here, and of one that a person typed or opened from a bookmark."""


def is_this_machine(host: str) -> bool:
    """Return whether a browser that requests this name means this machine, whichever resolver answers for names."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_from_other_site(request: Request) -> bool:
    """Return whether the browser says that a page of another site makes this request."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site not in (None, OWN_SITE, TYPED):
        return True
    return origin is not None and origin.partition("://")[2] != request.headers.get("Host")


def says_no_site(request: Request) -> bool:
    """Return whether the request does not say which page it comes from: it is of no browser, of an old one, or was typed."""
    return request.headers.get("Sec-Fetch-Site") in (None, TYPED) and "Origin" not in request.headers
