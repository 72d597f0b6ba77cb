"""An order desk that receives orders over HTTP.

Either the articles are reserved, the customer pays and the ledger books the payment, or the order has no effect.

    request → desk: reserve in the stock (a call) → pay (an effect) → book in the ledger (a call) → answer

The payment service rejects some payments, and the ledger rejects some bookings. After a rejection, the payment is refunded (a saga), the
reservation is cancelled, and the answer gives the reason. Despite crashes, each request gets at most one answer, and the accounts balance
in every snapshot.

    python -m snapline.examples.payment_service payments.jsonl --port 8401
    snapline run snapline.examples.order_desk:fleet --data-dir desk --arg service=http://127.0.0.1:8401
    snapline gateway run --data-dir desk --fleet snapline.examples.order_desk:fleet --listen 127.0.0.1:8402
    curl -X POST 'http://127.0.0.1:8402/agents/desk-0/Order?answer=final' -H 'Idempotency-Key: order-17' \\
         -H 'Content-Type: application/json' -d '{"id": "17", "article": "lamp", "count": 2}'
"""

from collections.abc import Iterator

import msgspec

import snapline
from snapline.examples.payments import find, pay, undo

PRICES = {"lamp": 19, "chair": 33, "pen": 2}

DESKS = 4

CREDIT_MOST = 70
"""Largest amount that the ledger books. The payment service accepts payments up to 100."""

CALL_S = 600.0
"""Timeout of a call in seconds. The timeout is longer than any recovery, so that a late answer is not mistaken for a missing answer."""

PAY_S = 2.0
"""Time limit in seconds for a request to the payment service. If a crash interrupts a request, the service is queried for the request's
outcome after this time."""

RETRIES_S = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Waiting times in seconds before the service is called again, because it may be starting."""


class Order(snapline.Message):
    id: str
    article: str
    count: int


class Confirmed(snapline.Message):
    """A positive answer to an order. `receipt` is the sequence number of the payment in the payment service's ledger."""

    id: str
    amount: int
    receipt: int


class Refused(snapline.Message):
    id: str
    reason: str


class Reserve(snapline.Message):
    id: str
    article: str
    count: int


class Reserved(snapline.Message):
    is_there: bool


class Release(snapline.Message):
    """Request to return reserved articles to the stock."""

    id: str


class Take(snapline.Message):
    """Request to remove reserved articles from the stock permanently."""

    id: str


class Book(snapline.Message):
    id: str
    amount: int


class Booked(snapline.Message):
    is_taken: bool


class Requests(msgspec.Struct):
    """State of an order desk.

    `confirmed` contains the amount of each confirmed order, and `refused` contains the reason for each rejected order. `handled` contains
    each handled order once.
    """

    service: str
    handled: list[str] = []
    confirmed: dict[str, int] = {}
    refused: dict[str, str] = {}


class Lot(msgspec.Struct, frozen=True):
    article: str
    count: int


class Shelves(msgspec.Struct):
    """State of the stock.

    `on_hand` contains the number of available items of each article. `reserved` and `sold` contain the reserved and the sold articles by
    order.
    """

    on_hand: dict[str, int]
    reserved: dict[str, Lot] = {}
    sold: dict[str, Lot] = {}


class Accounts(msgspec.Struct):
    income: int = 0
    booked: dict[str, int] = {}


class NoOrderError(Exception):
    """An order cannot be fulfilled, so its effects must be undone."""


class Desk(snapline.Agent):
    """An agent that handles orders one after another."""

    state: Requests

    @snapline.handler(durable=True, public=True)
    async def on_order(self, message: Order, ctx: snapline.Context) -> None:
        state, order = self.state, message.id
        amount = PRICES[message.article] * message.count
        state.handled.append(order)
        reservation = await ctx.call(
            "stock", Reserve(order, message.article, message.count), Reserved, timeout_s=CALL_S
        )
        if not reservation.is_there:
            state.refused[order] = "sold out"
            ctx.reply(Refused(order, "sold out"))
            return
        try:
            receipt = await self._sell(order, amount, ctx)
        except (NoOrderError, snapline.EffectFailedError) as error:
            ctx.send("stock", Release(order))
            state.refused[order] = str(error)
            ctx.reply(Refused(order, str(error)))
        else:
            ctx.send("stock", Take(order))
            state.confirmed[order] = amount
            ctx.reply(Confirmed(order, amount, receipt))

    async def _sell(self, order: str, amount: int, ctx: snapline.Context) -> int:
        service = self.state.service
        async with ctx.saga(f"order {order}"):
            receipt = await ctx.effect(
                "pay", pay, service, order, amount,
                key=f"pay-{order}", compensate=(undo, service, order), probe=find, timeout_s=PAY_S, retries=RETRIES_S,
            )  # fmt: skip
            if not receipt.number:
                raise NoOrderError("the payment was refused")
            booked = await ctx.call("ledger", Book(order, amount), Booked, timeout_s=CALL_S)
            if not booked.is_taken:
                raise NoOrderError("above the customer's credit")
            return int(receipt.number)


