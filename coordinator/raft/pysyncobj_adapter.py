"""Adaptation of PySyncObj: the settings, the hooks for the hardened node, the version check, and the wake-up pipe.

The timing settings are based on measurements with three replicas on one busy machine (fsync: median 4 ms, maximum 716 ms). The size
limits are design choices. `SafeSyncObj` adds the file names and the state functions to the settings.

Because the node overrides private methods and reads private attributes of `pysyncobj` 0.3.17, it works only with that release. The
library's version, and the names that the node uses, are checked at start-up. The tests also compare the hash of every file in the library.
"""

import logging
import os
import pickle
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import pysyncobj.pickle as library_pickle  # type: ignore[import-untyped]  # the library has no types
from pysyncobj import pipe_notifier, version
from pysyncobj import syncobj as library
from pysyncobj.config import SyncObjConf  # type: ignore[import-untyped]  # the library has no types
from pysyncobj.node import Node  # type: ignore[import-untyped]  # the library has no types

from snapline.errors import LogError

ENTRY_BYTES_MAX = 65_536
"""Largest size, in bytes, of one proposed entry. An entry is at most a quarter of a batch, so the library never splits and pickles an
entry."""

BATCH_BYTES = 4 * ENTRY_BYTES_MAX
"""Largest size, in bytes, of one AppendEntries and of one piece of a dump. The size is well below the 2 MiB limit on a message to a
server."""

QUEUE_COMMANDS_MAX = 4096
"""Largest number of proposals and forwarded commands that wait for a tick. The number exceeds the driver's limit on proposals in flight."""

COMPACTION_ENTRIES = 4000
COMPACTION_ENTRIES_PER_RANK = 1000
"""Numbers of entries that trigger a dump: for the replica of rank 0, and the increment per rank. Thus replicas do not pause for a dump at
the same time."""

COMPACTION_S = 3600.0
"""Time, in seconds, between dumps triggered by time. The interval is long, because the number of entries should trigger dumps."""

JOURNAL_BYTES_MAX = 64 * 1024 * 1024
"""Size, in bytes, of the entries since the last dump (kept in memory) that triggers a dump."""

ELECTION_S_MIN, ELECTION_S_MAX = 1.0, 2.0
"""Election time-outs, in seconds. The time-outs exceed the slowest fsync and the longest pause for a dump. With 0.35 to 0.7 s, there were
eleven elections within seconds."""

HEARTBEAT_S = 0.1
"""Time between heartbeats, in seconds. The interval must be less than a third of ELECTION_S_MIN."""

FALLBACK_S = 1.5
"""Time, in seconds, after which a leader that reaches no majority steps down."""

TICK_S = 0.02
"""Longest time, in seconds, that a tick waits for an event."""


def raft_configuration(
    rank: int,
    *,
    compaction_entries: int = COMPACTION_ENTRIES,
    batch_bytes: int = BATCH_BYTES,
    election_s: tuple[float, float] = (ELECTION_S_MIN, ELECTION_S_MAX),
    heartbeat_s: float = HEARTBEAT_S,
    fallback_s: float = FALLBACK_S,
) -> SyncObjConf:
    """Return one replica's settings for the library.

    Args:
        rank: position of the replica in the sorted list of members, counted from 0.
        compaction_entries: number of journal entries beyond which the replica of rank 0 makes a dump.
        batch_bytes: maximum size, in bytes, of one AppendEntries and of one piece of a dump. Only tests change it. Every entry must be
            smaller than this size.
        election_s: range, in seconds, of the election timeout.
        heartbeat_s: interval, in seconds, between AppendEntries messages.
        fallback_s: same as FALLBACK_S.
    """
    return SyncObjConf(
        autoTick=False,  # the driver's thread ticks
        useFork=False,  # a fork next to threads, and a dump that ends at an arbitrary time
        dynamicMembershipChange=False,  # members are static
        logCompactionSplit=False,  # compares clocks of different machines, and delays forced dumps
        raftMinTimeout=election_s[0],
        raftMaxTimeout=election_s[1],
        appendEntriesPeriod=heartbeat_s,
        leaderFallbackTimeout=fallback_s,
        connectionTimeout=max(
            3.0, election_s[1]
        ),  # of the library's own TCP, which is unused; validate() checks the value
        appendEntriesUseBatch=False,  # with it a write took 62 to 103 ms, without it about 1 ms
        appendEntriesBatchSizeBytes=batch_bytes,
        logCompactionBatchSize=batch_bytes,
        commandsWaitLeader=False,  # otherwise a command may run long after its proposer gave up
        commandsQueueSize=QUEUE_COMMANDS_MAX,
        logCompactionMinEntries=compaction_entries + rank * COMPACTION_ENTRIES_PER_RANK,
        logCompactionMinTime=COMPACTION_S,
        password=None,  # the gRPC transport has mutual TLS
    )


