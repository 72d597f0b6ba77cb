"""The books that every agent of a pattern keeps, so that any cut can be judged from its states and messages alone.

Theory of operation
-------------------
*Pairs.* For each receiver an agent keeps how many messages it sent there, and a chain: a number that each message changes
in a way that depends on the message and on all before it. For each sender it keeps the same of what it consumed. Messages
carry their number of the pair. A cut is consistent, with exact channel states (G1, G2), if for every ordered pair
(s, r) the messages in transit are numbered consumed + 1 … sent, and fold the chain of what r consumed into the chain
of what s sent. One lost, doubled, swapped, changed or invented message breaks it, and so does a state of another turn.

*Work.* Every send costs one unit of work. Agents begin with work, messages carry work, nobody makes any. So in every
consistent cut

    messages sent so far + work in states + work in transit = the work at the beginning,

and a run of which all work is done has sent exactly so many messages, whatever the order of events was.

*Timers.* An agent has at most one timer, and its state says so. A cut holds as many as the states say.

The chain is a polynomial modulo 2**48 over checksums of messages. It is no defence against people.
"""

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal
from zlib import crc32

import msgspec

import snapline
from snapline.sim.workloads.nudge import Nudge

FOREVER = 10**12
"""Work of an agent that is never to end: as good as infinite, and sums of it stay exact in 64 bits."""

UNKNOWN = -1
"""Chain of a pair one end of which has left."""

_CHAIN_MASK = (1 << 48) - 1
_FACTOR = 0x9E3779B1

Channel = tuple[str, str]
"""Sender and receiver."""


class Parcel(snapline.Message, frozen=True, gc=False):
    """A message of a pattern.

    Attributes:
        id: the sender's name and how many messages it has sent to anybody: no other message of one history has it.
        number: counts from 1 on its ordered pair of agents.
        work: what it brings.
        filler: makes it as large as was asked for.
    """

    id: str
    number: int
    work: int = 0
    filler: bytes = b""

    @property
    def content(self) -> int:
        """Fields that the chain covers besides the id and the number; subclasses with more fields add them."""
        return self.work


class Tick(snapline.Message, frozen=True):
    """Timer message to the agent itself: continue."""


class Tally(msgspec.Struct, array_like=True, gc=False):
    """Messages of one ordered pair so far, as seen by one of its ends."""

    count: int = 0
    chain: int = 0


class Plan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Settings that all agents of a fleet share. `pause_ns`: the timer's delay; 0: no timer, continue at once."""

    agents: int
    payload_bytes: int
    pause_ns: int


class Ledger(msgspec.Struct, kw_only=True):
    """Base of states.

    Attributes:
        sends, takes: messages sent and consumed so far.
        work: messages that it still has to send, or to let others send.
        is_ticking: its timer is set.
    """

    plan: Plan
    index: int
    sends: int = 0
    takes: int = 0
    work: int = 0
    is_ticking: bool = False
    sent: dict[str, Tally] = {}
    got: dict[str, Tally] = {}


class Worker(snapline.Agent):
    """Base of agents. Handlers spend work: whoever sends with `work=w` has taken w + 1 from somewhere."""

    # No handler raises but before it has done anything, so no turn ever has to be undone, and no image is taken before each.
    on_error: ClassVar[Literal["undo", "keep", "recover"] | None] = "keep"
    state: Ledger

    @snapline.handler
    async def on_nudge(self, message: Nudge, ctx: snapline.Context) -> None:
        """Handle a client's input, which changes no state."""
        message.take(ctx)

    def send(self, ctx: snapline.Context, to: str, work: int, kind: type[Parcel] = Parcel, *more: object) -> None:
        """Send one message and enter it. `more`: the fields that its kind adds."""
        state = self.state
        tally = state.sent.get(to)
        if tally is None:
            tally = state.sent[to] = Tally()
        state.sends += 1
        tally.count += 1
        parcel = kind(f"{ctx.agent}/{state.sends}", tally.count, work, bytes(state.plan.payload_bytes), *more)
        tally.chain = chained(tally.chain, parcel)
        ctx.send(to, parcel)

    def take(self, ctx: snapline.Context, parcel: Parcel) -> None:
        """Enter a message that is being consumed. What it brings is the caller's to keep or to pass on."""
        state = self.state
        tally = state.got.get(ctx.sender)
        if tally is None:
            tally = state.got[ctx.sender] = Tally()
        state.takes += 1
        tally.count += 1
        tally.chain = chained(tally.chain, parcel)

    def tick(self, ctx: snapline.Context, pause_ns: int = 0) -> None:
        """Set the timer, if it is not set: after the plan's pause, or after `pause_ns`."""
        if not self.state.is_ticking:
            self.state.is_ticking = True
            ctx.set_timer("tick", (pause_ns or self.state.plan.pause_ns) / 1e9, Tick())


def chained(chain: int, parcel: Parcel) -> int:
    """The chain after one more message."""
    word = crc32(parcel.id.encode()) + (parcel.number << 20) + parcel.content
    return (chain * _FACTOR + word) & _CHAIN_MASK


