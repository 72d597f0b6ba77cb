"""The files of host logs: batches of what a host has taken from outside, seals, and marks.

All are records (`storage/store/record.py`): kind `LBAT`, and `LSEA` for seals and marks. Each names its store and place, so a file in the wrong
place is damage.

A batch bears a random nonce: so two batches are never the same bytes, and a writer that finds its own bytes knows that they are its own. Where
the store is encrypted, the batch's contents are sealed under a key of their own, derived from the nonce as a pack's from its id, and
bound to its place; host, plan, start, number and length remain to be seen. Where refs are signed, batches are (version 2): by a key
that their host has made for itself, whose public half the coordinator has signed for this log (the certificate). The bytes of seals and marks
follow from their places: any
number of processes may write them.
"""

import msgspec
from msgspec.structs import asdict, replace

from snapline.errors import StoreError, UsageError
from snapline.ids import check_id
from snapline.storage.keys.signing import log_message
from snapline.storage.log.names import NUMBER_MAX, LogName, entry_path
from snapline.storage.packs.checkpoint import JournalEntry
from snapline.storage.store import files
from snapline.storage.store.damage import check_place, damaged
from snapline.storage.store.guard import Guard
from snapline.storage.store.guarded_data import open_data
from snapline.storage.store.record import RECORD_VERSION, canonical, digest_of, seal, unseal, version_of

BATCH_BYTES_MAX = 2**26
"""64 MiB, a whole file: four of the longest messages. Checked before writing, and before anything is read."""

BATCH_KIND = b"LBAT"
SEAL_KIND = b"LSEA"

_PURPOSE = "snapline batch 1"
_SIGNED_PURPOSE = "snapline signed batch 1"
_SIGNED_VERSION = 2
_KIND = slice(8, 12)
"""Position of a record's kind."""


