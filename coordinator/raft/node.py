"""Hardened Raft replica, which overrides the parts of PySyncObj that could lose acknowledged writes or execute foreign code (G8).

Theory of operation
-------------------
Raft (Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", USENIX ATC 2014, section 5) keeps one log on all
replicas. An entry is committed once a majority has stored it durably, and committed entries are applied in order. From time to time, a
dump of the state replaces the oldest entries (section 7). `pysyncobj` implements this algorithm, and `SafeSyncObj` overrides the places
where the library departs from the paper or is not durable. `SafeSyncObj` enforces these rules:

- H2. A replica answers, votes or counts its own confirmation only after its log, term and vote are durable. Every tick begins with
  `sync_journal()`. The transport calls `sync_journal()` between handling messages and sending the answers. A new leader calls
  `sync_journal()` before it counts its own confirmation of its first entry.
- H4. Entries are removed from the log only if a leader's entry contradicts them (figure 2, AppendEntries 3). The library removes all
  entries after a matching entry and adds them again. `SqliteJournal` instead sets unchanged entries aside and then puts them back.
- H6. After a restart, the dump and the journal may differ if the process died between writing the two files. The journal is kept if it
  contains the dump's last entry, replaced if it does not, and refused if there is a gap.
- H7. The commit index advances only over entries that were compared with the leader's entries.
- H8. A follower whose log contradicts its leader's log repeats the conflicting position until the logs agree, even when it answers about
  later entries.
- H9. An answer counts only in the term in which it was given.
- H10, H11. If an apply function or a callback raises an exception, an alarm is raised, and the call is never retried endlessly.
- H12, H13. Nothing is unpickled. An entry is an operation (0), the library's no-op (1) or a learner's request (4). The library's no-op is
  never accepted as a proposal.

This module also fixes the following faults of the library, each explained by a comment in the code:

- after installing a dump, a follower acknowledged its own later entries, although these had not been compared with the leader's;
- duplicate votes were counted twice;
- the commit index could decrease;
- proposals waited forever if the connection to the leader broke or a dump covered them, so that no answer could arrive;
- a leader that had just made a dump reported for a tenth of a second that it had none.

The implementation differs from the paper in one respect: the set of members is static. Pre-vote is not used.

Everything runs on the tick thread. `propose` and `barrier` may also be called from one other thread, or from any thread before
`set_wake_scheduler` is called.
"""

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from pysyncobj import syncobj as library  # type: ignore[import-untyped]  # the library has no types
from pysyncobj.config import FAIL_REASON, SyncObjConf  # type: ignore[import-untyped]  # the library has no types
from pysyncobj.syncobj import SyncObj  # type: ignore[import-untyped]  # the library has no types

from snapline.coordinator.raft.dump import DumpFile
from snapline.coordinator.raft.durability import fail_stop
from snapline.coordinator.raft.journal import ADVICE, SqliteJournal
from snapline.coordinator.raft.learner import LEARNER_REQUEST, Learner, LogMarks, begin, is_request
from snapline.coordinator.raft.pysyncobj_adapter import (
    ENTRY_BYTES_MAX,
    JOURNAL_BYTES_MAX,
    RaftNode,
    WakeUp,
    check_release,
    drop_false_alarms,
    forbid_pickle,
    replaced_storage,
)
from snapline.errors import ExternalFailureError, LogError, MessageTooLargeError, UsageError
from snapline.storage.disk.store_files import LogMark


class Machine(Protocol):
    """Interface that this module requires from the replicated state machine. These methods are called only on the tick thread."""

    def apply(self, entry: bytes) -> object:
        """Apply a committed entry. The result must be deterministic. If the entry is invalid, raise LogError, after which the process
        must end. Raise no other exception."""

    def freeze(self) -> bytes:
        """Encode the whole state."""

    def restore(self, image: bytes) -> None:
        """Replace the state with an encoded state that `freeze` has returned."""