class Books(msgspec.Struct):
    """One cut, or the end of a run, taken apart.

    Attributes:
        states: agent → its state.
        transit: pair → messages in transit, in order: those in the channel, then those in the sender's outbox.
        parked: pair → how many of them are still in the outbox.
        creations: agent → how many messages that create it are in transit.
        timers: how many are set.
    """

    states: dict[str, Ledger]
    transit: dict[Channel, list[Parcel]]
    parked: dict[Channel, int]
    creations: dict[str, int]
    timers: int


class WrongBooksError(Exception):
    """An invariant of a workload does not hold; the text is one sentence with the evidence."""


def books_of(cut: snapline.Cut) -> Books:
    """Take a cut apart.

    Raises:
        WrongBooksError: it holds something that no agent of a pattern has, or sends.
    """
    books = Books(states_of(cut.states), {}, {}, {}, cut.timers)
    waiting: list[tuple[Channel, Parcel]] = []
    for found in cut.in_transit:
        channel = (found.sender, found.receiver)
        if found.message is None:
            earlier = books.transit.get(channel) or (found.number is None and channel in dict(waiting))
            _note_creation(books, found.receiver, is_late=bool(earlier))
        elif found.number is None:
            waiting.append((channel, _parcel(channel, found.message)))
        else:
            books.transit.setdefault(channel, []).append(_parcel(channel, found.message))
    for channel, parcel in waiting:
        books.transit.setdefault(channel, []).append(parcel)
        books.parked[channel] = books.parked.get(channel, 0) + 1
    return books


def _note_creation(books: Books, agent: str, *, is_late: bool) -> None:
    """Count a creation. An agent's creator sends nothing to it earlier."""
    if is_late:
        raise WrongBooksError(f"{agent} is created after the first message to it")
    books.creations[agent] = books.creations.get(agent, 0) + 1


def _parcel(channel: Channel, message: object) -> Parcel:
    """Messages for agents without a class, since they are not born, come as plain values."""
    if isinstance(message, Parcel):
        return message
    try:
        return msgspec.convert(message, Parcel)
    except msgspec.ValidationError:
        raise WrongBooksError(f"{channel[0]} → {channel[1]}: {message!r} is no message of this workload") from None


def states_of(states: Mapping[str, object]) -> dict[str, Ledger]:
    """The states, as what they are.

    Raises:
        WrongBooksError: one of them is something else.
    """
    found: dict[str, Ledger] = {}
    for agent in states:
        state = states[agent]
        if not isinstance(state, Ledger):
            raise WrongBooksError(f"the state of {agent} is a {type(state).__qualname__}")
        found[agent] = state
    return found


def check_members(books: Books, agents: Iterable[str]) -> None:
    """Check that every agent of the fleet has a state."""
    for agent in agents:
        if agent not in books.states:
            raise WrongBooksError(f"{agent} has no state")


def check_pairs(books: Books) -> None:
    """Check for each ordered pair: sent = consumed + in transit, with the right numbers and contents, in order."""
    nothing = Tally()
    channels: dict[Channel, None] = dict.fromkeys(books.transit)
    for agent, state in books.states.items():
        for receiver in state.sent:
            channels[agent, receiver] = None
        for sender in state.got:
            channels[sender, agent] = None
    for sender, receiver in channels:
        source, target = books.states.get(sender), books.states.get(receiver)
        sent = source.sent.get(receiver, nothing) if source is not None else nothing
        got = target.got.get(sender, nothing) if target is not None else nothing
        _check_pair(sender, receiver, sent, got, books.transit.get((sender, receiver), []))


def _check_pair(sender: str, receiver: str, sent: Tally, got: Tally, transit: list[Parcel]) -> None:
    chain = got.chain
    is_right = sent.count == got.count + len(transit)
    for number, parcel in enumerate(transit, got.count + 1):
        is_right = is_right and parcel.number == number
        chain = UNKNOWN if chain == UNKNOWN else chained(chain, parcel)
    if is_right and (chain == sent.chain or UNKNOWN in (chain, sent.chain)):
        return
    numbers = ", ".join([str(parcel.number) for parcel in transit]) or "nothing"
    said = f"sent {sent.count}, consumed {got.count}, in transit {numbers}"
    cause = "other messages were consumed than were sent" if is_right else "that does not add up"
    raise WrongBooksError(f"{sender} → {receiver}: {said}: {cause}")


def check_work(books: Books, total: int, *, sends_of_departed: int = 0) -> None:
    """Check that no work was lost or made."""
    sends = sum([state.sends for state in books.states.values()]) + sends_of_departed
    held = sum([state.work for state in books.states.values()])
    carried = sum([parcel.work for transit in books.transit.values() for parcel in transit])
    if sends + held + carried != total:
        said = f"{sends} messages sent, {held} of work in states and {carried} in transit"
        raise WrongBooksError(f"{said}: that is not the {total} of the beginning")


def check_timers(books: Books) -> None:
    """Check that as many timers are set as the states say."""
    ticking = sum([state.is_ticking for state in books.states.values()])
    if ticking != books.timers:
        raise WrongBooksError(f"{books.timers} timers are set, by their states {ticking} agents have one")


def shares(total: int, parts: int) -> list[int]:
    """`total` in whole parts that differ by one at most, the larger ones first; 0 is for ever."""
    if not total:
        return [FOREVER] * parts
    least, rest = divmod(total, parts)
    return [least + (part < rest) for part in range(parts)]


def name_of(index: int) -> str:
    """The id of an agent."""
    return f"a{index}"
