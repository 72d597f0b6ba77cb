"""The dump of one replica: a file that contains the whole state and replaces the log entries that it covers.

A dump is what Raft calls a snapshot (Ongaro and Ousterhout, 2014, section 7). `DumpFile` has the same methods as pysyncobj's `Serializer`,
which it replaces, and adds these properties (H5 of the Raft design; G8, G11):

- *Durable, then reported.* The file is synced before the rename, and its folder after the rename. SUCCESS is reported only after both
  syncs, because the library then trims its log. The original `Serializer` does not sync to disk.
- *Verified before use.* A digest covers every byte. This replica's dump is verified whenever it is read, even before it is sent. If the
  dump is damaged, the process ends, whereas the original would start an empty replica. A dump that the leader sends is collected in memory.
  A received dump replaces this replica's file only if it is complete, belongs to the same cluster, and is newer than the applied entries.
  Any other received dump is ignored, and the leader sends it again.
- *No pickle, no fork.* Dumps are not made in a child process, because the parent would notice the rename one tick late, when its log has
  already changed.

The process ends on any disk error, and on any error of the function that encodes the state (H3).

Journal and dump differ if the process dies after one of them has changed and before the other is adapted. A difference between journal and
dump is harmless, because a dump is durable before the log is trimmed, so one of them contains every entry. On loading its files, the
replica compares the dump with the journal (H6, in node.py).

The file, version 1
-------------------
======  ==========================================================================================
14      `snapline dump` and a line feed
2       version, little-endian
4       length of the header, little-endian
…       header, JSON: `cluster`, `node` (who wrote this file), `last` and `previous` (the two last
        log entries the state contains, each `[index, term, command in base64]`), `state_bytes`
…       the state
32      SHA-256 of everything before
======  ==========================================================================================

In all versions, the first sixteen and the last thirty-two bytes have this meaning.
"""

import logging
from collections.abc import Callable, Hashable
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from pysyncobj.config import SERIALIZER_STATE  # type: ignore[import-untyped]  # has no stubs

from snapline.coordinator.raft.durability import fail_stop, replace_durably
from snapline.coordinator.raft.journal import ADVICE, Entry
from snapline.coordinator.raft.messages import NUMBER_MAX
from snapline.errors import LogError, UsageError

DUMP_BYTES_MAX = 64 * 2**20
"""Largest size, in bytes, of a dump accepted from a leader: four times the largest state, and no more than an outbox can hold."""

_MAGIC = b"snapline dump\n"
_VERSION = 1
_PREFIX_BYTES = len(_MAGIC) + 2
_DIGEST_BYTES = 32
_SHORTEST = _PREFIX_BYTES + 4 + _DIGEST_BYTES

_log = logging.getLogger(__name__)


class _DumpEntry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    idx: int
    term: int
    command: bytes


