"""Orders that are paid at a service outside, in two effects each: some stand, some are given up by their saga, and of some the turn fails for good.

The service is a stub (`Fleet(simulate=…)`), so it lives on whatever becomes of hosts, answers late, or never, or after having done it. It honours keys, refuses what comes late for an order
that was given back, and keeps a ledger of its own: that, and the agents' states, must come to the same.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

import snapline
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.ledger import shares
from snapline.sim.workloads.workload import Workload, check_agents, make_fleet

STANDS, CANCELLED, FAILS = range(3)
"""What becomes of an order, by its number. The last one of each agent stands: nothing comes after it."""

PARTS = ("seat", "hotel")
MESSAGES_OF_AN_ORDER = 2
TIMEOUT_S, WAITS_S = 2.0, (0.1, 0.5, 1.0, 5.0, 5.0)


class Go(snapline.Message):
    order: int


class PayerState(msgspec.Struct):
    """`ended`: order → "paid", "cancelled", or "stuck", where something could not be given back."""

    index: int
    orders: int
    ended: dict[int, str] = {}


class FullError(Exception):
    pass


class Shop:
    """The service. `paid`, `back`: keys, in the order in which they came, by agent and order; `done`: key → receipt."""

    def __init__(self) -> None:
        self.done: dict[str, str] = {}
        self.paid: dict[str, list[str]] = {}
        self.back: dict[str, list[str]] = {}

    def pay(self, order: str, part: str, *, key: str) -> str:
        if key not in self.done:
            assert part not in self.paid.get(order, ()), f"{order} {part} is paid again, under {key}"
            if order in self.back:
                raise ConnectionRefusedError(f"{order} was given back")
            self.done[key] = f"{order} {part}"
            self.paid.setdefault(order, []).append(part)
        return self.done[key]

    def undo(self, order: str, part: str, *, key: str) -> None:
        back = self.back.setdefault(order, [])
        if key not in self.done:
            self.done[key] = ""
            assert part not in back, f"{order} {part} is given back again, under {key}"
            later = PARTS[PARTS.index(part) + 1 :]
            left = [each for each in self.paid.get(order, ()) if each in later and each not in back]
            assert not left, f"{order} {part} is given back before {left}"
            back.append(part)

    def find(self, order: str, part: str, *, key: str) -> str | None:
        return self.done.get(key)

    def stubs(self) -> dict[str, Callable[..., Any]]:
        """For the simulator."""
        names: dict[str, Callable[..., Any]] = {}
        for part in PARTS:
            names |= {part: self.pay, f"{part}/undo": self.undo, f"{part}/probe": self.find}
        return names

    def standing(self, order: str) -> list[str]:
        """What is paid, and was not given back."""
        return [part for part in self.paid.get(order, ()) if part not in self.back.get(order, ())]


def _never(*args: object, key: str) -> str | None:
    raise AssertionError("a stub stands in its place")


def give_back(order: str, part: str, *, key: str) -> None:
    """A compensation: the simulator calls its stub."""
    _never(key=key)


class Payer(snapline.Agent):
    """See the module."""

    state: PayerState

    async def on_start(self, ctx: snapline.Context) -> None:
        for order in range(self.state.orders):
            ctx.send(ctx.agent, Go(order))

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        order = f"{ctx.agent}.{message.order}"
        kind = kind_of(message.order, self.state.orders)
        try:
            async with ctx.saga("order"):
                for part in PARTS:
                    await self._pay(ctx, order, part)
                if kind == CANCELLED:
                    raise FullError
        except (FullError, snapline.EffectFailedError) as error:
            self.state.ended[message.order] = "stuck" if getattr(error, "__notes__", ()) else "cancelled"
            return
        if kind == FAILS:
            raise ValueError("after all")
        self.state.ended[message.order] = "paid"

    async def _pay(self, ctx: snapline.Context, order: str, part: str) -> None:
        """Every other one with a probe, and every other one with a key."""
        has_probe = part == PARTS[0]
        receipt = await ctx.effect(
            part,
            _never,
            order,
            part,
            key=order if has_probe else "",
            compensate=(give_back, order, part),
            probe=_never if has_probe else None,
            timeout_s=TIMEOUT_S,
            retries=WAITS_S,
        )
        assert receipt == f"{order} {part}", receipt


def kind_of(order: int, orders: int) -> int:
    """What is to become of an order."""
    return STANDS if order == orders - 1 else order % 3


class PayingWorkload(Workload):
    """What must be true of payers. `shop`: the service of the present run."""

    def __init__(self, fleet: snapline.Fleet, *, ends: bool) -> None:
        super().__init__(fleet, ends=ends)
        self.shop = Shop()

    def open_shop(self) -> dict[str, Callable[..., Any]]:
        """A run begins."""
        self.shop = Shop()
        return self.shop.stubs()

    def check_cut(self, cut: snapline.Cut) -> str | None:
        """What a cut says to be settled is settled outside, for good: no recovery undoes it."""
        return self._check(cut.states)

    def is_done(self, states: Mapping[str, object]) -> bool:
        return all(isinstance(x, PayerState) and (not x.orders or x.orders - 1 in x.ended) for x in states.values())

    def check_end(self, states: Mapping[str, object]) -> str | None:
        return self._check(states)

    def _check(self, states: Mapping[str, object]) -> str | None:
        for agent, state in states.items():
            assert isinstance(state, PayerState)
            for order, how in state.ended.items():
                standing = self.shop.standing(f"{agent}.{order}")
                wanted = list(PARTS) if how == "paid" else []
                if how != "stuck" and standing != wanted:
                    return f"{agent}.{order} is {how}, and at the service {standing} are paid"
        return None


def make_paying(part: FleetPart) -> PayingWorkload:
    """So many orders that there are about as many messages as the scenario says."""
    check_agents(part)
    orders = shares(part.pattern.messages // MESSAGES_OF_AN_ORDER, part.agents)
    made = PayingWorkload(make_fleet(part, functools.partial(_payer, orders)), ends=part.pattern.messages > 0)
    made.fleet.simulate = made.open_shop
    return made


def _payer(orders: list[int], index: int) -> Payer:
    return Payer(PayerState(index, orders[index]))
