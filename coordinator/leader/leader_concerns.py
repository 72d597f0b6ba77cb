"""A *concern* is a problem of the fleet that is shown to operators. This module collects all concerns, and itself raises those about
processes, missing hosts and recovery objectives.

Each module reports its problems, and `Concerns` adds the start time and the remedy. No decision depends on a concern. Processes raise
concerns about unreachable coordinator replicas, expiring certificates, and logs that cannot be written. A concern about missing hosts is
raised if no host is attached, or if too few hosts are attached for the fleet to start.

*Recovery objectives* are part of the fleet's definition. They limit how much work a failure may undo (RPO) and how long a recovery may take
(RTO). A log line is written when an objective is first missed, and another when it is met again.

*Time.* Objectives are based on wall-clock times in the replicated state, but this core has only a monotonic clock. Because each applied
operation contains the time of its proposal, the offset between the clocks is known to within one log round trip. Until it has applied its
first operation, a new leader underestimates the durations that it compares with the objectives.

The *RPO* is missed when the work at risk (`FleetView.at_risk_ns`) exceeds it. The work at risk grows between epochs, and shrinks when an
epoch completes. The RPO counts as met again only when an epoch completes in time. If the RPO counted as met earlier, a fleet whose epoch
interval is slightly too long would log a warning for every epoch. The work at risk does not grow while the fleet is not running.

The *RTO* is missed when a failure keeps the fleet from running for longer than the RTO. The RTO counts as met again when a later recovery
is fast enough. Plans for restores and moves are not measured.
"""

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from snapline.coordinator.leader.epochs.store_watch import StoreWatch
from snapline.coordinator.leader.events import ReplicaStatusChecked
from snapline.coordinator.leader.hosts.host_sessions import HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state.fleet_records import PLANNED_STOP, RUNNING, PlanRecord
from snapline.coordinator.state.operations import clip
from snapline.messages.status import KINDS, Concern, remedy_of

LOOK_NS = SECOND_NS // 2
"""Time, in nanoseconds, between two checks of all parts, equal to the heartbeat interval. A check after each of thousands of events would
be too much work."""


ABORTED_MIN = 3
"""Number of consecutive aborted epochs that raises a concern. A recovery or a long turn aborts only one or two epochs."""

Source = Callable[[], Sequence[Concern]]
"""A function that returns a part's current concerns. `since_ns` is how long a concern has lasted, or 0 if the part does not record that."""


class Concerns:
    """The fleet's concerns. This state need not be durable, because a new leader collects the concerns again."""

    def __init__(self, shared: LeaderState, sources: Sequence[Source]) -> None:
        self._shared = shared
        self._sources = sources
        self._since_ns: dict[tuple[str, tuple[str, ...], tuple[str, ...]], int] = {}
        self._look_ns = 0

    def evaluate(self) -> None:
        """Record the concerns that are new or have ended."""
        if self._shared.now >= self._look_ns:
            self._look_ns = self._shared.now + LOOK_NS
            self.current()

    def current(self) -> tuple[Concern, ...]:
        """Return the current concerns. If the fleet has ended, return no concerns."""
        now, known = self._shared.now, self._since_ns
        reported = () if self._shared.state.image.outcome else [x for source in self._sources for x in source()]
        concerns = []
        self._since_ns = {}
        for concern in reported:
            key = concern.kind, concern.hosts, concern.agents
            since_ns = self._since_ns[key] = min(now - concern.since_ns, known.get(key, now))
            concerns.append(replace(concern, since_ns=now - since_ns, remedy=remedy_of(concern)))
        return tuple(concerns)


def standing_agents(shared: LeaderState, host_sessions: HostSessions) -> list[Concern]:
    """Return concerns about agents that heartbeats report as blocked inside a durable turn. There is one concern for each named agent, and
    one per host for the number of its other blocked agents."""
    concerns: list[Concern] = []
    for host in host_sessions.attached():
        session = host_sessions.attached_session(host)
        if session is None:
            continue
        heard_ns, beat = max(0, shared.now - session.beaten_ns), session.heartbeat
        named = [
            standing for standing in beat.standing if standing.kind in KINDS
        ]  # skip kinds that this release does not know
        for standing in named:
            text = f"agent {standing.agent} on host {host} stands in the middle of a turn: {standing.reason}"
            concerns.append(Concern(standing.kind, (host,), standing.elapsed_ns + heard_ns, text, (standing.agent,)))
        unnamed = beat.agents_standing - len(named)
        if unnamed > 0 and named:
            last = named[-1]
            text = f"{unnamed:,} more {'agents are' if unnamed > 1 else 'agent is'} blocked in the middle of a turn on host {host}"
            concerns.append(Concern(last.kind, (host,), last.elapsed_ns + heard_ns, text))
    return concerns


