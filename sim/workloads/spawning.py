"""Pattern in which permanent agents (*landlords*) spawn short-lived agents (*lodgers*), one after another.

The life of a lodger has the following phases. The lodger's landlord spawns it. In the same turn, the landlord sends the lodger a token. The
landlord also introduces the lodger to a neighbour, which is another landlord. The neighbour sends tokens to the lodger, too. The
neighbour's first token may be sent before the lodger exists. The lodger answers every token. The landlord and the neighbour each send the
lodger `TOKENS` tokens, and wait for each answer before they send the next token. After its last answer, the lodger stops, and no agent
sends any more messages to it. When the neighbour has received the lodger's last answer, it notifies the landlord. When both the landlord
and the neighbour have finished with the lodger, the landlord spawns the next lodger.

A stopped lodger has no state in a cut, but the number of messages that it has sent and consumed is known: it is `TOKENS` on each pair. So
the ledgers of the landlord and the neighbour can still be checked, except for the chains. A lodger without a state is in one of these
conditions:

- The lodger is *unborn* if the message that creates it is in transit.
- The lodger is *wanted* if the landlord's first token to it is still in the outbox, because the coordinator has not granted the spawn yet.
- In all other cases, the lodger is *gone*.

When a landlord or neighbour has received a lodger's last answer, it removes the lodger from its state, so that states stay small.
"""

import functools
from collections.abc import Mapping

import msgspec

import snapline
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.ledger import (
    UNKNOWN,
    CutContents,
    InvariantViolatedError,
    Ledger,
    Parcel,
    Plan,
    Tally,
    Tick,
    Worker,
    check_members,
    check_pairs,
    check_timers,
    check_work,
    name_of,
    shares,
)
from snapline.sim.workloads.workload import LedgerWorkload, check_agents, make_fleet, pause_ns, plan_of

TOKENS = 2
"""Number of tokens that a lodger receives from its landlord, and from its landlord's neighbour."""

PER_LODGER = 4 * TOKENS + 2
"""Number of messages per lodger: tokens, answers, and one message in each direction between landlord and neighbour."""


class Token(Parcel, frozen=True, gc=False):
    """Message that a lodger must answer. A token carries the work that the answer needs."""


class Answer(Parcel, frozen=True, gc=False):
    """Answer from a lodger to a token."""


class Introduction(Parcel, frozen=True, gc=False):
    """Message in which a landlord introduces a lodger to a neighbour. The message carries the work that the neighbour needs for its
    tokens."""

    lodger: str = ""

    @property
    def content(self) -> int:
        return self.work * 65_537 + serial_of(self.lodger)


class Farewell(Parcel, frozen=True, gc=False):
    """Message that tells the landlord that the neighbour has finished with the lodger."""


class LandlordState(Ledger, kw_only=True):
    """State of a landlord. `serial` is the number of lodgers that the landlord has spawned so far. `awaited` is the number of agents
    (landlord and neighbour) that have not finished with the newest lodger."""

    serial: int = 0
    awaited: int = 0


