"""A clerk that lets people decide on large refunds, and says outside what it has paid."""

import msgspec

import snapline

LIMIT = 1000


class Desk(msgspec.Struct):
    notes: str
    decided: list[str] = []


class Refund(snapline.Message):
    order: int
    amount: int


class Decided(snapline.Message):
    is_paid: bool
    by: str
    note: str


def pay(notes: str, order: int) -> None:
    with open(notes, "a") as file:
        file.write(f"{order}\n")


class Clerk(snapline.Agent):
    state: Desk
    on_error = "undo"

    @snapline.handler(durable=True)
    async def on_refund(self, message: Refund, ctx: snapline.Context) -> None:
        decision = snapline.Approval(True)
        if message.amount > LIMIT:
            details = {"order": message.order, "amount": message.amount}
            decision = await ctx.approval("refund above 1,000", details, expires_s=3600)
        if decision.is_granted:
            await ctx.step("pay", pay, self.state.notes, message.order)
        self.state.decided.append(f"{message.order} {decision.is_granted} {decision.by}")
        ctx.reply(Decided(decision.is_granted, decision.by, decision.note))


def fleet(notes: str, recovery: str = "global") -> snapline.Fleet:
    return snapline.Fleet(
        "approving",
        agents={f"clerk{n}": lambda: Clerk(Desk(notes)) for n in range(2)},
        triggers=[snapline.Every(seconds=0.3)],
        recovery=recovery,
    )
