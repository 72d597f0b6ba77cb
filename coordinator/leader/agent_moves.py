"""Planned moves of agents between hosts, and the measured load of hosts, by which plans place agents.

*Moves.* Agents move when an operator drains a host, moves single agents, or requests that agents be spread evenly. Agents move by a recovery plan, as after a
failure, but this plan starts from an epoch taken for the move. A move therefore loses no work, and only turns that run while its epoch is
being taken are repeated. In autonomous protocols, a move needs no epoch of its own, because the plan itself stores the agents' live states
as an epoch.

Before the move, hosts start no new effects and wait for running effects to end (`fleet_end.py`). If effects were still running, the plan
would leave their outcome in doubt.

With local recovery, the epoch only keeps logs short. After it, hosts freeze the agents that are about to move, and commit them. The plan
then starts them from these commits, and all other agents go on, also those of the same hosts. If a host does not answer in time, all its
agents start again.

The log records which hosts are drained. Plans exclude a drained host as long as another host is attached. A request to move single agents
or to spread agents evenly is not durable and applies to the current plan only. The operator checks the result and repeats the request if
necessary.

*Load.* The load of a host is its measured number of turns per agent and second, taken from heartbeats. When a plan places agents that
must move, it weights every agent by this load. Each host counts the turns that its agents take. Two counts under the same plan yield the
average number of turns per agent and second. Counts are recorded only while the fleet is running, because agents take no turns otherwise.
Because an idle agent still uses memory, it is weighted as if it took one turn per second. Invariants:

1. Measurements are discarded when the plan changes, because another plan places agents differently.
2. If any host of the plan has not been measured, no measurement is used, because otherwise all agents would move to unmeasured hosts.
3. Measurements alone decide nothing. The weights are written to the plan's log entry, from which every replica computes the same placement.
   A new leader has no measurements yet, so it places agents by the number of agents per host.
"""

from collections import Counter

import msgspec

from snapline.coordinator.leader.events import AnswerMoves, MovesRequested
from snapline.coordinator.leader.fleet_end import Quiescence
from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import RUNNING
from snapline.coordinator.state.operation_rules import place
from snapline.messages.status import Concern
from snapline.protocols.names import LOCAL

REASON = "move"


class _Moving(msgspec.Struct, frozen=True):
    """The pending move. The move starts from a later epoch than `begun`, the newest epoch that had begun when the move was first needed."""

    plan: int
    begun: int
    reason: str


