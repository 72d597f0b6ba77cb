"""How fast the explorer meets every state of a small fleet, and how much memory it takes.

    python benchmarks/sim_explorer.py [agents] [sends] [crashes] [states_max] [protocol ...]

Three agents, one send each, one crash and every protocol if left out. Each protocol has a process of its own, so that the
peak of its memory (which includes about 25 MB for the interpreter and the modules) is its own; CPU seconds are those of the
exploration alone, start to end, with everything worked out anew. `all` says whether all states were met.
"""

import multiprocessing
import resource
import sys
from multiprocessing.connection import Connection

from snapline.sim.explorer.exploration import EXPLORED, Bounds, Exploration, explore

PROCESS_LIMIT_S = 3_600.0
"""Time limit, more than the largest fleet that fits into memory takes."""


def explore_and_send(protocol: str, bounds: Bounds, to: Connection) -> None:
    explored = explore(protocol, bounds)
    to.send((explored, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def measure(protocol: str, bounds: Bounds) -> tuple[Exploration, float]:
    """The exploration and its process's peak in MB."""
    context = multiprocessing.get_context("spawn")
    parent_end, child_end = context.Pipe(duplex=False)
    process = context.Process(target=explore_and_send, args=(protocol, bounds, child_end))
    process.start()
    child_end.close()
    if not parent_end.poll(PROCESS_LIMIT_S):
        process.kill()
        raise TimeoutError(f"{protocol} took more than {PROCESS_LIMIT_S} s")
    explored, peak_mb = parent_end.recv()
    process.join()
    return explored, peak_mb


def row(found: Exploration, peak_mb: float) -> str:
    verdict = "ok" if found.violation is None else found.violation.guarantee
    return (
        f"{found.protocol:21}{found.states:>10,}{found.transitions:>12,}{found.depth:>7}{found.cpu_s:>9.2f}"
        f"{found.states / found.cpu_s:>11,.0f}{peak_mb:>8.0f}  {'yes' if found.is_complete else 'no':5}{verdict}"
    )


def main() -> None:
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    names = ("agents", "sends", "crashes", "states_max")
    bounds = Bounds(**dict(zip(names, numbers, strict=False)))
    protocols = [argument for argument in sys.argv[1:] if not argument.isdigit()] or list(EXPLORED)
    print(f"{bounds.agents} agents, {bounds.sends} sends each, {bounds.crashes} crashes")
    print(f"{'protocol':21}{'states':>10}{'transitions':>12}{'depth':>7}{'CPU s':>9}{'states/s':>11}{'MB':>8}  all")
    states, cpu_s = 0, 0.0
    for protocol in protocols:
        explored, peak_mb = measure(protocol, bounds)
        print(row(explored, peak_mb), flush=True)
        states, cpu_s = states + explored.states, cpu_s + explored.cpu_s
    print(f"{'together':21}{states:>10,}{'':12}{'':7}{cpu_s:>9.2f}{states / cpu_s:>11,.0f}")


if __name__ == "__main__":
    main()
