"""The checkpoints of an agent's graph as a part of the agent's state.

Kept is what the graph goes on from: of each thread the newest checkpoint of the graph, those of subgraphs that stand at an interrupt, and of graphs
with a `DeltaChannel` the ancestors that a value is made of. There is no history to travel in: that is what snapshots of the fleet are.

A value is what LangGraph's serializer makes of it. A large one is a `Blob`, which a checkpoint of the agent refers to for as long as no step of the graph changes it.
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
from snapline.storage.capture.blob_value import Blob

MAIN = "main"
"""The thread of a graph whose caller names none."""

BLOB_BYTES_MIN = 4096
"""A blob is a part of its own in each checkpoint, which takes some hundred bytes."""

NO_TIME = "1970-01-01T00:00:00+00:00"
"""Constant in place of a checkpoint's time, which nothing is computed from: a turn that runs again ends in the same state."""

Typed = tuple[str, bytes]


class GraphValue(msgspec.Struct, frozen=True):
    """A channel's value: its type and bytes, in `large` if they are many; and the version of the channel that it has been since."""

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
    """A checkpoint: `rest` is all but the values of its channels."""

    parent: str | None
    metadata: Typed
    rest: Typed
    values: dict[str, GraphValue]


class GraphWrite(msgspec.Struct, frozen=True):
    """Write of a task whose superstep is not over."""

    path: str
    channel: str
    value: Typed


class GraphNamespace(msgspec.Struct):
    """The checkpoints of a graph, or of one of its subgraphs, by id, and the pending writes of each."""

    checkpoints: dict[str, GraphCheckpoint] = {}
    writes: dict[str, dict[str, GraphWrite]] = {}


class GraphMemory(msgspec.Struct):
    """The state of a `SnaplineGraphAgent`. A subclass of it may have fields of its own.

    Attributes:
        threads: thread → namespace → its checkpoints; the graph's own namespace is "".
        drawn: how many ids have been drawn, of checkpoints; the next one is above all of them.
    """

    threads: dict[str, dict[str, GraphNamespace]] = {}
    drawn: int = 0

    def values(self, thread_id: str = MAIN, serde: SerializerProtocol | None = None) -> dict[str, Any]:
        """The graph's values as they are in this state; none if the thread has not begun. For `stop_when`, invariants and tests.

        A `DeltaChannel` is not among them, unless a snapshot of it is due.
        """
        namespace = self.threads.get(thread_id, {}).get("")
        if namespace is None or not namespace.checkpoints:
            return {}
        serde = serde or JsonPlusSerializer()
        newest = namespace.checkpoints[max(namespace.checkpoints)]
        return {name: serde.loads_typed(found.typed) for name, found in newest.values.items() if _is_own(name)}

    def forget(self, thread_id: str = MAIN) -> None:
        """Forget a thread; nothing if there is none."""
        self.threads.pop(thread_id, None)


