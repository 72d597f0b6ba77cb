"""Documents that describe snapshots to tools. Only a store is needed to make these documents.

The coordinator serves these documents, and the command line also makes them without a coordinator. None of the fleet's classes is
imported. States and messages are decoded without their classes. A caller that has the classes may pass its own `describe_…` functions.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from snapline.errors import DamagedDataError
from snapline.messages.answers import Rows, SnapshotList, StoreVerification, document
from snapline.messages.payloads import describe_payload
from snapline.messages.status import ForkedFrom
from snapline.storage.capture.saved_value_formats import plain
from snapline.storage.capture.saved_values import FAILURES, ReadParts
from snapline.storage.packs.checkpoint import AgentCheckpoint
from snapline.storage.packs.manifest import Manifest
from snapline.storage.store.catalog import read_summaries
from snapline.storage.store.store import Holds, Store
from snapline.storage.store.verify import Verification

DescribeState = Callable[[AgentCheckpoint, ReadParts | None], object]
DescribePayload = Callable[[bytes], object]


def list_snapshots(store: Store, catalog: Path | None = None) -> SnapshotList:
    """List all snapshots, oldest first. `catalog` is the path of a file that caches the contents of the manifests."""
    holds = Holds(store, now_s=time.time)
    summaries, pins, fork = tuple(read_summaries(store, catalog)), tuple(holds.pinned()), forked_from(store)
    try:
        tags = {tag.name: tag.epoch for tag in holds.tags()}
    except DamagedDataError as error:  # pins are identified by their file names, so only tags can be damaged
        return SnapshotList(store.location, summaries, pins, {}, str(error), fork)
    return SnapshotList(store.location, summaries, pins, tags, fork=fork)


def forked_from(store: Store) -> ForkedFrom | None:
    """Return the origin of the store's fleet, or None if the fleet was not forked.

    Raises DamagedDataError or StoreError if the fork record cannot be read.
    """
    record = store.fork_record()
    if record is None:
        return None
    return ForkedFrom(record.name, record.parent, record.parent_name, record.epoch, record.is_live)


def show_document(
    store: Store,
    snapshot: str,
    agent: str | None = None,
    *,
    describe_state: DescribeState | None = None,
    describe_message: DescribePayload | None = None,
    contents_bytes_max: int | None = None,
) -> Rows:
    """Describe the agents' states and the messages in transit in one snapshot, for all agents or for one.

    Large arrays and histories are expanded only if a single agent is shown, and otherwise described.

    Args:
        snapshot: tag or number of the snapshot.
        agent: id of the agent to show; None shows all agents.
        describe_state: function that describes a state; None means that states are decoded without their classes.
        describe_message: function that describes a message; None means that messages are decoded without their classes.
        contents_bytes_max: limit, in bytes, on the total size of all states and messages as JSON. Only the size is shown for values that
            exceed the limit. None means no limit.

    Raises:
        NotFoundError: the snapshot or the agent does not exist.
        DamagedDataError: a file of the snapshot is damaged.
    """
    epoch = store.resolve(snapshot)
    root = store.read_ref(epoch)
    manifest = store.read_manifest(root, epoch=epoch)
    hosts = {line.agent: line.host for line in manifest.agents}
    room, fork = _SizeBudget(contents_bytes_max), forked_from(store)
    describe = room.payload(describe_message or decode_payload)
    read_parts = store.part_reader(manifest).read if agent else None
    agents, channels = list[Mapping[str, object]](), list[Mapping[str, object]]()
    for checkpoint in store.read_checkpoints(manifest, [agent] if agent else None):  # only one at a time is in memory
        state = room.state(checkpoint, read_parts, describe_state or decode_state)
        agents.append(_agent(checkpoint, hosts[checkpoint.agent], state, describe))
        channels += _channels(checkpoint, describe)
    return document(
        "Snapshot",
        store=store.location,
        **_about(root, manifest),
        **({} if fork is None else {"fork": msgspec.to_builtins(fork)}),
        dependencies=manifest.metadata.dependencies,
        agents=agents,
        channels=channels,
    )


class _SizeBudget:
    """Tracks the space left in a document for states and messages."""

    def __init__(self, bytes_max: int | None) -> None:
        self._left = bytes_max

    def state(self, checkpoint: AgentCheckpoint, read_parts: ReadParts | None, describe: DescribeState) -> object:
        return self._shown(len(checkpoint.state), lambda: describe(checkpoint, read_parts))

    def payload(self, describe: DescribePayload) -> DescribePayload:
        return lambda payload: self._shown(len(payload), lambda: describe(payload))

    def _shown(self, size_bytes: int, describe: Callable[[], object]) -> object:
        if self._left is None:
            return describe()
        if size_bytes <= self._left:
            described = describe()
            size_json = len(msgspec.json.encode(described))
            if size_json <= self._left:
                self._left -= size_json
                return described
        return f"<{size_bytes} bytes, too large beside the others: `snapline snapshot show --store` reads them>"


def verify(store: Store, snapshot: str | None = None) -> StoreVerification:
    """Verify every byte of the store, or of one snapshot, against the stored digests."""
    epoch = store.resolve(snapshot) if snapshot else None
    return verification(store.location, epoch, store.verify(epoch))


def verification(location: str, epoch: int | None, found: Verification) -> StoreVerification:
    """Convert a verification result into a document."""
    return StoreVerification(
        store=location,
        epoch=epoch,
        is_whole=found.is_whole,
        checked_files=len(found.checked),
        checked_bytes=sum(file.size_bytes for file in found.checked),
        findings=tuple(found.findings),
        unreferenced=tuple(found.unreferenced),
    )


def decode_state(checkpoint: AgentCheckpoint, read_parts: ReadParts | None = None) -> object:
    """Decode the state to plain values, without loading its class. If `read_parts` is None, parts that are stored outside the
    checkpoint's record are not expanded.

    Raises:
        DamagedDataError: a part of the state is damaged.
    """
    if not checkpoint.state:
        return None
    read = None if read_parts is None else lambda part: read_parts(checkpoint.agent, [part])[0]
    try:
        return _jsonable(plain(checkpoint.state, checkpoint.parts, read))
    except FAILURES:
        return f"<{len(checkpoint.state)} bytes>"


def decode_payload(payload: bytes) -> object:
    """Decode a message without loading its class. Return the name of the message's type, and its fields as JSON values."""
    return describe_payload(payload, _decode)


