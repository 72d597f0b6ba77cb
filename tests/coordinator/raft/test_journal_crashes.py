"""The journal after every crash: what was synced is there.

The disk is recorded call by call (`recorded_disk.py`); mutants show that the tests can fail (H1, H3, H4; G8).
"""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.coordinator.raft.recorded_disk import Recording, can_record_sqlite
from tests.coordinator.raft.storage_scripts import journal_violations, open_journal, record_journal

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
    assert not list(journal_violations(recording, power_cuts=1))


@pytest.mark.slow
@recorded
def test_every_crash_leaves_what_was_synced_many_power_cuts() -> None:
    recording = Recording()
    assert not record_journal(SqliteJournal, recording)
    assert not list(journal_violations(recording, power_cuts=30))


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
    assert next(journal_violations(recording, power_cuts=1, step=2), "")


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
