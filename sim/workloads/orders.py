"""The orders example: agents wait in steps, fail, leave dead letters, spawn others and stop, and the fleet ends itself.

The invariants are computed from states, messages, dead letters and spawns, never from what agents report about each other.
In every consistent cut, all money is accounted for and no order has two outcomes. In a quiet cut, each order has an outcome,
each receipt of a completed order has come back, and only the fleet's initial agents are left.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

import snapline
from snapline.agent_runtime.fleet import Fleet
from snapline.examples import orders
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.workload import Workload, check_agents, triggers_of

MESSAGES_PER_ORDER = 6
"""Order, job, change, report of the outcome, creation of the receipt, fee."""

WORKERS_MAX = 64

ENDLESS = 1 << 30

PAUSE_S = 0.02
"""Time between two ticks of the planner if the pattern has no rate."""


_State = TypeVar("_State", bound=msgspec.Struct)


class OrdersWorkload(Workload):
    """Workload that checks money and outcomes of orders."""

    def __init__(self, fleet: Fleet, count: int, *, ends: bool) -> None:
        super().__init__(fleet, ends=ends)
        self.count = count

    def check_cut(self, cut: snapline.Cut) -> str | None:
        account = _Account(cut)
        broken = account.wrong_money(self.count) or account.wrong_outcomes()
        return broken or (account.unfinished(self.count) if cut.is_quiet else None)

    def is_done(self, states: Mapping[str, object]) -> bool:
        """Return whether all orders were planned, each valid order has its outcome, and every receipt has come back."""
        plan, accounts = states.get("planner"), states.get("ledger")
        if not isinstance(plan, orders.Plan) or not isinstance(accounts, orders.Accounts):
            return False
        missing = self.count - len(plan.done) - len(plan.refused)
        poison = sum(map(orders.is_poison, range(self.count))) - sum(map(orders.is_poison, plan.refused))
        return plan.planned == self.count and missing == poison and accounts.receipts == len(plan.done)


class _Account:
    """Contents of one cut.

    Attributes:
        jobs: amount of each order that became a dead letter.
        papers: number of receipts whose creation is pending or was dead-lettered.
    """

    def __init__(self, cut: snapline.Cut) -> None:
        self.cut = cut
        self.plan = _only(cut, orders.Plan)
        self.accounts = _only(cut, orders.Accounts)
        self.jobs: dict[int, int] = {}
        self.papers = len(cut.pending_spawns)
        for letter in cut.dead_letters:
            if isinstance(letter.message, orders.Job):
                self.jobs[letter.message.id] = self.jobs.get(letter.message.id, 0) + letter.message.amount
            else:
                self.papers += letter.message is None
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
        """Return the number of outcomes of each order."""
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
    """Make a planner, a ledger and workers, at least one. Each order takes about six messages."""
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
