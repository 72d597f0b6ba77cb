"""The coordinator's log: operations, in one order, that survive the coordinator.

`ReplicatedLog` is what the rest of the coordinator sees: propose an entry, and it is committed, rejected, or nobody knows.
`SqliteLog` is the log of a coordinator without replicas.

Theory of operation (SqliteLog; G8 for one replica, G11)
--------------------------------------------------------
An entry is acknowledged after the transaction that holds it is durable: SQLite in WAL mode with synchronous=FULL syncs the
write-ahead log at every commit. Entries that wait are written by one transaction (*group commit*): while one is being
synced, in a thread, the next group gathers. After the sync the entries are applied, in order, on the loop's thread, and
their proposers hear the result.

Every `COMPACTION_ENTRIES` entries the state's image replaces what it was made from: image row and deletion of the entries are
one transaction, so there is never one without the other.

Entries form a chain: each one's digest covers its number, its bytes and the digest before it; the image carries the digest of
the last entry it contains. Opening the log reads all of it and compares. What cannot be trusted raises `LogError` and
nothing is repaired: a coordinator that has forgotten a decision would contradict it. (What SQLite itself drops silently is a
damaged end of the write-ahead log. `server.py` finds that out where it matters: a store that holds later epochs than the
log knows.)

Any error while writing ends the log for good: a sync that failed may have dropped the pages, so trying it again proves nothing.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from snapline.coordinator.fleet_records import Committed, ProposalOutcome, Rejected, Result
from snapline.errors import LogError
from snapline.failpoints import failpoint

COMPACTION_ENTRIES = 1000
"""Replayed at start within a tenth of a second."""

GROUP_ENTRIES_MAX = 256
"""In one transaction: at most 16 MiB."""

WAITING_MAX = 8192
"""Entries that wait for their transaction; beyond that proposals are rejected."""

_FORMAT = "snapline coordinator log 1"
_NO_DIGEST = bytes(16)
_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS image (number INTEGER PRIMARY KEY, data BLOB NOT NULL, chain BLOB NOT NULL, digest BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS entry (number INTEGER PRIMARY KEY, data BLOB NOT NULL, digest BLOB NOT NULL)
""".strip().split(";")


class StateMachine(Protocol):
    """What the log drives. Called on the loop's thread only."""

    def apply(self, entry: bytes) -> Result:
        """Apply a committed entry. Raises LogError if it is none: the process must end."""

    def freeze(self) -> bytes:
        """The whole state as bytes."""

    def restore(self, image: bytes) -> None:
        """Take the state that `freeze` gave."""


class ReplicatedLog(Protocol):
    """What the coordinator needs of a log."""

    async def propose(self, entry: bytes) -> ProposalOutcome:
        """Have `entry` committed and applied.

        Returns Committed with the state machine's result, Rejected (it is not in the log, and never will be) or Unknown.
        After Unknown the caller proposes the same request again. Raises LogError if the log has ended for good.
        """

    async def close(self) -> None:
        """End it; what was proposed and not answered is unknown."""


