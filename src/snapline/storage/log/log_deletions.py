"""Deletion of batches from host logs: which batches may be deleted, and deletion records that list the deleted ones.

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
from collections.abc import Collection, Iterable, Mapping

import msgspec

from snapline.errors import DamagedDataError, StoreError
from snapline.storage.disk import store_files
from snapline.storage.disk.layout import LOG
from snapline.storage.disk.local_disk import Disk, write_once
from snapline.storage.disk.record import Guard, canonical, check_store, damaged, seal, unseal
from snapline.storage.log.log_record import LogBatch, LogName, deletions_path, is_deletions_path, parse_directory

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