class ApplyFailed:
    """Result of an entry for which `apply` raised an exception. The result is the same on every replica if the state machine is
    deterministic."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"ApplyFailed({self.error!r})"


log = logging.getLogger("snapline.coordinator.raft")

JOURNAL_FILE = "raft.sqlite"
DUMP_FILE = "raft.dump"

HINT_PERIODS = 1.5
"""Number of AppendEntries periods for which a follower repeats the position of a contradiction. They cover one period plus the delay."""

TERM_JUMP_MAX = 2**24
"""Largest accepted difference between a received term and this replica's term. Terms are durable, so one false message could use up all
terms. An isolated candidate needs 290 days to raise its term by this difference. A restored cluster begins below two million."""

FORCED_DUMP_S = 10.0
"""Shortest time, in seconds, between two dumps forced by the journal's size. A limit is needed because a dump does not remove entries that
have not been applied yet."""

_OPERATION, _NO_OP = library._COMMAND_TYPE.REGULAR, library._COMMAND_TYPE.NO_OP

Callback = Callable[[object, int], None]
"""Callback with the arguments (result, FAIL_REASON code). A callback is called at most once and perhaps never. The callback runs on the
tick thread, or, for QUEUE_FULL, on the proposer's thread."""

Message = dict[str, Any]  # Any: fields of many types, checked by the transport's codec


