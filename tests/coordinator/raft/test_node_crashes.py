"""A whole replica, its files taken from it after every operation that reached the disk (acceptance tests 4, 5 and 7).

The replica is a follower of a scripted leader: it takes entries, repeats and a conflict, applies, makes dumps, and installs one
that was sent. What it has answered for must be there after any crash: the leader comes back in a later term, asks for it,
and has it applied.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pysyncobj.transport import Transport  # type: ignore[import-untyped]  # has no stubs
from tests.coordinator.raft.marks import Marks
from tests.coordinator.raft.recorded_disk import RecordedOs, Recording, can_record_sqlite, record_os, recorded_sqlite
from tests.coordinator.raft.storage_scripts import Stopped, fast_folder, lay_out, stop

from snapline.coordinator.raft import durability, journal
from snapline.coordinator.raft.dump import DumpFile
from snapline.coordinator.raft.journal import Entry
from snapline.coordinator.raft.node import SafeSyncObj
from snapline.coordinator.raft.pysyncobj_adapter import RaftNode, raft_configuration
from snapline.errors import LogError

pytestmark = pytest.mark.skipif(not can_record_sqlite(), reason="SQLite is linked where its calls cannot be recorded")

LEADER = RaftNode("b", "b:1")
FIRST: Entry = (b"\1", 1, 0)
Message = dict[str, Any]


class Words:
    """The state: all entries, in order."""

    def __init__(self) -> None:
        self.words: list[bytes] = []

    def apply(self, entry: bytes) -> int:
        self.words.append(entry)
        return len(self.words)

    def freeze(self) -> bytes:
        return b",".join(self.words)

    def restore(self, image: bytes) -> None:
        self.words = image.split(b",") if image else []


class Answers(Transport):  # type: ignore[misc]  # the library has no types
    """Keeps what the replica sends."""

    def __init__(self, node: SafeSyncObj, *others: object) -> None:
        super().__init__(node, *others)
        self.sent: list[Message] = []

    @property
    def ready(self) -> bool:
        return True

    def send(self, node: object, message: Message) -> bool:
        self.sent.append(message)
        return True

    def destroy(self) -> None: ...


class Follower:
    """A replica, and the leader's side of the conversation."""

    def __init__(self, folder: Path) -> None:
        self.machine = Words()
        self.node = SafeSyncObj(
            RaftNode("a", "a:1"),
            [LEADER],
            raft_configuration(0, compaction_entries=12, batch_bytes=300),
            transport_class=Answers,
            machine=self.machine,
            folder=folder,
            cluster="c",
            marks=Marks(),
            on_alarm=lambda sentence: None,
        )

    def hear(self, *messages: Message) -> list[Message]:
        """As the transport does it: all messages, one sync, the answers."""
        sent = self.node._SyncObj__transport.sent
        sent.clear()
        for message in messages:
            self.node._SyncObj__onMessageReceived(LEADER, message)
        self.node.sync_journal()
        return list(sent)

    def tick(self) -> None:
        """Twice: a dump is made in the first, the log trimmed in the second, and synced with the next message."""
        self.node.doTick()
        self.node.doTick()

    def crash(self) -> None:
        self.node._SyncObj__raftLog.abandon()
        self.node.destroy()


def entries_message(prev: Entry, entries: list[Entry], term: int, commit_index: int) -> Message:
    return {
        "type": "append_entries",
        "term": term,
        "commit_index": commit_index,
        "entries": entries,
        "prevLogIdx": prev[1],
        "prevLogTerm": prev[2],
    }


class Held(NamedTuple):
    """What the replica has answered for."""

    log: tuple[Entry, ...]
    committed: int


class Leader:
    """Runs the script, and marks what is asked (`try`) and answered (`done`)."""

    def __init__(self, folder: Path, recording: Recording) -> None:
        self.recording = recording
        self.log = [FIRST]
        self.committed = 1
        recording.mark("done", self._held())
        self.follower = Follower(folder)

    def _held(self) -> Held:
        return Held(tuple(self.log), self.committed)

    def run(self, dump_of: Callable[[list[Entry]], list[bytes]]) -> None:
        for _ in range(5):
            self._send(4, term=1)
        self._again(15)
        self._send(3, term=1, lag=3)
        self._conflict(2, term=2)
        for _ in range(3):
            self._send(4, term=2)
        self._install(dump_of, 30)
        for _ in range(4):
            self._send(4, term=3)

    def _ask(self, *messages: Message) -> None:
        self.recording.mark("try", self._held())
        answers = self.follower.hear(*messages)
        assert any(answer["success"] for answer in answers)
        self.recording.mark("done", self._held())
        self.follower.tick()

    def _send(self, count: int, *, term: int, lag: int = 0) -> None:
        prev = self.log[-1]
        entries = [(b"\0%d of %d" % (idx, term), idx, term) for idx in range(prev[1] + 1, prev[1] + 1 + count)]
        self.log += entries
        self.committed = self.log[-1][1] - lag
        self._ask(entries_message(prev, entries, term, self.committed))

    def _again(self, prev_index: int) -> None:
        """An old message: a part of what the follower has, which must not cut the rest."""
        prev, *entries = self.log[prev_index - 1 : prev_index + 3]
        self._ask(entries_message(prev, entries, 1, 3))

    def _conflict(self, count: int, *, term: int) -> None:
        """A leader of the next term never saw the last entries."""
        del self.log[-2:]
        self._send(count, term=term)

    def _install(self, dump_of: Callable[[list[Entry]], list[bytes]], count: int) -> None:
        """The follower slept: the leader has trimmed what it lacks, and sends a dump."""
        first = self.log[-1][1] + 1
        self.log += [(b"\0%d of 3" % idx, idx, 3) for idx in range(first, first + count)]
        self.committed = self.log[-1][1]
        pieces = dump_of(self.log)
        frames: list[Message] = [
            {
                "type": "append_entries",
                "term": 3,
                "commit_index": self.committed,
                "serialized": (piece, number == 0, number == len(pieces) - 1),
            }
            for number, piece in enumerate(pieces)
        ]
        self._ask(*frames)


