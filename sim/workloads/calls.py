"""Request and reply: every agent calls through a chain of servers, and the answer returns the same way.

A call of agent i goes to i + 1, which calls i + 2, which answers i + 1, which answers i: `DEPTH` requests and as many
replies. A message's work encodes the progress of the call: it starts at 2 * depth messages, and each hop uses one. Each
agent has up to `WINDOW` calls in progress; it begins the next one when one has returned.
"""

import functools

import snapline
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.ledger import Ledger, Parcel, Plan, Tick, Worker, name_of, shares
from snapline.sim.workloads.workload import LedgerWorkload, check_agents, make_fleet, pause_ns, plan_of

DEPTH = 2

WINDOW = 2


class CallerState(Ledger, kw_only=True):
    """`depth`: number of servers in a call's chain. `returned`: number of answered calls whose successor waits for the timer."""

    depth: int
    returned: int = 0


class Caller(Worker):
    """Agent that is both client and server."""

    state: CallerState

    async def on_start(self, ctx: snapline.Context) -> None:
        for _ in range(WINDOW):
            self._call(ctx)

    @snapline.handler
    async def on_parcel(self, message: Parcel, ctx: snapline.Context) -> None:
        state = self.state
        self.take(ctx, message)
        if message.work > state.depth:
            self.send(ctx, self._name(1), message.work - 1)
        elif message.work:
            self.send(ctx, self._name(-1), message.work - 1)
        elif state.plan.pause_ns:
            state.returned += 1
            self.tick(ctx)
        else:
            self._call(ctx)

    @snapline.handler
    async def on_tick(self, message: Tick, ctx: snapline.Context) -> None:
        state = self.state
        state.is_ticking = False
        state.returned -= 1
        self._call(ctx)
        if state.returned:
            self.tick(ctx)

    def _call(self, ctx: snapline.Context) -> None:
        messages = 2 * self.state.depth
        if self.state.work:
            self.state.work -= messages
            self.send(ctx, self._name(1), messages - 1)

    def _name(self, distance: int) -> str:
        return name_of((self.state.index + distance) % self.state.plan.agents)


def make_calls(part: FleetPart) -> LedgerWorkload:
    """Make a fleet that does whole calls only, at least one."""
    check_agents(part)
    depth = min(DEPTH, part.agents - 1)
    calls = max(1, round(part.pattern.messages / (2 * depth))) if part.pattern.messages else 0
    works = [2 * depth * share for share in shares(calls, part.agents)]
    plan = plan_of(part, pause_ns(part, 2 * depth * part.agents))
    make = functools.partial(_caller, plan, depth, works)
    return LedgerWorkload(make_fleet(part, make), total=sum(works), ends=part.pattern.messages > 0)


def _caller(plan: Plan, depth: int, works: list[int], index: int) -> Caller:
    return Caller(CallerState(plan=plan, index=index, work=works[index], depth=depth))
