"""Reading and writing host logs: listing and reading entries, appending batches, sealing logs, and deleting batches.

**Reading.** An entry counts as durable only after its reader has synced the log's directory. A reader may see an entry before the entry is
durable, because its writer may die before syncing the directory. If the reader acted on that entry, a power failure could then remove an
entry on which other processes rely. So after listing a log, the reader syncs its directory if the listing shows new entries. A log with the
mark `sealed` needs no sync: the log was synced before the mark was created, and no entry is added after the mark.

Garbage collection leaves gaps in the numbers, so a missing number alone does not prove that a batch was lost. Where the store is signed or
encrypted, deletion records list the deleted batches. `missing_batches` then returns the batches that are neither present nor recorded as
deleted.

**Writing.** The problem: a host acknowledges an input once it is durable, and a later owner of the agent must find the input. A slow host
may not know that it has been replaced. Each batch that such a host then writes must either be found by the new owner or never be
acknowledged.

The model: if several processes create a file with the same name, exactly one succeeds (`local_disk.py`: `link`; `object_disk.py`: a
conditional PUT). A log has one appender. The appender uses ascending numbers, and uses a number only after the outcome of the previous
append is known. Any number of sealers may run at any time and at any speed, and each may die at any step. Listing a directory is not
atomic: the listing contains every entry that existed throughout. An entry that appears or disappears during the listing may or may not be
in it.

**Appending** creates the file with the next number. If a file with that number and the same bytes exists, the append succeeded: an earlier
attempt created the file, and only its last sync is missing. If a file with other bytes exists, the batch was not appended and never will
be, because the log is being sealed.

**Sealing.**

1. Create the mark `sealing`.
2. List the entries of the log.
3. Create a seal above the highest number, unless the highest entry is a seal. Try the next number first. If the appender takes that number
   first, jump by 2, 4, 8 … above the number that failed, so that no appender can outrun the sealer.
4. Create a seal at each lower number in descending order, until a number holds a batch. Now all numbers between that batch and the highest
   seal are seals, and the appender has already used all numbers below. So the appender's next number is a seal, and the appender
   acknowledges nothing more.
5. Create the mark `sealed`, so that other sealers need not repeat the work.

A sealer never probes upwards for the highest number, since deleted batches leave gaps. In step 4 a sealer does not stop at an existing
seal: the process that made that seal may have died before it sealed the numbers below. A damaged file does not stop a sealer either. Extra
seals are harmless.

**Deleting** removes neither seals nor the entry with the highest number. If a log has the mark `sealing` but not `sealed`, the deleter
deletes nothing from it. Otherwise a listing could miss two batches: the previous highest batch, which was deleted after a higher one was
appended, and the new highest batch. The seal would then get a number below the newest batch, and the appender would continue above the
seal. The rule to wait for the mark `sealed` prevents this. The deleter finds a higher number in its listing before it looks for the mark.
If the mark is absent, the sealer lists the log later and finds that higher number too. So the number that was highest when the sealer began
to list still exists when the sealer ends, and stops the sealer on its way down.

Where the store is signed or encrypted, deletions are recorded before the batches are deleted.

After a log is sealed, a slow sealer may still create seals at the numbers of deleted batches. Such seals are harmless, because a reader
reads *all* numbers and skips seals.

This module carries R1 of inputs for storage: acknowledged inputs are found after the log is sealed, and no input is acknowledged after
the sealing.

**Deletions**: the rules for deleting batches, and the records that list deleted batches.

**Deletion records.** The problem: anyone who can write to the store can remove a batch without a trace. Garbage collection leaves gaps in
logs, and nothing else records where logs end. The threat model is the same as in `store/protection.py`: the attacker has no key.

Where a store is signed or encrypted, the deleter writes a record that lists the batches before it deletes them (`log/deleted.<random>`,
kind `LDEL`). The record contains ranges of batch numbers for each log and is authenticated with a key. The numbers to account for are those
up to the highest batch and those up to the newest number that the coordinator knows. A number that is neither a batch nor in a range is
missing.

Several processes may delete at the same time: a reader takes the union of all records. A writer copies all other ranges into its record and
removes the records that it has read. So a record that reappears is still true, and no range is lost. A batch in a recorded range may still
exist after a crash, or because somebody has restored the file. Readers ignore such a batch as garbage.

This module carries R1 of inputs even if somebody tampers with the store.

**Which batches may be deleted.** The problem: after a failure an agent is rolled back to an epoch, and receives its later inputs again
from the logs. The target epoch is not known in advance, because even the newest epoch may be rejected. So an input must be kept as long as
a kept epoch could need it.

The model: for each agent in a cut, the cut contains the number of the last input that the agent had consumed. An epoch *covers* an input in
two cases: the number in the cut is at least the input's number, or the agent had left the fleet before the epoch. An epoch before the
agent's creation covers none of its inputs: if recovery goes back to that epoch, the agent is created again and needs all its inputs. A
batch may be deleted when each kept epoch covers each of its inputs and each of its entries. A batch is one file, so it is kept while any of
its inputs is needed.

The same holds for entries of durable turns: a cut contains the number of durable turns that an agent has finished, and covers the entries
of those turns. But a turn that a recovery has undone may never run again, and then no epoch would ever cover its entries. If such a turn
runs again, it does so soon after the recovery. So the entries of earlier plans become garbage once all kept epochs are *settled*, which
means that they were taken well after the current plan began. A turn that is repeated even later executes its steps again. Inputs have no
such time limit.

The caller's duties:

1. `epochs` contains every epoch to which a recovery may go back: epochs that the coordinator's log keeps, pinned epochs, and the recovery
   lines of open plans. If `epochs` is empty, nothing is deleted.
2. `left` names agents that do not exist now. `left` excludes agents that were created again under the same id: an epoch between
   two incarnations needs the inputs accepted for the second one.
3. A former leader may delete batches late. Late deletion is safe because a covered batch stays covered: kept epochs are only removed, or
   added with higher numbers.

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
"""Largest deletion record (64 MiB), checked before reading. A log takes about 40 bytes, plus a few for each gap in its deleted ranges."""

TRIES_MAX = 10
"""Limit on attempts to read a consistent set of deletion records. A deleter replaces a record every few seconds at most, and reading all
records takes milliseconds."""

_PURPOSE = "snapline deletions 1"

Spans = list[tuple[int, int]]
"""Ranges of numbers (first, last) in ascending order. Two ranges are never adjacent."""


class DeletionsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a deletion record.

    Attributes:
        logs: map from the directory of a log to its deleted ranges.
        store: id of the store to which the record belongs.
        tag: authentication tag of the other fields, from `Guard.authenticate`.
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
        DamagedDataError: If the record is missing, damaged, or belongs to another store.
        StoreError: If the record was written without a key.
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
        StoreError: If a record is damaged or was written without a key, or if the store cannot be read.
    """
    for _ in range(TRIES_MAX):
        paths = find_deletions(disk)
        try:
            records = [read_deletions(disk, path, store_id=store_id, guard=guard) for path in paths]
        except DamagedDataError as error:
            if set(paths) <= set(find_deletions(disk)):
                # DamagedDataError would make recovery fall back to an older epoch.
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
    """Record durably that these batches are deleted. Raise OSError or the errors of `read_deletions` and `Guard.authenticate`."""
    logs, replaced = read_all(disk, store_id=store_id, guard=guard)
    for log, numbers in wanted.items():
        logs[log.directory] = join(logs.get(log.directory, []) + [(number, number) for number in numbers])
    body = DeletionsBody(logs, store_id)
    data = seal(DELETIONS_KIND, canonical.encode(msgspec.structs.replace(body, tag=guard.authenticate(body.message()))))
    path = deletions_path(random)
    write_once(disk, path, (data,), temporary_name=temporary_name, point="store.log.deletions")
    store_files.unlink(disk, replaced)


