"""Snapshots that an operator requests, and checks of the answers."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from snapline.coordinator.leader import events as le
from snapline.protocols.names import is_autonomous
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.world_state import WorldState


class SnapshotLeader(Protocol):
    """Interface of a leader, `simulated_replica.SimLeader`."""

    @property
    def is_over(self) -> bool: ...
    def ask(self, number: int) -> None:
        """Request a snapshot from the leader."""
        ...


class SnapshotRequest(NamedTuple):
    """A request for a snapshot. `begun`: number of epochs that had begun at that time."""

    leader: SnapshotLeader
    asked_ns: int
    begun: int


class SnapshotRequests:
    """Open snapshot requests, by number."""

    def __init__(self, shared: WorldState, log: SimulatedLog, completed_ns: Mapping[int, int]) -> None:
        self._shared = shared
        self._log = log
        self._completed_ns = completed_ns
        self._open: dict[int, SnapshotRequest] = {}
        self._count = 0

    def put(self, leader: SnapshotLeader) -> None:
        """Request a snapshot."""
        self._count += 1
        self._open[self._count] = SnapshotRequest(leader, self._shared.kernel.now_ns, self._log.canonical.image.begun)
        leader.ask(self._count)

    def on_answered(self, answer: le.AnswerSnapshot) -> None:
        """Check an answer: a complete snapshot is a complete epoch, and in coordinated fleets it began after the request."""
        question = self._open.pop(answer.request, None)
        if question is None:
            text = f"question {answer.request} for a snapshot is answered twice, or was never put"
            self._shared.say("answer", "G4", text)
            return
        self._shared.judge.probes.sometimes(answer.is_complete, "snapshot asked for")
        if not answer.is_complete:
            return
        if answer.epoch not in self._completed_ns:
            text = f"epoch {answer.epoch} is given as a complete snapshot, and was never complete"
            self._shared.say("answer", "G4", text)
        elif not is_autonomous(self._shared.workload.fleet.protocol) and answer.epoch <= question.begun:
            text = f"epoch {answer.epoch} answers a request made when epoch {question.begun} had begun"
            self._shared.say("answer", "G4", text)

    def unanswered(self, since_ns: int) -> list[int]:
        """Return the open requests that a present leader received before that time."""
        open_ = {number: each for number, each in self._open.items() if not each.leader.is_over}
        return [number for number, each in open_.items() if each.asked_ns < since_ns]
