"""The dump: whole or not there, verified before it is used, refused if it brings nothing new (H5; G8, G11)."""

import base64
import hashlib
import inspect
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pysyncobj import SyncObj, SyncObjConf  # type: ignore[import-untyped]  # has no stubs
from pysyncobj import syncobj as library
from pysyncobj.serializer import Serializer  # type: ignore[import-untyped]
from tests.coordinator.raft.recorded_disk import RecordedOs, Recording, record_os
from tests.coordinator.raft.storage_scripts import (
    SUCCESS,
    Stopped,
    fast_folder,
    lay_out,
    open_dump,
    open_journal,
    stop,
    transmit,
)

from snapline import failpoints
from snapline.coordinator.raft import dump as dump_module
from snapline.coordinator.raft import durability
from snapline.coordinator.raft.dump import DumpFile, decode_dump, encode_dump
from snapline.errors import LogError, UsageError
from snapline.folders import sync_folder

NOT_SERIALIZING = 0


@pytest.fixture
def folder() -> Iterator[Path]:
    with fast_folder() as made:
        yield made


def write(folder: Path, idx: int, state: bytes, node: str = "a") -> DumpFile:
    """A dump of the state after entry `idx`, reported."""
    folder.mkdir(exist_ok=True)
    dump = open_dump(folder, lambda: state, lambda: 0, node)
    dump.serialize((None, (b"last", idx, 3), (b"previous", idx - 1, 2), ()), idx - 1)
    assert dump.checkSerializing() == (SUCCESS, idx - 1)
    return dump


def resealed(data: bytes) -> bytes:
    """With a digest that is right again."""
    return data[:-32] + hashlib.sha256(data[:-32]).digest()


# ---- the file -------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(folder: Path) -> None:
    write(folder, 41, b"the state")
    dump = open_dump(folder, bytes, lambda: 0)
    assert dump.read() == ((b"last", 41, 3), (b"previous", 40, 2), b"the state")
    assert dump.deserialize() == (None, (b"last", 41, 3), (b"previous", 40, 2), ())


def test_a_stranger_can_read_the_file(folder: Path) -> None:
    """By the page alone: no code of ours."""
    write(folder, 41, b"the state")
    data = (folder / "dump").read_bytes()
    assert data[:14] == b"snapline dump\n" and data[14:16] == b"\1\0"
    length = int.from_bytes(data[16:20], "little")
    header = json.loads(data[20 : 20 + length])
    assert header == {
        "cluster": "c",
        "node": "a",
        "last": [41, 3, base64.b64encode(b"last").decode()],
        "previous": [40, 2, base64.b64encode(b"previous").decode()],
        "state_bytes": 9,
    }
    assert data[20 + length : -32] == b"the state"
    assert data[-32:] == hashlib.sha256(data[:-32]).digest()


def test_every_flipped_bit_and_every_cut_is_found(folder: Path) -> None:
    write(folder, 41, bytes(range(256)))
    good = (folder / "dump").read_bytes()
    assert decode_dump(good)
    damaged = [good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :] for at in range(len(good))]
    damaged += [good[:length] for length in range(len(good))] + [good + b"\0", b"\0" + good, good + good]
    for data in damaged:
        with pytest.raises(LogError):
            decode_dump(data)
    for data in random.Random(3).sample(damaged, 30):
        (folder / "dump").write_bytes(data)
        for use in ("read", "deserialize"):
            with pytest.raises(Stopped, match="not to be trusted"):
                getattr(open_dump(folder, bytes, lambda: 0), use)()
        with pytest.raises(Stopped, match="not to be trusted"):
            open_dump(folder, bytes, lambda: 0).getTransmissionData("b")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (b"snapline dump\n", b"snapline cake\n", "no dump"),
        (b"dump\n\1\0", b"dump\n\2\0", "version 2"),
        (b"[41,3", b"[42,3", "cannot follow"),
        (b"[41,3", b"[41,1", "cannot follow"),
        (b'"state_bytes":9', b'"state_bytes":8', "8 bytes"),
        (b'"state_bytes"', b'"state_bites"', "header"),
        (b'"cluster"', b'"clu\xffter"', "header"),
    ],
)
def test_what_is_whole_but_wrong_is_refused(folder: Path, old: bytes, new: bytes, sentence: str) -> None:
    write(folder, 41, b"the state")
    data = (folder / "dump").read_bytes()
    assert old in data
    with pytest.raises(LogError, match=sentence):
        decode_dump(resealed(data.replace(old, new)))


