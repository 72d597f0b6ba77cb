"""Reading and writing host logs: listing and reading entries, appending batches, sealing logs, and deleting batches.

**Reading.** An entry counts as durable only after its reader has synced the log's directory. A reader may see an entry before the entry is
durable, because its writer may die before syncing the directory. If the reader acted on the entry then, a power failure could remove an
entry that others rely on. So after a listing the reader syncs every directory with new entries. Logs with the mark `sealed` need no sync:
the mark is created after a sync, and no entry follows.

Deletion of garbage leaves gaps, so a missing number proves nothing by itself. Where the store is signed or
encrypted, deletion records list the deleted batches, and `missing_batches` returns those that are missing without a
record.

**Writing.** The problem: a host acknowledges an input once it is durable, and a later owner of the agent must find the input. A slow host
may not know that it was replaced. Whatever such a host then writes must either be found by the new owner or never be acknowledged.

The model: if several processes create the same name, exactly one succeeds (`local_disk.py`: `link`; `object_disk.py`: a conditional PUT).
A log has one appender. The appender takes numbers in ascending order, each after the outcome of the previous one is known. There may be
many sealers, at any time, of any speed, and each may die anywhere. Listing a directory is not atomic: the result contains everything that
existed throughout the listing. Entries that appeared or disappeared meanwhile may be in the result or not.

**Appending** creates the next number. If the same bytes already have the name, the append succeeded: an earlier attempt created the file,
and only its last sync is missing. If anything else has the name, the batch was not appended and never will be: the log is being sealed.

**Sealing.**

1. Create the mark `sealing`.
2. List the entries of the log.
3. Create a seal above the highest number, unless one exists. Try the next number first. While the appender takes the number first, jump by
   2, 4, 8 … above the number that failed, so no appender can outrun the sealer.
4. Seal each number from there downwards, until a number is a batch. Now all numbers between are seals, and all numbers below that batch
   have been used. So the appender's next number is a seal, and the appender will acknowledge nothing more.
5. Create the mark `sealed`, which saves other sealers the work.

A sealer never probes numbers upwards, since deleted batches leave gaps. A sealer does not stop at an existing seal on the way down: the
maker of that seal may have died before it sealed the numbers below. A damaged file does not stop it either. Extra seals are harmless.

**Deleting** spares seals and the highest number. In a log with the mark `sealing` the deleter waits for the mark `sealed`. Otherwise
a listing could miss two batches: the old highest one, deleted after a higher one was appended, and the new highest one. The seal would then
take a number in the middle, and the appender would continue above the seal. The rule prevents this. The deleter lists a higher number
first and looks for the mark afterwards. If the mark is absent, the sealer lists later still and finds that higher number. So the number
that was highest when the sealer began to list still exists when the sealer ends, and stops the sealer on its way down.

Where the store is signed or encrypted, deletions are recorded before the batches are deleted.

After a log is sealed, a late sealer may still create seals in place of deleted batches. Such seals are harmless. So a reader reads
*all* numbers and skips seals.

This module carries R1 of inputs for storage: acknowledged inputs are found after the log is sealed, and no input is acknowledged after
that.

**Deletions**: which batches may be deleted, and deletion records that list the deleted ones.

**Deletion records.** The problem: anyone who can write to the store can remove a batch without a trace. Deletion of garbage leaves gaps
in logs, and nothing else records where logs end. The threat model is that of `store/protection.py`: the attacker has no key.

Where a store is signed or encrypted, the deleter writes a record that lists the batches before it deletes them (`log/deleted.<random>`,
kind `LDEL`). The record holds ranges of batch numbers for each log, authenticated with a key. Every number up to the highest batch, and
up to the newest number that the coordinator knows, is a batch or lies in such a range. A batch with any other number is missing.

Several processes may delete at once: the union of all records counts. A writer copies all other ranges into its record and removes the
records that it has read. So a record that reappears is still true, and no range is lost. A batch in a range may still exist after a crash,
or because somebody has restored the file. Such a batch is garbage and is ignored.

This module carries R1 of inputs, also against tampering.

**Which batches may be deleted.** The problem: after a failure an agent is rolled back to an epoch, and receives its later inputs again
from the logs. The target epoch is not known in advance: the newest epoch may still be rejected. So an input must be kept as long as a
kept epoch could need it.

The model: for each agent in a cut, the cut holds the number of the last input that the agent had consumed. An epoch *covers* an input in
two cases. In the first, the number in the cut is not below the input's number. In the second, the agent had left before the epoch, so no
agent exists to consume the input. An epoch before the agent's creation covers none of its inputs: recovery creates the agent again, and
the agent needs them all. A batch may be deleted when each kept epoch covers each of its inputs and each of its entries. A batch is one
file, so one needed input keeps the others.

The same holds for entries of durable turns: a cut holds the number of an agent's finished turns, and covers their entries. But a turn
that a recovery has undone may never run again, and then no epoch would ever cover it. If such a turn runs again, it does so soon after the
recovery. So entries of plans before the current plan are no longer needed when all kept epochs are *settled*: well after the beginning of
the current plan. A turn that is repeated even later runs its steps again. Inputs have no such limit.

The caller's duties:

1. `epochs` are all epochs that a recovery may go back to: those that the coordinator's log keeps, pinned ones, and the recovery lines of
   open plans. If there is no epoch, nothing is deleted.
2. `left` names agents that do not exist now. It excludes agents that were created again under the same id: an epoch between
   two incarnations needs the inputs accepted for the second one.
3. An old leader may delete batches late: a covered batch stays covered, as epochs only become fewer and later.

This module supports R1 of inputs (an acknowledged input takes effect after any rollback), as G7 does for checkpoints.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec

from snapline.errors import DamagedDataError, NotFoundError, StoreError, UsageError
from snapline.failpoints import failpoint
from snapline.storage.disk import store_files
from snapline.storage.disk.layout import LOG, TEMPORARY, parse_temporary_path
from snapline.storage.disk.local_disk import Disk, creates_only, make_durable_directory, write_once
from snapline.storage.disk.record import HEAD_BYTES, Guard, authenticates, canonical, check_store, damaged, seal, unseal
from snapline.storage.keys.ciphers import log_message
from snapline.storage.log.log_record import (
    BATCH_BYTES_MAX,
    SEALED,
    SEALING,
    BatchBody,
    LogBatch,
    LogName,
    PreparedBatch,
    SealBody,
    check_log,
    check_number,
    decode_file,
    deletions_path,
    encode_batch,
    encode_seal,
    entry_path,
    is_batch,
    is_certificate,
    is_deletions_path,
    open_batch,
    parse_directory,
    parse_path,
)

DELETIONS_KIND = b"LDEL"

DELETIONS_BYTES_MAX = 2**26
"""Largest record (64 MiB), checked before reading. A log takes about 40 bytes, plus a few for each remaining batch between deleted ones."""

TRIES_MAX = 10
"""Limit on attempts to read a consistent set. A sweep replaces a record every few seconds at most; reading all takes milliseconds."""

_PURPOSE = "snapline deletions 1"

Spans = list[tuple[int, int]]
"""Ranges of numbers (first, last) in ascending order; two ranges are never adjacent."""


class DeletionsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a deletion record.

    Attributes:
        logs: directory of a log → its deleted ranges.
        store: id of the store that the record belongs to.
        tag: `Guard.authenticate` of the other fields.
    """

    logs: dict[str, Spans]
    store: str
    tag: bytes = b""

    def message(self) -> bytes:
        """Return the bytes that the tag authenticates."""
        return canonical.encode((_PURPOSE, self.store, self.logs))


