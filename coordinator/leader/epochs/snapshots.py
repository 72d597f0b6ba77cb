"""Snapshot requests of tools. Each has a number, and is answered when its epoch has an outcome.

All requests that wait when an epoch begins share it. First they wait for the epoch's number, which the log assigns.
"""

from collections.abc import Iterable

from snapline.coordinator.leader.events import AnswerSnapshot
from snapline.coordinator.leader.leader_state import LeaderState
from snapline.coordinator.state.fleet_records import OperationResult

REQUESTS_MAX = 256
"""Largest number of tools waiting for an epoch to begin."""


class Snapshots:
    """Waiting requests, and their epochs. Volatile: a tool asks the next leader again."""

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self._requests: list[int] = []
        self._assigned: list[int] = []
        """Requests that wait for the epoch whose BeginEpoch is pending."""
        self._waiting: dict[int, list[int]] = {}
        """Requests by epoch."""

    @property
    def count(self) -> int:
        """Number of requests that wait for an epoch to begin."""
        return len(self._requests)

    @property
    def epochs(self) -> Iterable[int]:
        """Epochs that requests wait for."""
        return list(self._waiting)

    @property
    def is_settled(self) -> bool:
        """Return whether no request waits."""
        return not self._waiting and not self._requests

    def on_requested(self, request: int) -> None:
        """Take a tool's request for a snapshot."""
        self._requests.append(request)
        if len(self._requests) > REQUESTS_MAX:
            self.refuse(f"{REQUESTS_MAX} others are waiting for a snapshot")

    def assign(self) -> None:
        """Assign the waiting requests to the epoch that is about to begin."""
        self._assigned, self._requests = self._requests, []

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """Take the result of BeginEpoch: the assigned requests wait for that epoch or, if it was refused, for another one."""
        requests, self._assigned = self._assigned, []
        if result is None or result.is_refused:
            self._requests = requests + self._requests
        elif requests:
            self._waiting[result.number] = requests

    def wait_for(self, epoch: int) -> None:
        """Assign all waiting requests to this complete epoch."""
        self._waiting[epoch] = self._waiting.get(epoch, []) + self._requests
        self._requests = []

    def answer(self, epoch: int, *, is_complete: bool, reason: str) -> None:
        """Answer the requests for an epoch whose outcome has been sent to the hosts."""
        record = self._shared.state.image.epochs.get(epoch)
        root = record.root if record is not None and is_complete else ""
        for request in self._waiting.pop(epoch, []):
            self._shared.out.append(AnswerSnapshot(request, epoch, is_complete, reason, root))

    def refuse(self, reason: str) -> None:
        """Refuse all requests that wait for an epoch to begin."""
        requests, self._requests = self._requests, []
        for request in requests:
            self._shared.out.append(AnswerSnapshot(request, 0, False, reason, ""))
