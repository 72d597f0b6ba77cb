"""Learners: a replica that has lost its log may not vote or confirm entries until it has caught up (G8).

Problem. A replica that has lost its disk has forgotten its votes and acknowledgements. As a voter, it could vote a second time in a term,
or help to elect a candidate that lacks an entry that was committed with its help. Members are static, so the replica returns under its old
id. The replica cannot distinguish a lost disk from the first start of a new cluster.

Detection. Every log has a random id. Before a log votes for the first time, it is *marked* outside its folder, in the store
(`storage/disk/store_files.py`). A replica without any mark has never voted, and may vote. A replica that finds the mark of another log has
lost its log, and starts as a *learner*. If an old disk returns after its successor has voted, it is refused.

Learning. A learner accepts entries and dumps, but it answers no vote request, starts no election and confirms nothing. For the other
replicas a learner is like a crashed replica, and quorums keep their size. To become a voter again, the learner proposes a special entry
(`LEARNER_REQUEST`, with its log's id and boot). The learner becomes a voter as soon as it applies its entry in the same term in which the
entry was created.

Proof. Call e the entry, t its term, and Q the majority that confirmed it. The learner is not in Q, and e is younger than the loss.
1. *The learner has recovered what the lost log acknowledged.* Let x be an entry that the lost log confirmed in a term u. Then x was in a
   leader's log before e existed. Members of that leader's majority other than the learner were at u by then, and one of them is in Q: so
   u <= t. If u = t, x is before e in the same leader's log. If u < t and x was committed, the leader of t has x (leader completeness: that
   leader was elected by logs, not by learners). The learner has everything up to e.
2. *The learner does not vote a second time.* Below t the learner no longer votes. In t it votes for no candidate, because its log ends in
   t and a candidate's log of t ends below. Suppose that the lost log voted for X in a later term. X made its request before e existed, with
   a log that does not contain e. To win, X needs a member of Q other than the learner. If that member voted before it confirmed e, it was
   already above t and could not confirm. If it voted afterwards, its log, which ends in a term not below t, is newer than X's log (in case
   of equal terms, X's log would be a prefix without e).
So e must be created after the loss (hence the boot), confirmed without the learner, and in the current term. A weaker condition, such as
having reached the leader's commit index, is not enough, because a leader that was cut off reports an old commit index.

If so many replicas are learners that the remaining ones are not a majority, no leader can be elected. `is_majority_lost` detects this.
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
    """Durable storage of log marks, outside the folder that may be lost. `Store` implements it. The methods may raise StoreError."""

    def log_marks(self) -> dict[str, list[LogMark]]:
        """Return the marks of each replica, oldest first."""

    def add_log_mark(self, replica: str, mark: LogMark) -> None:
        """Make `mark` the newest mark of `replica`, durably."""


class Learner:
    """State of a learner that is about to become a voter again.

    Attributes:
        request: the learner's request entry, which is unique.
        applied_term: term of the request entry once it has been applied on this replica; 0 before that.
    """

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.applied_term = 0
        self._asked_at = float("-inf")

    def is_asking_due(self, now_s: float) -> bool:
        """Return whether the request must be proposed now, for the first time or again. If so, record the time."""
        if now_s < self._asked_at + LEARNER_REQUEST_INTERVAL_S:
            return False
        self._asked_at = now_s
        return True

    def on_request_applied(self, entry: bytes, term: int | None) -> None:
        """Handle a request entry that was applied. The entry may come from any replica."""
        if entry == self.request and term is not None:
            self.applied_term = term


def begin(journal: SqliteJournal, marks: LogMarks, replica: str) -> Learner | None:
    """Mark the log before the replica takes part. Return the state of a learner, or None if the replica may vote.

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
    """Return whether a learner may have created this entry."""
    return _REQUEST.fullmatch(entry) is not None


def judge(log: str, is_voter: bool, marks: Sequence[LogMark], replica: str) -> tuple[bool, LogMark | None]:
    """Return whether a log may vote, and the mark that must be added first, or None. Raise ForeignLogError if a newer log has replaced
    it."""
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
    """Return the replicas that have lost their logs if the remaining ones are not a majority, otherwise an empty list."""
    names = sorted(members)
    lost = [name for name in names if marks.get(name) and not marks[name][-1].is_voter]
    return lost if 2 * (len(names) - len(lost)) <= len(names) else []
