"""Deletion of checkpoints, except those from which a remaining checkpoint is built.

Checkpoints contain their values, so any of them may be deleted. The exception are graphs with a `DeltaChannel`: most of their checkpoints do not
contain its value, which is built from the writes of ancestors up to the nearest one with a value. Those ancestors remain.
"""

import contextlib
from collections.abc import Collection, Iterator
from typing import Protocol

from langgraph.checkpoint.base import CheckpointMetadata

from snapline.adapters.langgraph.checkpoints import DELTA_COUNTERS, Channels, CheckpointPlace, delta_channels
from snapline.errors import NotFoundError, UsageError
from snapline.storage.object_streams.object_stream import Change, ObjectStream

Path = tuple[str, ...]


class MetadataReader(Protocol):
    """Reads checkpoints without their values."""

    def read_metadata(self, digest: bytes) -> tuple[CheckpointMetadata, str | None, Channels]:
        """Return metadata, parent and channels of the checkpoint in this object; raise NotFoundError if it was deleted."""


def forget_thread(shelf: ObjectStream, change: Change, thread: str) -> str:
    """Delete all data of a thread. Return its newest checkpoint; "" if it has none."""
    newest = ""
    for path in shelf.paths(thread):
        names = shelf.entries(path)
        newest = max(newest, *names, "") if len(path) == 2 else newest
        _forget_names(change, path, names)
    return newest


def forget(shelf: ObjectStream, change: Change, path: Path, kept: Collection[str]) -> None:
    """Delete the checkpoints of a namespace that are not in `kept`, with their writes; also writes for older checkpoints that were never saved."""
    names = shelf.entries(path)
    deleted = [name for name in names if name not in kept]
    _forget_names(change, path, deleted)
    for name in deleted:
        _forget_names(change, (*path, name), shelf.entries((*path, name)))


def keep_latest(reader: MetadataReader, shelf: ObjectStream, change: Change, thread: str) -> dict[Path, str]:
    """Delete all but the latest checkpoint of each namespace and the ancestors it is built from. Return the latest ones."""
    latest: dict[Path, str] = {}
    for path in shelf.paths(thread):
        names = shelf.entries(path)
        if len(path) == 2 and names:
            latest[path] = max(names)
            kept = {latest[path]}
            forget(shelf, change, path, kept | _ancestors(reader, names, kept))
    _forget_orphans(shelf, change, thread)
    return latest


def newest(
    reader: MetadataReader,
    shelf: ObjectStream,
    place: CheckpointPlace,
    added: str,
    metadata: CheckpointMetadata,
    channels: Channels,
    keep_last: int,
) -> set[str]:
    """Return the checkpoints that remain when `added` is saved: the newest, and those they are built from. `added` may be older than all of them."""
    names = shelf.entries(place.path)
    kept = set(sorted({added, *names}, reverse=True)[:keep_last])
    if added not in kept or not metadata.get(DELTA_COUNTERS):
        return kept | _ancestors(reader, names, kept - {added})
    needed = delta_channels(metadata, channels)
    return kept | set(_walk(reader, names, place.checkpoint, needed)) | _ancestors(reader, names, kept - {added})


def forget_runs(reader: MetadataReader, shelf: ObjectStream, change: Change, runs: Collection[str]) -> None:
    """Delete the checkpoints of these runs; raise UsageError if a remaining one is built from them."""
    for thread in shelf.first_words():
        for path in shelf.paths(thread):
            if len(path) == 2:
                _forget_runs_in(reader, shelf, change, path, runs)


def _forget_runs_in(
    reader: MetadataReader, shelf: ObjectStream, change: Change, path: Path, runs: Collection[str]
) -> None:
    names = shelf.entries(path)
    deleted = set()
    for name, digest in names.items():
        try:
            if reader.read_metadata(digest)[0].get("run_id") in runs:
                deleted.add(name)
        except NotFoundError:
            continue  # The checkpoint was deleted meanwhile.
    if deleted:
        needed = _ancestors(reader, names, names.keys() - deleted) & deleted
        if needed:
            raise UsageError(
                f"thread {path[0]!r} has a DeltaChannel whose value is made of {len(needed)} checkpoints of these runs: "
                "delete the thread, or all of its runs"
            )
        forget(shelf, change, path, names.keys() - deleted)


def _forget_names(change: Change, path: Path, names: Collection[str]) -> None:
    for name in names:
        change.name(path, name, None)


def _forget_orphans(shelf: ObjectStream, change: Change, thread: str) -> None:
    """Delete writes for missing checkpoints older than the newest: these were lost in a crash, or deleted."""
    for path in shelf.paths(thread):
        if len(path) == 3:
            names = shelf.entries(path[:2])
            if path[2] not in names and path[2] < max(names, default=""):
                _forget_names(change, path, shelf.entries(path))


def _ancestors(reader: MetadataReader, names: dict[str, bytes], kept: Collection[str]) -> set[str]:
    """Return the ancestors from which the kept checkpoints are built."""
    ancestors: set[str] = set()
    for name in kept:
        with contextlib.suppress(NotFoundError):  # The checkpoint was deleted meanwhile, so it needs no ancestors.
            metadata, parent, channels = reader.read_metadata(names[name])
            ancestors.update(_walk(reader, names, parent, delta_channels(metadata, channels)))
    return ancestors


def _walk(reader: MetadataReader, names: dict[str, bytes], checkpoint: str | None, needed: set[str]) -> Iterator[str]:
    """Yield ancestors, from this one on, until a value of each of these channels was found."""
    while needed and checkpoint is not None and checkpoint in names:
        yield checkpoint
        try:
            _, checkpoint, channels = reader.read_metadata(names[checkpoint])
        except NotFoundError:
            return  # The ancestor was deleted meanwhile, with its values.
        needed = {name for name in needed if channels.get(name, (None, None))[1] is None}
