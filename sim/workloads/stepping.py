"""Tokens that walk as in `random`, among agents whose turns take steps: the turn waits while the rest of the fleet continues.

This tests checkpoints, freezes, recovery plans and stops at an agent that is waiting in a turn. Every third token is passed on
at once, so that turns with and without steps mix. Half of the clients' inputs start a durable turn.
"""

import functools

import snapline
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.client_input import Echo
from snapline.sim.workloads.ledger import Parcel, Plan, shares
from snapline.sim.workloads.walks import RandomWalker, WalkerState, random_peers
from snapline.sim.workloads.workload import Choose, LedgerWorkload, check_agents, make_fleet, pause_ns, plan_of

AT_ONCE_EVERY = 3
"""One in this number of an agent's tokens is consumed without steps."""


LOOKS = 2
"""Number of steps of a durable turn."""


class Look(snapline.Message, frozen=True):
    """The `serial`-th input of a client: a request to look something up and answer."""

    client: str
    serial: int


class StepperState(WalkerState, kw_only=True):
    """`looked`: sum of the results of all steps."""

    looked: int = 0


class Stepper(RandomWalker):
    """Agent that takes up to two steps before it consumes a token."""

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
        """Handle a client's input. A recovery continues or restarts the turn; either way it answers once."""
        results = [await ctx.step("look", functools.partial(float, number)) for number in range(LOOKS)]
        ctx.reply(Echo(message.serial, sum(results) + ctx.random()))


class SteppingWorkload(LedgerWorkload):
    """Workload of tokens and of durable turns that change no state."""

    def input_of(self, agent: str, client: str, serial: int, choose: Choose) -> snapline.Message | None:
        is_durable = choose("durable", 2) == 1
        return Look(client, serial) if is_durable else super().input_of(agent, client, serial, choose)


def make_stepping(part: FleetPart) -> LedgerWorkload:
    """Make a fleet that passes tokens on a random graph and takes steps."""
    check_agents(part)
    work = shares(part.pattern.messages, part.agents)
    make = functools.partial(_stepper, plan_of(part, pause_ns(part, part.agents)), work)
    return SteppingWorkload(make_fleet(part, make), total=sum(work), ends=part.pattern.messages > 0)


def _stepper(plan: Plan, work: list[int], index: int) -> Stepper:
    return Stepper(StepperState(plan=plan, index=index, work=work[index], peers=random_peers(index, plan.agents)))
