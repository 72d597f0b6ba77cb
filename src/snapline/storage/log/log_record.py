"""Names and file format of host logs. A log contains batches of external inputs that a host has accepted, as well as seals and marks.

Every file is a record (`storage/disk/record.py`): kind `LBAT` for batches, `LSEA` for seals and marks. Each record names its store and
path, so a file at the wrong path counts as damaged.

A batch contains a random nonce, so no two batches have the same bytes. So a writer that finds its own bytes in a file knows that it wrote
the file. In an encrypted store, each batch is encrypted under its own key, which is derived from the nonce. The encryption also binds the
batch to its log and number. Host, plan, start number, batch number and length are not encrypted. If refs are signed, batches are signed too
(version 2). The host owns the signing key, and the coordinator certifies the corresponding public key for the host's log. The bytes of a
seal or mark depend only on its path, so several processes may write the same seal or mark.

The names:

    log/<plan>/<host>-<start>/<n>        entry n = 1, 2, 3 …, which is a batch or a seal
    log/<plan>/<host>-<start>/sealing    mark: a process has begun to seal the log
    log/<plan>/<host>-<start>/sealed     mark: the log accepts no more batches
    log/deleted.<random>                 record of deleted batches in any log (`log_files.py`)

Host ids may contain dashes and dots, so the last dash in the directory's name ends the host id.
"""

import re

import msgspec
from msgspec.structs import asdict, replace

from snapline.errors import StoreError, UsageError
from snapline.ids import check_id
from snapline.storage.disk import store_files
from snapline.storage.disk.layout import EPOCH_MAX, LOG, NUMBER_PATTERN
from snapline.storage.disk.record import (
    RECORD_VERSION,
    Guard,
    canonical,
    check_place,
    damaged,
    digest_of,
    open_data,
    seal,
    unseal,
    version_of,
)
from snapline.storage.keys.ciphers import log_message
from snapline.storage.packs.checkpoint import JournalEntry

NUMBER_MAX = EPOCH_MAX
"""Largest number of a plan, host start or entry, which fits in a signed 64-bit integer."""

SEALING = "sealing"
SEALED = "sealed"
MARKS = (SEALING, SEALED)

_DIRECTORY = re.compile(rf"{LOG}/{NUMBER_PATTERN}/([A-Za-z0-9_.-]{{1,128}})-{NUMBER_PATTERN}")
_DELETIONS = re.compile(rf"{LOG}/deleted\.[0-9a-f]{{32}}")
_ENTRY = re.compile(r"[1-9][0-9]{0,18}")


class LogName(msgspec.Struct, frozen=True, order=True, gc=False):
    """Name of the log of one host process under one plan. `start` is the number of the host's start."""

    plan: int
    host: str
    start: int

    @property
    def directory(self) -> str:
        """Directory of the log's entries."""
        return f"{LOG}/{self.plan}/{self.host}-{self.start}"

    @property
    def writer(self) -> str:
        """Id under which the host process names its packs."""
        return f"{self.host}.{self.start}"

    def __str__(self) -> str:
        return f"the log of host {self.host!r}, start {self.start}, plan {self.plan}"


def check_log(log: LogName) -> LogName:
    """Return `log` if it is a valid log name. Raise UsageError otherwise."""
    check_id(log.host, "host")
    if not (1 <= log.plan <= NUMBER_MAX and 0 <= log.start <= NUMBER_MAX):
        raise UsageError(f"there is no log of plan {log.plan} and start {log.start}: plans count from 1, starts from 0")
    return log


def check_number(number: int) -> int:
    """Return `number` if it is a valid entry number. Raise UsageError otherwise."""
    if not 1 <= number <= NUMBER_MAX:
        raise UsageError(f"{number} is no number of an entry: they count from 1")
    return number


def entry_path(log: LogName, name: int | str) -> str:
    """Return the path of a log's entry or mark. `name` is the entry's number or the mark's name."""
    return f"{log.directory}/{name}"


