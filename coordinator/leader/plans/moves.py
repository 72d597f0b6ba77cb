"""Planned moves of agents: off hosts that an operator drains, and over to hosts that have fewer.

Agents move by a plan, as after a failure, but from an epoch that begins for this plan. So nothing is lost, and only turns taken
while that epoch was made are repeated. Where agents checkpoint by themselves no epoch is needed before: the plan makes one of the live states.

Effects are held before, and those that are being called end (`quiescence.py`): else the plan would put them in doubt.

The log records that a host is drained, and every plan does without it as long as another host is there. A request to spread agents
evenly is known to this leader only, under this plan: the operator checks the result, and asks again.
"""

import msgspec

from snapline.coordinator.leader.host_words import AnswerMoves, MovesRequested
from snapline.coordinator.leader.hosts.host_sessions import HostSessions
from snapline.coordinator.leader.leader_state import LeaderState
from snapline.coordinator.leader.quiescence import Quiescence
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import RUNNING
from snapline.coordinator.state.placement import place
from snapline.messages.concerns import Concern

REASON = "move"


class _Moving(msgspec.Struct, frozen=True):
    """The move to be made. `begun`: epochs that had begun under this plan when it was first seen: a later one is its line."""

    plan: int
    begun: int
    reason: str


class Moves:
    """Operators' requests for placement. Volatile, but for the marks of hosts."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, quiescence: Quiescence) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._quiescence = quiescence
        self._requests: dict[int, MovesRequested] = {}
        self._even_plan: int | None = None
        """The plan whose agents are to be spread evenly."""
        self._moving: _Moving | None = None
        self._uneven: tuple[tuple[int, list[str]], bool] | None = None
        """Plan and hosts, and whether agents are spread unevenly over them."""

    def on_requested(self, event: MovesRequested) -> None:
        """Take an operator's request, perhaps a repeated one."""
        self._requests[event.request] = event
        if event.is_even:
            self._even_plan, self._uneven = self._shared.state.plan_number, None

    # ---- questions ------------------------------------------------------------------------------------------------

    @property
    def is_even(self) -> bool:
        """Return whether the next plan spreads the agents evenly."""
        return self._even_plan is not None and self._even_plan == self._shared.state.plan_number

    @property
    def is_moving(self) -> bool:
        """Return whether agents are about to move: periodic epochs wait."""
        return self._moving is not None

    @property
    def wants_epoch(self) -> bool:
        """Return whether agents wait for an epoch to move from, and none is open."""
        state, moving = self._shared.state, self._moving
        return moving is not None and not self._is_line_there(moving) and not state.open_epochs()

    @property
    def reason(self) -> str:
        """Reason for a plan now; "" if none is needed."""
        moving = self._moving
        return moving.reason if moving is not None and self._is_line_there(moving) else ""

    def usable(self, hosts: list[str]) -> list[str]:
        """Return those of `hosts` that are not drained; all if none is left."""
        known = self._shared.state.image.hosts
        return [host for host in hosts if not known[host].is_drained] or hosts

    def concerns(self) -> list[Concern]:
        """Return the hosts that get no agents."""
        drained = [host for host, record in self._shared.state.image.hosts.items() if record.is_drained]
        text = "is drained: it gets no agents until `snapline host resume`"
        return [Concern("drained", (host,), 0, f"host {host} {text}") for host in drained]

    # ---- deciding -------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Mark hosts, answer the requests for it, and check whether agents have to move."""
        for request, wanted in list(self._requests.items()):
            self._follow(request, wanted)
        state = self._shared.state
        if self._must_go_on():
            return
        reason = self._why()
        if not reason:
            self._moving = None
            self._quiescence.drop(REASON)
            return
        self._quiescence.want(REASON, effects=True)
        if not self._quiescence.is_quiet:
            return
        if self._moving is None or (self._moving.plan, self._moving.reason) != (state.plan_number, reason):
            self._moving = _Moving(state.plan_number, state.image.begun, reason)

    def _must_go_on(self) -> bool:
        """Return whether a plan must follow: a wanted plan freezes agents that checkpoint by themselves, and only a plan ends that."""
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
            is_moving = not image.outcome and bool(self._why())
            self._shared.out.append(AnswerMoves(request, refused, self._shared.state.plan_number, is_moving))
            return
        for mark in (True, False):
            hosts = tuple([host for host, wished in open_marks if wished == mark])
            if hosts:
                self._shared.propose(f"drain/{mark}/{hosts[0]}", op.DrainHosts(hosts, mark))

    def _why(self) -> str:
        """Return why agents have to move; "" if they need not, or cannot now."""
        state, plan = self._shared.state, self._shared.state.plan
        if plan is None or state.phase != RUNNING:
            return ""
        drained = [host for host in plan.hosts if state.image.hosts[host].is_drained]
        if not drained and not self.is_even:
            return ""
        here = self.usable(self._host_sessions.attached())
        if not here or state.image.hosts[here[0]].is_drained:
            return ""
        if drained:
            return f"agents leave {', '.join(drained)}"
        return "agents are spread evenly" if self.is_even and self._is_uneven(here) else ""

    def _is_uneven(self, hosts: list[str]) -> bool:
        """Return whether a plan that spreads agents over these hosts would move any; computed once for each request."""
        state, known = self._shared.state, self._uneven
        if known is None or known[0] != (state.plan_number, hosts):
            agents = [(agent, record.host) for agent, record in state.living_agents()]
            wanted = place(agents, hosts, state.image.places, is_even=True)
            known = self._uneven = ((state.plan_number, hosts), any(wanted[agent] != host for agent, host in agents))
        return known[1]

    def _is_line_there(self, moving: _Moving) -> bool:
        """Return whether the plan's line is there; open epochs end first, so the plan loses none."""
        state = self._shared.state
        return state.is_autonomous or (state.newest_complete() > moving.begun and not state.open_epochs())
