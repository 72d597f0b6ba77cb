"""Host logs. This module lists logs, reads and appends batches, seals logs, and deletes batches.

**Reading.** A log entry counts as durable only after its reader has synced the log's directory. A reader may see a log entry that is not
durable yet, because the writer may die before syncing the directory. If a reader acted on such an entry, a power failure could remove an
entry on which other processes rely. So a reader that finds new entries when it lists a log syncs the log's directory. A log with the mark
`sealed` needs no such sync: the log was synced before the mark was created, and no entry is added afterwards.

Garbage collection leaves gaps in the batch numbers, so a missing number alone does not prove that a batch was lost. In a signed or
encrypted store, deletion records list the deleted batches. `missing_batches` finds batches that are neither present nor recorded as
deleted.

**Writing.** The problem: a host acknowledges an input once the input is durable, and every later owner of the agent must find that input. A
slow host may be unaware that it has been replaced. Each batch that a replaced host writes must either be found by the agent's new owner or
never be acknowledged.

The model: if several processes create a file with the same name, exactly one succeeds (`local_disk.py`: `link`; `object_disk.py`: a
conditional PUT). Each log has one appender. The appender numbers its batches in ascending order, and uses the next number only after the
outcome of the previous append is known. Any number of sealers may run concurrently, and each may die at any step. Listing a directory is
not atomic: the listing contains every entry that existed during the whole listing. An entry that is created or removed during the listing
may or may not be included.

**Appending** creates the file with the next number. If a file with the next number exists and has the same bytes, the append succeeded: an
earlier attempt created the file, and only its last sync is missing. If the file's bytes differ, the batch was not appended and never will
be, because the log is being sealed.

**Sealing.**

1. Create the mark `sealing`.
2. List the entries of the log.
3. Unless the highest entry is a seal, create a seal above the highest number. Try the next number first. If the appender has already used
   that number, jump by 2, 4, 8 … so that no appender can outrun the sealer.
4. Create a seal at each lower number, in descending order, until reaching a batch. After this step, all numbers between that batch and the
   highest seal are seals, and the appender has already used all lower numbers. So the appender's next number holds a seal, and the appender
   acknowledges no further batch.
5. Create the mark `sealed`, so that other sealers can skip the work.

A sealer never searches upwards for the highest number, because deleted batches leave gaps. A sealer that descends does not stop at an
existing seal, because the process that made the seal may have died before sealing the lower numbers. A damaged file does not stop the
sealer either. Extra seals are harmless.

**Deleting** never removes seals or the entry with the highest number. While a log has the mark `sealing` but not `sealed`, no process
deletes batches from the log. If batches were deleted during sealing, a sealer's listing could miss two batches: the previous highest batch,
deleted after a higher one was appended, and the new highest batch. The sealer would then create its seal below the newest batch, and the
appender would continue above the seal. Waiting for the mark `sealed` before deleting prevents this. Before the deleter looks for the mark,
it has found a higher number in its listing. If the mark is absent, the sealer lists the log later and finds the higher number too. So the
batch that was highest when the sealer began its listing still exists when the sealer finishes, and stops its descent.

In a signed or encrypted store, deletions are recorded before the batches are deleted.

After a log is sealed, a slow sealer may still create seals in place of deleted batches. These late seals are harmless, because a reader
reads *all* numbers and skips seals.

For storage, this module guarantees R1 of inputs: acknowledged inputs are found after the log is sealed, and no input is acknowledged after
sealing.

**Deletion records.** The problem: anyone who can write to the store can silently remove a batch. Garbage collection leaves gaps in logs,
and nothing else records the last entry of a log. The threat model is the same as in `store/protection.py`: the attacker has no key.

In a signed or encrypted store, the deleter first writes a record of the batches that it is about to delete (`log/deleted.<random>`, kind
`LDEL`). A deletion record contains ranges of batch numbers for each log, and is authenticated with a key. Every number up to the log's
highest batch, or up to the newest number that the coordinator knows if that is higher, must be accounted for. A number is missing if it
belongs to no batch and to no recorded range.

Several processes may delete batches concurrently, so readers combine the ranges of all deletion records. Each process copies the ranges of
all existing records into its new record, and then removes the old records. So no range is lost, and a deletion record that reappears is
still correct. A batch in a recorded range may still exist, because the deleter crashed or somebody restored the file. Readers ignore a
batch that is recorded as deleted.

Deletion records preserve R1 of inputs even if somebody tampers with the store.

**Which batches may be deleted.** The problem: after a failure, an agent is rolled back to an epoch, and its later inputs are delivered
again from the logs. The epoch to which an agent will be rolled back is not known in advance, because even the newest epoch may be rejected.
So an input must be kept as long as any kept epoch could need it.

The model: a cut contains, for each agent, the number of the last input that the agent had consumed. An epoch *covers* an input if the
number in its cut is at least the input's number, or if the agent had left the fleet before the epoch. An epoch before an agent's creation
covers none of its inputs, because after a rollback to that epoch the agent is created again and needs them all. A batch may be deleted when
every kept epoch covers all inputs and journal entries in the batch. A batch is one file, so the batch is kept while any of its inputs is
needed.

Journal entries of durable turns are treated similarly. A cut contains the number of durable turns that an agent has finished, and covers
the entries of those turns. But a turn that a recovery has undone may never run again, so that no epoch would ever cover its journal
entries. If an undone turn runs again, it does so soon after the recovery. So journal entries of earlier plans become garbage once all kept
epochs are *settled*, which means that they were taken well after the current plan began. An undone turn that is repeated even later
executes its steps again. Inputs have no comparable time limit.

Commits (`commits.py`) exist only in fleets with local recovery. After a failure, each agent starts from its newest commit, or from its
checkpoint in the newest complete epoch if that is newer. So a commit may be deleted once every epoch that may become the recovery line
covers it. These epochs are the newest complete epoch, and the one before it in case the newest is damaged. The older of the two is called
the *base*. The base covers:

- all logs of plans below its own plan, because its agents were loaded from them;
- of each log of its own plan, the batches up to the log's floor in `Metadata.log_floors`. A host reports as floor the last batch whose
  commits its part of the epoch covers.

With fewer than two complete epochs there is no base, and no commit is covered. Older kept epochs need no commits: a restore to one of them
makes all commits in logs of earlier plans void, and begins an *era*. Commits in logs of plans below the era are void, and need no cover. A
batch with a commit may be deleted only if both its commits and its inputs and journal entries are no longer needed.

The caller's duties:

1. `epochs` must contain every epoch to which a recovery may go back: epochs kept in the coordinator's log, pinned epochs, and the recovery
   lines of open plans. If `epochs` is empty, nothing is deleted.
2. `left` must name only agents that do not currently exist. `left` must not name an agent that was created again under the same id, because
   an epoch between the two incarnations needs the inputs of the second.
3. A former leader may delete batches late, which is safe. A covered batch stays covered, because kept epochs are only removed, or added
   with higher numbers, and the era only increases.
4. The epochs given to `base_of` must be complete, and neither condemned nor void: a recovery never starts from such an epoch.

Keeping these batches supports R1 of inputs (an acknowledged input takes effect after any rollback), as G7 does for checkpoints.
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
from snapline.storage.packs.manifest import Metadata

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
        logs: map from log directory to the deleted ranges of that log.
        store: id of the store to which the record belongs.
        tag: authentication tag that `Guard.authenticate` computed over the other fields.
    """

    logs: dict[str, Spans]
    store: str
    tag: bytes = b""

    def message(self) -> bytes:
        """Return the bytes that the tag authenticates."""
        return canonical.encode((_PURPOSE, self.store, self.logs))


