"""Admission of hosts, and copying the fleet's definition from a host into the log.

*Admission.* Before a host is admitted, the leader checks with a probe file that the host uses the same store, and then proposes a log
entry. Hosts that cannot take part therefore get no log entry. The leader probes each run of a host once. If several new runs of a host
connect, only the latest run is probed.

*Definition.* Until the fleet is defined, the leader asks joining hosts for the definition, and uses the first one that arrives. The
leader first proposes DefineFleet, and then the agents in batches of less than 64 KiB. Every other host's definition must have the same
digest. If the leader dies during this transfer, the log contains only the first part of the definition. The next leader then requests the
definition again, and continues where the log ends.
"""

from collections.abc import Iterable

from snapline.coordinator.leader.events import ProbeWritten, RemoveProbe, WriteProbe
from snapline.coordinator.leader.hosts.host_sessions import (
    Admitting,
    Attached,
    HostSession,
    HostSessions,
    Joining,
    Probing,
)
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import (
    ALIVE,
    LEFT,
    LOST,
    HostRecord,
    OperationResult,
    agents_max,
    problem_of_agent_size,
)
from snapline.errors import UsageError
from snapline.ids import check_id
from snapline.messages.dependencies import (
    DependencyChange,
    bounded_report,
    changes_between,
    describe_changes,
    refused,
)
from snapline.messages.host_messages import FleetDefinition, Join, ProbeRead, ReadProbe
from snapline.protocols.names import GLOBAL, problem_of_recovery

PROBE_NS = 10 * SECOND_NS
"""Time limit, in nanoseconds, to write or read a probe. A coordinator or host that exceeds the limit counts as unable to use its store."""

DEFINITION_MUST_MATCH = (
    "agents, their order and classes, protocol, triggers, epoch_timeout_s, log_bytes_max, place, rpo_s, rto_s, recovery, or whether there is a "
    "stop_when"
)
"""What is said to have changed if the difference between two definitions is unknown."""

ITEMS_SHOWN = 3
"""Number of agents that a refusal names of each change."""


