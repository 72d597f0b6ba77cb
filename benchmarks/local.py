"""What `recovery="local"` costs and saves beside `recovery="global"`: answers, effects, messages between hosts, and failures.

    .venv/bin/python -m benchmarks.local [answers] [effects] [messages] [failure] [moves] [--rounds 5] [--asks 100] [--seconds 4] [--full]

All figures are of real processes, with fsync on, and a snapshot each second. In each round both kinds of recovery are measured, in random order;
answers and effects alternate one by one. The table has the median over the rounds with the lowest and highest, and the ratio is the median of
the ratios within a round. Without a name, all five are measured.

    answers     one input to an idle fleet of two hosts, to its final answer; beside it one append of 4 KiB with fdatasync on the same disk
    effects     from a turn's request of an effect to the call of the effect's function, in the same idle fleet
    messages    messages of about 64 bytes a second between two hosts, agents with states of 1 KiB, as fast as they can; CPU of the coordinator and
                of both hosts for each message. 100 agents, and 10,000 with --full
    failure     one of eight hosts is killed with SIGKILL, stays down, and others take its agents over. Its 1,000 agents take a turn of a timer
                each 4 s, two agents on each other host one each 20 ms. All send messages to both kinds of agents
                  largest gap         longest time without a turn in any agent of the other hosts that overlaps the failure or the seconds after
                                      it; and, for comparison, in the seconds before it
                  agents that start again    those that have another incarnation afterwards; `recoveries`: 1, unless more hosts failed
                  death to …          from SIGKILL to its detection by the coordinator; to the end of the recovery; to the first turn of the
                                      first and of the last of the 1,000 agents. The last one waits for its timer, up to 4 s. All but the
                                      detection include the rejoin grace (--rejoin-grace), for which the coordinator waits for the lost host

    moves       an agent with a state of 1 MiB takes a turn each 10 ms, and is moved 20 times among three hosts. Four agents on each host take one
                each 20 ms. The longest time between two turns around each move, of that agent (its pause) and of all others

A fleet of two hosts, its coordinator and the benchmark share the processors of one machine, and so do eight hosts.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path

import msgspec
from benchmarks import local_fleet
from benchmarks.snapshot import until_running, window
from benchmarks.world import PAID, appends_ms, connected
from benchmarks.world_fleet import Act, Acted

import snapline
from snapline.deploy.launching import SnaplineCommands
from snapline.deploy.local import LocalFleet
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.security.transport import Security
from snapline.sim.search.compare import percentile

ROOT = Path(__file__).resolve().parents[1]
GLOBAL, LOCAL = "global", "local"

PAUSE_S = 0.05
"""Before each input. A fleet gets every second one, so it is idle for twice this time before."""

TILLS = 64
WARM_UP_S = 2.0

HOSTS, AGENTS_EACH = 8, 2
MOVE_HOSTS, MOVES = 3, 20
LIMIT_S = 60.0
"""For all agents of the killed host to take a turn: a busy machine may need long."""

POLL_S = 0.3
TRIES_MAX = 3
"""Fleets that are started for one failure."""

ANSWER, APPEND, IN_APPENDS = "final answer ms", "synced append ms", "final answer p50 ÷ synced append"
EFFECT = "effect ms"


class Table:
    """Figures of all rounds: name → recovery → a figure for each round. Figures of the machine have "" as their recovery."""

    def __init__(self) -> None:
        self._figures: dict[str, dict[str, list[float]]] = {}

    def note(self, name: str, recovery: str, value: float) -> None:
        self._figures.setdefault(name, {}).setdefault(recovery, []).append(value)

    def show(self) -> None:
        for name, found in self._figures.items():
            if "" in found:
                print(f"{name:42}{_spread(found['']):>28}")
                continue
            ratios = [ours / theirs for ours, theirs in zip(found[LOCAL], found[GLOBAL], strict=True) if theirs]
            ratio = _spread(ratios) if ratios else ""
            print(f"{name:42}{_spread(found[GLOBAL]):>28}{_spread(found[LOCAL]):>28}{ratio:>24}", flush=True)


def _spread(values: list[float]) -> str:
    """Median, lowest and highest."""
    digits = 0 if min(values) >= 100 or all(value == int(value) for value in values) else 2
    middle, low, high = (f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low} – {high})"


def _shuffled() -> list[str]:
    return random.sample([GLOBAL, LOCAL], 2)


@contextlib.asynccontextmanager
async def running(local: LocalFleet) -> AsyncIterator[CoordinatorClient]:
    """Start a fleet, and wait for its first turns."""
    async with local:
        client = CoordinatorClient(local.address, Security.loopback())
        try:
            await until_running(client)
            yield client
        finally:
            await client.close()


# -- answers and effects --------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def idle_fleets(folder: Path) -> AsyncIterator[dict[str, snapline.Client]]:
    """One fleet of each kind, and a client for each."""
    async with contextlib.AsyncExitStack() as stack:
        clients = {}
        for recovery in (GLOBAL, LOCAL):
            local = LocalFleet(
                data_dir=folder / recovery,
                fleet="benchmarks.world_fleet:fleet",
                hosts=2,
                arguments={"agents": str(TILLS), "recovery": recovery},
                environment={"PYTHONPATH": str(ROOT)},
            )
            await stack.enter_async_context(running(local))
            clients[recovery] = await stack.enter_async_context(await connected(local.address))
            for number in range(TILLS):
                await clients[recovery].ask(f"till-{number}", PAID, f"first-{number}", early=True)
        yield clients


async def answers(options: argparse.Namespace, table: Table) -> None:
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        async with idle_fleets(Path(name)) as clients:
            for turn in range(options.rounds):
                times_ms: dict[str, list[float]] = {GLOBAL: [], LOCAL: []}
                appended_ms = []
                for number in range(options.asks):
                    for recovery in _shuffled():
                        await asyncio.sleep(PAUSE_S)
                        start_s = time.perf_counter()
                        await clients[recovery].ask(f"till-{number % TILLS}", PAID, f"{turn}-{number}")
                        times_ms[recovery].append((time.perf_counter() - start_s) * 1e3)
                    appended_ms += appends_ms(Path(name) / "appended", 1)
                for recovery, found in times_ms.items():
                    middle = _note_percentiles(table, ANSWER, recovery, found)
                    table.note(IN_APPENDS, recovery, middle / statistics.median(appended_ms))
                table.note(APPEND, "", statistics.median(appended_ms))
                _progress()


async def effects(options: argparse.Namespace, table: Table) -> None:
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        async with idle_fleets(Path(name)) as clients:
            for turn in range(options.rounds):
                times_ms: dict[str, list[float]] = {GLOBAL: [], LOCAL: []}
                for number in range(options.asks):
                    for recovery in _shuffled():
                        await asyncio.sleep(PAUSE_S)
                        reply = await clients[recovery].ask(
                            f"till-{number % TILLS}", Act(), f"effect-{turn}-{number}", early=True, reply_type=Acted
                        )
                        times_ms[recovery].append(reply.message.waited_ns / 1e6)
                for recovery, found in times_ms.items():
                    _note_percentiles(table, EFFECT, recovery, found)
                _progress()


def _note_percentiles(table: Table, name: str, recovery: str, times: list[float]) -> float:
    """Note the 50th and the 99th percentile; return the first."""
    ordered = sorted(times)
    table.note(f"{name}, p50", recovery, percentile(ordered, 0.5))
    table.note(f"{name}, p99", recovery, percentile(ordered, 0.99))
    return percentile(ordered, 0.5)


# -- messages -------------------------------------------------------------------------------------------------------------


async def messages(options: argparse.Namespace, table: Table) -> None:
    for _ in range(options.rounds):
        for agents in (100, 10_000) if options.full else (100,):
            for recovery in _shuffled():
                cpu_us, per_second = await _messages(options, agents, recovery)
                table.note(f"messages/s between hosts, {agents:,} agents", recovery, per_second)
                table.note(f"CPU µs per message, {agents:,} agents", recovery, cpu_us)
            _progress()


async def _messages(options: argparse.Namespace, agents: int, recovery: str) -> tuple[float, float]:
    """CPU microseconds per message, and messages per second."""
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        counts = Path(name) / "counts"
        counts.mkdir()
        arguments = {"folder": str(counts), "agents": str(agents), "recovery": recovery}
        arguments |= {"across": "1", "notes": "900", "period": "1.0"}
        local = LocalFleet(
            data_dir=Path(name) / "run",
            fleet="benchmarks.snapshot_agents:fleet",
            hosts=2,
            arguments=arguments,
            environment={"PYTHONPATH": str(ROOT)},
        )
        async with running(local) as client:
            await asyncio.sleep(WARM_UP_S)
            pids = [pid for each in ("coordinator", *local.hosts) if (pid := local.pid(each)) is not None]
            cpu_us, per_second, _, _ = await window(client, pids, counts, options.seconds, per_second=0)
            return cpu_us, per_second


# -- failure --------------------------------------------------------------------------------------------------------------


class Turn(msgspec.Struct, frozen=True):
    incarnation: int
    began_ns: int


Turns = dict[int, list[Turn]]
"""Turns of each agent, by its number, in the order of their beginnings."""


def turns_in(folder: Path) -> Turns:
    record, found = local_fleet.RECORD, Turns()
    for path in folder.glob("*.turns"):
        data = path.read_bytes()
        whole = data[: len(data) // record.size * record.size]
        for number, incarnation, began_ns in record.iter_unpack(whole):
            found.setdefault(number, []).append(Turn(incarnation, began_ns))
    for turns in found.values():
        turns.sort(key=lambda turn: turn.began_ns)
    return found


class Failure:
    """The turns before and after a host is killed."""

    def __init__(self, turns: Turns, killed_ns: int, lost: int) -> None:
        self._turns = turns
        self._lost = lost
        self._killed_ns = killed_ns
        before = {
            number: max([turn.incarnation for turn in found if turn.began_ns < killed_ns], default=0)
            for number, found in turns.items()
        }
        self._again_ns = {
            number: min(new)
            for number, found in turns.items()
            if (new := [turn.began_ns for turn in found if turn.incarnation > before[number] > 0])
        }
        """When those that start again take their first turn."""

    @property
    def restarted(self) -> int:
        """Number of agents that have started again."""
        return len(self._again_ns)

    @property
    def first_turns_ms(self) -> list[float]:
        """Times from the kill to the first turns of the killed host's agents, sorted."""
        found = [self._again_ns[number] for number in range(self._lost) if number in self._again_ns]
        return sorted([(again_ns - self._killed_ns) / 1e6 for again_ns in found])

    def largest_gap_ms(self, since_ns: int, until_ns: int) -> float:
        """Of all gaps between two turns of a survivor that overlap this time."""
        survivors = [found for number, found in self._turns.items() if number >= self._lost]
        return largest_gap_ms(survivors, since_ns, until_ns)


