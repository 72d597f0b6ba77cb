"""Answers to tools' questions about the fleet, computed from the replicated state: recovery lines, histories, and agents' locations."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from snapline.coordinator.leader.events import AnswerLine, Cost, RecoveryLineResult
from snapline.coordinator.state.fleet_records import (
    ALIVE,
    LOST,
    RECOVERING,
    AgentRecord,
    EpochEnd,
    PartTimes,
    PlanRecord,
)
from snapline.coordinator.state.fleet_view import FleetView
from snapline.errors import NotFoundError
from snapline.ids import HOST_PREFIX
from snapline.messages.answers import (
    AgentOnLine,
    AutonomousLine,
    AutonomousLines,
    CondemnedEpoch,
    CoordinatedLine,
    CoordinatedLines,
    FailureCost,
    LocatedAgent,
    LocateReply,
    PastRecovery,
    RecoveryHistoryReply,
    Rows,
    document,
)
from snapline.messages.status import ForkedFrom
from snapline.protocols.names import LOCAL


def coordinated_line(state: FleetView, failed: Iterable[str]) -> CoordinatedLine:
    """Return the current recovery line if the agents and hosts in `failed` failed; `host:h1` stands for a host. If `failed` is empty,
    assume that all agents fail.

    With coordinated checkpoints, every failure has the same recovery line, because all agents return to the newest complete epoch. Among
    complete cuts, the newest complete epoch is the recovery line (G5). Epoch 0 stands for the initial states. With local recovery, only the
    agents on the hosts of the failed agents go back, to their newest commits.

    Raises:
        NotFoundError: an agent or host does not exist.
    """
    names = failed_agents(state, list(failed))
    epoch = state.newest_complete()
    record = state.image.epochs.get(epoch)
    root = "" if record is None else record.root
    if state.image.recovery == LOCAL:
        places = {agent: agent_record.host for agent, agent_record in state.living_agents()}
        hosts = {places[name] for name in names}
        line = dict.fromkeys(sorted([agent for agent, host in places.items() if host in hosts]), epoch)
        return CoordinatedLine(
            tuple(names), epoch, root, line, unborn=(), rolled_back=len(line), messages_delivered_again=0
        )
    members = sorted(state.members_of(epoch))
    return CoordinatedLine(
        failed=tuple(names),
        epoch=epoch,
        root=root,
        recovery_line=dict.fromkeys(members, epoch),
        unborn=() if record is None else tuple(sorted(record.unborn)),
        rolled_back=len(members),
        messages_delivered_again=0 if record is None else record.channel_state_messages,
    )


def autonomous_line(state: FleetView, answer: AnswerLine) -> AutonomousLine:
    """Return an autonomous fleet's recovery line for the first failure in `answer`."""
    found, epoch = answer.lines[0], state.newest_complete()
    record = state.image.epochs.get(epoch)
    return AutonomousLine(
        failed=tuple(sorted(found.failed)),
        epoch=epoch,
        root="" if record is None else record.root,
        agents=_agents(found, found.line),
        in_transit=found.in_transit,
        silent_hosts=answer.silent,
    )


def autonomous_lines(names: Iterable[str], answer: AnswerLine) -> AutonomousLines:
    """Return the cost of each single failure in the order of `names`, which lists agents first and then hosts as `host:h1`."""
    pairs = zip(names, answer.lines, strict=True)
    return AutonomousLines(
        tuple([FailureCost(name, _agents(found, found.costs)) for name, found in pairs]), answer.silent
    )


def _agents(found: RecoveryLineResult, names: Iterable[str]) -> tuple[AgentOnLine, ...]:
    free = Cost(0, 0)
    costs = [(name, found.costs.get(name, free)) for name in sorted(names)]
    return tuple([AgentOnLine(name, found.line[name], cost.checkpoints, cost.turns) for name, cost in costs])