class Admission:
    """Sessions of hosts that have not been admitted yet. This state need not be durable, because hosts rejoin under a new leader."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._probed_runs: dict[str, str] = {}
        """Host → id of its run that has read a probe."""

    # ---- joining --------------------------------------------------------------------------------------------------

    def on_joined(self, number: int, join: Join) -> None:
        """Handle the first message on a stream."""
        host_sessions = self._host_sessions
        if host_sessions.opened(number) is not None:
            return
        session = host_sessions.open(number, join)
        record = self._shared.state.image.hosts.get(join.host)
        refusal = self._refusal_of(join, record)
        if refusal:
            host_sessions.reject_session(session, refusal, is_final=True)
            return
        refusal = self._refusal_of_changes(join, record)
        if refusal:
            hosts = self._shared.state.image.hosts
            others = [other for host, other in hosts.items() if host != join.host and other.state == ALIVE]
            host_sessions.reject_session(session, refusal, is_final=not others)  # its end would end the others' fleet
            return
        if record is not None and _is_same_run(record, join):
            host_sessions.make_current(session, record.start)
        elif self._shared.state.image.outcome:
            host_sessions.send_off(session)
            return
        if self._probed_runs.get(join.host) == join.instance:
            self._on_probed(session)
            return
        for older in host_sessions.all_sessions_in_any_stage():
            if older.host == join.host and older is not session and not older.start:
                host_sessions.reject_session(older, f"a newer stream of host {join.host} has come", is_final=False)
        self._shared.out.append(WriteProbe(session.id))

    def _on_probed(self, session: HostSession) -> None:
        """Attach a session whose host reads the same store as the coordinator. If this run of the host is not in the replicated state,
        admit it first."""
        if session.start:
            self._host_sessions.attach(session)
        else:
            session.stage = Admitting()
            record = self._shared.state.image.hosts.get(session.host)
            session.changes = describe_changes(self._changes_in(session.join, record))
            self._propose(session)

    def _propose(self, session: HostSession) -> None:
        join = session.join
        record = self._shared.state.image.hosts.get(join.host)
        start = 0 if record is None else record.start
        until_ns = self._host_sessions.ran_until_ns({join.host: start})
        kind = op.AdmitHost(
            join.host,
            join.instance,
            join.address,
            start,
            join.died,
            join.died_in,
            until_ns,
            bounded_report(join.dependencies),
        )
        self._shared.propose(f"admit/{session.id}", kind)

    def _refusal_of(self, join: Join, record: HostRecord | None) -> str:
        state = self._shared.state
        known = state.image.definition_digest
        if record is not None and join.instance in record.past:
            return f"a newer process has taken the place of host {join.host}: end this one"
        if known and known != join.definition_digest:
            if join.fleet != state.image.name:
                return (
                    f"host {join.host} defines fleet {join.fleet!r}, and its coordinator has fleet {state.image.name!r}: start the host with "
                    f"that fleet's code and arguments, or give {join.fleet!r} a --data-dir of its own"
                )
            return (
                f"host {join.host} has another definition of fleet {join.fleet!r} than the one that its coordinator has. Changed: "
                f"{_describe_difference(join.definition_parts, state.image.definition_parts)}. Start it with the code and arguments of before, "
                "give the new fleet a --data-dir of its own, or continue from a snapshot with the changed definition: `snapline snapshot fork "
                "ID --fleet MODULE:FLEET …`"
            )
        if join.plan > state.plan_number:
            return f"host {join.host} has applied plan {join.plan} of another run of the fleet: start it anew"
        return ""

    def _changes_in(self, join: Join, record: HostRecord | None) -> tuple[DependencyChange, ...]:
        """Return how the dependencies of a new process differ from those of the host's previous process. A new host is compared with the
        other hosts, and the first hosts of a fork with those of its snapshot."""
        image = self._shared.state.image
        if record is not None:
            before = [image.reports[record.report]] if record.report else []
        else:
            before = list(image.reports.values()) or image.fork_reports
        return changes_between(before, [join.dependencies])

    def _refusal_of_changes(self, join: Join, record: HostRecord | None) -> str:
        """Return why the fleet's policy refuses the new process of a host, or "". A process that takes the place of a failed one is part of
        a recovery, and never refused. While another host's agents must move, no process is refused."""
        state = self._shared.state
        if record is not None:
            has_agents = state.plan is not None and join.host in state.plan.hosts
            was_stopped = record.state == LEFT or (record.is_drained and not has_agents)
            if not was_stopped or record.instance == join.instance:
                return ""
        if any(x.state == LOST and not state.may_forget(host) for host, x in state.image.hosts.items()):
            return ""
        changes = refused(self._changes_in(join, record))
        if not changes:
            return ""
        return (
            f"host {join.host} has other dependencies than before: {describe_changes(changes)}: start it with those of before, or change "
            "on_change in the fleet's definition"
        )

    def on_admission_ended(self, key: str, kind: op.AdmitHost, result: OperationResult | None) -> None:
        """Handle the result of AdmitHost. If the operation came too late or was rejected, `evaluate` proposes it again."""
        session = self._host_sessions.opened(int(key.removeprefix("admit/")))
        if session is None or not isinstance(session.stage, Admitting) or result is None:
            return
        record = self._shared.state.image.hosts.get(session.host)
        refusal = self._refusal_of(session.join, record)
        if refusal:
            self._host_sessions.reject_session(session, refusal, is_final=True)
        elif self._shared.state.image.outcome and (record is None or record.instance != session.join.instance):
            self._host_sessions.send_off(session)
        elif result.is_refused:
            if record is None or record.start == kind.expected_start:
                self._host_sessions.reject_session(session, result.reason, is_final=True)
        elif record is not None and record.instance == session.join.instance:
            self._shared.note("info", f"host {session.host} joins from {session.join.address}, start {record.start}")
            if session.changes:
                self._shared.note(
                    "warning", f"host {session.host} has other dependencies than before: {session.changes}"
                )
            for death in kind.died_in:
                self._shared.note("warning", f"the process of host {session.host} died while {death.describe()}")
            self._host_sessions.make_current(session, record.start)
            self._host_sessions.attach(session)

    def on_defined(self) -> None:
        """Reject hosts whose definition differs from the fleet's and that joined before the fleet was defined."""
        for session in self._host_sessions.all_sessions_in_any_stage():
            refusal = self._refusal_of(session.join, None)
            if refusal and not self._shared.state.image.outcome:
                self._host_sessions.reject_session(session, refusal, is_final=True)

    # ---- the probe ------------------------------------------------------------------------------------------------

    def on_probe_written(self, event: ProbeWritten) -> None:
        """Handle the result of a WriteProbe command."""
        session = self._host_sessions.opened(event.session)
        if session is None or not isinstance(session.stage, Joining):
            if event.path:
                self._shared.out.append(RemoveProbe(event.path))
        elif event.error:
            self._shared.note("error", f"the store cannot be written: {event.error}")
            self._host_sessions.reject_session(
                session, f"the coordinator cannot write the store: {event.error}", is_final=False
            )
        else:
            session.stage = Probing(event.path, event.content, self._shared.now)
            self._shared.send((session.id,), ReadProbe(event.path))

    def on_probe_read(self, number: int, message: ProbeRead) -> None:
        """Compare the probe's content with what the host has read."""
        session = self._host_sessions.opened(number)
        if session is None or not isinstance(session.stage, Probing) or message.path != session.stage.path:
            return
        probe, session.stage = session.stage, Admitting()
        self._shared.out.append(RemoveProbe(probe.path))
        if message.content == probe.content:
            self._probed_runs[session.host] = session.join.instance
            self._on_probed(session)
            return
        reason = message.error or "it found other bytes"
        if (
            message.may_pass or session.host in self._shared.state.image.hosts
        ):  # a known host had the right store: the store is unavailable, not wrong
            self._host_sessions.reject_session(
                session, f"host {session.host} cannot read the store now: {reason}", is_final=False
            )
            return
        self._host_sessions.reject_session(
            session,
            f"host {session.host} does not see the coordinator's store ({probe.path}: {reason}): "
            "--store must be the same shared directory for all",
            is_final=True,
        )

    # ---- decisions ------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Repeat the proposals of pending admissions, and reject sessions whose probe takes too long."""
        if self._shared.state.image.outcome:
            return
        for session in self._host_sessions.all_sessions_in_any_stage():
            if isinstance(session.stage, Attached):
                continue
            match session.stage:
                case Admitting():
                    self._propose(session)
                case Joining(since_ns) if self._shared.now - since_ns >= PROBE_NS:
                    problem = f"the coordinator could not write a probe for host {session.host} in time"
                    self._give_up(session, problem)
                case Probing(_, _, since_ns) if self._shared.now - since_ns >= PROBE_NS:
                    self._give_up(session, f"host {session.host} did not say what its probe holds")
                case _:
                    pass

    def _give_up(self, session: HostSession, what: str) -> None:
        self._host_sessions.reject_session(session, f"{what}: is its --store reachable?", is_final=False)