_decoder = msgspec.msgpack.Decoder(DeletionsBody)


def find_deletions(disk: Disk) -> list[str]:
    """Return the paths of all deletion records."""
    paths = [f"{LOG}/{entry.name}" for entry in store_files.listed(disk, LOG) if not entry.is_directory]
    return [path for path in paths if is_deletions_path(path)]


def read_deletions(disk: Disk, path: str, *, store_id: str | None, guard: Guard | None) -> DeletionsBody:
    """Return the body of one deletion record.

    Raises:
        DamagedDataError: the record is missing, damaged, or belongs to another store.
        StoreError: the record was written without a key.
    """
    body = unseal(
        DELETIONS_KIND,
        store_files.read_file(disk, path, epoch=None, size_bytes_max=DELETIONS_BYTES_MAX),
        path=path,
        epoch=None,
    )
    with store_files.decoding(path):
        found = _decoder.decode(body)
    check_store(found.store, path, store_id)
    if any(parse_directory(directory) is None for directory in found.logs):
        raise damaged(path, "it names what is no log")
    if guard is not None and not guard.is_authentic(found.message(), found.tag):
        raise StoreError(f"{path} was not written by somebody with the key: remove it")
    return found


def read_all(disk: Disk, *, store_id: str | None, guard: Guard) -> tuple[dict[str, Spans], list[str]]:
    """Return the deleted ranges by log directory, and the paths of the records that list them.

    Raises:
        StoreError: a record is damaged, or was written without a key; or the store cannot be read.
    """
    for _ in range(TRIES_MAX):
        paths = find_deletions(disk)
        try:
            records = [read_deletions(disk, path, store_id=store_id, guard=guard) for path in paths]
        except DamagedDataError as error:
            if set(paths) <= set(find_deletions(disk)):
                # Not a DamagedDataError: recovery would fall back to an older epoch.
                raise StoreError(str(error)) from error
            continue  # Another process has just replaced the record.
        union: dict[str, Spans] = {}
        for record in records:
            for directory, spans in record.logs.items():
                union[directory] = join(union.get(directory, []) + spans)
        return union, paths
    raise StoreError(f"the records of what was deleted in {LOG} are replaced faster than they can be read: try again")


