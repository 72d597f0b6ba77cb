"""Fleets as users write them, sound ones and wrong ones, for the tests of checks.

Also copied beside the tests of other pytest runs, as a user's own module: so it needs nothing from the tests.
"""

import asyncio
import functools
import random
import time
from collections.abc import Mapping
from typing import ClassVar

import msgspec

import snapline
from snapline.examples import bank

TOKENS = 100
"""Of each agent at the beginning."""

SEEN: dict[str, list[int]] = {}
"""Outside of every agent's state: what a recovery does not set back."""


class Coins(snapline.Message):
    """Some tokens; `serial` differs from message to message of one sender."""

    amount: int
    serial: int


class Purse(msgspec.Struct):
    name: str
    others: list[str]
    balance: int = TOKENS
    serial: int = 0


class Passer(snapline.Agent):
    """Passes coins on, for ever."""

    state: Purse

    async def on_start(self, ctx: snapline.Context) -> None:
        self.pass_on(ctx)

    @snapline.handler
    async def on_coins(self, message: Coins, ctx: snapline.Context) -> None:
        self.state.balance += message.amount
        self.pass_on(ctx)

    def pass_on(self, ctx: snapline.Context) -> None:
        state = self.state
        state.serial += 1
        amount = state.balance // 3
        state.balance -= amount
        ctx.send(state.others[int(ctx.random() * len(state.others))], Coins(amount=amount, serial=state.serial))


class Rememberer(Passer):
    """Drops what it thinks it has seen. Its memory survives a recovery that its state does not, so tokens vanish."""

    @snapline.handler
    async def on_coins(self, message: Coins, ctx: snapline.Context) -> None:
        seen = SEEN.setdefault(f"{ctx.sender}>{self.state.name}", [])
        if message.serial in seen:
            return
        seen.append(message.serial)
        self.state.balance += message.amount
        self.pass_on(ctx)


def make(kind: type[Passer], name: str, names: list[str]) -> Passer:
    return kind(Purse(name, [other for other in names if other != name]))


def passers(kind: type[Passer], agents: int) -> snapline.Fleet:
    names = [f"p{index}" for index in range(agents)]
    sources = {name: functools.partial(make, kind, name, names) for name in names}
    return snapline.Fleet("passers", agents=sources, triggers=[snapline.Every(0.2)])


def sound() -> snapline.Fleet:
    return passers(Passer, 3)


def wrong() -> snapline.Fleet:
    """Sets back what outlives a run, so that runs repeat."""
    SEEN.clear()
    return passers(Rememberer, 3)


def wrong_and_large() -> snapline.Fleet:
    """Of more than 16 agents no history is run again: only a recovery shows what is wrong."""
    SEEN.clear()
    return passers(Rememberer, 17)


def leaking() -> snapline.Fleet:
    """Does not set it back."""
    return passers(Rememberer, 3)


def all_there(cut: snapline.Cut) -> None:
    held = sum(purse.balance for purse in cut.states.values() if isinstance(purse, Purse))
    moving = sum(each.message.amount for each in cut.in_transit if isinstance(each.message, Coins))
    assert held + moving == TOKENS * len(cut.states)


def ending() -> snapline.Fleet:
    """Comes to rest, and then ends itself."""
    return bank.fleet(agents="3", tokens="100", transfers="40", period="0.2")


class Sleeper(snapline.Agent):
    """Waits for something that is not snapline's."""

    state: int

    async def on_start(self, ctx: snapline.Context) -> None:
        await asyncio.sleep(1)


def sleeper() -> snapline.Fleet:
    return snapline.Fleet("sleeper", agents={"a": Sleeper(0)})


class Dicer(snapline.Agent):
    """Draws where nobody can repeat it."""

    state: float

    async def on_start(self, ctx: snapline.Context) -> None:
        self.state = random.random()


def dicer() -> snapline.Fleet:
    return snapline.Fleet("dicer", agents={"a": Dicer(0.0)})


class Ring(snapline.Message):
    """A timer's message."""


class Clock(snapline.Agent):
    """Idle but for a timer, `state` times: at rest only after the last."""

    state: int

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("ring", 0.4, Ring())

    @snapline.handler
    async def on_ring(self, message: Ring, ctx: snapline.Context) -> None:
        self.state -= 1
        if self.state:
            ctx.set_timer("ring", 0.4, Ring())


def clock() -> snapline.Fleet:
    return snapline.Fleet("clock", agents={"a": Clock(12)}, triggers=[snapline.Every(0.2)])


class Word(snapline.Message):
    text: str


