"""HTTP session for exporting spans that bounds the collector's answers: an endless answer would fill the memory of the process."""

from typing import Any

import requests

ANSWER_BYTES_MAX = 64 * 1024
"""Largest answer; it contains little more than the number of accepted spans."""


class BoundedSession(requests.Session):
    """Session that reads an answer up to its declared length and up to a limit, and closes a connection that has more data."""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Called for each request."""
        response = super().send(request, **{**options, "stream": True})
        size = response.headers.get("Content-Length", "")
        is_small = size.isdecimal() and int(size) <= ANSWER_BYTES_MAX
        response._content = response.raw.read(ANSWER_BYTES_MAX) if is_small else b""
        if not is_small:
            response.close()
        return response