def note_deletions(
    disk: Disk,
    wanted: Mapping[LogName, Iterable[int]],
    *,
    store_id: str,
    guard: Guard,
    random: str,
    temporary_name: str,
) -> None:
    """Record durably that these batches are deleted. Raises OSError and the errors of `read_deletions` and `Guard.authenticate`."""
    logs, replaced = read_all(disk, store_id=store_id, guard=guard)
    for log, numbers in wanted.items():
        logs[log.directory] = join(logs.get(log.directory, []) + [(number, number) for number in numbers])
    body = DeletionsBody(logs, store_id)
    data = seal(DELETIONS_KIND, canonical.encode(msgspec.structs.replace(body, tag=guard.authenticate(body.message()))))
    path = deletions_path(random)
    write_once(disk, path, (data,), temporary_name=temporary_name, point="store.log.deletions")
    store_files.unlink(disk, replaced)


def join(spans: Iterable[tuple[int, int]]) -> Spans:
    """Return the same numbers in as few ranges as possible."""
    joined: Spans = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


def holds(spans: Spans, number: int) -> bool:
    """Return whether one of the ranges contains the number."""
    place = bisect_right(spans, number, key=lambda span: span[0])
    return place > 0 and number <= spans[place - 1][1]


def first_missing(batches: Collection[int], spans: Spans, newest: int) -> int:
    """Return the lowest number that is neither present nor deleted, up to the highest batch and `newest`; 0 if none is missing."""
    known = join([*[(number, number) for number in batches], *spans])
    end = known[0][1] if known and known[0][0] <= 1 else 0
    return end + 1 if end < max([newest, *batches]) else 0


_ALL = float("inf")


class BatchNumbers(msgspec.Struct, frozen=True, gc=False):
    """Numbers of a batch that garbage collection needs to judge the batch.

    Attributes:
        log, number: name of the batch.
        highest: agent → the highest number of its inputs in the batch.
        turns: agent → the highest number of its durable turns in the batch.
    """

    log: LogName
    number: int
    highest: dict[str, int]
    turns: dict[str, int] = {}


