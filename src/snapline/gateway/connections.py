"""Limits on external connections: time to complete a request, time to read the answer, and their number.

uvicorn waits forever for the rest of a request, and for a client that does not read the answer. This module closes a connection whose request is
never completed, or whose answer is not read. If too many are open, it closes the one that has waited longest for the end of its request, so silent
connections lock nobody out.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from snapline.channels.options import files_max

REQUEST_S_MAX = 30.0
"""Longest time for a request to arrive completely: 16 MiB over 5 Mbit/s."""

READER_S_MAX = 60.0
"""Longest time for a reader to receive what was sent, at most 128 KiB and one part of an answer; after that the reader counts as gone."""

CONNECTIONS_MAX = 800
"""Largest number of connections: below the 1,024 open files that many systems allow; also at most half of this process's limit. A connection with
an incomplete request takes about 30 KiB."""

HEAD_BYTES_MAX = 16 * 1024
"""Largest size of a request without its body: twice what browsers send with many cookies."""


class BoundedConnection(H11Protocol):
    """Connection with limits; see the module."""

    waiting_since_s = 0.0
    _ending: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Return whether the request is still incomplete."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Called by asyncio."""
        super().connection_made(transport)
        self._wait_for_request()
        if len(self.connections) > min(CONNECTIONS_MAX, files_max() // 2):
            open_ones = [each for each in self.connections if isinstance(each, BoundedConnection)]
            waiting = [each for each in open_ones if each.is_waiting and not each.transport.is_closing()]
            min(waiting, key=lambda each: each.waiting_since_s).cut()  # possibly this connection

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        was_waiting = self.is_waiting
        super().data_received(data)
        if was_waiting and not self.is_waiting:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Called by uvicorn at the end of an answer; the next request may begin here."""
        super().on_response_complete()
        self._stop_waiting()
        if self.is_waiting:
            self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._stop_waiting()
        self._stop_taking()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Called by asyncio."""
        super().pause_writing()
        self._taking = self.loop.call_later(READER_S_MAX, self.cut)

    def resume_writing(self) -> None:
        """Called by asyncio."""
        self._stop_taking()
        super().resume_writing()

    def cut(self) -> None:
        """Close the connection, even with an incomplete request or answer."""
        self.transport.abort()

    def _wait_for_request(self) -> None:
        self.waiting_since_s = self.loop.time()
        self._ending = self.loop.call_later(REQUEST_S_MAX, self.cut)

    def _stop_waiting(self) -> None:
        if self._ending is not None:
            self._ending.cancel()

    def _stop_taking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
