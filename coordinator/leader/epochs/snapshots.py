"""Tools that want a snapshot: each asks under a number, and is answered when the epoch that is its snapshot has its outcome.

All that wait when an epoch begins share it. They wait for its number first, since who proposes an epoch does not choose that.
"""

from collections.abc import Iterable

from snapline.coordinator.leader.events import AnswerSnapshot
from snapline.coordinator.leader.leader_state import Desk
from snapline.coordinator.state.fleet_records import OperationResult

REQUESTS_MAX = 256
"""Tools waiting for an epoch to begin."""


class Snapshots:
    """Who waits, and for which epoch. Volatile: a tool asks the next leader again."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._requests: list[int] = []
        self._assigned: list[int] = []
        """They wait for the epoch whose beginning is on its way."""
        self._waiting: dict[int, list[int]] = {}
        """By epoch."""

    @property
    def count(self) -> int:
        """How many want an epoch to begin."""
        return len(self._requests)

    @property
    def epochs(self) -> Iterable[int]:
        """The epochs that somebody waits for."""
        return list(self._waiting)

    @property
    def is_settled(self) -> bool:
        """Whether nobody waits."""
        return not self._waiting and not self._requests

    def on_requested(self, request: int) -> None:
        """A tool wants a snapshot."""
        self._requests.append(request)
        if len(self._requests) > REQUESTS_MAX:
            self.refuse(f"{REQUESTS_MAX} others are waiting for a snapshot")

    def assign(self) -> None:
        """An epoch is about to begin: it is the snapshot of all who want one."""
        self._assigned, self._requests = self._requests, []

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """BeginEpoch came back: those who asked wait for that epoch, or ask again."""
        requests, self._assigned = self._assigned, []
        if result is None or result.is_refused:
            self._requests = requests + self._requests
        elif requests:
            self._waiting[result.number] = requests

    def wait_for(self, epoch: int) -> None:
        """This epoch, which is complete, is the snapshot of all who want one."""
        self._waiting[epoch] = self._waiting.get(epoch, []) + self._requests
        self._requests = []

    def answer(self, epoch: int, *, is_complete: bool, reason: str) -> None:
        """The epoch has its outcome, and whoever must know it before has been told."""
        record = self._desk.state.image.epochs.get(epoch)
        root = record.root if record is not None and is_complete else ""
        for request in self._waiting.pop(epoch, []):
            self._desk.out.append(AnswerSnapshot(request, epoch, is_complete, reason, root))

    def refuse(self, reason: str) -> None:
        """No epoch begins for them."""
        requests, self._requests = self._requests, []
        for request in requests:
            self._desk.out.append(AnswerSnapshot(request, 0, False, reason, ""))
