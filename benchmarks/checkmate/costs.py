"""What protocols cost a processor for a message, for workers in virtual time: figures of this machine, in CPU time.

    .venv/bin/python benchmarks/host.py             the host's part: what each protocol's message takes longer than the default's
    .venv/bin/python -m benchmarks.checkmate costs  the rule's part, in fleets of the sizes that are simulated

Half of what a protocol adds falls to the sender, and half to the turn that receives.
"""

import time
from itertools import pairwise

from benchmarks import piggyback

from snapline.sim.workloads.workload import Costs

MESSAGE_NS = 37_000
"""CPU time of a message between hosts under the default protocol: docs/performance.md, "A message, beside peers"."""

HOST_NS = {"koo-toueg": 3_600, "uncoordinated": 4_500, "bcs": 5_000, "hmnr": 4_500}
"""Protocol → additional time of a message without the rule: the sender's log, numbers, dependencies."""

RULE_NS = {
    "bcs": ((15, 1_300), (150, 1_700)),
    "hmnr": ((15, 9_700), (30, 22_400), (60, 74_700), (150, 208_000)),
}
"""Protocol → (agents, what its rule takes for a message in a fleet of so many: saying, testing, merging). Lines between them, and beyond."""

NEIGHBOURS = 3
"""Every N-th agent is a receiver of an agent: sources send to all operators."""


def costs_of(protocol: str, agents: int) -> Costs:
    """Of a fleet of so many agents."""
    half_ns = (HOST_NS.get(protocol, 0) + rule_ns(protocol, agents)) // 2
    return Costs(turn_ns=MESSAGE_NS + half_ns, send_ns=half_ns)


def rule_ns(protocol: str, agents: int) -> int:
    """By the measured points."""
    points = RULE_NS.get(protocol, ())
    for (agents_low, low), (agents_high, high) in pairwise(points):
        if agents <= agents_high or agents_high == points[-1][0]:
            return max(0, round(low + (high - low) * (agents - agents_low) / (agents_high - agents_low)))
    return 0


def main() -> None:
    """Print the rule's part."""
    piggyback.time.perf_counter = time.thread_time  # type: ignore[attr-defined]  # exclude waits on a busy machine
    for protocol, points in RULE_NS.items():
        for agents in (15, 30, 60, 150):
            load = piggyback.Fleet(protocol, agents, agents // NEIGHBOURS, 100)
            piggyback.measure(load, 100 * agents)
            fastest = min((piggyback.measure(load, 50 * agents) for _ in range(2)), key=lambda result: result.micros)
            print(
                f"{protocol:<6} {agents:>4} agents {fastest.micros:8.1f} µs {fastest.size_bytes:6.1f} bytes a message",
                flush=True,
            )
        print(f"{protocol:<6} modelled: {points}")
