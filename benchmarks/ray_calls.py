"""What membership costs a call of 1 KiB between two Ray actors, beside plain Ray: `python benchmarks/ray_calls.py [ROUNDS]`.

The same classes, plain and in a fleet that takes a cut a second, on one raylet of this machine, in turns: async actors, one call after the other and 16 at a time, and actors whose
methods wait in `ray.get`. Times are of the caller.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

import snapline
from snapline.adapters.ray import actor_fleet, in_fleet
from snapline.deploy.conformance.local_ray import NORMAL_PRIORITY, raylets

PAYLOAD = "x" * 1024
CALLS, BESIDE = 200, 16


class Echo:
    """Async actor: caller and callee."""

    async def say(self, text: str) -> str:
        return text

    async def calls(self, peer: str, beside: int) -> float:
        """Seconds a call."""
        handle: Any = ray.get_actor(peer)

        async def some() -> None:
            for _ in range(CALLS // beside):
                await handle.say.remote(PAYLOAD)

        begun_s = time.perf_counter()
        await asyncio.gather(*(some() for _ in range(beside)))
        return (time.perf_counter() - begun_s) / CALLS


class SyncEcho:
    """The same, one method at a time."""

    def say(self, text: str) -> str:
        return text

    def calls(self, peer: str, beside: int) -> float:
        handle: Any = ray.get_actor(peer)
        begun_s = time.perf_counter()
        for _ in range(CALLS):
            ray.get(handle.say.remote(PAYLOAD))
        return (time.perf_counter() - begun_s) / CALLS


KINDS = {"a": Echo, "b": Echo, "c": SyncEcho, "d": SyncEcho}
CASES = (
    ("async, one after the other", "a", "b", 1),
    (f"async, {BESIDE} at a time", "a", "b", BESIDE),
    ("ray.get", "c", "d", 1),
)


@contextmanager
def coordinator(folder: str, address: str) -> Iterator[None]:
    where = ["--listen", address, "--data-dir", f"{folder}/c", "--store", f"{folder}/store", "--hosts", str(len(KINDS))]
    process = subprocess.Popen(
        [sys.executable, "-m", "snapline", "coordinator", "run", *where],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(folder: str, address: str, rounds: int) -> None:
    fleet = actor_fleet("bench", KINDS, triggers=[snapline.Every(seconds=1.0)])
    join = in_fleet(fleet, coordinator=address, store=f"{folder}/store")
    for name, kind in KINDS.items():
        actor_class: Any = ray.remote(num_cpus=0)(join(kind))
        plain: Any = ray.remote(num_cpus=0)(kind)
        actors.append(actor_class.options(name=name).remote())
        actors.append(plain.options(name=f"plain-{name}").remote())
    for name, caller, called, beside in CASES:
        pairs = []
        for number in range(rounds + 2):
            order = ("plain-", "") if number % 2 else ("", "plain-")
            durations = {
                prefix: ray.get(ray.get_actor(prefix + caller).calls.remote(prefix + called, beside))
                for prefix in order
            }
            pairs.append((durations["plain-"], durations[""]))
        report(name, pairs[2:])


actors: list[Any] = []
"""References that keep the actors alive."""


def report(name: str, pairs: list[tuple[float, float]]) -> None:
    quartiles = statistics.quantiles([ours / plain for plain, ours in pairs], n=4)
    plain_us, ours_us = (1e6 * statistics.median(each) for each in zip(*pairs, strict=True))
    print(
        f"{name:27} plain {plain_us:6.0f} µs, member {ours_us:6.0f} µs a call; ratio of {len(pairs)} pairs: "
        f"median {quartiles[1]:.2f}, quartiles {quartiles[0]:.2f} to {quartiles[2]:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=20)
    rounds = parser.parse_args().rounds
    address = f"127.0.0.1:{20000 + os.getpid() % 20000}"
    with (
        tempfile.TemporaryDirectory() as folder,
        raylets(1, config=NORMAL_PRIORITY) as cluster,
        coordinator(folder, address),
    ):
        ray.init(address=cluster.address, namespace="bench", log_to_driver=False, configure_logging=False)
        measure(folder, address, rounds)


if __name__ == "__main__":
    main()
