"""Ledgers that every agent keeps in most patterns. With these ledgers, any cut can be checked using only its states and messages.

Theory of operation
-------------------
*Pairs.* For each receiver, an agent records the number of messages sent and a *chain*, which is a running checksum over these messages in
order. For each sender, an agent records the same two values for the messages that it has consumed. Each message carries its sequence number
on its ordered pair of sender and receiver. A cut is consistent and has exact channel states (G1, G2) if two conditions hold for every
ordered pair (s, r) of agents. First, the sequence numbers of the messages in transit run from consumed + 1 to sent. Second, adding the
messages in transit to r's chain of consumed messages yields s's chain of sent messages. A lost, duplicated, swapped, changed or invented
message violates one of these conditions. So does a state from the wrong turn.

*Work.* Every send uses one unit of work. Agents start with a certain amount of work, messages carry work, and no agent creates work. So in
every consistent cut

    messages sent so far + work in states + work in transit = initial work,

and a finished run has sent exactly this number of messages, regardless of the order of events.

*Timers.* An agent has at most one timer, and the agent's state records whether it is set. A cut must contain exactly as many timers as the
states record.

A chain is a polynomial over the messages' checksums, modulo 2**48. It does not protect against deliberate tampering.

*Inputs* from simulated clients (`Nudge`) cause a turn but do not change the state.
"""

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal
from zlib import crc32

import msgspec

import snapline

RAISES = 0.75
"""Probability that a handler that may raise an exception does so. Usually, all three attempts fail and the input
becomes a dead letter, but retrying the dead letter succeeds."""


class Nudge(snapline.Message, frozen=True):
    """Input from a simulated client. `serial` counts the client's inputs.

    Attributes:
        raises: whether the handler usually fails. If all its attempts fail, the input becomes a dead letter, which may succeed when it is
            retried.
        speaks: whether the handler also emits an output.
    """

    client: str
    serial: int
    raises: bool
    speaks: bool = False

    def take(self, ctx: snapline.Context) -> None:
        """Handle the input and answer it. Every answer is unique, so that a reverted answer can be distinguished from a valid answer.

        Raises:
            ValueError: If `raises` is set and a random draw selects a failure.
        """
        if self.raises and ctx.random() < RAISES:
            raise ValueError(f"input {self.serial} of {self.client} cannot be handled")
        echo = Echo(self.serial, ctx.random())
        ctx.reply(echo)
        if self.speaks:
            ctx.emit("echoes", Echoed(self.client, self.serial, echo.draw))


class Echoed(snapline.Message, frozen=True):
    """Output that an agent emits when it handles a `Nudge`. No two outputs have the same bytes, not even in different histories."""

    client: str
    serial: int
    draw: float


class Echo(snapline.Message, frozen=True):
    """Answer to a `Nudge`."""

    serial: int
    draw: float


FOREVER = 10**12
"""Amount of work for an agent that never finishes. It is practically infinite, but small enough that sums are exact in 64 bits."""

UNKNOWN = -1
"""Stands for the chain of a pair of agents of which one has stopped."""

_CHAIN_MASK = (1 << 48) - 1
_FACTOR = 0x9E3779B1

Channel = tuple[str, str]
"""Sender and receiver of a channel."""


class Parcel(snapline.Message, frozen=True, gc=False):
    """A message between agents in a pattern.

    Attributes:
        id: the sender's name and the total number of messages that the sender has sent to all receivers. Unique within a history.
        number: sequence number on the ordered pair of agents, starting at 1.
        work: units of work carried by the message.
        filler: padding bytes of the requested size.
    """

    id: str
    number: int
    work: int = 0
    filler: bytes = b""

    @property
    def content(self) -> int:
        """Number that represents all fields that the chain covers besides `id` and `number`. Subclasses add their own fields."""
        return self.work


class Tick(snapline.Message, frozen=True):
    """Message that an agent receives from its own timer, and that makes the agent continue its work."""