def words_of(log: list[Entry] | tuple[Entry, ...]) -> list[bytes]:
    return [command[1:] for command, _, _ in log if command[:1] == b"\0"]


@contextmanager
def stopping() -> Iterator[None]:
    durability.set_fail_stop_hook(stop)
    try:
        yield
    finally:
        durability.set_fail_stop_hook(None)


def record() -> Recording:
    recording = Recording()
    with fast_folder() as folder, fast_folder() as elsewhere, stopping(), pytest.MonkeyPatch.context() as patch:
        record_os(patch, recording, folder)
        patch.setattr(journal, "CHECKPOINT_BYTES", 0)

        def dump_of(log: list[Entry]) -> list[bytes]:
            state = b",".join(words_of(log))
            settings = (str(elsewhere / "dump"), 300, False, lambda: state, None, None)
            dump = DumpFile(*settings, cluster="c", node="b", applied=lambda: 0)
            dump.serialize((None, log[-1], log[-2], ()), log[-2][1])
            data = (elsewhere / "dump").read_bytes()
            return [data[at : at + 300] for at in range(0, len(data), 300)] + [b""]

        with recorded_sqlite(recording):
            leader = Leader(folder, recording)
            leader.run(dump_of)
            kept, recording.ops = recording.ops, []
            leader.follower.crash()
            recording.ops = kept
    assert leader.follower.machine.words == words_of(leader.log)
    return recording


def violations(recording: Recording, power_cuts: int, step: int = 1) -> list[str]:
    """Crashes after which the replica does not start, lacks what it answered for, or applies something else."""
    found = []
    rng = random.Random(13)
    with fast_folder() as root, stopping():
        for count in range(0, len(recording.ops) + 1, step):
            held: list[Held] = []
            for op in recording.ops[:count]:
                if op.kind == "mark":
                    held = [op.fact] if op.name == "done" else [*held, op.fact]
            for number, names in enumerate(recording.crash_states(count, rng, power_cuts)):
                folder = lay_out(names, root / f"{count}-{number}")
                try:
                    follower = Follower(folder)
                    is_held = any(_has(follower, each) for each in held or [Held((FIRST,), 1)])
                    reason = "" if is_held else "entries are lost"
                    follower.crash()
                except (Stopped, LogError) as error:
                    reason = str(error)
                if reason:
                    found.append(f"after {count}: {reason}")
    return found


def _has(follower: Follower, held: Held) -> bool:
    """Whether the leader, back in a later term, finds this log and has it applied as it was."""
    last = held.log[-1]
    follower.tick()
    answers = follower.hear(entries_message(last, [], 9, last[1]))
    follower.tick()
    is_held = any(answer["success"] and answer["next_node_idx"] == last[1] + 1 for answer in answers)
    return is_held and follower.machine.words[: len(words_of(held.log))] == words_of(held.log)


def test_every_crash_leaves_what_the_replica_answered_for() -> None:
    recording = record()
    assert sum(op.kind == "rename" for op in recording.ops) >= 4, "dumps of its own and the leader's"
    assert not violations(recording, power_cuts=1)


@pytest.mark.slow
def test_every_crash_leaves_what_the_replica_answered_for_many_power_cuts() -> None:
    assert not violations(record(), power_cuts=12)


@pytest.mark.parametrize("mutant", ["unsynced answers", "unsynced dump", "unsynced folder"])
def test_the_crash_test_finds_a_replica_that_forgets(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant == "unsynced answers":
        monkeypatch.setattr(SafeSyncObj, "sync_journal", lambda self: None)
    elif mutant == "unsynced dump":
        monkeypatch.setattr("snapline.coordinator.raft.dump.replace_durably", _later)
    else:
        monkeypatch.setattr("snapline.coordinator.raft.durability.sync_folder", lambda path: None)
    recording = record()
    monkeypatch.undo()
    assert violations(recording, power_cuts=1, step=2)


def _later(path: Path, pieces: list[bytes], *, point: str) -> None:
    """Writes and renames, and leaves the syncs to the kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordedOs, "fsync", lambda self, handle: None)
        durability.replace_durably(path, pieces, point=point)
