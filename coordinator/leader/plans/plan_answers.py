"""Time limits for hosts that have received a plan and do not answer.

A host answers with PlanApplied or PlanRefused. Until then its heartbeats report the progress of loading. A host without progress for
ANSWER_NS counts as failed, and the next plan excludes it. A silent host with an open stream is busy, and its silent time does not
count. If no host makes progress, the hosts are not the cause: the plan is made again for all of them. Either way the time limit doubles
for the next plan, until one is applied: a fleet with one slow loading step must finish too.
"""

from snapline.coordinator.leader.hosts.host_sessions import QUIET_NS, HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state.fleet_records import PlanRecord
from snapline.messages.concerns import Concern

ANSWER_NS = 5 * SECOND_NS
"""Time without progress after which a host counts as failed; loading may pause for a moment because of one large state."""

DOUBLINGS_MAX = 5
"""Largest number of doublings: the longest wait is 160 s."""

SHOWN_NS = SECOND_NS

LoadingProgress = tuple[int, int, int]
"""(plan, session, number of loaded steps)."""


class PlanAnswers:
    """Hosts that have not answered the present plan. Volatile."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._waits: dict[str, tuple[LoadingProgress, int]] = {}
        """Host that has not answered → (its place, time since when)."""
        self._doublings = 0

    def shift(self, late_ns: int) -> None:
        """Move all waits by `late_ns`, by which this process was late."""
        now = self._shared.now
        self._waits = {host: (place, min(since + late_ns, now)) for host, (place, since) in self._waits.items()}

    def applied(self) -> None:
        """Reset waits and doublings: all hosts have answered."""
        self._waits, self._doublings = {}, 0

    def stop_waiting(self) -> None:
        """Drop all waits: another plan is needed anyway."""
        self._waits = {}

    def overdue(self, plan: PlanRecord, answered: list[str]) -> dict[str, str]:
        """Return the overdue hosts → what they have not done."""
        late = {}
        for host in plan.hosts:
            session = self._host_sessions.attached_session(host)
            if session is None or host in answered:
                self._waits.pop(host, None)
                continue
            beat = session.heartbeat
            place = plan.number, session.id, beat.steps_loaded if beat.plan == plan.number else 0
            if host not in self._waits or self._waits[host][0] != place:
                self._waits[host] = place, self._shared.now
            quiet_ns = self._host_sessions.quiet_ns(session)
            lasts_ns = self._shared.now - self._waits[host][1] - (quiet_ns if quiet_ns >= QUIET_NS else 0)
            if lasts_ns >= ANSWER_NS << self._doublings:
                late[host] = _describe_overdue(plan.number, lasts_ns)
        return late

    def give_up(self) -> None:
        """Give the next plan twice the time: this one is replaced, or hosts were evicted."""
        self._doublings = min(self._doublings + 1, DOUBLINGS_MAX)
        self._waits = {}

    def concerns(self) -> list[Concern]:
        """Return the hosts that have not answered."""
        concerns = []
        for host, ((number, _, _), since_ns) in self._waits.items():
            lasts_ns = self._shared.now - since_ns
            if lasts_ns >= SHOWN_NS:
                concerns.append(
                    Concern("plan", (host,), lasts_ns, f"host {host}: {_describe_overdue(number, lasts_ns)}")
                )
        return concerns


def _describe_overdue(number: int, lasts_ns: int) -> str:
    return f"it has not applied plan {number}, and not got on with it for {lasts_ns / 1e9:.1f} s"
