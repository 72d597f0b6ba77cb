"""Stores the checkpoints of an agent's graph as part of the agent's state.

The state contains only the checkpoints that the graph needs to continue. A graph needs the newest checkpoint of each thread and the
checkpoints of interrupted subgraphs. In graphs with a `DeltaChannel`, the ancestors from which a value is built are also needed. There is
no checkpoint history for time travel. Use the fleet's snapshots for time travel.

LangGraph's serializer encodes the values. A large value is stored as a `Blob`. Consecutive checkpoints share the blob until a step of the
graph changes the value.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from snapline.adapters.langgraph.checkpoints import (
    DELTA_COUNTERS,
    CheckpointPlace,
    place_of,
    split_write_name,
    write_name,
)
from snapline.storage.capture.values import Blob

MAIN = "main"
"""Default thread of a graph."""

BLOB_BYTES_MIN = 4096
"""Smallest size in bytes of a value that is stored as a blob. A blob is a separate part of each checkpoint, with an overhead of a few
hundred bytes."""

NO_TIME = "1970-01-01T00:00:00+00:00"
"""Timestamp that is used for all checkpoints, so that a rerun turn ends in the same state. No value depends on it."""

Typed = tuple[str, bytes]


class GraphValue(msgspec.Struct, frozen=True):
    """The type and bytes of a channel's value, and the channel version that set the value. The bytes are either in `data` or in the blob
    `large`."""

    version: int
    type: str
    data: bytes = b""
    large: Blob | None = None

    @classmethod
    def of(cls, version: int, typed: Typed) -> "GraphValue":
        name, data = typed
        if len(data) < BLOB_BYTES_MIN:
            return cls(version, name, bytes(data))
        return cls(version, name, b"", Blob(data))

    @property
    def typed(self) -> Typed:
        return self.type, self.data if self.large is None else self.large.data


class GraphCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint of a LangGraph graph. `rest` is the checkpoint's content without the channel values."""

    parent: str | None
    metadata: Typed
    rest: Typed
    values: dict[str, GraphValue]


class GraphWrite(msgspec.Struct, frozen=True):
    """A pending write of a task whose superstep has not yet ended."""

    path: str
    channel: str
    value: Typed


class GraphNamespace(msgspec.Struct):
    """The checkpoints of a graph or subgraph, and each checkpoint's pending writes. Checkpoints and pending writes are both stored by
    checkpoint id."""

    checkpoints: dict[str, GraphCheckpoint] = {}
    writes: dict[str, dict[str, GraphWrite]] = {}


class GraphMemory(msgspec.Struct):
    """The state of a `SnaplineGraphAgent`. Subclasses may add fields.

    Attributes:
        threads: thread id → namespace → checkpoints of the namespace. The main graph's namespace is the empty string.
        drawn: number of checkpoint ids generated so far, which ensures that each new id is greater than all earlier ids.
    """

    threads: dict[str, dict[str, GraphNamespace]] = {}
    drawn: int = 0

    def values(self, thread_id: str = MAIN, serde: SerializerProtocol | None = None) -> dict[str, Any]:
        """Return the graph's current values, or an empty dictionary if the thread has no checkpoints. This method is meant for `stop_when`,
        invariants and tests.

        The value of a `DeltaChannel` is included only if the newest checkpoint contains a snapshot of the channel.
        """
        namespace = self.threads.get(thread_id, {}).get("")
        if namespace is None or not namespace.checkpoints:
            return {}
        serde = serde or JsonPlusSerializer()
        newest = namespace.checkpoints[max(namespace.checkpoints)]
        return {
            name: serde.loads_typed(channel_value.typed)
            for name, channel_value in newest.values.items()
            if _is_own(name)
        }

    def forget(self, thread_id: str = MAIN) -> None:
        """Delete a thread if it exists."""
        self.threads.pop(thread_id, None)


