"""The experiments of docs/examples.md: refunds and orders under SIGKILL, a second after each time that everything runs again.

    .venv/bin/python -m benchmarks.kills [--orders 209] [--kills 200] [--seed N] [--only refunds|orders]

Each protocol pays so many refunds while a host, the coordinator, the client or all of them are killed, and so do the same agents without
effects. Then the order desk, its gateway and its payment service bear so many kills; whatever does not balance ends the program. It
takes a minute or two for each row of refunds, and a quarter of an hour for 200 kills.
"""

import argparse
import asyncio
import os
import platform
import random
import tempfile
from pathlib import Path

from tests.integration.order_runs import order_run
from tests.integration.processes import nothing_left_running
from tests.integration.refund_runs import refund_run

PROTOCOLS = ("chandy-lamport", "hmnr", "uncoordinated")


async def refunds(folder: Path, seed: int, orders: int) -> None:
    for protocol in PROTOCOLS:
        outcome = await refund_run(folder / protocol / "data", random.Random(seed), protocol=protocol, orders=orders)
        print(f"{protocol:16} {outcome}", flush=True)
    unsafe = folder / "unsafe" / "data"
    outcome = await refund_run(unsafe, random.Random(seed), protocol=PROTOCOLS[0], orders=orders, is_unsafe=True)
    print(f"{'without effects':16} {outcome}", flush=True)


async def orders(folder: Path, seed: int, kills: int) -> None:
    outcome = await order_run(folder / "orders" / "data", random.Random(seed), protocol=PROTOCOLS[0], kills=kills)
    print(f"{'order desk':16} {outcome}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=209, help="refunds in each row")
    parser.add_argument("--kills", type=int, default=200, help="of the order desk")
    parser.add_argument("--seed", type=int, default=random.randrange(10**9))
    parser.add_argument("--only", choices=["refunds", "orders"], default="")
    options = parser.parse_args()
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, seed {options.seed}"
    )
    with tempfile.TemporaryDirectory() as name, nothing_left_running():
        if options.only != "orders":
            asyncio.run(refunds(Path(name), options.seed, options.orders))
        if options.only != "refunds":
            asyncio.run(orders(Path(name), options.seed, options.kills))


if __name__ == "__main__":
    main()
