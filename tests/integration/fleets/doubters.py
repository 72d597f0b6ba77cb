"""An agent that pays twice at a service that knows no keys and tells nothing; while there is a file `hold` a payment is made, and its answer never comes."""

import time
from pathlib import Path

import msgspec

import snapline


class Go(snapline.Message):
    pass


class Books(msgspec.Struct):
    folder: str
    receipts: list[str] = []


def pay(folder: str, what: str, *, key: str) -> str:
    with (Path(folder) / "paid").open("a") as paid:
        paid.write(f"{what}\n")
    while (Path(folder) / "hold").exists():
        time.sleep(0.01)
    return f"receipt of {what}"


class Doubter(snapline.Agent):
    state: Books

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Go())

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        for what in ("seat", "hotel"):
            paid = await ctx.effect("pay", pay, self.state.folder, what, key=what, repeatable=False)
            self.state.receipts.append(paid)


def is_over(cut: snapline.Cut) -> bool:
    """Both are paid."""
    return any(isinstance(state, Books) and len(state.receipts) == 2 for state in cut.states.values())


def fleet(folder: str) -> snapline.Fleet:
    return snapline.Fleet(
        "doubters",
        agents={"a": Doubter(Books(folder))},
        triggers=[snapline.Every(seconds=0.2)],
        stop_when=is_over,
    )
