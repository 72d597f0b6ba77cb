"""The order desk behind HTTP under SIGKILL: what customers were told, what the books say, and what was paid."""

import asyncio
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
from tests.integration.running import running
from tests.integration.victims import Killer, Program

import snapline
from snapline.agent_runtime.host.agent_io import KEYS_KEPT
from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.examples import order_desk
from snapline.examples.payments import Book, read_entries
from snapline.storage.store.store import Store

CUSTOMERS = 8
"""They ask one after the other; two for each desk."""

STOCKED = 60
"""Of each article: some are sold out in the end."""

DELAY_S = 0.02

COUNTS = {"lamp": (1, 6), "chair": (1, 4), "pen": (1, 9)}
"""So that some payments are refused, and some bookings."""

LIMIT_S = 3600.0

Answers = dict[str, dict[str, object]]
"""Order → what was answered."""


class Outcome(msgspec.Struct, frozen=True):
    """What a run has shown, in numbers; everything else was checked."""

    kills: dict[str, int]
    answered: int
    confirmed: int
    cuts: int

    def __str__(self) -> str:
        kills = ", ".join(f"{count} {target}" for target, count in sorted(self.kills.items()))
        return (
            f"{sum(self.kills.values())} kills ({kills}): {self.answered} requests answered once, {self.confirmed} of them paid; "
            f"{self.cuts} snapshots balance"
        )


class Customers:
    """They order through the gateway, and ask again until there is an answer."""

    message = "Order"

    def __init__(self, gateway: Program, chosen: random.Random) -> None:
        self.answers: Answers = {}
        self.is_over = False
        self._gateway = gateway
        self._asked: list[tuple[str, dict[str, object]]] = []
        self._orders = self._made_up(chosen)

    @staticmethod
    def _made_up(chosen: random.Random) -> Iterator[tuple[str, dict[str, object]]]:
        for number in itertools.count():
            article = chosen.choice(list(COUNTS))
            yield f"desk-{number % order_desk.DESKS}", {
                "id": f"o{number}", "article": article, "count": chosen.randint(*COUNTS[article]),
            }  # fmt: skip

    async def order(self) -> None:
        """One customer: orders until it is over."""
        async with httpx.AsyncClient(timeout=60) as http:
            while not self.is_over:
                desk, order = next(self._orders)
                self.answers[str(order["id"])] = await self._answer(http, desk, order)
                self._asked.append((desk, order))

    async def check_answers(self) -> None:
        """Who asks again hears the same again, as long as the desk remembers the key: each one knows its last thousand. Customers may be
        answered in another order than they asked."""
        remembered = self._asked[-order_desk.DESKS * (KEYS_KEPT - CUSTOMERS) :]
        async with httpx.AsyncClient(timeout=60) as http:
            for at in range(0, len(remembered), CUSTOMERS):
                asked = remembered[at : at + CUSTOMERS]
                again = await asyncio.gather(*[self._answer(http, desk, order) for desk, order in asked])
                assert again == [self.answers[str(order["id"])] for _, order in asked]

    async def _answer(self, http: httpx.AsyncClient, desk: str, order: dict[str, object]) -> dict[str, object]:
        url, key = (
            f"{self._gateway.address}/agents/{desk}/{self.message}?answer=final",
            {"Idempotency-Key": f"order-{order['id']}"},
        )
        while True:
            try:
                found = await http.post(url, json=order, headers=key)
            except httpx.TransportError:
                await asyncio.sleep(0.1)
                continue
            if found.status_code == 200:
                return msgspec.convert(found.json()["message"], dict[str, object])
            assert found.status_code in (503, 504), found.text


async def order_run(
    data_dir: Path, chosen: random.Random, *, protocol: str, kills: int, recovery: str = "global"
) -> Outcome:
    """So many kills of a host, the coordinator, the gateway, the payment service, or of all, a second after each time all is up."""
    data_dir.parent.mkdir(exist_ok=True)
    ledger = data_dir.with_name("payments.jsonl")
    service = Program("snapline.examples.payment_service", ledger, "--delay-s", str(DELAY_S), serves="--port")
    gateway = Program("snapline", "gateway", "run", "--data-dir", data_dir, serves="--listen")
    await service.start()
    arguments = {
        "service": service.address, "protocol": protocol, "recovery": recovery, "stocked": str(STOCKED + kills * 5),
    }  # fmt: skip
    cuts: set[int] = set()
    try:
        async with running(data_dir, "snapline.examples.order_desk:fleet", arguments) as fleet:
            await fleet.until(lambda now: now.phase == "running")
            await gateway.start()
            customers = Customers(gateway, chosen)
            ordering = asyncio.gather(*[customers.order() for _ in range(CUSTOMERS)])
            killer = Killer(fleet, {"gateway": gateway, "service": service}, chosen)
            async with asyncio.timeout(LIMIT_S):
                while killer.kills.total() < kills and await killer.one_more(ordering):
                    cuts |= check_newest(data_dir, arguments)
                customers.is_over = True
                await ordering
                await customers.check_answers()
    finally:
        await gateway.end()
        await service.end()
    cuts |= set(check_end(data_dir, arguments, customers.answers, Book(read_entries(ledger))))
    confirmed = sum([answer["type"] == "Confirmed" for answer in customers.answers.values()])
    return Outcome(dict(killer.kills), len(customers.answers), confirmed, len(cuts))


def check_newest(data_dir: Path, arguments: dict[str, str]) -> set[int]:
    """The books balance in the newest snapshot, if there is one yet; returns its epoch."""
    store = Store.open(data_dir / "store")
    newest = store.epochs()[-1:]
    for epoch in newest:
        check_books(load_cut(store, epoch, order_desk.fleet(**arguments)), arguments)
    return set(newest)


def check_books(cut: snapline.Cut, arguments: dict[str, str]) -> None:
    wrong = list(order_desk.imbalances(cut, int(arguments["stocked"])))
    assert not wrong, f"epoch {cut.epoch}: {wrong}"
    letters = [letter for letter in cut.dead_letters if letter.agent != "trouble"]
    assert not letters, f"epoch {cut.epoch}: {letters}"


def check_end(data_dir: Path, arguments: dict[str, str], answers: Answers, paid: Book) -> list[int]:
    """Every snapshot balances; the last one has what was answered, and its ledger is that of the payment service. Returns the epochs."""
    store = Store.open(data_dir / "store")
    epochs = store.epochs()
    for epoch in epochs:
        cut = load_cut(store, epoch, order_desk.fleet(**arguments))
        check_books(cut, arguments)
    desks = [state for state in cut.states.values() if isinstance(state, order_desk.Requests)]
    shelves, accounts = cut.states["stock"], cut.states["ledger"]
    assert isinstance(shelves, order_desk.Shelves) and isinstance(accounts, order_desk.Accounts)
    assert sorted(order for desk in desks for order in desk.handled) == sorted(answers)
    confirmed = {
        order: fields_of(answer)["amount"] for order, answer in answers.items() if answer["type"] == "Confirmed"
    }
    assert {order: amount for desk in desks for order, amount in desk.confirmed.items()} == confirmed
    assert accounts.booked == confirmed and not shelves.reserved and shelves.sold.keys() == confirmed.keys()
    standing = {order: [entry.amount for entry in entries] for order, entries in paid.standing.items() if entries}
    assert standing == {order: [amount] for order, amount in confirmed.items()}
    return epochs


def fields_of(answer: dict[str, object]) -> dict[str, object]:
    return msgspec.convert(answer["fields"], dict[str, object])