_decoder = msgspec.msgpack.Decoder(DeletionsBody)


def find_deletions(disk: Disk) -> list[str]:
    paths = [f"{LOG}/{entry.name}" for entry in store_files.listed(disk, LOG) if not entry.is_directory]
    return [path for path in paths if is_deletions_path(path)]


def read_deletions(disk: Disk, path: str, *, store_id: str | None, guard: Guard | None) -> DeletionsBody:
    """Read and check one deletion record.

    Raises:
        DamagedDataError: If the record is missing, damaged, or belongs to another store.
        StoreError: If the record was not written by a holder of the key.
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
    """Read all deletion records. Return the deleted ranges by log directory, and the paths of the records.

    Raises:
        StoreError: If the store is unreadable, or a record is damaged or was not written by a holder of the key.
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
    """Durably record batches as deleted. Raise OSError or the errors of `read_deletions` and `Guard.authenticate`."""
    logs, replaced = read_all(disk, store_id=store_id, guard=guard)
    for log, numbers in wanted.items():
        logs[log.directory] = join(logs.get(log.directory, []) + [(number, number) for number in numbers])
    body = DeletionsBody(logs, store_id)
    data = seal(DELETIONS_KIND, canonical.encode(msgspec.structs.replace(body, tag=guard.authenticate(body.message()))))
    path = deletions_path(random)
    write_once(disk, path, (data,), temporary_name=temporary_name, point="store.log.deletions")
    store_files.unlink(disk, replaced)


