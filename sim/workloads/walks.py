"""Patterns in which tokens walk along a topology (ring, star, tree, random graph or clusters). Several patterns are variants
of the random walk.

Each agent starts with `TOKENS` tokens and divides its share of the work among these tokens. When an agent receives a token that has work
left, it immediately passes the token on with one unit of work less. A token without work is not passed on. If the pattern has a rate, an
agent pools the work of its tokens, and passes on one token each time its timer fires. With a rate, the order of events affects how the work
is divided among the tokens, but not the sum of the work.

*Bank* (`make_bank`). Tokens carry money. The total amount of money never changes.

*Returning* (`make_returning`). Tokens walk as in the pattern `random`, among agents that sometimes roll the fleet back (`ctx.rollback`)
during the first seconds. For half of the rollback requests, the reason for the request occurs again after the rollback. If a reason occurs
for the second time, the request is refused and the agent is blocked until an operator rolls the fleet back. After the operator's rollback,
the agent may request a rollback again. A rollback also undoes the turn that requested it, so the ledgers stay correct. Half of the agents
consume tokens in durable turns. These turns run steps, and ask which rollbacks there have been before they request one.

*Stepping* (`make_stepping`). Tokens walk as in the pattern `random`, among agents whose turns execute steps. While a turn waits for its
step, the rest of the fleet continues. The pattern tests what happens if a checkpoint, freeze, recovery plan or stop request reaches an
agent whose turn is waiting. Every third token is passed on immediately, so that turns with and without steps are mixed. Half of the
clients' inputs start a durable turn.

*Memory* (`make_memory`). Agents have large states: each agent records every consumed token in a history and in a table. The history grows
and drops old records, and some records are edited. The table is an array of several chunks, and each turn changes only a few bytes of it.
So a checkpoint consists of parts, epochs refer to chunks from earlier epochs, and packs are shared by several epochs. This pattern tests
the package `storage/` under all faults. In every cut, three values of an agent must agree: the ledger's count of consumed messages, the sum
of the table's elements, and the newest records in the history.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import snapline
from snapline.errors import UsageError
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.ledger import (
    CutContents,
    Echo,
    InvariantViolatedError,
    Ledger,
    Parcel,
    Plan,
    Tick,
    Worker,
    name_of,
    shares,
)
from snapline.sim.workloads.workload import Choose, LedgerWorkload, check_agents, make_fleet, pause_ns, plan_of
from snapline.sim.world.kernel import START_OF_TIME_NS

TOKENS = 2
"""Number of tokens that each agent starts. It determines how many messages are in transit at the same time."""

DEGREE = 4
"""Maximum number of neighbours of an agent in a large random graph. A small number keeps states small."""

ALL_MOST = 9
"""Maximum number of agents for which the random graph is complete."""

CLUSTER = 4
"""Number of agents in a cluster."""

ACROSS = 0.125
"""Probability that a token leaves its cluster."""

MONEY = 100
"""Each bank agent's initial amount of money."""


class WalkerState(Ledger, kw_only=True):
    """State of a `Walker`. `peers` lists the agents that may receive the agent's tokens. `turn` is the index of the most recently used
    peer. `waiting` is the number of tokens that wait for the agent's timer."""

    peers: list[str]
    turn: int = 0
    waiting: int = 0


class Walker(Worker):
    """Agent that passes its tokens to its peers in rotation."""

    state: WalkerState

    async def on_start(self, ctx: snapline.Context) -> None:
        state = self.state
        for token in range(min(TOKENS, state.work), 0, -1):
            work = state.work // token
            state.work -= work
            self.pass_on(ctx, work)

    @snapline.handler
    async def on_parcel(self, message: Parcel, ctx: snapline.Context) -> None:
        self.take(ctx, message)
        self.receive(ctx, message)

    @snapline.handler
    async def on_tick(self, message: Tick, ctx: snapline.Context) -> None:
        state = self.state
        state.is_ticking = False
        work = state.work // state.waiting
        state.waiting -= 1
        state.work -= work
        self.pass_on(ctx, work)
        if state.waiting:
            self.tick(ctx)

    def receive(self, ctx: snapline.Context, message: Parcel) -> None:
        """Pass on a token that has work left, either immediately or when the timer fires."""
        if not message.work:
            return
        if not self.state.plan.pause_ns:
            self.pass_on(ctx, message.work)
            return
        self.state.work += message.work
        self.state.waiting += 1
        self.tick(ctx)

    def pass_on(self, ctx: snapline.Context, work: int) -> None:
        """Send a token. One of the token's `work` units pays for the send itself."""
        self.send(ctx, self.route(ctx), work - 1)

    def route(self, ctx: snapline.Context) -> str:
        """Return the agent that receives the next token."""
        state = self.state
        state.turn = (state.turn + 1) % len(state.peers)
        return state.peers[state.turn]


