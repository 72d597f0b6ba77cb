"""Answer files and recorded answers in a store: what is written is read, also with keys, and nothing that is false or torn is believed."""

import contextlib

import msgspec
import pytest
from tests.storage.log.logging_hosts import LOG, OTHER
from tests.storage.log.test_log_attacks import BOTH, GUARDED, HOST, SIGNED, reopen
from tests.storage.making import seeded_bytes
from tests.storage.protecting import NEW, OLD, content, put_file
from tests.storage.simulated_disk import SimulatedCrashError, SimulatedDisk

from snapline.errors import DamagedDataError, StoreError, StoreKeyError, UsageError
from snapline.storage.disk.record import canonical, seal
from snapline.storage.keys.key_files import Keys
from snapline.storage.log import answer_files
from snapline.storage.log.answer_files import (
    ANSWERS_KIND,
    RECORDED,
    KeptBatch,
    RecordedAnswer,
    RecordedAnswers,
    decode_export,
    encode_export,
    unique_batches,
)
from snapline.storage.log.log_record import LoggedEntry
from snapline.storage.packs.checkpoint import JournalEntry
from snapline.storage.store.store import Store

ANSWER = RecordedAnswer("a", "step", "ask", b"12345678", 1, "done", b"\xa3yes")
ANSWERS = RecordedAnswers([ANSWER], is_complete=True)


def batch(number: int, result: bytes = b"\x01") -> KeptBatch:
    entry = LoggedEntry("a", number, b"s" * 16, 0, b"", JournalEntry("step", "ask", b"", "done", result))
    return KeptBatch(LOG, number, [entry])


def make_store(keys: Keys | None = None, seed: int = 0) -> tuple[SimulatedDisk, Store]:
    disk = SimulatedDisk()
    return disk, Store.create("simulated", disk=disk, keys=keys, random_bytes=seeded_bytes(seed))


@pytest.mark.parametrize("keys", [None, OLD, SIGNED, BOTH], ids=["plain", "encrypted", "signed", "both"])
def test_what_is_kept_and_recorded_is_read(keys: Keys | None) -> None:
    disk, store = make_store(keys)
    assert store.recorded_answers() is None and store.answer_files() == []
    store.keep_answers([batch(1), batch(2)], plan=3)
    store.keep_answers([batch(2), KeptBatch(OTHER, 1, [])], plan=4)
    store.keep_answers([], plan=4)
    store.record_answers(ANSWERS)
    read = reopen(disk, keys)
    files = read.answer_files()
    assert [path.partition(".")[0] for path in files] == ["answers/3", "answers/4"]
    assert [(x.log, x.number) for x in unique_batches(map(read.read_answers, files))] == [
        *((LOG, 1), (LOG, 2), (OTHER, 1))
    ]
    assert read.recorded_answers() == ANSWERS
    assert read.verify().is_whole
    with pytest.raises(UsageError, match="has recorded answers already"):
        store.record_answers(ANSWERS)
    assert store.delete_unneeded_keys() == [], "each key is in use"
    assert store.delete_answers([files[0], RECORDED, "refs/epochs/1"]) == [files[0]]
    assert read.recorded_answers() == ANSWERS and len(read.answer_files()) == 1


def test_a_process_without_the_private_key_reads_signed_answers_and_writes_none() -> None:
    disk, store = make_store(SIGNED)
    store.record_answers(ANSWERS)
    host = reopen(disk, HOST)
    assert host.recorded_answers() == ANSWERS
    with pytest.raises(UsageError, match="private key"):
        host.keep_answers([batch(1)], plan=1)


def test_large_answers_go_into_several_files() -> None:
    _, store = make_store()
    store.keep_answers([batch(number, b"x" * 3_000_000) for number in range(1, 8)], plan=1)
    files = store.answer_files()
    assert len(files) == 4 and sum(len(store.read_answers(path)) for path in files) == 7


def test_more_than_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_files, "FILE_BYTES_MAX", 1000)
    _, store = make_store()
    many = RecordedAnswers([ANSWER] * 100)
    for write in (lambda: store.record_answers(many), lambda: encode_export(many)):
        with pytest.raises(UsageError, match="take those since a later snapshot"):
            write()
    assert store.recorded_answers() is None


@GUARDED
def test_a_false_answer_of_somebody_without_the_key_is_not_believed(keys: Keys) -> None:
    disk, store = make_store(keys)
    store.record_answers(ANSWERS)
    twin, other = make_store(NEW if keys is OLD else None, seed=1)
    other.record_answers(RecordedAnswers([msgspec.structs.replace(ANSWER, result=b"\xa2no")]))
    body = msgspec.msgpack.decode(content(twin, RECORDED)[24:-32])
    mine = msgspec.msgpack.decode(content(disk, RECORDED)[24:-32])
    for forged in (body | {"store": store.store_id}, mine | {"data": body["data"]}, mine | {"tag": b""}):
        put_file(disk, RECORDED, seal(ANSWERS_KIND, canonical.encode(forged)))
        with pytest.raises((StoreError, StoreKeyError, DamagedDataError)):
            reopen(disk, keys).recorded_answers()
        assert [finding.path for finding in reopen(disk, keys).verify().findings] == [RECORDED]


def test_damage_and_files_under_other_names_are_found() -> None:
    disk, store = make_store()
    store.keep_answers([batch(1)], plan=1)
    (path,) = store.answer_files()
    data = content(disk, path)
    put_file(disk, path, data[:-40] + b"\0" + data[-39:])
    put_file(disk, f"answers/2.{'0' * 32}", data)
    put_file(disk, "answers/other", data)
    findings = [finding.path for finding in reopen(disk, None).verify().findings]
    assert sorted(findings) == sorted([path, f"answers/2.{'0' * 32}", "answers/other"])
    with pytest.raises(DamagedDataError):
        store.read_answers(path)


def test_an_export_is_read_back_and_a_file_of_a_store_is_no_export() -> None:
    disk, store = make_store()
    assert decode_export(encode_export(ANSWERS), "file") == ANSWERS
    store.record_answers(ANSWERS)
    with pytest.raises(DamagedDataError, match="is no export"):
        decode_export(content(disk, RECORDED), "file")
    with pytest.raises(DamagedDataError, match="begin with SNAPLINE"):
        decode_export(b"x" * 100, "file")


@pytest.mark.parametrize("keys", [None, OLD], ids=["plain", "encrypted"])
def test_after_a_crash_a_file_is_there_as_a_whole_or_not_at_all(keys: Keys | None) -> None:
    moment, is_over = 0, False
    while not is_over:
        moment += 1
        disk, store = make_store(keys)
        count, is_promised = 0, False

        def on_call(name: str, moment: int = moment) -> None:
            nonlocal count
            count += 1
            if count == moment:
                raise SimulatedCrashError

        disk.on_call = on_call
        with contextlib.suppress(SimulatedCrashError):
            store.keep_answers([batch(1)], plan=1)
            store.record_answers(ANSWERS)
            is_promised = True
        is_over = count < moment
        disk.on_call = lambda name: None
        disk.nodes = dict(disk.durable)
        read = reopen(disk, keys)
        assert [read.read_answers(path) for path in read.answer_files()] in ([], [[batch(1)]])
        assert read.recorded_answers() in (None, ANSWERS)
        if is_promised:
            assert read.answer_files() and read.recorded_answers() == ANSWERS
        assert read.verify().is_whole
    assert moment > 10
