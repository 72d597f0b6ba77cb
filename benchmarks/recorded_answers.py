"""What recorded answers cost: taking one beside running the step, and keeping them when host logs are swept.

    .venv/bin/python -m benchmarks.recorded_answers [--rounds 5]

Real processes: one host, one agent, steps of 1 kB. Runs of a fleet and of its fork on recorded answers alternate. Each figure is the median
over the rounds, beside its lowest and highest.
"""

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

import snapline
from snapline.agent_runtime.snapshots.snapshot_forks import ForkRequest, fork_snapshot
from snapline.agent_runtime.snapshots.snapshot_reader import open_store
from snapline.deploy.local import LocalFleet
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.security.transport import Security
from snapline.storage.store.store import Store

STEPS, GROUPS, GROUP = 500, 60, 8
KINDS = ("step", "unlogged step", "group of 8")


class Go(snapline.Message):
    pass


class Times(msgspec.Struct):
    ms: list[float] = []


def answer(number: int) -> str:
    return "x" * 1000


class Asker(snapline.Agent):
    state: Times

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("go", 1.5, Go())

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        times = [ctx.now()]
        for number in range(STEPS):
            await ctx.step("logged", answer, number)
        times.append(ctx.now())
        for number in range(STEPS):
            await ctx.step("unlogged", answer, number, durability="checkpoint")
        times.append(ctx.now())
        for number in range(GROUPS):
            await ctx.gather(*[ctx.step("member", answer, GROUP * number + place) for place in range(GROUP)])
        times.append(ctx.now())
        counts = (STEPS, STEPS, GROUPS)
        self.state.ms = [(times[i + 1] - times[i]) / 1e6 / counts[i] for i in range(len(counts))]


def is_over(cut: snapline.Cut) -> bool:
    state = cut.states["asker"]
    return isinstance(state, Times) and bool(state.ms)


fleet = snapline.Fleet(
    "askers",
    agents={"asker": Asker(Times())},
    triggers=[snapline.Every(seconds=0.5)],
    stop_when=is_over,
    keep_answers=True,
)


async def run(folder: Path) -> tuple[int, list[float]]:
    """Run the fleet in this folder to its end; returns the epoch of a snapshot from its beginning, and the milliseconds of each kind."""
    local = LocalFleet(data_dir=folder, fleet="benchmarks.recorded_answers:fleet", hosts=1)
    async with local:
        client = CoordinatorClient(local.address, Security.loopback())
        phase = ""
        while phase != "running":
            with contextlib.suppress(snapline.SnaplineError):  # the coordinator is starting
                phase = (await client.status()).phase
            await asyncio.sleep(0.02)
        epoch = (await client.create_snapshot()).epoch
        await client.close()
        await local.wait(120)
    state: Any = open_store(folder / "store", fleet=fleet).snapshot("latest").agents["asker"].state
    return epoch, state.ms


def measure(folder: Path) -> tuple[list[float], list[float]]:
    """Run a fleet, and its fork on recorded answers alone."""
    epoch, made = asyncio.run(run(folder / "parent"))
    request = ForkRequest(name="fork", answers="only")
    fork_snapshot(Store.open(folder / "parent" / "store"), epoch, str(folder / "fork" / "store"), request)
    _, taken = asyncio.run(run(folder / "fork"))
    return made, taken


def shown(values: list[float]) -> str:
    return f"{statistics.median(values):6.2f} [{min(values):.2f}, {max(values):.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    began_s, rounds = time.monotonic(), []
    for _ in range(parser.parse_args().rounds):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(measure(Path(folder)))
    print(f"{'milliseconds':16}{'made':>22}{'recorded':>24}{'ratio':>22}")
    for place, kind in enumerate(KINDS):
        made, taken = [each[0][place] for each in rounds], [each[1][place] for each in rounds]
        ratios = [one / other for one, other in zip(taken, made, strict=True)]
        print(f"{kind:16}{shown(made):>22}{shown(taken):>24}{shown(ratios):>22}")
    print(f"{len(rounds)} rounds, {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    from benchmarks import recorded_answers  # under the name by which hosts know its classes

    recorded_answers.main()