def largest_gap_ms(turns: Iterable[list[Turn]], since_ns: int, until_ns: int) -> float:
    """Of all gaps between two turns of one of these agents that overlap this time."""
    gaps = [
        later.began_ns - earlier.began_ns
        for found in turns
        for earlier, later in itertools.pairwise(found)
        if earlier.began_ns < until_ns and later.began_ns > since_ns
    ]
    return max(gaps) / 1e6


class Recovery(msgspec.Struct):
    """A recovery as the coordinator's history shows it."""

    suspected: datetime
    done: datetime | None


class Commands(SnaplineCommands):
    """Commands of a fleet whose coordinator waits as long for a lost host as the benchmark's user says."""

    def __init__(self, data_dir: Path, arguments: dict[str, str], rejoin_grace_s: float) -> None:
        fleet = "benchmarks.local_fleet:fleet"
        super().__init__(data_dir=data_dir, fleet=fleet, hosts=HOSTS, arguments=arguments, on_failure="move")
        self._grace = ("--rejoin-grace", f"{rejoin_grace_s:g}")

    def coordinator(self, address: str, name: str, members: Mapping[str, str]) -> list[str]:
        return [*super().coordinator(address, name, members), *self._grace]


async def failure(options: argparse.Namespace, table: Table) -> None:
    for _ in range(options.rounds):
        for recovery in _shuffled():
            for name, value in (await _failure(options, recovery)).items():
                table.note(name, recovery, value)
        _progress()


