"""Journal of one replica: its Raft log, term and vote, as a pysyncobj `Journal` that is stored in one SQLite file.

Theory of operation (G8, G11; H1, H3 and H4 of the Raft design)
----------------------------------------------------------------
Raft is safe only if three things are durable before any message that reveals them is sent: the term, the vote, and the acknowledged entries
(Ongaro and Ousterhout, In Search of an Understandable Consensus Algorithm, 2014, figure 2, "persistent state on all servers"). The
original pysyncobj syncs neither term, vote nor entries to disk.

*Memory first, then the file.* The library reads and changes a list in memory without any I/O. `sync` writes all changes of the list to the
file in one transaction (*group commit*). The file is therefore always consistent, even after a crash. Up to the index `_file_equal_until`,
the rows of the file are known to equal the list. Each commit deletes all rows after `_file_equal_until`, and adds the missing rows.

*Kept tail (H4).* For every AppendEntries, the library cuts the log after `prevLogIdx` and adds the message's entries again, although most
of them are unchanged. If the cut were written to disk, a crash at that moment would lose acknowledged entries. `deleteEntriesFrom`
therefore only sets the cut entries aside, as the *tail*. If `add` is called with the index and term of the tail's first entry, it moves
that entry back into the log. If the terms differ, the entries really conflict, and `add` drops the tail (receiver rule 3 of
AppendEntries). `put_back` moves the rest of the tail back into the log.

*Never written* are a gap in the log, a term that decreases, an entry of a term that has not begun, two commands with the same index and
term, and two votes in one term. Each of these errors would break an assumption in Raft's proof. The process ends before it writes such an
error, and refuses a file that contains one. A write error also ends the process (H3), without a retry.

*The SQLite file.* Transactions are atomic, and digests detect damage. In WAL mode with synchronous=FULL, SQLite syncs its write-ahead log
at every commit, so exactly the committed transactions survive a power failure. The journal itself copies the write-ahead log into the main
file (`checkpoint`), because SQLite would do so inside COMMIT and hide errors. While open, the file is locked, because two processes with
the same log would vote twice.

The tables are `log(idx, term, command, digest)` and `meta(key, value, digest)`; each value is JSON. Digests are BLAKE2b-128. The digest
of a log row covers index and term (eight bytes each, little-endian) and the command. The digest of a meta row covers the key, a zero byte
and the value. Only one kind of damage goes undetected: SQLite silently drops a damaged end of its write-ahead log.

Errors on opening the file are raised as `LogError` with advice. `write` and `checkpoint` raise SQLite's own errors.

The caller's duties
-------------------
1. Call `sync` before sending any reply that reveals earlier changes, and before a leader counts its own confirmation. Safety depends on
   this rule. (Changes to the term or vote are synced immediately.) Call `put_back` after every message, even if the message could not be
   handled.
3. Use the journal from only one thread at a time.
"""

import contextlib
import os
import secrets
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NoReturn, overload

import msgspec
from pysyncobj.journal import Journal  # type: ignore[import-untyped]  # the library has no types

from snapline.coordinator.raft.durability import fail_stop, make_folder
from snapline.errors import LogError, UsageError
from snapline.failpoints import failpoint
from snapline.folders import sync_folder

Entry = tuple[bytes, int, int]
"""A log entry (command, index, term), as in pysyncobj."""

Fact = int | str | bool | None

FORMAT = "snapline raft journal 1"
_FACTS = frozenset({"format", "cluster", "node", "log", "voter", "boot", "term", "vote", "commit"})
MEMBERS = "members"
"""Key of the fact that contains the ids of all replicas, sorted and separated by commas. The fact is set when a replica opens the log."""

_CREATE = (
    "CREATE TABLE log (idx INTEGER PRIMARY KEY, term INTEGER NOT NULL, command BLOB NOT NULL, digest BLOB NOT NULL)",
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL, digest BLOB NOT NULL) WITHOUT ROWID",
)
ADVICE = (
    "empty its data directory: it catches up from the others; without them run `snapline coordinator restore-backup`"
)


class ForeignLogError(LogError):
    """Error: the log is intact, but belongs to another replica or another set of replicas, or has been replaced by a newer log. The usual
    cause is a wrong --data-dir or --peers."""

    exit_code = UsageError.exit_code


class JournalContents(msgspec.Struct, frozen=True, gc=False):
    """Content of the journal file when it was opened."""

    entries: list[Entry]
    term: int
    vote: str | None
    commit_index: int
    boot: int
    """How often this file has been opened, including this time."""
    is_new: bool
    log_id: str
    """Random id of this file. Another file of the same replica has a different id."""
    is_voter: bool


