"""An agent that pays twice at a service that knows no keys and tells nothing; while there is a file `hold` a payment is made, and its answer never comes."""

import time
from pathlib import Path

import msgspec

import snapline


class Go(snapline.Message):
    pass


class End(snapline.Message):
    pass


class Books(msgspec.Struct):
    folder: str
    receipts: list[str] = []
    is_over: bool = False


def pay(folder: str, what: str, *, key: str) -> str:
    with (Path(folder) / "paid").open("a") as paid:
        paid.write(f"{what}\n")
    while (Path(folder) / "hold").exists():
        time.sleep(0.01)
    return f"receipt of {what}"


def take_back(folder: str, what: str, *, key: str) -> None:
    with (Path(folder) / "paid").open("a") as paid:
        paid.write(f"{what} back\n")


class Doubter(snapline.Agent):
    state: Books

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Go())

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        folder = self.state.folder
        for what in ("seat", "hotel"):
            undo = (take_back, folder, what)
            paid = await ctx.effect("pay", pay, folder, what, key=what, repeatable=False, compensate=undo)
            self.state.receipts.append(paid)

    @snapline.handler
    async def on_end(self, message: End, ctx: snapline.Context) -> None:
        self.state.is_over = True


def is_over(cut: snapline.Cut) -> bool:
    """All is said."""
    return any(isinstance(state, Books) and state.is_over for state in cut.states.values())


def fleet(folder: str) -> snapline.Fleet:
    return snapline.Fleet(
        "doubters",
        agents={"a": Doubter(Books(folder))},
        triggers=[snapline.Every(seconds=0.2)],
        stop_when=is_over,
    )
