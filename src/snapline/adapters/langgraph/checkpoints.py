"""LangGraph's checkpoints and pending writes as entries of an object stream.

path (thread, namespace)                 name: id of a checkpoint        object: `CheckpointObject`
path (thread, namespace, checkpoint)     name: <task>/<index>            object: `WriteObject`
"""

from typing import Any

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, Checkpoint, CheckpointMetadata, get_checkpoint_id

from snapline.adapters.langgraph.values import References, SavedPlace, SavedValue
from snapline.errors import UsageError

DELTA_COUNTERS = "counters_since_delta_snapshot"
"""Metadata key in checkpoints of graphs with a `DeltaChannel`: the channels whose value may have to be built from writes of ancestors."""

Version = str | int | float | None
Channels = dict[str, tuple[Version, SavedValue | None]]
"""Each channel's version, and its value, if any."""


class CheckpointObject(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A checkpoint: its parent, its metadata and its content without channels, both serialized, and the channels."""

    parent: str | None
    metadata: tuple[str, bytes]
    rest: tuple[str, bytes]
    channels: dict[str, tuple[Version, SavedPlace | None]]


class WriteObject(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One pending write."""

    task_path: str
    channel: str
    value: SavedPlace


class CheckpointPlace(msgspec.Struct, frozen=True, gc=False):
    """Checkpoint named by a config; `checkpoint` None: the newest."""

    thread: str
    namespace: str
    checkpoint: str | None

    @property
    def path(self) -> tuple[str, str]:
        """Path of the checkpoints of its namespace."""
        return self.thread, self.namespace

    def config(self, checkpoint: str) -> RunnableConfig:
        """Return a config that names another checkpoint of the same namespace."""
        names = {"thread_id": self.thread, "checkpoint_ns": self.namespace, "checkpoint_id": checkpoint}
        return {"configurable": names}


_encoder = msgspec.msgpack.Encoder()
_checkpoint_decoder = msgspec.msgpack.Decoder(CheckpointObject)
_write_decoder = msgspec.msgpack.Decoder(WriteObject)


def place_of(config: RunnableConfig) -> CheckpointPlace:
    """Return the place named by a config; raise UsageError if it names no thread."""
    configurable = config.get("configurable", {})
    thread = configurable.get("thread_id")
    if thread is None:
        raise UsageError('the config names no thread: give {"configurable": {"thread_id": …}}')
    return CheckpointPlace(str(thread), str(configurable.get("checkpoint_ns") or ""), get_checkpoint_id(config) or None)


def encode_checkpoint(
    parent: str | None, metadata: tuple[str, bytes], rest: tuple[str, bytes], channels: Channels
) -> tuple[bytes, list[bytes]]:
    """Return the bytes and the references of a checkpoint's object."""
    references = References()
    places = {name: (version, references.place(value)) for name, (version, value) in channels.items()}
    return _encoder.encode(CheckpointObject(parent, metadata, rest, places)), references.digests


def decode_checkpoint(data: bytes, digests: list[bytes]) -> tuple[CheckpointObject, Channels]:
    """Return a checkpoint's object and its channels."""
    checkpoint, references = _checkpoint_decoder.decode(data), References(digests)
    return checkpoint, {
        name: (version, references.value(place)) for name, (version, place) in checkpoint.channels.items()
    }


def encode_write(task_path: str, channel: str, value: SavedValue) -> tuple[bytes, list[bytes]]:
    """Return the bytes and the references of a write's object."""
    references = References()
    place = references.place(value)
    assert place is not None
    return _encoder.encode(WriteObject(task_path, channel, place)), references.digests


def decode_write(data: bytes, digests: list[bytes]) -> tuple[WriteObject, SavedValue]:
    """Return a write's object and its value."""
    write = _write_decoder.decode(data)
    value = References(digests).value(write.value)
    assert value is not None
    return write, value


def write_name(task: str, channel: str, index: int) -> tuple[str, bool]:
    """Return the entry name of a task's write, and whether a later write of that name replaces it."""
    index = WRITES_IDX_MAP.get(channel, index)
    return f"{task}/{index}", index < 0


def split_write_name(name: str) -> tuple[str, int]:
    """Return task and index of a write."""
    task, _, index = name.rpartition("/")
    return task, int(index)


def without_channels(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint without the data that is stored by channel."""
    return {key: content for key, content in checkpoint.items() if key not in ("channel_values", "channel_versions")}


def delta_channels(metadata: CheckpointMetadata, channels: Channels) -> set[str]:
    """Return the channels of a checkpoint whose values must be built from their ancestors' writes."""
    return {name for name in metadata.get(DELTA_COUNTERS) or () if channels.get(name, (None, None))[1] is None}
