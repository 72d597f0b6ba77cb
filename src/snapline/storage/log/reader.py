"""Reading host logs. An entry counts as durable only after its reader has synced its directory.

A reader may see an entry before it is durable: its writer may die before it syncs the directory. If the reader acted on it
then, a power failure could remove an entry that others rely on. So after a listing the reader syncs every directory with
new entries. Logs with the mark `sealed` need no sync: the mark is created after a sync, and no entry follows.

Deletion of garbage leaves gaps, so a missing number proves nothing by itself. Where the store is signed or
encrypted, records list the deleted batches (`deletions.py`), and `missing_batches` returns the ones that are missing otherwise.
"""

from collections.abc import Collection, Iterator, Mapping

from snapline.errors import DamagedDataError, NotFoundError
from snapline.failpoints import failpoint
from snapline.storage.disk.guard import Guard, authenticates
from snapline.storage.disk.layout import LOG
from snapline.storage.disk.local_disk import Disk, creates_only
from snapline.storage.disk.record import HEAD_BYTES
from snapline.storage.log.log_deletions import first_missing, holds, read_all
from snapline.storage.log.log_record import (
    BATCH_BYTES_MAX,
    SEALED,
    BatchBody,
    LogBatch,
    LogName,
    SealBody,
    check_log,
    check_number,
    decode_file,
    entry_path,
    is_batch,
    open_batch,
    parse_directory,
    parse_path,
)
from snapline.storage.store import files

READINGS = 3
"""Number of passes over the deletion records before a batch counts as missing. One listing may miss a record and also its replacement."""


def unsupported_reason(disk: Disk) -> str:
    """Return why this disk cannot hold host logs; "" if it can."""
    return "" if creates_only(disk) else f"the store {disk.location} overwrites objects"


class LogReader:
    """Reads the host logs of one store. Threads may share it."""

    def __init__(self, disk: Disk, store_id: str, *, guard: Guard | None) -> None:
        self._disk = disk
        self._store_id = store_id
        self._guard = guard
        self._durable: dict[LogName, frozenset[int]] = {}
        """Entries that this reader has listed and not yet synced."""

    @property
    def unsupported_reason(self) -> str:
        """Return why this store cannot hold host logs; "" if it can."""
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
            with files.reading(self._disk, log.directory):
                self._disk.sync_directory(log.directory)
            self._durable[log] = numbers | known


def find_logs(disk: Disk) -> list[LogName]:
    """Return all logs that have a directory, sorted. A store that never held a log has no folder for them."""
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
    """Return the numbers of the batches, judged by their first bytes, ascending."""
    return [number for number in list_numbers(disk, log) if holds_batch(disk, entry_path(log, number))]


def list_log(disk: Disk, log: LogName) -> tuple[list[int], list[str]]:
    """Return the numbers of the entries, ascending, and the marks; both empty if the log has no directory."""
    entries = files.listed(disk, log.directory)
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
    """Return log → its lowest number, up to its highest batch and `newest`, that is neither a batch nor deleted. Complete logs are absent."""
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
    """Yield the paths of all entries, a log at a time."""
    for log in find_logs(disk):
        yield from (entry_path(log, number) for number in list_numbers(disk, log))


def holds_batches(disk: Disk) -> bool:
    """Return whether there is a batch in any log. Seals do not count."""
    return any(holds_batch(disk, path) for path in find_entries(disk))


def holds_batch(disk: Disk, path: str) -> bool:
    """Return whether there is a batch at `path`, judged by its first bytes."""
    try:
        return is_batch(disk.read(path, 0, HEAD_BYTES))
    except OSError:
        return False


def keys_of_batches(disk: Disk, store_id: str) -> set[str]:
    """Return the ids of the keys under which batches are encrypted; errors as `check_entry`."""
    entries = [_read(disk, path, store_id) for path in find_entries(disk)]
    return {entry.key for entry in entries if isinstance(entry, BatchBody) and entry.key}


def check_entry(disk: Disk, path: str, *, store_id: str | None, guard: Guard | None) -> None:
    """Read a whole log file and check it; errors as `read_entry`, but a missing file is damage."""
    body = _read(disk, path, store_id)
    if isinstance(body, BatchBody):
        open_batch(body, guard, path=path)


def read_entry(disk: Disk, path: str, *, store_id: str | None) -> BatchBody | SealBody:
    """Return the body of the file at `path`, after every check that needs no key.

    Raises:
        NotFoundError: the file does not exist.
        DamagedDataError, StoreError: see `decode_file`; or the file cannot be read.
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
    data = files.read_file(disk, path, epoch=None, size_bytes_max=BATCH_BYTES_MAX)
    return decode_file(data, path=path, store_id=store_id)


def _directories(disk: Disk, directory: str) -> Iterator[str]:
    entries = files.listed(disk, directory)
    yield from (f"{directory}/{entry.name}" for entry in entries if entry.is_directory)
