"""Tokens that walk as in `random`, among agents that sometimes roll the fleet back (`ctx.rollback`) in the first seconds.

Half of the rollbacks give a reason that occurs again. The second time, the agent stops and an operator rolls the fleet back;
after that the agent may request a rollback again. A rollback undoes the turn that requested it, so the ledgers stay correct.
"""

import functools

import snapline
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.ledger import Parcel, Plan, shares
from snapline.sim.workloads.walks import RandomWalker, WalkerState, random_peers
from snapline.sim.workloads.workload import LedgerWorkload, check_agents, make_fleet, pause_ns, plan_of
from snapline.sim.world.kernel import START_OF_TIME_NS

ASKS = 0.02
"""Probability that a token makes its receiver request a rollback."""

UNTIL_NS = START_OF_TIME_NS + 3_000_000_000
"""Host wall-clock time after which agents request no rollback. A rollback erases the agents' memory of it, and a run must end."""


class Returner(RandomWalker):
    """Agent that consumes a token and sometimes requests a rollback."""

    on_error = "undo"
    state: WalkerState

    @snapline.handler
    async def on_parcel(self, message: Parcel, ctx: snapline.Context) -> None:
        self.take(ctx, message)
        self.receive(ctx, message)
        draw = ctx.random()
        if ctx.now() < UNTIL_NS and draw < ASKS:
            ctx.rollback("astray" if draw < ASKS / 2 else f"astray by {draw}")


def make_returning(part: FleetPart) -> LedgerWorkload:
    """Make a fleet that passes tokens on a random graph and rolls back."""
    check_agents(part)
    work = shares(part.pattern.messages, part.agents)
    make = functools.partial(_returner, plan_of(part, pause_ns(part, part.agents)), work)
    workload = LedgerWorkload(make_fleet(part, make), total=sum(work), ends=part.pattern.messages > 0)
    workload.requests_rollbacks = True
    return workload


def _returner(plan: Plan, work: list[int], index: int) -> Returner:
    return Returner(WalkerState(plan=plan, index=index, work=work[index], peers=random_peers(index, plan.agents)))