async def _failure(options: argparse.Namespace, recovery: str) -> dict[str, float]:
    """The figures of one failure. A fleet that a busy machine has disturbed before is started again."""
    for _ in range(TRIES_MAX):
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            found = await _fail(options, recovery, Path(name))
            if found:
                return found
            print("x", end="", file=sys.stderr, flush=True)
    raise SystemExit(f"a host was evicted before the failure in {TRIES_MAX} fleets: the machine is too busy")


async def _fail(options: argparse.Namespace, recovery: str, folder: Path) -> dict[str, float]:
    """Start a fleet and kill its last host. Returns nothing if a host was evicted before."""
    turns_folder = folder / "turns"
    turns_folder.mkdir()
    arguments = {"folder": str(turns_folder), "hosts": str(HOSTS), "recovery": recovery}
    arguments |= {"lost": str(options.lost), "each": str(AGENTS_EACH)}
    local = LocalFleet(
        Commands(folder / "run", arguments, options.rejoin_grace),
        data_dir=folder / "run",
        hosts=HOSTS,
        on_failure="move",
        environment={"PYTHONPATH": str(ROOT)},
    )
    async with running(local) as client:
        await _until(lambda: len(turns_in(turns_folder)) == options.lost + (HOSTS - 1) * AGENTS_EACH)
        await asyncio.sleep(WARM_UP_S + options.seconds)
        if await _recoveries(client):
            return {}
        killed_ns, killed_s = time.monotonic_ns(), time.time()
        local.kill(local.hosts[-1], is_kept_down=True)
        await asyncio.sleep(options.seconds)
        await _until(lambda: len(_turns_of(turns_folder, killed_ns, options).first_turns_ms) == options.lost)
        recoveries = await _ended_recoveries(client)
    found, window_ns = _turns_of(turns_folder, killed_ns, options), int(options.seconds * 1e9)
    return {
        "largest gap in a survivor's turns ms": found.largest_gap_ms(killed_ns, killed_ns + window_ns),
        "largest gap before the failure ms": found.largest_gap_ms(killed_ns - window_ns, killed_ns),
        "agents that start again": found.restarted,
        "recoveries": len(recoveries),
        "death to detection ms": (recoveries[0].suspected.timestamp() - killed_s) * 1e3,
        "death to end of recovery ms": max(each.done.timestamp() - killed_s for each in recoveries if each.done) * 1e3,
        "death to first turn ms": found.first_turns_ms[0],
        "death to first turn of the last agent ms": found.first_turns_ms[-1],
    }


