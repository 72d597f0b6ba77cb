"""Browser headers of a request: the machine that it addresses, and the site of the page that made it.

Pages of other web sites must not act or read through a user's browser. If such a page points its name at 127.0.0.1 (DNS rebinding), the
`Host` header shows that name. All other requests are recognized by `Sec-Fetch-Site` and `Origin`, which a page cannot forge in a
browser. Programs other than browsers send neither header.
"""

import ipaddress

from starlette.requests import Request

OWN_SITE, TYPED = "same-origin", "none"
"""`Sec-Fetch-Site` of a request by a page of ours, and of one that a user typed or opened from a bookmark."""


def is_this_machine(host: str) -> bool:
    """Return whether a browser that requests this name means this machine, regardless of its name resolver."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_from_other_site(request: Request) -> bool:
    """Return whether a page of another site made this request, according to the browser."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site not in (None, OWN_SITE, TYPED):
        return True
    return origin is not None and origin.partition("://")[2] != request.headers.get("Host")


def has_no_site_header(request: Request) -> bool:
    """Return whether the request does not name its page: it comes from no browser or an old one, or was typed."""
    return request.headers.get("Sec-Fetch-Site") in (None, TYPED) and "Origin" not in request.headers
