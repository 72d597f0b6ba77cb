"""Transfer of the fleet's definition from a host into the log: DefineFleet, then its agents in batches below 64 KiB.

Hosts that join before the fleet is defined are asked for its definition, and the first one that arrives is used. Other hosts
must have the same digest. If a leader dies half way, the log holds a prefix: the next leader gets the definition again and
continues from there.
"""

from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import LeaderState
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import agents_max, problem_of_agent_size
from snapline.errors import UsageError
from snapline.ids import check_id
from snapline.messages.host_messages import FleetDefinition, Join

BATCH_BYTES_MAX = 48 * 1024
"""Largest size of names and kinds in one operation, so that it stays below 64 KiB with all lengths."""

KIND_CHARACTERS_MAX = 1024
"""Largest length of one agent's kind: a module path and a class."""

RULES_MAX, RULE_HOSTS_MAX = 64, 256
"""Largest number of placement rules, and of hosts in them: they fit into the log entry that defines the fleet."""

PARTS_MAX, PART_CHARACTERS_MAX = 16, 600
"""Limits of the definition shown to rejected hosts, which has nine parts."""


class Definition:
    """The fleet's definition until it is in the log."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._received: FleetDefinition | None = None
        self._join: Join | None = None

    def on_received(self, session: HostSession, message: FleetDefinition) -> None:
        """Take the fleet's definition from a host."""
        if self._shared.state.is_defined or self._received is not None:
            return
        problem = _problem_of(message)
        if problem:
            self._host_sessions.reject_session(session, f"this fleet cannot be run: {problem}", is_final=True)
            return
        self._received, self._join = message, session.join

    def evaluate(self) -> None:
        """Propose the missing part of the definition."""
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
