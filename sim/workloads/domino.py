"""The adversary of `examples/domino.py`: agents whose own checkpoints never fit together.

A counter circulates in each group of two agents (with an odd number of agents, one group has three). An agent takes a
checkpoint right after it receives the counter, and a timer passes the counter on later. So each checkpoint includes a
message that the previous agent sent after its own last checkpoint. Without forced checkpoints, every checkpoint but the
first is on a Z-cycle.

Under autonomous protocols the scenario's trigger is left out, because a checkpoint at any other moment breaks the chain.
Under coordinated protocols the agents' own checkpoint requests have no effect, and the trigger is used.
"""

import functools

import snapline
from snapline.protocols.names import is_autonomous
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.ledger import Ledger, Parcel, Plan, Tick, Worker, name_of, shares
from snapline.sim.workloads.workload import (
    LedgerWorkload,
    Workload,
    check_agents,
    lanes_of,
    make_fleet,
    pause_ns,
    plan_of,
)

PAUSE_NS = 1_000_000
"""Delay between receiving and passing on if there is no rate: longer than a turn, so that the checkpoint falls in between."""

GROUP = 2


class PlayerState(Ledger, kw_only=True):
    """`partner`: the agent that receives the counter next. `group`: number of agents in the group."""

    partner: str
    group: int


class Player(Worker):
    """Receives, checkpoints, sends."""

    state: PlayerState

    async def on_start(self, ctx: snapline.Context) -> None:
        if self.state.work:
            self.tick(ctx)

    @snapline.handler
    async def on_parcel(self, message: Parcel, ctx: snapline.Context) -> None:
        self.take(ctx, message)
        self.state.work += message.work
        ctx.checkpoint()
        if self.state.work:
            self.tick(ctx)

    @snapline.handler
    async def on_tick(self, message: Tick, ctx: snapline.Context) -> None:
        state = self.state
        state.is_ticking = False
        work, state.work = state.work, 0
        self.send(ctx, state.partner, work - 1)
        if work < state.group:
            ctx.checkpoint()  # the agent's last turn: without this checkpoint the recovery line never reaches the end


class DominoWorkload(LedgerWorkload):
    """Workload whose agents take no inputs: another kind of turn would create a recovery line and hide the domino effect."""

    input_of = Workload.input_of


def make_domino(part: FleetPart) -> LedgerWorkload:
    """Make groups whose first agent starts with all of the group's work."""
    check_agents(part)
    groups = lanes_of(part.agents, GROUP)
    works = shares(part.pattern.messages, len(groups))
    plan = plan_of(part, pause_ns(part, len(groups)) or PAUSE_NS)
    own: list[snapline.Every | snapline.EveryMessages | snapline.Adaptive | snapline.Manual] = [snapline.Manual()]
    make = functools.partial(_player, plan, groups, works)
    fleet = make_fleet(part, make, own=own if is_autonomous(part.protocol) else None)
    return DominoWorkload(fleet, total=sum(works), ends=part.pattern.messages > 0)


def _player(plan: Plan, groups: list[range], works: list[int], index: int) -> Player:
    place = min(index // GROUP, len(groups) - 1)
    while index not in groups[place]:
        place -= 1
    group = groups[place]
    partner = index + 1 if index + 1 < group.stop else group.start
    state = PlayerState(plan=plan, index=index, partner=name_of(partner), group=len(group))
    if index == group.start:
        state.work = works[place]
    return Player(state)
