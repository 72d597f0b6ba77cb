"""What the analysis of recovery costs: `snapline analyze` on traces of 10^4, 10^5 and 10^6 events, and on the staircase.

    .venv/bin/python benchmarks/recovery.py [--events 10000 100000 1000000] [--agents 100] [--repeat 3] [--protocol bcs]

Each trace is written to a temporary file: random messages between all pairs of agents, 5 % of the events checkpoints.
Each run is `snapline analyze FILE -o json`, from the start of its process to its end, reading, recovery line, useless and
obsolete checkpoints, result; seconds and peak memory are the operating system's for that process. The best of the
repeats stands in the table, since all that disturbs makes it slower.

The staircase (V3 of protocols.md, over and over) is the domino effect at its worst: every checkpoint of both agents falls
in a round of its own. Here only the computations are timed, inside this process.
"""

import argparse
import importlib.util
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from snapline.recovery.execution import Execution, recovery_line, recovery_line_by_checkpoints, rounds
from snapline.recovery.trace import CheckpointTaken, Event, Header, MessageReceived, MessageSent, Trace, encode
from snapline.recovery.trace_analysis import components_of, edges_of, failures_undoing, obsolete, useless

CHECKPOINT_SHARE = 0.05
IN_TRANSIT_MAX = 500
"""Largest number of messages in transit: a few per agent, as in a fleet without backlog."""

STEPS = 1_000


def write_trace(path: Path, events: int, agents: int, *, seed: int = 1) -> None:
    """Write a random execution with this number of events; every 20th is a checkpoint of a random agent."""
    source = random.Random(seed)
    names = [f"agent-{index}" for index in range(agents)]
    numbers = dict.fromkeys(names, 0)
    waiting: list[MessageSent] = []
    with path.open("wb") as file:
        file.write(encode(Header(agents=names)))
        for position in range(events):
            agent = source.choice(names)
            event: Event
            if source.random() < CHECKPOINT_SHARE:
                numbers[agent] += 1
                event = CheckpointTaken(agent, numbers[agent])
            elif waiting and source.random() < len(waiting) / IN_TRANSIT_MAX:
                place = source.randrange(len(waiting))
                waiting[place], waiting[-1] = waiting[-1], waiting[place]
                message = waiting.pop()
                event = MessageReceived(message.to, message.message)
            else:
                event = MessageSent(agent, f"{agent}.1:{position}", source.choice(names))
                waiting.append(event)
            file.write(encode(event))


def run(path: Path, protocol: str | None) -> tuple[float, float]:
    """Seconds and peak memory (MB) of one fresh process."""
    command = [sys.executable, "-m", "snapline", "analyze", str(path), "-o", "json"]
    if protocol is not None:
        command += ["--protocol", protocol]
    start_s = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return seconds, usage.ru_maxrss / 1e3  # Linux counts in KB


def analyze_table(sizes: list[int], agents: int, repeat: int, protocol: str | None) -> None:
    """Seconds, µs per event and memory by size."""
    print(f"snapline analyze{f' --protocol {protocol}' if protocol else ''}, {agents} agents, best of {repeat}\n")
    print("|    events | checkpoints | file MB | seconds | µs per event | peak MB |")
    print("|      ---: |        ---: |    ---: |    ---: |         ---: |    ---: |")
    for events in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.jsonl"
            write_trace(path, events, agents)
            with path.open("rb") as file:
                checkpoints = sum(line.startswith(b'{"event":"checkpoint"') for line in file)
            runs = [run(path, protocol) for _ in range(repeat)]
            seconds, megabytes = min(run[0] for run in runs), max(run[1] for run in runs)
            print(
                f"| {events:9,} | {checkpoints:11,} | {path.stat().st_size / 1e6:7.1f} | {seconds:7.2f} "
                f"| {seconds / events * 1e6:12.2f} | {megabytes:7.0f} |",
                flush=True,
            )


def staircase(steps: int) -> Trace:
    """V3 over and over: `a! a>b b! b>a`."""
    events: list[Event] = []
    for step in range(1, steps + 1):
        events += [CheckpointTaken("a", step), MessageSent("a", f"a{step}", "b"), MessageReceived("b", f"a{step}")]
        events += [CheckpointTaken("b", step), MessageSent("b", f"b{step}", "a"), MessageReceived("a", f"b{step}")]
    return Trace(["a", "b"], events)


def staircase_table(steps: int) -> None:
    """Milliseconds of each computation."""
    trace = staircase(steps)
    execution = Execution.of(trace)
    edges = edges_of(execution)
    component = components_of(edges)
    everyone = [0, 1]
    depth = len(rounds(execution, everyone)) - 1
    line = recovery_line(execution, everyone)
    print(f"\nthe staircase: {steps:,} checkpoints per agent, line {line}, {depth:,} rounds\n")
    print("| computation | ms |\n| --- | ---: |")
    computations: list[tuple[str, Callable[[], object]]] = [
        ("execution from trace", lambda: Execution.of(trace)),
        ("line, rollback-dependency graph", lambda: recovery_line(execution, everyone)),
        ("line, checkpoint graph", lambda: recovery_line_by_checkpoints(execution, everyone)),
        ("rounds of the domino", lambda: rounds(execution, everyone)),
        ("useless", lambda: useless(execution, components_of(edges_of(execution)))),
        ("obsolete", lambda: obsolete(execution, failures_undoing(execution, edges, component))),
    ]
    for name, compute in computations:
        times_s = []
        for _ in range(5):
            start_s = time.perf_counter()
            compute()
            times_s.append(time.perf_counter() - start_s)
        print(f"| {name} | {min(times_s) * 1e3:.2f} |")


def coordinator_table() -> None:
    """What the coordinator's own view of checkpoint records costs, if that part is there."""
    if importlib.util.find_spec("recovery_history") is not None:  # a file beside this one
        print()
        print(importlib.import_module("recovery_history").history_table())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--protocol", help="let this protocol decide the forced checkpoints anew")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.2f}\n")
    analyze_table(options.events, options.agents, options.repeat, options.protocol)
    staircase_table(STEPS)
    coordinator_table()


if __name__ == "__main__":
    main()
