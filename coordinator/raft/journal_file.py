"""The SQLite file of the journal: atomic transactions, and digests that detect damage.

WAL mode with synchronous=FULL: SQLite syncs its write-ahead log at every commit, so a transaction that was committed
survives a power failure, and one that was not leaves no trace. The journal calls `checkpoint` to copy the write-ahead log into
the main file: SQLite's automatic checkpoint, inside COMMIT, would hide its errors.

The file is locked while it is open: two processes with one log would vote twice.

Rows are `log(idx, term, command, digest)` and `meta(key, value, digest)`, the value as JSON. Digests are BLAKE2b-128: of index
and term (eight bytes each, little-endian) and command, or of key, a zero byte and value. One kind of damage is not detected: SQLite silently
drops a damaged end of its write-ahead log.

Errors while opening are `LogError`s with advice; `write` and `checkpoint` raise SQLite's errors.
"""

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec

from snapline.coordinator.raft.durability import make_folder, sync_folder
from snapline.errors import LogError, UsageError
from snapline.failpoints import failpoint

Entry = tuple[bytes, int, int]
"""(command, index, term), as in the library."""

Fact = int | str | bool | None

FORMAT = "snapline raft journal 1"
_FACTS = frozenset({"format", "cluster", "node", "log", "voter", "boot", "term", "vote", "commit"})
MEMBERS = "members"
"""Key of the fact with the ids of all replicas, sorted and separated by commas; set when a replica opens the log."""

_CREATE = (
    "CREATE TABLE log (idx INTEGER PRIMARY KEY, term INTEGER NOT NULL, command BLOB NOT NULL, digest BLOB NOT NULL)",
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL, digest BLOB NOT NULL) WITHOUT ROWID",
)
ADVICE = (
    "empty its data directory: it catches up from the others; without them run `snapline coordinator restore-backup`"
)


class ForeignLogError(LogError):
    """The log is intact, but belongs to another replica or set of replicas, or a newer one has replaced it: --data-dir or --peers is wrong."""

    exit_code = UsageError.exit_code


class JournalContents(msgspec.Struct, frozen=True, gc=False):
    """Content of the file when it was opened."""

    entries: list[Entry]
    term: int
    vote: str | None
    commit_index: int
    boot: int
    """Number of openings of this file, including this one."""
    is_new: bool
    log_id: str
    """Random id of this file; another file of the same replica has another id."""
    is_voter: bool


