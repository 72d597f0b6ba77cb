"""Planners that take their time: plans of many steps, which note outside what they do; until all are done."""

import msgspec

import snapline

STEPS = 12


class Go(snapline.Message):
    plan: int


class Ask(snapline.Message):
    plan: int


class Answer(snapline.Message):
    number: int


class Progress(msgspec.Struct):
    notes: str
    plans: int
    done: list[int] = []
    half: list[int] = []


class Clerk(msgspec.Struct):
    asked: list[int] = []


def work(notes: str, plan: int, number: int) -> int:
    """Outside: a line in a file."""
    with open(notes, "a") as file:
        file.write(f"{plan}.{number}\n")
    return plan * 100 + number


class Planner(snapline.Agent):
    state: Progress

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Go(0))

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        plan, half = message.plan, self.state.half
        for number in range(STEPS):
            half.append(await ctx.step("work", work, self.state.notes, plan, number))
            await ctx.sleep(0.02)
        half.append((await ctx.call("clerk", Ask(plan), Answer)).number)
        self.state.done.append(sum(half))
        half.clear()
        if len(self.state.done) < self.state.plans:
            ctx.send(ctx.agent, Go(plan + 1))


class Office(snapline.Agent):
    state: Clerk

    @snapline.handler
    async def on_ask(self, message: Ask, ctx: snapline.Context) -> None:
        self.state.asked.append(message.plan)
        ctx.reply(Answer(message.plan))


def worth(plan: int) -> int:
    """What a plan comes to."""
    return sum([plan * 100 + number for number in range(STEPS)]) + plan


def is_over(cut: snapline.Cut) -> bool:
    state = cut.states["planner"]
    assert isinstance(state, Progress)
    return len(state.done) == state.plans


def fleet(notes: str, protocol: str = "chandy-lamport", plans: str = "8") -> snapline.Fleet:
    agents = {"planner": Planner(Progress(notes, int(plans))), "clerk": Office(Clerk())}
    return snapline.Fleet(
        "plans", agents=agents, protocol=protocol, triggers=[snapline.Every(seconds=0.1)], stop_when=is_over
    )
