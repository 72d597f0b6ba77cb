"""Builds the messages that a host sends to the coordinator, and decodes the placement of agents in a plan:

- The definition of the fleet.
- Heartbeats, including the agents that are blocked in a durable turn until an operator acts.
- Durations of the host's part of an epoch, taken from the last agent on the host that recorded its state.
- Replies for which the store is read: the content of the coordinator's probe file, and the result of `stop_when` for a complete cut.
"""

import logging
import traceback
from collections.abc import Callable, Iterable
from sys import intern

import msgspec

from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.epoch_files import Capture, Captures
from snapline.agent_runtime.host.host_state import DurableTurn, LocalAgent
from snapline.agent_runtime.snapshots.snapshot_cut import Cut, load_cut
from snapline.errors import DamagedDataError, SnaplineError, StoreKeyError, StoreMissingError, UsageError
from snapline.messages import host_messages as msg
from snapline.messages.host_messages import EpochReport, ProbeRead, StandingAgent, StopEvaluated, UnreachedPeer
from snapline.protocols.policy import format_policy
from snapline.storage.log.log_record import LogName
from snapline.storage.store.store import Store

SHOWN_MAX = 8
"""Largest number of blocked agents that a heartbeat names, since after an upgrade thousands may be blocked for the same reason."""

REASON_CHARACTERS_MAX = 400

CALLED_NS = 10_000_000_000
"""Time after which an effect that is still in doubt is reported. Usually it is probed or called again before that."""


def standing_agents(agents: Iterable[LocalAgent], now_ns: int) -> list[StandingAgent]:
    """Return all blocked agents, sorted by the time for which they have been blocked, longest first."""
    turns = [(agent, agent.turn) for agent in agents if agent.turn is not None]
    blocked = [report for agent, turn in turns if (report := _standing(agent, turn, now_ns)) is not None]
    return sorted(blocked, key=lambda each: (-each.elapsed_ns, each.agent))


def _standing(agent: LocalAgent, turn: DurableTurn, now_ns: int) -> StandingAgent | None:
    effects, elapsed_ns = agent.effects, max(0, now_ns - turn.since_ns)
    if turn.problem:
        return StandingAgent(agent.id, "turn", turn.problem[:REASON_CHARACTERS_MAX], elapsed_ns)
    effect = effects.in_doubt() if effects is not None else None
    if effect is None or not turn.is_live:
        return None
    description = f"effect {effect.opened.name!r}, key {effect.opened.key!r}"[:REASON_CHARACTERS_MAX]
    if effect.needs_people:
        reason = f"{description}: it may have been done, and only people can say"
        return StandingAgent(agent.id, "in_doubt", reason, elapsed_ns)
    if elapsed_ns >= CALLED_NS:
        reason = f"{description}: it may have been done, and its service has not said so yet"
        return StandingAgent(agent.id, "in_doubt", reason, elapsed_ns)
    return None


def definition_of(fleet: Fleet) -> msg.FleetDefinition:
    """Return the fleet's definition as the message that the coordinator needs."""
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
        recovery=fleet.recovery,
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
    """Return a heartbeat that contains the host's counters since its start, and the host's current state."""
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
    """Convert the columns of a plan to the event for the host core. Agent ids are interned, because there may be very many agents."""
    agents = tuple(
        ev.Placement(
            intern(placed.agent), intern(placed.kind), plan.hosts[placed.host], placed.incarnation, placed.ordinal
        )
        for placed in plan.agents
    )
    logs = tuple([LogName(log.plan, log.host, log.host_start) for log in plan.logs])
    newest = tuple([(name, log.newest) for name, log in zip(logs, plan.logs, strict=True) if log.newest])
    line = plan.line_epoch, plan.line_root, plan.begun_epoch
    return ev.PlanReceived(
        *(plan.number, *line, plan.hosts, agents, logs, plan.drop_before, plan.deaths, newest),
        *(plan.era, plan.sources, plan.sources_since, plan.rollbacks),
    )


def timed(report: EpochReport, captures: Captures, *, heard_ns: int, closed_ns: int, durable_ns: int) -> EpochReport:
    """Return the report, completed with durations that are all measured by this host's monotonic clock.

    Args:
        heard_ns: time at which the first message about the epoch arrived.
        closed_ns: time from which no further message of the epoch could arrive at this host.
        durable_ns: time at which this host's part of the epoch became durable.
    """
    last = max(captures.items(), key=_recorded_ns, default=None)
    recorded_ns = heard_ns if last is None else _recorded_ns(last)
    return msgspec.structs.replace(
        report,
        slowest="" if last is None else last[0],
        start_delay_ns=0 if last is None else max(0, last[1].started_ns - heard_ns),
        slowest_capture_ns=0 if last is None else last[1].capture_ns,
        alignment_ns=max(0, closed_ns - recorded_ns),
        store_ns=max(0, durable_ns - closed_ns),
    )


def _recorded_ns(of: tuple[str, Capture]) -> int:
    return of[1].started_ns + of[1].capture_ns


NAMED_MAX = 10
"""Largest number of open effects that a log line and the reply name."""

log = logging.getLogger("snapline.host")


def read_probe(open_store: Callable[[], Store], path: str) -> ProbeRead:
    """Read the coordinator's probe file in this host's store, and return the file's content. If the file cannot be read, return the reason
    and whether the problem may be temporary."""
    try:
        return ProbeRead(path, open_store().read_probe(path))
    except (SnaplineError, OSError) as caught:
        is_wrong = isinstance(caught, DamagedDataError | StoreMissingError | StoreKeyError | UsageError)
        return ProbeRead(path, b"", str(caught), may_pass=not is_wrong)


def ask_stop(fleet: Fleet, open_store: Callable[[], Store], epoch: int, *, is_decided: bool = False) -> StopEvaluated:
    """Call the fleet's `stop_when` with the cut of `epoch`, and return whether the fleet should end. If `is_decided` is set, do not call
    the predicate. Only check whether open effects must end before the fleet ends. If the cut cannot be read, the fleet does not end. If the
    predicate raises an error, the reply contains the error."""
    if fleet.stop_when is None:
        return StopEvaluated(epoch, False)
    try:
        cut = load_cut(open_store(), epoch, fleet)
        problem = ""
        stops = is_decided
        if not is_decided:
            stops, problem = _judge(fleet.stop_when, cut)
        opened, turns = (cut.open_effects, cut.turns_with_effects) if stops or problem else ((), ())
        examples = (opened or turns)[:NAMED_MAX]
        if examples and not is_decided:
            log.info("the fleet ends when these have ended: %s", "; ".join(examples))
        return StopEvaluated(epoch, stops and not opened, problem, examples)
    except SnaplineError as error:
        log.warning("epoch %d cannot be looked at: %s", epoch, error)
    return StopEvaluated(epoch, False)


def _judge(stop_when: Callable[[Cut], object], cut: Cut) -> tuple[bool, str]:
    """Return whether the predicate is true, and the error that it raised. If the predicate raised no error, the second value is ""."""
    try:
        return bool(stop_when(cut)), ""
    except SnaplineError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[:2][-1]  # the predicate's frame, which follows this frame
        return False, f"stop_when raised {type(error).__name__}: {error} ({place.filename}:{place.lineno})"
