"""Orders that are paid at a service outside, in two effects each: some stand, some are given up by their saga, and of some the turn fails for good. Later ones ask for
what an earlier one had: what was given back is really done again, and what could not be given back is taken over.

The service is a stub (`Fleet(simulate=…)`), so it lives on whatever becomes of hosts, answers late, or never, or after having done it. It honours keys, refuses what comes late for what
was given back, and keeps a ledger of its own: that, and the agents' states, must come to the same. Of one order it gives nothing back for a while; then people retry that. Of
another one it says that it has failed, and has done it.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

import snapline
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.ledger import name_of, shares
from snapline.sim.workloads.nudge import Nudge
from snapline.sim.workloads.workload import Choose, Workload, check_agents, make_fleet, nudge

STANDS, CANCELLED, FAILS, TAKES_OVER, AGAIN = range(5)
"""Kind of an order, by its number: among others, it takes over the seat of the failed order before it; or it is
cancelled, and its seat is wanted again. The last order of each agent is valid: nothing comes after it."""

PARTS = ("seat", "hotel")
UNDO = "/undo"
"""Suffix of the key of a compensation."""

MESSAGES_OF_AN_ORDER = 8
"""Go, and what is said to the service, there and back."""

SHUT_CALLS = 4
"""Number of refusals to give back the seat of a failed order: as many as there are tries at once. Then an operator retries."""

TIMEOUT_S, WAITS_S = 2.0, (0.1, 0.5, 1.0, 5.0, 5.0)


class Go(snapline.Message):
    order: int


class PayerState(msgspec.Struct):
    """`ended`: order → "paid", or its seat alone is: "seat"; or "cancelled"; or "stuck", where something could not be given back; or "mixed", where one key stood for two things."""

    index: int
    orders: int
    ended: dict[int, str] = {}


class FullError(Exception):
    pass


class Shop:
    """The service. `done`: key → receipt; `paid`: order and part → under which key it is paid; `shut`: how often it was asked to give back what it does not, yet;
    `asked`: key → how many were done when it was asked for first, and last, and the plan of the host that asked last.

    A history that was given up on purpose may have paid what the present one asks for later, under the same key: there it is the newest, though it was paid first. So of two
    that stand, one is known to be newer only if it was paid after the other was last asked for, and under the same plan: a turn takes over, without
    a call, what a discarded history has done.
    """

    def __init__(self, plan_of_call: Callable[[], int] = int) -> None:
        self._plan_of_call = plan_of_call
        self.done: dict[str, str] = {}
        self.asked: dict[str, tuple[int, int, int]] = {}
        self.paid: dict[tuple[str, str], str] = {}
        self.shut: dict[str, int] = {}

    def pay(self, order: str, part: str, *, key: str) -> str:
        if key not in self.done:
            assert (order, part) not in self.paid, f"{order} {part} is paid again, under {key}"
            if key + UNDO in self.done:
                raise ConnectionRefusedError(f"{order} {part} was given back")
            self.done[key] = f"{order} {part}"
            self.paid[order, part] = key
        now = len(self.done)
        self.asked[key] = (self.asked.get(key, (now,))[0], now, self._plan_of_call())
        if is_mute(order, part):
            raise ConnectionAbortedError(f"of {order} {part} nobody is told that it is paid")
        return self.done[key]

    def undo(self, order: str, part: str, *, key: str) -> None:
        if key in self.done:
            return
        if part == PARTS[0] and is_shut(order):
            self.shut[key] = self.shut.get(key, 0) + 1
            if self.shut[key] <= SHUT_CALLS:
                raise ConnectionRefusedError(f"{order} {part} cannot be given back now")
        of = key.removesuffix(UNDO)
        assert self.paid.get((order, part), of) == of, f"{order} {part} is given back, under {key}, and is paid anew"
        _, last, plan = self.asked.get(of, (0, len(self.done), 0))
        of_order = {each: self.asked[by] for (other, each), by in self.paid.items() if other == order}
        left = [each for each, asked in of_order.items() if asked[0] > last and asked[2] == plan]
        assert not left, f"{order} {part} is given back before {left}, paid after it"
        self.done[key] = ""
        self.paid.pop((order, part), None)

    def find(self, order: str, part: str, *, key: str) -> str | None:
        """The probe. What it finds counts as asked for now: a turn that takes it for its own has it as its newest."""
        if key in self.asked:
            self.asked[key] = (self.asked[key][0], len(self.done), self._plan_of_call())
        return self.done.get(key)

    def stubs(self) -> dict[str, Callable[..., Any]]:
        """Return the stubs for the simulator."""
        names: dict[str, Callable[..., Any]] = {}
        for part in PARTS:
            names |= {part: self.pay, f"{part}/undo": self.undo, f"{part}/probe": self.find}
        return names

    def standing(self, order: str) -> list[str]:
        """Return the parts that are paid and were not given back."""
        return [part for part in PARTS if (order, part) in self.paid]


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
        kind = kind_of(message.order, self.state.orders)
        taken = message.order - (kind == TAKES_OVER)
        order = f"{ctx.agent}.{taken}"
        how = await self._order(
            ctx, order, PARTS[:1] if kind == TAKES_OVER else PARTS, is_full=kind in (CANCELLED, AGAIN)
        )
        if kind == FAILS:
            raise ValueError("after all")
        if kind == AGAIN and how == "cancelled":
            how = await self._order(ctx, order, PARTS[:1])
        self.state.ended[message.order] = how

    @snapline.handler(durable=True)
    async def on_nudge(self, message: Nudge, ctx: snapline.Context) -> None:
        """Handle a client's input: wait, and change no state."""
        await ctx.sleep(0.001)
        message.take(ctx)

    async def _order(self, ctx: snapline.Context, order: str, parts: Sequence[str], *, is_full: bool = False) -> str:
        """Pay all parts, or none."""
        try:
            async with ctx.saga("order"):
                for part in parts:
                    await self._pay(ctx, order, part)
                if is_full:
                    raise FullError
                await self._pay(ctx, order, PARTS[0])  # it is paid already
                if not await self._is_refused(ctx, order):
                    return "mixed"
        except (FullError, snapline.EffectFailedError) as error:
            return "stuck" if getattr(error, "__notes__", ()) else "cancelled"
        return "paid" if parts == PARTS else "seat"

    async def _is_refused(self, ctx: snapline.Context, order: str) -> bool:
        """Something else under the same key."""
        with contextlib.suppress(snapline.UsageError):
            await ctx.effect(PARTS[0], _never, order, PARTS[1], key=order, timeout_s=TIMEOUT_S, retries=WAITS_S)
            return False
        return True

    async def _pay(self, ctx: snapline.Context, order: str, part: str) -> None:
        """Pay a part: the first with a probe and an explicit key, the other with neither."""
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
    """Return the kind of an order."""
    return STANDS if order == orders - 1 else order % 5


