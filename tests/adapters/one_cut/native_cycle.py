"""The native agents of the cycle, and a fleet of them alone, which the simulator can run."""

import json
import os

from tests.adapters.grpc_services.bank_fleets import TOKENS, Coins, Kept
from tests.adapters.one_cut.cycle import CYCLE, after

import snapline
from snapline.adapters.autogen import AutogenMessage, KeptValue, agent_name, autogen_id

KICKS = 3
"""So many messages of each native agent go round."""

ENDLESS = 10**9

IDLE_S = 0.3
"""Without tokens from others for so long, an agent passes some on by itself: else all of them come to rest in time."""

PASSES = 40
"""Of each agent, in a fleet of native ones alone: so that it comes to rest."""

NATIVES = tuple(agent_name(each) for each in CYCLE if each.startswith("native/"))


def next_agent(agent: str) -> str:
    """To whom an agent of the whole cycle passes tokens on."""
    return agent_name(after(autogen_id(agent)))


def tokens_for(receiver: str, amount: int) -> Coins | AutogenMessage:
    """Tokens, as their receiver takes them."""
    if receiver.startswith("purse"):
        return AutogenMessage(KeptValue("message", json.dumps({"amount": amount}), "Tokens"))
    return Coins(amount)


def amount_of(message: object) -> int:
    """The tokens in a message. Raises TypeError for one that the cycle does not know: it would count for nothing."""
    if isinstance(message, Coins):
        return message.amount
    if isinstance(message, AutogenMessage):
        return int(json.loads(message.message.body)["amount"])
    raise TypeError(f"no tokens: {message!r}")


class Passing(Kept):
    """`to`: whom it passes tokens on to, `left` times more, or until there is a file `stop`."""

    to: str = ""
    left: int = ENDLESS
    stop: str = ""


class PassingAgent(snapline.Agent):
    """Takes tokens, and passes one to four of those it has on."""

    state: Passing

    async def on_start(self, ctx: snapline.Context) -> None:
        for _ in range(KICKS):
            self.give(ctx)

    @snapline.handler
    async def on_tokens(self, message: Coins | AutogenMessage, ctx: snapline.Context) -> None:
        self.state.tokens += amount_of(message)
        self.give(ctx)

    def give(self, ctx: snapline.Context) -> None:
        state = self.state
        if not state.left or os.path.exists(state.stop):
            return
        if state.tokens:
            amount = 1 + int(ctx.random() * min(4, state.tokens))
            state.left -= 1
            state.tokens -= amount
            ctx.send(state.to, tokens_for(state.to, amount))
        if state.stop:
            ctx.set_timer("idle", IDLE_S, Coins(0))


def natives() -> snapline.Fleet:
    """The native agents alone, in a cycle of their own."""
    agents = {
        agent: PassingAgent(Passing(to=to, left=PASSES))
        for agent, to in zip(NATIVES, (*NATIVES[1:], NATIVES[0]), strict=True)
    }
    return snapline.Fleet("natives", agents=agents, triggers=[snapline.Every(seconds=0.2)])


def held_by_natives(cut: snapline.Cut) -> int:
    """What they hold; those that a cut does not have yet begin with what all begin with."""
    states = [cut.states.get(agent, Kept()) for agent in NATIVES]
    return sum(state.tokens for state in states if isinstance(state, Kept))


def conserve(cut: snapline.Cut) -> None:
    """The invariant of the native fleet, in every cut."""
    total = held_by_natives(cut) + sum(amount_of(sent.message) for sent in cut.in_transit)
    assert total == TOKENS * len(NATIVES), f"{total} tokens of {TOKENS * len(NATIVES)}"


def conserve_without_channels(cut: snapline.Cut) -> None:
    """The wrong one: what saves states alone would have to satisfy it."""
    assert held_by_natives(cut) == TOKENS * len(NATIVES), "tokens are missing"