def aborted_epoch_concerns(shared: LeaderState, store: StoreWatch) -> list[Concern]:
    """Return a concern if ABORTED_MIN consecutive epochs were aborted although the store is healthy, because no work is being saved."""
    state = shared.state
    if state.phase != RUNNING or store.is_degraded:
        return []
    count = 0
    for end in reversed(state.image.ends):
        if end.is_complete:
            break
        count += 1
    if count < ABORTED_MIN:
        return []
    text = f"the last {count} epochs were aborted, and nothing is saved of what agents do; the last one: {state.image.ends[-1].reason}"
    return [Concern("epochs", (), 0, text)]


SHOWN_NS = 3 * SECOND_NS
"""Time, in nanoseconds, before missing replicas or hosts are shown. Processes that start or restart normally connect within that time."""

DAY_NS = 86_400 * SECOND_NS


class ProcessWatch:
    """The processes' latest reports about themselves. This state need not be durable, because processes repeat their reports."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._status = ReplicaStatusChecked("", ())
        self._since_ns: dict[str, int] = {}
        """Replica without a connection → time since which the replica has had none."""

    def on_replica_status_checked(self, event: ReplicaStatusChecked) -> None:
        """Handle this replica's check of itself and the other replicas."""
        self._status = event
        self._since_ns = {replica: self._since_ns.get(replica, self._shared.now) for replica in event.missing}

    def concerns(self) -> list[Concern]:
        """Return the concerns about the replicas and the attached hosts' processes."""
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


NAMED_MAX = 10


