"""The adversary of `examples/domino.py`: agents whose own checkpoints never fit together.

In a group of two (with an odd number of agents one group has three) a counter goes round. Each agent checkpoints right
after it has received the counter, and passes it on after that, by a timer. So every checkpoint of one has received what
the one before it sent after its own last one: without forced checkpoints all but the first are on a Z-cycle.

Where agents checkpoint on their own, the scenario's trigger is left out: a checkpoint at any other moment would break the
chain. Under coordinated protocols the agents' wishes have no effect, and the trigger counts.
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
"""Time between receiving and passing on, without a rate: at least a turn, so that the checkpoint is between the two."""

GROUP = 2


class PlayerState(Ledger, kw_only=True):
    """`partner`: to whom it passes the counter. `group`: how many they are."""

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
            ctx.checkpoint()  # its last turn: without this one the line would never reach the end


class DominoWorkload(LedgerWorkload):
    """Workload whose agents take no inputs: another kind of turn would create a recovery line and hide the domino effect."""

    input_of = Workload.input_of


def make_domino(part: FleetPart) -> LedgerWorkload:
    """The first agent of each group begins, with all of the group's work."""
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