class Talker(snapline.Agent):
    """Says its word to the listener, which keeps them in the order in which they come."""

    state: list[str]

    async def on_start(self, ctx: snapline.Context) -> None:
        if self.state:
            ctx.send("listener", Word(text=self.state[0]))

    @snapline.handler
    async def on_word(self, message: Word, ctx: snapline.Context) -> None:
        self.state.append(message.text)


def talkers() -> snapline.Fleet:
    sources = {name: Talker([name]) for name in "abc"} | {"listener": Talker([])}
    agents = {name: sources[name] for name in ("a", "listener", "b", "c")}
    return snapline.Fleet("talkers", agents=agents, triggers=[snapline.Every(0.2)])


class Babbler(Talker):
    """Says another word each time that the same seed runs."""

    state: list[str]

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send("listener", Word(text=str(random.random())))


def babbling() -> snapline.Fleet:
    return snapline.Fleet("babbling", agents={"a": Babbler(["a"]), "listener": Talker([])})


class Shout(snapline.Message):
    """To the other one, for ever."""


class Forgetful(snapline.Agent):
    """Counts in an attribute of the object: no checkpoint holds it, and a recovery begins at nought again."""

    state: int

    async def on_start(self, ctx: snapline.Context) -> None:
        self.heard = 0
        if ctx.agent == "a":
            ctx.send("b", Shout())

    @snapline.handler
    async def on_shout(self, message: Shout, ctx: snapline.Context) -> None:
        self.heard = getattr(self, "heard", 0) + 1
        self.state = self.heard
        ctx.send(ctx.sender, Shout())


def forgetful() -> snapline.Fleet:
    return snapline.Fleet("forgetful", agents={"a": Forgetful(0), "b": Forgetful(0)}, triggers=[snapline.Every(0.2)])


class Mute(snapline.Agent):
    """Does nothing."""

    state: int


def mute() -> snapline.Fleet:
    return snapline.Fleet("mute", agents={"a": Mute(0)})


class Ball(snapline.Message):
    hits: int


class Player(msgspec.Struct):
    opponent: str
    serves: bool = False
    hits: int = 0


class PingPong(snapline.Agent):
    """The first fleet that somebody writes; `until`: the last hit, 0 is for ever."""

    state: Player
    until = 0

    async def on_start(self, ctx: snapline.Context) -> None:
        if self.state.serves:
            ctx.send(self.state.opponent, Ball(hits=1))

    @snapline.handler
    async def on_ball(self, message: Ball, ctx: snapline.Context) -> None:
        self.state.hits = message.hits
        if message.hits != self.until:
            ctx.send(ctx.sender, Ball(hits=message.hits + 1))


class ShortPingPong(PingPong):
    state: Player
    until = 100


def players(kind: type[PingPong]) -> snapline.Fleet:
    agents = {"ping": kind(Player("pong", serves=True)), "pong": kind(Player("ping"))}
    return snapline.Fleet("ping-pong", agents=agents)


def ping_pong() -> snapline.Fleet:
    return players(PingPong)


def short_ping_pong() -> snapline.Fleet:
    return players(ShortPingPong)


def hits_follow(cut: snapline.Cut) -> None:
    """Sound: the players' last hits are one apart."""
    hits = [state.hits for state in cut.states.values() if isinstance(state, Player)]
    assert abs(hits[0] - hits[1]) <= 1


def few_hits(cut: snapline.Cut) -> None:
    """Wrong, after a while."""
    assert all(state.hits < 150 for state in cut.states.values() if isinstance(state, Player)), "too many hits"


def none_in_the_thirties(cut: snapline.Cut) -> None:
    """Wrong with about every second seed: it depends on the moments of the cuts."""
    assert not any(30 <= state.hits < 38 for state in cut.states.values() if isinstance(state, Player)), (
        "in the thirties"
    )


def all_hits(states: Mapping[str, Player]) -> bool:
    return sorted(state.hits for state in states.values()) == [99, 100]


# -- planted -------------------------------------------------------------------------------------------------------------

TOTAL = 0
HEARD: list[int] = []
CUBES: dict[int, int] = {}


class Totalling(PingPong):
    """Planted: counts in a global variable. A recovery sees the turns that it has undone."""

    state: Player

    @snapline.handler
    async def on_ball(self, message: Ball, ctx: snapline.Context) -> None:
        global TOTAL
        TOTAL += 1
        self.state.hits = TOTAL
        ctx.send(ctx.sender, Ball(hits=message.hits + 1))


def totalling() -> snapline.Fleet:
    return players(Totalling)


def heard_before(hits: int) -> bool:
    is_known = hits in HEARD
    HEARD.append(hits)
    return is_known


class Deduping(PingPong):
    """Planted: drops what it believes to have heard, in another function."""

    state: Player

    @snapline.handler
    async def on_ball(self, message: Ball, ctx: snapline.Context) -> None:
        if not heard_before(message.hits):
            ctx.send(ctx.sender, Ball(hits=message.hits + 1))


