"""Worst case of uncoordinated checkpointing, in which the checkpoints of two agents are never consistent with each other.

Agents A and B pass a counter back and forth. Each agent takes a checkpoint immediately after receiving the counter, and then passes the
counter on:

    A  ──[1]──o────────────[2]──o──        a checkpoint, then a send …
              \\           ^      \\
               v         /        v
    B  ─────────[1]─────o──────────[2]──   … a receive, then a checkpoint, then a send

So every checkpoint contains the receive of a message that the other agent sent after its own latest checkpoint. If an agent fails and its
last checkpoint is restored, a send is undone. The other agent must then undo the matching receive, which undoes another send, and so on
back to the beginning (domino effect, Randell 1975). Every checkpoint except the first is useless, because it is part of a Z-cycle (Netzer
and Xu 1995).

A communication-induced protocol (`protocol=hmnr`) detects the Z-cycle when the counter arrives, and forces a checkpoint before the receive.

    snapline run snapline.examples.domino:fleet --hosts 2 --arg protocol=uncoordinated --arg passes=400
"""

import msgspec

import snapline


class Counter(snapline.Message):
    """The counter, which contains the number of times it has been passed on."""

    passed: int


class PassOn(snapline.Message):
    """A timer message that reminds the agent to send the counter."""


class Player(msgspec.Struct):
    """State of one agent.

    `seen` is the sum of all received counter values, `last` is the latest value, and `passes` is the value at which the agent stops.
    """

    partner: str
    begins: bool
    passes: int
    pause_s: float
    last: int = 0
    seen: int = 0
    turns: int = 0


class Domino(snapline.Agent):
    """One of two agents that pass a counter back and forth."""

    state: Player

    async def on_start(self, ctx: snapline.Context) -> None:
        if self.state.begins:
            ctx.set_timer("pass on", self.state.pause_s, PassOn())

    @snapline.handler
    async def on_counter(self, message: Counter, ctx: snapline.Context) -> None:
        state = self.state
        state.last = message.passed
        state.seen += message.passed
        state.turns += 1
        ctx.checkpoint()
        if message.passed < state.passes:
            ctx.set_timer("pass on", state.pause_s, PassOn())

    @snapline.handler
    async def on_pass_on(self, message: PassOn, ctx: snapline.Context) -> None:
        passed = self.state.last + 1
        ctx.send(self.state.partner, Counter(passed=passed))
        if passed >= self.state.passes:
            ctx.checkpoint()  # last turn: without this checkpoint, the recovery line would never reach the end


def fleet(
    protocol: str = "uncoordinated",
    pairs: str = "1",
    passes: str = "400",
    pause: str = "0.005",
    log_bytes_max: str = "1000000",
) -> snapline.Fleet:
    """Return a fleet of `pairs` pairs of agents. Each counter is passed on `passes` times, each time after `pause` seconds.

    Whenever the logged messages exceed `log_bytes_max` bytes, the fleet pauses briefly. In this fleet, the recovery line can advance only
    during these pauses.
    """
    agents = {}
    for pair in range(int(pairs)):
        first, second = f"a{pair}", f"b{pair}"
        agents[first] = Domino(Player(second, begins=True, passes=int(passes), pause_s=float(pause)))
        agents[second] = Domino(Player(first, begins=False, passes=int(passes), pause_s=float(pause)))
    triggers = [snapline.Manual()] if protocol not in ("chandy-lamport", "koo-toueg") else [snapline.Every(seconds=0.2)]
    return snapline.Fleet(
        "domino",
        agents=agents,
        protocol=protocol,
        triggers=triggers,
        stop_when=lambda cut: is_exact(cut) and cut.is_quiet,
        log_bytes_max=int(log_bytes_max),
    )


def is_exact(cut: snapline.Cut) -> bool:
    """Return whether every counter value from 1 to the last value was received exactly once."""
    players = {agent: state for agent, state in cut.states.items() if isinstance(state, Player)}
    for player in players.values():
        partner = players[player.partner]
        received_times, received_sum = player.turns + partner.turns, player.seen + partner.seen
        if received_times != player.passes or received_sum != player.passes * (player.passes + 1) // 2:
            return False
    return True
