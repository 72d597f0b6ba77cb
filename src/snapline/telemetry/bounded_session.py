"""Requests to a collector of spans whose answers are bounded: without that an answer that never ends would fill the memory of the process."""

from typing import Any

import requests

ANSWER_BYTES_MAX = 64 * 1024
"""Largest answer; it contains little more than how many spans were taken."""


class BoundedSession(requests.Session):
    """Reads an answer as far as it says its length, and up to a limit; a connection with more to come is closed."""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Called for each request."""
        response = super().send(request, **{**options, "stream": True})
        size = response.headers.get("Content-Length", "")
        is_small = size.isdecimal() and int(size) <= ANSWER_BYTES_MAX
        response._content = response.raw.read(ANSWER_BYTES_MAX) if is_small else b""
        if not is_small:
            response.close()
        return response
