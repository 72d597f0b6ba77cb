"""How long a user waits: for help, for a host's first turn, for a fleet's first epoch; beside the interpreter alone.

    .venv/bin/python benchmarks/startup.py [--rounds 10]

In each round all of these are started, one after the other, in turns. Times of day, in milliseconds from the moment in which the program is
started; `÷ python` is the median of the rounds' ratios to `python -c pass`. The fleet is two agents on two hosts with a trigger ten times a second:
"first turn" is when an agent's `on_start` runs, "first epoch" when the first complete cut is looked at. CPU is that of the program and its
children, once they have ended.
"""

import argparse
import contextlib
import os
import platform
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SNAPLINE = [sys.executable, "-m", "snapline"]

FLEET = """
import os
import time
from pathlib import Path

import msgspec

import snapline

FOLDER = Path(os.environ["STARTED"])


class Count(msgspec.Struct):
    number: int = 0


class Starter(snapline.Agent):
    state: Count

    async def on_start(self, ctx: snapline.Context) -> None:
        (FOLDER / f"turn-{ctx.agent}").write_text(str(time.monotonic_ns()))


def is_first(cut):
    (FOLDER / "epoch").write_text(str(time.monotonic_ns()))
    return True


fleet = snapline.Fleet(
    "started",
    agents={"a": Starter(Count()), "b": Starter(Count())},
    triggers=[snapline.Every(seconds=0.1)],
    stop_when=is_first,
)
"""

Figures = dict[str, float]
"""Times in milliseconds, by name."""


def plain(*command: str) -> Figures:
    """A program that ends by itself."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic_ns()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    duration = time.monotonic_ns() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"until it ends": duration / 1e6, "CPU": cpu_s * 1e3}


@contextlib.contextmanager
def folder_of_fleet() -> Iterator[Path]:
    """A folder with the fleet's module, in which its agents write down when they ran."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "started.py").write_text(FLEET)
        os.environ["STARTED"] = name
        os.environ["PYTHONPATH"] = name
        yield folder


def run() -> Figures:
    """`snapline run`: a coordinator and two hosts."""
    with folder_of_fleet() as folder:
        began = time.monotonic_ns()
        figures = plain(*SNAPLINE, "run", "started:fleet", "--hosts", "2", "--data-dir", str(folder / "run"))
        return {"first turn": since(began, folder, "turn-*"), "first epoch": since(began, folder, "epoch"), **figures}


def host() -> Figures:
    """`snapline host run`, for a coordinator that waits for it."""
    with folder_of_fleet() as folder, socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{door.getsockname()[1]}"
        door.close()
        where = ["--store", str(folder / "store")]
        coordinator = subprocess.Popen(
            [*SNAPLINE, "coordinator", "run", "--listen", address, "--hosts", "1", "--data-dir", str(folder / "c"), *where],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            wait_for(address)
            began = time.monotonic_ns()
            join = ["--coordinator", address, "--id", "h1", "--fleet", "started:fleet", *where]
            plain(*SNAPLINE, "host", "run", *join)
            return {"first turn": since(began, folder, "turn-*")}
        finally:
            coordinator.send_signal(signal.SIGTERM)
            coordinator.wait()


def wait_for(address: str) -> None:
    """Until somebody listens there."""
    host, port = address.split(":")
    for _ in range(1000):
        with socket.socket() as knocking:
            if knocking.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.01)
    raise SystemExit(f"no coordinator listens at {address}: run the command by hand to see why")


def since(began_ns: int, folder: Path, pattern: str) -> float:
    """Until the first of these was written."""
    return (min(int(path.read_text()) for path in folder.glob(pattern)) - began_ns) / 1e6


MEASURED: dict[str, Callable[[], Figures]] = {
    "python -c pass": lambda: plain(sys.executable, "-c", "pass"),
    "import typer": lambda: plain(sys.executable, "-c", "import typer"),
    "snapline --help": lambda: plain(*SNAPLINE, "--help"),
    "snapline host run": host,
    "snapline run": run,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    rounds = [{name: measure() for name, measure in MEASURED.items()} for _ in range(options.rounds)]
    print(f"{'':18} {'':14} {'median ms':>10} {'quartiles':>16} {'÷ python':>9}")
    for name in MEASURED:
        for what in rounds[0][name]:
            values = [each[name][what] for each in rounds]
            low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
            against = "CPU" if what == "CPU" else "until it ends"
            ratio = statistics.median([each[name][what] / each["python -c pass"][against] for each in rounds])
            spread = f"{low:.0f} to {high:.0f}"
            print(f"{name:18} {what:14} {statistics.median(values):10.0f} {spread:>16} {ratio:9.1f}")


if __name__ == "__main__":
    main()