class Landlord(Worker):
    """Agent that spawns lodgers, and that sends tokens to its own lodgers and to its neighbour's lodgers."""

    state: LandlordState

    async def on_start(self, ctx: snapline.Context) -> None:
        self._spawn(ctx)

    @snapline.handler
    async def on_tick(self, message: Tick, ctx: snapline.Context) -> None:
        self.state.is_ticking = False
        self._spawn(ctx)

    @snapline.handler
    async def on_introduction(self, message: Introduction, ctx: snapline.Context) -> None:
        self.take(ctx, message)
        self.state.work += message.work
        self._give(ctx, message.lodger)

    @snapline.handler
    async def on_answer(self, message: Answer, ctx: snapline.Context) -> None:
        state, lodger = self.state, ctx.sender
        self.take(ctx, message)
        if state.got[lodger].count < TOKENS:
            self._give(ctx, lodger)
            return
        del state.sent[lodger], state.got[lodger]
        landlord = landlord_of(lodger)
        if landlord == ctx.agent:
            self._settle(ctx)
        else:
            state.work -= 1
            self.send(ctx, landlord, 0, Farewell)

    @snapline.handler
    async def on_farewell(self, message: Farewell, ctx: snapline.Context) -> None:
        self.take(ctx, message)
        self._settle(ctx)

    def _settle(self, ctx: snapline.Context) -> None:
        """Record that the landlord or the neighbour has finished with the lodger. When both have finished, spawn the next lodger if there
        is work left."""
        state = self.state
        state.awaited -= 1
        if state.awaited or not state.work:
            return
        if state.plan.pause_ns:
            self.tick(ctx)
        else:
            self._spawn(ctx)

    def _spawn(self, ctx: snapline.Context) -> None:
        state = self.state
        if state.work < PER_LODGER:
            return
        state.serial += 1
        state.awaited = 2
        lodger = lodger_of(ctx.agent, state.serial)
        ctx.spawn(lodger, Lodger(Ledger(plan=state.plan, index=state.index)))
        self._give(ctx, lodger)
        work = 2 * TOKENS + 1
        state.work -= work + 1
        neighbour = name_of((state.index + 1) % state.plan.agents)
        self.send(ctx, neighbour, work, Introduction, lodger)

    def _give(self, ctx: snapline.Context, lodger: str) -> None:
        self.state.work -= 2
        self.send(ctx, lodger, 1, Token)


class Lodger(Worker):
    """Agent that answers tokens, and stops after its last answer."""

    state: Ledger

    @snapline.handler
    async def on_token(self, message: Token, ctx: snapline.Context) -> None:
        self.take(ctx, message)
        self.send(ctx, ctx.sender, 0, Answer)
        if self.state.takes == 2 * TOKENS:
            ctx.stop()


def lodger_of(landlord: str, serial: int) -> str:
    """Return the id of the landlord's lodger with this serial number."""
    return f"{landlord}-{serial}"


def landlord_of(lodger: str) -> str:
    """Return the id of the landlord that spawned a lodger."""
    return lodger.partition("-")[0]


def serial_of(lodger: str) -> int:
    """Return the serial number of a lodger among its landlord's lodgers, starting at 1."""
    return int(lodger.partition("-")[2])


class SpawningWorkload(LedgerWorkload):
    """Workload that can check ledgers even if some agents are not created yet or have already stopped."""

    def check_contents(self, books: CutContents) -> None:
        check_members(books, self.fleet.agents)
        departed = _Lodgers(books, list(self.fleet.agents)).complete()
        check_pairs(books)
        check_work(books, self.total, sends_of_departed=departed * 2 * TOKENS)
        check_timers(books)

    def is_done(self, states: Mapping[str, object]) -> bool:
        landlords = [states.get(agent) for agent in self.fleet.agents]
        return self.ends and all(
            isinstance(state, LandlordState) and not (state.work or state.awaited or state.is_ticking)
            for state in landlords
        )