def join(spans: Iterable[tuple[int, int]]) -> Spans:
    """Return ranges that contain the same numbers, merged into as few ranges as possible."""
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
    """Return the lowest missing number, or 0 if none is missing.

    A number is missing if it is at most `newest` or the highest batch, but is neither a batch nor deleted.
    """
    known = join([*[(number, number) for number in batches], *spans])
    end = known[0][1] if known and known[0][0] <= 1 else 0
    return end + 1 if end < max([newest, *batches]) else 0


_ALL = float("inf")


class BatchNumbers(msgspec.Struct, frozen=True, gc=False):
    """The numbers that garbage collection needs to decide whether a batch may be deleted.

    Attributes:
        log, number: name of the batch.
        highest: map from agent to the highest number of its inputs in the batch.
        turns: map from agent to the highest number of its durable turns in the batch.
    """

    log: LogName
    number: int
    highest: dict[str, int]
    turns: dict[str, int] = {}


class SettledEpoch(msgspec.Struct, frozen=True, gc=False):
    """The epoch from which no turn of a plan before `plan` runs again."""

    plan: int
    epoch: int


NEVER_SETTLED = SettledEpoch(0, 0)


def batch_numbers(log: LogName, number: int, batch: LogBatch) -> BatchNumbers:
    """Return the numbers that garbage collection needs from this batch. The result is small enough to be kept in memory for every batch."""
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
    """Return those of `batches` that may be deleted, in the given order. The module docstring lists the caller's duties.

    Args:
        batches: any batches, including batches of deleted logs.
        epochs: map from the number of each kept epoch to its `Metadata.inputs`.
        left: map from agent to the lowest epoch before which it had left.
        turns: map from the number of each kept epoch to its `Metadata.durable_turns`, or None if no durable turn has ended.
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
    """Map from agent to the highest number that every kept epoch covers."""

    def __init__(self, epochs: Mapping[int, Mapping[str, int]], left: Mapping[str, int]) -> None:
        self._epochs = epochs
        self._left = left
        self._known: dict[str, float] = {}

    def cover(self, highest: Mapping[str, int]) -> bool:
        """Return whether every kept epoch covers all these numbers."""
        return all(number <= self._of(agent) for agent, number in highest.items())

    def _of(self, agent: str) -> float:
        if agent not in self._known:
            self._known[agent] = _lowest_covered(agent, self._epochs, self._left.get(agent))
        return self._known[agent]


def _lowest_covered(agent: str, epochs: Mapping[int, Mapping[str, int]], left: int | None) -> float:
    """Return the highest number that every epoch covers for one agent.

    An epoch may contain an agent that is listed in `left` as having left before that epoch. Such an agent was created again (duty 2), and
    counts as present.
    """
    if left is not None and any(agent in inputs for epoch, inputs in epochs.items() if epoch >= left):
        left = None
    asking = [inputs.get(agent, 0) for epoch, inputs in epochs.items() if left is None or epoch < left]
    return min(asking, default=_ALL)


READINGS = 3
"""Number of times that the deletion records are read before a batch counts as missing. One listing may miss both a record and its
replacement."""


def unsupported_reason(disk: Disk) -> str:
    """Return why this disk cannot store host logs, or "" if it can."""
    return "" if creates_only(disk) else f"the store {disk.location} overwrites objects"


class LogReader:
    """Reader of the host logs of one store. Threads may share a reader."""

    def __init__(self, disk: Disk, store_id: str, *, guard: Guard | None) -> None:
        self._disk = disk
        self._store_id = store_id
        self._guard = guard
        self._durable: dict[LogName, frozenset[int]] = {}
        """Entries that this reader has listed, by log. The reader has made them durable by syncing their directories."""

    @property
    def unsupported_reason(self) -> str:
        """Return why this store cannot contain host logs, or "" if it can."""
        return unsupported_reason(self._disk)

    def read_logs(self) -> dict[LogName, list[int]]:
        """Return the numbers of all entries. See `Store.read_logs`."""
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
        """Return a batch, or None for a seal. See `Store.read_batch`."""
        path = entry_path(check_log(log), check_number(number))
        body = read_entry(self._disk, path, store_id=self._store_id)
        if number not in self._durable.get(log, frozenset()):
            self._make_durable(log, frozenset((number,)))
        return open_batch(body, self._guard, path=path) if isinstance(body, BatchBody) else None

    def exclude_deleted(self, logs: Mapping[LogName, list[int]]) -> dict[LogName, list[int]]:
        """Return the entries that were not deleted. See `Store.exclude_deleted`."""
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
        """Return the lowest missing batch of each log. See `Store.missing_batches`."""
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
    """Return all logs that have a directory, sorted. A store that never contained a log has no directory for logs."""
    logs = []
    for plan in _directories(disk, LOG):
        for directory in _directories(disk, plan):
            log = parse_directory(directory)
            if log is not None:
                logs.append(log)
    return sorted(logs)


def list_numbers(disk: Disk, log: LogName) -> list[int]:
    """Return the numbers of the log's entries in ascending order, or an empty list if the log has no directory."""
    return list_log(disk, log)[0]


