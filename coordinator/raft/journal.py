"""The Raft log, term and vote of one replica: the `Journal` that pysyncobj writes to, on one SQLite file.

Theory of operation (G8, G11; H1, H3 and H4 of the Raft design)
----------------------------------------------------------------
Raft's safety rests on three things that are durable before a message that reveals them leaves: the term, the vote, and
the entries acknowledged (Ongaro and Ousterhout, In Search of an Understandable Consensus Algorithm, 2014, figure 2,
"persistent state on all servers"). The original pysyncobj syncs none of them.

*Memory first, then the file.* The library reads and changes a list in memory, without I/O. `sync` makes the file equal to the list by one
transaction (*group commit*). So the file goes from one consistent state to the next, even if the process crashes. Up to index
`_file_equal_until` the file's rows equal the list. A commit deletes other rows and adds the missing ones.

*Kept tail (H4).* For every AppendEntries the library cuts the log after `prevLogIdx` and adds the message's entries again, although most
are the same. If the cut were written, a crash at that moment would lose acknowledged entries. So `deleteEntriesFrom` only sets the tail
aside. `add` takes an entry of equal index and term back from it. An entry of another term is a real conflict and drops the tail (receiver
rule 3 of AppendEntries). `put_back` restores the rest.

*What is never written.* A gap in the log, a term that goes back, an entry of a term that has not begun, two commands under
one index and term, two votes in one term. Each would break an assumption of Raft's proof, so each ends the process, and a file that holds
one is refused. An error while writing ends the process, too (H3); nothing is retried.

The caller's duties
-------------------
1. Call `sync` before sending any reply that reveals earlier changes, and before the leader counts itself. Safety depends on this rule.
   (Terms and votes sync themselves.)
2. Call `put_back` after every handled message, even if handling it failed.
3. Use one thread at a time.
"""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, overload

from pysyncobj.journal import Journal  # type: ignore[import-untyped]  # has no stubs

from snapline.coordinator.raft.durability import fail_stop
from snapline.coordinator.raft.journal_file import Entry, Fact, JournalFile

CHECKPOINT_BYTES = 2**20
"""Bytes written after which SQLite checkpoints, at most once a second; this bounds the write-ahead log."""

_PAGES_BYTES = 3 * 4096
"""Approximate size of a commit with one small entry: two tables and an inner page."""


class SqliteJournal(Journal):  # type: ignore[misc]  # the library has no types
    """A list of `(command, index, term)` with term, vote and commit index, and a file behind it.

    Constructing opens the file, as the library does it with its own journals.

    Args:
        path: path of the SQLite file; its folder is made if it is missing.
        cluster, node: owner of the log; another owner's file is refused.
        members: ids of all replicas, sorted and separated by commas; a file with other ids is refused. Empty: not checked.
        fail: called with one sentence when memory and file may differ; must not return.

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
        """Reason of a failure, after which all calls fail."""
        self._file = JournalFile(self._path)
        contents = self._file.open(cluster=cluster, node=node, members=members)
        self._entries: list[Entry] = contents.entries
        self._tail: deque[Entry] = deque()
        """Entries set aside by `deleteEntriesFrom`; follows `_entries` without a gap. The file may hold it."""
        self._file_equal_until = self._entries[-1][1] if self._entries else 0
        """Last index to which the file's rows equal `_entries` and `_tail`, as far as these reach back."""
        self._is_changed = False
        """True if log, term or vote changed since the last commit; the commit index alone does not count."""
        self._term = contents.term
        self._vote = contents.vote
        self._commit_index = self._saved_commit_index = contents.commit_index
        self._facts: dict[str, Fact] = {}
        """Facts to be written with the next commit."""
        self._log_bytes = 0
        """Approximate bytes written to SQLite's write-ahead log since its last checkpoint."""
        self.is_new = contents.is_new
        """The file was just created. If the replica has other files, it has lost its votes."""
        self.log_id = contents.log_id
        """Random id of this file; another file of the replica has another id."""
        self.is_voter = contents.is_voter
        """True if this log may vote."""
        self.boot = contents.boot
        """Number of this opening of the file: 1, 2, 3 …"""
        self.size_bytes = sum(len(entry[0]) for entry in self._entries)
        """Size of all commands in memory, which compaction bounds."""
        self.commits = 0
        """Number of transactions, each with one sync."""
        self.commit_s = 0.0
        """Total duration of the transactions."""
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
        """Append an entry, or take it back from the tail set aside."""
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
        self._file_equal_until = min(self._file_equal_until, idx - 1)  # the file may hold another entry at this index
        self.size_bytes += len(command)
        self._is_changed = True

    def clear(self) -> None:
        """Forget all entries."""
        self._check()
        self._entries.clear()
        self._tail.clear()
        self.size_bytes = 0
        self._is_changed = True

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Set aside the entries from this position on, until `add` or `put_back`."""
        self._check()
        self._tail.extendleft(reversed(self._entries[entryFrom:]))
        del self._entries[entryFrom:]

    def deleteEntriesTo(self, entryTo: int) -> None:
        """Forget the entries before this position, which a dump covers."""
        self._check()
        count = len(self._entries[:entryTo])
        self.put_back()
        if count:
            self.size_bytes -= sum(len(entry[0]) for entry in self._entries[:count])
            del self._entries[:count]
            self._is_changed = True

    def put_back(self) -> None:
        """Restore the rest of the tail set aside, which the message did not contradict."""
        if self._tail:
            self._entries.extend(self._tail)
            self._tail.clear()

    def _drop_tail(self) -> None:
        """Drop the tail: a leader of a later term has other entries, so ours were never committed."""
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
        """Set term and vote; durable on return, with all earlier changes."""
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
        """Let this log vote from now on; durable on return, with all earlier changes."""
        self._check()
        self.is_voter = self._facts["voter"] = self._is_changed = True
        self._commit()

    def getCurrentTerm(self) -> int:
        return self._term

    def getVotedForNodeId(self) -> str | None:
        return self._vote

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Set the commit index. It is written once a second: an older value after a restart is harmless."""
        self._commit_index = raftCommitIndex

    def getRaftCommitIndex(self) -> int:
        return self._commit_index

    # ---- the file ---------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make all earlier changes durable; no I/O if nothing changed. Puts the tail back."""
        self._check()
        self.put_back()
        self._commit()

    def onOneSecondTimer(self) -> None:
        """Write the commit index, and checkpoint SQLite's write-ahead log."""
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
        """Sync and close; after a failure, only close. May be called again."""
        try:
            if not self._failure and self._file.is_open:
                self.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without a sync, as a crash would."""
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
        """Return the entries with a greater index, including those set aside."""
        begin = idx + 1 - self._entries[0][1] if self._entries else 0
        rows = self._entries[begin:]
        return rows + [entry for entry in self._tail if entry[1] > idx] if self._tail else rows

    def _end(self) -> int:
        """Return the index of the last entry, including those set aside; 0: none."""
        return self._tail[-1][1] if self._tail else self._entries[-1][1] if self._entries else 0

    def _check(self) -> None:
        if self._failure:
            self._on_failure(self._failure)

    def _stop(self, reason: str) -> NoReturn:
        self._failure = reason
        self._on_failure(reason)