def deletions_path(random: str) -> str:
    """Return the path of a deletion record. `random` must have 32 hexadecimal digits."""
    return f"{LOG}/deleted.{random}"


def is_deletions_path(path: str) -> bool:
    return _DELETIONS.fullmatch(path) is not None


def parse_directory(path: str) -> LogName | None:
    """Parse the path of a log's directory. Return None if the path is invalid."""
    match = _DIRECTORY.fullmatch(path)
    if match is None:
        return None
    log = LogName(int(match[1]), match[2], int(match[3]))
    return log if 1 <= log.plan <= NUMBER_MAX and log.start <= NUMBER_MAX else None


def parse_path(path: str) -> tuple[LogName, int | str] | None:
    """Parse the path of a log file into the log, and the entry's number or the mark's name. Return None if the path is invalid."""
    directory, _, name = path.rpartition("/")
    log = parse_directory(directory)
    if log is not None and name in MARKS:
        return log, name
    if log is None or _ENTRY.fullmatch(name) is None or int(name) > NUMBER_MAX:
        return None
    return log, int(name)


BATCH_BYTES_MAX = 2**26
"""Largest batch file: 64 MiB, or four messages of maximal length. The size is checked before writing and before reading."""

BATCH_KIND = b"LBAT"
SEAL_KIND = b"LSEA"

_PURPOSE = "snapline batch 1"
_SIGNED_PURPOSE = "snapline signed batch 1"
_SIGNED_VERSION = 2
_KIND = slice(8, 12)
"""Position of the kind in a record."""