def test_files_of_another_replica_and_a_missing_one_end_the_process(folder: Path) -> None:
    write(folder, 41, b"the state", node="b")
    with pytest.raises(Stopped, match="of node b"):
        open_dump(folder, bytes, lambda: 0).read()
    (folder / "dump").unlink()
    with pytest.raises(Stopped, match="cannot be read"):
        open_dump(folder, bytes, lambda: 0).read()


# ---- the place of the library's class -----------------------------------------------------------------------------------


def test_it_has_the_library_s_methods() -> None:
    names = [name for name in vars(Serializer) if not name.startswith("_")]
    assert len(names) == 6
    for name in names:
        theirs, ours = (list(inspect.signature(getattr(kind, name)).parameters) for kind in (Serializer, DumpFile))
        assert theirs == ours, name
    theirs = list(inspect.signature(Serializer).parameters)
    assert list(inspect.signature(DumpFile).parameters)[: len(theirs)] == theirs


@pytest.mark.parametrize("position", [0, 2, 3, 5])
def test_settings_it_cannot_obey_are_refused(position: int) -> None:
    settings: list[object] = ["dump", 100, False, bytes, None, None]
    settings[position] = [None, None, True, None, None, len][position]
    with pytest.raises(UsageError):
        DumpFile(*settings, cluster="c", node="a", applied=lambda: 0)  # type: ignore[arg-type]  # wrong on purpose


def test_success_is_reported_once_and_a_second_dump_waits_for_it(folder: Path) -> None:
    states = iter([b"first", b"second", b"third"])
    dump = open_dump(folder, lambda: next(states), lambda: 0)
    assert dump.checkSerializing() == (NOT_SERIALIZING, None)
    entries = (b"last", 9, 1), (b"previous", 8, 1)
    dump.serialize((None, *entries, ()), 8)
    dump.serialize((None, *entries, ()), 8)
    assert dump.getTransmissionData("b") is None, "not while the library does not know of it"
    assert dump.checkSerializing() == (SUCCESS, 8)
    assert dump.checkSerializing() == (NOT_SERIALIZING, None)
    assert dump.read()[2] == b"first"