class SqliteLog:
    """A log in one SQLite file. Use `open`, which reads it; one process at a time."""

    def __init__(self, path: Path, machine: StateMachine) -> None:
        self._path = path
        self._machine = machine
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="coordinator-log")
        self._waiting: list[tuple[bytes, asyncio.Future[ProposalOutcome]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._failure: LogError | None = None
        self._is_closed = False
        self._number = 0
        """Of the last entry that is durable and applied."""
        self._chain = _NO_DIGEST
        self._image_number = 0
        self.meta: dict[str, str] = {}
        """Facts about this log that never change, such as the fleet's cluster id."""

    @classmethod
    def open(cls, path: Path, machine: StateMachine, *, meta: Callable[[], dict[str, str]] = dict) -> "SqliteLog":
        """Open or create the log and bring `machine` to its state.

        Args:
            meta: gives the facts to write into a log that is new.

        Raises:
            LogError: it is damaged, in use by another process, or cannot be read; names the file and what to do.
        """
        log = cls(path, machine)
        try:
            log._executor.submit(log._connect, meta).result()
            log._load()
        except BaseException:
            log._executor.submit(log._disconnect).result()
            log._executor.shutdown()
            raise
        return log

    @property
    def number(self) -> int:
        """Number of the last entry applied."""
        return self._number

    # ---- proposing, on the loop's thread ----------------------------------------------------------------------------

    async def propose(self, entry: bytes) -> ProposalOutcome:
        """See ReplicatedLog."""
        if self._failure is not None:
            raise self._failure
        if len(self._waiting) >= WAITING_MAX:
            return Rejected(f"{WAITING_MAX} entries wait for the disk")
        future: asyncio.Future[ProposalOutcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, future))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_groups())
        return await future

    async def _write_groups(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group, self._waiting = self._waiting[:GROUP_ENTRIES_MAX], self._waiting[GROUP_ENTRIES_MAX:]
            try:
                rows = self._rows_of([entry for entry, _ in group])
                await loop.run_in_executor(self._executor, self._append, rows)
                for (entry, future), (number, _, digest) in zip(group, rows, strict=True):
                    result = self._machine.apply(entry)
                    self._number, self._chain = number, digest
                    if not future.done():
                        future.set_result(Committed(result))
                if self._number - self._image_number >= COMPACTION_ENTRIES:
                    await self._compact(loop)
            except BaseException as error:
                self._fail(error, group)
                raise

    def _fail(self, error: BaseException, group: list[tuple[bytes, asyncio.Future[ProposalOutcome]]]) -> None:
        failure = error if isinstance(error, LogError) else LogError(f"{self._path}: {error!r}")
        self._failure = failure
        for _, future in group + self._waiting:
            if not future.done():
                future.set_exception(failure)
        self._waiting = []

    def _rows_of(self, entries: list[bytes]) -> list[tuple[int, bytes, bytes]]:
        rows, number, chain = [], self._number, self._chain
        for entry in entries:
            number += 1
            chain = _link(chain, number, entry)
            rows.append((number, entry, chain))
        return rows

    async def _compact(self, loop: asyncio.AbstractEventLoop) -> None:
        image = self._machine.freeze()
        number, chain = self._number, self._chain
        row = (number, image, chain, _link(chain, number, image))
        await loop.run_in_executor(self._executor, self._replace_image, row)
        self._image_number = number

    async def close(self) -> None:
        """Wait for what is being written, and close the file. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._writer is not None:
            await asyncio.gather(self._writer, return_exceptions=True)
        if self._failure is None:
            self._failure = LogError(f"{self._path} is closed")
        await asyncio.get_running_loop().run_in_executor(self._executor, self._disconnect)
        self._executor.shutdown()

    # ---- the file, on the executor's one thread ---------------------------------------------------------------------

    def _connect(self, meta: Callable[[], dict[str, str]]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = self._connection = sqlite3.connect(self._path, isolation_level=None, timeout=1.0)
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            if connection.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
                raise LogError(f"{self._path} cannot have a write-ahead log: put it on a local disk")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("BEGIN IMMEDIATE")
            for statement in _TABLES:
                connection.execute(statement)
            if connection.execute("SELECT count(*) FROM meta").fetchone()[0] == 0:
                rows = {"format": _FORMAT, **meta()}
                connection.executemany("INSERT INTO meta VALUES (?, ?)", list(rows.items()))
            connection.execute("COMMIT")
            self.meta = dict(connection.execute("SELECT key, value FROM meta"))
        except (sqlite3.Error, OSError) as error:
            raise self._error_of(error) from error
        if self.meta.pop("format", "") != _FORMAT:
            raise LogError(f"{self._path} is no log of this release: start the coordinator with another data directory")

    def _read(self) -> tuple[list[tuple[int, bytes, bytes, bytes]], list[tuple[int, bytes, bytes]]]:
        try:
            check = self._connection.execute("PRAGMA integrity_check").fetchone()[0]
            if check != "ok":
                raise LogError(f"{self._path} is damaged ({check}): {_ADVICE}")
            images = self._connection.execute("SELECT number, data, chain, digest FROM image").fetchall()
            entries = self._connection.execute("SELECT number, data, digest FROM entry ORDER BY number").fetchall()
        except (sqlite3.Error, OSError) as error:
            raise self._error_of(error) from error
        return images, entries

    def _append(self, rows: list[tuple[int, bytes, bytes]]) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT INTO entry VALUES (?, ?, ?)", rows)
            failpoint("coordinator.log.inserted")
            self._connection.execute("COMMIT")
            failpoint("coordinator.log.committed")
        except (sqlite3.Error, OSError) as error:
            raise self._error_of(error) from error

    def _replace_image(self, row: tuple[int, bytes, bytes, bytes]) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("DELETE FROM image")
            self._connection.execute("INSERT INTO image VALUES (?, ?, ?, ?)", row)
            self._connection.execute("DELETE FROM entry WHERE number <= ?", row[:1])
            failpoint("coordinator.log.replaced")
            self._connection.execute("COMMIT")
            failpoint("coordinator.log.compacted")
        except (sqlite3.Error, OSError) as error:
            raise self._error_of(error) from error

    def _disconnect(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None:
            connection.close()

    def _error_of(self, error: Exception) -> LogError:
        if "locked" in str(error):
            return LogError(f"{self._path} is in use: another coordinator runs on this data directory")
        if isinstance(error, sqlite3.OperationalError | OSError):
            return LogError(f"{self._path} cannot be read or written: {error}; mend the disk and start again")
        return LogError(f"{self._path} is damaged ({error}): {_ADVICE}")

    # ---- loading ----------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        images, entries = self._executor.submit(self._read).result()
        if len(images) > 1:
            raise LogError(f"{self._path} is damaged (two images): {_ADVICE}")
        for number, data, chain, digest in images:
            if not _is_linked(chain, number, data, digest):
                raise LogError(f"{self._path} is damaged (image {number}): {_ADVICE}")
            self._machine.restore(data)
            self._number, self._chain, self._image_number = number, chain, number
        for number, data, digest in entries:
            if number != self._number + 1 or not _is_linked(self._chain, number, data, digest):
                raise LogError(f"{self._path} is damaged (entry {number} after {self._number}): {_ADVICE}")
            self._machine.apply(data)
            self._number, self._chain = number, digest


_ADVICE = "restore it from a backup, or start a new fleet with an empty data directory and an empty store"


def _is_linked(chain: object, number: object, data: object, digest: object) -> bool:
    """Whether a row is what was written; a damaged one may hold values of any type."""
    if not (isinstance(number, int) and 0 < number < 2**63 and isinstance(data, bytes) and isinstance(chain, bytes)):
        return False
    return len(chain) == len(_NO_DIGEST) and _link(chain, number, data) == digest


def _link(chain: bytes, number: int, data: bytes) -> bytes:
    """Digest of an entry: covers its number, its bytes and what went before."""
    return blake2b(data, digest_size=16, key=chain + number.to_bytes(8, "big")).digest()
