"""All benchmarks beside the peers that install here, as one page: docs/performance.md, with its pictures.

    make report [ARGS="--only messages raft"]

Every section is made by one command, which it names, and says when it ran, on which commit, and how busy the machine was. `--only` makes
some sections anew and leaves the others as they are. All of it takes about forty minutes, on a machine that should have nothing else to do.
"""

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from math import log10
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
PICTURE = ROOT / "docs" / "performance-messages.svg"
PEERS = ".venv/peers/bin/python"
PYTHON = ".venv/bin/python"


class Section(NamedTuple):
    """`words`: arguments of the interpreter. `shows`, `hides`: meaning and limits of the figures."""

    title: str
    words: str
    shows: str
    hides: str


SECTIONS = {
    "messages": Section(
        "A message, beside peers",
        "-m benchmarks.peer_messages --rounds 3",
        "The processor's time for a message that another agent handles, of all processes of a fleet together.",
        "Peers' messages are in no checkpoint, and AutoGen's and Bytewax's leave no process. Bytewax is Rust with a Python function in it; "
        "its records go one way, and nobody answers them.",
    ),
    "builds": Section(
        "Machine code and newer Pythons",
        "-m benchmarks.builds --rounds 7",
        "What the compiled cores ([compiled.md](compiled.md)) cost beside the sources, and other interpreters beside this one, where they are built.",
        "What users write is not compiled, nor what runs it.",
    ),
    "link": Section(
        "The link between hosts",
        "benchmarks/link.py --rounds 5 --quick",
        "Messages a second between two processes, with acks, credit and markers, beside unary and streaming gRPC and bare TCP.",
        "No agents: what a handler and its turn cost is above. Loopback, so no network's latency or loss.",
    ),
    "snapshots": Section(
        "Snapshots while a fleet runs",
        "benchmarks/snapshot.py --pairs 10",
        "What ten snapshots a second add to the processor's time of a message.",
        "100 small agents; what large states cost is below.",
    ),
    "latency": Section(
        "Answers while snapshots are taken",
        "-m benchmarks.latency --pairs 8",
        "How long an agent waits for the answer of one on the other host, in a fleet that does nothing else and in one whose hosts are half busy.",
        "Two hosts, a coordinator and what asks for snapshots share the processors of one machine: what one does the others wait for.",
    ),
    "state": Section(
        "Capture, store and restore",
        "benchmarks/state.py",
        "The pause of a capture beside memcpy, a commit beside an atomic write, a restore beside memcpy; torch's and DCP's own files, where torch is installed.",
        "One disk, whose write cache may answer for it; no bucket.",
    ),
    "growth": Section(
        "How the store grows",
        "benchmarks/growth_store.py --largest 10000",
        "The processor's time of the store's operations as chunks, epochs, entries and bytes grow tenfold, and the exponent from one size to the next.",
        "A disk that syncs nothing. Up to a million chunks and entries and 100,000 epochs: docs/state.md. All is linear but captures of what has changed, and reading the "
        "newest epoch. A deletion looks at the name of every manifest, so deleting k of n epochs takes k times n. Memory that is touched first is slower "
        "than what fits the caches, and slower still where a hypervisor must find it: hence exponents above 1 from 1 MiB on.",
    ),
    "buckets": Section(
        "Requests to a bucket",
        "benchmarks/buckets.py",
        "Packs, ranges and checkpoints of small agents: requests side by side beside fewer at a time, as before.",
        "A bucket in memory, whose requests sleep: no throttling, no shared line.",
    ),
    "langgraph": Section(
        "LangGraph's savers",
        "benchmarks/adapters.py --rounds 3",
        "What saving costs a step of a graph with our saver, LangGraph's SQLite saver, and its Postgres saver where a server runs.",
        "One process and one thread but for the last rows.",
    ),
    "world": Section(
        "Inputs, answers, durable steps",
        f"benchmarks/world.py --rounds 3 --dbos {PEERS}",
        "What the outside costs a fleet that syncs to disk, and durable steps beside DBOS on SQLite.",
        "DBOS commits each step by itself; ours share a batch. DBOS on Postgres was not measured.",
    ),
    "grpc": Section(
        "Plain gRPC services as members",
        "benchmarks/grpc_calls.py 10",
        "A unary call between members of a fleet beside the same call without.",
        "Loopback; a call over a network hides more of it.",
    ),
    "raft": Section(
        "The coordinator's log",
        "benchmarks/raft.py --rounds 3 --kills 6",
        "Our Raft, which syncs before it answers, beside stock pysyncobj, which keeps its log in memory.",
        "All replicas share one disk and two processors.",
    ),
    "recovery": Section(
        "Analysis of recovery",
        "benchmarks/recovery.py --events 10000 100000 --repeat 2",
        "Recovery lines and useless checkpoints of long executions, and of the domino effect at its worst.",
        "No peer computes these.",
    ),
    "scale": Section(
        "Agents and hosts",
        "benchmarks/scale.py --rounds 1 --agents 100 1000 10000 --hosts 4",
        "A cut and a recovery, and what an epoch costs coordinator and hosts; more in [scale.md](scale.md).",
        "One machine: hosts share its processors, so times of day are upper bounds.",
    ),
    "busy": Section(
        "Fleets whose agents all talk",
        "benchmarks/scale.py --rounds 1 --busy 20 --agents 100 500 1000 10000 --more-hosts",
        "A cut and a recovery of agents that handle twenty messages a second each, as far as this machine's processors go: then messages/s and idle say how far.",
        "Twenty a second for each of 10,000: four hosts here handle a tenth of that.",
    ),
    "checkmate": Section(
        "CheckMate's queries",
        "-m benchmarks.checkmate table",
        "What streaming queries sustain under each mode, and what a failure costs them, in virtual time; columns, orderings and limits: [checkmate.md](checkmate.md).",
        "Bandwidth. One seed; an event stands for 500, so latencies have a floor.",
    ),
    "startup": Section(
        "Starting",
        "benchmarks/startup.py --rounds 10",
        "What a user waits for help, a host's first turn and a fleet's first epoch.",
        "A warm page cache.",
    ),
    "simulator": Section(
        "The simulator",
        "benchmarks/sim.py 1 kernel fleet seeds",
        "Events, agents and seeds a second, and what a seed holds: the standard swarm draws more each time the simulator learns something.",
        "Seeds differ: those with long faults take ten times the median. Why 150 seeds a second are out of reach, and what a seed spends its time on: decision 0077.",
    ),
}


