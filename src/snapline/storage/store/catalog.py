"""Summaries of a store's snapshots, cached in a SQLite file.

The problem: listing the snapshots requires reading every manifest, and each manifest has an entry for each agent. Reading manifests is slow
if there are many or the store is remote. Manifests never change, so reading each of them once is enough.

The model: `Catalog` is only a cache with one row for each published epoch, identified by number and root. Each time it is used, the catalog
is compared with the store's listing and with the refs, which are small. If an epoch no longer exists or has another root, its row is
deleted. If an epoch has no row, its manifest is read and cached. Damaged snapshots are read again each time, since a failed disk may become
readable again. A catalog is rebuilt if it is missing or corrupt, has another schema version, or belongs to another store. **No decision
relies on the catalog**: deletion, restore and verification read the store. `verify` finds manifests that were damaged after they were
cached, but the catalog does not.

The size is bounded by the store: rows are deleted with their epochs, and the file is compacted when half of it is empty.

The caller chooses the path of the catalog, which must be on a local disk and different for each user. Several processes may share the
catalog file (WAL mode). A process that cannot write the file, or cannot lock it within `BUSY_S`, works without the catalog.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from snapline.errors import DamagedDataError, NotFoundError
from snapline.folders import make_private
from snapline.storage.retention.epoch_retention import MANUAL_TRIGGER, SnapshotTime, parse_created

if TYPE_CHECKING:
    import sqlite3

    from snapline.storage.store.store import Store


SCHEMA_VERSION = 1
"""Version of the table below. A file with another version is deleted, because the store contains all its information."""

BUSY_S = 2.0
"""Maximum wait for the file's lock, in seconds. Other processes hold the lock for milliseconds. After a longer wait, a process reads the
manifests itself."""

VACUUM_PAGES_MIN = 32
"""Smallest file that is worth rewriting, in pages of 4 KiB."""

_SUFFIXES = ("", "-wal", "-shm")

_SCHEMA = """
CREATE TABLE catalog (store TEXT NOT NULL);
CREATE TABLE snapshots (
    epoch INTEGER PRIMARY KEY, root TEXT NOT NULL, created TEXT NOT NULL, "trigger" TEXT NOT NULL, fleet TEXT NOT NULL,
    protocol TEXT NOT NULL, plan INTEGER NOT NULL, hosts TEXT NOT NULL, agent_count INTEGER NOT NULL,
    state_bytes INTEGER NOT NULL, channel_state_messages INTEGER NOT NULL, channel_state_bytes INTEGER NOT NULL,
    stored_bytes INTEGER NOT NULL, pack_count INTEGER NOT NULL, damage TEXT NOT NULL
) WITHOUT ROWID;
"""


class SnapshotSummary(msgspec.Struct, frozen=True):
    """Summary of a published epoch, taken from its manifest.

    Attributes:
        hosts: sorted names of the hosts.
        stored_bytes: total size of all packs that the epoch uses. Epochs share packs, so a sum over several epochs counts shared packs more
            than once.
        damage: reason why the epoch is unreadable, or "" if it is readable. For an unreadable epoch, only `epoch` and perhaps `root` are
            known.
    """

    epoch: int
    root: str = ""
    created: str = ""
    trigger: str = ""
    fleet: str = ""
    protocol: str = ""
    plan: int = 0
    hosts: tuple[str, ...] = ()
    agent_count: int = 0
    state_bytes: int = 0
    channel_state_messages: int = 0
    channel_state_bytes: int = 0
    stored_bytes: int = 0
    pack_count: int = 0
    damage: str = ""


_FIELDS = SnapshotSummary.__struct_fields__
_INSERT = "INSERT OR REPLACE INTO snapshots VALUES ({})".format(",".join("?" * len(_FIELDS)))


def snapshot_time(summary: SnapshotSummary) -> SnapshotTime:
    """Return the properties of a snapshot on which a retention policy depends."""
    created_ns = parse_created(summary.created)
    is_manual = summary.trigger == MANUAL_TRIGGER
    return SnapshotTime(summary.epoch, created_ns, is_damaged=bool(summary.damage), is_manual=is_manual)


def summarise(store: "Store", epoch: int, *, root: str = "") -> SnapshotSummary | None:
    """Return the summary of `epoch`, or None if the epoch was deleted meanwhile. A caller that has just read the ref passes the root as
    `root`.

    Raises:
        StoreError: If the store is unreadable for a reason other than damage.
    """
    try:
        root = root or store.read_ref(epoch)
        manifest = store.read_manifest(root, epoch=epoch)
    except NotFoundError:
        return None
    except DamagedDataError as error:
        return SnapshotSummary(epoch, root, damage=str(error)) if epoch in store.epochs() else None
    about = manifest.metadata
    return SnapshotSummary(
        epoch=about.epoch,
        root=root,
        created=about.created,
        trigger=about.trigger,
        fleet=about.fleet,
        protocol=about.protocol,
        plan=about.plan,
        hosts=tuple(sorted(about.hosts)),
        agent_count=len(manifest.agents),
        state_bytes=about.state_bytes,
        channel_state_messages=about.channel_state_messages,
        channel_state_bytes=about.channel_state_bytes,
        stored_bytes=sum(pack.size_bytes for pack in manifest.packs),
        pack_count=len(manifest.packs),
    )


def read_summaries(store: "Store", path: Path | None = None) -> list[SnapshotSummary]:
    """Return the summary of each snapshot, oldest first. Use the catalog at `path` if it is usable.

    Raises:
        StoreError: If the store is unreadable. An unusable catalog is not an error.
    """
    import sqlite3

    for place in (
        path,
        path,
        None,
    ):  # First the existing file, then a new file if that one was broken, then a catalog in memory.
        try:
            with Catalog(place, store.store_id) as catalog:
                return catalog.refresh(store)
        except (sqlite3.DatabaseError, UnicodeDecodeError, _BrokenError) as error:
            if place is not None and _is_broken(error):
                _discard(place)
        except OSError:
            continue
    raise AssertionError("a catalog in memory can always be made")


class Catalog:
    """A catalog file, or a catalog in memory if `path` is None. The catalog must be used as a context manager. The methods of `Catalog`
    raise `_BrokenError` and errors of `sqlite3`."""

    def __init__(self, path: Path | None, store_id: str) -> None:
        self._path = path
        self._store_id = store_id
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        try:
            self._open()
            if not self._is_valid_catalog():
                self._rebuild()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Closing the catalog again has no effect."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def refresh(self, store: "Store") -> list[SnapshotSummary]:
        """Update the catalog from the store, and return all summaries, oldest first."""
        known = {summary.epoch: summary for summary in self.rows()}
        summaries = [
            summary for epoch in store.epochs() if (summary := _look(store, epoch, known.get(epoch))) is not None
        ]
        there = {summary.epoch for summary in summaries}
        gone = [epoch for epoch in known if epoch not in there]
        changed = [summary for summary in summaries if known.get(summary.epoch) != summary]
        if gone or changed:
            with self._connection() as database:
                database.executemany("DELETE FROM snapshots WHERE epoch = ?", [(epoch,) for epoch in gone])
                database.executemany(_INSERT, map(_row, changed))
            self._shrink()
        return summaries

    def rows(self) -> list[SnapshotSummary]:
        """Return the cached summaries, oldest first."""
        rows = self._connection().execute("SELECT * FROM snapshots ORDER BY epoch").fetchall()
        try:
            return [_summary(row) for row in rows]
        except (ValueError, TypeError) as error:  # msgspec raises a ValueError for values of other types.
            raise _BrokenError(f"{self._path} holds something else than summaries") from error

    # -- inside ------------------------------------------------------------------------------------------------------

    def _connection(self) -> "sqlite3.Connection":
        if self._database is None:
            raise AssertionError("a catalog is used inside of `with`")
        return self._database

    def _open(self) -> None:
        import sqlite3

        if self._path is not None:
            make_private(self._path.parent)
        self._database = sqlite3.connect(self._path or ":memory:", timeout=BUSY_S)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = OFF")  # A catalog broken by a power failure is rebuilt.

    def _is_valid_catalog(self) -> bool:
        database = self._connection()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA_VERSION:
            return False
        return bool(database.execute("SELECT store FROM catalog").fetchall() == [(self._store_id,)])

    def _rebuild(self) -> None:
        self.close()
        if self._path is not None:
            _discard(self._path)
        self._open()
        with self._connection() as database:
            database.executescript(f"BEGIN EXCLUSIVE; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION};")
            database.execute("INSERT INTO catalog VALUES (?)", (self._store_id,))

    def _shrink(self) -> None:
        database = self._connection()
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        (empty,) = database.execute("PRAGMA freelist_count").fetchone()
        if pages >= VACUUM_PAGES_MIN and 2 * empty >= pages:
            database.execute("VACUUM")


def _look(store: "Store", epoch: int, known: SnapshotSummary | None) -> SnapshotSummary | None:
    """Return the known summary if it is undamaged and the ref still has the same root. Otherwise read the manifest."""
    try:
        root = store.read_ref(epoch)
    except NotFoundError:
        return None
    except DamagedDataError:
        return summarise(store, epoch)
    if known is not None and known.root == root and not known.damage:
        return known
    return summarise(store, epoch, root=root)


def _row(summary: SnapshotSummary) -> tuple[Any, ...]:
    """Return the values of a row, with the hosts encoded as a JSON array."""
    values = msgspec.structs.asdict(summary)
    values["hosts"] = msgspec.json.encode(summary.hosts).decode()
    return tuple([values[name] for name in _FIELDS])


def _summary(row: Iterable[Any]) -> SnapshotSummary:
    values = dict(zip(_FIELDS, row, strict=True))
    values["hosts"] = msgspec.json.decode(values["hosts"], type=tuple[str, ...])
    return msgspec.convert(values, SnapshotSummary)


class _BrokenError(Exception):
    """SQLite can read the catalog, but the contents are invalid."""


def _is_broken(error: Exception) -> bool:
    """Return whether the error shows that the file is not a valid catalog. Return False for a locked, full or inaccessible file."""
    if isinstance(error, _BrokenError | UnicodeDecodeError):
        return True
    name = getattr(error, "sqlite_errorname", "")
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR", "SQLITE_SCHEMA", "SQLITE_FORMAT"))


def _discard(path: Path) -> None:
    for suffix in _SUFFIXES:
        with contextlib.suppress(OSError):
            path.with_name(path.name + suffix).unlink()
