"""Pattern in which agents pay for orders at an external service, with two effects per order.

Some orders succeed, some are undone by their saga, and others fail permanently. Some orders request the same seat as an earlier order. If
that seat was refunded, the new order pays for it again. If the seat could not be refunded, the new order takes it over.

The service is a stub (`Fleet(simulate=…)`), so its state survives host crashes. The service's answers may be late, be lost, or report a
failure although the call was executed. The service accepts idempotency keys, refuses late requests for refunded payments, and keeps its own
ledger, which must agree with the agents' states. For one order, the service refuses the refund for a while, and an operator retries the
refund. For another order, the service executes the payment but reports a failure.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

import snapline
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.ledger import Nudge, name_of, shares
from snapline.sim.workloads.workload import Choose, Workload, check_agents, make_fleet, nudge

STANDS, CANCELLED, FAILS, TAKES_OVER, AGAIN = range(5)
"""Kinds of orders. `STANDS` succeeds, `CANCELLED` is undone, and `FAILS` fails permanently. `TAKES_OVER` takes over the
seat of the failed order before it. `AGAIN` is cancelled, and then its seat is paid for again. Each agent's last order
always succeeds, because no order follows it."""

PARTS = ("seat", "hotel")
UNDO = "/undo"
"""Suffix of a compensation's key."""

MESSAGES_OF_AN_ORDER = 8
"""Number of messages per order: the `Go` message, and the requests to the service together with their answers."""

SHUT_CALLS = 4
"""Number of consecutive calls in which the service refuses to refund a failed order's seat. It equals the number of
automatic attempts; after that, an operator retries the refund."""

TIMEOUT_S, WAITS_S = 2.0, (0.1, 0.5, 1.0, 5.0, 5.0)


class Go(snapline.Message):
    order: int


class PayerState(msgspec.Struct):
    """State of a `Payer` agent.

    Attributes:
        ended: outcome of each order: "paid", "seat" (only the seat was paid), "cancelled", "stuck" (a refund failed), or "mixed" (one key
            was accepted for two different payments).
    """

    index: int
    orders: int
    ended: dict[int, str] = {}


class FullError(Exception):
    pass


class Shop:
    """External payment service.

    A payment may have been made in a discarded history and then be requested under the same key in the current history. Such a payment is
    the newest in the current history, although it was made first. So one valid payment is known to be newer than another only if it was
    made after the last request for the other payment and under the same recovery plan.

    Attributes:
        done: receipt for each key.
        paid: key under which each (order, part) is paid.
        refusals: number of refused refunds for each key.
        asked: for each key, `len(done)` at the first and at the last request, and the recovery plan of the host that made the last request.
    """

    def __init__(self, plan_of_call: Callable[[], int] = int) -> None:
        self._plan_of_call = plan_of_call
        self.done: dict[str, str] = {}
        self.asked: dict[str, tuple[int, int, int]] = {}
        self.paid: dict[tuple[str, str], str] = {}
        self.refusals: dict[str, int] = {}

    def pay(self, order: str, part: str, *, key: str) -> str:
        if key not in self.done:
            assert (order, part) not in self.paid, f"{order} {part} is paid again, under {key}"
            if key + UNDO in self.done:
                raise ConnectionRefusedError(f"{order} {part} was given back")
            self.done[key] = f"{order} {part}"
            self.paid[order, part] = key
        now = len(self.done)
        self.asked[key] = (self.asked.get(key, (now,))[0], now, self._plan_of_call())
        if hides_success(order, part):
            raise ConnectionAbortedError(f"of {order} {part} nobody is told that it is paid")
        return self.done[key]

    def undo(self, order: str, part: str, *, key: str) -> None:
        if key in self.done:
            return
        if part == PARTS[0] and refuses_refund(order):
            self.refusals[key] = self.refusals.get(key, 0) + 1
            if self.refusals[key] <= SHUT_CALLS:
                raise ConnectionRefusedError(f"{order} {part} cannot be given back now")
        paid_key = key.removesuffix(UNDO)
        assert self.paid.get((order, part), paid_key) == paid_key, (
            f"{order} {part} is given back, under {key}, and is paid anew"
        )
        _, last, plan = self.asked.get(paid_key, (0, len(self.done), 0))
        of_order = {each: self.asked[by] for (other, each), by in self.paid.items() if other == order}
        newer = [each for each, asked in of_order.items() if asked[0] > last and asked[2] == plan]
        assert not newer, f"{order} {part} is given back before {newer}, paid after it"
        self.done[key] = ""
        self.paid.pop((order, part), None)

    def find(self, order: str, part: str, *, key: str) -> str | None:
        """Probe a key. Return its receipt, or None if nothing was paid under this key. A probe counts as a request, because a turn that
        probes a payment may take it over as its newest payment."""
        if key in self.asked:
            self.asked[key] = (self.asked[key][0], len(self.done), self._plan_of_call())
        return self.done.get(key)

    def stubs(self) -> dict[str, Callable[..., Any]]:
        """Return the service's stub functions by name."""
        names: dict[str, Callable[..., Any]] = {}
        for part in PARTS:
            names |= {part: self.pay, f"{part}/undo": self.undo, f"{part}/probe": self.find}
        return names

    def standing(self, order: str) -> list[str]:
        """Return the parts of an order that were paid and not refunded."""
        return [part for part in PARTS if (order, part) in self.paid]


