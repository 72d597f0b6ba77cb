"""First operations of a log: the fleet's definition and its initial agents. Also the rules for names of agents created later.

A definition comes in several operations, each of which may be repeated: a repetition changes nothing, and the definition of another
fleet is refused.
"""

from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import (
    AGENTS_EVER_MAX,
    APPLIED,
    REFUSED,
    UNCHANGED,
    AgentRecord,
    FleetImage,
    OperationResult,
    agents_max,
    is_id,
    problem_of_agent_size,
)
from snapline.coordinator.state.fleet_view import FleetView


def define_fleet(state: FleetView, kind: op.DefineFleet) -> OperationResult:
    """Define the fleet. Repeating the same definition changes nothing."""
    image = state.image
    if image.agents_defined:
        if image.definition_digest == kind.definition_digest:
            return OperationResult(UNCHANGED)
        return OperationResult(REFUSED, "another fleet has been defined already")
    if image.fork is not None and image.definition_digest != kind.definition_digest:
        return OperationResult(REFUSED, "the fork was made for another definition of the fleet")
    if not 0 < kind.agents <= agents_max(kind.protocol):
        return OperationResult(REFUSED, f"a fleet has 1 to {agents_max(kind.protocol)} agents, this one {kind.agents}")
    image.cluster, image.name, image.protocol = kind.cluster, kind.name, kind.protocol
    image.period_ns, image.epoch_timeout_ns = kind.period_ns, kind.epoch_timeout_ns
    image.definition_digest, image.agents_defined = kind.definition_digest, kind.agents
    image.never_stops, image.policy, image.log_bytes_max = kind.never_stops, kind.policy, kind.log_bytes_max
    image.definition_parts = list(kind.parts)
    image.places, image.rpo_ns, image.rto_ns = list(kind.places), kind.rpo_ns, kind.rto_ns
    return OperationResult(APPLIED)


def define_agents(state: FleetView, kind: op.DefineAgents) -> OperationResult:
    """Define the next initial agents, in the order of the definition."""
    image = state.image
    position = len(image.agents)
    if state.is_defined or kind.first < position:
        return OperationResult(UNCHANGED, number=position)
    if kind.first > position or len(kind.agents) != len(kind.kinds):
        return OperationResult(
            REFUSED, f"agents from {kind.first} on were defined, {position} is next", number=position
        )
    if position + len(kind.agents) > image.agents_defined:
        return OperationResult(REFUSED, f"more agents than the {image.agents_defined} announced", number=position)
    names = dict.fromkeys(kind.agents)
    if len(names) != len(kind.agents) or not all(is_id(x) and x not in image.agents for x in names):
        return OperationResult(REFUSED, "an agent is defined twice, or has no valid id", number=position)
    for number, (agent, agent_kind) in enumerate(zip(kind.agents, kind.kinds, strict=True), position):
        if problem := problem_of_agent_size(agent, agent_kind, number):
            return OperationResult(REFUSED, problem, number=position)
    for agent, agent_kind in zip(kind.agents, kind.kinds, strict=True):
        image.agents[agent] = AgentRecord(agent_kind, ordinal=next_ordinal(image))
    return OperationResult(APPLIED, number=len(image.agents))


def next_ordinal(image: FleetImage) -> int:
    """Return an ordinal that no agent of this fleet has had."""
    image.next_ordinal += 1
    return image.next_ordinal - 1


def refusal_of_names(state: FleetView, kind: op.CreateAgents) -> str:
    """Return why these agents cannot be created; "": they can."""
    image = state.image
    if not kind.agents or len(kind.agents) != len(kind.kinds):
        return "a creation names agents and their kinds"
    for agent in kind.agents:
        if not is_id(agent):
            return f"{agent!r} is no valid agent id"
        if (agent in image.agents or agent in image.gone) and not state.is_reset_to_unborn(agent):
            return f"agent {agent} has been created before, and ids are never used again"
    if len(dict.fromkeys(kind.agents)) != len(kind.agents):
        return "an agent is created twice"
    count_max = agents_max(image.protocol)
    if len(image.agents) + len(kind.agents) > count_max:
        return f"a fleet has at most {count_max} agents, those counted that left since the oldest kept epoch"
    for number, (agent, agent_kind) in enumerate(zip(kind.agents, kind.kinds, strict=True), len(image.agents)):
        if problem := problem_of_agent_size(agent, agent_kind, number):
            return problem
    if len(image.agents) + len(image.gone) + len(kind.agents) > AGENTS_EVER_MAX:
        return f"a fleet has at most {AGENTS_EVER_MAX} agents in all its life"
    return ""