class MissingHosts:
    """Monitor of missing hosts. This state need not be durable, because a new leader first gives the hosts time to reconnect."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._since_ns: int | None = None

    def evaluate(self) -> None:
        """Record since when hosts have been missing, or that none are missing."""
        are_missing = bool(self._text())
        self._since_ns = (self._since_ns or self._shared.now) if are_missing else None

    def concerns(self) -> list[Concern]:
        """Return a concern if no host is attached, or if too few hosts are attached for the fleet to start."""
        lasts_ns = 0 if self._since_ns is None else self._shared.now - self._since_ns
        text = self._text() if lasts_ns >= SHOWN_NS else ""
        return [Concern("hosts", (), lasts_ns, text)] if text else []

    def _text(self) -> str:
        state, attached = self._shared.state, self._host_sessions.attached()
        if not state.image.plans:
            expected = self._shared.options.hosts_expected
            return (
                f"the fleet waits for its hosts: {len(attached)} of {expected} are there"
                if len(attached) < expected
                else ""
            )
        if attached:
            return ""
        records = sorted(state.image.hosts.items())
        names = ", ".join(
            [f"{host} {'unreachable' if x.state == 'alive' else x.state}" for host, x in records[:NAMED_MAX]]
        )
        agents = sum(1 for _ in state.living_agents())
        return f"no host of the fleet is there ({names or 'all are forgotten'}), and its agents ({agents:,}) are paused"


RPO, RTO = "rpo", "rto"
"""Kinds of concerns about missed recovery objectives."""


def objectives_missed(concerns: Iterable[Concern]) -> tuple[str, ...]:
    """Return the recovery objectives that are currently missed."""
    kinds = [concern.kind for concern in concerns]
    return tuple([kind for kind in (RPO, RTO) if kind in kinds])


class Objectives:
    """Monitor of the recovery objectives."""

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self._offset_ns: int | None = None
        """Largest offset observed from the monotonic clock to the state's clock. Smaller values are inexact, because an operation is
        applied some time after its proposal."""
        self._line: tuple[int, int] | None = None
        """(plan, newest complete epoch) since which work is at risk; None if the fleet has not run under this leader."""
        self._line_ns = 0
        """Time, by the state's clock, since which work is at risk."""
        self._peak_ns = 0
        """Amount of work at risk when RPO was last missed, in nanoseconds."""
        self._since: dict[str, int] = {}
        """Missed objective → time since which it has been missed."""

    # ---- checks -----------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Check both objectives, and log every change between missed and met."""
        image = self._shared.state.image
        if not (image.rpo_ns or image.rto_ns) or not image.plans or image.outcome:
            return
        offset_ns = image.now_ns - self._shared.now
        self._offset_ns = offset_ns if self._offset_ns is None else max(self._offset_ns, offset_ns)
        if image.rpo_ns:
            self._check_rpo(image.rpo_ns)
        if image.rto_ns:
            self._check_rto(image.rto_ns)

    @property
    def _now_ns(self) -> int:
        return self._shared.now + (self._offset_ns or 0)

    def _check_rpo(self, rpo_ns: int) -> None:
        state = self._shared.state
        if state.phase != RUNNING:
            return
        at_risk_ns, before, line = self._at_risk_ns, self._line, (state.plan_number, state.newest_complete())
        if before is not None and before[0] == line[0] and before[1] < line[1]:
            peak_ns = self._now_ns - self._line_ns
            if peak_ns > rpo_ns:
                self._peak_ns = peak_ns
                self._on_missed(RPO, self._describe_rpo(peak_ns))
            else:
                self._on_met(
                    RPO, f"epoch {line[1]} came in time: {_s(peak_ns)} of work were at risk; rpo_s is {_s(rpo_ns)}"
                )
        self._line, self._line_ns = line, self._now_ns - at_risk_ns
        if at_risk_ns > rpo_ns:
            self._peak_ns = at_risk_ns
            self._on_missed(RPO, self._describe_rpo(at_risk_ns))

    @property
    def _at_risk_ns(self) -> int:
        return self._shared.state.at_risk_ns(self._now_ns) or 0

    def _check_rto(self, rto_ns: int) -> None:
        state = self._shared.state
        last = next((plan for plan in reversed(state.image.plans) if self._counts(plan) and plan.done_ns), None)
        lasts_ns = self._recovering_ns()
        if (lasts_ns is not None and lasts_ns > rto_ns) or (last is not None and self._took_ns(last) > rto_ns):
            self._on_missed(RTO, self._describe_rto())
        elif last is not None and lasts_ns is None:
            self._on_met(
                RTO, f"the recovery with plan {last.number} took {_s(self._took_ns(last))}; rto_s is {_s(rto_ns)}"
            )

    def _counts(self, plan: PlanRecord) -> bool:
        return plan.is_failure and plan.number > self._shared.state.start_plan

    def _took_ns(self, plan: PlanRecord) -> int:
        return plan.done_ns - self._shared.state.recovery_began_ns(plan)

    def _recovering_ns(self) -> int | None:
        """Return how long, in nanoseconds, a failure has kept the fleet from running. Return None if the fleet is running, or has stopped
        running for another reason."""
        state, plan = self._shared.state, self._shared.state.plan
        began_ns = None
        if plan is not None and not plan.done_ns and plan.number > state.start_plan:
            began_ns = state.recovery_began_ns(plan) if plan.is_failure else None
        need = state.image.need
        if began_ns is None and need is not None and need.reason != PLANNED_STOP and plan is not None:
            began_ns = need.suspected_ns
        return None if began_ns is None else max(0, self._now_ns - began_ns)

    # ---- reports ----------------------------------------------------------------------------------------------------

    def _on_missed(self, kind: str, text: str) -> None:
        if kind not in self._since:
            self._since[kind] = self._shared.now
            self._shared.note("warning", text)

    def _on_met(self, kind: str, text: str) -> None:
        if self._since.pop(kind, None) is not None:
            self._shared.note("info", text)

    def concerns(self) -> list[Concern]:
        """Return one concern for each missed objective."""
        texts = {RPO: self._describe_rpo(self._peak_ns), RTO: self._describe_rto()}
        return [
            Concern(kind, (), self._shared.now - self._since[kind], texts[kind])
            for kind in texts
            if kind in self._since
        ]

    def _describe_rpo(self, peak_ns: int) -> str:
        state = self._shared.state
        most = "at most " if state.is_autonomous else ""
        rpo_s = _s(state.image.rpo_ns)
        if state.phase == RUNNING and self._at_risk_ns > state.image.rpo_ns:
            return f"a failure now would undo {most}{_s(self._at_risk_ns)} of work; rpo_s is {rpo_s}"
        return f"a failure would have undone {most}{_s(peak_ns)} of work before the last epoch was complete; rpo_s is {rpo_s}"

    def _describe_rto(self) -> str:
        state, lasts_ns = self._shared.state, self._recovering_ns()
        rto_s = _s(state.image.rto_ns)
        if lasts_ns is not None and lasts_ns > state.image.rto_ns:
            return f"a failure has kept the fleet from running for {_s(lasts_ns)}; rto_s is {rto_s}"
        done = [plan for plan in state.image.plans if self._counts(plan) and plan.done_ns]
        took = f"took {_s(self._took_ns(done[-1]))}" if done else "took longer"
        return f"the last recovery from a failure {took}; rto_s is {rto_s}"


def _s(time_ns: int) -> str:
    return f"{time_ns / 1e9:.1f} s" if time_ns >= 1e9 else f"{time_ns / 1e9:.3g} s"