def _never(*args: object, key: str) -> str | None:
    raise AssertionError("a stub stands in its place")


def give_back(order: str, part: str, *, key: str) -> None:
    """Refund a payment. This function is never called, because the simulator calls a stub instead."""
    _never(key=key)


class Payer(snapline.Agent):
    """Agent that pays for orders. See the module docstring."""

    state: PayerState

    async def on_start(self, ctx: snapline.Context) -> None:
        for order in range(self.state.orders):
            ctx.send(ctx.agent, Go(order))

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        kind = kind_of(message.order, self.state.orders)
        seat_order = message.order - (kind == TAKES_OVER)
        order = f"{ctx.agent}.{seat_order}"
        outcome = await self._order(
            ctx, order, PARTS[:1] if kind == TAKES_OVER else PARTS, is_full=kind in (CANCELLED, AGAIN)
        )
        if kind == FAILS:
            raise ValueError("after all")
        if kind == AGAIN and outcome == "cancelled":
            outcome = await self._order(ctx, order, PARTS[:1])
        self.state.ended[message.order] = outcome

    @snapline.handler(durable=True)
    async def on_nudge(self, message: Nudge, ctx: snapline.Context) -> None:
        """Wait, and then handle a client's input without changing the state."""
        await ctx.sleep(0.001)
        message.take(ctx)

    async def _order(self, ctx: snapline.Context, order: str, parts: Sequence[str], *, is_full: bool = False) -> str:
        """Pay for either all parts of an order or none. Return the order's outcome."""
        try:
            async with ctx.saga("order"):
                for part in parts:
                    await self._pay(ctx, order, part)
                if is_full:
                    raise FullError
                await self._pay(ctx, order, PARTS[0])  # this part is already paid
                if not await self._is_refused(ctx, order):
                    return "mixed"
        except (FullError, snapline.EffectFailedError) as error:
            return "stuck" if getattr(error, "__notes__", ()) else "cancelled"
        return "paid" if parts == PARTS else "seat"

    async def _is_refused(self, ctx: snapline.Context, order: str) -> bool:
        """Check that an effect is refused if its key was already used with different arguments. Return whether the effect was refused."""
        with contextlib.suppress(snapline.UsageError):
            await ctx.effect(PARTS[0], _never, order, PARTS[1], key=order, timeout_s=TIMEOUT_S, retries=WAITS_S)
            return False
        return True

    async def _pay(self, ctx: snapline.Context, order: str, part: str) -> None:
        """Pay for one part of an order. The effect for the first part has a probe and an explicit key. The effect for the second part has
        neither a probe nor an explicit key."""
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
    """Return the kind of an agent's order, given the order's number and the agent's number of orders."""
    return STANDS if order == orders - 1 else order % 5


