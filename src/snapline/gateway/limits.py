"""Limits on the number and size of a gateway's requests, for one agent and in total. Requests above the limits are rejected at once."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.gateway.problems import BusyError

AGENT_REQUESTS_MAX = 100
"""Largest number of requests to one agent, which handles them one after the other: a queue of a few seconds. Other agents are not affected."""

REQUESTS_MAX = 600
"""Largest number of requests in total: below the number of connections, so that incomplete requests have room."""

AGENT_BYTES_MAX = MESSAGE_BYTES_MAX
"""Largest size of requests to one agent: one message of the largest size."""

BYTES_MAX = 2 * MESSAGE_BYTES_MAX
"""Largest size of requests in total: a client holds twice that, and makes further sends wait."""

STREAMS_MAX = 64
"""Largest number of concurrent output streams: each may hold two pages of outputs, some MiB."""


class RequestLimits:
    """Counts the open requests of one gateway."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._streams = 0

    @contextmanager
    def request(self, agent: str) -> Iterator[Callable[[int], None]]:
        """Count a request for an agent until the block ends. The yielded function counts bytes of its body.

        Raises:
            BusyError: a limit is exceeded; the yielded function raises it too.
        """
        if self._requests[agent] >= AGENT_REQUESTS_MAX:
            raise BusyError(f"agent {agent} has {AGENT_REQUESTS_MAX} requests of this gateway under way")
        if self._requests.total() >= REQUESTS_MAX:
            raise BusyError(f"this gateway has {REQUESTS_MAX} requests under way")
        taken = 0

        def take(size_bytes: int) -> None:
            nonlocal taken
            taken += size_bytes
            self._bytes[agent] += size_bytes
            if self._bytes[agent] > AGENT_BYTES_MAX:
                raise BusyError(f"agent {agent} has {AGENT_BYTES_MAX:,} bytes of requests of this gateway under way")
            if self._bytes.total() > BYTES_MAX:
                raise BusyError(f"this gateway has {BYTES_MAX:,} bytes of requests under way")

        self._requests[agent] += 1
        try:
            yield take
        finally:
            self._give_back(agent, taken)

    def _give_back(self, agent: str, size_bytes: int) -> None:
        self._requests[agent] -= 1
        self._bytes[agent] -= size_bytes
        for counts in (self._requests, self._bytes):
            if not counts[agent]:
                del counts[agent]

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count a reader of outputs until the block ends.

        Raises:
            BusyError: there are too many readers.
        """
        if self._streams >= STREAMS_MAX:
            raise BusyError(f"this gateway has {STREAMS_MAX} readers of outputs")
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1