def known_cluster(path: Path) -> str:
    """Return the cluster of a journal; "": there is no journal, or it cannot be read."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            row = connection.execute("SELECT value FROM meta WHERE key = 'cluster'").fetchone()
            return str(msgspec.json.decode(row[0])) if row else ""
    except (sqlite3.Error, msgspec.DecodeError):
        return ""


class JournalFile:
    """SQLite file, kept open and locked. Any thread may use it, one at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def open(self, *, cluster: str, node: str, members: str = "") -> JournalContents:
        """Open or create the file, count the boot, read everything, and record the ids of all replicas if given.

        Raises:
            ForeignLogError: the file belongs to another cluster, node or set of members.
            LogError: the file is damaged, in use, or cannot be read.
        """
        try:
            make_folder(self._path.parent)
            with contextlib.suppress(FileExistsError):  # SQLite gives its other files the same mode
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            self._connection = sqlite3.connect(
                self._path, isolation_level=None, timeout=1.0, check_same_thread=False, cached_statements=32
            )
            self._prepare()
            is_new = self._create(cluster, node)
            contents = self._read(cluster, node, members, is_new)
            self.write({"boot": contents.boot, **({MEMBERS: members} if members else {})})
            sync_folder(self._path.parent)
        except LogError:
            self.close()
            raise
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise self._error_of(error) from error
        return contents

    def write(
        self,
        facts: Mapping[str, Fact],
        entries: Sequence[Entry] = (),
        *,
        first: int = 0,
        equal_until: int = 2**63 - 1,
    ) -> None:
        """Drop the rows before `first` and after `equal_until`, and add `entries` and `facts`, in one transaction."""
        connection = self._connected()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM log WHERE idx > ?", (equal_until,))
        connection.execute("DELETE FROM log WHERE idx < ?", (first,))
        failpoint("raft.journal.deleted")
        if entries:
            connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?)", map(_row_of, entries))
        for key, fact in facts.items():
            connection.execute("REPLACE INTO meta VALUES (?, ?, ?)", _fact_row(key, fact))
        failpoint("raft.journal.written")
        connection.execute("COMMIT")
        failpoint("raft.journal.committed")

    def checkpoint(self) -> None:
        """Copy the write-ahead log into the main file, so that it can be reused."""
        self._connected().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    @property
    def is_open(self) -> bool:
        """Return whether the file was opened and not closed."""
        return self._connection is not None

    def close(self) -> None:
        """Close and unlock. Uncommitted changes are lost."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise LogError(f"{self._path} is closed")
        return self._connection

    # ---- opening ----------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        connection = self._connected()
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        if connection.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
            raise LogError(f"{self._path} cannot have a write-ahead log: put it on a local disk")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA wal_autocheckpoint=0")

    def _create(self, cluster: str, node: str) -> bool:
        """Create the tables and facts of a new file in one transaction; return whether the file was new."""
        connection = self._connected()
        connection.execute("BEGIN IMMEDIATE")
        is_new: bool = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if is_new:
            for statement in _CREATE:
                connection.execute(statement)
            facts: dict[str, Fact] = {"format": FORMAT, "cluster": cluster, "node": node, "boot": 0}
            facts.update(log=new_log_id(), voter=False, term=0, vote=None, commit=1)
            connection.executemany("INSERT INTO meta VALUES (?, ?, ?)", [_fact_row(*fact) for fact in facts.items()])
        connection.execute("COMMIT")
        failpoint("raft.journal.created")
        return is_new

    def _read(self, cluster: str, node: str, members: str, is_new: bool) -> JournalContents:
        connection = self._connected()
        check = connection.execute("PRAGMA integrity_check").fetchone()[0]
        if check != "ok":
            raise self._damaged(check)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables != {"log", "meta"}:
            raise LogError(f"{self._path} is no Raft journal: start the coordinator with another data directory")
        facts = self._read_facts()
        for key, expected in (("format", FORMAT), ("cluster", cluster), ("node", node)):
            if facts[key] != expected:
                raise ForeignLogError(
                    f"{self._path} is of {key} {facts[key]!r}, not {expected!r}: start the coordinator with its own"
                    " data directory, or with the release that wrote it"
                )
        known_members = facts.get(MEMBERS, members)
        if members and known_members != members:
            raise ForeignLogError(
                f"{self._path} is the log of a coordinator with the replicas {known_members}, not {members}: they are the same for ever; give --peers "
                "as before, or take other ones from a backup by `snapline coordinator restore-backup`"
            )
        return self._contents_of(facts, self._read_entries(), is_new)

    def _read_facts(self) -> dict[str, Fact]:
        facts: dict[str, Fact] = {}
        for key, value, digest in self._connected().execute("SELECT key, value, digest FROM meta"):
            if not (isinstance(key, str) and isinstance(value, bytes) and digest == _fact_digest(key, value)):
                raise self._damaged(f"fact {key!r}")
            facts[key] = msgspec.json.decode(value)
        if facts.keys() - {MEMBERS} != _FACTS:
            raise self._damaged(f"facts {sorted(_FACTS ^ facts.keys())}")
        return facts

    def _read_entries(self) -> list[Entry]:
        entries: list[Entry] = []
        for idx, term, command, digest in self._connected().execute(
            "SELECT idx, term, command, digest FROM log ORDER BY idx"
        ):
            is_whole = isinstance(idx, int) and isinstance(term, int) and isinstance(command, bytes)
            if not (is_whole and idx > 0 and term >= 0 and digest == _entry_digest(command, idx, term)):
                raise self._damaged(f"entry {idx}")
            if entries and idx != entries[-1][1] + 1:
                raise self._damaged(f"entry {idx} follows {entries[-1][1]}")
            if entries and term < entries[-1][2]:
                raise self._damaged(f"entry {idx} goes back to term {term}")
            entries.append((command, idx, term))
        return entries

    def _contents_of(self, facts: Mapping[str, Fact], entries: list[Entry], is_new: bool) -> JournalContents:
        term, vote, commit_index, boot = facts["term"], facts["vote"], facts["commit"], facts["boot"]
        last_index, last_term = entries[-1][1:] if entries else (1, 0)
        if not (isinstance(term, int) and isinstance(commit_index, int) and isinstance(boot, int)):
            raise self._damaged("facts that are no numbers")
        if not (vote is None or isinstance(vote, str)):
            raise self._damaged("a vote for no node")
        if last_term > term:
            raise self._damaged(f"entry {last_index} is of term {last_term}, but the term is {term}")
        if commit_index > last_index:
            raise self._damaged(f"entry {commit_index} was committed, but the log ends at {last_index}")
        log_id, is_voter = facts["log"], facts["voter"]
        if not (isinstance(log_id, str) and isinstance(is_voter, bool)):
            raise self._damaged("no id of the log")
        return JournalContents(entries, term, vote, commit_index, boot + 1, is_new, log_id, is_voter)

    def _damaged(self, what: object) -> LogError:
        return LogError(f"{self._path} is damaged ({what}): {ADVICE}")

    def _error_of(self, error: Exception) -> LogError:
        if "locked" in str(error):
            return LogError(f"{self._path} is in use: another coordinator runs on this data directory")
        if isinstance(error, sqlite3.OperationalError | OSError):
            return LogError(f"{self._path} cannot be read or written: {error}; mend the disk and start again")
        return self._damaged(error)


def new_log_id() -> str:
    """Return a random unique id. Simulations replace this function."""
    return secrets.token_hex(16)


def _row_of(entry: Entry) -> tuple[int, int, bytes, bytes]:
    command, idx, term = entry
    return idx, term, command, _entry_digest(command, idx, term)


def _entry_digest(command: bytes, idx: int, term: int) -> bytes:
    return blake2b(idx.to_bytes(8, "little") + term.to_bytes(8, "little") + command, digest_size=16).digest()


def _fact_row(key: str, fact: Fact) -> tuple[str, bytes, bytes]:
    value = msgspec.json.encode(fact)
    return key, value, _fact_digest(key, value)


def _fact_digest(key: str, value: bytes) -> bytes:
    return blake2b(key.encode() + b"\0" + value, digest_size=16).digest()
