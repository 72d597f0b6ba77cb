"""What a replica does with its storage, written down; and what must be found after each crash in it.

A script runs once on a recorded disk and marks what it is about to make durable (`try`) and what it was told is durable (`done`).
Then every prefix of what reached the disk is opened as after a crash: the state found must be the last that was done, or a
later one that was tried. Damage, a refusal to start, or anything in between is a violation.
"""

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest
from tests.coordinator.raft.recorded_disk import Recording, record_os, recorded_sqlite

from snapline.coordinator.raft import journal as journal_module
from snapline.coordinator.raft.dump import DumpFile
from snapline.coordinator.raft.journal import Entry, SqliteJournal
from snapline.errors import LogError

SUCCESS = 2
"""SERIALIZER_STATE of the library."""


class Stopped(BaseException):
    """The process would have ended here. Nothing but the test may catch it."""


def stop(reason: str) -> NoReturn:
    raise Stopped(reason)


@contextmanager
def fast_folder() -> Iterator[Path]:
    """An empty folder in memory, where there is one: hundreds of crashes need thousands of syncs."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def open_journal(folder: Path, kind: type[SqliteJournal] = SqliteJournal, node: str = "a") -> SqliteJournal:
    return kind(folder / "journal", cluster="c", node=node, fail=stop)


class JournalState(NamedTuple):
    entries: tuple[Entry, ...]
    term: int
    vote: str | None


class JournalScript:
    """Every kind of change, conflict and trim of the log, with the states that are to be durable computed beside it."""

    def __init__(self, folder: Path, recording: Recording, kind: type[SqliteJournal]) -> None:
        self.recording = recording
        self.model: list[Entry] = []
        self.term: tuple[int, str | None] = (0, None)
        self._promise(lambda: None)
        self.journal = open_journal(folder, kind)

    def run(self) -> None:
        self._vote(1, "a")
        self._append(range(1, 5), 1)
        self._sync()
        self._append(range(5, 12), 1, size=3000)
        self._sync()
        self._timer(9)
        self._matching(6, range(7, 10), 1)
        self._vote(2, None)
        self._matching(8, range(9, 12), 1, is_ended_by_a_vote=True)
        self._conflict(9, range(10, 14), 2)
        self._sync()
        self._trim(5)
        self._sync()
        self._timer(12)
        self._append(range(14, 16), 3)
        self._replace(40)
        self._sync()
        self._timer(40)
        self._append(range(41, 44), 3)
        self._sync()
        self._promise(self.journal._destroy)

    def _promise(self, call: Callable[[], None]) -> None:
        state = JournalState(tuple(self.model), *self.term)
        self.recording.mark("try", state)
        call()
        self.recording.mark("done", state)

    def _sync(self) -> None:
        self._promise(self.journal.sync)

    def _timer(self, commit_index: int) -> None:
        self.journal.setRaftCommitIndex(commit_index)
        self._promise(self.journal.onOneSecondTimer)

    def _vote(self, term: int, vote: str | None) -> None:
        self.term = (term, vote)
        self._promise(lambda: self.journal.setCurrentTerm(term, vote))

    def _append(self, indexes: range, term: int, size: int = 5) -> None:
        if term > self.term[0]:
            self._vote(term, None)
        for idx in indexes:
            self.model.append((b"%d " % idx * size, idx, term))
            self.journal.add(*self.model[-1])

    def _matching(self, prev: int, indexes: range, term: int, *, is_ended_by_a_vote: bool = False) -> None:
        """An AppendEntries that repeats what is there: the library cuts and adds again."""
        first = self.model[0][1]
        self.journal.deleteEntriesFrom(prev + 1 - first)
        for idx in indexes:
            self.journal.add(*self.model[idx - first])
        if is_ended_by_a_vote:  # not what the library does; nothing may be lost even so
            self._vote(self.term[0], "b")
        self.journal.put_back()
        self._sync()

    def _conflict(self, prev: int, indexes: range, term: int) -> None:
        place = prev + 1 - self.model[0][1]
        self.journal.deleteEntriesFrom(place)
        del self.model[place:]
        self._append(indexes, term)
        self.journal.put_back()

    def _trim(self, idx: int) -> None:
        place = idx - self.model[0][1]
        self.journal.deleteEntriesTo(place)
        del self.model[:place]

    def _replace(self, idx: int) -> None:
        """A dump was installed: the log begins with its two last entries."""
        self.journal.clear()
        self.model = [(b"p", idx - 1, 2), (b"l", idx, 3)]
        for entry in self.model:
            self.journal.add(*entry)


def record_journal(kind: type[SqliteJournal], recording: Recording) -> str:
    """Run the script; why the process ended, if it did."""
    with fast_folder() as folder, pytest.MonkeyPatch.context() as patch, recorded_sqlite(recording):
        record_os(patch, recording, folder)
        patch.setattr(journal_module, "CHECKPOINT_BYTES", 0)
        script = None
        try:
            script = JournalScript(folder, recording, kind)
            script.run()
        except (Stopped, LogError) as ended:
            return str(ended)
        finally:  # a process that ends closes nothing
            kept, recording.ops = recording.ops, []
            if script is not None:
                script.journal.abandon()
            recording.ops = kept
    return ""


def journal_violations(recording: Recording, power_cuts: int, step: int = 1) -> Iterator[str]:
    """Crashes after which the journal is not what it must be."""
    rng = random.Random(7)
    with fast_folder() as root:
        for count in range(0, len(recording.ops) + 1, step):
            allowed = allowed_facts(recording, count)
            for number, names in enumerate(recording.crash_states(count, rng, power_cuts)):
                folder = lay_out(names, root / f"{count}-{number}")
                try:
                    journal = open_journal(folder)
                except LogError as error:
                    yield f"after {count}: {error}"
                    continue
                found = JournalState(tuple(journal[:]), journal.getCurrentTerm(), journal.getVotedForNodeId())
                journal.abandon()
                if found not in allowed:
                    yield f"after {count}: {found}"


def allowed_facts(recording: Recording, count: int) -> list[object]:
    """What was last done before operation `count`, and what was tried after that."""
    allowed: list[object] = []
    for op in recording.ops[:count]:
        if op.kind == "mark":
            allowed = [op.fact] if op.name == "done" else [*allowed, op.fact]
    return allowed or [JournalState((), 0, None)]


def lay_out(names: dict[str, bytes], folder: Path) -> Path:
    folder.mkdir()
    for name, content in names.items():
        (folder / name).write_bytes(content)
    return folder


def open_dump(
    folder: Path, state: Callable[[], bytes], applied: Callable[[], int], node: str = "a", piece_bytes: int = 100
) -> DumpFile:
    return DumpFile(
        str(folder / "dump"), piece_bytes, False, state, None, None, cluster="c", node=node, applied=applied, fail=stop
    )


def transmit(sender: DumpFile, receiver: DumpFile) -> bool:
    is_installed = False
    for _ in range(10000):
        piece = sender.getTransmissionData("follower")
        assert piece is not None
        is_installed = receiver.setTransmissionData(piece)
        if piece[2]:
            return is_installed
    raise AssertionError("the dump never ends")