def coordinated_lines(state: FleetView) -> CoordinatedLines:
    """Return the cost of each single failure under coordinated checkpoints, where all agents return to one epoch or, with local recovery,
    the agents of one host to their newest commits."""
    epoch = state.newest_complete()
    failures = tuple([name for name, _ in single_failures(state)])
    if state.image.recovery == LOCAL:
        hosts = {agent: record.host for agent, record in state.living_agents()}
        return CoordinatedLines(epoch, failures, tuple(sorted(hosts)), hosts)
    return CoordinatedLines(epoch, failures, tuple(sorted(state.members_of(epoch))))


def single_failures(state: FleetView) -> list[tuple[str, tuple[str, ...]]]:
    """Return every possible single failure, each with the agents that would fail: first each agent, then each host with agents, as
    `host:h1`."""
    living = sorted((agent, record.host) for agent, record in state.living_agents())
    hosts: dict[str, list[str]] = {}
    for agent, host in living:
        hosts.setdefault(host, []).append(agent)
    alone = [(agent, (agent,)) for agent, _ in living]
    return alone + [(f"{HOST_PREFIX}{host}", tuple(agents)) for host, agents in sorted(hosts.items())]


def failed_agents(state: FleetView, failed: list[str]) -> list[str]:
    """Return the agents that `failed` names, sorted, or all agents if `failed` is empty. Raise NotFoundError if an agent or host does not
    exist."""
    living = {agent: record.host for agent, record in state.living_agents()}
    if not failed:
        return sorted(living)
    agents: dict[str, None] = {}
    for name in failed:
        if name.startswith(HOST_PREFIX):
            host = name.removeprefix(HOST_PREFIX)
            if host not in state.image.hosts:
                raise NotFoundError(f"no host {host!r} in this fleet: `snapline status` lists its hosts")
            agents.update(dict.fromkeys(agent for agent, place in living.items() if place == host))
        elif name in living:
            agents[name] = None
        else:
            raise NotFoundError(f"no agent {name!r} in this fleet: `snapline snapshot show` lists the agents")
    return sorted(agents)


def located(state: FleetView, agents: Iterable[str]) -> LocateReply:
    """Return on which hosts these agents run, in the given order."""
    return LocateReply(state.phase, ending_of(state), tuple([_located(state, agent) for agent in agents]))


def located_all(state: FleetView) -> LocateReply:
    """Return on which hosts all agents that take turns run, sorted by agent."""
    return located(state, sorted(agent for agent, _ in state.living_agents()))


def _located(state: FleetView, agent: str) -> LocatedAgent:
    record = state.image.agents.get(agent)
    if record is None:
        return LocatedAgent(agent, "left" if state.has_left(agent) else "unknown")
    host = state.image.hosts.get(record.host)
    address = "" if host is None else host.address
    return LocatedAgent(agent, _agent_state(state, record), record.host, address, record.incarnation)


def _agent_state(state: FleetView, record: AgentRecord) -> str:
    host = state.image.hosts.get(record.host)
    if record.left_plan is not None:
        return "left"
    if host is None:
        return "unplaced"
    return ALIVE if host.state == ALIVE else LOST


def ending_of(state: FleetView) -> str:
    """Return why the fleet has ended, is recovering or is being restored, or "" in all other cases."""
    image, plan = state.image, state.plan
    if image.ending or image.need is not None:
        return image.ending or (image.need.reason if image.need is not None else "")
    is_going_back = plan is not None and plan.restore is not None and state.phase == RECOVERING
    return plan.reason if plan is not None and is_going_back else ""


def forked_from(state: FleetView) -> ForkedFrom | None:
    """Return the origin of the fleet, or None if the fleet is not a fork."""
    fork = state.image.fork
    return None if fork is None else ForkedFrom(fork.name, fork.parent, fork.parent_name, fork.epoch, fork.is_live)