class Moves:
    """Operators' requests to move agents. Of this state, only the drain marks are durable, because they are in the log."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, quiescence: Quiescence) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._quiescence = quiescence
        self._requests: dict[int, MovesRequested] = {}
        self._rebalanced_plan: int | None = None
        """The plan whose agents must be spread evenly; None if no such request is pending."""
        self._placed: tuple[int, dict[str, str]] = 0, {}
        """The plan under which single agents must move, and the hosts to which they move."""
        self._moved_now: tuple[object, tuple[str, ...]] | None = None
        """Cached result: (what it depends on, the agents that the pending request moves)."""
        self._moving: _Moving | None = None
        self._unevenness: tuple[tuple[int, list[str]], bool] | None = None
        """Cached result: ((plan, hosts), whether that plan's agents are spread unevenly over these hosts)."""

    def on_requested(self, event: MovesRequested) -> None:
        """Handle an operator's request to move agents. The operator may repeat the request."""
        self._requests[event.request] = event
        if event.is_even:
            self._rebalanced_plan, self._unevenness = self._shared.state.plan_number, None
        if event.placed:
            plan = self._shared.state.plan_number
            self._placed = plan, {**(self._placed[1] if self._placed[0] == plan else {}), **event.placed}

    # ---- queries --------------------------------------------------------------------------------------------------

    @property
    def is_even(self) -> bool:
        """Return whether the next plan must spread the agents evenly."""
        return self._rebalanced_plan is not None and self._rebalanced_plan == self._shared.state.plan_number

    @property
    def placed(self) -> dict[str, str]:
        """Return the hosts to which single agents move with the next plan, by agent, as far as they are not there yet and may go there."""
        state, (plan, placed) = self._shared.state, self._placed
        if plan != state.plan_number or not placed:
            return {}
        usable, living = self.usable(self._host_sessions.attached()), dict(state.living_agents())
        return {
            agent: host
            for agent, host in placed.items()
            if agent in living and living[agent].host != host and host in usable
        }

    @property
    def is_moving(self) -> bool:
        """Return whether agents are about to move. No periodic epoch begins while agents are about to move."""
        return self._moving is not None

    @property
    def wants_epoch(self) -> bool:
        """Return whether a move is waiting for a new epoch to begin."""
        state, moving = self._shared.state, self._moving
        return moving is not None and not self._is_line_complete(moving) and not state.open_epochs()

    @property
    def reason(self) -> str:
        """Return why a plan is needed for the move now, or "" if none is needed yet."""
        moving = self._moving
        is_held = self._shared.state.image.recovery != LOCAL or self._quiescence.is_quiet
        return moving.reason if moving is not None and is_held and self._is_line_complete(moving) else ""

    def usable(self, hosts: list[str]) -> list[str]:
        """Return the hosts in `hosts` that are not drained, or all of them if every host is drained."""
        records = self._shared.state.image.hosts
        return [host for host in hosts if not records[host].is_drained] or hosts

    def concerns(self) -> list[Concern]:
        """Return one concern for each drained host."""
        drained = [host for host, record in self._shared.state.image.hosts.items() if record.is_drained]
        text = "is drained: it gets no agents until `snapline host resume`"
        return [Concern("drained", (host,), 0, f"host {host} {text}") for host in drained]

    # ---- decisions ------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Propose drain marks, answer requests whose marks are in the log, and decide whether agents must move."""
        for request, wanted in list(self._requests.items()):
            self._follow(request, wanted)
        state = self._shared.state
        if self._must_complete():
            return
        reason = self._move_reason()
        if not reason:
            self._moving = None
            self._quiescence.drop(REASON)
            return
        is_local, moving = state.image.recovery == LOCAL, self._moving
        is_known = moving is not None and (moving.plan, moving.reason) == (state.plan_number, reason)
        if not is_local or (moving is not None and is_known and self._is_line_complete(moving)):
            self._quiescence.want(REASON, effects=True, frozen=self._moved() if is_local else ())
        if not is_known and (is_local or self._quiescence.is_quiet):
            self._moving = _Moving(state.plan_number, state.image.begun, reason)

    def _moved(self) -> tuple[str, ...]:
        """Return the agents that the pending request moves. The result is cached, because this method is called at each event."""
        state, hosts, requested = self._shared.state, self.usable(self._host_sessions.attached()), self.placed
        key = state.plan_number, hosts, requested, self.is_even
        if self._moved_now is None or self._moved_now[0] != key:
            living = [(agent, requested.get(agent, record.host)) for agent, record in state.living_agents()]
            placement = place(living, hosts, state.image.places, is_even=self.is_even)
            moved = [agent for agent, record in state.living_agents() if placement[agent] != record.host]
            self._moved_now = key, tuple(moved)
        return self._moved_now[1]

    @property
    def frozen(self) -> tuple[str, ...]:
        """Return the agents that are frozen and committed for the move."""
        return self._quiescence.frozen

    def _must_complete(self) -> bool:
        """Return whether the pending move can no longer be cancelled. In autonomous protocols, agents may already be frozen for the move,
        and only a plan ends that freeze."""
        state, moving = self._shared.state, self._moving
        is_wanted = moving is not None and moving.plan == state.plan_number
        return is_wanted and state.is_autonomous and state.phase == RUNNING

    def _follow(self, request: int, wanted: MovesRequested) -> None:
        image = self._shared.state.image
        marks = [(host, True) for host in wanted.drained] + [(host, False) for host in wanted.resumed]
        open_marks = [
            (host, mark) for host, mark in marks if host in image.hosts and image.hosts[host].is_drained != mark
        ]
        if image.outcome or not open_marks:
            del self._requests[request]
            refused = "the fleet has ended" if image.outcome else ""
            is_moving = not image.outcome and bool(self._move_reason())
            self._shared.out.append(AnswerMoves(request, refused, self._shared.state.plan_number, is_moving))
            return
        for mark in (True, False):
            hosts = tuple([host for host, is_drain in open_marks if is_drain == mark])
            if hosts:
                self._shared.propose(f"drain/{mark}/{hosts[0]}", op.DrainHosts(hosts, mark))

    def _move_reason(self) -> str:
        """Return why agents must move, or "" if they need not or currently cannot move."""
        state, plan = self._shared.state, self._shared.state.plan
        if plan is None or state.phase != RUNNING:
            return ""
        drained = [host for host in plan.hosts if state.image.hosts[host].is_drained]
        placed = self.placed
        if not drained and not self.is_even and not placed:
            return ""
        usable = self.usable(self._host_sessions.attached())
        if not usable or state.image.hosts[usable[0]].is_drained:
            return ""
        if drained:
            return f"agents leave {', '.join(drained)}"
        if placed:
            return f"agents move to {', '.join(dict.fromkeys(placed.values()))}"
        return "agents are spread evenly" if self.is_even and self._is_uneven(usable) else ""

    def _is_uneven(self, hosts: list[str]) -> bool:
        """Return whether spreading the agents evenly over these hosts would move any agent. The result is cached for the current plan and
        host list."""
        state, cached = self._shared.state, self._unevenness
        if cached is None or cached[0] != (state.plan_number, hosts):
            agents = [(agent, record.host) for agent, record in state.living_agents()]
            placement = place(agents, hosts, state.image.places, is_even=True)
            cached = self._unevenness = (
                (state.plan_number, hosts),
                any(placement[agent] != host for agent, host in agents),
            )
        return cached[1]

    def _is_line_complete(self, moving: _Moving) -> bool:
        """Return whether the epoch for the move is complete and no other epoch is open, so that the plan loses no open epoch. In
        autonomous protocols, this method always returns True."""
        state = self._shared.state
        return state.is_autonomous or (state.newest_complete() > moving.begun and not state.open_epochs())


LEAST_NS = 2 * SECOND_NS
"""Shortest measuring time, in nanoseconds; it spans several heartbeats."""

WINDOW_NS = 30 * SECOND_NS
"""Length of the measuring window, in nanoseconds. Turns older than twice this length are not counted."""

AT_REST, WEIGHT_MAX = 10, 10_000
"""The weight of an idle agent, and the largest weight, which an agent with a thousand turns per second has. The unit is a tenth of a turn
per second; a weight fits into two bytes."""


class _Mark(msgspec.Struct, frozen=True):
    """A host's turn count at one point in time."""

    at_ns: int
    turns: int


class _Measure(msgspec.Struct):
    """A host's turn counts at the start of the current measuring window, at the start of the next window, and at the last heartbeat."""

    first: _Mark
    second: _Mark
    latest: _Mark


class HostLoads:
    """The measured load of hosts. A new leader measures the loads again."""

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self._plan = 0
        """The plan under which the measurements were taken."""
        self._measures: dict[str, _Measure] = {}

    def on_heartbeat(self, session: HostSession) -> None:
        """Record the turn count in a host's heartbeat."""
        state = self._shared.state
        if state.phase != RUNNING:
            return
        if self._plan != state.plan_number:
            self._plan, self._measures = state.plan_number, {}
        mark = _Mark(self._shared.now, session.heartbeat.turns)
        measure = self._measures.get(session.host)
        if measure is None or mark.turns < measure.latest.turns:
            self._measures[session.host] = _Measure(mark, mark, mark)
            return
        measure.latest = mark
        if mark.at_ns - measure.second.at_ns >= WINDOW_NS:
            measure.first, measure.second = measure.second, mark

    def weights(self) -> tuple[int, ...]:
        """Return the weight of an agent on each host of the plan, in the plan's host order. Return an empty tuple if a weight is unknown
        or all weights are equal."""
        state, plan = self._shared.state, self._shared.state.plan
        if plan is None or self._plan != plan.number:
            return ()
        agents = Counter(record.host for _, record in state.living_agents())
        weights = [self._weight(host, agents[host]) for host in plan.hosts]
        return () if None in weights or len(set(weights)) == 1 else tuple([weight for weight in weights if weight])

    def _weight(self, host: str, agents: int) -> int | None:
        """Return the weight of an agent on this host, or None if the host has been measured for less than LEAST_NS."""
        measure = self._measures.get(host)
        passed_ns = measure.latest.at_ns - measure.first.at_ns if measure is not None else 0
        if measure is None or passed_ns < LEAST_NS:
            return None
        tenths = 10 * (measure.latest.turns - measure.first.turns) * SECOND_NS // (passed_ns * max(1, agents))
        return min(AT_REST + tenths, WEIGHT_MAX)