def _is_same_run(record: HostRecord, join: Join) -> bool:
    return record.instance == join.instance and record.state == ALIVE and record.address == join.address


def _describe_difference(parts: Iterable[str], parts_before: Iterable[str]) -> str:
    """Describe which parts of a fleet's definition have changed. Each part has the form `name=value`.

    If the difference is unknown, name all properties that must match.
    """
    before = {name: value for name, _, value in [part.partition("=") for part in parts_before]}
    differences = []
    for name, _, value in [part.partition("=") for part in parts]:
        if before.get(name, value) == value:
            continue
        changes = _changes_of_agents(value, before[name]) if name == "agents" else []
        differences += changes or [f"{name} (was {before[name]}, is {value})"]
    return "; ".join(differences) or DEFINITION_MUST_MATCH


def _changes_of_agents(agents: str, agents_before: str) -> list[str]:
    """Describe which agents are new, are missing, or have another class. Return nothing for lists that are given only by their digest."""
    now, before = (
        {agent: kind for agent, _, kind in [x.partition(" (") for x in y.split(", ")]} for y in (agents, agents_before)
    )
    if not all(now.values()) or not all(before.values()):
        return []
    new, gone = [x for x in now if x not in before], [x for x in before if x not in now]
    other = [f"{x} (was {before[x][:-1]}, is {now[x][:-1]})" for x in now if before.get(x, now[x]) != now[x]]
    changes = [
        (f"new {_named(new)}", new),
        (f"no {_named(gone)} any more", gone),
        (f"the class of {_named(other)}", other),
    ]
    return [change for change, items in changes if items]


