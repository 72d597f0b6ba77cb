"""The journal after every crash and every error of the disk: what was synced is there, what failed was not acknowledged.

The disk is recorded call by call (`recorded_disk.py`); mutants show that the tests can fail (H1, H3, H4; G8).
"""

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.coordinator.raft.recorded_disk import Recording, can_record_sqlite
from tests.coordinator.raft.storage_scripts import (
    journal_violations,
    open_journal,
    record_journal,
    record_replica,
    replica_violations,
)

from snapline.coordinator.raft import durability
from snapline.coordinator.raft.journal import JournalFile, SqliteJournal

recorded = pytest.mark.skipif(not can_record_sqlite(), reason="SQLite is linked where its calls cannot be recorded")


# ---- crashes --------------------------------------------------------------------------------------------------------


@recorded
def test_every_crash_leaves_what_was_synced() -> None:
    """Killed, or without power, after every write, sync, truncation and removal (acceptance test 5)."""
    recording = Recording()
    assert not record_journal(SqliteJournal, recording)
    assert sum(op.kind == "sync" for op in recording.ops) > 25
    assert not journal_violations(recording, power_cuts=1)


@pytest.mark.slow
@recorded
def test_every_crash_leaves_what_was_synced_many_power_cuts() -> None:
    recording = Recording()
    assert not record_journal(SqliteJournal, recording)
    assert not journal_violations(recording, power_cuts=30)


@recorded
def test_every_crash_of_compaction_and_install_leaves_what_was_acknowledged() -> None:
    """Journal and dump together: between rename and trim too (acceptance tests 4, 5 and 7)."""
    recording = Recording()
    assert not record_replica(recording)
    assert sum(op.kind == "rename" for op in recording.ops) == 4
    assert not replica_violations(recording, power_cuts=3)


class UnsyncedFile(JournalFile):
    """The default of many: synced at checkpoints only."""

    def _prepare(self) -> None:
        super()._prepare()
        self._connected().execute("PRAGMA synchronous=NORMAL")


class UnsyncedJournal(SqliteJournal):
    def __init__(self, path: Path, **settings: object) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("snapline.coordinator.raft.journal.JournalFile", UnsyncedFile)
            super().__init__(path, **settings)  # type: ignore[arg-type]  # passed on


class ForgetfulJournal(SqliteJournal):
    """Says it is durable, and writes later."""

    def sync(self) -> None:
        self.put_back()


class CuttingJournal(SqliteJournal):
    """V5: cuts first, adds again after."""

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        super().deleteEntriesFrom(entryFrom)
        if self._tail:
            self._drop_tail()


class ClearingJournal(SqliteJournal):
    """V2: a trim is a clear and adding again, in two transactions."""

    def deleteEntriesTo(self, entryTo: int) -> None:
        rest = self._entries[entryTo:]
        self.clear()
        self._commit()
        for entry in rest:
            self.add(*entry)


@recorded
@pytest.mark.parametrize("kind", [UnsyncedJournal, ForgetfulJournal, CuttingJournal, ClearingJournal])
def test_the_crash_test_finds_a_journal_that_loses(kind: type[SqliteJournal]) -> None:
    recording = Recording()
    assert not record_journal(kind, recording)
    assert journal_violations(recording, power_cuts=1, step=2)


@recorded
def test_the_crash_test_finds_a_dump_reported_before_the_folder_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapline.coordinator.raft.durability.sync_folder", lambda path: None)
    recording = Recording()
    assert not record_replica(recording)
    assert replica_violations(recording, power_cuts=3)


# ---- errors ---------------------------------------------------------------------------------------------------------


def unnoticed_failures(*, is_full: bool) -> list[str]:
    """Every second call fails, those between with the other error. Failing calls after which the process went on, gave another reason, or had acknowledged what is not there."""
    healthy = Recording()
    assert not record_replica(healthy)
    found, ended = [], 0
    for number in range(is_full, len(healthy.ops), 2):
        recording = Recording(fail_at=number, is_full=is_full)
        reason = record_replica(recording)
        ended += recording.has_failed
        if bool(reason) != recording.has_failed or (reason and "mend the disk" not in reason):
            found.append(f"operation {number} failed: {reason!r}")
        found += replica_violations(recording, power_cuts=2, step=max(1, len(recording.ops)))
    assert ended > 12
    return found


@recorded
@pytest.mark.parametrize("is_full", [False, True], ids=["EIO", "ENOSPC"])
def test_every_failing_write_and_sync_ends_the_process_without_a_false_word(is_full: bool) -> None:
    """Acceptance test 10. What is on the disk afterwards is what was acknowledged before."""
    assert not unnoticed_failures(is_full=is_full)


@recorded
def test_the_error_test_finds_a_journal_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    write = JournalFile.write

    def write_if_possible(self: JournalFile, *arguments: Any, **settings: Any) -> None:
        try:
            write(self, *arguments, **settings)
        except sqlite3.Error:
            self._connected().rollback()

    monkeypatch.setattr(JournalFile, "write", write_if_possible)
    found = unnoticed_failures(is_full=True)
    assert any("''" in reason for reason in found) and any(
        "commands of" in reason or "gap" in reason for reason in found
    )


# ---- real processes -------------------------------------------------------------------------------------------------

_WRITER = """
import sys
from pathlib import Path
from snapline.coordinator.raft.journal import SqliteJournal

journal = SqliteJournal(Path(sys.argv[1]), cluster="c", node="a")
term = journal.getCurrentTerm() + 1
journal.setCurrentTerm(term, "a")
while True:
    last = journal[-1][1] if len(journal) else 0
    if last > 20:  # a conflict, and a message that repeats
        journal.deleteEntriesFrom(len(journal) - 3)
        journal.add(*journal._tail[0])
        journal.put_back()
    for idx in range(last + 1, last + 6):
        journal.add(b"%d" % idx * 50, idx, term)
    journal.sync()
    sys.stdout.write(f"{term} {last + 5}\\n")
    sys.stdout.flush()
    if len(journal) > 100:
        journal.deleteEntriesTo(60)
        journal.onOneSecondTimer()
"""


def start_writer(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        text=True,
    )


def test_kill_9_loses_nothing_synced(tmp_path: Path) -> None:
    """On a real disk; each run killed at another moment (G8)."""
    for run in range(2):
        process = start_writer(tmp_path / "journal")
        assert process.stdout is not None
        assert process.stdout.readline(), "the writer did not start"
        time.sleep(0.1 + 0.07 * run)
        process.send_signal(signal.SIGKILL)
        lines = [line for line in process.communicate()[0].splitlines(keepends=True) if line.endswith("\n")]
        journal = open_journal(tmp_path)
        term, last = map(int, lines[-1].split())
        assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (term, "a")
        assert journal[-1][1] >= last
        assert all(command == b"%d" % idx * 50 for command, idx, _ in journal[:])
        journal.abandon()


def test_a_full_disk_ends_the_process_and_a_restart_finds_all(tmp_path: Path) -> None:
    """Acceptance test 10 with the real `os._exit`: the kernel refuses to let the file grow."""
    process = start_writer(tmp_path / "journal")
    limits = (300_000, resource.RLIM_INFINITY)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)
    out, err = process.communicate(timeout=60)
    assert process.returncode == durability.FAIL_STOP_EXIT_CODE, err
    assert "the coordinator ends itself" in err and "mend the disk" in err
    journal = open_journal(tmp_path)
    assert journal[-1][1] >= int(out.splitlines()[-1].split()[1]) > 0
    journal.abandon()