class RaftNode(Node):  # type: ignore[misc]  # as above: its base is Any
    """A replica with its permanent id and its address.

    Because the library iterates over sets of nodes, a node's hash is the same in every process, so that a seed reproduces a run.
    """

    def __init__(self, id: str, address: str) -> None:
        """Create a replica.

        Args:
            id: name of the replica in the static list of members, such as `"c1"`. Two nodes with the same id are the same replica.
            address: `host:port` of the replica's gRPC server.
        """
        super().__init__(id, address=address)
        self._hash = zlib.crc32(id.encode())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.id == other.id

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"RaftNode({self.id!r}, {self.address!r})"


RELEASE = "0.3.17"
"""The reviewed release. Older releases forget term and vote at a restart; newer releases have not been reviewed."""

METHODS = (
    "_applyCommand",
    "_checkCommandsToApply",
    "_doDestroy",
    "_onTick",
    "_SyncObj__callErrCallback",
    "_SyncObj__doApplyCommand",
    "_SyncObj__generateRaftTimeout",
    "_SyncObj__getCurrentLogIndex",
    "_SyncObj__loadDumpFile",
    "_SyncObj__onBecomeLeader",
    "_SyncObj__onLeaderChanged",
    "_SyncObj__onMessageReceived",
    "_SyncObj__onNodeDisconnected",
    "_SyncObj__sendAppendEntries",
    "_SyncObj__sendNextNodeIdx",
    "_SyncObj__tryLogCompaction",
)
"""Methods of SyncObj that the node overrides or calls."""

ATTRIBUTES = (
    "_poller",
    "_SyncObj__commandsWaitingCommit",
    "_SyncObj__leaderCommitIndex",
    "_SyncObj__otherNodes",
    "_SyncObj__pipeNotifier",
    "_SyncObj__raftCommitIndex",
    "_SyncObj__raftCurrentTerm",
    "_SyncObj__raftElectionDeadline",
    "_SyncObj__raftLastApplied",
    "_SyncObj__raftLeader",
    "_SyncObj__raftLog",
    "_SyncObj__raftNextIndex",
    "_SyncObj__serializer",
    "_SyncObj__transport",
)
"""Attributes that the constructor of SyncObj sets."""

GLOBALS = ("Serializer", "createJournal", "monotonicTime", "_RAFT_STATE", "_COMMAND_TYPE")
"""Required names in the module `pysyncobj.syncobj`."""

NOTIFIER_ATTRIBUTES = ("_PipeNotifier__pipeR", "_PipeNotifier__pipeW")
"""Attributes of PySyncObj's PipeNotifier, which never closes its pipe."""

SHA256_OF_FILES = {
    "__init__.py": "4966a9dd893542b1b0e0fcef3d2ea44f2f40919d66b684992e5511be7503c036",
    "atomic_replace.py": "43a5252a241939b7f457cbbf39480260c91f0d2035a62b170bf1e1d20d0f9c1d",
    "config.py": "fbbc7ff9f18e4d15a7fd563376e42f5bd192956879d4b810b056d5248b955698",
    "dns_resolver.py": "4b88da2b45e20fbb299fb7a21f2595369b6314700b687fb8858891999bce14e0",
    "encryptor.py": "db20725465efdfc6d7a3b5b2112f53bc5426d36c56312ebdf5fbcf05423a7c19",
    "fast_queue.py": "8477fe5fdf36d9766df933310d3d66ee953d1afc195b1e6482b3a1498fc517bd",
    "journal.py": "9cf1eaf6acc704581a4cf7d3de330a404403913107adc91c929778b7e3f35edf",
    "monotonic.py": "d116df70e1f81bcab1fb89191fe2fe18486bc25187401d73fd6101cfe686e0a3",
    "node.py": "e4a3f027cd8291f558334bb9c977e952f6b6989e7e1fa1588d3005ef0b990e2c",
    "pickle.py": "e9327780738065cec5d600484b936c91e7c13875206cb584d5ff7f5d0dc9c474",
    "pipe_notifier.py": "587d964bfa5d62320f3541cbb283ff3e282cb2db95e1b8cfd888dc3d53af82aa",
    "poller.py": "f69ac749fb410670282fd9520c5805ffc684c8a5f762a927127753d9be8551e6",
    "serializer.py": "4d39fde2f15000ad8f507ec229ebd4f6a86371b6f84d4dc1439a9cccd52857ee",
    "syncobj.py": "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4",
    "tcp_connection.py": "7784ed8da031369fe36f805cb186a2e94a3bd6f10fed2dd59c8cc3713fd6331c",
    "tcp_server.py": "bde2f216c1a585029188d0438b44762e2e797dfc53bbce387839daaa46b9a60d",
    "transport.py": "0c9d89f9c4781ec9772df8011d7975a1a4a1a5f541357e12eae85a813e92b50b",
    "utility.py": "1aa0c49d3558c5df6489235b94ae44357b382f9f0792b9d72ae6e5ae0c0039ea",
    "version.py": "0b8426a8b52ecf874193897d26c4214acbd85335145ea9ff17e27a22b1132943",
    "win_inet_pton.py": "75315fdf68bfa4219c2952b21077387be45a02c4f01db45c7355cdc883c8e9cc",
}
"""The digests of all reviewed files that Python reads when it imports the library."""