def _named(agents: list[str]) -> str:
    more = f" and {len(agents) - ITEMS_SHOWN} more" if len(agents) > ITEMS_SHOWN else ""
    return f"agent{'s' * (len(agents) != 1)} {', '.join(sorted(agents)[:ITEMS_SHOWN])}{more}"


BATCH_BYTES_MAX = 48 * 1024
"""Largest total size, in bytes, of the names and kinds in one operation. The limit keeps the whole operation below 64 KiB."""

KIND_CHARACTERS_MAX = 1024
"""Largest length, in characters, of an agent's kind, which consists of a module path and a class."""

RULES_MAX, RULE_HOSTS_MAX = 64, 256
"""Largest number of placement rules, and of the hosts in all rules together. Within these limits, the rules fit into the log entry that
defines the fleet."""

PARTS_MAX, PART_CHARACTERS_MAX = 16, 600
"""Largest number of parts of a definition that are kept for rejected hosts, and the length of a part in characters. A definition has nine
parts."""


class Definition:
    """Copies the fleet's definition from a host into the log."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._received: FleetDefinition | None = None
        self._join: Join | None = None

    def on_received(self, session: HostSession, message: FleetDefinition) -> None:
        """Handle a host's message with the fleet's definition."""
        if self._shared.state.is_defined or self._received is not None:
            return
        problem = _problem_of(message)
        if problem:
            self._host_sessions.reject_session(session, f"this fleet cannot be run: {problem}", is_final=True)
            return
        self._received, self._join = message, session.join

    def evaluate(self) -> None:
        """Propose the next missing part of the definition."""
        state, definition = self._shared.state, self._received
        if definition is None or self._join is None:
            return
        if state.is_defined or state.image.definition_digest not in (b"", self._join.definition_digest):
            self._received = None
            return
        if not state.image.agents_defined:
            self._shared.propose(
                "define",
                op.DefineFleet(
                    self._shared.options.cluster,
                    definition.name,
                    definition.protocol,
                    definition.period_ns,
                    definition.epoch_timeout_ns,
                    self._join.definition_digest,
                    len(definition.agents),
                    definition.never_stops,
                    definition.policy,
                    definition.log_bytes_max,
                    definition.places,
                    definition.rpo_ns,
                    definition.rto_ns,
                    tuple([part[:PART_CHARACTERS_MAX] for part in self._join.definition_parts[:PARTS_MAX]]),
                    definition.recovery or GLOBAL,
                ),
            )
        else:
            self._propose_batch(definition, len(state.image.agents))

    def _propose_batch(self, definition: FleetDefinition, first: int) -> None:
        size, agents, kinds = 0, [], []
        for entry in definition.agents[first:]:
            size += len(entry.agent.encode()) + len(entry.kind.encode()) + 8
            if size > BATCH_BYTES_MAX:
                break
            agents.append(entry.agent)
            kinds.append(entry.kind)
        self._shared.propose("define", op.DefineAgents(first, tuple(agents), tuple(kinds)))


def _problem_of(definition: FleetDefinition) -> str:
    count_max = agents_max(definition.protocol)
    if not 0 < len(definition.agents) <= count_max:
        return f"it has {len(definition.agents)} agents, 1 to {count_max} are possible"
    # Hosts of earlier releases leave the field empty.
    if problem := problem_of_recovery(definition.recovery or GLOBAL, definition.protocol):
        return problem
    try:
        check_id(definition.name, "fleet")
        for number, entry in enumerate(definition.agents):
            check_id(entry.agent)
            if problem := problem_of_agent_size(entry.agent, entry.kind, number):
                return problem
            if len(entry.kind) > KIND_CHARACTERS_MAX:
                return f"the class of agent {entry.agent} has a name of {len(entry.kind)} characters"
    except UsageError as error:
        return str(error)
    if len(definition.places) > RULES_MAX or sum([len(rule.hosts) for rule in definition.places]) > RULE_HOSTS_MAX:
        return f"it has more than {RULES_MAX} rules of places, or they name more than {RULE_HOSTS_MAX} hosts"
    names = dict.fromkeys(entry.agent for entry in definition.agents)
    return "" if len(names) == len(definition.agents) else "an agent is defined twice"
