"""Answers of the outside world that outlive the host logs, and answers on which a fleet runs.

A step's result is in a host log only until every kept epoch covers its turn (`log_files.py`). In a fleet with `keep_answers`, the results,
and the inputs, are copied into an answer file before their batch is deleted. From answer files and logs, the answers since any snapshot can be collected
(`agent_runtime/snapshots/answer_collection.py`). A fork or a test may then run on these *recorded answers* instead of asking again.

    answers/<plan>.<random>     answers of deleted batches; `plan` is the plan under which they were copied
    answers/recorded            the answers on which the fleet of this store runs, if it does

Each file is one record of kind `ANSW`, encrypted as the rest of the store is. In a signed or encrypted store, it is authenticated with a
key, because a false answer would mislead an agent. Answer files are written before the deletion that they replace, and a batch may be in
several files, for example because a leader has died between the two. Readers take each batch once.

The file of an export has the same format, without encryption and without a store.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from snapline.errors import StoreError, UsageError
from snapline.storage.disk import store_files
from snapline.storage.disk.layout import ANSWERS, NUMBER_PATTERN
from snapline.storage.disk.local_disk import Disk, make_durable_directory, write_once
from snapline.storage.disk.record import Guard, authenticates, canonical, check_place, damaged, open_data, seal, unseal
from snapline.storage.log.log_record import EFFECT, LoggedEntry, LoggedInput, LogName

ANSWERS_KIND = b"ANSW"

RECORDED = f"{ANSWERS}/recorded"
"""Path of the answers on which the store's fleet runs."""

FILE_BYTES_MAX = 2**28
"""Largest answer file (256 MiB), checked before writing and before reading. Hosts keep the recorded answers in memory."""

PART_BYTES = 2**23
"""Size in bytes (8 MiB) above which the answers of one sweep go into another file, unless a single batch is larger."""

WRITER = "answers"
"""Writer id under which the encryption keys of answer files are stored."""

_PURPOSE = "snapline answers 1"
_FILE = re.compile(rf"{ANSWERS}/{NUMBER_PATTERN}\.[0-9a-f]{{32}}")
_ID_BYTES = 16


KEPT_KINDS = ("step", EFFECT, "approval")
"""Kinds of journal entries that are answers of the outside world."""