class LoggedInput(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """An external message sent to an agent.

    Attributes:
        agent: receiver of the message.
        number: sequence number of the input. Each agent's inputs are numbered from 1 across all its owners and incarnations.
        client: sender of the message.
        key: the client's idempotency key.
        payload: message payload as encoded by `encode_message`.
        admitted_ns: wall-clock time at which the input was accepted, in nanoseconds since 1970, for display only.
    """

    agent: str
    number: int
    client: str
    key: str
    payload: bytes
    admitted_ns: int


EFFECT = "effect"
"""Kind of a journal entry that records an effect."""

BEGUN = "begun"
"""Suffix of an entry's kind in a host log: the effect is about to be executed. Journals never contain such entries."""


class LoggedEntry(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A finished journal entry of a durable turn, such as a step. When the turn is replayed, the recorded step does not run again.

    Attributes:
        agent: the agent that runs the turn.
        turn: number of the durable turn, counted from 1 over the agent's history.
        seed: 16 bytes that distinguish this turn from all other turns with the same number, in any history.
        place: index of the entry in the journal, from 0.
        prefix: 16-byte digest of all preceding journal entries.
        entry: the journal entry itself.
    """

    agent: str
    turn: int
    seed: bytes
    place: int
    prefix: bytes
    entry: JournalEntry


class CommitPart(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A part of a host's commit. A commit that does not fit into one batch has several parts, in consecutive batches (`commits.py`).

    Attributes:
        commit: number of the commit, counted from 1 for each log.
        part: index of the part, from 0.
        is_last: whether the commit has no further part.
        data: the part's bytes.
    """

    commit: int
    part: int
    is_last: bool
    data: bytes


class LogBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of a batch. `saved_entries`, `saved_commits` and `saved_keeps` contain `entries`, `commits` and `keeps_answers` in the form
    stored in the file, which omits empty lists and false."""

    inputs: list[LoggedInput] = []
    saved_entries: list[LoggedEntry] | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="entries")
    saved_commits: list[CommitPart] | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="commits")
    saved_keeps: bool | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="keeps_answers")

    @property
    def keeps_answers(self) -> bool:
        """True if the results of steps in this batch are kept when the batch is deleted."""
        return self.saved_keeps is True

    @property
    def entries(self) -> list[LoggedEntry]:
        """Journal entries of durable turns in this batch."""
        return self.saved_entries or []

    @property
    def commits(self) -> list[CommitPart]:
        """Parts of commits in this batch."""
        return self.saved_commits or []


class PreparedBatch(msgspec.Struct, frozen=True):
    """An encoded batch that is ready to be written. All attempts to write the batch write the same `data` at `path`."""

    log: LogName
    number: int
    path: str
    data: bytes


class BatchBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of a batch's record.

    Attributes:
        data: MessagePack encoding of the `LogBatch`, encrypted if there is a key.
        key: id of the key that encrypts `data`, or "" if `data` is not encrypted.
        nonce: 32 random hexadecimal digits.
        host, number, plan, start, store: store, log and number of the batch.
    """

    data: bytes
    host: str
    key: str
    nonce: str
    number: int
    plan: int
    start: int
    store: str

    @property
    def log(self) -> LogName:
        """Log to which the batch belongs."""
        return LogName(self.plan, self.host, self.start)

    def context(self) -> bytes:
        """Return the encryption context, which binds the data to the batch's place in the log."""
        return canonical.encode((_PURPOSE, self.store, self.plan, self.host, self.start, self.number, self.nonce))

    @property
    def path(self) -> str:
        """Path of the batch's file."""
        return entry_path(self.log, self.number)


class SignedBatchBody(BatchBody, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of a signed batch (version 2).

    Attributes:
        signer: public key that verifies the host's signatures.
        certificate: the coordinator's signature over the log's name and `signer`.
        signature: the host's signature over all other fields.
    """

    signer: bytes
    certificate: bytes
    signature: bytes = b""

    def message(self) -> bytes:
        """Return the bytes that the host's signature covers."""
        return canonical.encode((_SIGNED_PURPOSE, digest_of(canonical.encode(replace(self, signature=b"")))))


class SealBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of the record of a seal or mark. `entry` is the file's name: the seal's number as decimal digits, or the mark's name."""

    entry: str
    host: str
    plan: int
    start: int
    store: str

    @property
    def path(self) -> str:
        """Path of the seal's file."""
        return entry_path(LogName(self.plan, self.host, self.start), self.entry)


_batch_decoder = msgspec.msgpack.Decoder(BatchBody)
_signed_decoder = msgspec.msgpack.Decoder(SignedBatchBody)
_seal_decoder = msgspec.msgpack.Decoder(SealBody)
_content_decoder = msgspec.msgpack.Decoder(LogBatch)


def encode_batch(
    log: LogName,
    number: int,
    batch: LogBatch,
    *,
    store_id: str,
    nonce: str,
    guard: Guard | None,
    certificate: bytes = b"",
) -> PreparedBatch:
    """Encode a batch as a file. The function returns only after the batch's encryption key is durable.

    `certificate` is the log's certificate, which is required if batches are signed.

    Raises:
        UsageError: If an input or entry is invalid, or the batch is too large.
        StoreError: If the encryption key cannot be written.
    """
    path = entry_path(log, number)
    reason = _contradiction(batch)
    if reason:
        raise UsageError(f"{path} cannot be written: {reason}")
    body = BatchBody(canonical.encode(batch), log.host, "", nonce, number, log.plan, log.start, store_id)
    if guard is not None and guard.encrypts:
        cipher = guard.begin_pack(log.writer, nonce)
        body = replace(body, key=cipher.key_id, data=cipher.seal(0, body.context(), body.data))
    version = RECORD_VERSION
    if guard is not None and guard.requires_signatures:
        signed = SignedBatchBody(**asdict(body), signer=guard.log_key(), certificate=certificate)
        body, version = replace(signed, signature=guard.sign_batch(signed.message())), _SIGNED_VERSION
    data = seal(BATCH_KIND, canonical.encode(body), version=version)
    if len(data) > BATCH_BYTES_MAX:
        raise UsageError(f"{path} would have {len(data)} bytes, at most {BATCH_BYTES_MAX} are possible: make two of it")
    return PreparedBatch(log, number, path, data)


def encode_seal(log: LogName, entry: int | str, *, store_id: str) -> bytes:
    """Encode a seal or mark as a file. `name` is the seal's number or the mark's name."""
    return seal(SEAL_KIND, canonical.encode(SealBody(str(entry), log.host, log.plan, log.start, store_id)))


def is_batch(data: bytes) -> bool:
    """Return whether the beginning of `data` identifies a batch file."""
    return data[_KIND] == BATCH_KIND


def decode_file(data: bytes, *, path: str, store_id: str | None) -> BatchBody | SealBody:
    """Decode the log file at `path`, and make every check that needs no key. If `store_id` is None, the store's id is not checked.

    Raises:
        DamagedDataError: If the file is damaged, or belongs to another path or store.
        StoreError: If the file was written by a later version of Snapline.
    """
    body: BatchBody | SealBody
    if data[_KIND] == SEAL_KIND:
        raw = unseal(SEAL_KIND, data, path=path, epoch=None)
        with store_files.decoding(path):
            body = _seal_decoder.decode(raw)
    else:
        raw = unseal(BATCH_KIND, data, path=path, epoch=None, versions=(RECORD_VERSION, _SIGNED_VERSION))
        is_signed = version_of(data) == _SIGNED_VERSION
        with store_files.decoding(path):
            body = _signed_decoder.decode(raw) if is_signed else _batch_decoder.decode(raw)
    check_place(body, path, store_id)
    return body


def open_batch(body: BatchBody, guard: Guard | None, *, path: str) -> LogBatch:
    """Decrypt and decode the batch in a body that `decode_file` has checked.

    Raises:
        DamagedDataError: If the data cannot be decrypted, or its contents are invalid.
        UnsignedBatchError: If the batch lacks a signature that the guard requires.
        StoreError: If the batch is unencrypted although there is a key, or encrypted although there is none.
    """
    _check_signature(body, guard, path)
    context = body.context()
    data = open_data(body.data, guard, key=body.key, nonce=body.nonce, index=0, context=context, path=path)
    with store_files.decoding(path):
        batch = _content_decoder.decode(data)
    reason = _contradiction(batch)
    if reason:
        raise damaged(path, reason)
    return batch


class UnsignedBatchError(StoreError):
    """A batch lacks a valid signature by a host of the fleet. An unsigned batch does not count as damaged, so recovery does not fall back
    to an older epoch."""


def is_certificate(guard: Guard, store_id: str, log: LogName, public: bytes, certificate: bytes) -> bool:
    """Return whether `certificate` proves that the coordinator has certified the host's `public` key for this log."""
    return guard.verify(log_message(store_id, log.plan, log.host, log.start, public), certificate)


def _check_signature(body: BatchBody, guard: Guard | None, path: str) -> None:
    if guard is None or not guard.requires_signatures:
        return
    if not isinstance(body, SignedBatchBody):
        raise UnsignedBatchError(
            f"{path} is not signed, and there is a key to verify with: somebody without the key has put it there, or an earlier snapline; "
            "remove the file, and go on without its inputs: `snapline recovery restore ID --drop-inputs`"
        )
    is_ours = is_certificate(guard, body.store, body.log, body.signer, body.certificate)
    if not is_ours or not guard.verify_batch(body.signer, body.message(), body.signature):
        raise UnsignedBatchError(
            f"{path} was not signed by its host: somebody without the key has put it there; remove the file, and go on without its "
            "inputs: `snapline recovery restore ID --drop-inputs`"
        )


def _contradiction(batch: LogBatch) -> str:
    """Return why `batch` is invalid, or "" if it is valid. Batches are checked before writing and after reading."""
    numbered = [(logged.agent, logged.number, "an input") for logged in batch.inputs]
    numbered += [(logged.agent, logged.turn, "a durable turn") for logged in batch.entries]
    if any(part.commit < 1 or part.part < 0 for part in batch.commits):
        return "commits are numbered from 1, and their parts from 0"
    for agent, number, kind in numbered:
        if not 1 <= number <= NUMBER_MAX:
            return f"{number} is no number of {kind}: they count from 1"
        try:
            check_id(agent)
        except UsageError as error:
            return str(error)
    return ""
