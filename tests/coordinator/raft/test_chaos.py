"""Chaos with real processes: SIGKILL of leaders and of all, SIGSTOP, dumps every 150 entries (test 9 of the design, G8).

`make chaos-raft MINUTES=10` runs the long one for so long; SNAPLINE_SEED repeats its choices, though not its timing.
"""

import asyncio
import os
import random
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.coordinator.raft.chaos import Client, Replicas, harm, replicas
from tests.coordinator.raft.test_replicas import check_claims
from tests.integration.processes import nothing_left_running

CLIENTS = 6
SECONDS = 60.0 * float(os.environ.get("SNAPLINE_CHAOS_MINUTES") or 20 / 60)


async def judge(made: Replicas, clients: list[Client]) -> Counter[str]:
    """Kill all once more; then nothing may be lost, done twice or contradicted, and all must agree."""
    await made.kill(*made.names)
    await asyncio.gather(*map(made.start, made.names))
    _, _, applied = msgspec.json.decode(await made.equal_image())
    leaders = made.leaders()
    assert leaders and all(len(names) == 1 for names in leaders.values()), f"two leaders in one term: {leaders}"
    history = [operation for client in clients for operation in client.history]
    acked = set().union(*[client.acked for client in clients])
    check_claims(history, acked, applied)
    assert made.alarms() == []
    return Counter(
        operations=len(history),
        acked=len(acked),
        unknown=sum(operation.answered is None for operation in history),
        repeated=sum(client.attempts for client in clients) - len(history),
        terms=len(leaders),
    )


def clients_of(made: Replicas, seed: int) -> list[Client]:
    return [Client(made, f"k{number}", random.Random(seed * 100 + number)) for number in range(CLIENTS)]


def dumped(made: Replicas) -> int:
    """The lowest first entry in the journals: above 1 if every replica has trimmed its log."""
    firsts = []
    for name in made.names:
        with closing(sqlite3.connect(f"file:{made.folder / name / 'raft' / 'raft.sqlite'}?mode=ro", uri=True)) as file:
            firsts.append(int(file.execute("SELECT min(idx) FROM log").fetchone()[0]))
    return min(firsts)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
async def test_nothing_acknowledged_is_lost_or_done_twice_whatever_is_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("SNAPLINE_SEED") or random.randrange(10**6))
    print(f"\nSNAPLINE_SEED={seed}, {SECONDS:.0f} s")
    with nothing_left_running():
        async with replicas(tmp_path) as made:
            clients = clients_of(made, seed)
            end_s = time.monotonic() + SECONDS
            working = [asyncio.create_task(client.work(end_s, max(100, round(SECONDS) // 2))) for client in clients]
            harmed = await harm(made, end_s, round(SECONDS) // 10, random.Random(seed), print)
            await asyncio.gather(*working)
            counts = await judge(made, clients)
            await made.stop()
            print(dict(counts), dict(harmed), f"first entry {dumped(made)}")
            assert dumped(made) > 150, "no dumps: nothing was tested of them"


async def test_one_kill_of_the_leader_and_one_of_all(tmp_path: Path) -> None:
    """The small one, for every day."""
    with nothing_left_running():
        async with replicas(tmp_path, compaction_entries=40) as made:
            clients = clients_of(made, 1)
            working = [asyncio.create_task(client.work(time.monotonic() + 2.5, 5)) for client in clients]
            await asyncio.sleep(0.5)
            leader = await made.wait_leader()
            await made.kill(leader)
            await made.start(leader)
            await asyncio.gather(*working)
            await judge(made, clients)


async def test_replicas_that_do_not_sync_are_found_out(tmp_path: Path) -> None:
    """So the chaos can fail: what only the memory of processes holds is gone when all are killed."""
    with nothing_left_running():
        async with replicas(tmp_path, 1, compaction_entries=10_000, is_durable=False) as made:
            clients = clients_of(made, 2)
            await asyncio.gather(*[client.write("x", ("add", 1)) for client in clients])
            assert all(client.acked for client in clients)
            with pytest.raises(AssertionError, match="lost"):
                await judge(made, clients)