class RandomWalker(Walker):
    """Agent that passes each token to a randomly chosen peer."""

    def route(self, ctx: snapline.Context) -> str:
        peers = self.state.peers
        return peers[int(ctx.random() * len(peers))]


class ClusterWalker(Walker):
    """Agent whose last peer belongs to the next cluster and whose other peers belong to its own cluster."""

    def route(self, ctx: snapline.Context) -> str:
        peers = self.state.peers
        inside = len(peers) - 1
        if not inside or ctx.random() < ACROSS:
            return peers[-1]
        return peers[int(ctx.random() * inside)]


class Transfer(Parcel, frozen=True, gc=False):
    """Token that carries money."""

    amount: int = 0

    @property
    def content(self) -> int:
        return self.work * 65_537 + self.amount


class Account(WalkerState, kw_only=True):
    """State of a `Teller`. `money` is the agent's balance, which is never negative. The sum of all balances and of the money in transit
    never changes."""

    money: int


class Teller(RandomWalker):
    """Agent that sends some of its money along with each token."""

    state: Account

    @snapline.handler
    async def on_transfer(self, message: Transfer, ctx: snapline.Context) -> None:
        self.take(ctx, message)
        self.state.money += message.amount
        self.receive(ctx, message)

    def pass_on(self, ctx: snapline.Context, work: int) -> None:
        amount = int(ctx.random() * (self.state.money + 1))
        self.state.money -= amount
        self.send(ctx, self.route(ctx), work - 1, Transfer, amount)


class BankWorkload(LedgerWorkload):
    """Workload that checks that the money in accounts and in transit adds up to the initial total."""

    def check_contents(self, books: CutContents) -> None:
        super().check_contents(books)
        held = sum([state.money for state in books.states.values() if isinstance(state, Account)])
        moving = sum(
            [parcel.amount for parcels in books.transit.values() for parcel in parcels if isinstance(parcel, Transfer)]
        )
        if held + moving != MONEY * len(self.fleet.agents):
            amounts = f"{held} of money in accounts and {moving} in transit"
            raise InvariantViolatedError(
                f"{amounts}: that is not the {MONEY * len(self.fleet.agents)} of the beginning"
            )


# -- topologies -------------------------------------------------------------------------------------------------------


def ring_peers(index: int, agents: int) -> list[str]:
    """Return the only receiver of an agent in a ring, which is the next agent."""
    return [name_of((index + 1) % agents)]


def star_peers(index: int, agents: int) -> list[str]:
    """Return the agents to which an agent in a star sends tokens. Agent 0 is the hub and sends to all other agents. Every other agent sends
    to the hub."""
    return [name_of(0)] if index else [name_of(leaf) for leaf in range(1, agents)]


