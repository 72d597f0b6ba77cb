"""A host's messages about itself, and a plan's placement of its agents."""

from sys import intern

from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.blocked_agents import SHOWN_MAX, standing_agents
from snapline.agent_runtime.host.core import HostCore
from snapline.messages import host_messages as msg
from snapline.messages.host_messages import UnreachedPeer
from snapline.protocols.policy import format_policy
from snapline.storage.log.names import LogName


def definition_of(fleet: Fleet) -> msg.FleetDefinition:
    """Return the fleet as the coordinator has to know it."""
    return msg.FleetDefinition(
        name=fleet.name,
        protocol=fleet.protocol,
        period_ns=fleet.period_ns,
        epoch_timeout_ns=round(fleet.epoch_timeout_s * 1e9),
        agents=tuple([msg.AgentKind(agent, fleet.kind_of(agent)) for agent in fleet.agents]),
        never_stops=fleet.stop_when is None,
        policy=format_policy(fleet.policy),
        log_bytes_max=fleet.log_bytes_max,
        places=tuple([msg.PlaceRule(agents, hosts) for agents, hosts in fleet.place.items()]),
        rpo_ns=round((fleet.rpo_s or 0) * 1e9),
        rto_ns=round((fleet.rto_s or 0) * 1e9),
    )


def heartbeat_of(
    core: HostCore,
    sequence: int,
    *,
    now_ns: int,
    steps_loaded: int = 0,
    busy: tuple[msg.OpenTurn, ...] = (),
    certificate_left_ns: int | None = None,
) -> msg.Heartbeat:
    """Return the host's figures since its start, and its present state."""
    counts, standing = core.shared.counts, core.mode.standing()
    agents = [agent for agent in core.agents.values() if agent.inputs is not None or agent.outputs is not None]
    blocked = standing_agents(core.agents.values(), now_ns)
    return msg.Heartbeat(
        sequence=sequence,
        turns=counts.turns,
        dead_letters=counts.dead_letters,
        parked=sum(agent.parked for agent in core.agents.values()),
        inputs_waiting=sum(
            local_agent.inputs.numbered - local_agent.inputs.consumed
            for local_agent in agents
            if local_agent.inputs is not None
        ),
        outputs_waiting=sum(
            len(local_agent.outputs.pending) for local_agent in agents if local_agent.outputs is not None
        ),
        output_bytes_waiting=sum(
            local_agent.outputs.size_bytes for local_agent in agents if local_agent.outputs is not None
        ),
        agents_full=sum(local_agent.is_full for local_agent in agents),
        standing=tuple(blocked[:SHOWN_MAX]),
        agents_standing=len(blocked),
        log_problem=core.log.problem,
        certificate_left_ns=certificate_left_ns,
        busy=busy,
        log_messages=standing.log_messages,
        log_bytes=standing.log_bytes,
        checkpoints=counts.checkpoints,
        forced=counts.forced,
        piggyback_bytes=counts.piggyback_bytes,
        piggybacked=counts.piggybacked,
        storing=standing.storing,
        put_off=counts.put_off,
        store_problem=standing.store_problem,
        is_standing=standing.is_standing,
        plan=core.plan,
        steps_loaded=steps_loaded,
        unreached=tuple(
            [
                UnreachedPeer(peer.host, peer.start, max(0, now_ns - since_ns), peer.is_waited)
                for peer, since_ns in core.links.unreached()
            ]
        ),
    )


def placed(plan: msg.Plan) -> ev.PlanReceived:
    """Return the plan with its columns resolved: ids are interned, since there may be very many."""
    agents = tuple(
        ev.Placement(
            intern(placed.agent), intern(placed.kind), plan.hosts[placed.host], placed.incarnation, placed.ordinal
        )
        for placed in plan.agents
    )
    logs = tuple([LogName(log.plan, log.host, log.host_start) for log in plan.logs])
    newest = tuple([(name, log.newest) for name, log in zip(logs, plan.logs, strict=True) if log.newest])
    line = plan.line_epoch, plan.line_root, plan.begun_epoch
    return ev.PlanReceived(plan.number, *line, plan.hosts, agents, logs, plan.drop_before, plan.deaths, newest)