def known_cluster(path: Path) -> str:
    """Return the cluster's name in a journal file, or "" if there is no readable journal."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            row = connection.execute("SELECT value FROM meta WHERE key = 'cluster'").fetchone()
            return str(msgspec.json.decode(row[0])) if row else ""
    except (sqlite3.Error, msgspec.DecodeError):
        return ""


class JournalFile:
    """The SQLite file of a journal, kept open and locked. Any thread may use the file, but only one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def open(self, *, cluster: str, node: str, members: str = "") -> JournalContents:
        """Open or create the file, count this opening, read the content, and record `members`, the ids of all replicas, if given.

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
        """Delete, in one transaction, the rows before `first` and after `equal_until`, and add `entries` and `facts`."""
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
        """Copy SQLite's write-ahead log into the main file, so that its space can be reused."""
        self._connected().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    @property
    def is_open(self) -> bool:
        """Return whether the file is open."""
        return self._connection is not None

    def close(self) -> None:
        """Close and unlock the file. Uncommitted changes are lost."""
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
        """Create the tables and facts of a new file in one transaction. Return whether the file was new."""
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
    """Return a new random id for a log. Simulations replace this function."""
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


CHECKPOINT_BYTES = 2**20
"""Number of bytes written after which the journal checkpoints SQLite's write-ahead log, at most once a second. The checkpoints bound the
size of the write-ahead log."""

_PAGES_BYTES = 3 * 4096
"""Approximate size, in bytes, of a commit with one small entry: two tables and an inner page."""


