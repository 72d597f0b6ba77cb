"""Rounds without a barrier: all-to-all, and a grid whose agents exchange borders.

In each round, an agent sends one message to every receiver. It begins round n + 1 when it has consumed n messages from
every sender. A message of a later round may arrive early; it counts when its round begins. (The local synchroniser of
Awerbuch, "Complexity of Network Synchronization", J. ACM 32, 1985.)
"""

import functools
import math

import snapline
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.ledger import FOREVER, Ledger, Parcel, Plan, Tick, Worker, name_of
from snapline.sim.workloads.workload import LedgerWorkload, Make, check_agents, make_fleet, pause_ns, plan_of

RECEIVERS_MAX = 64
"""Largest number of receivers of an agent in an endless all-to-all. Otherwise the messages of one round set the number."""


class RoundState(Ledger, kw_only=True):
    """`round`: number of rounds begun. `senders`: number of senders. `arrived`: number of senders whose message of this round was consumed."""

    peers: list[str]
    senders: int
    round: int = 0
    arrived: int = 0


class RoundWorker(Worker):
    """Agent that begins a round when all its senders have begun the previous one."""

    state: RoundState

    async def on_start(self, ctx: snapline.Context) -> None:
        self._begin_round(ctx)

    @snapline.handler
    async def on_parcel(self, message: Parcel, ctx: snapline.Context) -> None:
        state = self.state
        self.take(ctx, message)
        if state.got[ctx.sender].count == state.round:
            state.arrived += 1
            self._go_on(ctx)

    @snapline.handler
    async def on_tick(self, message: Tick, ctx: snapline.Context) -> None:
        self.state.is_ticking = False
        self._begin_round(ctx)

    def _go_on(self, ctx: snapline.Context) -> None:
        state = self.state
        if state.arrived < state.senders or not state.work:
            return
        if state.plan.pause_ns:
            self.tick(ctx)
        else:
            self._begin_round(ctx)

    def _begin_round(self, ctx: snapline.Context) -> None:
        state = self.state
        state.round += 1
        state.work -= len(state.peers)
        for peer in state.peers:
            self.send(ctx, peer, 0)
        state.arrived = sum([tally.count >= state.round for tally in state.got.values()])
        self._go_on(ctx)


def make_all_to_all(part: FleetPart) -> LedgerWorkload:
    """Make agents that send to all others; in large fleets, to as many of the following agents as the messages allow."""
    check_agents(part)
    messages = part.pattern.messages
    receivers = min(part.agents - 1, max(1, messages // part.agents) if messages else RECEIVERS_MAX)
    rounds = rounds_for(messages, receivers * part.agents)
    pause = pause_ns(part, receivers * part.agents)
    make = functools.partial(_neighbour, plan_of(part, pause), receivers, rounds)
    return _workload(part, make, receivers * part.agents * rounds)


def make_grid(part: FleetPart) -> LedgerWorkload:
    """Make agents with four neighbours each, fewer at the border. The last row may be incomplete."""
    check_agents(part)
    width = math.isqrt(part.agents - 1) + 1
    borders = 2 * sum([(index % width > 0) + (index >= width) for index in range(part.agents)])
    rounds = rounds_for(part.pattern.messages, borders)
    make = functools.partial(_cell, plan_of(part, pause_ns(part, borders)), width, rounds)
    return _workload(part, make, borders * rounds)


def rounds_for(messages: int, messages_per_round: int) -> int:
    """Return the closest number of rounds, at least one; for 0 messages, an endless number."""
    return max(1, (messages + messages_per_round // 2) // messages_per_round) if messages else FOREVER


def _workload(part: FleetPart, make: Make, total: int) -> LedgerWorkload:
    return LedgerWorkload(make_fleet(part, make), total=total, ends=part.pattern.messages > 0)


def _neighbour(plan: Plan, receivers: int, rounds: int, index: int) -> RoundWorker:
    peers = [name_of((index + place) % plan.agents) for place in range(1, receivers + 1)]
    return RoundWorker(RoundState(plan=plan, index=index, work=rounds * receivers, peers=peers, senders=receivers))


def _cell(plan: Plan, width: int, rounds: int, index: int) -> RoundWorker:
    column = index % width
    around = [index - width, index + width]
    around += [index - 1] if column else []
    around += [index + 1] if column < width - 1 else []
    peers = [name_of(other) for other in around if 0 <= other < plan.agents]
    return RoundWorker(RoundState(plan=plan, index=index, work=rounds * len(peers), peers=peers, senders=len(peers)))