class _Lodgers:
    """Adds the missing ledger entries of lodgers to the contents of a cut, so that every pair has an entry at the sender and at the
    receiver. An entry is missing if a lodger has stopped, or if other agents have removed the lodger from their states.

    The states may belong to live agents, so only copies of the states are changed.
    """

    def __init__(self, books: CutContents, landlords: list[str]) -> None:
        self.books = books
        self.landlords = landlords
        self.departed = 0
        self.lodgers: dict[str, list[str]] = {}
        for agent, state in list(books.states.items()):
            books.states[agent] = msgspec.structs.replace(state, sent=dict(state.sent), got=dict(state.got))
            if "-" in agent:
                self.lodgers.setdefault(landlord_of(agent), []).append(agent)

    def complete(self) -> int:
        """Add the missing entries of every pair that involves a lodger. Return the number of lodgers that have stopped and no longer have a
        state."""
        for agent in self.books.states:
            self._check_known(agent)
        for agent in self.books.creations:
            self._check_known(agent)
        for place, landlord in enumerate(self.landlords):
            neighbour = self.landlords[(place + 1) % len(self.landlords)]
            state = self._landlord(landlord)
            last = state.serial - (state.awaited > 0)
            self.departed += last
            for lodger in self.lodgers.get(landlord, ()):
                if serial_of(lodger) <= last:
                    self._complete_settled(lodger, (landlord, neighbour))
            if state.awaited:
                self._complete_lodger(lodger_of(landlord, state.serial), landlord, neighbour)
        return self.departed

    def _landlord(self, agent: str) -> LandlordState:
        state = self.books.states[agent]
        if not isinstance(state, LandlordState):
            raise InvariantViolatedError(f"the state of {agent} is a {type(state).__qualname__}")
        return state

    def _check_known(self, agent: str) -> None:
        if "-" not in agent:
            return
        landlord = self.books.states.get(landlord_of(agent))
        if not isinstance(landlord, LandlordState) or serial_of(agent) > landlord.serial:
            raise InvariantViolatedError(f"{agent} exists, and nobody has spawned it")
        if self.books.creations.get(agent, 0) + (agent in self.books.states) > 1:
            raise InvariantViolatedError(f"{agent} is created twice")

    def _complete_settled(self, lodger: str, guardians: tuple[str, str]) -> None:
        """Add the missing ledger entries of a lodger that has finished but still has a state in the cut, although the landlord and the
        neighbour have removed it."""
        self.departed -= 1
        for guardian in guardians:
            self._remember(guardian, lodger)

    def _complete_lodger(self, lodger: str, landlord: str, neighbour: str) -> None:
        phase = self._phase(lodger, landlord, neighbour)
        if phase == "gone":
            self.departed += 1
            gone = Ledger(plan=self._landlord(landlord).plan, index=0, sent=_whole(landlord, neighbour))
            gone.got = _whole(landlord, neighbour)
            self.books.states[lodger] = gone
        if lodger not in self._landlord(landlord).sent:
            self._remember(landlord, lodger)
        is_announced = any(self._introductions(lodger, landlord, neighbour))
        if lodger not in self._landlord(neighbour).sent and not is_announced:
            self._remember(neighbour, lodger)

    def _introductions(self, lodger: str, landlord: str, neighbour: str) -> list[bool]:
        """Return, for each message in transit from the landlord to the neighbour, whether it introduces the lodger."""
        transit = self.books.transit.get((landlord, neighbour), [])
        return [isinstance(parcel, Introduction) and parcel.lodger == lodger for parcel in transit]

    def _phase(self, lodger: str, landlord: str, neighbour: str) -> str:
        if lodger in self.books.states:
            return "there"
        if self.books.creations.get(lodger):
            return "unborn"
        # A turn that spawns an agent holds back all its messages, here the token and the introduction, until the spawn
        # is
        # granted.
        parked = self.books.parked
        tokens = self.books.transit.get((landlord, lodger), [])
        held = self._introductions(lodger, landlord, neighbour)[-parked.get((landlord, neighbour), 1) :]
        is_token_held = len(tokens) == 1 == parked.get((landlord, lodger)) and tokens[0].number == 1
        is_wanted = is_token_held and any(held) and (landlord, neighbour) in parked
        return "wanted" if is_wanted else "gone"

    def _remember(self, guardian: str, lodger: str) -> None:
        """Restore the entries for a lodger in the ledger of a landlord or neighbour that removed them after the lodger's last answer."""
        state = self._landlord(guardian)
        state.sent[lodger] = Tally(TOKENS, UNKNOWN)
        state.got[lodger] = Tally(TOKENS, UNKNOWN)


def _whole(*guardians: str) -> dict[str, Tally]:
    return {guardian: Tally(TOKENS, UNKNOWN) for guardian in guardians}


def make_spawning(part: FleetPart) -> LedgerWorkload:
    """Return a workload with approximately as many lodgers as the specified number of messages allows, but at least one."""
    check_agents(part)
    messages = part.pattern.messages
    lodgers = max(1, round(messages / PER_LODGER)) if messages else 0
    works = [PER_LODGER * share for share in shares(lodgers, part.agents)]
    plan = plan_of(part, pause_ns(part, PER_LODGER * part.agents))
    make = functools.partial(_landlord, plan, works)
    return SpawningWorkload(make_fleet(part, make), total=sum(works), ends=messages > 0)


def _landlord(plan: Plan, works: list[int], index: int) -> Landlord:
    return Landlord(LandlordState(plan=plan, index=index, work=works[index]))
