"""Money that changes hands, and four ways to keep it, of which three are wrong: only agents' states and messages are in a cut.

`kept`: in states and messages. `global_state`: what an agent has received is kept in the process. `outside`: money goes to another agent of the
process past the messages. `late`: a message is sent when its turn is over.
"""

import asyncio
import functools

import msgspec

import snapline

AGENTS, MONEY, PAUSE_S = 6, 100, 0.02

received: dict[str, int] = {}
"""Of this process: no checkpoint holds it."""

pockets: dict[str, int] = {}
"""Money on its way past all messages."""


class Coins(snapline.Message):
    """Some money."""

    amount: int


class Due(snapline.Message):
    """To itself, by a timer."""


class Purse(msgspec.Struct):
    """`bug`: how this one goes wrong."""

    others: list[str]
    bug: str
    money: int = MONEY


class Payer(snapline.Agent):
    """Gives a coin to somebody, again and again."""

    state: Purse

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("due", PAUSE_S, Due())

    @snapline.handler
    async def on_coins(self, message: Coins, ctx: snapline.Context) -> None:
        if self.state.bug == "global_state":
            received[ctx.agent] = received.get(ctx.agent, 0) + message.amount
            self.state.money += received.pop(ctx.agent) if received[ctx.agent] >= 3 else 0
        else:
            self.state.money += message.amount

    @snapline.handler
    async def on_due(self, message: Due, ctx: snapline.Context) -> None:
        ctx.set_timer("due", PAUSE_S, Due())
        self.state.money += pockets.pop(ctx.agent, 0)
        if self.state.money:
            self.state.money -= 1
            to = self.state.others[int(ctx.random() * len(self.state.others))]
            if self.state.bug == "outside":
                pockets[to] = pockets.get(to, 0) + 1
            elif self.state.bug == "late":
                asyncio.get_running_loop().call_later(PAUSE_S, ctx.send, to, Coins(amount=1))
            else:
                ctx.send(to, Coins(amount=1))


def fleet(bug: str = "kept") -> snapline.Fleet:
    """Six payers."""
    names = [f"payer-{number}" for number in range(AGENTS)]
    return snapline.Fleet(
        "leaky",
        agents={name: functools.partial(_open, name, names, bug) for name in names},
        triggers=[snapline.Every(seconds=0.5)],
    )


def _open(name: str, names: list[str], bug: str) -> Payer:
    return Payer(Purse([other for other in names if other != name], bug))


def all_money_is_there(cut: snapline.Cut) -> str | None:
    """The invariant."""
    held = sum(state.money for state in cut.states.values() if isinstance(state, Purse))
    moving = sum(found.message.amount for found in cut.in_transit if isinstance(found.message, Coins))
    whole = AGENTS * MONEY
    return (
        None
        if held + moving == whole
        else f"{held} in purses and {moving} on their way are not the {whole} of the beginning"
    )