def join(spans: Iterable[tuple[int, int]]) -> Spans:
    """Merge overlapping and adjacent ranges."""
    joined: Spans = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


def holds(spans: Spans, number: int) -> bool:
    """Return whether any of the ranges contains `number`."""
    place = bisect_right(spans, number, key=lambda span: span[0])
    return place > 0 and number <= spans[place - 1][1]


def first_missing(batches: Collection[int], spans: Spans, newest: int) -> int:
    """Return the lowest missing number, or 0 if none is missing.

    A number is missing if it does not exceed `newest` or the highest batch number, but belongs to neither a batch nor a deleted range.
    """
    known = join([*[(number, number) for number in batches], *spans])
    end = known[0][1] if known and known[0][0] <= 1 else 0
    return end + 1 if end < max([newest, *batches]) else 0


_ALL = float("inf")


class BatchNumbers(msgspec.Struct, frozen=True, gc=False):
    """Summary of a batch, from which garbage collection decides whether to delete the batch.

    Attributes:
        log, number: log and number of the batch.
        highest: map from each agent to its highest input number in the batch.
        turns: map from each agent to its highest durable turn number in the batch.
        has_commit: whether the batch contains parts of commits.
        keeps_answers: as in `LogBatch`.
    """

    log: LogName
    number: int
    highest: dict[str, int]
    turns: dict[str, int] = {}
    has_commit: bool = False
    keeps_answers: bool = False


class SettledEpoch(msgspec.Struct, frozen=True, gc=False):
    """Epoch from which on no turn of a plan before `plan` runs again."""

    plan: int
    epoch: int


NEVER_SETTLED = SettledEpoch(0, 0)


class CommitBase(msgspec.Struct, frozen=True, gc=False):
    """The base, which decides which commits are no longer needed.

    Attributes:
        plan: plan of the base; 0 if there is no base.
        floors: `Metadata.log_floors` of the base.
        era: commits in logs of plans with lower numbers are void.
    """

    plan: int = 0
    floors: dict[str, int] = {}
    era: int = 0

    def covers(self, log: LogName, number: int) -> bool:
        """Return whether the commits in this batch are void or covered by the base."""
        if log.plan < max(self.plan, self.era):
            return True
        return log.plan == self.plan and number <= self.floors.get(f"{log.host}-{log.start}", 0)


NO_BASE = CommitBase()


def base_of(epochs: Mapping[int, Metadata], era: int) -> CommitBase:
    """Return the base, which is the second newest of these complete epochs."""
    if len(epochs) < 2:
        return CommitBase(era=era)
    about = epochs[sorted(epochs)[-2]]
    return CommitBase(about.plan, about.log_floors, era)


def batch_numbers(log: LogName, number: int, batch: LogBatch) -> BatchNumbers:
    """Summarize a batch for garbage collection. The summary is small enough to keep one in memory for every batch."""
    highest: dict[str, int] = {}
    for logged in batch.inputs:
        highest[logged.agent] = max(logged.number, highest.get(logged.agent, 0))
    turns: dict[str, int] = {}
    for entry in batch.entries:
        turns[entry.agent] = max(entry.turn, turns.get(entry.agent, 0))
    return BatchNumbers(log, number, highest, turns, bool(batch.commits), batch.keeps_answers)