class _DumpHeader(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    cluster: str
    node: str
    last: _DumpEntry
    previous: _DumpEntry
    state_bytes: int


class Dump(msgspec.Struct, frozen=True, gc=False):
    """Content of a dump file."""

    cluster: str
    node: str
    last: Entry
    """The last log entry that `state` contains."""
    previous: Entry
    """The log entry before `last`. The library's log begins with these two entries."""
    state: bytes


class DumpFile:
    """The replica's dump, and dumps that are being sent to or received from other replicas. Only the tick thread may use this object.

    Args:
        transmissionBatchSize: size, in bytes, of the pieces that are sent to a follower.
        tryUseFork: must be false, because this class never forks.
        serializer: function that returns the encoded state. An exception raised by `serializer` ends the process.
        deserializer: ignored, because `read` returns the state instead.
        serializeChecker: must be None, because a dump is complete when `serialize` returns.
        cluster, node: cluster and replica that own the dump. A dump of another owner is refused.
        applied: function that returns the index of the last applied entry. A received dump that ends at or before that entry is refused.
        term: function that returns the current term. A received dump must not have a later term.
        fail: function that is called with an error message after any failure, and must not return.
    """

    def __init__(
        self,
        fileName: str,  # names given by pysyncobj
        transmissionBatchSize: int,
        tryUseFork: bool,
        serializer: Callable[[], bytes],
        deserializer: object,
        serializeChecker: None,
        *,
        cluster: str,
        node: str,
        applied: Callable[[], int],
        term: Callable[[], int] = lambda: NUMBER_MAX,
        fail: Callable[[str], NoReturn] = fail_stop,
    ) -> None:
        if not fileName or serializer is None or serializeChecker is not None or tryUseFork:
            raise UsageError(
                "a dump needs a file name and a serializer, no fork and no checker: see raft_configuration"
            )
        self._path = Path(fileName)
        self._piece_bytes = transmissionBatchSize
        self._state_of = serializer
        self._cluster = cluster
        self._node = node
        self._applied = applied
        self._term = term
        self._fail = fail
        self._finished: int | None = None
        """Id of a dump that is complete but has not been reported yet; None if there is none."""
        self._outgoing: dict[Hashable, tuple[bytes, int]] = {}
        """Follower → (bytes of the dump file, shared by all followers, number of bytes already sent)."""
        self._incoming: list[bytes] | None = None
        """Pieces of the dump that is being received; None if no dump is being received."""
        self._incoming_bytes = 0

    # ---- making -----------------------------------------------------------------------------------------------------

    def serialize(self, data: tuple[Any, Any, Any, Any], id: int) -> None:
        """Write a dump of the current state. `checkSerializing` then reports the dump's `id`.

        Args:
            data: (unused, last applied entry, entry before it, nodes). Only the two entries are used.
        """
        if self._finished is not None:
            return
        try:
            state = self._state_of()
        except Exception as error:
            self._fail(f"the state cannot be encoded for a dump ({error!r}): report this")
        self._replace(Dump(self._cluster, self._node, _entry(data[1]), _entry(data[2]), state))
        self._finished = id

    def checkSerializing(self) -> tuple[int, int | None]:
        """Return SUCCESS and the dump's id once after each dump has become durable. The library trims its log after SUCCESS."""
        if self._finished is None:
            return SERIALIZER_STATE.NOT_SERIALIZING, None
        finished, self._finished = self._finished, None
        self._outgoing.clear()  # older dumps end before the trimmed log begins, so followers must receive the new dump
        return SERIALIZER_STATE.SUCCESS, finished

    def _replace(self, dump: Dump) -> None:
        try:
            replace_durably(self._path, encode_dump(dump), point="raft.dump")
        except Exception as error:
            self._fail(f"{self._path} cannot be written ({error}): mend the disk and start again")

    # ---- loading ----------------------------------------------------------------------------------------------------

    def read(self) -> tuple[Entry, Entry, bytes]:
        """Return the last entry, the entry before it, and the state.

        End the process if the file is missing, damaged or from another replica.
        """
        dump = self._decoded(self._read_file())
        return dump.last, dump.previous, dump.state

    def deserialize(self) -> tuple[None, Entry, Entry, tuple[()]]:
        """Return the last two log entries for the library. The returned attributes and nodes are empty, because the library must not
        install the state."""
        last, previous, _ = self.read()
        return None, last, previous, ()

    def _read_file(self) -> bytes:
        try:
            return self._path.read_bytes()
        except OSError as error:
            self._fail(f"{self._path} cannot be read ({error}): mend the disk, or {ADVICE}")

    def _decoded(self, data: bytes) -> Dump:
        try:
            dump = decode_dump(data)
        except LogError as error:
            self._fail(f"{self._path} is not to be trusted ({error}): {ADVICE}")
        if (dump.cluster, dump.node) != (self._cluster, self._node):
            self._fail(
                f"{self._path} is of node {dump.node} of cluster {dump.cluster}, not of {self._node} of {self._cluster}:"
                " start the coordinator with its own data directory"
            )
        return dump

    # ---- sending ----------------------------------------------------------------------------------------------------

    def getTransmissionData(self, transmissionID: Hashable) -> tuple[bytes, bool, bool] | None:
        """Return (next piece of the dump, whether it is the first, whether it is the last) for a follower. The last piece is always empty.
        Return None if no dump can be sent now."""
        if self._finished is not None:
            return None
        transfer = self._outgoing.get(transmissionID)
        if transfer is None:
            if not self._path.exists():
                return None
            data, sent = self._outgoing_bytes(), 0
        else:
            data, sent = transfer
        piece = data[sent : sent + self._piece_bytes]
        if piece:
            self._outgoing[transmissionID] = (data, sent + len(piece))
        else:
            del self._outgoing[transmissionID]
        return piece, sent == 0, not piece

    def cancelTransmisstion(self, id: Hashable) -> None:
        """Stop the transfer to a follower whose connection was lost. When the follower reconnects, it receives the dump from the
        beginning."""
        self._outgoing.pop(id, None)

    def _outgoing_bytes(self) -> bytes:
        for data, _ in self._outgoing.values():
            return data
        data = self._read_file()
        self._decoded(data)
        return data

    # ---- receiving --------------------------------------------------------------------------------------------------

    def setTransmissionData(self, data: tuple[bytes, bool, bool] | None) -> bool:
        """Add the next piece of a dump that the leader sends. Return whether the dump is complete and has become this replica's file.

        If the result is False after the last piece, the dump was ignored because it was incomplete, damaged, too old or from another
        cluster.
        """
        if data is None:
            return False
        piece, is_first, is_last = data
        if is_first:
            self._incoming, self._incoming_bytes = [], 0
        if self._incoming is None:
            return False
        self._incoming.append(bytes(piece))
        self._incoming_bytes += len(piece)
        if self._incoming_bytes > DUMP_BYTES_MAX:
            _log.error("refused a dump of more than %d bytes: the state has outgrown its limit", DUMP_BYTES_MAX)
            self._incoming = None
        elif is_last:
            pieces, self._incoming = self._incoming, None
            return self._install(b"".join(pieces))
        return False

    def _install(self, data: bytes) -> bool:
        try:
            dump = decode_dump(data)
        except LogError as error:
            _log.warning("refused a dump that was sent: %s", error)
            return False
        if dump.cluster != self._cluster:
            _log.error("refused a dump that was sent: of cluster %s, not %s", dump.cluster, self._cluster)
            return False
        if dump.last[1] <= self._applied():
            _log.info("refused a dump that was sent: it ends at %d, %d is applied", dump.last[1], self._applied())
            return False
        if dump.last[2] > self._term() or dump.last[1] > NUMBER_MAX:
            _log.error("refused a dump that was sent: it ends at %d of term %d", dump.last[1], dump.last[2])
            return False
        self._outgoing.clear()
        self._replace(msgspec.structs.replace(dump, node=self._node))
        return True


def encode_dump(dump: Dump) -> list[bytes]:
    """Encode a dump file, as a list of pieces."""
    header = msgspec.json.encode(
        _DumpHeader(dump.cluster, dump.node, _row(dump.last), _row(dump.previous), len(dump.state))
    )
    start = _MAGIC + _VERSION.to_bytes(2, "little") + len(header).to_bytes(4, "little") + header
    digest = sha256(start)
    digest.update(dump.state)
    return [start, dump.state, digest.digest()]


def decode_dump(data: bytes) -> Dump:
    """Decode the bytes of a dump file. Raise LogError if the file is damaged or is not a dump of this version."""
    body = memoryview(data)[:-_DIGEST_BYTES]
    if len(data) < _SHORTEST or sha256(body).digest() != data[-_DIGEST_BYTES:]:
        raise LogError("its digest does not match: bytes were changed or are missing")
    if data[: len(_MAGIC)] != _MAGIC:
        raise LogError("it is no dump")
    version = int.from_bytes(data[len(_MAGIC) : _PREFIX_BYTES], "little")
    if version != _VERSION:
        raise LogError(f"it is of version {version}, not {_VERSION}: another release wrote it")
    state_at = _PREFIX_BYTES + 4 + int.from_bytes(data[_PREFIX_BYTES : _PREFIX_BYTES + 4], "little")
    try:
        header = msgspec.json.decode(body[_PREFIX_BYTES + 4 : state_at], type=_DumpHeader)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogError(f"its header cannot be read: {error}") from error
    if state_at + header.state_bytes != len(body):
        raise LogError(f"its state has not {header.state_bytes} bytes")
    last, previous = header.last, header.previous
    if not (0 < previous.idx == last.idx - 1 and 0 <= previous.term <= last.term):
        raise LogError(f"entry {last.idx} of term {last.term} cannot follow {previous.idx} of term {previous.term}")
    state = bytes(body[state_at:])
    return Dump(
        header.cluster,
        header.node,
        (last.command, last.idx, last.term),
        (previous.command, previous.idx, previous.term),
        state,
    )


def _row(entry: Entry) -> _DumpEntry:
    command, idx, term = entry
    return _DumpEntry(idx, term, command)


def _entry(entry: Any) -> Entry:  # Any: a tuple of the library
    """Convert the entry to a tuple, because the library compares it with its log and clears the log on any difference."""
    command, idx, term = entry
    return bytes(command), int(idx), int(term)