def tree_peers(index: int, agents: int) -> list[str]:
    """Return the neighbours of an agent in a tree (a binary heap)."""
    around = [child for child in (2 * index + 1, 2 * index + 2) if child < agents]
    return [name_of(other) for other in ([(index - 1) // 2] if index else []) + around]


def random_peers(index: int, agents: int) -> list[str]:
    """Return the agents to which an agent in a random graph sends tokens. In a small fleet, these are all other agents, and otherwise a few
    pseudorandom agents. The next agent is always included, so that every agent can be reached."""
    if agents <= ALL_MOST:
        return [name_of(other) for other in range(agents) if other != index]
    jumps = [1] + [2 + scattered(index * DEGREE + place) % (agents - 2) for place in range(DEGREE - 1)]
    return [name_of((index + jump) % agents) for jump in dict.fromkeys(jumps)]


def cluster_peers(index: int, agents: int) -> list[str]:
    """Return the agents to which an agent in a cluster sends tokens: all other agents in the same cluster, and one agent in the next
    cluster."""
    size = CLUSTER if agents >= 2 * CLUSTER else max(1, agents // 2)
    first = index - index % size
    inside = [other for other in range(first, min(first + size, agents)) if other != index]
    start = first + size if first + size < agents else 0
    across = min(start + index % size, agents - 1)
    return [name_of(other) for other in [*inside, across]]


def scattered(number: int) -> int:
    """Return a pseudorandom number, computed from `number` by the finalizer of splitmix64."""
    number = (number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return number ^ (number >> 31)


# -- workloads --------------------------------------------------------------------------------------------------------

Peers = Callable[[int, int], list[str]]

_WALKS: dict[str, tuple[type[Walker], Peers]] = {
    "ring": (Walker, ring_peers),
    "star": (Walker, star_peers),
    "tree": (Walker, tree_peers),
    "random": (RandomWalker, random_peers),
    "clusters": (ClusterWalker, cluster_peers),
}


def make_walk(part: FleetPart) -> LedgerWorkload:
    """Return a workload that passes tokens along the scenario's topology."""
    check_agents(part)
    work = shares(part.pattern.messages, part.agents)
    make = functools.partial(_walker, part.pattern.name, _plan(part), work)
    return LedgerWorkload(make_fleet(part, make), total=sum(work), ends=part.pattern.messages > 0)


def make_bank(part: FleetPart) -> LedgerWorkload:
    """Return a workload that passes tokens that carry money."""
    check_agents(part)
    work = shares(part.pattern.messages, part.agents)
    make = functools.partial(_teller, _plan(part), work)
    return BankWorkload(make_fleet(part, make), total=sum(work), ends=part.pattern.messages > 0)


def _plan(part: FleetPart) -> Plan:
    """Return the settings that all agents share. In a star, only the hub limits the message rate, because the hub sends every second
    message."""
    return plan_of(part, pause_ns(part, 2 if part.pattern.name == "star" else part.agents))


def _walker(pattern: str, plan: Plan, work: list[int], index: int) -> Walker:
    kind, peers = _WALKS[pattern]
    return kind(WalkerState(plan=plan, index=index, work=work[index], peers=peers(index, plan.agents)))


def _teller(plan: Plan, work: list[int], index: int) -> Teller:
    peers = random_peers(index, plan.agents)
    return Teller(Account(plan=plan, index=index, work=work[index], peers=peers, money=MONEY))


ASKS = 0.02
"""Probability that an agent requests a rollback when it receives a token."""

STEPS = 0.2
"""Probability that a durable turn asks which rollbacks there have been."""

UNTIL_NS = START_OF_TIME_NS + 3_000_000_000
"""Wall-clock time on a host after which agents no longer request rollbacks. Agents that do not ask which rollbacks there have been do not
remember them, so this limit ensures that a run ends."""


class Returner(RandomWalker):
    """Agent that sometimes requests a rollback when it consumes a token."""

    on_error = "undo"
    state: WalkerState

    @snapline.handler
    async def on_parcel(self, message: Parcel, ctx: snapline.Context) -> None:
        self.take(ctx, message)
        self.receive(ctx, message)
        draw = ctx.random()
        if ctx.now() < UNTIL_NS and draw < ASKS:
            ctx.rollback("astray" if draw < ASKS / 2 else f"astray by {draw}")


class InformedReturner(RandomWalker):
    """Agent that takes another way after a rollback, because its durable turns ask which rollbacks there have been."""

    on_error = "undo"
    state: WalkerState

    @snapline.handler(durable=True)
    async def on_parcel(self, message: Parcel, ctx: snapline.Context) -> None:
        self.take(ctx, message)
        draw = ctx.random()
        await ctx.step("look", len, self.state.peers)
        if draw < STEPS:
            past = [x.reason for x in await ctx.rolled_back() if x.agent == ctx.agent]
            await ctx.step("consider", len, past)
            reason, at_most = f"lost by {draw}", 1 + (draw < ASKS / 2)
            if ctx.now() < UNTIL_NS and draw < ASKS and past.count(reason) < at_most:
                ctx.rollback(reason, to="turn" if past else "last", at_most=at_most)
        self.receive(ctx, message)


def make_returning(part: FleetPart) -> LedgerWorkload:
    """Return a workload that passes tokens along a random graph and sometimes rolls the fleet back."""
    check_agents(part)
    work = shares(part.pattern.messages, part.agents)
    make = functools.partial(_returner, plan_of(part, pause_ns(part, part.agents)), work)
    workload = LedgerWorkload(make_fleet(part, make), total=sum(work), ends=part.pattern.messages > 0)
    workload.requests_rollbacks = True
    return workload


def _returner(plan: Plan, work: list[int], index: int) -> RandomWalker:
    kind = InformedReturner if index % 2 else Returner
    return kind(WalkerState(plan=plan, index=index, work=work[index], peers=random_peers(index, plan.agents)))


AT_ONCE_EVERY = 3
"""One token in three is consumed without steps."""


LOOKS = 2
"""Number of steps in a durable turn."""

APPROVAL_S = 0.3
"""Time limit of some of the approvals for which a durable turn asks."""


class Look(snapline.Message, frozen=True):
    """Input whose handler executes some steps and then answers. `serial` counts the client's inputs."""

    client: str
    serial: int


class StepperState(WalkerState, kw_only=True):
    """State of a `Stepper`. `looked` is the sum of the results of all steps."""

    looked: int = 0


class Stepper(RandomWalker):
    """Agent that executes up to two steps before it handles a token."""

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
        """Handle a client's input by steps and approvals. After a recovery, the turn either continues or restarts, but the agent answers
        exactly once."""
        looks = [functools.partial(float, number) for number in range(LOOKS)]
        if message.serial % 4 == 1:
            results = [await ctx.step("look", look) for look in looks]
            answer = await ctx.approval("look", message.serial, expires_s=APPROVAL_S, default=False)
            results.append(float(answer.is_granted))
        elif message.serial % 4 == 2:
            steps = [ctx.step(f"look {number}", look) for number, look in enumerate(looks)]
            *results, answer = await ctx.gather(*steps, ctx.approval("look", message.serial))
            results.append(float(answer.is_granted))
        elif message.serial % 4 == 3:
            results = [await ctx.step("look", look) for look in looks]
        else:
            results = await ctx.gather(*[ctx.step(f"look {number}", look) for number, look in enumerate(looks)])
        ctx.reply(Echo(message.serial, sum(results) + ctx.random()))


class SteppingWorkload(LedgerWorkload):
    """Workload with tokens, and with durable turns that handle clients' inputs. The durable turns do not change the state."""

    asks_people = True

    def input_of(self, agent: str, client: str, serial: int, choose: Choose) -> snapline.Message | None:
        is_durable = choose("durable", 2) == 1
        return Look(client, serial) if is_durable else super().input_of(agent, client, serial, choose)


def make_stepping(part: FleetPart) -> LedgerWorkload:
    """Return a workload that passes tokens along a random graph and executes steps."""
    check_agents(part)
    work = shares(part.pattern.messages, part.agents)
    make = functools.partial(_stepper, plan_of(part, pause_ns(part, part.agents)), work)
    return SteppingWorkload(make_fleet(part, make), total=sum(work), ends=part.pattern.messages > 0)


def _stepper(plan: Plan, work: list[int], index: int) -> Stepper:
    return Stepper(StepperState(plan=plan, index=index, work=work[index], peers=random_peers(index, plan.agents)))


try:
    import numpy as np
except ImportError:  # NumPy is an optional dependency; `make_memory` reports an error if it is missing
    np = None  # type: ignore[assignment]

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]
else:
    Array = object if np is None else np.ndarray

TABLE_LENGTH = 25_000
"""Number of 64-bit values in the table. The table takes 200 KB, which are four chunks."""

KEPT = 30
"""Number of records that the history keeps. Older records are dropped."""


class Seen(snapline.Message):
    """Record of a consumed message. `take` is the sequence number of the message among all messages that the agent has consumed. `content`
    is the content of the message, or 0 if the record was edited."""

    take: int
    content: int


class MemoryState(WalkerState, kw_only=True):
    """State of a `Rememberer`. `seen` contains records of the newest messages. `table` is an array. Each consumed message increments one
    element of the table."""

    seen: snapline.History[Seen]
    table: Array


class Rememberer(RandomWalker):
    """Agent that records each consumed message in its history and in its table."""

    state: MemoryState

    def take(self, ctx: snapline.Context, parcel: Parcel) -> None:
        super().take(ctx, parcel)
        state = self.state
        state.table[state.takes * 7919 % TABLE_LENGTH] += 1
        state.seen.append(Seen(state.takes, parcel.content))
        if len(state.seen) > KEPT:
            del state.seen[0]
        if state.takes % 5 == 0:
            state.seen[0] = Seen(state.seen[0].take, 0)


class MemoryWorkload(LedgerWorkload):
    """Workload that checks each agent's table and history against the agent's ledger."""

    def check_contents(self, books: CutContents) -> None:
        super().check_contents(books)
        for agent, state in books.states.items():
            if isinstance(state, MemoryState):
                _check(agent, state)


def _check(agent: str, state: MemoryState) -> None:
    total = int(state.table.sum())
    if total != state.takes:
        raise InvariantViolatedError(f"the table of {agent} knows of {total} messages, its ledger of {state.takes}")
    latest = [seen.take for seen in state.seen]
    expected = list(range(max(0, state.takes - KEPT) + 1, state.takes + 1))
    if latest != expected:
        raise InvariantViolatedError(f"the history of {agent} holds messages {latest}, after {state.takes} were taken")


def make_memory(part: FleetPart) -> LedgerWorkload:
    """Return a workload that passes tokens along a random graph and records each consumed token."""
    if np is None:
        raise UsageError("pattern memory needs NumPy: pip install 'snapline[numpy]'")
    check_agents(part)
    work = shares(part.pattern.messages, part.agents)
    make = functools.partial(_rememberer, plan_of(part, pause_ns(part, part.agents)), work)
    return MemoryWorkload(make_fleet(part, make), total=sum(work), ends=part.pattern.messages > 0)


def _rememberer(plan: Plan, work: list[int], index: int) -> Rememberer:
    table = np.zeros(TABLE_LENGTH, dtype=np.int64)
    state = MemoryState(
        plan=plan,
        index=index,
        work=work[index],
        peers=random_peers(index, plan.agents),
        seen=snapline.History[Seen](),
        table=table,
    )
    return Rememberer(state)