def find_garbage(
    batches: Iterable[BatchNumbers],
    epochs: Mapping[int, Mapping[str, int]],
    left: Mapping[str, int],
    turns: Mapping[int, Mapping[str, int]] | None = None,
    settled: SettledEpoch = NEVER_SETTLED,
    base: CommitBase = NO_BASE,
) -> list[tuple[LogName, int]]:
    """Return the batches that may be deleted, in the given order. The module docstring lists the caller's duties.

    Args:
        batches: candidate batches, possibly including batches of deleted logs.
        epochs: map from the number of each kept epoch to its `Metadata.inputs`.
        left: map from each agent that has left the fleet to the first epoch after its departure.
        turns: map from the number of each kept epoch to its `Metadata.durable_turns`, or None if no durable turn has ever ended.
    """
    if not epochs:
        return []
    inputs = _CoveredNumbers(epochs, left)
    ended = _CoveredNumbers(turns if turns is not None else {epoch: {} for epoch in epochs}, left)
    is_settled = min(epochs) >= settled.epoch

    def is_deletable(batch: BatchNumbers) -> bool:
        if batch.has_commit and not base.covers(batch.log, batch.number):
            return False
        are_old = is_settled and batch.log.plan < settled.plan
        return inputs.cover(batch.highest) and (are_old or ended.cover(batch.turns))

    return [(batch.log, batch.number) for batch in batches if is_deletable(batch)]


class _CoveredNumbers:
    """Computes, for each agent, the highest number that every kept epoch covers, and caches the results."""

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
    """Return the agent's highest number that every epoch covers.

    If a later epoch contains an agent that is listed in `left`, the agent was created again (duty 2), and counts as present.
    """
    if left is not None and any(agent in inputs for epoch, inputs in epochs.items() if epoch >= left):
        left = None
    asking = [inputs.get(agent, 0) for epoch, inputs in epochs.items() if left is None or epoch < left]
    return min(asking, default=_ALL)


NO_STARTS: Mapping[LogName, int] = {}

READINGS = 3
"""Number of times that the deletion records are read before a batch counts as missing. One listing may miss both a record and its
replacement."""


def unsupported_reason(disk: Disk) -> str:
    """Return why this disk cannot store host logs, or "" if it supports them."""
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
        """Return why this store cannot contain host logs, or "" if it supports them."""
        return unsupported_reason(self._disk)

    def find_logs(self, since_plan: int) -> list[LogName]:
        """Return the logs that have a directory. See `Store.find_logs`."""
        return find_logs(self._disk, since_plan)

    def read_logs(self, logs: Iterable[LogName] | None) -> dict[LogName, list[int]]:
        """Return the entry numbers of each log. See `Store.read_logs`."""
        found = {}
        for log in find_logs(self._disk) if logs is None else logs:
            numbers, marks = list_log(self._disk, log)
            if numbers:
                if SEALED not in marks:
                    self._make_durable(log, frozenset(numbers))
                self._durable[log] = frozenset(numbers)
                found[log] = numbers
        return found

    def read_batch(self, log: LogName, number: int) -> LogBatch | None:
        """Read an entry of a log. Return the batch, or None for a seal. See `Store.read_batch`."""
        path = entry_path(check_log(log), check_number(number))
        body = read_entry(self._disk, path, store_id=self._store_id)
        if number not in self._durable.get(log, frozenset()):
            self._make_durable(log, frozenset((number,)))
        return open_batch(body, self._guard, path=path) if isinstance(body, BatchBody) else None

    def exclude_deleted(self, logs: Mapping[LogName, list[int]]) -> dict[LogName, list[int]]:
        """Omit the entries that are recorded as deleted. See `Store.exclude_deleted`."""
        if self._guard is None or not authenticates(self._guard):
            return dict(logs)
        deleted, _ = read_all(self._disk, store_id=self._store_id, guard=self._guard)
        return {
            log: [number for number in numbers if not holds(deleted.get(log.directory, []), number)]
            for log, numbers in logs.items()
        }

    def missing_batches(
        self,
        batches: Mapping[LogName, Collection[int]],
        newest: Mapping[LogName, int],
        starts: Mapping[LogName, int] = NO_STARTS,
    ) -> dict[LogName, int]:
        """Return the lowest missing batch of each log. See `Store.missing_batches`."""
        if self._guard is None or not authenticates(self._guard):
            return {}
        return missing_batches(self._disk, batches, newest, starts, store_id=self._store_id, guard=self._guard)

    def _make_durable(self, log: LogName, numbers: frozenset[int]) -> None:
        known = self._durable.get(log, frozenset())
        if not numbers <= known:
            failpoint("store.log.read.found")
            with store_files.reading(self._disk, log.directory):
                self._disk.sync_directory(log.directory)
            self._durable[log] = numbers | known


def find_logs(disk: Disk, since_plan: int = 0) -> list[LogName]:
    """Return all logs of this plan and later ones that have a directory, in sorted order. The result is empty if the store has never
    contained a log."""
    logs = []
    for plan in _directories(disk, LOG):
        number = plan.rpartition("/")[2]
        if number.isdecimal() and int(number) >= since_plan:
            found = [parse_directory(directory) for directory in _directories(disk, plan)]
            logs += [log for log in found if log is not None]
    return sorted(logs)