class SqliteJournal(Journal):  # type: ignore[misc]  # the library has no types
    """Raft log of `(command, index, term)` entries with term, vote and commit index, stored in a file.

    The constructor opens the file, because pysyncobj's own journals do so too.

    Args:
        path: path of the SQLite file. The file's folder is created if missing.
        cluster, node: cluster and replica that own the log. The file of another owner is refused.
        members: ids of all replicas, sorted and separated by commas. A file that contains other ids is refused. If `members` is empty,
            the ids are not checked.
        fail: function that is called with an error message when memory and file may differ, and must not return.

    Raises:
        ForeignLogError: the file belongs to another cluster, node or set of members.
        LogError: the file is damaged, in use, or cannot be read.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        cluster: str,
        node: str,
        members: str = "",
        fail: Callable[[str], NoReturn] = fail_stop,
    ) -> None:
        self._path = Path(path)
        self._on_failure = fail
        self._failure = ""
        """Reason of a failure, after which all calls fail; "" if there was none."""
        self._file = JournalFile(self._path)
        contents = self._file.open(cluster=cluster, node=node, members=members)
        self._entries: list[Entry] = contents.entries
        self._tail: deque[Entry] = deque()
        """Entries set aside by `deleteEntriesFrom`. The tail follows `_entries` without a gap, and the file may contain it."""
        self._file_equal_until = self._entries[-1][1] if self._entries else 0
        """Last index up to which the file's rows equal `_entries` and `_tail`. The file may also contain earlier rows that are no longer
        needed."""
        self._is_changed = False
        """True if the log, term or vote has changed since the last commit. A change of the commit index alone does not count."""
        self._term = contents.term
        self._vote = contents.vote
        self._commit_index = self._saved_commit_index = contents.commit_index
        self._facts: dict[str, Fact] = {}
        """Facts that the next commit writes."""
        self._log_bytes = 0
        """Approximate number of bytes written to SQLite's write-ahead log since its last checkpoint."""
        self.is_new = contents.is_new
        """True if the file was just created. If the replica has other files, it has lost its votes."""
        self.log_id = contents.log_id
        """Random id of this file. Another file of the replica has a different id."""
        self.is_voter = contents.is_voter
        """True if this log may vote."""
        self.boot = contents.boot
        """How often the file has been opened, including this time."""
        self.size_bytes = sum(len(entry[0]) for entry in self._entries)
        """Total size, in bytes, of all commands in memory. Compaction limits this size."""
        self.commits = 0
        """Number of transactions, each of which syncs the file once."""
        self.commit_s = 0.0
        """Total duration of the transactions, in seconds."""
        self.commit_s_max = 0.0

    # ---- the log ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...
    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._entries[item]

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Append an entry. If it is the first entry of the tail that was set aside, take it from there."""
        self._check()
        if self._tail:
            kept, kept_idx, kept_term = self._tail[0]
            if (kept_idx, kept_term) == (idx, term):
                if kept != command:
                    self._stop(f"entry {idx} of term {term} has two contents: two leaders, or a damaged replica")
                self._entries.append(self._tail.popleft())
                return
            self._drop_tail()
        self._check_next(idx, term)
        self._entries.append((bytes(command), idx, term))
        self._file_equal_until = min(
            self._file_equal_until, idx - 1
        )  # the file may contain another entry at this index
        self.size_bytes += len(command)
        self._is_changed = True

    def clear(self) -> None:
        """Remove all entries."""
        self._check()
        self._entries.clear()
        self._tail.clear()
        self.size_bytes = 0
        self._is_changed = True

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Set aside all entries from this position on. `add` or `put_back` may restore them, and `add` may drop them."""
        self._check()
        self._tail.extendleft(reversed(self._entries[entryFrom:]))
        del self._entries[entryFrom:]

    def deleteEntriesTo(self, entryTo: int) -> None:
        """Remove all entries before this position, because a dump covers them."""
        self._check()
        count = len(self._entries[:entryTo])
        self.put_back()
        if count:
            self.size_bytes -= sum(len(entry[0]) for entry in self._entries[:count])
            del self._entries[:count]
            self._is_changed = True

    def put_back(self) -> None:
        """Restore the entries that are still set aside, because the message did not contradict them."""
        if self._tail:
            self._entries.extend(self._tail)
            self._tail.clear()

    def _drop_tail(self) -> None:
        """Drop the tail. The entries in the tail were never committed, because a leader of a later term has other entries."""
        self.size_bytes -= sum(len(entry[0]) for entry in self._tail)
        self._tail.clear()
        self._is_changed = True

    def _check_next(self, idx: int, term: int) -> None:
        last_idx, last_term = self._entries[-1][1:] if self._entries else (idx - 1, 0)
        if idx != last_idx + 1 or idx < 1:
            self._stop(f"entry {idx} would follow entry {last_idx}: a peer sent a log with a gap")
        if not last_term <= term <= self._term:
            self._stop(f"entry {idx} of term {term} would follow term {last_term} while the term is {self._term}")

    # ---- term, vote, commit index -----------------------------------------------------------------------------------

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        """Set the term and the vote. Both are durable on return, together with all earlier changes."""
        self._check()
        if term < self._term:
            self._stop(f"the term would go back from {self._term} to {term}")
        if term == self._term and self._vote not in (None, votedForNodeId):
            self._stop(f"a second vote in term {term}: for {votedForNodeId} after {self._vote}")
        if (term, votedForNodeId) != (self._term, self._vote):
            self._term, self._vote = term, votedForNodeId
            self._facts.update(term=term, vote=votedForNodeId)
            self._is_changed = True
        self._commit()

    def become_voter(self) -> None:
        """Permit this log to vote from now on. The permission is durable on return, together with all earlier changes."""
        self._check()
        self.is_voter = self._facts["voter"] = self._is_changed = True
        self._commit()

    def getCurrentTerm(self) -> int:
        return self._term

    def getVotedForNodeId(self) -> str | None:
        return self._vote

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Set the commit index. The commit index is written only once per second, because an outdated value after a restart is harmless."""
        self._commit_index = raftCommitIndex

    def getRaftCommitIndex(self) -> int:
        return self._commit_index

    # ---- the file ---------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Put the tail back, and make all earlier changes durable. If nothing has changed, do no I/O."""
        self._check()
        self.put_back()
        self._commit()

    def onOneSecondTimer(self) -> None:
        """Write the commit index and, if enough data was written, checkpoint SQLite's write-ahead log."""
        self._check()
        self.put_back()
        self._save_commit_index()
        self._commit()
        if self._log_bytes > CHECKPOINT_BYTES:
            try:
                self._file.checkpoint()
            except Exception as error:
                self._stop(f"{self._path} cannot be written ({error}): mend the disk and start again")
            self._log_bytes = 0

    def _destroy(self) -> None:
        """Sync and close the file. After a failure, only close it. A repeated call has no effect."""
        try:
            if not self._failure and self._file.is_open:
                self.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file without a sync, to simulate a crash."""
        self._failure = self._failure or f"{self._path} is closed"
        self._file.close()

    def _save_commit_index(self) -> None:
        last = self._end()
        value = max(1, min(self._commit_index, last))
        if value != self._saved_commit_index:
            self._facts["commit"] = self._saved_commit_index = value
            self._is_changed = True

    def _commit(self) -> None:
        if not self._is_changed:
            return
        if self._saved_commit_index > max(1, self._end()):
            self._save_commit_index()
        first = self._entries[0][1] if self._entries else self._tail[0][1] if self._tail else 2**63 - 1
        rows = self._rows_after(max(self._file_equal_until, first - 1))
        began = time.perf_counter()
        try:
            self._file.write(self._facts, rows, first=first, equal_until=self._file_equal_until)
        except Exception as error:
            self._stop(f"{self._path} cannot be written ({error}): mend the disk and start again")
        took = time.perf_counter() - began
        self.commits += 1
        self.commit_s += took
        self.commit_s_max = max(self.commit_s_max, took)
        self._log_bytes += _PAGES_BYTES + sum(len(row[0]) for row in rows)
        self._file_equal_until = self._end()
        self._facts = {}
        self._is_changed = False

    def _rows_after(self, idx: int) -> list[Entry]:
        """Return all entries with an index above `idx`, including entries that are set aside."""
        begin = idx + 1 - self._entries[0][1] if self._entries else 0
        rows = self._entries[begin:]
        return rows + [entry for entry in self._tail if entry[1] > idx] if self._tail else rows

    def _end(self) -> int:
        """Return the index of the last entry, including entries that are set aside, or 0 if there are no entries."""
        return self._tail[-1][1] if self._tail else self._entries[-1][1] if self._entries else 0

    def _check(self) -> None:
        if self._failure:
            self._on_failure(self._failure)

    def _stop(self, reason: str) -> NoReturn:
        self._failure = reason
        self._on_failure(reason)
