"""The order desk and a trip service under everything that happens to everybody: kills, restores, handlers that block, messages that kill, a store that is away, clocks that jump."""

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tests.integration import order_runs
from tests.integration.fleets import troubled_desk
from tests.integration.fleets.troubled_desk import BOOKED, Block, Poison
from tests.integration.order_runs import (
    CUSTOMERS,
    DELAY_S,
    LIMIT_S,
    Answers,
    Customers,
    Outcome,
    check_newest,
)
from tests.integration.processes import LIMIT_S as STEP_LIMIT_S
from tests.integration.running import Running, running
from tests.integration.victims import HOST, Killer, Program, is_whole

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.chaos import preload
from snapline.chaos.preload import FaultCounters
from snapline.client.client import Client
from snapline.errors import InputDeadLetteredError, NotFoundError, UsageError
from snapline.examples.payments import Book, read_entries
from snapline.storage.store.store import Store

BLOCKED, POISON, STORE, CLOCK, RESTORE = "blocked handler", "poison message", "store away", "clock jump", "restore"

BLOCKED_S = 6.0
"""Longer than a host that says nothing is waited for."""

AWAY_S = 4.0

JUMPS_S = (3600.0, 400 * 86400.0, -3600.0, -400 * 86400.0)
"""From the right time; the clock is put right by the next one, or stays."""

GONE_BACK_MAX = 10
"""Epochs that a restore goes back at most: some of them hold what was answered and paid since."""

STOCKED_AMPLY = 10**6
"""Of each article: a restore does not bring orders in the same sequence again, so none may depend on what is left."""


class Troubles(Killer):
    """Kills, and all the rest; each is over, and the fleet whole, when the next one comes."""

    def __init__(
        self, fleet: Running, programs: dict[str, Program], chosen: random.Random, client: Client, wrongs: FaultCounters
    ) -> None:
        super().__init__(fleet, programs, chosen)
        self._client = client
        self._wrongs = wrongs
        self.poisons = 0
        self.blocks = 0
        self.targets += [BLOCKED, POISON, STORE, CLOCK, RESTORE]

    async def kill(self, target: str) -> None:
        """This happens, and all is whole again."""
        match target:
            case "blocked handler":
                self.kills[target] += 1
                await self._block()
            case "poison message":
                self.kills[target] += 1
                await self._poison()
            case "store away":
                self.kills[target] += 1
                await self._take_store_away()
            case "restore":
                await self._restore()
            case "clock jump":
                self.kills[target] += 1
                self._wrongs.set("skew_ns", int(self._chosen.choice([0.0, *JUMPS_S]) * 1e9))
            case _:
                await super().kill(target)

    async def _block(self) -> None:
        """Nobody is lost by it."""
        before = len(await self._fleet.recoveries())
        self.blocks += 1
        await self._client.ask(
            "trouble", Block(BLOCKED_S), f"block-{self.blocks}", timeout_s=STEP_LIMIT_S, reply_type=None
        )
        assert len(await self._fleet.recoveries()) == before, "a busy host was taken for a dead one"

    async def _poison(self) -> None:
        self.poisons += 1
        with contextlib.suppress(InputDeadLetteredError):
            await self._client.ask(
                "trouble", Poison(self.poisons), f"poison-{self.poisons}", timeout_s=STEP_LIMIT_S, reply_type=None
            )
            raise AssertionError("it killed nobody")

    async def _restore(self) -> None:
        """To one of the last epochs, by hand; one that was pruned meanwhile is no fault."""
        before = (await self._fleet.until(is_whole)).plan
        epochs = Store.open(self._fleet.local.data_dir / "store").epochs()
        epoch = self._chosen.choice(epochs[-GONE_BACK_MAX:])
        try:
            await self._client.restore(epoch, reason="a try")
        except (UsageError, NotFoundError) as gone:
            assert f"epoch {epoch}" in str(gone), gone
            return
        self.kills[RESTORE] += 1
        await self._fleet.until(lambda now: is_whole(now) and now.plan > before)

    async def _take_store_away(self) -> None:
        """With luck a host, or the coordinator, is lost meanwhile."""
        store = self._fleet.local.data_dir / "store"
        away = store.with_name("store-away")
        store.rename(away)
        try:
            lost = self._chosen.choice(["", HOST, "coordinator"])
            name = self._chosen.choice(self._fleet.local.hosts) if lost == HOST else lost
            if name:
                self._fleet.local.kill(name)
            await asyncio.sleep(AWAY_S)
        finally:
            if store.exists():  # an empty folder, or a store that nobody should have made
                assert not any(store.iterdir()), f"somebody made a store at {store}"
                store.rmdir()
            away.rename(store)
        await self._fleet.until(is_whole)


