"""Limits on unread responses of each caller, since gRPC keeps every response until its caller has room for it.

A caller that never reads costs the memory of each call (16 KB, measured) and its response while the connection is open. This module does no I/O.
"""

CALLS_MAX = 4_096
"""Largest number of concurrent calls of one caller: 64 connections full of calls. All programs that share a certificate are one caller, and each
waiting program has a call in progress."""

UNREAD_BYTES_MAX = 64 * 1024 * 1024
"""Largest size of unread responses: four of the largest. Beyond it new requests are refused; responses of calls in progress still count."""


class ResponseLimits:
    """Limits of all callers of one server."""

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}
        self._bytes: dict[str, int] = {}

    def refusal(self, caller: str) -> str:
        """Return why another call of this caller may not begin; empty: it may."""
        if self._calls.get(caller, 0) >= CALLS_MAX:
            return f"{CALLS_MAX} calls of this caller are under way: wait for their answers"
        if self._bytes.get(caller, 0) >= UNREAD_BYTES_MAX:
            return f"{UNREAD_BYTES_MAX >> 20} MiB of answers to this caller have not been taken: read them first"
        return ""

    def begun(self, caller: str) -> "CallUnderWay":
        """Register a call that begins. The caller reports to the result when the call has its answer and when it ends."""
        self._calls[caller] = self._calls.get(caller, 0) + 1
        return CallUnderWay(self, caller)

    def _change(self, caller: str, *, calls: int, size: int) -> None:
        for table, change in ((self._calls, calls), (self._bytes, size)):
            table[caller] = table.get(caller, 0) + change
            if not table[caller]:
                del table[caller]


class CallUnderWay:
    """One call under way."""

    def __init__(self, unread: ResponseLimits, caller: str) -> None:
        self._limits = unread
        self._caller = caller
        self._size = 0
        self._is_over = False

    def answered(self, size: int) -> None:
        """Count the call's response of `size` bytes, which is about to be sent."""
        if not self._is_over:
            self._size = size
            self._limits._change(self._caller, calls=0, size=size)

    def over(self, _context: object = None) -> None:
        """Note that the answer was read or abandoned. A second call is a no-op."""
        if not self._is_over:
            self._is_over = True
            self._limits._change(self._caller, calls=-1, size=-self._size)