class Tally(msgspec.Struct, array_like=True, gc=False):
    """Number and chain of the messages so far on one ordered pair of agents, as recorded by one of the two agents."""

    count: int = 0
    chain: int = 0


class Plan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Settings that all agents in a fleet share. `pause_ns` is the delay of the agents' timers. A delay of 0 means that agents use no timer
    and continue immediately."""

    agents: int
    payload_bytes: int
    pause_ns: int


class Ledger(msgspec.Struct, kw_only=True):
    """Base class of the states of agents that keep ledgers.

    Attributes:
        sends, takes: total number of messages sent so far, and total number consumed so far.
        work: number of messages that the agent must still send or delegate to other agents.
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
    """Base class of agents that keep ledgers. Sending a message with `work=w` costs the sender w + 1 units of work, which the handler must
    subtract."""

    # A handler raises an exception only before its first action. So no turn needs to be undone, and no state needs to
    # be
    # captured before a turn.
    on_error: ClassVar[Literal["undo", "keep", "recover"] | None] = "keep"
    state: Ledger

    @snapline.handler
    async def on_nudge(self, message: Nudge, ctx: snapline.Context) -> None:
        """Handle an input from a client without changing the state."""
        message.take(ctx)

    def send(self, ctx: snapline.Context, to: str, work: int, kind: type[Parcel] = Parcel, *more: object) -> None:
        """Send a message, and record it in the sender's ledger. `more` contains the fields that the message class `kind` has in addition to
        `Parcel`."""
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
        """Record a consumed message in the receiver's ledger. The caller must add the message's work to its own or pass it on."""
        state = self.state
        tally = state.got.get(ctx.sender)
        if tally is None:
            tally = state.got[ctx.sender] = Tally()
        state.takes += 1
        tally.count += 1
        tally.chain = chained(tally.chain, parcel)

    def tick(self, ctx: snapline.Context, pause_ns: int = 0) -> None:
        """Set the timer unless it is already set. A nonzero `pause_ns` replaces the delay that all agents share."""
        if not self.state.is_ticking:
            self.state.is_ticking = True
            ctx.set_timer("tick", (pause_ns or self.state.plan.pause_ns) / 1e9, Tick())


def chained(chain: int, parcel: Parcel) -> int:
    """Return the chain after appending a message."""
    checksum = crc32(parcel.id.encode()) + (parcel.number << 20) + parcel.content
    return (chain * _FACTOR + checksum) & _CHAIN_MASK


class CutContents(msgspec.Struct):
    """Contents of a cut, or of the whole fleet after a run.

    Attributes:
        transit: messages in transit for each ordered pair of agents, in order. Messages in the channel precede messages in the sender's
            outbox.
        parked: for each pair, the number of messages in transit that are still in the sender's outbox.
        creations: for each agent to be created, the number of creation messages in transit.
    """

    states: dict[str, Ledger]
    transit: dict[Channel, list[Parcel]]
    parked: dict[Channel, int]
    creations: dict[str, int]
    timers: int


class InvariantViolatedError(Exception):
    """Raised if a cut or a final state violates an invariant of the workload. The error message is one sentence that states the
    evidence."""


def contents_of(cut: snapline.Cut) -> CutContents:
    """Return the contents of a cut, grouped by agent and by pair of agents.

    Raises:
        InvariantViolatedError: If the cut contains a state or message that none of the pattern's agents could have produced.
    """
    books = CutContents(states_of(cut.states), {}, {}, {}, cut.timers)
    waiting: list[tuple[Channel, Parcel]] = []
    for turn in cut.pending_turns:  # its agent's state is from before the turn
        if isinstance(turn.message, Parcel):
            books.transit[turn.sender, turn.agent] = [turn.message]
    for transit in cut.in_transit:
        channel = (transit.sender, transit.receiver)
        if transit.sender.startswith("@"):
            continue  # a client's input, which a durable turn has put off
        if transit.message is None:
            earlier = books.transit.get(channel) or (transit.number is None and channel in dict(waiting))
            _note_creation(books, transit.receiver, is_late=bool(earlier))
        elif transit.number is None:
            waiting.append((channel, _parcel(channel, transit.message)))
        else:
            books.transit.setdefault(channel, []).append(_parcel(channel, transit.message))
    for channel, parcel in waiting:
        books.transit.setdefault(channel, []).append(parcel)
        books.parked[channel] = books.parked.get(channel, 0) + 1
    return books