def _turns_of(folder: Path, killed_ns: int, options: argparse.Namespace) -> Failure:
    return Failure(turns_in(folder), killed_ns, options.lost)


async def _recoveries(client: CoordinatorClient) -> list[Recovery]:
    return msgspec.convert((await client.recovery_history())["recoveries"], list[Recovery])


async def _ended_recoveries(client: CoordinatorClient) -> list[Recovery]:
    """Wait for the end of the last recovery; return all."""
    async with asyncio.timeout(LIMIT_S):
        while (recoveries := await _recoveries(client))[-1].done is None:
            await asyncio.sleep(POLL_S)
    return recoveries


async def _until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"some agents have taken no turn in {LIMIT_S:g} s")
        await asyncio.sleep(POLL_S)


# -- command line ---------------------------------------------------------------------------------------------------------


# -- moves ----------------------------------------------------------------------------------------------------------------


async def moves(options: argparse.Namespace, table: Table) -> None:
    for _ in range(options.rounds):
        for recovery in _shuffled():
            with tempfile.TemporaryDirectory(dir=options.folder) as name:
                for measured, value in (await _moves(recovery, Path(name))).items():
                    table.note(measured, recovery, value)
        _progress()


async def _moves(recovery: str, folder: Path) -> dict[str, float]:
    turns_folder = folder / "turns"
    turns_folder.mkdir()
    arguments = {"folder": str(turns_folder), "hosts": str(MOVE_HOSTS), "recovery": recovery, "lost": "1", "each": "4"}
    arguments |= {"lost_period": "0.01", "lost_bytes": str(1 << 20), "is_pinned": "no"}
    local = LocalFleet(
        data_dir=folder / "run",
        fleet="benchmarks.local_fleet:fleet",
        hosts=MOVE_HOSTS,
        arguments=arguments,
        environment={"PYTHONPATH": str(ROOT)},
    )
    windows = []
    async with running(local) as client:
        await asyncio.sleep(WARM_UP_S)
        for _ in range(MOVES):
            home = await _home(client)
            target = random.choice([f"h{number}" for number in range(1, MOVE_HOSTS + 1) if f"h{number}" != home])
            began_ns, plan = time.monotonic_ns(), (await client.status()).plan
            await client.move_agents(placed={local_fleet.name_of(0, 1, 4): target})
            while (now := await client.status()).plan == plan or now.phase != "running":
                await asyncio.sleep(0.01)
            assert await _home(client) == target
            await asyncio.sleep(0.3)
            windows.append((began_ns, time.monotonic_ns()))
    mover, *others = [found for _, found in sorted(turns_in(turns_folder).items())]
    pauses = sorted([largest_gap_ms([mover], *window) for window in windows])
    gaps = sorted([largest_gap_ms(others, *window) for window in windows])
    return {
        "pause of an agent that moves ms, p50": statistics.median(pauses),
        "pause of an agent that moves ms, p95": percentile(pauses, 0.95),
        "largest gap of the others ms, p95": percentile(gaps, 0.95),
    }