def list_numbers(disk: Disk, log: LogName) -> list[int]:
    """Return the log's entry numbers in ascending order. The result is empty if the log has no directory."""
    return list_log(disk, log)[0]


def list_batches(disk: Disk, log: LogName) -> list[int]:
    """Return the log's batch numbers in ascending order. The first bytes of each file show whether it is a batch or a seal."""
    return [number for number in list_numbers(disk, log) if holds_batch(disk, entry_path(log, number))]


def list_log(disk: Disk, log: LogName) -> tuple[list[int], list[str]]:
    """Return the log's entry numbers in ascending order, and its marks. Both lists are empty if the log has no directory."""
    entries = store_files.listed(disk, log.directory)
    parsed = [parse_path(f"{log.directory}/{entry.name}") for entry in entries if not entry.is_directory]
    names = [place[1] for place in parsed if place is not None]
    return sorted([name for name in names if isinstance(name, int)]), [name for name in names if isinstance(name, str)]


def missing_batches(
    disk: Disk,
    batches: Mapping[LogName, Collection[int]],
    newest: Mapping[LogName, int],
    starts: Mapping[LogName, int] = NO_STARTS,
    *,
    store_id: str | None,
    guard: Guard,
) -> dict[LogName, int]:
    """Return the lowest missing number of each log, not counting the numbers below the log's start. Logs without missing numbers are
    omitted. See `first_missing`."""

    def unneeded(log: LogName, deleted: Mapping[str, Spans]) -> Spans:
        below = [(1, starts[log] - 1)] if starts.get(log, 1) > 1 else []
        return [*below, *deleted.get(log.directory, [])]

    missing: dict[LogName, int] = {}
    for _ in range(READINGS):
        deleted, _ = read_all(disk, store_id=store_id, guard=guard)
        missing = {
            log: number
            for log in sorted({*batches, *newest})
            if (number := first_missing(batches.get(log, ()), unneeded(log, deleted), newest.get(log, 0)))
        }
        if not missing:
            break
    return missing


def find_entries(disk: Disk) -> Iterator[str]:
    """Yield the paths of all entries, one log after another."""
    for log in find_logs(disk):
        yield from (entry_path(log, number) for number in list_numbers(disk, log))


def holds_batches(disk: Disk) -> bool:
    """Return whether any log contains a batch, not only seals."""
    return any(holds_batch(disk, path) for path in find_entries(disk))


def holds_batch(disk: Disk, path: str) -> bool:
    """Return whether the beginning of the file identifies a batch."""
    try:
        return is_batch(disk.read(path, 0, HEAD_BYTES))
    except OSError:
        return False


def keys_of_batches(disk: Disk, store_id: str) -> set[str]:
    """Return the ids of the keys with which the store's batches are encrypted. Raise the errors of `check_entry`."""
    entries = [_read(disk, path, store_id) for path in find_entries(disk)]
    return {entry.key for entry in entries if isinstance(entry, BatchBody) and entry.key}


def check_entry(disk: Disk, path: str, *, store_id: str | None, guard: Guard | None) -> None:
    """Read and check a log file, including its encrypted or signed contents. Raise the errors of `read_entry`, except that a missing file
    is reported as damage."""
    body = _read(disk, path, store_id)
    if isinstance(body, BatchBody):
        open_batch(body, guard, path=path)


