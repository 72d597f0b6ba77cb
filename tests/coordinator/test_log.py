"""The log: what it acknowledged survives SIGKILL, damage is found, compaction changes nothing."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from snapline import failpoints
from snapline.coordinator.fleet_records import APPLIED, Committed, Result
from snapline.coordinator.log import COMPACTION_ENTRIES, SqliteLog
from snapline.errors import LogError


class Counter:
    """A state machine that keeps every entry."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []

    def apply(self, entry: bytes) -> Result:
        if entry == b"poison":
            raise LogError("an entry of a later version")
        self.entries.append(entry)
        return Result(APPLIED, number=len(self.entries))

    def freeze(self) -> bytes:
        return b"\n".join(self.entries)

    def restore(self, image: bytes) -> None:
        self.entries = image.split(b"\n") if image else []


async def fill(path: Path, count: int) -> Counter:
    machine = Counter()
    log = SqliteLog.open(path, machine)
    first = len(machine.entries)
    outcomes = await asyncio.gather(*(log.propose(b"entry-%d" % n) for n in range(first, first + count)))
    numbers = [x.result.number for x in outcomes if isinstance(x, Committed)]
    assert numbers == list(range(first + 1, first + count + 1))
    await log.close()
    return machine


async def read(path: Path) -> list[bytes]:
    machine = Counter()
    await SqliteLog.open(path, machine).close()
    return machine.entries


async def test_entries_come_back_in_order(tmp_path: Path) -> None:
    machine = await fill(tmp_path / "log", 700)
    assert await read(tmp_path / "log") == machine.entries


async def test_compaction_keeps_the_state_and_drops_the_entries(tmp_path: Path) -> None:
    machine = await fill(tmp_path / "log", 2 * COMPACTION_ENTRIES + 10)
    connection = sqlite3.connect(tmp_path / "log")
    assert connection.execute("SELECT count(*) FROM entry").fetchone()[0] < COMPACTION_ENTRIES
    connection.close()
    assert await read(tmp_path / "log") == machine.entries


async def test_facts_of_a_new_log_are_kept(tmp_path: Path) -> None:
    for cluster in ("first", "second"):
        log = SqliteLog.open(tmp_path / "log", Counter(), meta=lambda cluster=cluster: {"cluster": cluster})  # type: ignore[misc]
        assert log.meta == {"cluster": "first"}
        await log.close()


async def test_a_second_process_is_refused(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path / "log", Counter())
    with pytest.raises(LogError, match="in use"):
        SqliteLog.open(tmp_path / "log", Counter())
    await log.close()


async def test_a_failed_write_ends_the_log_for_good(tmp_path: Path) -> None:
    def disk_full(name: str) -> None:
        if name == "coordinator.log.inserted":
            raise OSError(28, "No space left on device")

    log = SqliteLog.open(tmp_path / "log", Counter())
    assert isinstance(await log.propose(b"before"), Committed)
    failpoints.install(disk_full)
    try:
        with pytest.raises(LogError, match="No space left"):
            await log.propose(b"lost")
    finally:
        failpoints.install(None)
    with pytest.raises(LogError, match="No space left"):
        await log.propose(b"after")
    await log.close()
    assert await read(tmp_path / "log") == [b"before"]


async def test_an_entry_that_cannot_be_applied_ends_the_log(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path / "log", Counter())
    with pytest.raises(LogError, match="later version"):
        await log.propose(b"poison")
    await log.close()
    with pytest.raises(LogError, match="later version"):
        SqliteLog.open(tmp_path / "log", Counter())


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE entry SET data = 'x' WHERE number = 5",
        "UPDATE entry SET digest = zeroblob(16) WHERE number = 5",
        "DELETE FROM entry WHERE number = 5",
        "UPDATE entry SET number = 1000 WHERE number = 5",
        "UPDATE image SET data = 'x'",
        "UPDATE image SET chain = zeroblob(16)",
        "DELETE FROM image",
        "INSERT INTO image SELECT number + 1, data, chain, digest FROM image",
        "UPDATE meta SET value = 'other' WHERE key = 'format'",
    ],
)
async def test_damage_is_found(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "log"
    await fill(path, COMPACTION_ENTRIES)
    await fill(path, 20)
    connection = sqlite3.connect(path, isolation_level=None)
    number = connection.execute("SELECT min(number) FROM entry").fetchone()[0]
    connection.execute(damage.replace("number = 5", f"number = {number + 2}"))
    connection.close()
    with pytest.raises(LogError, match=str(path)):
        SqliteLog.open(path, Counter())


async def test_every_flipped_byte_of_the_file_is_found_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    machine = await fill(path, 60)
    good = path.read_bytes()
    found = 0
    for position in range(0, len(good), 97):
        path.write_bytes(good[:position] + bytes((good[position] ^ 0x40,)) + good[position + 1 :])
        try:
            assert await read(path) == machine.entries, f"byte {position}"
        except LogError:
            found += 1
        for name in ("log-wal", "log-shm"):
            (tmp_path / name).unlink(missing_ok=True)
    assert found > 20


_WRITER = """
import asyncio, sys
from pathlib import Path
from snapline.coordinator.log import SqliteLog
from tests.coordinator.test_log import Counter
import snapline.coordinator.log as log_module
log_module.COMPACTION_ENTRIES = 40

async def main():
    machine = Counter()
    log = SqliteLog.open(Path(sys.argv[1]), machine)
    async def write(number):
        await log.propose(b"%d" % number)
        sys.stdout.write(f"{number}\\n")
        sys.stdout.flush()
    first = len(machine.entries)
    for start in range(first, first + 100000, 5):
        await asyncio.gather(*(write(n) for n in range(start, start + 5)))
asyncio.run(main())
"""


def test_kill_9_loses_no_acknowledged_entry(tmp_path: Path) -> None:
    """Six runs on one log, compacted every forty entries, each killed at another moment (G8 for one replica)."""
    path = tmp_path / "log"
    acknowledged = 0
    for run in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline(), "the writer did not start"
        time.sleep(0.05 + 0.037 * run)
        process.send_signal(signal.SIGKILL)
        lines = process.stdout.read().splitlines()
        process.wait()
        if lines and lines[-1].isdecimal():
            acknowledged = max(acknowledged, *(int(line) for line in lines if line.isdecimal()))
        entries = asyncio.run(read(path))
        assert entries == [b"%d" % n for n in range(len(entries))]
        assert len(entries) > acknowledged
    assert acknowledged > 40