class KeptBatch(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """The answers in one batch of a host log, and the inputs, which a fork may get too. `log` and `number` identify the batch."""

    log: LogName
    number: int
    entries: list[LoggedEntry]
    inputs: list[LoggedInput] = []


class RecordedAnswer(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """An answer that a fleet may take instead of asking again.

    Attributes:
        agent: the agent that asked.
        kind, name, digest: the request as in `JournalEntry`: a step, an effect or an approval.
        occurrence: how often the agent had made this request then, counted from 1 since the snapshot at which the answers begin.
        outcome, result, sender: the answer as in `JournalEntry`.
    """

    agent: str
    kind: str
    name: str
    digest: bytes
    occurrence: int
    outcome: str
    result: bytes
    sender: str = ""


class RecordedAnswers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answers on which a fleet runs.

    Attributes:
        answers: all answers, sorted.
        is_complete: whether requests without an answer fail, instead of being made.
        asks_people: whether approvals are asked anew, because the fleet may act outside.
    """

    answers: list[RecordedAnswer]
    is_complete: bool = False
    asks_people: bool = False


class _AnswerFile(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of an answer file. `data` is the MessagePack encoding of a list of `KeptBatch` or of `RecordedAnswers`, encrypted if `key` is
    set."""

    data: bytes
    key: str
    nonce: str
    path: str
    store: str
    tag: bytes = b""

    def context(self) -> bytes:
        """Return the encryption context, which binds the data to the file."""
        return canonical.encode((_PURPOSE, self.store, self.path, self.nonce))

    def message(self) -> bytes:
        """Return the bytes that the tag authenticates."""
        return canonical.encode((_PURPOSE, msgspec.structs.replace(self, tag=b"")))


_decoder = msgspec.msgpack.Decoder(_AnswerFile)
_kept_decoder = msgspec.msgpack.Decoder(list[KeptBatch])
_recorded_decoder = msgspec.msgpack.Decoder(RecordedAnswers)


class AnswerFileReader:
    """Reader of a store's answer files. Threads may share a reader."""

    def __init__(self, disk: Disk, store_id: str, *, guard: Guard | None) -> None:
        self._disk = disk
        self._store_id = store_id
        self._guard = guard

    def files(self) -> list[str]:
        """Return the paths of the files with answers of deleted batches."""
        entries = store_files.listed(self._disk, ANSWERS)
        paths = [f"{ANSWERS}/{entry.name}" for entry in entries if not entry.is_directory]
        return sorted([path for path in paths if is_answer_file(path)])

    def read(self, path: str) -> list[KeptBatch]:
        """Read one of these files. Raise DamagedDataError or StoreError."""
        data = _open(_read(self._disk, path, self._store_id), self._guard)
        with store_files.decoding(path):
            return _kept_decoder.decode(data)

    def recorded(self) -> RecordedAnswers | None:
        """Return the answers on which the fleet runs, or None if it asks for all itself. Raise DamagedDataError or StoreError."""
        with store_files.reading(self._disk, RECORDED):
            if not store_files.exists(self._disk, RECORDED):
                return None
        data = _open(_read(self._disk, RECORDED, self._store_id), self._guard)
        with store_files.decoding(RECORDED):
            return _recorded_decoder.decode(data)


class AnswerFileWriter:
    """Writer of a store's answer files. Threads may share a writer."""

    def __init__(self, disk: Disk, store_id: str, *, guard: Guard | None, random_bytes: Callable[[int], bytes]) -> None:
        self._disk = disk
        self._store_id = store_id
        self._guard = guard
        self._random_bytes = random_bytes

    def keep(self, batches: Iterable[KeptBatch], *, plan: int) -> None:
        """Write the answers of batches durably, so that the batches may be deleted. Raise StoreError."""
        for part in _parts(batches):
            path = f"{ANSWERS}/{plan}.{self._random()}"
            self._write(path, canonical.encode(part), temporary_name=f"log-{plan}-{self._random()}")

    def record(self, answers: RecordedAnswers) -> None:
        """Write the answers on which the fleet of this store will run.

        Raises:
            UsageError: If the answers are too large, or the fleet has some already.
            StoreError: If the disk failed.
        """
        self._write(RECORDED, canonical.encode(answers), temporary_name=f"0-{self._random()}")

    def delete(self, paths: Collection[str]) -> list[str]:
        """Delete files with answers of deleted batches, and return the removed paths."""
        with store_files.writing(self._disk, "the deletion of answers"):
            return store_files.unlink(self._disk, [path for path in paths if is_answer_file(path)])

    def _write(self, path: str, data: bytes, *, temporary_name: str) -> None:
        body = _AnswerFile(data, "", self._random(), path, self._store_id)
        with store_files.writing(self._disk, path):
            if self._guard is not None and self._guard.encrypts:
                cipher = self._guard.begin_pack(WRITER, body.nonce)
                body = msgspec.structs.replace(body, data=cipher.seal(0, body.context(), data), key=cipher.key_id)
            if self._guard is not None and authenticates(self._guard):
                body = msgspec.structs.replace(body, tag=self._guard.authenticate(body.message()))
            make_durable_directory(self._disk, ANSWERS)
            try:
                write_once(self._disk, path, (_encode(body),), temporary_name=temporary_name, point="store.answers")
            except FileExistsError:
                reason = f"the store {self._disk.location} has recorded answers already: use another one"
                raise UsageError(reason) from None

    def _random(self) -> str:
        return self._random_bytes(_ID_BYTES).hex()


def encode_export(answers: RecordedAnswers) -> bytes:
    """Encode answers as the file of an export. Raise UsageError if there are too many."""
    return _encode(_AnswerFile(canonical.encode(answers), "", "", "", ""))


def read_export(file: Path) -> list[RecordedAnswer]:
    """Read the answers in the file of an export. Raise UsageError if it cannot be read, DamagedDataError if it is damaged, or StoreError."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}") from error
    return decode_export(data, str(file)).answers


def decode_export(data: bytes, path: str) -> RecordedAnswers:
    """Decode the file of an export. `path` is the path in error messages. Raise DamagedDataError or StoreError."""
    body = unseal(ANSWERS_KIND, data, path=path, epoch=None)
    with store_files.decoding(path):
        found = _decoder.decode(body)
        if found.store:
            raise damaged(path, f"it belongs to the store {found.store}, and is no export of `snapline answers export`")
        return _recorded_decoder.decode(found.data)


def is_answer_file(path: str) -> bool:
    """Return whether this is the path of a file with answers of deleted batches."""
    return _FILE.fullmatch(path) is not None


def keys_of_answers(disk: Disk, store_id: str) -> set[str]:
    """Return the ids of the keys with which the store's answer files are encrypted. Raise DamagedDataError or StoreError."""
    reader = AnswerFileReader(disk, store_id, guard=None)
    paths = [*reader.files(), *([RECORDED] if store_files.exists(disk, RECORDED) else [])]
    return {_read(disk, path, store_id).key for path in paths} - {""}


def check_answer_file(disk: Disk, path: str, *, store_id: str | None, guard: Guard | None) -> None:
    """Read and check an answer file. Raise DamagedDataError or StoreError."""
    data = _open(_read(disk, path, store_id), guard)
    with store_files.decoding(path):
        (_recorded_decoder if path == RECORDED else _kept_decoder).decode(data)


def unique_batches(files: Iterable[list[KeptBatch]]) -> Iterator[KeptBatch]:
    """Yield each batch of these files once."""
    seen: set[tuple[LogName, int]] = set()
    for batches in files:
        for batch in batches:
            if (batch.log, batch.number) not in seen:
                seen.add((batch.log, batch.number))
                yield batch


def _parts(batches: Iterable[KeptBatch]) -> Iterator[list[KeptBatch]]:
    part: list[KeptBatch] = []
    size_bytes = 0
    for batch in batches:
        length = sum([len(entry.entry.result) for entry in batch.entries]) + sum([len(x.payload) for x in batch.inputs])
        if part and size_bytes + length > PART_BYTES:
            yield part
            part, size_bytes = [], 0
        part.append(batch)
        size_bytes += length
    if part:
        yield part


def _encode(body: _AnswerFile) -> bytes:
    data = seal(ANSWERS_KIND, canonical.encode(body))
    if len(data) > FILE_BYTES_MAX:
        raise UsageError(
            f"the answers have {len(data):,} bytes, the limit is {FILE_BYTES_MAX:,}: take those since a later snapshot"
        )
    return data


def _read(disk: Disk, path: str, store_id: str | None) -> _AnswerFile:
    data = store_files.read_file(disk, path, epoch=None, size_bytes_max=FILE_BYTES_MAX)
    body = unseal(ANSWERS_KIND, data, path=path, epoch=None)
    with store_files.decoding(path):
        found = _decoder.decode(body)
    check_place(found, path, store_id)
    return found


def _open(body: _AnswerFile, guard: Guard | None) -> bytes:
    if guard is not None and authenticates(guard) and not guard.is_authentic(body.message(), body.tag):
        raise StoreError(f"{body.path} was not written by somebody with the key: remove it")
    return open_data(
        *(body.data, guard), key=body.key, nonce=body.nonce, index=0, context=body.context(), path=body.path
    )