def history(state: FleetView) -> RecoveryHistoryReply:
    """Return all recorded recoveries, oldest first. The plan that started the fleet is not included."""
    return RecoveryHistoryReply(
        recoveries=tuple([_recovery(plan) for plan in state.image.plans if plan.number > state.start_plan]),
        condemned_epochs=tuple([CondemnedEpoch(x.epoch, x.path, x.reason) for x in state.image.condemned]),
    )


def _recovery(plan: PlanRecord) -> PastRecovery:
    return PastRecovery(
        plan=plan.number,
        line_epoch=plan.line_epoch,
        line_root=plan.line_root,
        reason=plan.reason,
        lost_hosts=tuple(plan.lost),
        hosts=tuple(plan.hosts),
        agents=plan.agents,
        rolled_back=plan.rolled_back,
        checkpoints_lost=plan.checkpoints_lost,
        messages_delivered_again=plan.messages,
        condemned_epochs=tuple(plan.condemned),
        suspected=utc(plan.suspected_ns),
        committed=utc(plan.committed_ns),
        done=utc(plan.done_ns) if plan.done_ns else None,
        duration_s=round((plan.done_ns - plan.suspected_ns) / 1e9, 3) if plan.done_ns else None,
        is_restore=plan.restore is not None,
        is_dropping_inputs=plan.restore is not None and plan.restore.drop_inputs,
        void_epochs=tuple(plan.restore.voided) if plan.restore is not None else (),
    )


def utc(now_ns: int) -> str:
    """Format a wall-clock time as RFC 3339 in UTC, with milliseconds."""
    moment = datetime.fromtimestamp(now_ns / 1e9, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


NS, DIGITS = 1e9, 6


def epoch_history(state: FleetView, stored: Sequence[int] | None = None) -> Rows:
    """Return the newest epochs that have ended, oldest first.

    Figures that hosts have not reported are null. `stored` lists all epochs that are currently in the store, or is None if this is unknown.
    """
    image = state.image
    rows = [_epoch_row(end, state) for end in image.ends]
    return document("EpochHistory", fleet=image.name, protocol=image.protocol, epochs=rows, stored=stored)


def _epoch_row(end: EpochEnd, state: FleetView) -> Rows:
    account = end.account
    return {
        "epoch": end.epoch,
        "status": _epoch_status(end, state),
        "plan": end.plan,
        "trigger": end.trigger,
        "begun_s": end.begun_ns / NS,
        "took_s": _seconds(max(0, end.ended_ns - end.begun_ns)),
        "reason": end.reason,
        "state_bytes": end.state_bytes if end.is_complete else None,
        "channel_state_bytes": end.channel_state_bytes if end.is_complete else None,
        "channel_state_messages": end.channel_state_messages if end.is_complete else None,
        "new_bytes": None if account is None else account.new_bytes,
        "reports": None if account is None else account.reports,
        "last": None if account is None else _part_times(account.last),
        "late": None if account is None else _part_times(account.late),
    }


def _epoch_status(end: EpochEnd, state: FleetView) -> str:
    """Return "aborted" for an aborted epoch. For a completed epoch, return "complete", "condemned" or "void" while it is kept, and
    "forgotten" afterwards."""
    if not end.is_complete:
        return "aborted"
    record = state.image.epochs.get(end.epoch)
    return "forgotten" if record is None else record.status


def _part_times(times: PartTimes | None) -> Rows | None:
    if times is None:
        return None
    is_known = any((times.agent, times.start_delay_ns, times.capture_ns, times.alignment_ns, times.store_ns))
    return {
        "host": times.host,
        "agent": times.agent,
        "after_s": _seconds(times.after_ns),
        "start_delay_s": _seconds(times.start_delay_ns) if is_known else None,
        "capture_s": _seconds(times.capture_ns) if is_known else None,
        "alignment_s": _seconds(times.alignment_ns) if is_known else None,
        "store_s": _seconds(times.store_ns) if is_known else None,
    }


def _seconds(time_ns: int) -> float:
    return round(time_ns / NS, DIGITS)
