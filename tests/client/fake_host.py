"""A host's port with the real service behind it, and agents that only keep books: what the host core does is made up here."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

import snapline
from snapline.agent_runtime.agent import AgentType, agent_type
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.input_service import InputService
from snapline.agent_runtime.host.view_service import ViewService
from snapline.agent_runtime.message_encoding import encode_message
from snapline.channels.frame import Frame, LinkHello, Refused
from snapline.channels.grpc_link import LinkTransport
from snapline.errors import StoreError
from snapline.messages.client_requests import InputOutcome, RecentTrace, TraceWanted
from snapline.messages.client_wire import AGENTS_SERVICE as AGENTS
from snapline.messages.client_wire import INPUTS_SERVICE
from snapline.messages.effect_records import UnfinishedEffect
from snapline.security.transport import Security
from snapline.storage.store.store import Store

LIMIT_S = 20.0
"""Of anything that is waited for."""


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.01)


class Paid(snapline.Message):
    amount: int
    note: str = ""
    photo: bytes = b""


class Taken(snapline.Message):
    """What an agent answers."""

    number: int
    photo: bytes = b""


class Closed(msgspec.Struct, frozen=True):
    pass


class Book(msgspec.Struct):
    amount: int = 0


class Clerk(snapline.Agent):
    state: Book

    @snapline.handler(public=True)
    async def on_paid(self, message: Paid, ctx: snapline.Context) -> None: ...

    @snapline.handler
    async def on_closed(self, message: Closed, ctx: snapline.Context) -> None: ...


class Books:
    """What the agents of a fleet have taken, wherever they live: agent → key → number and payload."""

    def __init__(self, *agents: str) -> None:
        self.taken: dict[str, dict[str, tuple[int, bytes]]] = {agent: {} for agent in agents}

    def take(self, agent: str, key: str, payload: bytes) -> InputOutcome:
        taken = self.taken[agent]
        if key in taken:
            number, known = taken[key]
            return InputOutcome("repeated", number) if known == payload else InputOutcome("refused", number, "used")
        taken[key] = (len(taken) + 1, payload)
        return InputOutcome("accepted", len(taken))


def make_view(agent: str) -> ev.AgentView:
    return ev.AgentView(agent, "", 1, "running", "", "", 0, None, 3, 2, 1, (), (("soon", 10**9),), 7, 5, 9, 0, (), ())


class FakeHost:
    """One host. Stands for the links' owner as well: nobody links.

    Attributes:
        agents: those that live here.
        places: agent → another host and its address.
        offered: what was handed on.
        hold, hold_asks: while one is set, offers or questions are taken and not answered.
        asked: agent, key and `is_early` of each question.
        shown, hold_views: the same of looks at agents; `store`: what is read for them.
        standing: effects at which agents stand.
    """

    def __init__(self, host: str, books: Books, security: Security | None = None) -> None:
        self.host = host
        self.books = books
        self.agents: list[str] = list(books.taken)
        self.places: dict[str, tuple[str, str]] = {}
        self.offered: list[tuple[str, tuple[ev.OfferedInput, ...]]] = []
        self.answers: Callable[[ev.OfferedInput], InputOutcome | None] = lambda offered: None
        self.hold: list[Callable[[], None]] | None = None
        self.asked: list[tuple[str, str, bool]] = []
        self.replies: Callable[[str, str, bool], ev.AskAnswer | None] = lambda agent, key, is_early: None
        self.hold_asks: list[Callable[[], None]] | None = None
        self.security = security or Security.loopback()
        self.transport = LinkTransport(self, host=host, security=self.security)
        self.service = InputService(self, self.transport.guard, host=host)
        self.views = ViewService(self, host=host)
        self.shown: list[tuple[str, bool]] = []
        self.hold_views: list[Callable[[], None]] | None = None
        self.standing: list[UnfinishedEffect] = []
        self.store: Store | None = None
        self.address = ""

    async def start(self, listen: str = "127.0.0.1:0") -> "FakeHost":
        port = await self.transport.start(
            listen, {INPUTS_SERVICE: self.service.handlers(), AGENTS: self.views.handlers()}
        )
        self.address = f"127.0.0.1:{port}"
        return self

    async def stop(self) -> None:
        await self.transport.stop()

    # ---- of the service -----------------------------------------------------------------------------------------------

    def offer(
        self, client: str, inputs: Sequence[ev.OfferedInput], then: Callable[[tuple[InputOutcome, ...]], None]
    ) -> None:
        self.offered.append((client, tuple(inputs)))
        answers = tuple([self.answers(x) or self.books.take(x.agent, x.key, x.payload) for x in inputs])
        if self.hold is not None:
            self.hold.append(lambda: then(answers))
        else:
            asyncio.get_running_loop().call_soon(then, answers)

    def ask(self, agent: str, key: str, then: Callable[[ev.AskAnswer], None], *, is_early: bool) -> None:
        self.asked.append((agent, key, is_early))
        answer = self.replies(agent, key, is_early) or self._reply(agent, key)
        if self.hold_asks is not None:
            self.hold_asks.append(lambda: then(answer))
        else:
            asyncio.get_running_loop().call_soon(then, answer)

    def _reply(self, agent: str, key: str) -> ev.AskAnswer:
        """The number of the input, of an agent that lives here."""
        if agent not in self.agents:
            return ev.AskAnswer("retry", reason=f"agent {agent} is not on host {self.host}")
        number, _ = self.books.taken[agent].get(key, (0, b""))
        if not number:
            return ev.AskAnswer("unknown", reason=f"agent {agent} knows no input of key {key!r}")
        return ev.AskAnswer("replied", number, encode_message(Taken(number)))

    def view(self, agent: str, then: Callable[[ev.AnswerView], None], *, is_settled: bool) -> None:
        self.shown.append((agent, is_settled))

        def tell() -> None:
            is_here = agent in self.agents
            then(ev.AnswerView(1, make_view(agent) if is_here else None, f"agent {agent} is not on host {self.host}"))

        if self.hold_views is None:
            tell()
        else:
            self.hold_views.append(tell)

    def open_waits(self, then: Callable[[ev.AnswerOpenWaits], None]) -> None:
        then(ev.AnswerOpenWaits(1, tuple(self.standing)))

    def waiting(self, then: Callable[[ev.AnswerWaiting], None]) -> None:
        then(ev.AnswerWaiting(1, tuple([make_view(agent) for agent in self.agents]), 3))

    def recent_trace(self, wanted: TraceWanted) -> Callable[[], RecentTrace]:
        return lambda: RecentTrace(self.host, "1-1.1", wanted.every)

    def look_at(self, agent: str) -> bytes:
        return msgspec.msgpack.encode({"amount": len(self.books.taken[agent])})

    def open_store(self) -> Store:
        if self.store is None:
            raise StoreError("the store cannot be read: no route")
        return self.store

    def type_of(self, agent: str) -> AgentType | None:
        return agent_type(Clerk) if agent in self.agents else None

    def place_of(self, agent: str) -> tuple[str, str]:
        return self.places.get(agent, ("", ""))

    # ---- of the links -------------------------------------------------------------------------------------------------

    def accepted(self, peer: str, hello: LinkHello) -> Refused | None:
        return Refused("no links here", is_final=True)

    def dial_requested(self, hello: LinkHello) -> None:
        """Nobody is dialled from here."""

    def opened(self, peer: str, attempt: int) -> bool:
        return False

    def received(self, peer: str, frame: Frame) -> None: ...

    def next_frame(self, peer: str) -> Frame | None:
        return None

    def closed(self, peer: str, error: str | None) -> None: ...

    def address_of(self, peer: str) -> str:
        return ""

    def is_remote(self, peer: str) -> bool:
        return False
