"""Is a hot path slower than it was? Fixed work under this checkout and under a commit, in turns; CPU seconds of whole programs.

    .venv/bin/python -m benchmarks.guard COMMIT [--rounds 11] [--only NAME …]

For who touches the message path, the coordinator, the store or the simulator: give the commit before. Each probe is a program that is started
in either checkout with the same interpreter, in an order that alternates; what counts is its processor time and that of its children,
start included. Shown is the median of the rounds' ratios, now ÷ before, with an interval of 95 % from their order statistics. The exit code
is 1 if an interval lies above `LIMIT`, and 0 otherwise: a machine that does other things widens intervals, it does not move them. A probe that
the older checkout cannot run is left out, and said.
"""

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.host import interval

ROOT = Path(__file__).resolve().parents[1]

LIMIT = 1.03
"""Ratio above which a path counts as slower: smaller differences depend on the memory layout of the interpreter."""

PAIRS_MIN = 6
"""Smallest number of rounds for an interval of 95 %."""

LEADER = "from benchmarks.scale_leader import LargeLeader; LargeLeader(40, 100).measure()"

STORE = """
import tempfile
from snapline.storage.store.store import Store
with tempfile.TemporaryDirectory() as folder:
    store = Store.create(f"{folder}/store")
    blobs = [(f"agent-{number}", bytes([number % 251]) * 600) for number in range(500)]
    for epoch in range(1, 60):
        store.write_pack(writer="h1", epoch=epoch, blobs=blobs)
"""

PIGGYBACK = "from benchmarks.piggyback import Fleet, measure; measure(Fleet('hmnr', 60, 8, 100), 15_000)"

PROBES: dict[str, Sequence[str]] = {
    "messages": ("benchmarks/host.py", "--child", "--messages", "150000", "--loads", "link"),
    "epochs": ("benchmarks/host.py", "--child", "--messages", "100000", "--loads", "epochs"),
    "coordinator": ("-c", LEADER),
    "store": ("-c", STORE),
    "hmnr": ("-c", PIGGYBACK),
    "simulator": ("-m", "snapline", "sim", "sweep", "swarm", "--seeds", "0:4", "--jobs", "1"),
    "--help": ("-m", "snapline", "--help"),
}
"""Arguments of Python for each probe, run in the checkout's folder."""


class ProbeFailedError(Exception):
    """The checkout cannot run it; says why."""


def cpu_s(checkout: Path, probe: Sequence[str], python: str = sys.executable, source: Path | None = None) -> float:
    """Run it there; `source`: where that interpreter finds snapline, if not in the checkout.

    Raises:
        ProbeFailedError: it did not end well.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source or checkout / "src"), str(checkout)])}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the fresh checkout would be compiled in every round
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([python, *probe], cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise ProbeFailedError((done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1])
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(before: Path, names: Sequence[str], rounds: int) -> bool:
    """Print a line for each probe; whether nothing is slower."""
    is_well = True
    for name in names:
        ours: list[float] = []
        theirs: list[float] = []
        try:
            for checkout in (ROOT, before):  # compiles
                cpu_s(checkout, PROBES[name])
            for number in range(rounds):
                pair = [(ROOT, ours), (before, theirs)]
                for checkout, found in pair if number % 2 else pair[::-1]:
                    found.append(cpu_s(checkout, PROBES[name]))
        except ProbeFailedError as error:
            print(f"{name:<12} left out: {error}", flush=True)
            continue
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        low, high = interval(ratios)
        verdict = "SLOWER" if low > LIMIT else "faster" if high < 1 / LIMIT else ""
        is_well = is_well and low <= LIMIT
        medians = f"{statistics.median(ours):6.2f} s   before {statistics.median(theirs):6.2f} s"
        print(
            f"{name:<12} {medians}   ratio {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}] {verdict}",
            flush=True,
        )
    return is_well


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", nargs="+", choices=PROBES, default=list(PROBES), metavar="NAME")
    options = parser.parse_args()
    if options.rounds < PAIRS_MIN:
        parser.error(f"--rounds {options.rounds}: an interval of 95 % needs {PAIRS_MIN}")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        added = subprocess.run(
            [*git, "add", "--detach", str(before), options.commit], capture_output=True, text=True, check=False
        )
        if added.returncode:
            parser.error(f"{options.commit} cannot be checked out: {added.stderr.strip().splitlines()[-1]}")
        try:
            return 0 if compare(before, options.only, options.rounds) else 1
        finally:
            subprocess.run([*git, "remove", "--force", str(before)], check=True)


if __name__ == "__main__":
    sys.exit(main())
