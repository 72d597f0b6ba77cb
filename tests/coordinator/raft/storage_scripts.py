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
        finally:
            _close_unrecorded(recording, script)
    return ""


def _close_unrecorded(recording: Recording, script: "JournalScript | ReplicaScript | None") -> None:
    """Close the file for the test's sake: a process that ends closes nothing."""
    recording.fail_at = None
    kept, recording.ops = recording.ops, []
    if script is not None:
        script.journal.abandon()
    recording.ops = kept


def journal_violations(recording: Recording, power_cuts: int, step: int = 1) -> list[str]:
    """Crashes after which the journal is not what it must be."""
    violations = []
    rng = random.Random(7)
    with fast_folder() as root:
        for count in range(0, len(recording.ops) + 1, step):
            allowed = allowed_facts(recording, count)
            for number, names in enumerate(recording.crash_states(count, rng, power_cuts)):
                folder = lay_out(names, root / f"{count}-{number}")
                try:
                    journal = open_journal(folder)
                except LogError as error:
                    violations.append(f"after {count}: {error}")
                    continue
                found = JournalState(tuple(journal[:]), journal.getCurrentTerm(), journal.getVotedForNodeId())
                journal.abandon()
                if found not in allowed:
                    violations.append(f"after {count}: {found}")
    return violations


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


# ---- journal and dump together --------------------------------------------------------------------------------------


class ReplicaScript:
    """A log that is compacted, and replaced by a dump from a leader, as the library and node.py do it.

    The state is the list of all commands, so what a crash leaves can be compared with what was acknowledged.
    """

    def __init__(self, folder: Path, recording: Recording, leaders: Path) -> None:
        self.recording = recording
        self.acknowledged = 0
        self.leaders = leaders
        self.journal = open_journal(folder)
        self.dump = open_dump(folder, self._state, lambda: self.acknowledged)
        self.journal.add(b"\1", 1, 0)
        self.journal.setCurrentTerm(1, "a")
        recording.mark("done", 1)

    def _state(self) -> bytes:
        return b",".join(command_of(idx) for idx in range(1, self.acknowledged + 1))

    def run(self) -> None:
        self._append(20)
        self._compact()
        self._append(20)
        self._compact()
        self._append(5)
        self._install(90)
        self._append(10)
        self._compact()
        self._append(3)

    def _append(self, count: int) -> None:
        first = self.journal[-1][1] + 1
        for idx in range(first, first + count):
            self.journal.add(command_of(idx), idx, 1)
        self.journal.sync()
        self.acknowledged = first + count - 1
        self.recording.mark("done", self.acknowledged)

    def _compact(self) -> None:
        previous, last = self.journal[-2:]
        self.dump.serialize((None, last, previous, ()), previous[1])
        state, idx = self.dump.checkSerializing()
        assert state == SUCCESS and idx == previous[1]
        self.journal.deleteEntriesTo(idx - self.journal[0][1])
        self.journal.sync()
        self.journal.setRaftCommitIndex(self.acknowledged)
        self.journal.onOneSecondTimer()

    def _install(self, idx: int) -> None:
        """A leader's dump arrives: of the state up to `idx`."""
        sender = open_dump(self.leaders, lambda: b",".join(command_of(n) for n in range(1, idx + 1)), lambda: 0, "b")
        previous, last = (command_of(idx - 1), idx - 1, 1), (command_of(idx), idx, 1)
        sender.serialize((None, last, previous, ()), idx)
        sender.checkSerializing()
        self.recording.mark("try", idx)
        assert transmit(sender, self.dump)
        self.journal.clear()
        self.journal.add(*previous)
        self.journal.add(*last)
        self.journal.sync()
        self.acknowledged = idx
        self.recording.mark("done", idx)


def command_of(idx: int) -> bytes:
    return b"\1" if idx == 1 else b"command %d" % idx


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


def record_replica(recording: Recording) -> str:
    """Run the script; why the process ended, if it did."""
    with fast_folder() as folder, fast_folder() as leaders, pytest.MonkeyPatch.context() as patch:
        record_os(patch, recording, folder)
        patch.setattr(journal_module, "CHECKPOINT_BYTES", 0)
        replica = None
        with recorded_sqlite(recording):
            try:
                replica = ReplicaScript(folder, recording, leaders)
                replica.run()
            except (Stopped, LogError) as ended:
                return str(ended)
            finally:
                _close_unrecorded(recording, replica)
    return ""


def replica_violations(recording: Recording, power_cuts: int, step: int = 1) -> list[str]:
    """Crashes after which journal and dump together do not hold what was acknowledged, or cannot be loaded (H6)."""
    violations = []
    rng = random.Random(11)
    with fast_folder() as root:
        for count in range(0, len(recording.ops) + 1, step):
            done = [op.fact for op in recording.ops[:count] if op.kind == "mark" and op.name == "done"]
            for number, names in enumerate(recording.crash_states(count, rng, power_cuts)):
                folder = lay_out(names, root / f"{count}-{number}")
                try:
                    held = held_commands(folder)
                except (Stopped, LogError) as error:
                    violations.append(f"after {count}: {error}")
                    continue
                if len(held) < (done[-1] if done else 0) or held != [command_of(n + 1) for n in range(len(held))]:
                    violations.append(f"after {count}: {len(held)} commands of {done[-1:]}")
    return violations


def held_commands(folder: Path) -> list[bytes]:
    """All commands that dump and journal hold, put together as loading does it: the dump, then the entries behind it."""
    held: list[bytes] = []
    journal = open_journal(folder)
    entries: list[Entry] = journal[:]
    journal.abandon()
    if (folder / "dump").exists():
        last, previous, state = open_dump(folder, bytes, lambda: 0).read()
        held = state.split(b",")
        assert held[-2:] == [previous[0], last[0]]
    if entries and entries[0][1] > len(held) + 1:
        raise Stopped(f"a gap between the dump's {len(held)} and the journal's {entries[0][1]}")
    for command, idx, _ in entries:
        if idx > len(held):
            held.append(command)
    return held
