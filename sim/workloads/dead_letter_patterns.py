"""Patterns in which messages become dead letters of their receivers or senders. Every cut must account for all dead letters.

*Failing* (`make_failing`). For every tenth message on a channel, the handler fails at every attempt, so the message becomes a dead letter.
In the pattern "killing", one message kills the receiver's process instead of failing. Each agent sends its share of the messages to all
other agents in turn, one message per timer tick. All messages, including those that fail, have a sequence number on their channel, and no
agent answers. After consuming all messages up to number n, a receiver has counted all of them except the n // `POISON_EVERY` messages that
failed. A turn that failed leaves no trace in the state, even after rollbacks.

*Astray* (`make_astray`). An undeliverable message, or a spawn request that conflicts with another, becomes a dead letter of the agent that
sent it. Each agent sends its share of the messages, one per timer tick, to these receivers in turn: its peers, an agent that never exists,
and the latecomers. A *latecomer* is an agent that is created when the first agent spawns it. For each latecomer, two thirds of the agents
try to spawn it once, and send their first message to the latecomer in the same turn. The remaining agents never spawn the latecomer, so
their messages may arrive before it exists. A latecomer sends one message to each peer, and after that only receives messages.

Messages have a sequence number on their channel. The first messages of a channel may be dead letters, because the receiver did not exist
yet when they arrived. As soon as the receiver exists, it consumes all further messages in order. So for every channel

    sent = dead letters + consumed + in transit,

where the sequence numbers of each group follow those of the previous group. Each requested creation is waiting for an id, in transit,
completed (as the latecomer's first turn), or a dead letter. A creation that became a dead letter belongs to the requesting agent or to the
latecomer, because several creations may be granted after a recovery. The number of dead letters in a cut is exactly the number of
undeliverable messages and refused creations.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import msgspec

import snapline
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.ledger import FOREVER, InvariantViolatedError, Nudge, name_of, shares
from snapline.sim.workloads.workload import Choose, Workload, check_agents, make_fleet, nudge, pause_ns

POISON_EVERY = 10

CRASH_AT = 3
"""Number of the message that fails on each channel from the first agent, in the patterns "crashing" and "killing"."""

PAUSE_NS = 2_000_000
"""Time in nanoseconds between two messages from the same agent, unless the pattern has a rate."""


PEERS_MAX = 8
"""Maximum number of peers of an agent."""


class ProcessKilled(BaseException):
    """Simulates a fatal signal. If a handler raises this exception, the simulated process is killed."""


class Numbered(snapline.Message):
    """Message with a sequence number: the `number`-th message from `sender` on the channel."""

    sender: str
    number: int
    filler: bytes


class Tick(snapline.Message):
    """Message that an agent receives from its own timer."""


class Tries(msgspec.Struct):
    """State of an agent that sends and handles messages with sequence numbers.

    Attributes:
        left: number of messages that the agent must still send.
        sent, got: number of messages sent to each peer, and number of messages from each peer handled successfully.
        crashes: whether the agent is a `Crashing` or `Killing` agent.
    """

    peers: list[str]
    left: int
    pause_s: float
    payload_bytes: int
    sent: dict[str, int] = {}
    got: dict[str, int] = {}
    crashes: bool = False


class Unlucky(snapline.Agent):
    """Agent that sends a message at each timer tick, and whose handler fails on every tenth message of a channel. Each failed message is
    retried twice."""

    state: Tries
    retries = (0.0, 0.02)

    async def on_start(self, ctx: snapline.Context) -> None:
        self._wait(ctx)

    @snapline.handler
    async def on_tick(self, message: Tick, ctx: snapline.Context) -> None:
        state = self.state
        peer = state.peers[state.left % len(state.peers)]
        state.left -= 1
        number = state.sent[peer] = state.sent.get(peer, 0) + 1
        ctx.send(peer, Numbered(sender=ctx.agent, number=number, filler=bytes(state.payload_bytes)))
        self._wait(ctx)

    @snapline.handler
    async def on_numbered(self, message: Numbered, ctx: snapline.Context) -> None:
        self.state.got[message.sender] = self.state.got.get(message.sender, 0) + 1
        if is_poison(message.sender, message.number, crashes=self.state.crashes):
            raise ValueError(f"message {message.number} of {message.sender} cannot be handled")

    @snapline.handler
    async def on_nudge(self, message: Nudge, ctx: snapline.Context) -> None:
        """Handle an input from a client without changing the state."""
        if not (message.raises and self.state.crashes):
            message.take(ctx)

    def _wait(self, ctx: snapline.Context) -> None:
        if self.state.left:
            ctx.set_timer("tick", self.state.pause_s, Tick())


class Crashing(Unlucky):
    """Agent whose failing turns roll the fleet back (`on_error = "recover"`)."""

    on_error = "recover"


class Killing(Unlucky):
    """Agent whose process is killed when it handles the failing message."""

    @snapline.handler
    async def on_numbered(self, message: Numbered, ctx: snapline.Context) -> None:
        self.state.got[message.sender] = self.state.got.get(message.sender, 0) + 1
        if is_poison(message.sender, message.number, crashes=True):
            raise ProcessKilled


def is_poison(sender: str, number: int, *, crashes: bool) -> bool:
    """Return whether the handling of this message fails. If `crashes` is set, only one message per channel from the first agent fails,
    because recoveries take a long time."""
    return (sender == name_of(0) and number == CRASH_AT) if crashes else number % POISON_EVERY == 0


class FailingWorkload(Workload):
    """Workload that compares the number of messages handled with the number sent."""

    def check_cut(self, cut: snapline.Cut) -> str | None:
        waiting: dict[tuple[str, str], list[int]] = {}
        for transit in sorted(
            cut.in_transit, key=lambda each: each.number is None
        ):  # messages in the outbox follow the messages in the channel
            if isinstance(transit.message, Numbered):
                waiting.setdefault((transit.sender, transit.receiver), []).append(transit.message.number)
        return _wrong(dict(cut.states), waiting)

    def input_of(self, agent: str, client: str, serial: int, choose: Choose) -> snapline.Message | None:
        return nudge(client, serial, choose)

    def is_done(self, states: Mapping[str, object]) -> bool:
        agents = {agent: state for agent, state in states.items() if isinstance(state, Tries)}
        return all(state.left == 0 for state in agents.values()) and _wrong(states, {}) is None

    def check_end(self, states: Mapping[str, object]) -> str | None:
        return _wrong(states, {})


def _wrong(states: Mapping[str, object], waiting: Mapping[tuple[str, str], list[int]]) -> str | None:
    agents = {agent: state for agent, state in states.items() if isinstance(state, Tries)}
    for sender, state in agents.items():
        for receiver, sent in state.sent.items():
            in_transit = waiting.get((sender, receiver), [])
            consumed = sent - len(in_transit)
            handled = agents[receiver].got.get(sender, 0) if receiver in agents else 0
            poison = sum(is_poison(sender, number + 1, crashes=state.crashes) for number in range(consumed))
            if in_transit != list(range(consumed + 1, sent + 1)) or handled != consumed - poison:
                return f"{sender} → {receiver}: sent {sent}, in transit {in_transit}, handled {handled}: that does not add up"
    return None


def make_failing(part: FleetPart) -> Workload:
    """Return a workload whose agents send messages to all other agents in turn."""
    check_agents(part)
    wait_s = (pause_ns(part, part.agents) or PAUSE_NS) / 1e9
    least, more = divmod(part.pattern.messages, part.agents)
    endless = 1 << 40

    def make(index: int) -> Unlucky:
        peers = [name_of(other) for other in range(part.agents) if other != index]
        left = least + (index < more) if part.pattern.messages else endless
        tries = Tries(peers[:PEERS_MAX], left, wait_s, part.pattern.payload_bytes)
        if part.pattern.name == "crashing":
            return Crashing(msgspec.structs.replace(tries, crashes=True))
        if part.pattern.name == "killing":
            return Killing(msgspec.structs.replace(tries, crashes=True))
        return Unlucky(tries)

    return FailingWorkload(make_fleet(part, make), ends=part.pattern.messages > 0)


NOBODY = "nobody"
"""Name of an agent that never exists."""

LATECOMERS = ("late0", "late1", "late2")

ASKED_AT = 3
"""Among its first ticks, at each multiple of this number, an agent either spawns the next latecomer or leaves this to other agents."""

Channel = tuple[str, str]
"""Sender and receiver of a channel."""


class Word(snapline.Message):
    """Message with its sequence number on the channel. `receiver` is part of the message because a dead letter does not name its
    receiver."""

    receiver: str
    number: int
    filler: bytes = b""


class Heard(msgspec.Struct, array_like=True):
    """Messages consumed on one channel: the first and the last message's sequence number, and the number of messages."""

    first: int
    last: int
    count: int


