"""What machine code and newer interpreters gain: this checkout's sources, its compiled build, and other environments, in turns.

    make compiled && .venv/bin/python -m benchmarks.builds [--rounds 7] [--window 3] [--only NAME …]

Rows: CPU microseconds of the host cores for a message (`host.py`: inside one host, between two, with epochs, under hmnr); of a whole fleet of
three processes for a message (`peer_messages.py`), without snapshots and with ten a second; CPU seconds of four seeds of the simulator, its start
included. In each round every build runs once, in an order that changes; what is shown is the median of the first column and the medians of the
ratios to it within a round, with an interval of 95 % from their order statistics (of seven rounds, the extremes).

The first column is this interpreter on the sources; then come its compiled build (`make compiled`), and the same of the environments that `make
test-pythons` has made in this one (`make VENV=.venv/python3.13 PYTHON=python3.13 compiled` builds there). What is not built is left out, and said.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.guard import PROBES, cpu_s
from benchmarks.host import interval
from benchmarks.peer_messages import RUN, measure

ROOT = Path(__file__).resolve().parents[1]
CORES = {"core, inside": "here", "core, between": "link", "core, epochs": "epochs", "core, hmnr": "hmnr"}
FLEETS: Mapping[str, tuple[str, ...]] = {"fleet": (), "fleet, snapshots": ("--arg", "period=0.1")}
SEEDS = "four seeds, s"


class Build(NamedTuple):
    """An interpreter, and where it finds snapline."""

    name: str
    python: str
    source: Path


def builds_of(environment: Path) -> list[Build]:
    """Interpreted, and compiled if that is there."""
    python = str(environment / "bin" / "python")
    code = "import platform; print(platform.python_version())"
    version = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    builds = [Build(version, python, ROOT / "src")]
    site = environment / "compiled" / "site"
    if site.is_dir():
        builds.append(Build(f"{version} compiled", python, site))
    else:
        print(f"Python {version} has no compiled build in {environment.name}: left out")
    return builds


def cores(build: Build, names: list[str], messages: int) -> Mapping[str, float]:
    loads = [CORES[name] for name in names]
    command = [build.python, "benchmarks/host.py", "--child", "--messages", str(messages), "--loads", *loads]
    environment = {**os.environ, "PYTHONPATH": str(build.source)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
    return dict(zip(names, json.loads(done.stdout).values(), strict=True))


def fleet(build: Build, arguments: tuple[str, ...], window_s: float) -> float:
    command = (build.python, *RUN, "--arg", "folder=@folder", "--data-dir", "@folder/run", *arguments)
    return measure(command, window_s, os.pathsep.join([str(build.source), str(ROOT)]))[0]


def round_of(build: Build, names: list[str], messages: int, window_s: float) -> Mapping[str, float]:
    inner = [name for name in names if name in CORES]
    times = dict(cores(build, inner, messages)) if inner else {}
    for name in names:
        if name in FLEETS:
            times[name] = fleet(build, FLEETS[name], window_s)
        elif name == SEEDS:
            times[name] = cpu_s(ROOT, PROBES["simulator"], build.python, build.source)
    return times


def show(builds: list[Build], names: list[str], rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> None:
    base, *others = [build.name for build in builds]
    print(f"{'':18} {base:>10}" + "".join(f"   {name + ' ÷':>24}" for name in others))
    for name in names:
        line = f"{name:18} {statistics.median(each[base][name] for each in rounds):10.2f}"
        for other in others:
            ratios = [each[other][name] / each[base][name] for each in rounds]
            low, high = interval(ratios)
            line += f"   {f'{statistics.median(ratios):.2f} [{low:.2f}, {high:.2f}]':>24}"
        print(line)


def main() -> None:
    every = [*CORES, *FLEETS, SEEDS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--window", type=float, default=3.0, help="seconds of a fleet")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=every, default=every)
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    here = Path(sys.prefix)
    builds = [build for place in (here, *sorted(here.glob("python3.*"))) for build in builds_of(place)]
    rounds = []
    for _ in range(options.rounds):
        order = random.sample(builds, len(builds))
        rounds.append({build.name: round_of(build, options.only, options.messages, options.window) for build in order})
    show(builds, options.only, rounds)


if __name__ == "__main__":
    main()