def _note_creation(books: CutContents, agent: str, *, is_late: bool) -> None:
    """Count a message that creates an agent. If `is_late` is set, an earlier message from the same sender to the agent is in transit, which
    is an error."""
    if is_late:
        raise InvariantViolatedError(f"{agent} is created after the first message to it")
    books.creations[agent] = books.creations.get(agent, 0) + 1


def _parcel(channel: Channel, message: object) -> Parcel:
    """Return a message as a `Parcel`. If the receiver does not exist yet, its message is available only as a plain value."""
    if isinstance(message, Parcel):
        return message
    try:
        return msgspec.convert(message, Parcel)
    except msgspec.ValidationError:
        raise InvariantViolatedError(
            f"{channel[0]} → {channel[1]}: {message!r} is no message of this workload"
        ) from None


def states_of(states: Mapping[str, object]) -> dict[str, Ledger]:
    """Return the states of all agents. Check that each state is a `Ledger`.

    Raises:
        InvariantViolatedError: If a state has a different type.
    """
    ledgers: dict[str, Ledger] = {}
    for agent in states:
        state = states[agent]
        if not isinstance(state, Ledger):
            raise InvariantViolatedError(f"the state of {agent} is a {type(state).__qualname__}")
        ledgers[agent] = state
    return ledgers


def check_members(books: CutContents, agents: Iterable[str]) -> None:
    """Check that the cut contains a state for each of these agents."""
    for agent in agents:
        if agent not in books.states:
            raise InvariantViolatedError(f"{agent} has no state")


def check_pairs(books: CutContents) -> None:
    """Check for each ordered pair that the messages sent are exactly those consumed plus those in transit, with the correct sequence
    numbers, contents and order."""
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
    amounts = f"sent {sent.count}, consumed {got.count}, in transit {numbers}"
    cause = "the consumed messages differ from the sent ones" if is_right else "that does not add up"
    raise InvariantViolatedError(f"{sender} → {receiver}: {amounts}: {cause}")


def check_work(books: CutContents, total: int, *, sends_of_departed: int = 0) -> None:
    """Check that no work has been lost or created. `sends_of_departed` is the number of messages sent by agents that have already
    stopped."""
    sends = sum([state.sends for state in books.states.values()]) + sends_of_departed
    held = sum([state.work for state in books.states.values()])
    carried = sum([parcel.work for transit in books.transit.values() for parcel in transit])
    if sends + held + carried != total:
        amounts = f"{sends} messages sent, {held} of work in states and {carried} in transit"
        raise InvariantViolatedError(f"{amounts}: that is not the {total} of the beginning")


def check_timers(books: CutContents) -> None:
    """Check that the number of timers equals the number of states that record a timer as set."""
    ticking = sum([state.is_ticking for state in books.states.values()])
    if ticking != books.timers:
        raise InvariantViolatedError(f"{books.timers} timers are set, but by their states {ticking} agents have one")


def shares(total: int, parts: int) -> list[int]:
    """Divide `total` into integer shares that differ by at most one, with the larger shares first. If `total` is 0, each share is
    `FOREVER`."""
    if not total:
        return [FOREVER] * parts
    least, rest = divmod(total, parts)
    return [least + (part < rest) for part in range(parts)]


def name_of(index: int) -> str:
    """Return the id of the agent with this index."""
    return f"a{index}"
