"""Agents that stand in the middle of a durable turn, as hosts say in their heartbeats. Nothing is decided from it."""

from snapline.conversation.concerns import Concern
from snapline.coordinator.leader.desk import Desk
from snapline.coordinator.leader.hosts.attendance import Attendance


class StandingAgents:
    """Reads the heartbeats."""

    def __init__(self, desk: Desk, attendance: Attendance) -> None:
        self._desk = desk
        self._attendance = attendance

    def concerns(self) -> list[Concern]:
        """Each that is named, and for each host how many more there are."""
        found: list[Concern] = []
        for host in self._attendance.attached():
            session = self._attendance.attached_session(host)
            if session is None:
                continue
            heard_ns, beat = max(0, self._desk.now - session.beaten_ns), session.heartbeat
            for told in beat.standing:
                text = f"agent {told.agent} on host {host} stands in the middle of a turn: {told.reason}"
                found.append(Concern(told.kind, (host,), told.elapsed_ns + heard_ns, text, (told.agent,)))
            more = beat.agents_standing - len(beat.standing)
            if more > 0:
                last = beat.standing[-1]
                text = f"{more:,} more {'agents stand' if more > 1 else 'agent stands'} in the middle of a turn on host {host}"
                found.append(Concern(last.kind, (host,), last.elapsed_ns + heard_ns, text))
        return found