class Seeking(msgspec.Struct):
    """State of a `Seeker`. `left` is the number of messages still to send, and `ticks` is the number of timer ticks so far. `asked` lists
    the latecomers that the agent has tried to spawn."""

    index: int
    peers: list[str]
    left: int
    pause_s: float
    payload_bytes: int
    ticks: int = 0
    asked: list[str] = []
    sent: dict[str, int] = {}
    heard: dict[str, Heard] = {}


class Seeker(snapline.Agent):
    """Agent that sends messages both to existing and to missing agents."""

    on_error: ClassVar[Literal["undo", "keep", "recover"] | None] = "keep"  # no handler raises an exception
    state: Seeking

    async def on_start(self, ctx: snapline.Context) -> None:
        if self.state.index < 0:
            for peer in self.state.peers:
                self._say(ctx, peer)
        else:
            self._wait(ctx)

    @snapline.handler
    async def on_tick(self, message: Tick, ctx: snapline.Context) -> None:
        state = self.state
        state.ticks += 1
        place, is_between = divmod(state.ticks, ASKED_AT)
        if not is_between and place <= len(LATECOMERS) and spawns_latecomer(state.index, place - 1):
            name = LATECOMERS[place - 1]
            state.asked.append(name)
            ctx.spawn(name, Seeker(Seeking(-1, state.peers, 0, 0.0, state.payload_bytes)))
            self._say(ctx, name)
        else:
            unasked = [
                name
                for at, name in enumerate(LATECOMERS)
                if name in state.asked or not spawns_latecomer(state.index, at)
            ]
            others = [*state.peers, NOBODY, *unasked]
            self._say(ctx, others[state.ticks % len(others)])
        state.left -= 1
        self._wait(ctx)

    @snapline.handler
    async def on_word(self, message: Word, ctx: snapline.Context) -> None:
        heard = self.state.heard.setdefault(ctx.sender, Heard(message.number, message.number, 0))
        heard.last = message.number
        heard.count += 1

    def _say(self, ctx: snapline.Context, to: str) -> None:
        number = self.state.sent[to] = self.state.sent.get(to, 0) + 1
        ctx.send(to, Word(receiver=to, number=number, filler=bytes(self.state.payload_bytes)))

    def _wait(self, ctx: snapline.Context) -> None:
        if self.state.left:
            ctx.set_timer("tick", self.state.pause_s, Tick())