def read_entry(disk: Disk, path: str, *, store_id: str | None) -> BatchBody | SealBody:
    """Read the log file at `path`, and make every check that needs no key.

    Raises:
        NotFoundError: If the file does not exist.
        DamagedDataError, StoreError: As in `decode_file`, or if the file is unreadable.
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
        """Encode a batch as a file. See `Store.prepare_batch`."""
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
        """Write the batch to its file, and return whether the batch is durable. See `Store.append_batch`."""
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
            self._begin_seal(log)
            try:
                top = max(list_numbers(self._disk, log), default=0)
                if not top:
                    self._prepare_directory(log)  # otherwise the writer of an entry has done so
                failpoint("store.log.seal.directory")
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
        """Check the log's certificate, and return it. If the caller passes no certificate, a process with the private key issues one
        itself.

        The certificate is checked before anything is written, because a batch that readers would reject must not be acknowledged.
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
        """Create a mark. Only the existence of the mark matters, so the contents of an existing mark are not read."""
        path, data = entry_path(log, mark), encode_seal(log, mark, store_id=self._store_id)
        try:
            write_once(self._disk, path, (data,), temporary_name=self._temporary_name(log), point="store.log.mark")
        except FileExistsError:
            self._disk.sync_directory(log.directory)

    def _begin_seal(self, log: LogName) -> None:
        """Create the mark `sealing`, and the log's directory if it is missing."""
        if log not in self._known_directories:
            self._require_support()
            try:
                self._mark(log, SEALING)
                return
            except FileNotFoundError:
                self._prepare_directory(log)
        self._mark(log, SEALING)

    def _is_marked(self, log: LogName, mark: str) -> bool:
        try:
            self._disk.size(entry_path(log, mark))
        except FileNotFoundError:
            return False
        return True

    def _seal_above(self, log: LogName, number: int) -> int:
        """Create a seal above all batches (step 3 of sealing), and return its number."""
        for jump in range(JUMPS_MAX):
            number += 2**jump
            if self._create_seal(log, number):
                return number
        raise StoreError(f"{log} grows faster than it can be sealed: stop that host, and try again")

    def _seal_below(self, log: LogName, top: int) -> None:
        """Create seals in descending order until reaching a batch (step 4 of sealing)."""
        for number in range(top - 1, max(0, top - 1 - SEALS_MAX), -1):
            path = entry_path(log, number)
            if holds_batch(self._disk, path) or (not self._create_seal(log, number) and holds_batch(self._disk, path)):
                return
        if top - 1 > SEALS_MAX:
            raise StoreError(f"{log} has {SEALS_MAX} seals and no batch below: look at {log.directory} in the store")

    def _create_seal(self, log: LogName, number: int) -> bool:
        """Create a seal at `number` unless the number is used. Return whether the number now holds a durable seal."""
        path, data = entry_path(log, number), encode_seal(log, number, store_id=self._store_id)
        name = self._temporary_name(log)
        try:
            store_files.create_or_compare(self._disk, path, data, temporary_name=name, point="store.log.seal")
        except FileExistsError:
            return False
        return True

    def _is_seal(self, log: LogName, number: int) -> bool:
        """Return whether the file equals the expected seal byte by byte."""
        path, data = entry_path(log, number), encode_seal(log, number, store_id=self._store_id)
        with store_files.reading(self._disk, path):
            return self._disk.size(path) == len(data) and self._disk.read(path, 0, len(data)) == data

    def _check_intact(self, path: str) -> None:
        """Check that the existing file at a batch's path is intact. If the existing file is damaged, it might be the batch itself, so the
        outcome of the append is unknown."""
        try:
            read_entry(self._disk, path, store_id=self._store_id)
        except NotFoundError as error:
            raise StoreError(f"{path} was deleted just now: try again") from error

    def _find_deletable(self, log: LogName, numbers: set[int]) -> list[int]:
        """Return the `numbers` whose batches may be deleted. As the module docstring explains, the log must be listed before the mark is
        checked."""
        listed = list_numbers(self._disk, log)
        highest = max(listed, default=0)
        wanted = [number for number in listed if number in numbers and number < highest]
        if not wanted or (self._is_marked(log, SEALING) and not self._is_marked(log, SEALED)):
            return []
        self._disk.sync_directory(log.directory)  # The mark `sealed` must survive a power failure.
        return [number for number in wanted if holds_batch(self._disk, entry_path(log, number))]

    def _note(self, found: dict[LogName, list[int]]) -> None:
        """Write a deletion record for the batches that are about to be deleted."""
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

    def _require_support(self) -> None:
        if unsupported_reason(self._disk):
            raise UsageError(f"{unsupported_reason(self._disk)}: a fleet with inputs needs another one")

    def _prepare_directory(self, log: LogName) -> None:
        """Create the log's directory durably, unless this writer has already done so."""
        if log in self._known_directories:
            return
        self._require_support()
        for directory in (LOG, log.directory.rpartition("/")[0], log.directory):
            make_durable_directory(self._disk, directory)
        self._known_directories.add(log)

    def _temporary_name(self, log: LogName) -> str:
        return f"log-{log.plan}-{self._random_bytes(_ID_BYTES).hex()}"