def deduping() -> snapline.Fleet:
    return players(Deduping)


class ClassCounting(PingPong):
    """Planted: the same in an attribute of the class."""

    state: Player
    balls: ClassVar[dict[str, int]] = {}

    @snapline.handler
    async def on_ball(self, message: Ball, ctx: snapline.Context) -> None:
        self.balls[ctx.agent] = self.balls.get(ctx.agent, 0) + 1
        self.state.hits = self.balls[ctx.agent]
        ctx.send(ctx.sender, Ball(hits=message.hits + 1))


def class_counting() -> snapline.Fleet:
    return players(ClassCounting)


@functools.lru_cache
def square(hits: int) -> int:
    return hits * hits


def cube(hits: int) -> int:
    """Remembers what it has computed: it says the same whoever has asked before."""
    global TOTAL
    TOTAL += 1
    if hits not in CUBES:
        CUBES[hits] = hits**3
    return CUBES[hits]


class Caching(PingPong):
    """Sound: caches, and a counter that nobody reads."""

    state: Player

    @snapline.handler
    async def on_ball(self, message: Ball, ctx: snapline.Context) -> None:
        self.state.hits = square(message.hits % 7) + cube(message.hits % 5)
        ctx.send(ctx.sender, Ball(hits=message.hits + 1))


def caching() -> snapline.Fleet:
    return players(Caching)


def reserve(order: int) -> int:
    return order


class Order(snapline.Message):
    number: int


class Sales(msgspec.Struct):
    done: int = 0
    said: str = ""


class Seller(snapline.Agent):
    """Reserves and pays in one durable turn, one order after the other; sound."""

    state: Sales

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Order(1))

    @snapline.handler(durable=True)
    async def on_order(self, order: Order, ctx: snapline.Context) -> None:
        self.state.said = f"{ctx.now()} {ctx.random()} {ctx.uuid()}"
        await ctx.step("reserve", reserve, order.number)
        self.state.said += f" {ctx.now()} {ctx.random()}"
        await ctx.step("pay", reserve, order.number)
        self.state.said += f" {ctx.now()} {ctx.random()}"
        self.state.done = order.number
        ctx.send(ctx.agent, Order(order.number + 1))


class RandomSeller(Seller):
    """Planted: throws dice of its own on what to do."""

    state: Sales

    @snapline.handler(durable=True)
    async def on_order(self, order: Order, ctx: snapline.Context) -> None:
        if random.random() < 0.5:
            await ctx.step("reserve", reserve, order.number)
        await ctx.step("pay", reserve, order.number)
        self.state.done = order.number
        ctx.send(ctx.agent, Order(order.number + 1))


class StampingSeller(Seller):
    """Planted: the time of its step's arguments is the clock's."""

    state: Sales

    @snapline.handler(durable=True)
    async def on_order(self, order: Order, ctx: snapline.Context) -> None:
        await ctx.step("reserve", reserve, time.time_ns())
        ctx.send(ctx.agent, Order(order.number + 1))


class TotallingSeller(Seller):
    """Planted: a global variable in a durable turn."""

    state: Sales

    @snapline.handler(durable=True)
    async def on_order(self, order: Order, ctx: snapline.Context) -> None:
        global TOTAL
        TOTAL += 1
        await ctx.step("reserve", reserve, order.number)
        self.state.done = TOTAL
        ctx.send(ctx.agent, Order(order.number + 1))


def sellers(kind: type[Seller]) -> snapline.Fleet:
    agents = {name: functools.partial(_seller, kind) for name in ("anna", "otto")}
    return snapline.Fleet("sellers", agents=agents, simulate={"reserve": reserve, "pay": reserve})


def _seller(kind: type[Seller]) -> Seller:
    return kind(Sales())


def selling() -> snapline.Fleet:
    return sellers(Seller)


def random_selling() -> snapline.Fleet:
    return sellers(RandomSeller)


def stamping() -> snapline.Fleet:
    return sellers(StampingSeller)


def totalling_sellers() -> snapline.Fleet:
    return sellers(TotallingSeller)


class StepTotalling(PingPong):
    """Planted: a global variable in a plain turn that waits for a step."""

    state: Player

    @snapline.handler
    async def on_ball(self, message: Ball, ctx: snapline.Context) -> None:
        global TOTAL
        TOTAL += await ctx.step("reserve", reserve, 1, timeout_s=2.0, retries=2)
        self.state.hits = TOTAL
        ctx.send(ctx.sender, Ball(hits=message.hits + 1))


def step_totalling() -> snapline.Fleet:
    return players(StepTotalling)