def made(name: str, section: Section) -> str:
    """Run the command; return the text of the section."""
    command = [PYTHON, *shlex.split(section.words)]
    load, began_s = os.getloadavg()[0], time.monotonic()
    print(f"{name}: {' '.join(command)}", file=sys.stderr, flush=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode and not done.stdout:
        raise SystemExit(f"{' '.join(command)} has failed with {done.returncode} and printed nothing: run it by hand")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    when = f"{time.strftime('%Y-%m-%d', time.gmtime())}, {commit.stdout.strip()}, load {load:.1f} at its start, {time.monotonic() - began_s:.0f} s"
    output = "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())
    return (
        f"## {section.title}\n\n{section.shows}\n\n`{' '.join(command)}` ({when})\n\n"
        f"```text\n{output}\n```\n\n**Not shown.** {section.hides}\n"
    )


def known(page: str) -> dict[str, str]:
    """Title → text of the sections that are there."""
    sections = re.split(r"(?m)^(?=## )", page)[1:]
    return {text.partition("\n")[0].removeprefix("## "): text.rstrip() + "\n" for text in sections}


def head() -> str:
    versions = [f"Python {platform.python_version()}", f"Linux {platform.release()}", f"{os.cpu_count()} processors"]
    listed = (
        subprocess.run(
            [str(ROOT / PEERS), "-m", "pip", "list", "--format=freeze"], stdout=subprocess.PIPE, text=True, check=False
        ).stdout
        if (ROOT / PEERS).exists()
        else ""
    )
    peers = re.findall(r"(?m)^((?:ray|autogen-core|bytewax|dbos)==\S+)", listed)
    return f"""# Performance

Made by `make report`; every section by the command that it names. Ratios count, and processor time: rates are this machine's, a small virtual one.
{", ".join(versions)}; {", ".join(peers) or "no peers installed"}.

![What a message costs, by fleet](performance-messages.svg)
"""


def bars(rows: Sequence[tuple[str, float]]) -> str:
    """A picture of these, on a logarithmic scale from 1 µs."""
    widest = max(log10(value) for _, value in rows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {34 + 30 * len(rows)}" font-family="sans-serif" font-size="13">',
        '<text x="8" y="18">CPU microseconds for a message that another agent handles; logarithmic</text>',
    ]
    for number, (name, value) in enumerate(rows):
        top, width = 30 + 30 * number, max(2.0, 380 * log10(max(value, 1.0)) / widest)
        colour = "#2b6cb0" if name.startswith("snapline") else "#a0aec0"
        lines.append(f'<text x="8" y="{top + 16}">{name}</text>')
        lines.append(f'<rect x="240" y="{top}" width="{width:.0f}" height="22" fill="{colour}"/>')
        lines.append(f'<text x="{246 + width:.0f}" y="{top + 16}">{value:,.3g}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="NAME")
    options = parser.parse_args()
    texts = known(PAGE.read_text()) if PAGE.exists() else {}
    for name in options.only:
        texts[SECTIONS[name].title] = made(name, SECTIONS[name])
        shown = [texts[section.title] for section in SECTIONS.values() if section.title in texts]
        PAGE.write_text("\n".join([head(), *shown]))  # after each section, so that a failure loses nothing
    table = re.findall(r"(?m)^(\S.*?) {2,}([\d.]+) +[\d.]+ to ", texts.get(SECTIONS["messages"].title, ""))
    if table:
        PICTURE.write_text(bars([(name, float(value)) for name, value in table]))


if __name__ == "__main__":
    main()