async def _home(client: CoordinatorClient) -> str:
    return (await client.locate([local_fleet.name_of(0, 1, 4)])).agents[0].host


MEASURED = {"answers": answers, "effects": effects, "messages": messages, "failure": failure, "moves": moves}


def _progress() -> None:
    print(".", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", metavar="NAME", help=f"one of {', '.join(MEASURED)}; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--asks", type=int, default=100, help="inputs to each fleet in a round of answers or effects")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each window of messages, and around a failure")
    parser.add_argument("--full", action="store_true", help="messages of 10,000 agents too")
    parser.add_argument("--lost", type=int, default=1_000, help="agents on the host that is killed")
    parser.add_argument("--rejoin-grace", type=float, default=0.05, metavar="SECONDS")
    parser.add_argument("--folder", default=None, help="on the disk to measure; default: that of temporary files")
    options = parser.parse_args()
    if unknown := set(options.only) - set(MEASURED):
        parser.error(f"{', '.join(sorted(unknown))}: use {', '.join(MEASURED)}")
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, {options.rounds} rounds"
    )
    print(f"{'':42}{GLOBAL:>28}{LOCAL:>28}{'local/global':>24}", flush=True)
    for name in options.only or MEASURED:
        table = Table()
        asyncio.run(MEASURED[name](options, table))
        print(file=sys.stderr)
        table.show()


if __name__ == "__main__":
    main()