class AstrayWorkload(Workload):
    """Workload that checks every sent message and every requested creation. Each message and each creation must have been consumed, be in
    transit or be a dead letter."""

    def check_cut(self, cut: snapline.Cut) -> str | None:
        try:
            expected = _Account(cut).dead_letter_count()
        except InvariantViolatedError as error:
            return str(error)
        if expected != cut.dead_letter_count:
            return f"{expected} undeliverable messages and refused creations, but {cut.dead_letter_count} dead letters"
        return None

    def is_done(self, states: Mapping[str, object]) -> bool:
        """Return whether all messages were sent, all spawned latecomers exist, and each receiver has consumed all messages on a channel
        from the first one that it consumed onwards."""
        agents = _seekers(states)
        is_all_sent = all(state.left == 0 for state in agents.values())
        is_all_made = all(name in agents for state in agents.values() for name in state.asked)
        return is_all_sent and is_all_made and self.check_end(states) is None

    def check_end(self, states: Mapping[str, object]) -> str | None:
        agents = _seekers(states)
        try:
            for (sender, receiver), sent in _channels(agents):
                lost = _expected_dead_letters(agents, (sender, receiver), sent, [])
                if lost and receiver not in (NOBODY, *LATECOMERS):
                    return f"{sender} → {receiver}: {lost} messages never arrived"
        except InvariantViolatedError as error:
            return str(error)
        return None


