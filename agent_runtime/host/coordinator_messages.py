"""What the coordinator says as events of the host core, and what the host says to it as messages."""

from sys import intern

from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.core import HostCore
from snapline.conversation import messages as msg
from snapline.protocols.policy import format_policy


def definition_of(fleet: Fleet) -> msg.FleetDefinition:
    """The fleet as the coordinator has to know it."""
    return msg.FleetDefinition(
        name=fleet.name,
        protocol=fleet.protocol,
        period_ns=fleet.period_ns,
        epoch_timeout_ns=round(fleet.epoch_timeout_s * 1e9),
        agents=tuple([msg.AgentKind(agent, fleet.kind_of(agent)) for agent in fleet.agents]),
        never_stops=fleet.stop_when is None,
        policy=format_policy(fleet.policy),
        log_bytes_max=fleet.log_bytes_max,
    )


def heartbeat_of(
    core: HostCore, sequence: int, *, now_ns: int, steps_loaded: int = 0, busy: tuple[msg.OpenTurn, ...] = ()
) -> msg.Heartbeat:
    """The host's figures since its start, and how it stands now."""
    counts, standing = core.desk.counts, core.mode.standing()
    return msg.Heartbeat(
        sequence=sequence,
        turns=counts.turns,
        dead_letters=counts.dead_letters,
        parked=sum(agent.parked for agent in core.agents.values()),
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
                msg.UnreachedPeer(peer.host, peer.start, max(0, now_ns - since_ns), peer.is_waited)
                for peer, since_ns in core.links.unreached()
            ]
        ),
    )


def event_of(directive: msg.Directive) -> ev.Event | None:
    """The host core's event for a directive, or None for one that is the adapter's."""
    match directive:
        case msg.Welcome():
            return ev.Welcomed(directive.host_start, directive.cluster)
        case msg.Roster():
            return ev.RosterReceived(
                tuple([ev.RosterEntry(entry.host, entry.address, entry.host_start) for entry in directive.hosts])
            )
        case msg.Plan():
            return _plan_event(directive)
        case msg.BeginEpoch():
            return ev.EpochBegun(directive.epoch, directive.plan)
        case msg.EndEpoch():
            return ev.EpochEnded(directive.epoch, directive.is_complete)
        case msg.AgentsReserved():
            return ev.AgentsReserved(
                directive.request,
                directive.recorded,
                directive.open_epochs,
                directive.incarnation,
                directive.refused,
                directive.ordinals,
            )
        case msg.AgentRetired():
            return ev.AgentRetired(directive.request, directive.open_epochs, directive.refused)
        case msg.AgentsLocated():
            places = zip(directive.agents, directive.hosts, directive.incarnations, directive.ordinals, strict=True)
            return ev.AgentsLocated(directive.request, tuple([ev.Placement(a, "", h, i, o) for a, h, i, o in places]))
        case msg.FreezeAgents():
            return ev.AgentsFreezeRequested(directive.plan, directive.number)
        case msg.ThawAgents():
            return ev.AgentsThawed(directive.plan, directive.number)
        case msg.RequestCheckpoints():
            return ev.CheckpointsRequested(
                directive.epoch, directive.plan, directive.agents, directive.askers, directive.numbers
            )
        case msg.ReportNumbers():
            return ev.NumbersRequested(directive.request, directive.plan)
        case _:
            return None


def _plan_event(plan: msg.Plan) -> ev.PlanReceived:
    agents = tuple(
        ev.Placement(
            intern(placed.agent), intern(placed.kind), plan.hosts[placed.host], placed.incarnation, placed.ordinal
        )
        for placed in plan.agents
    )
    return ev.PlanReceived(plan.number, plan.line_epoch, plan.line_root, plan.begun_epoch, plan.hosts, agents)


def message_of(command: ev.Command, start: int) -> msg.HostMessage | None:
    """The message for a command that the coordinator is to hear, or None."""
    match command:
        case ev.ConfirmPlan():
            return msg.PlanApplied(command.plan, start)
        case ev.RefusePlan():
            return msg.PlanRefused(command.plan, start, command.damaged_epoch, command.path, command.reason)
        case ev.RefuseEpoch():
            return msg.EpochRefused(command.epoch, command.reason)
        case ev.ReserveAgents():
            kinds = tuple([msg.AgentKind(agent, kind) for agent, kind in command.agents])
            return msg.ReserveAgents(command.request, command.plan, kinds)
        case ev.RetireAgent():
            return msg.RetireAgent(command.request, command.plan, command.agent)
        case ev.LocateAgents():
            return msg.LocateAgents(command.request, command.agents)
        case ev.ReportAgentFailed():
            return msg.AgentFailed(command.agent, command.incarnation, command.reason)
        case ev.AnswerRound():
            return _answers(command, start)
        case ev.ReportLive():
            return _numbers(command)
        case ev.ReportPeerSuspected():
            return msg.PeerSuspected(command.peer, command.start, command.reason)
        case _:
            return None


def _answers(command: ev.AnswerRound, start: int) -> msg.CheckpointsAnswered:
    answers = command.answers
    requests = [(index, *each) for index, answer in enumerate(answers) for each in answer.requests.items()]
    return msg.CheckpointsAnswered(
        epoch=command.epoch,
        plan=command.plan,
        host_start=start,
        agents=tuple([answer.agent for answer in answers]),
        willing=tuple([answer.is_willing for answer in answers]),
        participants=tuple([answer.is_participant for answer in answers]),
        numbers=tuple([answer.number for answer in answers]),
        request_of=tuple([index for index, _, _ in requests]),
        request_to=tuple([receiver for _, receiver, _ in requests]),
        request_number=tuple([number for _, _, number in requests]),
        askers=tuple([answer.asker for answer in answers]),
    )


def _numbers(command: ev.ReportLive) -> msg.NumbersReported:
    names: dict[str, int] = {}
    agents: list[int] = []
    received: list[tuple[int, int, int]] = []
    for index, place in enumerate(command.places):
        agents.append(names.setdefault(place.agent, len(names)))
        for sender, number in place.received.items():
            received.append((index, names.setdefault(sender, len(names)), number))
    return msg.NumbersReported(
        request=command.request,
        plan=command.plan,
        names=tuple(names),
        agents=tuple(agents),
        received_of=tuple([of for of, _, _ in received]),
        received_from=tuple([sender for _, sender, _ in received]),
        received_number=tuple([number for _, _, number in received]),
        turns=tuple([place.turns for place in command.places]),
    )
