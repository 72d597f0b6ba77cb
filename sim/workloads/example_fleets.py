"""Workloads that run the package's example fleets: a small PageRank, a bank, orders, and a fleet that causes the domino effect.

*PageRank and bank.* The agents keep no ledgers, so a cut is checked only for the quantity that the example conserves: rank mass or tokens.
The checks of PageRank and bank do not detect swapped messages, or the loss of messages that carry no mass or tokens.

*Orders.* Agents wait in steps, fail, leave dead letters, spawn other agents and stop, and finally the fleet stops itself. The invariants
are computed only from states, messages, dead letters and spawn requests, and not from what agents report about each other. In every
consistent cut, all money is accounted for and each order has at most one outcome. In a cut of an idle fleet, each order has an outcome, and
the receipt of each completed order has been returned.

*Domino* (`examples/domino.py`). The checkpoints that the agents request themselves never form a consistent cut. A counter
circulates in each group of two agents. If the number of agents is odd, one group has three agents. An agent takes a checkpoint immediately
after it receives the counter, and passes the counter on later, when a timer fires. So each checkpoint includes the receipt of a message
that the previous agent sent after its own latest checkpoint. Without forced checkpoints, every checkpoint except the first lies on a
Z-cycle. Under an autonomous protocol, the scenario's checkpoint trigger is ignored, because a checkpoint at any other moment would stop the
domino effect. Under a coordinated protocol, the agents' own checkpoint requests have no effect, and the scenario's trigger is used.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import msgspec

import snapline
from snapline.agent_runtime.fleet import Fleet
from snapline.errors import UsageError
from snapline.examples import bank, orders
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
    triggers_of,
)

if TYPE_CHECKING:
    from snapline.examples.forward_push import ShardState


SHARDS_MAX = 256
"""Maximum number of PageRank shards. Each shard reads the whole graph when it is created, so with more shards the
creation would take minutes."""

SEEDS = 2

TELLERS_MAX = 1_000
"""Maximum number of tellers in the bank. It is limited because each teller knows all other tellers."""

MODULES_PER_SHARD = 3

TOKENS = 100
"""Number of tokens that each teller in the bank has initially."""

LINES = 2
"""Number of transfers per teller that are in progress at the same time."""


# -- PageRank ---------------------------------------------------------------------------------------------------------


class PagerankWorkload(Workload):
    """Workload that checks that the states and messages together contain the total rank mass. This workload always ends."""

    def __init__(self, fleet: Fleet, imports: list[list[int]]) -> None:
        super().__init__(fleet, ends=True)
        self.imports = imports

    def check_cut(self, cut: snapline.Cut) -> str | None:
        from snapline.examples import pagerank

        shards = len(pagerank.shard_states(cut))
        if shards != len(self.fleet.agents):
            return f"the cut holds {shards} shards of {len(self.fleet.agents)}"
        account = pagerank.account(cut)
        if account.is_exact:
            return None
        return (
            f"{account.in_states} units of mass in states and {account.in_transit} in transit: "
            f"that is not the {account.expected} of the beginning"
        )

    def is_done(self, states: Mapping[str, object]) -> bool:
        from snapline.examples import forward_push

        shards = [state for state in states.values() if isinstance(state, forward_push.ShardState)]
        if len(shards) < len(self.fleet.agents):
            return False
        settled = all(
            forward_push.is_settled(shard, batch) for shard in shards for batch in forward_push.batches_of(shard)
        )
        return settled and bool((forward_push.units_in_states(shards) == forward_push.UNIT).all())

    def check_end(self, states: Mapping[str, object]) -> str | None:
        from snapline.examples import forward_push

        shards = [state for state in states.values() if isinstance(state, forward_push.ShardState)]
        shards.sort(key=lambda shard: shard.shard)
        difference, bound = _distance(shards, self.imports)
        if difference <= bound:
            return None
        return f"at the end: the ranks differ by {difference} from the sequential result, {bound} is allowed"


def _distance(shards: "list[ShardState]", imports: list[list[int]]) -> tuple[float, float]:
    """Return the largest difference between the shards' ranks and the ranks computed sequentially. Also return the largest difference
    allowed."""
    from snapline.examples import forward_push
    from snapline.examples.pagerank import ACCURACY, personalised_pagerank

    ranks = forward_push.gather(shards)
    seeds = forward_push.choose_seeds(imports, ranks.shape[1])
    reference = personalised_pagerank(imports, seeds)
    difference = float(abs(ranks / forward_push.UNIT - reference).max())
    return difference, forward_push.error_bound(shards) + ACCURACY


def make_pagerank(part: FleetPart) -> Workload:
    """Return a PageRank workload that sends approximately as many messages as the scenario specifies.

    If the scenario specifies 0 messages, the workload runs until further rounds would not change the result.

    Raises:
        UsageError: If NumPy is missing, or if there are too few or too many agents.
    """
    check_agents(part, most=SHARDS_MAX)
    try:
        from snapline.examples import forward_push, pagerank
    except ImportError as error:
        raise UsageError("pattern pagerank needs NumPy: install snapline[numpy]") from error
    shards, messages = part.agents, part.pattern.messages
    imports = graph_of(shards, messages)
    neighbours = min(len(imports[0]), shards - 1)
    rounds = min(forward_push.ROUNDS_MAX, max(1, round(messages / (shards * neighbours)) if messages else SHARDS_MAX))
    problem = forward_push.Problem(
        imports=imports,
        seeds=forward_push.choose_seeds(imports, SEEDS),
        shards=shards,
        batch=SEEDS,
        rounds=rounds,
        part=SEEDS,
        seconds=messages / part.pattern.rate_per_s if part.pattern.rate_per_s else 0.0,
    )
    agents = {
        pagerank.agent_of(shard): functools.partial(pagerank.make_shard, problem, shard) for shard in range(shards)
    }
    triggers = triggers_of(part.protocol, part.trigger)
    return PagerankWorkload(Fleet("pagerank", agents=agents, protocol=part.protocol, triggers=triggers), imports)


def graph_of(shards: int, messages: int) -> list[list[int]]:
    """Return the import graph of the example: for each module, the list of modules that it imports. Each module imports its neighbours on
    both sides. The number of neighbours depends on how many messages each round may send."""
    modules = MODULES_PER_SHARD * shards
    reach = max(1, min(shards // 2, messages // (2 * shards) if messages else shards))
    steps = [step for distance in range(1, reach + 1) for step in (distance, -distance)]
    return [[(module + step) % modules for step in steps] for module in range(modules)]


# -- the bank ---------------------------------------------------------------------------------------------------------


class BankExampleWorkload(Workload):
    """Workload that checks that all tokens are either in accounts or in transit. The states alone do not show whether the work is
    finished."""

    def check_cut(self, cut: snapline.Cut) -> str | None:
        tokens, expected = bank.tokens_in(cut), TOKENS * len(self.fleet.agents)
        if tokens == expected:
            return None
        return f"{tokens} tokens in accounts and in transit: that is not the {expected} of the beginning"


def make_bank_example(part: FleetPart) -> Workload:
    """Return a bank workload in which each teller makes an equal share of the transfers."""
    check_agents(part, most=TELLERS_MAX)
    messages = part.pattern.messages
    transfers = max(1, round(messages / part.agents)) if messages else -1
    example = bank.fleet(
        agents=str(part.agents), tokens=str(TOKENS), transfers=str(transfers), lines=str(LINES), period="0"
    )
    triggers = triggers_of(part.protocol, part.trigger)
    return BankExampleWorkload(Fleet("bank", agents=example.agents, protocol=part.protocol, triggers=triggers))


MESSAGES_PER_ORDER = 6
"""Number of messages per order: the order, the job, the change, the report of the outcome, the creation of the receipt, and the fee."""

WORKERS_MAX = 64

ENDLESS = 1 << 30

PAUSE_S = 0.02
"""Time in seconds between two timer ticks of the planner, if the pattern has no rate."""


_State = TypeVar("_State", bound=msgspec.Struct)


class OrdersWorkload(Workload):
    """Workload that checks that no money is lost and that every order has the correct outcome."""

    def __init__(self, fleet: Fleet, count: int, *, ends: bool) -> None:
        super().__init__(fleet, ends=ends)
        self.count = count

    def check_cut(self, cut: snapline.Cut) -> str | None:
        account = _Account(cut)
        broken = account.wrong_money(self.count) or account.wrong_outcomes()
        return broken or (account.unfinished(self.count) if cut.is_quiet else None)

    def is_done(self, states: Mapping[str, object]) -> bool:
        """Return whether all orders have been planned, every valid order has an outcome, and every receipt has been returned."""
        plan, accounts = states.get("planner"), states.get("ledger")
        if not isinstance(plan, orders.Plan) or not isinstance(accounts, orders.Accounts):
            return False
        missing = self.count - len(plan.done) - len(plan.refused)
        poison = sum(map(orders.is_poison, range(self.count))) - sum(map(orders.is_poison, plan.refused))
        return plan.planned == self.count and missing == poison and accounts.receipts == len(plan.done)


class _Account:
    """Counts of the orders, money and receipts in one cut.

    Attributes:
        jobs: for each order whose job became a dead letter, the amount of the order.
        papers: number of receipts that do not exist yet, because their creation is pending, in transit or a dead letter.
    """

    def __init__(self, cut: snapline.Cut) -> None:
        self.cut = cut
        self.plan = _only(cut, orders.Plan)
        self.accounts = _only(cut, orders.Accounts)
        self.jobs: dict[int, int] = {}
        self.papers = len(cut.pending_spawns)
        for dead_letter in cut.dead_letters:
            if isinstance(dead_letter.message, orders.Job):
                self.jobs[dead_letter.message.id] = (
                    self.jobs.get(dead_letter.message.id, 0) + dead_letter.message.amount
                )
            else:
                self.papers += dead_letter.message is None
        self.papers += sum(each.message is None for each in cut.in_transit)

    def wrong_money(self, count: int) -> str | None:
        states = list(self.cut.states.values())
        parts = {
            "balances": sum(self.accounts.balances),
            "tills": sum(state.money for state in states if isinstance(state, orders.Till)),
            "receipts": sum(state.money for state in states if isinstance(state, orders.Paper)),
            "receipts to come": self.papers * orders.FEE,
            "dead letters": sum(self.jobs.values()),
            "transit": sum(self._moving()),
        }
        total = orders.CUSTOMERS * orders.start_of(count)
        if sum(parts.values()) == total:
            return None
        amounts = ", ".join(f"{amount} in {name}" for name, amount in parts.items())
        return f"{amounts}: that is not the {total} of the beginning"

    def _moving(self) -> Iterator[int]:
        for transit in self.cut.in_transit:
            match transit.message:
                case orders.Job(amount=amount) | orders.Money(body=orders.Change(amount=amount)):
                    yield amount
                case orders.Money(body=orders.Fee(amount=amount)):
                    yield amount
                case _:
                    pass

    def outcomes(self) -> dict[int, int]:
        """Return the number of outcomes that each order has."""
        counts = dict(self.plan.done)
        for order in [*self.plan.refused, *self.jobs]:
            counts[order] = counts.get(order, 0) + 1
        return counts

    def wrong_outcomes(self) -> str | None:
        handled = [
            order for state in self.cut.states.values() if isinstance(state, orders.Till) for order in state.handled
        ]
        twice = [order for order, times in self.outcomes().items() if times > 1]
        if twice or len(dict.fromkeys(handled)) < len(handled):
            return f"orders with two outcomes, or handled twice: {twice or sorted(handled)}"
        return None

    def unfinished(self, count: int) -> str | None:
        outcomes = self.outcomes()
        missing = [order for order in range(self.plan.planned) if order not in outcomes]
        if missing or self.plan.planned != count:
            return f"the fleet is at rest, but {self.plan.planned} of {count} orders are planned and {missing} have no outcome"
        if self.accounts.receipts != len(self.plan.done):
            return f"the fleet is at rest, but only {self.accounts.receipts} of {len(self.plan.done)} receipts have come back"
        return None


def _only(cut: snapline.Cut, kind: type[_State]) -> _State:
    return next(state for state in cut.states.values() if isinstance(state, kind))


def make_orders(part: FleetPart) -> Workload:
    """Return an orders workload with a planner, a ledger and at least one worker. Each order takes about six messages."""
    check_agents(part, most=WORKERS_MAX + 2)
    messages, rate = part.pattern.messages, part.pattern.rate_per_s
    count = max(1, messages // MESSAGES_PER_ORDER) if messages else ENDLESS
    pause_s = orders.TICK_ORDERS * MESSAGES_PER_ORDER / rate if rate else PAUSE_S
    example = orders.fleet(part.protocol, str(max(1, part.agents - 2)), str(count), str(pause_s))
    triggers = triggers_of(part.protocol, part.trigger)
    fleet = Fleet(
        "orders", agents=example.agents, protocol=part.protocol, triggers=triggers, stop_when=example.stop_when
    )
    return OrdersWorkload(fleet, count, ends=messages > 0)


PAUSE_NS = 1_000_000
"""Delay between receiving the counter and passing it on, if the pattern has no rate. It is longer than a turn, so that
the checkpoint is taken during the delay."""

GROUP = 2


class PlayerState(Ledger, kw_only=True):
    """State of a `Player`. `partner` is the agent to which this agent passes the counter. `group` is the number of agents in the group."""

    partner: str
    group: int


class Player(Worker):
    """Agent that receives the counter, takes a checkpoint, and then passes the counter on."""

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
            ctx.checkpoint()  # in its last turn, the agent takes a checkpoint; otherwise the recovery line would never include the end


class DominoWorkload(LedgerWorkload):
    """Workload whose agents accept no inputs, because turns for inputs would create a recovery line and hide the domino effect."""

    input_of = Workload.input_of


def make_domino(part: FleetPart) -> LedgerWorkload:
    """Return a domino workload. In each group, the first agent initially has all of the group's work."""
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
