"""Learners, which are replicas that have lost their logs and may not vote or confirm entries until they have caught up (G8).

Problem. *Problem.* A replica that has lost its disk no longer knows its votes and acknowledgements. As a voter, a replica without its log
could vote twice in one term, or help to elect a leader that lacks an entry committed with the replica's confirmation. Because the set of
members is static, the replica returns under its old id. From its folder alone, the replica cannot distinguish a lost disk from the first
start of a new cluster.

Detection. Every log has a random id. Before a log is first used for voting, it is *marked* outside its folder, in the store
(`storage/disk/store_files.py`). A replica without any mark has never voted, so it may vote. If a replica finds the mark of a different
log, it has lost its log and starts as a *learner*. An old log is refused if a newer log of the replica has already voted.

Learning. A learner accepts entries and dumps, but grants no votes, starts no election and confirms nothing. To the other replicas, a
learner looks like a crashed replica, and the quorum size is unchanged. To become a voter again, the learner proposes a special entry
(`LEARNER_REQUEST`), which contains its log's id and boot count. The learner becomes a voter when it applies this entry in the same term in
which the entry was created.

Proof. Call e the entry, t its term, and Q the majority that confirmed it. The learner is not in Q, and e was created after the log was
lost.
1. *The learner has recovered what the lost log acknowledged.* Let x be an entry that the lost log confirmed in a term u. Then x was in a
   leader's log before e existed. The other members of that leader's majority were at term u by then, and one of them is in Q, so u <= t. If
   u = t, then x precedes e in the same leader's log. If u < t and x was committed, the leader of t has x (leader completeness holds,
   because logs elected that leader, not learners). Whether u = t or u < t, the learner has received every entry up to e.
2. *The learner does not vote a second time.* In terms below t, the learner no longer votes. In term t, the learner votes for no candidate,
   because its log already ends in t, and a candidate's log for term t ends in a lower term. Suppose that the lost log voted for a candidate
   X in a term later than t. X requested that vote before e existed, so its log does not contain e. To win, X needs the vote of another
   member of Q. If that member voted for X before it confirmed e, its term was already above t, so it could not confirm e. If that member
   votes afterwards, it rejects X, because its own log ends in a term not below t and is newer than X's log. (If the terms are equal, X's
   log is a prefix without e.)
Therefore e must be created after the loss (hence the boot count), in the current term, and be confirmed without the learner. Reaching the
leader's commit index is not enough, because a leader that is cut off reports an outdated index.

No leader can be elected if the replicas that are not learners form no majority. `is_majority_lost` detects this.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from snapline.coordinator.raft.journal import ForeignLogError, SqliteJournal
from snapline.storage.disk.store_files import LogMark

LEARNER_REQUEST = 4
"""First byte of a learner's request entry. The library's own kinds end at 3."""

LEARNER_REQUEST_INTERVAL_S = 1.0
"""Time, in seconds, between two request entries of a learner."""


_REQUEST = re.compile(rb"[0-9a-f]{1,32}/[0-9]{1,19}")


class LogMarks(Protocol):
    """Durable storage of log marks, outside the replica's folder, which may be lost. `Store` implements it. The methods may raise
    StoreError."""

    def log_marks(self) -> dict[str, list[LogMark]]:
        """Return the marks of each replica, oldest first."""

    def add_log_mark(self, replica: str, mark: LogMark) -> None:
        """Make `mark` the newest mark of `replica`, durably."""


class Learner:
    """State of a learner that is about to become a voter again.

    Attributes:
        request: the learner's request entry, which is unique to this learner.
        applied_term: term of the request entry, once this replica has applied the entry; 0 before that.
    """

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.applied_term = 0
        self._asked_at = float("-inf")

    def is_asking_due(self, now_s: float) -> bool:
        """Return whether the learner must now propose its request, for the first time or again. If the request is due, record the time of
        the proposal."""
        if now_s < self._asked_at + LEARNER_REQUEST_INTERVAL_S:
            return False
        self._asked_at = now_s
        return True

    def on_request_applied(self, entry: bytes, term: int | None) -> None:
        """Handle an applied request entry, which may come from any replica."""
        if entry == self.request and term is not None:
            self.applied_term = term


def begin(journal: SqliteJournal, marks: LogMarks, replica: str) -> Learner | None:
    """Mark the log before the replica takes part. Return a Learner if the replica may not vote, otherwise None.

    Raises:
        ForeignLogError: a newer log of the replica has replaced this log.
        StoreError: the marks cannot be read or written.
    """
    may_vote, mark = judge(journal.log_id, journal.is_voter, marks.log_marks().get(replica, []), replica)
    if mark is not None:
        marks.add_log_mark(replica, mark)
    if not may_vote:
        return Learner(f"{journal.log_id}/{journal.boot}".encode())
    if not journal.is_voter:
        journal.become_voter()
    return None


def is_request(entry: bytes) -> bool:
    """Return whether this entry has the form of a learner's request."""
    return _REQUEST.fullmatch(entry) is not None


def judge(log: str, is_voter: bool, marks: Sequence[LogMark], replica: str) -> tuple[bool, LogMark | None]:
    """Return whether a log may vote, and the mark that must be added first, if any. Raise ForeignLogError if a newer log of the replica
    has already voted."""
    if not marks:
        return True, LogMark(log, True)
    if marks[-1].log == log:
        return marks[-1].is_voter, None
    if not is_voter:
        return False, LogMark(log, False)
    if next((mark.log for mark in reversed(marks) if mark.is_voter), "") == log:
        return True, LogMark(log, True)  # logs between the two have never voted
    raise ForeignLogError(
        f"another log took the place of this one of replica {replica}: empty its data directory, and it catches up"
    )


def is_majority_lost(members: Iterable[str], marks: Mapping[str, Sequence[LogMark]]) -> list[str]:
    """Return the replicas that have lost their logs, or an empty list if the remaining replicas still form a majority."""
    names = sorted(members)
    lost = [name for name in names if marks.get(name) and not marks[name][-1].is_voter]
    return lost if 2 * (len(names) - len(lost)) <= len(names) else []
