"""Reports of processes on their environment: coordinator replicas that are not connected, certificates, logs that cannot be written.

Nothing is decided from it.
"""

from snapline.coordinator.leader.events import ReplicaLooked
from snapline.coordinator.leader.hosts.host_sessions import HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state.operations import clip
from snapline.messages.concerns import Concern

SHOWN_NS = 3 * SECOND_NS
"""Time until a missing replica is shown: a restarted one is connected by then."""

DAY_NS = 86_400 * SECOND_NS


class ProcessWatch:
    """The latest reports. Volatile: they are repeated."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._looked = ReplicaLooked("", ())
        self._since_ns: dict[str, int] = {}
        """Replica that is not connected → since when."""

    def on_replica_looked(self, event: ReplicaLooked) -> None:
        """Take this replica's check of itself and the others."""
        self._looked = event
        self._since_ns = {each: self._since_ns.get(each, self._shared.now) for each in event.missing}

    def concerns(self) -> list[Concern]:
        """Return the concerns of the replicas and of each host."""
        found = self._of_replicas()
        own_ns = self._looked.certificate_left_ns
        if own_ns is not None:
            found.append(_of_certificate(f"replica {self._looked.replica} of the coordinator", (), own_ns))
        for host in self._host_sessions.attached():
            session = self._host_sessions.attached_session(host)
            beat = None if session is None else session.heartbeat
            if beat is not None and beat.certificate_left_ns is not None:
                found.append(_of_certificate(f"host {host}", (host,), beat.certificate_left_ns))
            if beat is not None and beat.log_problem:
                text = f"host {host} cannot write its log: it takes no inputs, and its durable turns wait: {clip(beat.log_problem)}"
                found.append(Concern("log", (host,), 0, text))
        return found

    def _of_replicas(self) -> list[Concern]:
        now = self._shared.now
        missing = {each: now - since_ns for each, since_ns in self._since_ns.items() if now - since_ns >= SHOWN_NS}
        if not missing:
            return []
        spare = (self._looked.count - 1) // 2 - len(missing)
        then = f"{spare} more may fail" if spare > 0 else "if one more fails nobody leads"
        named = f"replica{'s' * (len(missing) > 1)} {', '.join(missing)}"
        text = f"the coordinator's leader is not connected to {named} of {self._looked.count}: {then}"
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