def list_batches(disk: Disk, log: LogName) -> list[int]:
    """Return the numbers of the log's batches in ascending order. The first bytes of a file show whether it is a batch."""
    return [number for number in list_numbers(disk, log) if holds_batch(disk, entry_path(log, number))]


def list_log(disk: Disk, log: LogName) -> tuple[list[int], list[str]]:
    """Return the entry numbers in ascending order, and the marks. Both lists are empty if the log has no directory."""
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
    """Return a map from each log to its lowest missing number. Logs without missing numbers are omitted. See `first_missing`."""
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
    """Return whether the file at `path` begins like a batch."""
    try:
        return is_batch(disk.read(path, 0, HEAD_BYTES))
    except OSError:
        return False


def keys_of_batches(disk: Disk, store_id: str) -> set[str]:
    """Return the ids of the keys that encrypt batches. Raise the errors of `check_entry`."""
    entries = [_read(disk, path, store_id) for path in find_entries(disk)]
    return {entry.key for entry in entries if isinstance(entry, BatchBody) and entry.key}


def check_entry(disk: Disk, path: str, *, store_id: str | None, guard: Guard | None) -> None:
    """Read a whole log file and check it. Raise the errors of `read_entry`, except that a missing file is reported as damage."""
    body = _read(disk, path, store_id)
    if isinstance(body, BatchBody):
        open_batch(body, guard, path=path)