class GraphMemorySaver(BaseCheckpointSaver[int]):
    """A LangGraph checkpointer that stores checkpoints in a `GraphMemory`. Each instance is used for a single run of a graph."""

    def __init__(self, memory: GraphMemory, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        self._memory = memory

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Add a checkpoint. Values that have not changed since the parent checkpoint are shared with the parent."""
        place = place_of(config)
        namespace = self._namespace(place)
        before = namespace.checkpoints.get(place.checkpoint or "")
        parent_values = {} if before is None else before.values
        versions, values = checkpoint["channel_versions"], dict[str, GraphValue]()
        for name, value in checkpoint["channel_values"].items():
            version = int(versions.get(name, 0))
            is_same = name in parent_values and parent_values[name].version == version and name not in new_versions
            values[name] = parent_values[name] if is_same else GraphValue.of(version, self.serde.dumps_typed(value))
        content = {name: field for name, field in checkpoint.items() if name != "channel_values"} | {"ts": NO_TIME}
        namespace.checkpoints[checkpoint["id"]] = GraphCheckpoint(
            place.checkpoint,
            self.serde.dumps_typed(get_serializable_checkpoint_metadata(config, metadata)),
            self.serde.dumps_typed(content),
            values,
        )
        return place.config(checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Add a task's writes for the superstep that follows the checkpoint in the config."""
        place = place_of(config)
        saved_writes = self._namespace(place).writes.setdefault(place.checkpoint or "", {})
        for index, (channel, value) in enumerate(writes):
            name, is_replaced = write_name(task_id, channel, index)
            if name not in saved_writes or is_replaced:
                saved_writes[name] = GraphWrite(task_path, channel, self.serde.dumps_typed(value))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint to which the config refers, or None if there is no such checkpoint. If the config names no checkpoint,
        return the newest checkpoint of its thread."""
        place = place_of(config)
        namespace = self._memory.threads.get(place.thread, {}).get(place.namespace)
        checkpoint = place.checkpoint or (max(namespace.checkpoints, default=None) if namespace is not None else None)
        if namespace is None or checkpoint not in namespace.checkpoints or checkpoint is None:
            return None
        return self._loaded(place, namespace, checkpoint)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield only the newest checkpoint, because the memory contains no history."""
        newest = None if config is None else self.get_tuple(config)
        if newest is not None:
            yield newest

    # -- async versions: everything is in memory -----------------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Call `put` without blocking."""
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Call `put_writes` without blocking."""
        self.put_writes(config, writes, task_id, task_path)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Call `get_tuple` without blocking."""
        return self.get_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield the results of `list` asynchronously."""
        for found in self.list(config, filter=filter, before=before, limit=limit):
            yield found

    # -- the end of a run ----------------------------------------------------------------------------------------------

    def settle(self, thread_id: str) -> None:
        """Finish a run of the graph. Delete the data that later runs do not need. Sort the remaining data, because its order otherwise
        depends on the timing of LangGraph's threads."""
        namespaces = self._memory.threads.get(thread_id, {})
        remaining = dict[str, GraphNamespace]()
        waiting = set[str]()  # tasks with a pending interrupt
        for name in sorted(namespaces, key=lambda name: (name.count("|"), name)):
            if waiting >= _tasks_of(name) and namespaces[name].checkpoints:
                remaining[name] = self._settled(namespaces[name])
                newest = remaining[name].writes.get(max(remaining[name].checkpoints), ())
                waiting.update(split_write_name(write)[0] for write in newest)
        if remaining:
            self._memory.threads[thread_id] = remaining

    def _settled(self, namespace: GraphNamespace) -> GraphNamespace:
        needed = sorted(self._needed(namespace))
        writes = {
            checkpoint: dict(sorted(namespace.writes[checkpoint].items()))
            for checkpoint in needed
            if checkpoint in namespace.writes
        }
        return GraphNamespace({checkpoint: namespace.checkpoints[checkpoint] for checkpoint in needed}, writes)

    def _needed(self, namespace: GraphNamespace) -> Iterator[str]:
        """Yield the newest checkpoint, and then the ancestors whose writes are needed to build the values of its delta channels."""
        name: str | None = max(namespace.checkpoints)
        missing: set[str] | None = None
        while name in namespace.checkpoints and name is not None and missing != set():
            yield name
            checkpoint = namespace.checkpoints[name]
            if missing is None:
                missing = set(self.serde.loads_typed(checkpoint.metadata).get(DELTA_COUNTERS) or ())
            missing -= checkpoint.values.keys()
            name = checkpoint.parent

    def _namespace(self, place: CheckpointPlace) -> GraphNamespace:
        return self._memory.threads.setdefault(place.thread, {}).setdefault(place.namespace, GraphNamespace())

    def _loaded(self, place: CheckpointPlace, namespace: GraphNamespace, name: str) -> CheckpointTuple:
        stored, load = namespace.checkpoints[name], self.serde.loads_typed
        checkpoint: Any = load(stored.rest)  # encoded by `put`
        checkpoint["channel_values"] = {channel: load(value.typed) for channel, value in stored.values.items()}
        writes = namespace.writes.get(name, {})
        ordered = sorted(writes, key=lambda write: (writes[write].path, *split_write_name(write)))
        pending = [
            (split_write_name(write_id)[0], writes[write_id].channel, load(writes[write_id].value))
            for write_id in ordered
        ]
        parent = None if stored.parent is None else place.config(stored.parent)
        return CheckpointTuple(place.config(name), checkpoint, load(stored.metadata), parent, pending)


def _is_own(channel: str) -> bool:
    """Return whether the graph's author defined the channel. LangGraph defines the remaining channels."""
    return not channel.startswith(("__", "branch:"))


def _tasks_of(namespace: str) -> set[str]:
    """Return the task ids in a namespace of the form `node:task|node:task`.

    The namespace of a subgraph with its own memory contains no task ids.
    """
    return {part.partition(":")[2] for part in namespace.split("|") if ":" in part}