def refuses_refund(order: str) -> bool:
    """Return whether the service refuses for a while to refund the order's seat. Only one order is affected, because each refusal takes
    half a minute."""
    return order == f"{name_of(0)}.{FAILS}"


def hides_success(order: str, part: str) -> bool:
    """Return whether the service executes the payment but always reports a failure. Only one order is affected, because such a payment
    takes a long time."""
    return order == f"{name_of(1)}.{STANDS}" and part == PARTS[1]


class PayingWorkload(Workload):
    """Workload that checks that the agents and the payment service agree on all payments. `shop` is the current run's external service."""

    def __init__(self, fleet: snapline.Fleet, *, ends: bool) -> None:
        super().__init__(fleet, ends=ends)
        self.shop = Shop()

    def new_service_stubs(self) -> dict[str, Callable[..., Any]]:
        """Create a new service for a run, and return its stub functions."""
        self.shop = Shop(lambda: self.calling_plan)
        return self.shop.stubs()

    def input_of(self, agent: str, client: str, serial: int, choose: Choose) -> snapline.Message | None:
        return nudge(client, serial, choose)

    def check_cut(self, cut: snapline.Cut) -> str | None:
        """Check that the service agrees with the outcomes of all orders that have ended in the cut. These checks must succeed, because a
        recovery never undoes an event that belongs to a complete cut."""
        helpless = {
            dead_letter.agent for dead_letter in cut.dead_letters if not isinstance(dead_letter.message, Go | Nudge)
        }
        return self._check(cut.states) or self._check_failed(cut.states, helpless)

    def is_done(self, states: Mapping[str, object]) -> bool:
        return all(isinstance(x, PayerState) and (not x.orders or x.orders - 1 in x.ended) for x in states.values())

    def check_end(self, states: Mapping[str, object]) -> str | None:
        return self._check(states)

    def _check(self, states: Mapping[str, object]) -> str | None:
        for agent, state in states.items():
            assert isinstance(state, PayerState)
            for order, how in state.ended.items():
                if text := self._check_order(agent, order, how, kind_of(order, state.orders)):
                    return text
        return None

    def _check_failed(self, states: Mapping[str, object], helpless: set[str]) -> str | None:
        """Check that failed orders were refunded. Skip agents with a dead letter from a failed compensation. Seats are not checked here,
        because a later order may have taken them over."""
        for agent, state in states.items():
            assert isinstance(state, PayerState)
            for order in range(max(state.ended, default=0) if agent not in helpless else 0):
                if kind_of(order, state.orders) == FAILS and PARTS[1] in self.shop.standing(f"{agent}.{order}"):
                    return f"{agent}.{order} has failed, and its {PARTS[1]} was not given back"
        return None

    def _check_order(self, agent: str, order: int, how: str, kind: int) -> str:
        """Check that the service agrees with the outcome of an order. The seat of a failed order is checked with the order that takes the
        seat over."""
        name = f"{agent}.{order - (kind == TAKES_OVER)}"
        checked_parts = PARTS[:1] if kind == TAKES_OVER else PARTS
        standing = [part for part in self.shop.standing(name) if part in checked_parts]
        wanted = {"paid": list(PARTS), "seat": [PARTS[0]], "cancelled": []}.get(how, standing)
        mixed_note = "; one key was used for two payments" if how == "mixed" else ""
        return (
            f"{agent}.{order} is {how}, and of {name} {standing} are paid{mixed_note}"
            if mixed_note or standing != wanted
            else ""
        )


def make_paying(part: FleetPart) -> PayingWorkload:
    """Return a workload whose orders need approximately as many messages as the scenario specifies."""
    check_agents(part)
    orders = shares(part.pattern.messages // MESSAGES_OF_AN_ORDER, part.agents)
    workload = PayingWorkload(make_fleet(part, functools.partial(_payer, orders)), ends=part.pattern.messages > 0)
    workload.fleet.simulate = workload.new_service_stubs
    return workload


def _payer(orders: list[int], index: int) -> Payer:
    return Payer(PayerState(index, orders[index]))