_swap_lock = threading.Lock()


def check_release() -> None:
    """Check that the installed release of the library is the reviewed one.

    Raises:
        LogError: the library has another version or lacks a required name.
    """
    if version.VERSION != RELEASE:
        raise LogError(
            f"pysyncobj {version.VERSION} is installed, {RELEASE} is needed: pip install pysyncobj=={RELEASE}"
        )
    missing = missing_names()
    if missing:
        raise LogError(f"pysyncobj {RELEASE} lacks {', '.join(missing)}: install it again from its package index")


def missing_names() -> list[str]:
    """Return the names that the hooks need and that the installed library lacks."""
    set_by = {
        **dict.fromkeys(ATTRIBUTES, library.SyncObj.__init__.__code__.co_names),
        **dict.fromkeys(NOTIFIER_ATTRIBUTES, pipe_notifier.PipeNotifier.__init__.__code__.co_names),
    }
    methods = [name for name in METHODS if not callable(getattr(library.SyncObj, name, None))]
    attributes = [name for name, known in set_by.items() if name not in known]
    return methods + attributes + [name for name in GLOBALS if not hasattr(library, name)]


@contextmanager
def replaced_storage(journal: Callable[[str], Any], dump: Callable[..., Any]) -> Iterator[None]:
    """Make SyncObj's constructor use `SqliteJournal` and `DumpFile` instead of the library's classes (H1, H5).

    The constructor looks up both classes in the globals of its module. Only one constructor call at a time sees the replaced globals, so
    the library itself remains unchanged.
    """
    with _swap_lock:
        before = library.createJournal, library.Serializer
        library.createJournal, library.Serializer = journal, dump
        try:
            yield
        finally:
            library.createJournal, library.Serializer = before


def forbid_pickle() -> None:
    """Prevent the library from unpickling anything in this process (H12).

    Because this program pickles nothing, any bytes that reach the library's `load` functions must be an attack.
    """
    library_pickle.load = library_pickle.loads = _refuse


def _refuse(*_: object) -> NoReturn:
    raise pickle.UnpicklingError("pysyncobj may not unpickle here: no message or file of this release contains pickles")


class FalseAlarmFilter(logging.Filter):
    """Log filter that drops a library message that is false with this journal.

    The library logs "truncating already-applied log entries" whenever an AppendEntries starts at an earlier entry. This journal never
    cuts applied entries (H4), and `SafeSyncObj` ends the process if a leader contradicts them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the log record is kept."""
        return not str(record.msg).startswith("truncating already-applied")


_false_alarms = FalseAlarmFilter()


def drop_false_alarms() -> None:
    """Install the filter in the library's logger. A repeated call has no effect."""
    library.logger.addFilter(_false_alarms)


class WakeUp:
    """Replacement for the library's notifier that writes one byte for all proposals made before the commands are taken, instead of one per
    proposal.

    Each write is a system call that releases the interpreter lock, after which a tick would take and sync only the proposals made so far.

    Attributes:
        later: function that schedules a call to run after the proposer's current work. The byte is written at once if `later` is None or
            `notify` runs on the tick thread.
    """

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self.is_woken = False
        self.later: Callable[[Callable[[], None]], object] | None = None
        self._ticking = threading.get_ident()
        self._closing = threading.Lock()
        self._is_closed = False

    def notify(self) -> None:
        """Wake the tick thread.

        This method must be called after each queued command, from the tick thread or from the thread of `later`. If `is_woken` is set, no
        byte is needed, because the tick has not yet taken the earlier commands.
        """
        if self.is_woken:
            return
        self.is_woken = True
        if self.later is None or threading.get_ident() == self._ticking:
            self._write()
        else:
            self.later(self._write)

    def _write(self) -> None:
        with self._closing:  # after a close, the descriptor's number may be reused
            if not self._is_closed:
                with suppress(BlockingIOError):  # the pipe is full, so the tick thread will wake anyway
                    self.pipe.notify()

    def close(self, poller: Any) -> None:
        """Close the pipe. The library's own notifier leaks two file descriptors for each replica that ends."""
        with self._closing:
            self._is_closed = True
            poller.unsubscribe(self.pipe._PipeNotifier__pipeR)
            os.close(self.pipe._PipeNotifier__pipeR)
            os.close(self.pipe._PipeNotifier__pipeW)
