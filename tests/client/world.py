"""A made-up fleet around a client's core: hosts that die and hand agents over, a network that loses, doubles and delays.

It keeps books of its own: which keys each agent has taken, and under which number. Hosts keep what the wire promises (the same key
once; of one agent's inputs in a request nothing behind one that was not taken for the moment), and nothing more.
"""

import heapq
import itertools
import random
from collections.abc import Callable

from snapline.client import client_events as ev
from snapline.client.core import REQUESTS_MAX, ClientCore
from snapline.client.queues import BATCH_BYTES_MAX, BATCH_INPUTS_MAX
from snapline.messages.answers import LocatedAgent, LocateReply
from snapline.messages.client_requests import InputOutcome

MS = 1_000_000
SECOND = 1000 * MS
MINUTE = 60 * SECOND

STEPS_MAX = 10_000
"""Of one run, which takes some hundred."""
HOSTS = ("h1", "h2", "h3")


class World:
    """One run. `ends`: send → how it ended; `books`: agent → key → number."""

    def __init__(self, seed: int, *, trouble: float) -> None:
        self.random = random.Random(seed)
        self.trouble = trouble
        self.core = ClientCore(seed)
        self.now_ns = 0
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.count = itertools.count()
        self.owner: dict[str, str] = {}
        self.told: dict[str, str] = {}
        self.gone: dict[str, None] = {}
        self.dead: dict[str, None] = {}
        self.phase = "running"
        self.books: dict[str, dict[int, int]] = {}
        self.given: dict[int, ev.Send] = {}
        self.ends: dict[int, tuple[int, ev.FinishSend]] = {}
        self.open: dict[int, None] = {}
        self.timer_ns: int | None = None
        self.requests: list[ev.OfferInputs] = []

    # ---- time -------------------------------------------------------------------------------------------------------

    def at(self, delay_ns: int, action: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (self.now_ns + delay_ns, next(self.count), action))

    def run(self) -> None:
        """Until nothing happens any more."""
        while self.heap:
            self.now_ns, _, action = heapq.heappop(self.heap)
            assert self.now_ns < MINUTE and next(self.count) < STEPS_MAX, "it goes on for ever"
            action()

    def feed(self, event: ev.Event) -> None:
        for command in self.core.handle(self.now_ns, event):
            match command:
                case ev.LookUpAgents():
                    self.open[command.request] = None
                    self.find(command)
                case ev.OfferInputs():
                    self.open[command.request] = None
                    self.offer(command)
                case ev.FinishSend():
                    assert command.send not in self.ends, "it ended twice"
                    self.ends[command.send] = (self.now_ns, command)
        self.core.validate()
        wakeup_ns = self.core.wakeup_ns
        if wakeup_ns is not None and wakeup_ns != self.timer_ns:
            self.timer_ns = wakeup_ns
            self.at(max(0, wakeup_ns - self.now_ns), self.fire)

    def fire(self) -> None:
        self.timer_ns = None
        self.feed(ev.TimerFired())

    def answer(self, request: int, event: ev.Event) -> None:
        """What comes first counts; the rest is dropped by the transport."""
        if request in self.open:
            del self.open[request]
            self.feed(event)

    def delay(self) -> int:
        """Mostly a millisecond; sometimes longer than anybody waits."""
        scale = self.random.choice([1, 1, 1, 50, 3000, 15000]) if self.random.random() < self.trouble else 1
        return int(self.random.uniform(0.1, 1.0) * scale * MS)

    def is_bad(self) -> bool:
        return self.random.random() < self.trouble

    # ---- the coordinator ----------------------------------------------------------------------------------------------

    def find(self, command: ev.LookUpAgents) -> None:
        assert command.limit_ns > 0 and command.agents
        self.at(command.limit_ns, lambda: self.answer(command.request, ev.LookupFailed(command.request, "no answer")))
        if self.is_bad():
            return
        if self.is_bad():
            self.at(
                self.delay(), lambda: self.answer(command.request, ev.LookupFailed(command.request, "nobody leads"))
            )
            return
        self.at(
            self.delay(), lambda: self.answer(command.request, ev.AgentsFound(command.request, self.places(command)))
        )

    def places(self, command: ev.LookUpAgents) -> LocateReply:
        return LocateReply(self.phase, "", tuple([self.place(agent) for agent in command.agents]))

    def place(self, agent: str) -> LocatedAgent:
        if agent in self.gone:
            return LocatedAgent(agent, "left")
        if agent not in self.owner:
            return LocatedAgent(agent, "unknown")
        host = self.told[agent]
        return LocatedAgent(agent, "lost" if host in self.dead and self.is_bad() else "alive", host, f"{host}:1", 1)

    # ---- hosts ----------------------------------------------------------------------------------------------------

    def offer(self, command: ev.OfferInputs) -> None:
        sizes = [self.given[send].size_bytes for send in command.sends]
        assert len(sizes) <= BATCH_INPUTS_MAX and (len(sizes) == 1 or sum(sizes) <= BATCH_BYTES_MAX)
        assert len(set(command.sends)) == len(command.sends)
        self.requests.append(command)
        assert sum(each.request in self.open for each in self.requests if each.host == command.host) <= REQUESTS_MAX
        failed = ev.RequestFailed(command.request, "no answer in time")
        self.at(command.limit_ns, lambda: self.answer(command.request, failed))
        if command.host in self.dead and not self.is_bad():
            unsent = ev.RequestFailed(command.request, "connection refused", is_unsent=True)
            self.at(self.delay(), lambda: self.answer(command.request, unsent))
            return
        is_doubled = self.is_bad()  # TCP doubles nothing of a stream that lives: then no answer comes through
        for _ in range(1 + is_doubled):
            if not self.is_bad():
                self.at(self.delay(), lambda: self.arrive(command, is_answered=not is_doubled))
        if self.is_bad():
            broken = ev.RequestFailed(command.request, "the stream broke")
            self.at(self.delay(), lambda: self.answer(command.request, broken))

    def arrive(self, command: ev.OfferInputs, *, is_answered: bool) -> None:
        """A request, perhaps a late one, perhaps again."""
        if command.host in self.dead:
            return
        is_recovering = self.is_bad()
        full: dict[str, None] = {}
        outcomes = []
        for send in command.sends:
            agent = self.given[send].agent
            if is_recovering or (self.is_bad() and self.is_bad()):
                full[agent] = None
            outcomes.append(self.take(command.host, send, agent, is_full=agent in full))
        if self.is_bad() and self.is_bad():
            self.dead[command.host] = None  # it died behind its log, before its answer
            self.at(SECOND, lambda: self.recover(command.host))
            return
        answered = ev.RequestAnswered(command.request, tuple(outcomes))
        if is_answered and not self.is_bad():
            self.at(self.delay(), lambda: self.answer(command.request, answered))

    def take(self, host: str, send: int, agent: str, *, is_full: bool) -> InputOutcome:
        books = self.books.setdefault(agent, {})
        if self.owner.get(agent) != host:
            hint = self.owner.get(agent, "") if not self.is_bad() else self.random.choice(HOSTS)
            return InputOutcome("retry", 0, "not here", hint, f"{hint}:1") if hint else InputOutcome("retry")
        if send in books:
            return InputOutcome("repeated", books[send])
        if agent in self.gone:
            return InputOutcome("refused", 0, "it has stopped")
        if is_full:
            return InputOutcome("retry", 0, "too much waits")
        books[send] = len(books) + 1
        return InputOutcome("accepted", books[send])

    # ---- what happens to the fleet --------------------------------------------------------------------------------------

    def recover(self, host: str) -> None:
        """Its agents live elsewhere, and it is back; the coordinator is a moment late."""
        self.dead.pop(host, None)
        for agent, owner in list(self.owner.items()):
            if owner == host:
                self.move(agent)

    def move(self, agent: str) -> None:
        self.owner[agent] = self.random.choice(HOSTS)
        self.at(self.delay(), lambda: self.told.update({agent: self.owner[agent]}))

    def give(self, sends: list[ev.Send]) -> None:
        self.given.update({each.send: each for each in sends})
        self.feed(ev.InputsGiven(tuple(sends)))


