"""CheckMate's experiment (ICDE 2024) on our protocols: NEXMark-like queries, in virtual time, and a few on real processes.

    .venv/bin/python -m benchmarks.checkmate table [--workers 5] [--queries q12 …] [--protocols …] [--hot 0 0.3] [--seconds 30]
    .venv/bin/python -m benchmarks.checkmate real [--rounds 2]
    .venv/bin/python -m benchmarks.checkmate costs

`table` prints a row for each query, number of workers, part of popular keys and protocol: the rate that it sustains, and what happens at four
fifths of that. What the columns mean, and what is modelled: docs/checkmate.md. The same command prints the same figures anywhere.
"""

import argparse
import os
import platform
import time
from concurrent.futures import ProcessPoolExecutor

from benchmarks.checkmate import costs, real
from benchmarks.checkmate.measure import HEADS, measured, shown
from benchmarks.checkmate.queries import NONE, QUERIES
from benchmarks.checkmate.virtual import Setting

from snapline.protocols.names import PROTOCOLS

PAPER = (NONE, "chandy-lamport", "uncoordinated", "hmnr")
"""Protocols of the paper: none, coordinated, uncoordinated, communication-induced."""


WORKERS_MAX = 16
"""Each agent is a rule of places, four on a worker at most, and a fleet has no more than 64 rules."""


def table(options: argparse.Namespace) -> None:
    settings = [
        Setting(
            query=query,
            protocol=protocol,
            workers=workers,
            rate_per_s=0.0,
            seconds=options.seconds,
            every_s=every,
            hot=hot,
            stands_for=options.stands_for,
            tick_s=options.stands_for / 2000,
        )
        for workers in options.workers
        for query in options.queries
        for hot in options.hot
        for every in options.every
        for protocol in options.protocols
    ]
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}; {options.seconds:g} s of input",
        flush=True,
    )
    print(HEADS, flush=True)
    began_s, bare = time.monotonic(), None
    with ProcessPoolExecutor(options.jobs) as pool:
        for line in pool.map(measured, settings):
            if line.setting.protocol == NONE:
                bare = line
            print(shown(line, bare), flush=True)
    print(f"{len(settings)} rows in {time.monotonic() - began_s:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True, dest="part")
    tables = parts.add_parser("table")
    tables.add_argument("--queries", nargs="+", choices=QUERIES, default=list(QUERIES))
    tables.add_argument("--protocols", nargs="+", choices=[NONE, *PROTOCOLS], default=list(PAPER))
    tables.add_argument("--workers", nargs="+", type=int, default=[5])
    tables.add_argument("--hot", nargs="+", type=float, default=[0.0])
    tables.add_argument("--every", nargs="+", type=float, default=[5.0], help="seconds between checkpoints")
    tables.add_argument("--seconds", type=float, default=60.0, help="of input")
    tables.add_argument("--stands-for", type=int, default=500, help="events, for each that is simulated")
    tables.add_argument("--jobs", type=int, default=2)
    parts.add_parser("real").add_argument("--rounds", type=int, default=2)
    parts.add_parser("costs")
    options = parser.parse_args()
    if options.part == "table" and max(options.workers) > WORKERS_MAX:
        parser.error(
            f"--workers {max(options.workers)}: {WORKERS_MAX} at most, since each of their agents is one of a fleet's 64 rules of places"
        )
    match options.part:
        case "table":
            table(options)
        case "real":
            real.main(options.rounds)
        case _:
            costs.main()


if __name__ == "__main__":
    main()
