"""How soon the simulator finds each seeded bug of our own code, and how small the failing run becomes.

    python -m benchmarks.sim_mutants [seeds] [limit_s] [mutant ...]

Seeds from 0 up to 1,000 and 30 s of shrinking if left out; all mutants. `s` is real time of one process; `from` and `to` are
the sizes before and after: choices that are not benign, faults, and messages consumed. The last lines hold the goals of the
design page against the figures: everything found, at most 20 events and 2 faults left, a median of 10 s.
"""

import statistics
import sys
import time
from collections.abc import Iterable

import msgspec
from tests.sim.mutants.catalogue import MUTANTS, mutated

from snapline.sim.result import Result
from snapline.sim.run import run
from snapline.sim.scenario import Scenario
from snapline.sim.search.shrink import Shrunk, Size, shrink
from snapline.sim.search.swarm import draw

SEEDS = 1_000
LIMIT_S = 30.0
EVENTS_MAX, FAULTS_MAX, MEDIAN_S_MAX = 20, 2, 10.0


class Row(msgspec.Struct):
    """Result for one mutant; `shrunk` None: it was not found."""

    name: str
    seeds: int
    found_s: float
    shrunk: Shrunk | None


def first_failure(name: str, seeds: int) -> tuple[Scenario, Result] | None:
    """The drawn scenario of the first seed that finds it, and its result."""
    for seed in range(seeds):
        drawn = draw(MUTANTS[name].scenario, seed)
        with mutated(name):
            result = run(drawn, seed)
        if result.verdict == "violation":
            return drawn, result
    return None


def measure(name: str, seeds: int, limit_s: float) -> Row:
    began_s = time.perf_counter()
    failure = first_failure(name, seeds)
    found_s = time.perf_counter() - began_s
    if failure is None:
        return Row(name, seeds, found_s, None)
    drawn, result = failure
    with mutated(name):
        shrunk = shrink(drawn, result.seed, result, time_limit_s=limit_s)
    return Row(name, result.seed + 1, found_s, shrunk)


def show(row: Row) -> None:
    head = f"{row.name:26} {row.seeds:5} {row.found_s:7.2f}"
    if row.shrunk is None:
        print(f"{head}  not found", flush=True)
        return
    oracle = row.shrunk.signature.removeprefix("violation ")
    sizes = f"{_text(row.shrunk.before):>13} {_text(row.shrunk.size):>9} {row.shrunk.size.total:5}"
    print(f"{head}  {oracle:14} {sizes} {row.shrunk.tries:6} {row.shrunk.seconds:7.1f}", flush=True)


def _text(size: Size) -> str:
    return f"{size.choices}+{size.faults}+{size.messages}"


def conclude(rows: Iterable[Row]) -> None:
    known = list(rows)
    shrunk = [row.shrunk for row in known if row.shrunk is not None]
    print(f"\nfound {len(shrunk)} of {len(known)}, the last after {max(row.seeds for row in known)} seeds")
    if not shrunk:
        return
    sizes = sorted(each.size.total for each in shrunk)
    seconds = statistics.median(each.seconds for each in shrunk)
    print(f"events left: median {statistics.median(sizes):g}, most {sizes[-1]} (goal {EVENTS_MAX})")
    print(f"faults left: most {max(each.size.faults for each in shrunk)} (goal {FAULTS_MAX})")
    print(f"shrinking: median {seconds:.1f} s (goal {MEDIAN_S_MAX:g} s), most {max(x.seconds for x in shrunk):.1f} s")


def main(arguments: list[str]) -> None:
    seeds = int(arguments[0]) if arguments else SEEDS
    limit_s = float(arguments[1]) if len(arguments) > 1 else LIMIT_S
    print("choices + faults + messages\n")
    print(
        f"{'mutant':26} {'seeds':>5} {'s':>7}  {'oracle':14} {'from':>13} {'to':>9} {'event':>5} {'runs':>6} {'s':>7}"
    )
    rows = []
    for name in arguments[2:] or MUTANTS:
        rows.append(measure(name, seeds, limit_s))
        show(rows[-1])
    conclude(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
