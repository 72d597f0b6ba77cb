"""What a message costs that another agent handles: ours and peers', CPU of all their processes, in one run.

    .venv/bin/python -m benchmarks.peer_messages [--rounds 5] [--window 4] [--peers PYTHON] [--only NAME …]

Each is a fleet that passes small messages without pause, as its own documentation writes it: agents of ours on two hosts with a coordinator,
their snapshots off, and with one a second; four actors of Ray that call each other and do not wait; eight agents of AutoGen core in one process
that send to each other, and that publish; a stream of Bytewax through a keyed stateful map. In each round every one of them is started, warmed
up and measured for a window, one after the other. CPU is user and system time of every process that the fleet has started, whoever that is;
messages are counted in handlers. `÷ ours` is the median of the rounds' ratios to the first row.

PYTHON is an interpreter that has the peers: `make with-peers` makes `.venv/peers`. What is not installed is left out, and said.
A message of ours crosses processes in half the cases and is in a cut; one of AutoGen stays in its process; Ray's gives a result back that nobody
asks for. None of the peers' messages is in a checkpoint.
"""

import argparse
import contextlib
import os
import platform
import secrets
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PEERS = Path(__file__).with_name("peers")
MARK = "SNAPLINE_BENCH_MARK"
TICKS = os.sysconf("SC_CLK_TCK")
READY_S = 120.0

RUN = ("-m", "snapline", "run", "benchmarks.snapshot_agents:fleet", "--hosts", "2", "--quiet")
OURS = (sys.executable, *RUN)


def cpu_s(mark: str) -> float:
    """User and system seconds so far of all processes that have this mark in their environment."""
    ticks = 0
    mark_bytes = f"{MARK}={mark}".encode()
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError):
            if folder.name.isdigit() and mark_bytes in (folder / "environ").read_bytes().split(b"\0"):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def counted(folder: Path) -> int:
    """Messages handled so far: each process has a file with a number of 64 bits."""
    total = 0
    for path in folder.glob("*.count"):
        with contextlib.suppress(struct.error):
            total += struct.unpack("Q", path.read_bytes())[0]
    return total


@contextlib.contextmanager
def started(command: Sequence[str], folder: Path, path: str) -> Iterator[str]:
    """Start the fleet and yield the mark of its processes, which are ended at exit."""
    mark = secrets.token_hex(8)
    environment = {**os.environ, MARK: mark, "COUNTS": str(folder), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
    try:
        yield mark
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        for found in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if found.name.isdigit() and f"{MARK}={mark}".encode() in (found / "environ").read_bytes().split(b"\0"):
                    os.kill(int(found.name), signal.SIGKILL)
        process.wait()


def measure(command: Sequence[str], window_s: float, path: str = str(ROOT)) -> tuple[float, float]:
    """CPU microseconds a message, and messages a second; `path` is where Python looks first."""
    with tempfile.TemporaryDirectory(prefix="snapline-bench-") as name:
        folder = Path(name)
        with started([word.replace("@folder", name) for word in command], folder, path) as mark:
            until_s = time.monotonic() + READY_S
            while counted(folder) < 2_000:
                if time.monotonic() > until_s:
                    raise SystemExit(f"{command[1]} has not begun: {(folder / 'log').read_text()[-500:]}")
                time.sleep(0.05)
            time.sleep(1.0)
            began_s, cpu, messages = time.monotonic(), cpu_s(mark), counted(folder)
            time.sleep(window_s)
            elapsed_s, spent_s, done = time.monotonic() - began_s, cpu_s(mark) - cpu, counted(folder) - messages
    return spent_s / done * 1e6, done / elapsed_s


def commands(peers: str) -> dict[str, Sequence[str]]:
    """Name → command line; `@folder` is where counts are kept."""
    ours = (*OURS, "--arg", "folder=@folder", "--data-dir", "@folder/run")
    return {
        "snapline": ours,
        "snapline, a snapshot a second": (*ours, "--arg", "period=1.0"),
        "Ray, calls": (peers, str(PEERS / "ray_actors.py")),
        "AutoGen, sends": (peers, str(PEERS / "autogen_agents.py"), "send"),
        "AutoGen, publishes": (peers, str(PEERS / "autogen_agents.py"), "publish"),
        "Bytewax, records": (peers, str(PEERS / "bytewax_flow.py")),
    }


PACKAGES = {"Ray": "ray", "AutoGen": "autogen_core", "Bytewax": "bytewax"}


def is_there(peers: str, name: str) -> bool:
    package = PACKAGES.get(name.partition(",")[0])
    if package is None:
        return True
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return Path(peers).exists() and not subprocess.run([peers, "-c", code], check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=4.0, help="seconds")
    parser.add_argument("--peers", metavar="PYTHON", default=str(ROOT / ".venv" / "peers" / "bin" / "python"))
    parser.add_argument("--only", nargs="+", metavar="NAME")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    known = commands(options.peers)
    wanted = {name: known[name] for name in known if not options.only or name in options.only or name == "snapline"}
    for name in [name for name in wanted if not is_there(options.peers, name)]:
        print(f"{name}: left out, {options.peers} has no {PACKAGES[name.partition(',')[0]]}")
        del wanted[name]
    rounds = [
        {name: measure(command, options.window) for name, command in wanted.items()} for _ in range(options.rounds)
    ]
    print(f"{'':30} {'µs a message':>13} {'quartiles':>16} {'messages/s':>11} {'÷ ours':>8}")
    for name in wanted:
        micros = [each[name][0] for each in rounds]
        low, _, high = statistics.quantiles(micros, n=4) if len(micros) > 1 else micros * 3
        rate = statistics.median([each[name][1] for each in rounds])
        ratio = statistics.median([each[name][0] / each["snapline"][0] for each in rounds])
        spread = f"{low:.1f} to {high:.1f}"
        print(f"{name:30} {statistics.median(micros):13.1f} {spread:>16} {rate:11,.0f} {ratio:8.1f}")


if __name__ == "__main__":
    main()