class LoggedInput(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A message from outside to an agent.

    Attributes:
        agent: its receiver.
        number: counts the inputs of this agent, from 1, over all its owners and lives.
        client: its sender.
        key: the client's idempotency key.
        payload: the message, as `encode_message` gives it.
        admitted_ns: wall-clock time since 1970, for people.
    """

    agent: str
    number: int
    client: str
    key: str
    payload: bytes
    admitted_ns: int


EFFECT = "effect"
"""Kind of a journal's entry that is an effect."""

BEGUN = "begun"
"""Suffix of a host log entry for an effect that is about to be called. No journal has such entries."""


class LoggedEntry(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A finished entry of a durable turn's journal: what a repetition of that very turn need not do again.

    Attributes:
        agent: whose turn it is.
        turn: counts the durable turns of this agent along its history, from 1.
        seed: of the turn: which one it was, of all that had this number in some history; 16 bytes.
        place: in the journal, from 0.
        prefix: digest of all entries before it, 16 bytes.
        entry: the entry itself.
    """

    agent: str
    turn: int
    seed: bytes
    place: int
    prefix: bytes
    entry: JournalEntry


class LogBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of a log. `saved_entries`: `entries`, under their name in the file: absent if there are none."""

    inputs: list[LoggedInput] = []
    saved_entries: list[LoggedEntry] | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="entries")

    @property
    def entries(self) -> list[LoggedEntry]:
        """Entries of journals of durable turns."""
        return self.saved_entries or []


class PreparedBatch(msgspec.Struct, frozen=True):
    """A batch in its final form for the store: `data` at `path`, however often it is tried."""

    log: LogName
    number: int
    path: str
    data: bytes


class BatchBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of a batch's record.

    Attributes:
        data: MessagePack of the `LogBatch`; encrypted if there is a key.
        key: id of the key that `data` is encrypted under; empty: it is not.
        nonce: 32 random hexadecimal digits.
        host, number, plan, start, store: where it belongs.
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
        """Log of the batch."""
        return LogName(self.plan, self.host, self.start)

    def context(self) -> bytes:
        """Return what encryption binds the data to."""
        return canonical.encode((_PURPOSE, self.store, self.plan, self.host, self.start, self.number, self.nonce))

    @property
    def path(self) -> str:
        """Path of the batch."""
        return entry_path(self.log, self.number)


class SignedBatchBody(BatchBody, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of a signed batch: version 2.

    Attributes:
        signer: public half of the host's key.
        certificate: signature of the coordinator over log and `signer`.
        signature: of the host, over all of the body but this.
    """

    signer: bytes
    certificate: bytes
    signature: bytes = b""

    def message(self) -> bytes:
        """Return what the host signs."""
        return canonical.encode((_SIGNED_PURPOSE, digest_of(canonical.encode(replace(self, signature=b"")))))


class SealBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of the record of a seal, or of a mark; `entry` is the file's name: the seal's number in decimal, or the mark."""

    entry: str
    host: str
    plan: int
    start: int
    store: str

    @property
    def path(self) -> str:
        """Path of the seal."""
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
    """Return the batch's file. The key that it needs is durable when this returns. `certificate`: of the log, where batches are signed.

    Raises:
        UsageError: an input cannot be, or it is too large.
        StoreError: the key could not be written.
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
    if guard is not None and guard.verifies:
        signed = SignedBatchBody(**asdict(body), signer=guard.log_key(), certificate=certificate)
        body, version = replace(signed, signature=guard.sign_batch(signed.message())), _SIGNED_VERSION
    data = seal(BATCH_KIND, canonical.encode(body), version=version)
    if len(data) > BATCH_BYTES_MAX:
        raise UsageError(f"{path} would have {len(data)} bytes, at most {BATCH_BYTES_MAX} are possible: make two of it")
    return PreparedBatch(log, number, path, data)


def encode_seal(log: LogName, entry: int | str, *, store_id: str) -> bytes:
    """Return the file of a seal in the place of this entry, or of this mark."""
    return seal(SEAL_KIND, canonical.encode(SealBody(str(entry), log.host, log.plan, log.start, store_id)))


def is_batch(data: bytes) -> bool:
    """Return whether this is the beginning of a batch's file, as far as it shows."""
    return data[_KIND] == BATCH_KIND


def decode_file(data: bytes, *, path: str, store_id: str | None) -> BatchBody | SealBody:
    """Return the body of the file at `path`, after every check that needs no key; `store_id` None skips that comparison.

    Raises:
        DamagedDataError: damaged, or of another place or store.
        StoreError: of a later version.
    """
    body: BatchBody | SealBody
    if data[_KIND] == SEAL_KIND:
        raw = unseal(SEAL_KIND, data, path=path, epoch=None)
        with files.decoding(path):
            body = _seal_decoder.decode(raw)
    else:
        raw = unseal(BATCH_KIND, data, path=path, epoch=None, versions=(RECORD_VERSION, _SIGNED_VERSION))
        is_signed = version_of(data) == _SIGNED_VERSION
        with files.decoding(path):
            body = _signed_decoder.decode(raw) if is_signed else _batch_decoder.decode(raw)
    check_place(body, path, store_id)
    return body


def open_batch(body: BatchBody, guard: Guard | None, *, path: str) -> LogBatch:
    """Return the batch in a body that was checked.

    Raises:
        DamagedDataError: it does not open under its key, or what is inside cannot be.
        UnsignedBatchError: it is not signed as the guard demands.
        StoreError: it is not encrypted, and there is a key; or the other way round.
    """
    _check_signature(body, guard, path)
    context = body.context()
    data = open_data(body.data, guard, key=body.key, nonce=body.nonce, index=0, context=context, path=path)
    with files.decoding(path):
        batch = _content_decoder.decode(data)
    reason = _contradiction(batch)
    if reason:
        raise damaged(path, reason)
    return batch


class UnsignedBatchError(StoreError):
    """A batch that no host of the fleet has signed: it is not damage, and no reason to go back to an older epoch."""


def is_certificate(guard: Guard, store_id: str, log: LogName, public: bytes, certificate: bytes) -> bool:
    """Return whether the owner of the key has signed that this host may sign the batches of this log."""
    return guard.verify(log_message(store_id, log.plan, log.host, log.start, public), certificate)


def _check_signature(body: BatchBody, guard: Guard | None, path: str) -> None:
    if guard is None or not guard.verifies:
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
    """Return what is impossible about `batch`; empty if nothing is. Asked before writing and after reading."""
    numbered = [(each.agent, each.number, "an input") for each in batch.inputs]
    numbered += [(each.agent, each.turn, "a durable turn") for each in batch.entries]
    for agent, number, what in numbered:
        if not 1 <= number <= NUMBER_MAX:
            return f"{number} is no number of {what}: they count from 1"
        try:
            check_id(agent)
        except UsageError as error:
            return str(error)
    return ""
