"""Agents that pass tokens on, and write every turn that they take into a book of their own: turns that are undone stand there twice."""

from pathlib import Path

import msgspec

import snapline

AGENTS_A_HOST, TOKENS = 2, 3
"""Agents on each host, and tokens that each agent begins with."""


class Token(snapline.Message):
    hops: int


class Due(snapline.Message):
    """To itself, by a timer: pass this token on."""

    hops: int


class Passed(msgspec.Struct):
    place: int
    agents: int
    folder: str
    hops_max: int
    pause_s: float
    turns: int = 0
    hops: int = 0
    ended: int = 0


class Passer(snapline.Agent):
    state: Passed

    async def on_start(self, ctx: snapline.Context) -> None:
        for number in range(TOKENS):
            ctx.send(name_of((self.state.place + number + 1) % self.state.agents), Token(1))

    @snapline.handler
    def take(self, message: Token, ctx: snapline.Context) -> None:
        state = self.state
        self.write()
        state.hops += 1
        if message.hops >= state.hops_max:
            state.ended += 1
        else:
            ctx.set_timer(f"{state.turns}", state.pause_s, Due(message.hops))

    @snapline.handler
    def go_on(self, message: Due, ctx: snapline.Context) -> None:
        self.write()
        receiver = (self.state.place * 7 + message.hops * 5 + 1) % self.state.agents
        ctx.send(name_of(receiver), Token(message.hops + 1))

    def write(self) -> None:
        self.state.turns += 1
        with Path(self.state.folder, name_of(self.state.place)).open("a") as book:
            book.write(f"{self.state.turns}\n")


def name_of(place: int) -> str:
    return f"passer-{place:02}"


def states_of(cut: snapline.Cut) -> list[Passed]:
    return [state for state in cut.states.values() if isinstance(state, Passed)]


def have_ended(cut: snapline.Cut) -> bool:
    return sum(state.ended for state in states_of(cut)) == TOKENS * len(states_of(cut))


def fleet(
    folder: str,
    hosts: str = "8",
    hops: str = "200",
    pause_s: str = "0.01",
    recovery: str = "local",
    period: str = "0.3",
    is_pinned: str = "yes",
) -> snapline.Fleet:
    """`is_pinned`: each agent is to run on one host; else it may move."""
    count = int(hosts) * AGENTS_A_HOST
    agents = {name_of(place): Passer(Passed(place, count, folder, int(hops), float(pause_s))) for place in range(count)}
    return snapline.Fleet(
        "passers",
        agents=agents,
        triggers=[snapline.Every(seconds=float(period))] if float(period) else [],
        place={name_of(place): f"h{place // AGENTS_A_HOST + 1}" for place in range(count)}
        if is_pinned == "yes"
        else {},
        stop_when=have_ended,
        recovery=recovery,
    )