class Travellers(Customers):
    """They book trips, one after the other, through the same gateway."""

    message = "Trip"

    @staticmethod
    def _made_up(chosen: random.Random) -> Iterator[tuple[str, dict[str, object]]]:
        for number in itertools.count():
            yield f"travels-{number % 2}", {"id": f"t{number}"}


async def mixed_run(data_dir: Path, chosen: random.Random, *, faults: int) -> Outcome:
    """So many faults, a second after each time all is up."""
    data_dir.parent.mkdir(exist_ok=True)
    ledger, book = data_dir.with_name("payments.jsonl"), data_dir.with_name("trips.txt")
    wrongs = FaultCounters(data_dir.with_name("wrongs"))
    library = preload.build(data_dir.parent)
    environment = preload.environment(
        library, control=data_dir.with_name("wrongs"), journal=Path("/dev/null"), root=data_dir.with_name("nothing")
    )
    service = Program("snapline.examples.payment_service", ledger, "--delay-s", str(DELAY_S), serves="--port")
    gateway = Program("snapline", "gateway", "run", "--data-dir", data_dir, serves="--listen")
    await service.start()
    arguments = {"service": service.address, "book": str(book), "stocked": str(STOCKED_AMPLY)}
    desk = {name: arguments[name] for name in ("service", "stocked")}
    cuts: set[int] = set()
    try:
        async with running(data_dir, "troubled_desk:fleet", arguments, environment=environment) as fleet:
            await fleet.until(is_whole)
            await fleet.until_epochs(1)
            await gateway.start()
            customers, travellers = Customers(gateway, chosen), Travellers(gateway, random.Random(0))
            working = asyncio.gather(
                *[customers.order() for _ in range(CUSTOMERS)], *[travellers.order() for _ in range(2)]
            )
            async with await Client.connect(data_dir=data_dir) as client, asyncio.timeout(LIMIT_S):
                troubles = Troubles(fleet, {"gateway": gateway, "service": service}, chosen, client, wrongs)
                while troubles.kills.total() < faults and await troubles.one_more(working):
                    cuts |= check_newest(data_dir, desk)
                await fleet.until(is_whole)
                customers.is_over = travellers.is_over = True
                await working
                await customers.check_answers()
                await travellers.check_answers()
                await fleet.until_more_epochs(1)
                lines = [recovery["line_epoch"] for recovery in await fleet.recoveries()]
                assert all(lines), f"begun anew: {lines}"
    finally:
        await gateway.end()
        await service.end()
        wrongs.close()
    check_end(data_dir, arguments, customers.answers, travellers.answers, Book(read_entries(ledger)), troubles.poisons)
    confirmed = sum([answer["type"] == "Confirmed" for answer in customers.answers.values()])
    return Outcome(dict(troubles.kills), len(customers.answers) + len(travellers.answers), confirmed, len(cuts))


def check_end(
    data_dir: Path, arguments: dict[str, str], orders: Answers, trips: Answers, paid: Book, poisons: int
) -> None:
    """Of the orders, as without trips; each trip that was answered is in the last snapshot and was booked once; poison is set aside."""
    desk = {name: arguments[name] for name in ("service", "stocked")}
    newest = order_runs.check_end(data_dir, desk, orders, paid)[-1]
    cut = load_cut(Store.open(data_dir / "store"), newest, troubled_desk.fleet(**arguments))
    done = [state.done for state in cut.states.values() if isinstance(state, troubled_desk.Trips)]
    assert sorted(trip for each in done for trip in each) == sorted(trips)
    booked = Counter(troubled_desk.lines(arguments["book"]))
    assert booked == Counter([f"{kind}-{trip}" for trip in trips for kind in BOOKED]), "booked twice, or not at all"
    serials = [
        msgspec.to_builtins(letter.message)["serial"] for letter in cut.dead_letters if letter.agent == "trouble"
    ]
    assert len(serials) == len(set(serials)) and set(serials) <= set(range(1, poisons + 1))
