"""Settings of PySyncObj, with the reason for each, and the class of replicas that the library uses.

The timings are based on measurements with three replicas on one busy machine (fsync: median 4 ms, maximum 716 ms). The sizes are design
choices. `SafeSyncObj` adds the file names and the state functions.
"""

import zlib

from pysyncobj.config import SyncObjConf  # type: ignore[import-untyped]  # the library has no types
from pysyncobj.node import Node  # type: ignore[import-untyped]  # the library has no types

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
    """Return the settings of one replica.

    Args:
        rank: the replica's position in the sorted list of members, counted from 0.
        compaction_entries: number of entries in the journal beyond which the replica of rank 0 makes a dump.
        batch_bytes: size, in bytes, of one AppendEntries and of one piece of a dump; changed only in tests. An entry must be smaller.
        election_s: shortest and longest time, in seconds, to wait for a leader.
        heartbeat_s: period of AppendEntries, in seconds.
        fallback_s: same as FALLBACK_S.
    """
    return SyncObjConf(
        autoTick=False,  # the driver's thread ticks
        useFork=False,  # a fork is unsafe with threads, and the dump would end at an arbitrary time
        dynamicMembershipChange=False,  # members are static
        logCompactionSplit=False,  # it would compare clocks of different machines, and delay forced dumps
        raftMinTimeout=election_s[0],
        raftMaxTimeout=election_s[1],
        appendEntriesPeriod=heartbeat_s,
        leaderFallbackTimeout=fallback_s,
        connectionTimeout=max(
            3.0, election_s[1]
        ),  # for the library's own TCP, which is unused; validate() still checks the value
        appendEntriesUseBatch=False,  # with batches, a write took 62 to 103 ms; without them, about 1 ms
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

    The library iterates over sets of nodes. The hash of a node is equal in every process, so a seed reproduces a run.
    """

    def __init__(self, id: str, address: str) -> None:
        """Create a replica with an id and an address.

        Args:
            id: the replica's name in the static list of members, such as `"c1"`. Equal ids identify the same replica.
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
