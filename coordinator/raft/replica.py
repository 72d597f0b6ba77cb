"""Replica with all its parts: streams on the event loop, node on its thread, driver between them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc.aio
import msgspec
from pysyncobj.config import SyncObjConf  # type: ignore[import-untyped]  # the library has no types

from snapline.coordinator.raft.driver import RaftDriver
from snapline.coordinator.raft.learner import LogMarks
from snapline.coordinator.raft.node import Machine, SafeSyncObj
from snapline.coordinator.raft.pysyncobj_settings import RaftNode, raft_configuration
from snapline.coordinator.raft.raft_streams import PeerStreams
from snapline.coordinator.raft.transport import GrpcTransport
from snapline.errors import UsageError
from snapline.ids import check_id
from snapline.messages.status import Standing
from snapline.security.transport import Security


class ReplicaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a replica.

    Attributes:
        node: its id, one of `members`.
        members: id → "host:port" of all replicas; the same everywhere, permanently.
        folder: folder of its files, on a local disk, used by this replica alone.
        cluster: name of the cluster; files and replicas of another one are refused.
        marks: storage of the log marks, shared by all replicas and outside their folders.
        security: certificates of role coordinator, or loopback only.
        configuration: settings of the library; default: `raft_configuration` with this replica's rank.
    """

    node: str
    members: dict[str, str]
    folder: Path
    cluster: str
    marks: LogMarks
    security: Security = msgspec.field(default_factory=Security.loopback)
    configuration: SyncObjConf | None = None


class Replica:
    """Replica made on the event loop that serves; `start` it once its server is bound.

    Attributes:
        driver: proposals, reads, status.
        streams: Raft streams, to be added to the server.
    """

    def __init__(
        self,
        options: ReplicaOptions,
        machine: Machine,
        *,
        on_alarm: Callable[[str], None],
        on_standing: Callable[[Standing], None] | None = None,
    ) -> None:
        """Create the replica; nothing runs yet.

        Args:
            machine: the replicated state; called on the tick thread only.
            on_alarm: called on the tick thread with a sentence for operators; must return at once.
            on_standing: see RaftDriver.

        Raises:
            UsageError: the members are inconsistent.
        """
        if options.node not in options.members:
            raise UsageError(f"{options.node} is not among the members {', '.join(sorted(options.members))}")
        for node in options.members:
            check_id(node, "replica")
        if len(set(options.members.values())) < len(options.members):
            raise UsageError("two members have the same address: each replica needs its own")
        self._options = options
        self._machine = machine
        self._on_alarm = on_alarm
        self._others = [
            RaftNode(node, address) for node, address in sorted(options.members.items()) if node != options.node
        ]
        for other in self._others:
            options.security.check_dial_address(other.address)
        self.streams = PeerStreams(
            node=options.node,
            others=self._others,
            cluster=options.cluster,
            security=options.security,
            address=options.members[options.node],
        )
        self.driver = RaftDriver(self._make_node, self.streams.inbox, on_standing=on_standing)

    def add_to_server(self, server: grpc.aio.Server) -> None:
        """Accept the other replicas' streams on `server`, which is not started yet."""
        self.streams.add_to_server(server)

    async def start(self) -> None:
        """Open the files and take part. LogError: they are damaged or cannot be read."""
        await self.driver.start()

    async def stop(self) -> None:
        """End the replica; its files remain. May be called again."""
        await self.driver.stop()
        await self.streams.stop()

    def metrics(self) -> dict[str, float]:
        """Return counters and gauges by name, for Prometheus; times in seconds."""
        streams = self.streams
        return self.driver.metrics() | {
            "raft_streams_opened_total": float(streams.opened),
            "raft_streams_refused_total": float(streams.refused),
        }

    def _make_node(self) -> SafeSyncObj:
        options = self._options
        rank = sorted(options.members).index(options.node)
        return SafeSyncObj(
            RaftNode(options.node, options.members[options.node]),
            self._others,
            options.configuration or raft_configuration(rank),
            transport_class=partial(GrpcTransport, streams=self.streams),
            machine=self._machine,
            folder=options.folder,
            cluster=options.cluster,
            marks=options.marks,
            on_alarm=self._on_alarm,
        )