class Counting(SyncObj):  # type: ignore[misc]  # the library has no types
    """A replica alone, on our storage, that counts its entries. Compacts every 30."""

    def __init__(self, folder: Path) -> None:
        self.applied: list[bytes] = []
        conf = SyncObjConf(
            autoTick=False,
            journalFile=str(folder / "journal"),
            fullDumpFile=str(folder / "dump"),
            logCompactionMinEntries=30,
            appendEntriesUseBatch=True,
            raftMinTimeout=0.4,
            serializer=lambda: b",".join(self.applied),
            deserializer=len,
            useFork=False,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(library, "createJournal", lambda path: open_journal(Path(path).parent))
            patch.setattr(library, "Serializer", lambda *settings: self._dump_of(settings))
            super().__init__("a:1", [], conf, transportClass=_NoTransport)

    def _dump_of(self, settings: tuple[object, ...]) -> DumpFile:
        arguments: tuple[str, int, bool, Callable[[], bytes], None, None] = settings  # type: ignore[assignment]
        return DumpFile(*arguments, cluster="c", node="a", applied=lambda: self.raftLastApplied, fail=stop)

    def _onTick(self, timeToWait: float = 0.0) -> None:
        self._SyncObj__raftLog.sync()
        super()._onTick(timeToWait)

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        if command[:1] == b"\0":
            self.applied.append(command[1:])

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        self.applied = self._SyncObj__serializer.read()[2].split(b",")
        SyncObj._SyncObj__loadDumpFile(self, clearJournal)


class _NoTransport(library.Transport):  # type: ignore[misc]
    def __init__(self, node: object, self_node: object, others: object) -> None:
        super().__init__(node, self_node, others)

    @property
    def ready(self) -> bool:
        return True

    def destroy(self) -> None:
        pass


def test_the_library_runs_on_journal_and_dump(folder: Path) -> None:
    """One replica: writes, compacts, is killed, and goes on from dump and journal."""
    written: list[bytes] = []
    for run in range(3):
        replica = Counting(folder)
        replica._SyncObj__raftElectionDeadline = 0
        for number in range(50):
            replica._applyCommand(b"%d-%d" % (run, number), None, 0)
            written.append(b"%d-%d" % (run, number))
            replica.doTick()
            replica.doTick()
        assert replica.applied == written
        assert len(replica._SyncObj__raftLog) < 35, "it was compacted"
        replica._SyncObj__raftLog.abandon()
    assert open_dump(folder, bytes, lambda: 0).read()[0][1] > 120


# ---- dumps from a leader ------------------------------------------------------------------------------------------------


def pieces_of(data: bytes, size: int = 100) -> list[tuple[bytes, bool, bool]]:
    pieces = [data[at : at + size] for at in range(0, len(data), size)] + [b""]
    return [(piece, number == 0, number == len(pieces) - 1) for number, piece in enumerate(pieces)]


def test_a_newer_dump_is_installed_as_our_own(folder: Path) -> None:
    sender = write(folder / "leader", 90, b"newer" * 100, node="b")
    write(folder, 41, b"older")
    receiver = open_dump(folder, bytes, lambda: 41)
    assert transmit(sender, receiver)
    assert receiver.read() == ((b"last", 90, 3), (b"previous", 89, 2), b"newer" * 100)
    assert decode_dump((folder / "dump").read_bytes()).node == "a"


def test_stale_repeated_torn_and_foreign_dumps_change_nothing(folder: Path) -> None:
    """V6, and acceptance test 7: what is refused leaves our dump as it was, whatever came before it."""
    write(folder / "leader", 90, b"newer" * 100, node="b")
    good = (folder / "leader" / "dump").read_bytes()
    pieces = pieces_of(good)
    foreign = resealed(good.replace(b'"cluster":"c"', b'"cluster":"d"'))
    write(folder, 41, b"older")
    ours = (folder / "dump").read_bytes()
    rng = random.Random(5)
    refused = [
        pieces[1:],  # the beginning is lost
        pieces[:3] + pieces[4:],
        pieces[:3] + pieces[2:],
        [pieces[0], pieces[2], pieces[1], *pieces[3:]],
        pieces_of(good[:-1]),
        pieces_of(b""),
        pieces_of(foreign),
        [(b"", False, True)],
    ]
    for _ in range(50):
        at = rng.randrange(len(good))
        refused.append(pieces_of(good[:at] + bytes([good[at] ^ 1 << rng.randrange(8)]) + good[at + 1 :]))
    receiver = open_dump(folder, bytes, lambda: 41)
    for attempt in refused:
        assert not any(receiver.setTransmissionData(piece) for piece in attempt)
        assert (folder / "dump").read_bytes() == ours
    for applied in (90, 91):
        receiver = open_dump(folder, bytes, lambda applied=applied: applied)  # type: ignore[misc]
        assert not any(receiver.setTransmissionData(piece) for piece in pieces)
    assert not receiver.setTransmissionData(None)
    assert (folder / "dump").read_bytes() == ours and sorted(os.listdir(folder)) == ["dump", "leader"]
    receiver = open_dump(folder, bytes, lambda: 41)
    for piece in pieces[:4]:
        receiver.setTransmissionData(piece)
    assert [receiver.setTransmissionData(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert not any(receiver.setTransmissionData(piece) for piece in pieces[1:]), "its end, again"


def test_a_dump_beyond_the_limit_is_dropped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "leader", 90, b"newer" * 1000, node="b")
    pieces = pieces_of((folder / "leader" / "dump").read_bytes())
    monkeypatch.setattr(dump_module, "DUMP_BYTES_MAX", 3000)
    receiver = open_dump(folder, bytes, lambda: 41)
    assert not any(receiver.setTransmissionData(piece) for piece in pieces)
    assert receiver._incoming is None and not (folder / "dump").exists()


def test_followers_get_the_same_dump_at_their_own_pace(folder: Path) -> None:
    sender = write(folder, 90, b"state" * 50)
    data = (folder / "dump").read_bytes()
    received = {"x": b"", "y": b""}
    rng = random.Random(1)
    waiting = ["x", "y"]
    while waiting:
        follower = rng.choice(waiting)
        if rng.random() < 0.1:
            sender.cancelTransmisstion(follower)
            received[follower] = b""
        piece = sender.getTransmissionData(follower)
        assert piece is not None and piece[1] == (received[follower] == b"")
        received[follower] += piece[0]
        if piece[2]:
            waiting.remove(follower)
    assert received == {"x": data, "y": data}
    assert not sender._outgoing, "the bytes are not kept"


def test_a_new_dump_starts_transmissions_anew(folder: Path) -> None:
    """The log behind the old one is trimmed: it would be of no use to the follower."""
    sender = write(folder, 90, b"old" * 100)
    for _ in range(2):
        assert sender.getTransmissionData("b")
    sender.serialize((None, (b"last", 95, 3), (b"previous", 94, 3), ()), 94)
    assert sender.checkSerializing() == (SUCCESS, 94)
    piece = sender.getTransmissionData("b")
    assert piece is not None and piece[1]
    assert open_dump(folder / "none", bytes, lambda: 0).getTransmissionData("b") is None


# ---- crashes and errors -------------------------------------------------------------------------------------------------


def record(recording: Recording) -> str:
    """Two dumps, the first of them marked as the one to be found; why the process ended, if it did."""
    with fast_folder() as folder, pytest.MonkeyPatch.context() as patch:
        record_os(patch, recording, folder)
        try:
            for idx in (41, 90):
                recording.mark("try", idx)
                write(folder, idx, b"state %d " % idx * 400)
                recording.mark("done", idx)
        except Stopped as ended:
            return str(ended)
    return ""


def violations(recording: Recording) -> list[str]:
    """Crashes after which the dump is not the last that was reported, nor the one being made."""
    found = []
    rng = random.Random(2)
    with fast_folder() as root:
        for count in range(len(recording.ops) + 1):
            marks = [(op.name, op.fact) for op in recording.ops[:count] if op.kind == "mark"]
            done = [fact for kind, fact in marks if kind == "done"]
            allowed = {*done[-1:], *(fact for kind, fact in marks[-1:])} or {0}
            for number, names in enumerate(recording.crash_states(count, rng, 6)):
                folder = lay_out(names, root / f"{count}-{number}")
                try:
                    index = open_dump(folder, bytes, lambda: 0).read()[0][1] if "dump" in names else 0
                except Stopped as error:
                    found.append(f"after {count}: {error}")
                    continue
                if index not in (allowed if done else allowed | {0}):
                    found.append(f"after {count}: the dump of {index}")
    return found


def test_every_crash_leaves_the_old_dump_or_the_new_one() -> None:
    recording = Recording()
    assert not record(recording)
    assert not violations(recording)


def without_file_sync(path: Path, pieces: list[bytes], *, point: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordedOs, "fsync", lambda self, handle: None)
        durability.replace_durably(path, pieces, point=point)
    sync_folder(path.parent)


def without_folder_sync(path: Path, pieces: list[bytes], *, point: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durability, "sync_folder", lambda path: None)
        durability.replace_durably(path, pieces, point=point)


def in_place(path: Path, pieces: list[bytes], *, point: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "with_name", lambda path, name: path)
        patch.setattr(RecordedOs, "replace", lambda self, source, target: None)
        durability.replace_durably(path, pieces, point=point)


@pytest.mark.parametrize("mutant", [without_file_sync, without_folder_sync, in_place])
def test_the_crash_test_finds_a_dump_that_is_not_durable(
    mutant: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump_module, "replace_durably", mutant)
    recording = Recording()
    assert not record(recording)
    assert violations(recording)


@pytest.mark.parametrize("is_full", [False, True], ids=["EIO", "ENOSPC"])
def test_every_failing_call_ends_the_process_and_leaves_a_whole_dump(is_full: bool) -> None:
    """Acceptance test 10: success is never reported."""
    healthy = Recording()
    assert not record(healthy)
    for number in range(len(healthy.ops)):
        recording = Recording(fail_at=number, is_full=is_full)
        reason = record(recording)
        assert bool(reason) == recording.has_failed
        assert "mend the disk" in reason or not reason
        assert not violations(recording), number


@pytest.mark.parametrize("point", ["opened", "written", "synced", "renamed", "durable"])
def test_an_error_at_each_point_ends_the_process(folder: Path, point: str) -> None:
    def fail(name: str) -> None:
        if name == f"raft.dump.{point}":
            raise OSError(5, "Input/output error")

    write(folder, 41, b"old")
    dump = open_dump(folder, lambda: b"new", lambda: 0)
    failpoints.install(fail)
    try:
        with pytest.raises(Stopped, match="Input/output error"):
            dump.serialize((None, (b"last", 90, 3), (b"previous", 89, 2), ()), 89)
    finally:
        failpoints.install(None)
    assert dump.checkSerializing() == (NOT_SERIALIZING, None)
    assert dump.read()[2] == (b"new" if point in ("renamed", "durable") else b"old")


def test_a_state_that_cannot_be_encoded_ends_the_process(folder: Path) -> None:
    def freeze() -> bytes:
        raise ValueError("no")

    with pytest.raises(Stopped, match="cannot be encoded"):
        open_dump(folder, freeze, lambda: 0).serialize((None, (b"l", 9, 1), (b"p", 8, 1), ()), 8)
    assert not os.listdir(folder)


def test_a_state_of_sixteen_mebibytes_is_written_and_read_within_the_budget(folder: Path) -> None:
    """A quarter of the election timeout, 0.25 s, is for machine and dump together; ours is mostly the digest."""
    state = random.Random(0).randbytes(2**20) * 16
    write(folder, 41, state)
    assert open_dump(folder, bytes, lambda: 0).read()[2] == state
    assert b"".join(encode_dump(decode_dump((folder / "dump").read_bytes()))) == (folder / "dump").read_bytes()