def is_shut(order: str) -> bool:
    """Return whether the service refuses for a while to give the order's seat back. That takes half a minute, so only one order does."""
    return order == f"{name_of(0)}.{FAILS}"


def is_mute(order: str, part: str) -> bool:
    """Return whether the service performs the call but always reports failure, so it must be given back. That is slow, so only one does."""
    return order == f"{name_of(1)}.{STANDS}" and part == PARTS[1]


class PayingWorkload(Workload):
    """Workload that checks the rules of payers. `shop`: the service of the present run."""

    def __init__(self, fleet: snapline.Fleet, *, ends: bool) -> None:
        super().__init__(fleet, ends=ends)
        self.shop = Shop()

    def open_shop(self) -> dict[str, Callable[..., Any]]:
        """A run begins."""
        self.shop = Shop(lambda: self.calling_plan)
        return self.shop.stubs()

    def input_of(self, agent: str, client: str, serial: int, choose: Choose) -> snapline.Message | None:
        return nudge(client, serial, choose)

    def check_cut(self, cut: snapline.Cut) -> str | None:
        """Check that whatever is settled in a cut is settled outside, permanently: no recovery undoes it."""
        helpless = {letter.agent for letter in cut.dead_letters if not isinstance(letter.message, Go | Nudge)}
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
        """Check failed orders, unless a dead letter reports that undoing failed; the next orders judge their seats."""
        for agent, state in states.items():
            assert isinstance(state, PayerState)
            for order in range(max(state.ended, default=0) if agent not in helpless else 0):
                if kind_of(order, state.orders) == FAILS and PARTS[1] in self.shop.standing(f"{agent}.{order}"):
                    return f"{agent}.{order} has failed, and its {PARTS[1]} was not given back"
        return None

    def _check_order(self, agent: str, order: int, how: str, kind: int) -> str:
        """Check an order; the next order judges a failed one."""
        name = f"{agent}.{order - (kind == TAKES_OVER)}"
        judged = PARTS[:1] if kind == TAKES_OVER else PARTS
        standing = [part for part in self.shop.standing(name) if part in judged]
        wanted = {"paid": list(PARTS), "seat": [PARTS[0]], "cancelled": []}.get(how, standing)
        is_mixed = "; one key stood for two things" if how == "mixed" else ""
        return (
            f"{agent}.{order} is {how}, and of {name} {standing} are paid{is_mixed}"
            if is_mixed or standing != wanted
            else ""
        )


def make_paying(part: FleetPart) -> PayingWorkload:
    """Make as many orders as need about the scenario's number of messages."""
    check_agents(part)
    orders = shares(part.pattern.messages // MESSAGES_OF_AN_ORDER, part.agents)
    made = PayingWorkload(make_fleet(part, functools.partial(_payer, orders)), ends=part.pattern.messages > 0)
    made.fleet.simulate = made.open_shop
    return made


def _payer(orders: list[int], index: int) -> Payer:
    return Payer(PayerState(index, orders[index]))