class SafeSyncObj(SyncObj):  # type: ignore[misc]  # its base is Any
    """The hardened replica. The owner of a replica calls `doTick(seconds)` in a loop on one thread, and `destroy()` at the end."""

    def __init__(
        self,
        self_node: RaftNode,
        others: list[RaftNode],
        conf: SyncObjConf,
        *,
        transport_class: Callable[..., Any],
        machine: Machine,
        folder: Path,
        cluster: str,
        marks: LogMarks,
        on_alarm: Callable[[str], None],
    ) -> None:
        """Open or create this replica's files. The first tick loads the dump.

        Args:
            self_node: this replica's id and address.
            others: all other replicas.
            conf: settings from `raft_configuration`. A copy of the configuration is used, to which file names and state functions are
                added.
            transport_class: function that creates the transport, called with (this object, self_node, set of the other nodes); see
                pysyncobj.transport.Transport.
            folder: folder that only this replica uses; created if missing.
            cluster: name of the cluster that owns the files. Files that belong to another cluster are refused.
            marks: storage of the log marks, outside the replica's folder.
            on_alarm: function that is called on the tick thread with a message for operators, and must return at once.

        Raises:
            LogError: the installed release of the library has not been reviewed, or a newer log has replaced this replica's log. If a file
                is damaged, the constructor ends the process.
            StoreError: the log marks cannot be read or written.
        """
        check_release()
        forbid_pickle()
        drop_false_alarms()
        self._machine = machine
        self._cluster = cluster
        self._marks = marks
        self._learner: Learner | None = None
        """State of the learner; None if this replica may vote."""
        self._on_alarm = on_alarm
        self._hint: tuple[int, float] | None = None
        """(lowest index at which this follower's log contradicted its leader's log, time of the contradiction)."""
        self._voters: tuple[int, frozenset[str]] = (0, frozenset())
        """(term, ids of the replicas whose votes for this replica in that term were received)."""
        self._forced_dump_at = 0.0
        self._is_gathering = False
        """True while entries are created that will be sent in one message."""
        self._is_closed = False
        self.on_applied: Callable[[], None] = lambda: None
        """Called in each tick after entries are applied and before the journal is written."""
        self._name = self_node.id
        self._members = ",".join(sorted([self_node.id, *[other.id for other in others]]))
        with replaced_storage(self._open_journal, self._open_dump):
            super().__init__(self_node, others, self._completed(conf, folder), transportClass=transport_class)
        self._SyncObj__pipeNotifier = WakeUp(self._SyncObj__pipeNotifier)
        self._check_folder_complete()
        self._learner = begin(self._SyncObj__raftLog, marks, self._name)

    def _completed(self, conf: SyncObjConf, folder: Path) -> SyncObjConf:
        conf = copy.copy(conf)
        conf.journalFile = str(folder / JOURNAL_FILE)
        conf.fullDumpFile = str(folder / DUMP_FILE)
        conf.serializer = self._machine.freeze
        conf.deserializer = self._machine.restore
        conf.onStateChanged = conf.onStateChanged and self._guarded(conf.onStateChanged)
        return conf

    def _open_journal(self, path: str) -> SqliteJournal:
        return SqliteJournal(path, cluster=self._cluster, node=self._name, members=self._members)

    def _open_dump(self, *settings: Any) -> DumpFile:
        applied, term = lambda: self.raftLastApplied, lambda: self.raftCurrentTerm
        return DumpFile(*settings, cluster=self._cluster, node=self._name, applied=applied, term=term)

    def _check_folder_complete(self) -> None:
        """End the process if one of the two files is missing (H6). Without its journal, a replica has forgotten its votes. Without its
        dump, it has lost the entries that the dump replaced."""
        entries, dump = self._SyncObj__raftLog, Path(self.conf.fullDumpFile)
        if entries.is_new and dump.exists():
            fail_stop(f"{self.conf.journalFile} is missing beside {dump}: {ADVICE}")
        if entries[0][1] > 1 and not dump.is_file():
            fail_stop(f"{dump} is missing, but the journal begins at entry {entries[0][1]}: {ADVICE}")

    # ---- for the driver ---------------------------------------------------------------------------------------------

    def propose(self, entry: bytes, callback: Callback | None) -> None:
        """Propose an entry, to be committed and applied. `callback` receives the result. The module's docstring says which threads may
        call this method.

        Raises:
            UsageError: the entry is empty.
            MessageTooLargeError: the entry exceeds ENTRY_BYTES_MAX.
        """
        if not entry:
            raise UsageError("an entry has at least one byte: for a barrier call `barrier`")
        if len(entry) > ENTRY_BYTES_MAX:
            raise MessageTooLargeError(
                f"an entry has at most {ENTRY_BYTES_MAX} bytes, not {len(entry)}: store the rest"
            )
        self._queue(entry, callback, _OPERATION)

    def barrier(self, callback: Callback) -> None:
        """Propose an empty entry. When `callback` receives SUCCESS, this replica's state reflects everything that was acknowledged before
        the call.

        The state must be read inside `callback`, which runs on the tick thread. The module's docstring says which threads may call this
        method.
        """
        self._queue(b"", callback, _OPERATION)

    def set_wake_scheduler(self, later: Callable[[Callable[[], None]], object]) -> None:
        """Schedule the wake-up of the tick thread with `later(call)` on the proposer's thread, so that one tick syncs all proposals made
        before `call` runs."""
        self._SyncObj__pipeNotifier.later = later

    def sync_journal(self) -> None:
        """Make the journal durable. The transport calls this method before it sends answers (H2)."""
        self._SyncObj__raftLog.sync()

    @property
    def is_learner(self) -> bool:
        """Return whether the replica has lost its log and may not vote until it has caught up."""
        return self._learner is not None

    @property
    def is_leader(self) -> bool:
        """Return whether this replica believes that it leads. A newer leader may already exist."""
        return bool(self._isLeader())

    # ---- ticking ----------------------------------------------------------------------------------------------------

    def _onTick(self, timeToWait: float = 0.0) -> None:
        self.sync_journal()  # H2: the entries that are counted below must be durable
        self._force_dump_if_large()
        if self._learner is not None:
            self._learn(self._learner)
        super()._onTick(timeToWait)

    def _learn(self, learner: Learner) -> None:
        """Request to become a voter again, or become one if the request has been applied. A learner starts no election."""
        self._SyncObj__raftElectionDeadline = float("inf")
        if learner.applied_term and learner.applied_term == self.raftCurrentTerm:
            self._become_voter(learner)
            return
        is_level = self._SyncObj__raftLeader is not None and self.raftLastApplied >= self._SyncObj__leaderCommitIndex
        if is_level and learner.is_asking_due(library.monotonicTime()):
            self._applyCommand(learner.request, None, LEARNER_REQUEST)

    def _become_voter(self, learner: Learner) -> None:
        entries = self._SyncObj__raftLog
        learner.applied_term = 0
        try:
            self._marks.add_log_mark(self._name, LogMark(entries.log_id, True))
        except ExternalFailureError as error:
            self._alarm(f"replica {self._name} cannot be marked as a voter ({error}): it asks again")
            return
        entries.become_voter()
        self._SyncObj__raftElectionDeadline = library.monotonicTime() + self._SyncObj__generateRaftTimeout()
        self._learner = None
        log.info("replica %s has caught up and votes again", self._name)

    def _force_dump_if_large(self) -> None:
        now = library.monotonicTime()
        if self._SyncObj__raftLog.size_bytes > JOURNAL_BYTES_MAX and now >= self._forced_dump_at + FORCED_DUMP_S:
            self._forced_dump_at = now
            self.forceLogCompaction()

    def _SyncObj__tryLogCompaction(self) -> None:
        """Run the library's log compaction twice: the first call makes a dump if one is due, and the second trims the journal at once
        instead of a tick later.

        Without the second call, the library would run in a busy loop for 0.1 s during that tick, and would tell followers that there is no
        dump.
        """
        SyncObj._SyncObj__tryLogCompaction(self)
        SyncObj._SyncObj__tryLogCompaction(self)

    def _checkCommandsToApply(self) -> None:
        """Create entries from the waiting commands and send them in one message, because the library would send one message per entry.

        The followers and this replica write the entries to disk at the same time. H2 still holds, because the leader counts its own
        confirmation only after its write (Ongaro's thesis, 2014, section 10.2.1).
        """
        self.on_applied()
        before = self._SyncObj__getCurrentLogIndex()
        self._SyncObj__pipeNotifier.is_woken = False  # must be cleared before any command is taken
        self._is_gathering = True
        try:
            super()._checkCommandsToApply()
        finally:
            self._is_gathering = False
        if self._SyncObj__getCurrentLogIndex() == before:
            return
        self._SyncObj__sendAppendEntries()
        self.sync_journal()
        if not self._SyncObj__otherNodes:
            self._SyncObj__pipeNotifier.notify()  # without peers, no answer would wake the tick that commits

    def _SyncObj__sendAppendEntries(self) -> None:
        if not self._is_gathering:
            SyncObj._SyncObj__sendAppendEntries(self)

    def _SyncObj__onBecomeLeader(self) -> None:
        SyncObj._SyncObj__onBecomeLeader(self)
        self.sync_journal()  # H2: a leader without peers counts itself for its first entry within the same tick

    def _doDestroy(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        super()._doDestroy()
        self._SyncObj__pipeNotifier.close(self._poller)

    # ---- proposing and applying -------------------------------------------------------------------------------------

    def _applyCommand(self, command: bytes, callback: Any, commandType: int | None = None) -> None:
        """Queue a command under rules H11 and H13. `callback` is a callable, None, or the pair (node, request id) of a forwarded
        command."""
        kind = command[:1] if commandType is None else bytes([commandType])
        is_ours = kind == bytes([_OPERATION]) or (
            kind == bytes([LEARNER_REQUEST]) and is_request(command.removeprefix(kind))
        )
        if not is_ours or len(command) > ENTRY_BYTES_MAX + 1:
            self._SyncObj__callErrCallback(FAIL_REASON.REQUEST_DENIED, callback)
            return
        self._queue(command, callback, commandType)

    def _queue(self, command: bytes, callback: Any, kind: int | None) -> None:
        """Queue a command for the next tick. `callback` is the same as in `_applyCommand`. If `kind` is None, the first byte of the
        command is its kind."""
        if callable(callback):
            callback = self._guarded(callback)
        if self._is_closed:
            self._SyncObj__callErrCallback(FAIL_REASON.MISSING_LEADER, callback)
        else:
            super()._applyCommand(command, callback, kind)

    def _guarded(self, callback: Callable[..., object]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            try:
                callback(*arguments)
            except Exception as error:
                log.exception("a callback raised")
                self._alarm(f"a callback raised {error!r}")

        return call

    def _alarm(self, sentence: str) -> None:
        try:
            self._on_alarm(sentence)
        except Exception:
            log.exception("the alarm raised")

    def _SyncObj__doApplyCommand(self, command: bytes) -> object:
        """Apply a command under rules H10 and H12. The library itself would unpickle a method's number and arguments."""
        if command[:1] == bytes([_NO_OP]) or command == bytes([_OPERATION]):
            return None
        if command[:1] == bytes([LEARNER_REQUEST]):
            if self._learner is not None:
                self._learner.on_request_applied(command[1:], self._term_at(self.raftLastApplied + 1))
            return None
        if command[:1] != bytes([_OPERATION]):
            fail_stop(f"the journal holds a committed entry of kind {command[:1].hex()}: another program wrote it")
        try:
            return self._machine.apply(command[1:])
        except (LogError, MemoryError) as error:
            fail_stop(f"a committed entry cannot be applied: {error!r}")
        except Exception as error:
            log.exception("apply raised")
            self._alarm(f"apply raised {error!r}: the replicas may differ")
            return ApplyFailed(error)

    # ---- messages ---------------------------------------------------------------------------------------------------

    def _SyncObj__onMessageReceived(self, node: RaftNode, message: Message) -> None:
        admitted = self._filter_message(node, message) if node in self._SyncObj__otherNodes else None
        if admitted is None:
            return
        commit_index = self._SyncObj__raftCommitIndex
        commit_term = self._term_at(commit_index)
        try:
            SyncObj._SyncObj__onMessageReceived(self, node, admitted)
        finally:
            self._SyncObj__raftLog.put_back()  # H4
        if admitted["type"] == "append_entries":
            self._check_committed(node, commit_index, commit_term)

    def _filter_message(self, node: RaftNode, message: Message) -> Message | None:
        """Return the message, changed if necessary so that the library may process it, or None if it must be dropped."""
        if message.get("term", 0) > self.raftCurrentTerm + TERM_JUMP_MAX:
            self._alarm(
                f"{node.id} speaks of term {message['term']}, this is {self.raftCurrentTerm}: its message is dropped"
            )
            return None
        match message["type"]:
            case "append_entries":
                return self._filter_entries(message)
            case "next_node_idx":
                return self._filter_answer(node, message)
            case "response_vote":
                return message if self._is_new_vote(node, message["term"]) else None
            case "request_vote" | "timeout_now":
                return None if self.is_learner else message
            case _:
                return message

    def _filter_entries(self, message: Message) -> Message | None:
        if "transmission" in message:
            return None  # H12: this is a part of a pickled entry; entries here are too small to be split
        if "prevLogIdx" in message:
            return message
        return message | {"commit_index": min(message["commit_index"], self._SyncObj__raftCommitIndex)}  # H7

    def _filter_answer(self, node: RaftNode, message: Message) -> Message | None:
        if message.get("term") != self._SyncObj__raftCurrentTerm or not self.is_leader:
            return None  # H9
        if message["success"] and message["next_node_idx"] > self._SyncObj__getCurrentLogIndex() + 1:
            return None  # such an answer would confirm entries that do not exist yet
        raises = message["next_node_idx"] > self._SyncObj__raftNextIndex[node]
        if message["reset"] and raises and not message["success"]:
            return message | {"reset": False}  # H8
        return message

    def _is_new_vote(self, node: RaftNode, term: int) -> bool:
        if term != self._SyncObj__raftCurrentTerm:
            return False
        voters = self._voters[1] if self._voters[0] == term else frozenset()
        self._voters = (term, voters | {node.id})
        return node.id not in voters

    _SyncObj__raftCommitIndex: int
    _SyncObj__pipeNotifier: Any

    def _check_committed(self, node: RaftNode, index: int, term: int | None) -> None:
        """Ensure that the commit index does not decrease and that committed entries do not change. The library would decrease the commit
        index when an AppendEntries starts at an earlier entry."""
        first = self._SyncObj__raftLog[0][1]
        if index >= first and self._term_at(index) != term:
            fail_stop(
                f"{node.id} leads and contradicts committed entry {index}: its files are older, or another cluster's"
            )
        if self._SyncObj__raftCommitIndex < index:
            self._SyncObj__raftCommitIndex = index
            self._SyncObj__raftLog.setRaftCommitIndex(index)

    def _term_at(self, index: int) -> int | None:
        entries = self._SyncObj__raftLog
        place = index - entries[0][1]
        return int(entries[place][2]) if 0 <= place < len(entries) else None

    def _SyncObj__sendNextNodeIdx(
        self, node: RaftNode, reset: bool = False, nextNodeIdx: int | None = None, success: bool = False
    ) -> None:
        """Answer an AppendEntries under rules H8 and H9, or confirm an installed dump. A success without an index confirms a dump."""
        if success:
            self._hint = None
            if nextNodeIdx is None:
                nextNodeIdx = self._SyncObj__raftLastApplied + 1  # entries after the dump have not been compared yet
            success = not self.is_learner  # otherwise a learner's confirmation would count
        elif reset:
            nextNodeIdx = self._next_index_hint(nextNodeIdx)
        answer = {
            "type": "next_node_idx",
            "next_node_idx": self._SyncObj__getCurrentLogIndex() + 1 if nextNodeIdx is None else nextNodeIdx,
            "reset": reset,
            "success": success,
            "term": self._SyncObj__raftCurrentTerm,
        }
        self._SyncObj__transport.send(node, answer)

    def _next_index_hint(self, conflict: int | None) -> int | None:
        """Return the index from which the leader should resend entries, or None for the end of the log. After a conflict, the leader
        should resend from the first entry of the conflicting term (section 5.3 of the paper)."""
        now = library.monotonicTime()
        hint = None
        if self._hint is not None and now - self._hint[1] < HINT_PERIODS * self.conf.appendEntriesPeriod:
            hint = self._hint[0]
        if conflict is not None:
            conflict = self._first_of_term(conflict)
            hint = conflict if hint is None else min(hint, conflict)
            self._hint = (hint, now)
        return None if hint is None else min(hint, self._SyncObj__getCurrentLogIndex() + 1)

    def _first_of_term(self, index: int) -> int:
        """Return the index of the first uncommitted entry with the same term as the entry at `index`."""
        term, lowest = self._term_at(index), self._SyncObj__raftCommitIndex + 1
        while index > lowest and self._term_at(index - 1) == term:
            index -= 1
        return index

    def _SyncObj__onNodeDisconnected(self, node: RaftNode) -> None:
        SyncObj._SyncObj__onNodeDisconnected(self, node)
        if node == self._SyncObj__raftLeader:
            self._SyncObj__onLeaderChanged()  # the answers to forwarded commands are lost with the connection

    # ---- dumps ------------------------------------------------------------------------------------------------------

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        """Load a dump under rule H6.

        `clearJournal` is true if the leader sent the dump, and false if the replica loads its own dump when it starts.
        """
        last, prev, image = self._SyncObj__serializer.read()
        entries = self._SyncObj__raftLog
        at = prev[1] - entries[0][1]
        if at < 0:
            fail_stop(f"the dump begins at entry {prev[1]}, the journal at {entries[0][1]}: {ADVICE}")
        if self._term_at(last[1]) == last[2]:
            if (entries[at], entries[at + 1]) != (prev, last):
                fail_stop(f"dump and journal hold different entries {last[1]} of one term: {ADVICE}")
            entries.deleteEntriesTo(at)
            clearJournal = False  # keep the entries after the dump
        SyncObj._SyncObj__loadDumpFile(self, clearJournal)
        if (self._SyncObj__raftLastApplied, entries[0], entries[1]) != (last[1], prev, last):
            fail_stop(f"the dump up to entry {last[1]} cannot be loaded; the log above says why")
        self._machine.restore(image)
        self._SyncObj__raftCommitIndex = max(self._SyncObj__raftCommitIndex, last[1])
        entries.setRaftCommitIndex(self._SyncObj__raftCommitIndex)
        entries.sync()
        self._answer_proposals_covered_by_dump(last[1])

    def _answer_proposals_covered_by_dump(self, last: int) -> None:
        """Answer this replica's waiting proposals that the dump covers. The outcome of these proposals is unknown, because they may have
        been committed or replaced."""
        waiting = self._SyncObj__commandsWaitingCommit
        for index in sorted(index for index in waiting if index <= last):
            for _, callback in waiting.pop(index):
                callback(None, FAIL_REASON.UNKNOWN_OUTCOME)