class GraphMemorySaver(BaseCheckpointSaver[int]):
    """LangGraph's checkpointer on a `GraphMemory`, for one run of a graph."""

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
        """Add a checkpoint. What no step has changed since its parent is the same object as there."""
        place = place_of(config)
        namespace = self._namespace(place)
        before = namespace.checkpoints.get(place.checkpoint or "")
        known = {} if before is None else before.values
        versions, values = checkpoint["channel_versions"], dict[str, GraphValue]()
        for name, value in checkpoint["channel_values"].items():
            version = int(versions.get(name, 0))
            is_same = name in known and known[name].version == version and name not in new_versions
            values[name] = known[name] if is_same else GraphValue.of(version, self.serde.dumps_typed(value))
        rest = {name: found for name, found in checkpoint.items() if name != "channel_values"} | {"ts": NO_TIME}
        namespace.checkpoints[checkpoint["id"]] = GraphCheckpoint(
            place.checkpoint,
            self.serde.dumps_typed(get_serializable_checkpoint_metadata(config, metadata)),
            self.serde.dumps_typed(rest),
            values,
        )
        return place.config(checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Add what a task has written for the step after the checkpoint that the config names."""
        place = place_of(config)
        known = self._namespace(place).writes.setdefault(place.checkpoint or "", {})
        for index, (channel, value) in enumerate(writes):
            name, is_replaced = write_name(task_id, channel, index)
            if name not in known or is_replaced:
                known[name] = GraphWrite(task_path, channel, self.serde.dumps_typed(value))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the newest of its thread."""
        place = place_of(config)
        found = self._memory.threads.get(place.thread, {}).get(place.namespace)
        checkpoint = place.checkpoint or (max(found.checkpoints, default=None) if found is not None else None)
        if found is None or checkpoint not in found.checkpoints or checkpoint is None:
            return None
        return self._loaded(place, found, checkpoint)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """The newest one: there is no other."""
        found = None if config is None else self.get_tuple(config)
        if found is not None:
            yield found

    # -- the same, for event loops: it is all in memory ----------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Call `put`."""
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Call `put_writes`."""
        self.put_writes(config, writes, task_id, task_path)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Call `get_tuple`."""
        return self.get_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Call `list`."""
        for found in self.list(config, filter=filter, before=before, limit=limit):
            yield found

    # -- the end of a run ----------------------------------------------------------------------------------------------

    def settle(self, thread_id: str) -> None:
        """The run is over: forget what no later one needs, and put the rest into one order, whichever of LangGraph's threads was first."""
        found = self._memory.threads.get(thread_id, {})
        kept = dict[str, GraphNamespace]()
        waiting = set[str]()  # tasks that stand at an interrupt
        for name in sorted(found, key=lambda name: (name.count("|"), name)):
            if waiting >= _tasks_of(name) and found[name].checkpoints:
                kept[name] = self._settled(found[name])
                newest = kept[name].writes.get(max(kept[name].checkpoints), ())
                waiting.update(split_write_name(write)[0] for write in newest)
        if kept:
            self._memory.threads[thread_id] = kept

    def _settled(self, namespace: GraphNamespace) -> GraphNamespace:
        needed = sorted(self._needed(namespace))
        writes = {each: dict(sorted(namespace.writes[each].items())) for each in needed if each in namespace.writes}
        return GraphNamespace({each: namespace.checkpoints[each] for each in needed}, writes)

    def _needed(self, namespace: GraphNamespace) -> Iterator[str]:
        """The newest checkpoint, and the ancestors whose writes its delta channels are made of."""
        name: str | None = max(namespace.checkpoints)
        missing: set[str] | None = None
        while name in namespace.checkpoints and name is not None and missing != set():
            yield name
            found = namespace.checkpoints[name]
            if missing is None:
                missing = set(self.serde.loads_typed(found.metadata).get(DELTA_COUNTERS) or ())
            missing -= found.values.keys()
            name = found.parent

    def _namespace(self, place: CheckpointPlace) -> GraphNamespace:
        return self._memory.threads.setdefault(place.thread, {}).setdefault(place.namespace, GraphNamespace())

    def _loaded(self, place: CheckpointPlace, namespace: GraphNamespace, name: str) -> CheckpointTuple:
        found, load = namespace.checkpoints[name], self.serde.loads_typed
        checkpoint: Any = load(found.rest)  # as `put` made it
        checkpoint["channel_values"] = {channel: load(value.typed) for channel, value in found.values.items()}
        writes = namespace.writes.get(name, {})
        ordered = sorted(writes, key=lambda write: (writes[write].path, *split_write_name(write)))
        pending = [(split_write_name(each)[0], writes[each].channel, load(writes[each].value)) for each in ordered]
        parent = None if found.parent is None else place.config(found.parent)
        return CheckpointTuple(place.config(name), checkpoint, load(found.metadata), parent, pending)


def _is_own(channel: str) -> bool:
    """Return whether it is the graph's author's, and not LangGraph's."""
    return not channel.startswith(("__", "branch:"))


def _tasks_of(namespace: str) -> set[str]:
    """Return the tasks of a namespace: `node:task|node:task`. Of a subgraph with a memory of its own there is none."""
    return {part.partition(":")[2] for part in namespace.split("|") if ":" in part}