def read_entry(disk: Disk, path: str, *, store_id: str | None) -> BatchBody | SealBody:
    """Return the body of the log file at `path`, after every check that needs no key.

    Raises:
        NotFoundError: If the file does not exist.
        DamagedDataError, StoreError: As in `decode_file`, or if the file cannot be read.
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
"""Limit on jumps in step 3. Each jump is twice as long as the previous one, so an appender outruns 40 jumps only by appending 2⁴⁰
batches."""

SEALS_MAX = 100_000
"""Limit on seals in step 4. Step 4 seals about as many numbers as the last jump skipped, about twice the number of batches appended since
the listing. Needing more seals is an error."""

_ID_BYTES = 16


class LogWriter:
    """Writer of the host logs of one store. Threads may share a writer."""

    def __init__(self, disk: Disk, store_id: str, *, guard: Guard | None, random_bytes: Callable[[int], bytes]) -> None:
        self._disk = disk
        self._store_id = store_id
        self._guard = guard
        self._random_bytes = random_bytes
        self._known_directories: set[LogName] = set()
        """Logs whose directories are durable because this writer has synced the parent directories."""
        self._certified: tuple[LogName, bytes, bytes] | None = None
        """The log that this writer wrote last, the certificate that the caller passed for it, and the verified certificate."""

    def prepare(self, log: LogName, number: int, batch: LogBatch, certificate: bytes = b"") -> PreparedBatch:
        """Return the encoded file of this batch. See `Store.prepare_batch`."""
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
        """Return the certificate of a log. See `Store.certify_log`."""
        if self._guard is None or not self._guard.signs:
            return b""
        return self._guard.sign(log_message(self._store_id, log.plan, log.host, log.start, public))

    def append(self, prepared: PreparedBatch) -> bool:
        """Create the batch's file, and return whether the batch is durable. See `Store.append_batch`."""
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
        """Seal a log durably. See `Store.seal_log`."""
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
        """Delete batches. See `Store.delete_batches`."""
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
        """Return the log's certificate, after checking it. A process with the private key issues the certificate itself if the caller
        passes none.

        The check comes before the write because a batch that readers would reject must not be acknowledged.
        """
        guard = self._guard
        if guard is None or not guard.requires_signatures:
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
        """Create a mark. Only the existence of the mark's file counts, so contents that another process wrote are not read."""
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
        """Run step 3 of sealing, and return the number of a seal above all batches."""
        for jump in range(JUMPS_MAX):
            number += 2**jump
            if self._create_seal(log, number):
                return number
        raise StoreError(f"{log} grows faster than it can be sealed: stop that host, and try again")

    def _seal_below(self, log: LogName, top: int) -> None:
        """Run step 4 of sealing: create seals in descending order down to the first batch."""
        for number in range(top - 1, max(0, top - 1 - SEALS_MAX), -1):
            path = entry_path(log, number)
            if holds_batch(self._disk, path) or (not self._create_seal(log, number) and holds_batch(self._disk, path)):
                return
        if top - 1 > SEALS_MAX:
            raise StoreError(f"{log} has {SEALS_MAX} seals and no batch below: look at {log.directory} in the store")

    def _create_seal(self, log: LogName, number: int) -> bool:
        """Create a seal. Return whether the number now holds a durable seal, either new or existing."""
        path, data = entry_path(log, number), encode_seal(log, number, store_id=self._store_id)
        name = self._temporary_name(log)
        try:
            store_files.create_or_compare(self._disk, path, data, temporary_name=name, point="store.log.seal")
        except FileExistsError:
            return False
        return True

    def _is_seal(self, log: LogName, number: int) -> bool:
        """Return whether the file equals a seal byte by byte. For a damaged seal, return False."""
        path, data = entry_path(log, number), encode_seal(log, number, store_id=self._store_id)
        with store_files.reading(self._disk, path):
            return self._disk.size(path) == len(data) and self._disk.read(path, 0, len(data)) == data

    def _check_intact(self, path: str) -> None:
        """Check that the file that already exists at a batch's path is intact. If that file is damaged, it might be the batch itself, so
        the outcome of the append is unknown."""
        try:
            read_entry(self._disk, path, store_id=self._store_id)
        except NotFoundError as error:
            raise StoreError(f"{path} was deleted just now: try again") from error

    def _find_deletable(self, log: LogName, numbers: set[int]) -> list[int]:
        """Return those of `numbers` that may be deleted. The listing must precede the check for the mark, as the module docstring
        explains."""
        listed = list_numbers(self._disk, log)
        highest = max(listed, default=0)
        wanted = [number for number in listed if number in numbers and number < highest]
        if not wanted or (self._is_marked(log, SEALING) and not self._is_marked(log, SEALED)):
            return []
        self._disk.sync_directory(log.directory)  # The mark `sealed` must survive a power failure.
        return [number for number in wanted if holds_batch(self._disk, entry_path(log, number))]

    def _note(self, found: dict[LogName, list[int]]) -> None:
        """Write a deletion record for batches that are about to be deleted."""
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
        """Create the log's directory durably, once for each log."""
        if log in self._known_directories:
            return
        if unsupported_reason(self._disk):
            raise UsageError(f"{unsupported_reason(self._disk)}: a fleet with inputs needs another one")
        for directory in (LOG, log.directory.rpartition("/")[0], log.directory):
            make_durable_directory(self._disk, directory)
        self._known_directories.add(log)

    def _temporary_name(self, log: LogName) -> str:
        return f"log-{log.plan}-{self._random_bytes(_ID_BYTES).hex()}"
