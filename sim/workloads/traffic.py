"""Traffic patterns: timer-driven producers, rounds without a barrier, and requests with replies.

*Producers.* Each source starts with a certain amount of work. At each timer tick, the source sends `batch` messages, until its work is used
up. Each message carries the work for its remaining hops, or none if the receiver does not forward it. If the pattern has no rate, a source
waits `SOURCE_PAUSE_NS` per message. Without this pause, a source would send everything in one turn, because it waits for no answers.

- pipeline: the agents form lanes, and each lane is a sequence of stages. An item passes from the first stage to the last stage of its lane.
- cyclic: in each lane, all stages after the first stage form a loop. An item goes around the loop `LOOPS` times.
- skewed: the number of messages per source decreases like 1/1, 1/2, 1/3 … (a Zipf distribution). All sources finish at about the same time,
  and most messages are sent to the first agents.
- bursts: each source sends `BURST` messages at once to random peers, and then pauses for `BURST` times the pause after a single message.

*Rounds* are used by the pattern all-to-all, and by a grid whose agents exchange border values. In each round, an agent sends one message to
each of its receivers. An agent begins round n + 1 when it has consumed n messages from each of its senders. If a message for a later round
arrives early, it is counted when that round begins. (This is the local synchroniser from Awerbuch, "Complexity of Network Synchronization",
J. ACM 32, 1985.)

*Requests with replies.* Every agent sends calls through a chain of servers, and the answer returns along the same path. For example, agent
i calls agent i + 1, which calls agent i + 2, which answers agent i + 1, which answers agent i. Each call takes `DEPTH` requests and `DEPTH`
replies. The work that a message carries encodes the progress of the call. It starts at 2 * depth, and each hop uses one unit. Each agent
has up to `WINDOW` calls in progress, and begins the next call whenever a call returns.
"""

import functools
import math

import snapline
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.ledger import FOREVER, Ledger, Parcel, Plan, Tick, Worker, name_of, shares
from snapline.sim.workloads.walks import DEGREE, random_peers
from snapline.sim.workloads.workload import (
    LedgerWorkload,
    Make,
    check_agents,
    lanes_of,
    make_fleet,
    pause_ns,
    plan_of,
)
from snapline.sim.world.kernel import SECOND_NS

SOURCE_PAUSE_NS = 1_000_000

STAGES = 8
"""Minimum number of agents per lane if there are several lanes."""

LOOPS = 3

BURST = 8

SKEW_SHARES_MAX = 1_000
"""Rank from which shares no longer decrease. Otherwise, the last sources of a large fleet would get hardly any share."""


class SourceState(Ledger, kw_only=True):
    """State of a `Source`.

    Attributes:
        peers: agents to which this agent sends messages. If the agent always sends to the same receiver, there is only one peer.
        item: units of work that the agent spends on each message that it originates, including one unit for the send itself. The value is 0
            if the agent originates no messages.
        is_skewed: whether the agent sends more messages to its first peers.
    """

    peers: list[str]
    item: int = 0
    batch: int = 1
    pause_ns: int = 0
    is_skewed: bool = False


