"""Reading and writing host logs: listing and reading entries, appending batches, sealing logs, and deleting batches.

**Reading.** An entry counts as durable only after its reader has synced the log's directory. A reader may see an entry before the entry is
durable, because its writer may die before syncing the directory. If the reader acted on the entry then, a power failure could remove an
entry that others rely on. So after a listing the reader syncs every directory with new entries. Logs with the mark `sealed` need no sync:
the mark is created after a sync, and no entry follows.

Deletion of garbage leaves gaps, so a missing number proves nothing by itself. Where the store is signed or
encrypted, deletion records list the deleted batches (`log_deletions.py`), and `missing_batches` returns those that are missing without a
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
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from snapline.errors import DamagedDataError, NotFoundError, StoreError, UsageError
from snapline.failpoints import failpoint
from snapline.storage.disk import store_files
from snapline.storage.disk.layout import LOG, TEMPORARY, parse_temporary_path
from snapline.storage.disk.local_disk import Disk, creates_only, make_durable_directory, write_once
from snapline.storage.disk.record import HEAD_BYTES, Guard, authenticates
from snapline.storage.keys.ciphers import log_message
from snapline.storage.log.log_deletions import first_missing, holds, note_deletions, read_all
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
    encode_batch,
    encode_seal,
    entry_path,
    is_batch,
    is_certificate,
    open_batch,
    parse_directory,
    parse_path,
)

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
