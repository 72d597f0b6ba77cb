"""What the coordinator says as events of the host core, and what the host says to it as messages."""

from sys import intern

from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.core import HostCore
from snapline.protocols.policy import format_policy
from snapline.protos.v1 import coordinator_pb2 as pb


def definition_of(fleet: Fleet) -> pb.FleetDefinition:
    """The fleet as the coordinator has to know it."""
    return pb.FleetDefinition(
        name=fleet.name,
        protocol=fleet.protocol,
        period_ns=fleet.period_ns,
        epoch_timeout_ns=round(fleet.epoch_timeout_s * 1e9),
        agents=[pb.AgentKind(agent=agent, kind=fleet.kind_of(agent)) for agent in fleet.agents],
        never_stops=fleet.stop_when is None,
        policy=format_policy(fleet.policy),
        log_bytes_max=fleet.log_bytes_max,
    )


def heartbeat_of(core: HostCore, sequence: int, *, now_ns: int, steps_loaded: int = 0) -> pb.Heartbeat:
    """The host's figures since its start, and how it stands now."""
    logged = [agent.logged for agent in core.agents.values() if agent.logged is not None]
    return pb.Heartbeat(
        sequence=sequence,
        turns=core.turns,
        dead_letters=core.dead_letters,
        parked=sum(agent.parked for agent in core.agents.values()),
        log_messages=sum(agent.log_messages for agent in logged),
        log_bytes=sum(agent.log_bytes for agent in logged),
        checkpoints=core.checkpoints,
        forced=core.forced,
        piggyback_bytes=core.piggyback_bytes,
        piggybacked=core.piggybacked,
        storing=sum(epoch.is_stored and not epoch.is_reported and not epoch.refusal for epoch in core.epochs.values()),
        put_off=core.put_off,
        store_problem=core.backlog.problem,
        is_standing=core.backlog.is_standing,
        plan=core.plan,
        steps_loaded=steps_loaded,
        unreached=[
            pb.UnreachedPeer(
                host=peer.host,
                host_start=peer.start,
                elapsed_ns=max(0, now_ns - since_ns),
                is_waited=peer.is_waited,
            )
            for peer, since_ns in core.unreached()
        ],
    )


def event_of(directive: pb.Directive) -> ev.Event | None:
    """The host core's event for a directive, or None for one that is the adapter's."""
    kind = directive.WhichOneof("kind")
    match kind:
        case "welcome":
            welcome = directive.welcome
            return ev.Welcomed(welcome.host_start, welcome.cluster)
        case "roster":
            return ev.RosterReceived(
                tuple(ev.RosterEntry(entry.host, entry.address, entry.host_start) for entry in directive.roster.hosts)
            )
        case "plan":
            return _plan_event(directive.plan)
        case "begin_epoch":
            return ev.EpochBegun(directive.begin_epoch.epoch, directive.begin_epoch.plan)
        case "end_epoch":
            return ev.EpochEnded(directive.end_epoch.epoch, directive.end_epoch.is_complete)
        case "reserved":
            reserved = directive.reserved
            return ev.AgentsReserved(
                reserved.request,
                reserved.recorded,
                tuple(reserved.open_epochs),
                reserved.incarnation,
                reserved.refused,
                tuple(reserved.ordinals),
            )
        case "retired":
            retired = directive.retired
            return ev.AgentRetired(retired.request, tuple(retired.open_epochs), retired.refused)
        case "located":
            located = directive.located
            places = zip(located.agents, located.hosts, located.incarnations, located.ordinals, strict=True)
            return ev.AgentsLocated(located.request, tuple(ev.Placement(a, "", h, i, o) for a, h, i, o in places))
        case "freeze":
            return ev.AgentsFreezeRequested(directive.freeze.plan, directive.freeze.number)
        case "thaw":
            return ev.AgentsThawed(directive.thaw.plan, directive.thaw.number)
        case "request":
            asked = directive.request
            return ev.CheckpointsRequested(
                asked.epoch, asked.plan, tuple(asked.agents), tuple(asked.askers), tuple(asked.numbers)
            )
        case "numbers":
            return ev.NumbersRequested(directive.numbers.request, directive.numbers.plan)
        case _:
            return None


def _plan_event(plan: pb.Plan) -> ev.PlanReceived:
    hosts = tuple(plan.hosts)
    agents = tuple(
        ev.Placement(intern(placed.agent), intern(placed.kind), hosts[placed.host], placed.incarnation, placed.ordinal)
        for placed in plan.agents
    )
    return ev.PlanReceived(plan.number, plan.line_epoch, plan.line_root, plan.begun_epoch, hosts, agents)


def message_of(command: ev.Command, start: int) -> pb.HostMessage | None:
    """The message for a command that the coordinator is to hear, or None."""
    match command:
        case ev.ConfirmPlan():
            return pb.HostMessage(plan_applied=pb.PlanApplied(plan=command.plan, host_start=start))
        case ev.RefusePlan():
            return pb.HostMessage(
                plan_refused=pb.PlanRefused(
                    plan=command.plan,
                    host_start=start,
                    damaged_epoch=command.damaged_epoch,
                    path=command.path,
                    reason=command.reason,
                )
            )
        case ev.RefuseEpoch():
            return pb.HostMessage(
                epoch_refused=pb.EpochRefused(epoch=command.epoch, reason=command.reason, is_final=False)
            )
        case ev.ReserveAgents():
            kinds = [pb.AgentKind(agent=agent, kind=kind) for agent, kind in command.agents]
            return pb.HostMessage(reserve=pb.ReserveAgents(request=command.request, plan=command.plan, agents=kinds))
        case ev.RetireAgent():
            return pb.HostMessage(
                retire=pb.RetireAgent(request=command.request, plan=command.plan, agent=command.agent)
            )
        case ev.LocateAgents():
            return pb.HostMessage(locate=pb.LocateAgents(request=command.request, agents=command.agents))
        case ev.ReportAgentFailed():
            return pb.HostMessage(
                agent_failed=pb.AgentFailed(agent=command.agent, incarnation=command.incarnation, reason=command.reason)
            )
        case ev.AnswerRound():
            return pb.HostMessage(answers=_answers(command, start))
        case ev.ReportLive():
            return pb.HostMessage(live=_live(command))
        case ev.ReportPeerSuspected():
            return pb.HostMessage(
                peer_suspected=pb.PeerSuspected(host=command.peer, host_start=command.start, reason=command.reason)
            )
        case _:
            return None


def _answers(command: ev.AnswerRound, start: int) -> pb.CheckpointAnswers:
    answers = pb.CheckpointAnswers(epoch=command.epoch, plan=command.plan, host_start=start)
    for index, answer in enumerate(command.answers):
        answers.agents.append(answer.agent)
        answers.askers.append(answer.asker)
        answers.willing.append(answer.is_willing)
        answers.participants.append(answer.is_participant)
        answers.numbers.append(answer.number)
        for receiver, number in answer.requests.items():
            answers.request_of.append(index)
            answers.request_to.append(receiver)
            answers.request_number.append(number)
    return answers


def _live(command: ev.ReportLive) -> pb.LiveNumbers:
    live = pb.LiveNumbers(request=command.request, plan=command.plan)
    names: dict[str, int] = {}
    for index, place in enumerate(command.places):
        live.agents.append(names.setdefault(place.agent, len(names)))
        live.turns.append(place.turns)
        for sender, number in place.received.items():
            live.received_of.append(index)
            live.received_from.append(names.setdefault(sender, len(names)))
            live.received_number.append(number)
    live.names.extend(names)
    return live