class SettledEpoch(msgspec.Struct, frozen=True, gc=False):
    """Epoch from which on no work of plans before `plan` is repeated."""

    plan: int
    epoch: int


NEVER_SETTLED = SettledEpoch(0, 0)


def batch_numbers(log: LogName, number: int, batch: LogBatch) -> BatchNumbers:
    """Return the numbers that garbage collection needs of this batch. The result is small enough to be kept in memory for every batch."""
    highest: dict[str, int] = {}
    for logged in batch.inputs:
        highest[logged.agent] = max(logged.number, highest.get(logged.agent, 0))
    turns: dict[str, int] = {}
    for entry in batch.entries:
        turns[entry.agent] = max(entry.turn, turns.get(entry.agent, 0))
    return BatchNumbers(log, number, highest, turns)


def find_garbage(
    batches: Iterable[BatchNumbers],
    epochs: Mapping[int, Mapping[str, int]],
    left: Mapping[str, int],
    turns: Mapping[int, Mapping[str, int]] | None = None,
    settled: SettledEpoch = NEVER_SETTLED,
) -> list[tuple[LogName, int]]:
    """Return the batches that may be deleted, in the given order; the module docstring lists the caller's duties.

    Args:
        batches: any batches, including those of deleted logs.
        epochs: number of each kept epoch → its `Metadata.inputs`.
        left: agent → the lowest epoch before which it had left.
        turns: number of each kept epoch → its `Metadata.durable_turns`; None if no turn has ended anywhere.
    """
    if not epochs:
        return []
    inputs = _CoveredNumbers(epochs, left)
    ended = _CoveredNumbers(turns if turns is not None else {epoch: {} for epoch in epochs}, left)
    is_settled = min(epochs) >= settled.epoch

    def is_deletable(batch: BatchNumbers) -> bool:
        are_old = is_settled and batch.log.plan < settled.plan
        return inputs.cover(batch.highest) and (are_old or ended.cover(batch.turns))

    return [(batch.log, batch.number) for batch in batches if is_deletable(batch)]


class _CoveredNumbers:
    """Map from agent to the highest number that every epoch covers."""

    def __init__(self, epochs: Mapping[int, Mapping[str, int]], left: Mapping[str, int]) -> None:
        self._epochs = epochs
        self._left = left
        self._known: dict[str, float] = {}

    def cover(self, highest: Mapping[str, int]) -> bool:
        """Return whether the kept epochs cover all these numbers."""
        return all(number <= self._of(agent) for agent, number in highest.items())

    def _of(self, agent: str) -> float:
        if agent not in self._known:
            self._known[agent] = _lowest_covered(agent, self._epochs, self._left.get(agent))
        return self._known[agent]


def _lowest_covered(agent: str, epochs: Mapping[int, Mapping[str, int]], left: int | None) -> float:
    """Return the highest number that every epoch covers for one agent.

    An agent may be known to an epoch although it is listed as having left before that epoch. Such an agent was created again (duty 2), and
    counts as present.
    """
    if left is not None and any(agent in inputs for epoch, inputs in epochs.items() if epoch >= left):
        left = None
    asking = [inputs.get(agent, 0) for epoch, inputs in epochs.items() if left is None or epoch < left]
    return min(asking, default=_ALL)


READINGS = 3
"""Number of passes over the deletion records before a batch counts as missing. One listing may miss both a record and its replacement."""


def unsupported_reason(disk: Disk) -> str:
    """Return the reason why this disk cannot hold host logs; "" if it can."""
    return "" if creates_only(disk) else f"the store {disk.location} overwrites objects"


