"""Handlers that raise on every tenth message of a channel, at every attempt, so that the message becomes a dead letter.

In pattern "killing", one message kills the receiver's process.

Each agent sends its share of messages to the others in turn, one at each tick of its timer. Messages, failing ones included,
are numbered on their channel, and no agent answers. A receiver that has consumed the messages up to number n has counted all
but n // `POISON_EVERY` of them. An undone turn leaves no trace, even after rollbacks.
"""

from collections.abc import Mapping

import msgspec

import snapline
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.client_input import Nudge
from snapline.sim.workloads.ledger import name_of
from snapline.sim.workloads.workload import Choose, Workload, check_agents, make_fleet, nudge, pause_ns

POISON_EVERY = 10

CRASH_AT = 3
"""Number of the failing message on each channel of the first agent, in patterns crashing and killing."""

PAUSE_NS = 2_000_000
"""Time between two messages of an agent, unless the pattern has a rate."""


PEERS_MAX = 8
"""Largest number of agents to which each agent has channels."""


class ProcessKilled(BaseException):
    """Simulated fatal signal: it ends the simulated process whose handler raises it."""


class Numbered(snapline.Message):
    """The `number`-th message of `sender` on its channel."""

    sender: str
    number: int
    filler: bytes


class Tick(snapline.Message):
    """Message of the agent's timer."""


class Tries(msgspec.Struct):
    """State of an agent.

    Attributes:
        left: number of messages still to send.
        sent, got: numbers of messages sent and handled, by peer.
        crashes: the agent is a `Crashing` or `Killing` one.
    """

    peers: list[str]
    left: int
    pause_s: float
    payload_bytes: int
    sent: dict[str, int] = {}
    got: dict[str, int] = {}
    crashes: bool = False


class Unlucky(snapline.Agent):
    """Agent that sends at each tick and fails on every tenth message of a channel. Each failure is retried twice."""

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
        """Handle a client's input, which changes no state."""
        if not (message.raises and self.state.crashes):
            message.take(ctx)

    def _wait(self, ctx: snapline.Context) -> None:
        if self.state.left:
            ctx.set_timer("tick", self.state.pause_s, Tick())


class Crashing(Unlucky):
    """Agent whose state is not trusted after a failed turn: the fleet is rolled back."""

    on_error = "recover"


class Killing(Unlucky):
    """Agent whose process a failing message kills."""

    @snapline.handler
    async def on_numbered(self, message: Numbered, ctx: snapline.Context) -> None:
        self.state.got[message.sender] = self.state.got.get(message.sender, 0) + 1
        if is_poison(message.sender, message.number, crashes=True):
            raise ProcessKilled


def is_poison(sender: str, number: int, *, crashes: bool) -> bool:
    """Return whether a message fails. With `crashes`, only one message of one sender does, because recoveries take long."""
    return (sender == name_of(0) and number == CRASH_AT) if crashes else number % POISON_EVERY == 0


class FailingWorkload(Workload):
    """Workload that compares the numbers of messages handled and sent."""

    def check_cut(self, cut: snapline.Cut) -> str | None:
        waiting: dict[tuple[str, str], list[int]] = {}
        for transit in sorted(
            cut.in_transit, key=lambda each: each.number is None
        ):  # messages in the outbox leave after those in the channel
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
    """Make a fleet whose agents send to all others in turn."""
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