class Stock(snapline.Agent):
    """An agent that manages the articles in stock."""

    state: Shelves

    @snapline.handler
    async def on_reserve(self, message: Reserve, ctx: snapline.Context) -> None:
        state, is_there = self.state, self.state.on_hand[message.article] >= message.count
        if is_there:
            state.on_hand[message.article] -= message.count
            state.reserved[message.id] = Lot(message.article, message.count)
        ctx.reply(Reserved(is_there))

    @snapline.handler
    async def on_release(self, message: Release, ctx: snapline.Context) -> None:
        lot = self.state.reserved.pop(message.id)
        self.state.on_hand[lot.article] += lot.count

    @snapline.handler
    async def on_take(self, message: Take, ctx: snapline.Context) -> None:
        self.state.sold[message.id] = self.state.reserved.pop(message.id)


class Ledger(snapline.Agent):
    """An agent that books the payments."""

    state: Accounts

    @snapline.handler
    async def on_book(self, message: Book, ctx: snapline.Context) -> None:
        is_taken = message.amount <= CREDIT_MOST
        if is_taken:
            self.state.booked[message.id] = message.amount
            self.state.income += message.amount
        ctx.reply(Booked(is_taken))


def imbalances(cut: snapline.Cut, stocked: int) -> Iterator[str]:
    """Describe each imbalance in a cut of a fleet that started with `stocked` items of each article. A correct fleet has no imbalances."""
    desks = [state for state in cut.states.values() if isinstance(state, Requests)]
    shelves, accounts = cut.states.get("stock"), cut.states.get("ledger")
    if not isinstance(shelves, Shelves) or not isinstance(accounts, Accounts):
        return
    for article, count in shelves.on_hand.items():
        lots = [*shelves.reserved.values(), *shelves.sold.values()]
        if count + sum([lot.count for lot in lots if lot.article == article]) != stocked:
            yield f"{article}: {count} on hand, {lots} reserved or sold"
    handled = [order for desk in desks for order in desk.handled]
    if len(set(handled)) < len(handled):
        yield f"handled twice: {sorted(handled)}"
    if accounts.income != sum(accounts.booked.values()):
        yield f"an income of {accounts.income} from {accounts.booked}"
    confirmed = {order: amount for desk in desks for order, amount in desk.confirmed.items()}
    in_work = {turn.message.id for turn in cut.pending_turns if isinstance(turn.message, Order)}
    moving = {transit.message.id for transit in cut.in_transit if isinstance(transit.message, Release | Take)}
    if not confirmed.items() <= accounts.booked.items() or not accounts.booked.keys() <= confirmed.keys() | in_work:
        yield f"booked {accounts.booked}, confirmed {confirmed}, in work {in_work}"
    if not shelves.reserved.keys() <= in_work | moving or not shelves.sold.keys() <= confirmed.keys():
        yield f"reserved {shelves.reserved}, sold {shelves.sold}, in work {in_work}, moving {moving}"


def fleet(
    service: str = "",
    stocked: str = "1000",
    period: str = "0.2",
    protocol: str = "chandy-lamport",
    recovery: str = "global",
) -> snapline.Fleet:
    """Return the fleet. `service` is the URL of the payment service, and `stocked` is the initial number of items of each article.
    `protocol` and `recovery` are those of `snapline.Fleet`."""
    agents: dict[str, snapline.Agent] = {f"desk-{number}": Desk(Requests(service)) for number in range(DESKS)}
    agents |= {"stock": Stock(Shelves(dict.fromkeys(PRICES, int(stocked)))), "ledger": Ledger(Accounts())}
    return snapline.Fleet(
        "order-desk",
        agents=agents,
        protocol=protocol,
        triggers=[snapline.Every(seconds=float(period))],
        recovery=recovery,
    )