class LogReader:
    """Reader of the host logs of one store. Threads may share a reader."""

    def __init__(self, disk: Disk, store_id: str, *, guard: Guard | None) -> None:
        self._disk = disk
        self._store_id = store_id
        self._guard = guard
        self._durable: dict[LogName, frozenset[int]] = {}
        """Entries that this reader has listed and whose directories it has synced, by log."""

    @property
    def unsupported_reason(self) -> str:
        """Return the reason why this store cannot hold host logs; "" if it can."""
        return unsupported_reason(self._disk)

    def read_logs(self) -> dict[LogName, list[int]]:
        """Return the numbers of all entries; see `Store.read_logs`."""
        logs = {}
        for log in find_logs(self._disk):
            numbers, marks = list_log(self._disk, log)
            if numbers:
                if SEALED not in marks:
                    self._make_durable(log, frozenset(numbers))
                self._durable[log] = frozenset(numbers)
                logs[log] = numbers
        return logs

    def read_batch(self, log: LogName, number: int) -> LogBatch | None:
        """Return a batch, or None for a seal; see `Store.read_batch`."""
        path = entry_path(check_log(log), check_number(number))
        body = read_entry(self._disk, path, store_id=self._store_id)
        if number not in self._durable.get(log, frozenset()):
            self._make_durable(log, frozenset((number,)))
        return open_batch(body, self._guard, path=path) if isinstance(body, BatchBody) else None

    def exclude_deleted(self, logs: Mapping[LogName, list[int]]) -> dict[LogName, list[int]]:
        """Return the entries that were not deleted; see `Store.exclude_deleted`."""
        if self._guard is None or not authenticates(self._guard):
            return dict(logs)
        deleted, _ = read_all(self._disk, store_id=self._store_id, guard=self._guard)
        return {
            log: [number for number in numbers if not holds(deleted.get(log.directory, []), number)]
            for log, numbers in logs.items()
        }

    def missing_batches(
        self, batches: Mapping[LogName, Collection[int]], newest: Mapping[LogName, int]
    ) -> dict[LogName, int]:
        """Return the lowest missing batch of each log; see `Store.missing_batches`."""
        if self._guard is None or not authenticates(self._guard):
            return {}
        return missing_batches(self._disk, batches, newest, store_id=self._store_id, guard=self._guard)

    def _make_durable(self, log: LogName, numbers: frozenset[int]) -> None:
        known = self._durable.get(log, frozenset())
        if not numbers <= known:
            failpoint("store.log.read.found")
            with store_files.reading(self._disk, log.directory):
                self._disk.sync_directory(log.directory)
            self._durable[log] = numbers | known


def find_logs(disk: Disk) -> list[LogName]:
    """Return all logs that have a directory, sorted. A store that never held a log has no directory for logs."""
    logs = []
    for plan in _directories(disk, LOG):
        for directory in _directories(disk, plan):
            log = parse_directory(directory)
            if log is not None:
                logs.append(log)
    return sorted(logs)


def list_numbers(disk: Disk, log: LogName) -> list[int]:
    """Return the numbers of the entries, ascending; empty if the log has no directory."""
    return list_log(disk, log)[0]


def list_batches(disk: Disk, log: LogName) -> list[int]:
    """Return the numbers of the batches, ascending. The first bytes of a file tell whether it is a batch."""
    return [number for number in list_numbers(disk, log) if holds_batch(disk, entry_path(log, number))]


def list_log(disk: Disk, log: LogName) -> tuple[list[int], list[str]]:
    """Return the numbers of the entries, ascending, and the marks; both empty if the log has no directory."""
    entries = store_files.listed(disk, log.directory)
    parsed = [parse_path(f"{log.directory}/{entry.name}") for entry in entries if not entry.is_directory]
    names = [place[1] for place in parsed if place is not None]
    return sorted([name for name in names if isinstance(name, int)]), [name for name in names if isinstance(name, str)]


def missing_batches(
    disk: Disk,
    batches: Mapping[LogName, Collection[int]],
    newest: Mapping[LogName, int],
    *,
    store_id: str | None,
    guard: Guard,
) -> dict[LogName, int]:
    """Return log → its lowest missing number. A number is missing if it is at most the highest batch or `newest`, and neither a batch nor
    deleted."""
    missing: dict[LogName, int] = {}
    for _ in range(READINGS):
        deleted, _ = read_all(disk, store_id=store_id, guard=guard)
        missing = {
            log: number
            for log in sorted({*batches, *newest})
            if (number := first_missing(batches.get(log, ()), deleted.get(log.directory, []), newest.get(log, 0)))
        }
        if not missing:
            break
    return missing


