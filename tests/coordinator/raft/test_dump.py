"""The dump: whole or not there, verified before it is used, refused if it brings nothing new (H5; G8, G11)."""

import base64
import hashlib
import inspect
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pysyncobj.serializer import Serializer  # type: ignore[import-untyped]
from tests.coordinator.raft.storage_scripts import (
    SUCCESS,
    Stopped,
    fast_folder,
    open_dump,
    transmit,
)

from snapline.coordinator.raft import dump as dump_module
from snapline.coordinator.raft.dump import DumpFile, decode_dump
from snapline.errors import LogError, UsageError

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


# ---- errors -----------------------------------------------------------------------------------------------------------


def test_a_state_that_cannot_be_encoded_ends_the_process(folder: Path) -> None:
    def freeze() -> bytes:
        raise ValueError("no")

    with pytest.raises(Stopped, match="cannot be encoded"):
        open_dump(folder, freeze, lambda: 0).serialize((None, (b"l", 9, 1), (b"p", 8, 1), ()), 8)
    assert not os.listdir(folder)