class Source(Worker):
    """Agent that sends messages when its timer fires, and that forwards received messages that still carry work."""

    state: SourceState

    async def on_start(self, ctx: snapline.Context) -> None:
        if self.state.item:
            self.produce(ctx)

    @snapline.handler
    async def on_tick(self, message: Tick, ctx: snapline.Context) -> None:
        self.state.is_ticking = False
        self.produce(ctx)

    @snapline.handler
    async def on_parcel(self, message: Parcel, ctx: snapline.Context) -> None:
        self.take(ctx, message)
        if message.work:
            self.send(ctx, self.route(ctx), message.work - 1)

    def produce(self, ctx: snapline.Context) -> None:
        """Send a batch of messages. Set the timer if there is work left."""
        state = self.state
        for _ in range(min(state.batch, state.work // state.item)):
            state.work -= state.item
            self.send(ctx, self.route(ctx), state.item - 1)
        if state.work:
            self.tick(ctx, state.pause_ns)

    def route(self, ctx: snapline.Context) -> str:
        """Return the receiver of the agent's next message."""
        state = self.state
        if len(state.peers) == 1:
            return state.peers[0]
        draw = ctx.random()
        return state.peers[int((draw * draw * draw if state.is_skewed else draw) * len(state.peers))]


# -- lanes: pipeline and cyclic dataflow ------------------------------------------------------------------------------


def make_lanes(part: FleetPart) -> LedgerWorkload:
    """Return a pipeline or cyclic workload. In each lane, the first agent is the source."""
    check_agents(part)
    lanes = lanes_of(part.agents, STAGES)
    hops = [hops_of(part.pattern.name, lane) for lane in lanes]
    budgets = shares(part.pattern.messages, len(lanes))
    works = [max(1, round(budget / hop)) * hop for budget, hop in zip(budgets, hops, strict=True)]
    # Every item from a source causes `hop` messages in total, so a source sends items less often to keep the rate.
    pauses = [pause_ns(part, hop * len(lanes)) or SOURCE_PAUSE_NS for hop in hops]
    make = functools.partial(_stage, part.pattern.name, plan_of(part, 0), lanes, hops, works, pauses)
    return LedgerWorkload(make_fleet(part, make), total=sum(works), ends=part.pattern.messages > 0)


def hops_of(pattern: str, lane: range) -> int:
    """Return how many messages one item causes in its lane."""
    return (len(lane) - 1) * (LOOPS if pattern == "cyclic" else 1)


def _stage(
    pattern: str, plan: Plan, lanes: list[range], hops: list[int], works: list[int], pauses: list[int], index: int
) -> Source:
    place = min(len(lanes) - 1, (index + 1) * len(lanes) // plan.agents)  # an estimate, which is at most one too high
    while index not in lanes[place]:
        place -= 1
    lane = lanes[place]
    following = index + 1
    if following == lane.stop:  # a pipeline ends here; a loop returns to its first stage
        following = lane.start + (1 if pattern == "cyclic" and len(lane) > 2 else 0)
    state = SourceState(plan=plan, index=index, peers=[name_of(following)])
    if index == lane.start:
        state.work, state.item, state.pause_ns = works[place], hops[place], pauses[place]
    return Source(state)


# -- skewed producers, bursts -----------------------------------------------------------------------------------------


def make_skewed(part: FleetPart) -> LedgerWorkload:
    """Return a workload whose sources send Zipf-distributed shares of the messages. If the pattern has no rate, the source with the largest
    share sends at the normal pace, and all other sources send more slowly."""
    check_agents(part)
    works = skewed_shares(part.pattern.messages, part.agents)
    rate = part.pattern.rate_per_s
    duration_ns = round(sum(works) * SECOND_NS / rate) if rate else works[0] * SOURCE_PAUSE_NS
    make = functools.partial(_skewed, plan_of(part, 0), works, duration_ns)
    return LedgerWorkload(make_fleet(part, make), total=sum(works), ends=part.pattern.messages > 0)


def skewed_shares(messages: int, agents: int) -> list[int]:
    """Divide `messages` into integer shares that decrease like 1/1, 1/2, 1/3 …. The first share also gets the remainder."""
    weights = [FOREVER // min(place, SKEW_SHARES_MAX) for place in range(1, agents + 1)]
    if not messages:
        return weights
    whole = sum(weights)
    works = [messages * weight // whole for weight in weights]
    works[0] += messages - sum(works)
    return works


def _skewed(plan: Plan, works: list[int], duration_ns: int, index: int) -> Source:
    peers = random_peers(index, plan.agents)
    if plan.agents > len(peers) + 1:
        peers = [name_of(other) for other in range(DEGREE + 1) if other != index][:DEGREE]
    work = works[index]
    pause = max(1, duration_ns // work) if work else 0
    state = SourceState(plan=plan, index=index, work=work, peers=peers, pause_ns=pause, is_skewed=True)
    state.item = 1 if work else 0
    return Source(state)


def make_bursts(part: FleetPart) -> LedgerWorkload:
    """Return a workload whose agents all send bursts at about the same time."""
    check_agents(part)
    works = shares(part.pattern.messages, part.agents)
    pause = BURST * (pause_ns(part, part.agents) or SOURCE_PAUSE_NS)
    make = functools.partial(_bursting, plan_of(part, 0), works, pause)
    return LedgerWorkload(make_fleet(part, make), total=sum(works), ends=part.pattern.messages > 0)


def _bursting(plan: Plan, works: list[int], pause: int, index: int) -> Source:
    peers = random_peers(index, plan.agents)
    item = 1 if works[index] else 0
    return Source(
        SourceState(plan=plan, index=index, work=works[index], peers=peers, item=item, batch=BURST, pause_ns=pause)
    )


RECEIVERS_MAX = 64
"""Maximum number of receivers per agent in an endless all-to-all. If the number of messages is limited, it determines
the number of receivers."""


class RoundState(Ledger, kw_only=True):
    """State of a `RoundWorker`. `round` is the number of rounds that the agent has begun so far. `senders` is the number of agents that
    send messages to this agent. `arrived` is the number of senders whose message for the current round has been consumed."""

    peers: list[str]
    senders: int
    round: int = 0
    arrived: int = 0


class RoundWorker(Worker):
    """Agent that begins a round when it has consumed the messages of the previous round from all its senders."""

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
    """Return a workload in which each agent sends messages to all other agents. In a large fleet, each agent sends only to the next agents,
    as many as the number of messages allows."""
    check_agents(part)
    messages = part.pattern.messages
    receivers = min(part.agents - 1, max(1, messages // part.agents) if messages else RECEIVERS_MAX)
    rounds = rounds_for(messages, receivers * part.agents)
    pause = pause_ns(part, receivers * part.agents)
    make = functools.partial(_neighbour, plan_of(part, pause), receivers, rounds)
    return _workload(part, make, receivers * part.agents * rounds)


def make_grid(part: FleetPart) -> LedgerWorkload:
    """Return a workload whose agents form a grid. Each agent has up to four neighbours. The last row may be incomplete."""
    check_agents(part)
    width = math.isqrt(part.agents - 1) + 1
    borders = 2 * sum([(index % width > 0) + (index >= width) for index in range(part.agents)])
    rounds = rounds_for(part.pattern.messages, borders)
    make = functools.partial(_cell, plan_of(part, pause_ns(part, borders)), width, rounds)
    return _workload(part, make, borders * rounds)


def rounds_for(messages: int, messages_per_round: int) -> int:
    """Return the number of rounds (at least one) that together send a number of messages closest to `messages`. If `messages` is 0, return
    `FOREVER`."""
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


DEPTH = 2

WINDOW = 2


class CallerState(Ledger, kw_only=True):
    """State of a `Caller`. `depth` is the number of servers in the chain of a call. `returned` is the number of answered calls after which
    the next call waits for the timer."""

    depth: int
    returned: int = 0


class Caller(Worker):
    """Agent that makes calls and also serves calls from other agents."""

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
    """Return a workload that makes at least one call, and no incomplete calls."""
    check_agents(part)
    depth = min(DEPTH, part.agents - 1)
    calls = max(1, round(part.pattern.messages / (2 * depth))) if part.pattern.messages else 0
    works = [2 * depth * share for share in shares(calls, part.agents)]
    plan = plan_of(part, pause_ns(part, 2 * depth * part.agents))
    make = functools.partial(_caller, plan, depth, works)
    return LedgerWorkload(make_fleet(part, make), total=sum(works), ends=part.pattern.messages > 0)


def _caller(plan: Plan, depth: int, works: list[int], index: int) -> Caller:
    return Caller(CallerState(plan=plan, index=index, work=works[index], depth=depth))
