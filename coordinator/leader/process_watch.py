"""Concerns about processes: coordinator replicas without a connection, expiring certificates, logs that cannot be written.

Nothing is decided from them.
"""

from snapline.coordinator.leader.events import ReplicaStatusChecked
from snapline.coordinator.leader.hosts.host_sessions import HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state.operations import clip
from snapline.messages.concerns import Concern

SHOWN_NS = 3 * SECOND_NS
"""Time until a missing replica is reported: a restarted one has reconnected by then."""

DAY_NS = 86_400 * SECOND_NS


class ProcessWatch:
    """The latest reports. Volatile: processes repeat them."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._status = ReplicaStatusChecked("", ())
        self._since_ns: dict[str, int] = {}
        """Unconnected replica → time since when."""

    def on_replica_status_checked(self, event: ReplicaStatusChecked) -> None:
        """Take this replica's check of itself and the others."""
        self._status = event
        self._since_ns = {replica: self._since_ns.get(replica, self._shared.now) for replica in event.missing}

    def concerns(self) -> list[Concern]:
        """Return the concerns of the replicas and of each host."""
        concerns = self._of_replicas()
        own_ns = self._status.certificate_left_ns
        if own_ns is not None:
            concerns.append(_of_certificate(f"replica {self._status.replica} of the coordinator", (), own_ns))
        for host in self._host_sessions.attached():
            session = self._host_sessions.attached_session(host)
            beat = None if session is None else session.heartbeat
            if beat is not None and beat.certificate_left_ns is not None:
                concerns.append(_of_certificate(f"host {host}", (host,), beat.certificate_left_ns))
            if beat is not None and beat.log_problem:
                text = f"host {host} cannot write its log: it takes no inputs, and its durable turns wait: {clip(beat.log_problem)}"
                concerns.append(Concern("log", (host,), 0, text))
        return concerns

    def _of_replicas(self) -> list[Concern]:
        now = self._shared.now
        missing = {
            replica: now - since_ns for replica, since_ns in self._since_ns.items() if now - since_ns >= SHOWN_NS
        }
        if not missing:
            return []
        failures_left = (self._status.count - 1) // 2 - len(missing)
        consequence = f"{failures_left} more may fail" if failures_left > 0 else "if one more fails nobody leads"
        replicas = f"replica{'s' * (len(missing) > 1)} {', '.join(missing)}"
        text = f"the coordinator's leader is not connected to {replicas} of {self._status.count}: {consequence}"
        return [Concern("replica", (), max(missing.values()), text)]


def _of_certificate(whose: str, hosts: tuple[str, ...], left_ns: int) -> Concern:
    if left_ns > 0:
        return Concern("certificate", hosts, 0, f"the certificate of {whose} expires in {_days(left_ns)}")
    text = (
        f"the certificate of {whose} expired {_days(-left_ns)} ago: connections that are opened from now on are refused"
    )
    return Concern("certificate", hosts, -left_ns, text)


def _days(time_ns: int) -> str:
    return f"{time_ns / DAY_NS:.1f} days" if time_ns >= DAY_NS else f"{time_ns / 3600e9:.1f} h"