def find_entries(disk: Disk) -> Iterator[str]:
    """Yield the paths of all entries, one log after another."""
    for log in find_logs(disk):
        yield from (entry_path(log, number) for number in list_numbers(disk, log))


def holds_batches(disk: Disk) -> bool:
    """Return whether any log contains a batch. Seals do not count."""
    return any(holds_batch(disk, path) for path in find_entries(disk))


def holds_batch(disk: Disk, path: str) -> bool:
    """Return whether the file at `path` is a batch, judged by its first bytes."""
    try:
        return is_batch(disk.read(path, 0, HEAD_BYTES))
    except OSError:
        return False


def keys_of_batches(disk: Disk, store_id: str) -> set[str]:
    """Return the ids of the keys that encrypt batches. Raises the errors of `check_entry`."""
    entries = [_read(disk, path, store_id) for path in find_entries(disk)]
    return {entry.key for entry in entries if isinstance(entry, BatchBody) and entry.key}


def check_entry(disk: Disk, path: str, *, store_id: str | None, guard: Guard | None) -> None:
    """Read a whole log file and check it. Raises the errors of `read_entry`, but reports a missing file as damage."""
    body = _read(disk, path, store_id)
    if isinstance(body, BatchBody):
        open_batch(body, guard, path=path)


def read_entry(disk: Disk, path: str, *, store_id: str | None) -> BatchBody | SealBody:
    """Return the body of the log file at `path`, after every check that needs no key.

    Raises:
        NotFoundError: the file does not exist.
        DamagedDataError, StoreError: as in `decode_file`, or the file cannot be read.
    """
    try:
        return _read(disk, path, store_id)
    except DamagedDataError as error:
        if _is_missing(disk, path):
            reason = f"{path} is not in the store {disk.location}: it may have been deleted as garbage"
            raise NotFoundError(reason) from error
        raise


