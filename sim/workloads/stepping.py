"""Tokens that walk as in `random`, among agents whose turns take steps: a turn waits for the outside while everything else goes on.

A turn that waits is where checkpoints, freezes, plans and stops meet an agent that can do nothing just now. Every third token
is passed on at once, so that turns with and without steps mix. Half of what clients say begins a durable turn.
"""

import functools

import snapline
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.ledger import Parcel, Plan, shares
from snapline.sim.workloads.nudge import Echo
from snapline.sim.workloads.walks import RandomWalker, WalkerState, random_peers
from snapline.sim.workloads.workload import Choose, LedgerWorkload, check_agents, make_fleet, pause_ns, plan_of

AT_ONCE_EVERY = 3
"""Share of an agent's tokens taken without steps: one in so many."""


LOOKS = 2
"""Steps of a durable turn."""


class Look(snapline.Message, frozen=True):
    """The `serial`-th input of a client: look something up, and answer."""

    client: str
    serial: int


class StepperState(WalkerState, kw_only=True):
    """`looked`: what all steps have answered, together."""

    looked: int = 0


class Stepper(RandomWalker):
    """Looks something up, once or twice, before it takes a token."""

    on_error = "undo"
    state: StepperState

    @snapline.handler
    async def on_parcel(self, message: Parcel, ctx: snapline.Context) -> None:
        for number in range(self.state.takes % AT_ONCE_EVERY):
            self.state.looked += await ctx.step(f"look {number}", functools.partial(int, 1))
        self.take(ctx, message)
        self.receive(ctx, message)

    @snapline.handler(durable=True)
    async def on_look(self, message: Look, ctx: snapline.Context) -> None:
        """Handle a client's input. A recovery continues or restarts the turn; there is one answer in either case."""
        found = [await ctx.step("look", functools.partial(float, number)) for number in range(LOOKS)]
        ctx.reply(Echo(message.serial, sum(found) + ctx.random()))


class SteppingWorkload(LedgerWorkload):
    """Tokens, and durable turns that change nothing."""

    def input_of(self, agent: str, client: str, serial: int, choose: Choose) -> snapline.Message | None:
        is_durable = choose("durable", 2) == 1
        return Look(client, serial) if is_durable else super().input_of(agent, client, serial, choose)


def make_stepping(part: FleetPart) -> LedgerWorkload:
    """Tokens on a random graph, among agents that look things up."""
    check_agents(part)
    work = shares(part.pattern.messages, part.agents)
    make = functools.partial(_stepper, plan_of(part, pause_ns(part, part.agents)), work)
    return SteppingWorkload(make_fleet(part, make), total=sum(work), ends=part.pattern.messages > 0)


def _stepper(plan: Plan, work: list[int], index: int) -> Stepper:
    return Stepper(StepperState(plan=plan, index=index, work=work[index], peers=random_peers(index, plan.agents)))