def _decode(data: bytes) -> object:
    return _jsonable(plain(data))


def _jsonable(value: Any) -> object:
    """Convert `value` to JSON values. Keys become strings, and each bytes value becomes a description of its size."""
    match value:
        case dict():
            return {key if isinstance(key, str) else str(key): _jsonable(x) for key, x in value.items()}
        case list() | tuple():
            return [_jsonable(x) for x in value]
        case bytes():
            return f"<{len(value)} bytes>"
        case _:
            return value


def _about(root: str, manifest: Manifest) -> Rows:
    about = manifest.metadata
    return {
        "epoch": about.epoch,
        "root": root,
        "created": about.created,
        "trigger": about.trigger,
        "fleet": about.fleet,
        "protocol": about.protocol,
        "plan": about.plan,
        "hosts": list(about.hosts),
        "agent_count": len(manifest.agents),
        "state_bytes": about.state_bytes,
        "channel_state_messages": about.channel_state_messages,
        "channel_state_bytes": about.channel_state_bytes,
    }


def _agent(checkpoint: AgentCheckpoint, host: str, state: object, describe: DescribePayload) -> Mapping[str, object]:
    return {
        "agent": checkpoint.agent,
        "kind": checkpoint.kind,
        "host": host,
        "incarnation": checkpoint.incarnation,
        "checkpoint": checkpoint.number,
        "is_unborn": checkpoint.is_unborn,
        "is_started": checkpoint.is_started,
        "is_leaving": checkpoint.is_leaving,
        "state_type": checkpoint.state_type,
        "state": state,
        "sent": checkpoint.sent,
        "received": checkpoint.received,
        "outbox": [{"receiver": x.receiver, "message": describe(x.payload)} for x in checkpoint.outbox],
        "spawns": [{"agent": spawn.agent, "kind": spawn.kind.partition("@")[0]} for spawn in checkpoint.spawns],
        "timers": [
            {"name": x.name, "remaining_s": x.remaining_ns / 1e9, "message": describe(x.payload)}
            for x in checkpoint.own_timers
        ],
        "durable_turn": _durable(checkpoint, describe),
        "put_off": [{"sender": x.sender, "message": describe(x.payload)} for x in checkpoint.stash],
        "dead_letters": [
            {
                "number": number,
                "sender": x.sender,
                "message": describe(x.payload),
                "error": x.error,
                "attempts": x.attempts,
            }
            for number, x in zip(checkpoint.dead_letter_numbers.numbers, checkpoint.dead_letters, strict=True)
        ],
        "dead_letter_count": checkpoint.dead_letter_count,
    }


def _durable(checkpoint: AgentCheckpoint, describe: DescribePayload) -> Mapping[str, object] | None:
    """Describe the agent's running durable turn, or return None if there is none. While a durable turn is running, the checkpoint
    contains the state before that turn."""
    turn = checkpoint.turn
    if turn is None:
        return None
    return {
        "what": turn.what,
        "sender": turn.sender,
        "message": describe(turn.payload),
        "entries": checkpoint.journal_entries,
        "waits_for": None if turn.waits is None else f"{turn.waits.kind} {turn.waits.name}".rstrip(),
    }


def _channels(checkpoint: AgentCheckpoint, describe: DescribePayload) -> list[Mapping[str, object]]:
    """Describe those of the agent's incoming channels that have messages in transit."""
    return [
        {
            "sender": sender,
            "receiver": checkpoint.agent,
            "in_transit": [{"number": x.number, "stamp": x.stamp, "message": describe(x.payload)} for x in messages],
        }
        for sender, messages in sorted(checkpoint.in_transit.items())
        if messages
    ]