def run(seed: int, *, trouble: float) -> World:
    """A fleet of some agents, and a program that sends to them for some seconds."""
    world = World(seed, trouble=trouble)
    agents = [f"a{number}" for number in range(world.random.randint(1, 6))]
    for agent in agents:
        world.owner[agent] = world.told[agent] = world.random.choice(HOSTS)
    numbers = itertools.count(1)

    def sends() -> None:
        count = world.random.choice([1, 1, 2, 5, 20])
        given = []
        for _ in range(count):
            size = world.random.choice([10, 1000, 400_000, 2_000_000])
            limit_ns = int(world.random.uniform(0.05, 20) * SECOND)
            agent = world.random.choice([*agents, "nobody"] if world.is_bad() else agents)
            given.append(ev.Send(next(numbers), agent, size, world.now_ns + limit_ns))
        world.give(given)
        if world.is_bad():
            dropped = tuple(
                [each.send for each in given if world.random.random() < 0.3 and each.send not in world.ends]
            )
            for send in dropped:
                world.ends[send] = (world.now_ns, ev.FinishSend(send, "dropped"))
            world.feed(ev.SendsDropped(dropped))

    for _ in range(20):
        world.at(int(world.random.uniform(0, 4) * SECOND), sends)
    for _ in range(int(20 * trouble)):
        world.at(int(world.random.uniform(0, 5) * SECOND), lambda: world.move(world.random.choice(agents)))
    if world.random.random() < 2 * trouble:
        world.at(int(world.random.uniform(0, 5) * SECOND), lambda: world.gone.update({agents[0]: None}))
    if world.random.random() < trouble / 2:
        world.at(int(world.random.uniform(1, 6) * SECOND), lambda: setattr(world, "phase", "finished"))
    if world.random.random() < trouble / 4:
        world.at(int(world.random.uniform(1, 6) * SECOND), lambda: world.feed(ev.ClientClosed()))
    world.run()
    return world


def judge(world: World) -> None:
    """What a client promises, by the world's books.

    Raises:
        AssertionError: it has not kept it.
    """
    assert set(world.ends) == set(world.given), "a send that has not ended"
    last: dict[str, int] = {}
    for send, given in world.given.items():
        ended_ns, end = world.ends[send]
        number = world.books.get(given.agent, {}).get(send)
        assert ended_ns <= given.deadline_ns, f"{end} after its time"
        if end.ending == "taken":
            assert number is not None and number == end.number, f"{end}, and the books say {number}"
            assert number > last.get(given.agent, 0), f"{end} overtook {last[given.agent]}"
            last[given.agent] = number
        elif end.ending not in ("unknown", "dropped"):
            assert number is None, f"{end}, and the books say {number}"