class _Account:
    """Counts of the messages and creations in one cut.

    Attributes:
        waiting: for each channel, the sequence numbers of the messages in transit, in order. Messages in the channel precede messages in
            the sender's outbox.
        coming: for each agent to be created, the number of creation messages in transit.
    """

    def __init__(self, cut: snapline.Cut) -> None:
        self.cut = cut
        self.agents = _seekers(dict(cut.states))
        self.waiting: dict[Channel, list[int]] = {}
        self.coming: dict[str, int] = {}
        for each in sorted(cut.in_transit, key=lambda found: found.number is None):
            if each.message is None:
                self.coming[each.receiver] = self.coming.get(each.receiver, 0) + 1
            else:
                self.waiting.setdefault((each.sender, each.receiver), []).append(_word(each.message).number)

    def dead_letter_count(self) -> int:
        """Return the number of dead letters that the cut must have.

        Raises:
            InvariantViolatedError: If messages were lost or have wrong sequence numbers.
        """
        channels = dict(_channels(self.agents))
        for channel in self.waiting:
            channels.setdefault(channel, 0)
        messages = 0
        for channel, sent in channels.items():
            lost = _expected_dead_letters(self.agents, channel, sent, self.waiting.get(channel, []))
            if lost and channel[1] not in (NOBODY, *LATECOMERS):
                raise InvariantViolatedError(f"{channel[0]} → {channel[1]}: {lost} messages were lost")
            messages += lost
        return messages + self._refused()

    def _refused(self) -> int:
        asked = sum(len(state.asked) for state in self.agents.values())
        made = sum(name in self.agents for name in LATECOMERS)
        return asked - made - sum(self.coming.values()) - len(self.cut.pending_spawns)


def spawns_latecomer(index: int, place: int) -> bool:
    """Return whether the agent with this index tries to spawn the latecomer at index `place` in `LATECOMERS`."""
    return (index + place) % 3 > 0


def _seekers(states: Mapping[str, object]) -> dict[str, Seeking]:
    return {agent: state for agent, state in states.items() if isinstance(state, Seeking)}


def _word(message: object) -> Word:
    """Return a message as a `Word`. If the receiver does not exist yet, its message is available only as a plain value."""
    return message if isinstance(message, Word) else msgspec.convert(message, Word)


def _channels(agents: Mapping[str, Seeking]) -> Iterator[tuple[Channel, int]]:
    """Yield every channel on which messages were sent or consumed, and the number of messages sent on it."""
    for agent, state in agents.items():
        for receiver, sent in state.sent.items():
            yield (agent, receiver), sent
        for sender in state.heard:
            if sender not in agents or agent not in agents[sender].sent:
                yield (sender, agent), 0


def _expected_dead_letters(agents: Mapping[str, Seeking], channel: Channel, sent: int, waiting: list[int]) -> int:
    """Return the number of messages on a channel that must be dead letters. All messages before the first message that is consumed or in
    transit must be dead letters.

    Raises:
        InvariantViolatedError: If the sequence numbers are not consecutive.
    """
    sender, receiver = channel
    heard = agents[receiver].heard.get(sender) if receiver in agents else None
    consumed = list(range(heard.first, heard.last + 1)) if heard is not None else []
    numbers = [*consumed, *waiting]
    first = numbers[0] if numbers else sent + 1
    if numbers != list(range(first, sent + 1)) or (heard is not None and heard.count != len(consumed)):
        amounts = f"sent {sent}, consumed {heard}, in transit {waiting}"
        raise InvariantViolatedError(f"{sender} → {receiver}: {amounts}: that does not add up")
    return first - 1


def make_astray(part: FleetPart) -> Workload:
    """Return a workload whose agents send messages to their peers, to a missing agent and to latecomers."""
    check_agents(part)
    wait_s = (pause_ns(part, part.agents) or PAUSE_NS) / 1e9
    works = shares(part.pattern.messages, part.agents)

    def make(index: int) -> Seeker:
        peers = [name_of(other) for other in range(part.agents) if other != index]
        return Seeker(Seeking(index, peers[:PEERS_MAX], works[index], wait_s, part.pattern.payload_bytes))

    return AstrayWorkload(make_fleet(part, make), ends=works[0] < FOREVER)
