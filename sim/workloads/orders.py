"""The example of orders: agents that wait in steps, fail, become dead letters, spawn others, and stop; the fleet ends itself.

What every consistent cut must hold is counted from states, messages, dead letters and spawns, never from what agents claim of
each other: all money is somewhere, and no order has two outcomes. In a quiet cut each order has one, each receipt of a done
order has come back, and nobody but the fleet's own agents is left.
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
"""Order, job, change, word of it, creation of the receipt, fee."""

WORKERS_MAX = 64

ENDLESS = 1 << 30

PAUSE_S = 0.02
"""Time between two ticks of the planner, unless the pattern has a rate."""


_State = TypeVar("_State", bound=msgspec.Struct)


class OrdersWorkload(Workload):
    """Money and outcomes."""

    def __init__(self, fleet: Fleet, count: int, *, ends: bool) -> None:
        super().__init__(fleet, ends=ends)
        self.count = count

    def check_cut(self, cut: snapline.Cut) -> str | None:
        found = _Account(cut)
        broken = found.wrong_money(self.count) or found.wrong_outcomes()
        return broken or (found.unfinished(self.count) if cut.is_quiet else None)

    def is_done(self, states: Mapping[str, object]) -> bool:
        """Return whether all were planned, each that can be handled has its outcome, and every receipt has come back."""
        plan, accounts = states.get("planner"), states.get("ledger")
        if not isinstance(plan, orders.Plan) or not isinstance(accounts, orders.Accounts):
            return False
        missing = self.count - len(plan.done) - len(plan.refused)
        poison = sum(map(orders.is_poison, range(self.count))) - sum(map(orders.is_poison, plan.refused))
        return plan.planned == self.count and missing == poison and accounts.receipts == len(plan.done)


class _Account:
    """One cut, taken apart.

    Attributes:
        jobs: amount of each order that became a dead letter.
        papers: how many receipts are to be created yet, or never will be.
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
        said = ", ".join(f"{amount} in {name}" for name, amount in parts.items())
        return f"{said}: that is not the {total} of the beginning"

    def _moving(self) -> Iterator[int]:
        for each in self.cut.in_transit:
            match each.message:
                case orders.Job(amount=amount) | orders.Money(body=orders.Change(amount=amount)):
                    yield amount
                case orders.Money(body=orders.Fee(amount=amount)):
                    yield amount
                case _:
                    pass

    def outcomes(self) -> dict[int, int]:
        """Order → how many outcomes it has."""
        found = dict(self.plan.done)
        for order in [*self.plan.refused, *self.jobs]:
            found[order] = found.get(order, 0) + 1
        return found

    def wrong_outcomes(self) -> str | None:
        handled = [
            order for state in self.cut.states.values() if isinstance(state, orders.Till) for order in state.handled
        ]
        twice = [order for order, times in self.outcomes().items() if times > 1]
        if twice or len(dict.fromkeys(handled)) < len(handled):
            return f"orders have two outcomes, or were handled twice: {twice or sorted(handled)}"
        return None

    def unfinished(self, count: int) -> str | None:
        found = self.outcomes()
        missing = [order for order in range(self.plan.planned) if order not in found]
        if missing or self.plan.planned != count:
            return f"all is quiet, {self.plan.planned} of {count} orders are planned, and {missing} have no outcome"
        if self.accounts.receipts != len(self.plan.done):
            return f"all is quiet, and {self.accounts.receipts} of {len(self.plan.done)} receipts have come back"
        return None


def _only(cut: snapline.Cut, kind: type[_State]) -> _State:
    return next(state for state in cut.states.values() if isinstance(state, kind))


def make_orders(part: FleetPart) -> Workload:
    """A planner, a ledger, and the rest workers, one at least; each order is about six messages."""
    check_agents(part, most=WORKERS_MAX + 2)
    messages, rate = part.pattern.messages, part.pattern.rate_per_s
    count = max(1, messages // MESSAGES_PER_ORDER) if messages else ENDLESS
    pause_s = orders.TICK_ORDERS * MESSAGES_PER_ORDER / rate if rate else PAUSE_S
    made = orders.fleet(part.protocol, str(max(1, part.agents - 2)), str(count), str(pause_s))
    triggers = triggers_of(part.protocol, part.trigger)
    fleet = Fleet("orders", agents=made.agents, protocol=part.protocol, triggers=triggers, stop_when=made.stop_when)
    return OrdersWorkload(fleet, count, ends=messages > 0)