def _is_missing(disk: Disk, path: str) -> bool:
    try:
        disk.size(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _read(disk: Disk, path: str, store_id: str | None) -> BatchBody | SealBody:
    data = store_files.read_file(disk, path, epoch=None, size_bytes_max=BATCH_BYTES_MAX)
    return decode_file(data, path=path, store_id=store_id)


def _directories(disk: Disk, directory: str) -> Iterator[str]:
    entries = store_files.listed(disk, directory)
    yield from (f"{directory}/{entry.name}" for entry in entries if entry.is_directory)


JUMPS_MAX = 40
"""Limit on jumps in step 3. Each jump doubles the distance, so to outrun 40 jumps, the appender would have to append 2⁴⁰ batches."""

SEALS_MAX = 100_000
"""Limit on seals in step 4: the length of the last jump, about twice what was appended since the listing. A longer run is an error."""

_ID_BYTES = 16


class LogWriter:
    """Writer of the host logs of one store. Threads may share a writer."""

    def __init__(self, disk: Disk, store_id: str, *, guard: Guard | None, random_bytes: Callable[[int], bytes]) -> None:
        self._disk = disk
        self._store_id = store_id
        self._guard = guard
        self._random_bytes = random_bytes
        self._known_directories: set[LogName] = set()
        """Logs whose directories this writer has synced in their parent directories."""
        self._certified: tuple[LogName, bytes, bytes] | None = None
        """The log that was written last, the certificate that the caller gave for it, and the verified certificate."""

    def prepare(self, log: LogName, number: int, batch: LogBatch, certificate: bytes = b"") -> PreparedBatch:
        """Return the file of this batch; see `Store.prepare_batch`."""
        check_log(log)
        nonce = self._random_bytes(_ID_BYTES).hex()
        return encode_batch(
            log,
            check_number(number),
            batch,
            store_id=self._store_id,
            nonce=nonce,
            guard=self._guard,
            certificate=self._certificate(log, certificate),
        )

    def certify(self, log: LogName, public: bytes) -> bytes:
        """Return the certificate of a log; see `Store.certify_log`."""
        if self._guard is None or not self._guard.signs:
            return b""
        return self._guard.sign(log_message(self._store_id, log.plan, log.host, log.start, public))

    def append(self, prepared: PreparedBatch) -> bool:
        """Create the batch. When this returns True, the batch is durable; see `Store.append_batch`."""
        log, path = prepared.log, prepared.path
        with store_files.writing(self._disk, f"entry {prepared.number} of {log}"):
            self._prepare_directory(log)
            failpoint("store.log.batch.directory")
            try:
                store_files.create_or_compare(
                    self._disk, path, prepared.data, temporary_name=self._temporary_name(log), point="store.log.batch"
                )
            except FileExistsError:
                self._check_intact(path)
                self._disk.sync_directory(log.directory)
                return False
            except OSError:  # The next call must not assume that the directory exists.
                self._known_directories.discard(log)
                raise
        return True

    def seal(self, log: LogName) -> None:
        """End a log. The seal is durable when this returns; see `Store.seal_log`."""
        check_log(log)
        with store_files.writing(self._disk, f"the seal of {log}"):
            if self._is_marked(log, SEALED):
                return
            self._prepare_directory(log)
            failpoint("store.log.seal.directory")
            try:
                self._mark(log, SEALING)
                top = max(list_numbers(self._disk, log), default=0)
                failpoint("store.log.seal.listed")
                if not top or not self._is_seal(log, top):
                    top = self._seal_above(log, top)
                self._seal_below(log, top)
                failpoint("store.log.seal.closed")
                self._disk.sync_directory(log.directory)  # The mark promises that all entries are durable.
                self._mark(log, SEALED)
            except OSError:
                self._known_directories.discard(log)
                raise

    def delete(self, places: Iterable[tuple[LogName, int]], *, plans_below: int) -> list[str]:
        """Delete batches; see `Store.delete_batches`."""
        wanted: dict[LogName, set[int]] = {}
        for log, number in places:
            wanted.setdefault(check_log(log), set()).add(number)
        removed = []
        with store_files.writing(self._disk, "the deletion of batches"):
            listed = {log: self._find_deletable(log, wanted[log]) for log in sorted(wanted)}
            deletable = {log: numbers for log, numbers in listed.items() if numbers}
            self._note(deletable)
            for log, numbers in deletable.items():
                removed += store_files.unlink(self._disk, [entry_path(log, number) for number in numbers])
                failpoint("store.log.batch.deleted")
            removed += self._sweep_temporary(plans_below)
        return removed

    # -- inside ------------------------------------------------------------------------------------------------------

    def _certificate(self, log: LogName, given: bytes) -> bytes:
        """Return the log's certificate. A process with the private key certifies itself. A process checks its certificate before it
        writes, as no batch that readers would reject may be acknowledged."""
        guard = self._guard
        if guard is None or not guard.verifies:
            return b""
        if self._certified is not None and self._certified[:2] == (log, given):
            return self._certified[2]
        certificate = given or self.certify(log, guard.log_key())
        if not is_certificate(guard, self._store_id, log, guard.log_key(), certificate):
            raise StoreError(
                f"{log} cannot be signed: the coordinator has not certified this host's key; give it the private key of the store in "
                "SNAPLINE_SIGNING_KEY"
            )
        self._certified = log, given, certificate
        return certificate

    def _mark(self, log: LogName, mark: str) -> None:
        """Create a mark. Only the presence of a mark counts: contents that another process wrote are not read."""
        path, data = entry_path(log, mark), encode_seal(log, mark, store_id=self._store_id)
        try:
            write_once(self._disk, path, (data,), temporary_name=self._temporary_name(log), point="store.log.mark")
        except FileExistsError:
            self._disk.sync_directory(log.directory)

    def _is_marked(self, log: LogName, mark: str) -> bool:
        try:
            self._disk.size(entry_path(log, mark))
        except FileNotFoundError:
            return False
        return True

    def _seal_above(self, log: LogName, number: int) -> int:
        """Do step 3 of sealing; return the number of a seal above all batches."""
        for jump in range(JUMPS_MAX):
            number += 2**jump
            if self._create_seal(log, number):
                return number
        raise StoreError(f"{log} grows faster than it can be sealed: stop that host, and try again")

    def _seal_below(self, log: LogName, top: int) -> None:
        """Do step 4 of sealing: seal numbers downwards to the first batch."""
        for number in range(top - 1, max(0, top - 1 - SEALS_MAX), -1):
            path = entry_path(log, number)
            if holds_batch(self._disk, path) or (not self._create_seal(log, number) and holds_batch(self._disk, path)):
                return
        if top - 1 > SEALS_MAX:
            raise StoreError(f"{log} has {SEALS_MAX} seals and no batch below: look at {log.directory} in the store")

    def _create_seal(self, log: LogName, number: int) -> bool:
        """Create a seal; return whether the number now has a durable seal, new or old."""
        path, data = entry_path(log, number), encode_seal(log, number, store_id=self._store_id)
        name = self._temporary_name(log)
        try:
            store_files.create_or_compare(self._disk, path, data, temporary_name=name, point="store.log.seal")
        except FileExistsError:
            return False
        return True

    def _is_seal(self, log: LogName, number: int) -> bool:
        """Return whether the file equals a seal byte by byte. A damaged seal does not."""
        path, data = entry_path(log, number), encode_seal(log, number, store_id=self._store_id)
        with store_files.reading(self._disk, path):
            return self._disk.size(path) == len(data) and self._disk.read(path, 0, len(data)) == data

    def _check_intact(self, path: str) -> None:
        """Check that the file in the place of a batch is intact. A damaged file might be that batch, and then the outcome of the append
        is unknown."""
        try:
            read_entry(self._disk, path, store_id=self._store_id)
        except NotFoundError as error:
            raise StoreError(f"{path} was deleted just now: try again") from error

    def _find_deletable(self, log: LogName, numbers: set[int]) -> list[int]:
        """Return the batches that may be deleted. The listing must come before the check for the mark; see the module docstring."""
        listed = list_numbers(self._disk, log)
        highest = max(listed, default=0)
        wanted = [number for number in listed if number in numbers and number < highest]
        if not wanted or (self._is_marked(log, SEALING) and not self._is_marked(log, SEALED)):
            return []
        self._disk.sync_directory(log.directory)  # The mark `sealed` must survive a power failure.
        return [number for number in wanted if holds_batch(self._disk, entry_path(log, number))]

    def _note(self, found: dict[LogName, list[int]]) -> None:
        """Write a deletion record for the batches before they are deleted."""
        if self._guard is None or not authenticates(self._guard) or not found:
            return
        note_deletions(
            self._disk,
            found,
            store_id=self._store_id,
            guard=self._guard,
            random=self._random_bytes(_ID_BYTES).hex(),
            temporary_name=self._temporary_name(max(found)),
        )

    def _sweep_temporary(self, plans_below: int) -> list[str]:
        try:
            entries = self._disk.list_directory(TEMPORARY)
        except FileNotFoundError:
            return []
        paths = [f"{TEMPORARY}/{entry.name}" for entry in entries]
        temporary_files = [(path, *(parse_temporary_path(path) or ("", 0))) for path in paths]
        return store_files.unlink(
            self._disk, [path for path, folder, plan in temporary_files if folder == LOG and plan < plans_below]
        )

    def _prepare_directory(self, log: LogName) -> None:
        """Create the log's directory and make it durable, once for each log."""
        if log in self._known_directories:
            return
        if unsupported_reason(self._disk):
            raise UsageError(f"{unsupported_reason(self._disk)}: a fleet with inputs needs another one")
        for directory in (LOG, log.directory.rpartition("/")[0], log.directory):
            make_durable_directory(self._disk, directory)
        self._known_directories.add(log)

    def _temporary_name(self, log: LogName) -> str:
        return f"log-{log.plan}-{self._random_bytes(_ID_BYTES).hex()}"
