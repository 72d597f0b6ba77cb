"""Reads snapshots in a program or a notebook: `snapline.open_store(location).snapshot("latest").agents["a"].state`.

The reader opens the store directly, without the coordinator. The fleet may be running. The reader imports no code that is named in a store.
Without a fleet, states and messages are plain values (`storage/capture/saved_value_formats.py`). With a fleet, states and messages are
objects of the fleet's classes. All data is checked against its digests before it is used (G11).

Checkpoints and states are read when they are accessed, so a snapshot of ten thousand agents opens as quickly as a snapshot of two agents. A
`SavedAgent` caches the data that it has read, but a `Snapshot` does not cache its agents.
"""

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from snapline.agent_runtime.effect_ledger import Effect, fold
from snapline.agent_runtime.fleet import Fleet, class_of, restored
from snapline.agent_runtime.message_encoding import MessageReader, Output, OutputsReverted, read_batch, state_decoder
from snapline.agent_runtime.snapshots import snapshot_cut
from snapline.agent_runtime.snapshots.snapshot_cut import (
    DeadLetter,
    Decode,
    PendingSpawn,
    PendingTimer,
    TransitMessage,
    dead_letters,
    decode_for,
    decode_plainly,
    describe_state,
    messages_parked,
    messages_to,
    pending_spawns,
    pending_timers,
)
from snapline.agent_runtime.snapshots.snapshot_forks import Fork, ForkAnswers, ForkInputs, ForkRequest, fork_snapshot
from snapline.errors import NotFoundError
from snapline.messages.effect_records import EFFECTS_TOPIC, EffectRecord
from snapline.storage.capture.saved_value_formats import find_field, plain_value
from snapline.storage.capture.saved_values import ReadParts, read_state
from snapline.storage.keys.key_files import Keys, keys_from_environment, read_keys
from snapline.storage.packs.checkpoint import AgentCheckpoint
from snapline.storage.packs.manifest import AgentLine, Manifest
from snapline.storage.store.store import Store

_State = TypeVar("_State")
_Path = str | os.PathLike[str]


def open_store(
    location: _Path,
    *,
    fleet: Fleet | None = None,
    store_keys: _Path | Sequence[_Path] = (),
    verify_keys: _Path | Sequence[_Path] = (),
) -> "SnapshotStore":
    """Open a store for reading. The store's fleet may be running. For a bucket, read-only credentials are sufficient.

    Args:
        location: path of a directory, or a URL such as `s3://bucket/prefix`. Credentials for a URL are taken from the environment.
        fleet: fleet whose classes are used to decode states and messages. Without a fleet, states and messages are decoded to plain dicts,
            lists and arrays.
        store_keys: one or more key files of an encrypted store. The default is the key files in `SNAPLINE_STORE_KEY`.
        verify_keys: files with the trusted public keys. The default is the files in `SNAPLINE_VERIFY_KEY`.

    Raises:
        StoreMissingError: If there is no store at `location`.
        DamagedDataError: If the store's identity file is damaged.
        StoreError: If the store is unreadable, or if it is encrypted and no key was given.
        UsageError: If the URL scheme is unknown, or a key file is invalid.
    """
    keys = keys_from_environment()
    read_store_keys = read_keys(store_keys=_paths(store_keys), verify_keys=_paths(verify_keys))
    keys = Keys(read_store_keys.wrapping or keys.wrapping, keys.signing, read_store_keys.verifying or keys.verifying)
    return SnapshotStore(Store.open(location, keys=keys), fleet)


def _paths(given: _Path | Sequence[_Path]) -> list[Path]:
    """Return a single path or a sequence of paths as a list."""
    return [Path(given)] if isinstance(given, str | os.PathLike) else [Path(path) for path in given]


class SnapshotStore:
    """A store that `open_store` has opened for reading. Iterating over the store yields its snapshots, oldest first.

    Attributes:
        location: path or URL of the store.
    """

    def __init__(self, store: Store, fleet: Fleet | None = None) -> None:
        self._store = store
        self._fleet = fleet
        self.location = store.location

    @property
    def epochs(self) -> list[int]:
        """Return the epoch numbers of the store's snapshots in ascending order."""
        return self._store.epochs()

    def snapshot(self, name: str | int = "latest") -> "Snapshot":
        """Return the snapshot with this name: an epoch number, a tag, at least the first four digits of a root digest, or "latest".

        Raises:
            NotFoundError: If no snapshot or more than one snapshot has this name.
            DamagedDataError: If the snapshot's manifest is damaged.
        """
        return Snapshot(self._store, self._store.resolve(str(name)), self._fleet)

    def outputs(
        self, topic: str = "", *, after: str = "", message_type: Any = None
    ) -> "Iterator[Output | OutputsReverted]":
        """Yield the fleet's released outputs in order.

        Args:
            topic: topic of the outputs, or "" for all topics of agents. The topic `@effects` contains the ledger of effects.
            after: cursor of an output, or "" to start with the oldest output that is still stored. With a cursor, only later outputs are
                returned.
            message_type: class of the decoded messages. By default, messages are decoded to plain values.

        Raises:
            UsageError: If the cursor does not belong to this store.
            NotFoundError: If outputs after the cursor have been deleted.
            EncodingError: If a message does not have the type `message_type`.
            DamagedDataError: If a file is damaged.
        """
        reader = MessageReader(message_type, "message_type", "the output")
        for batch in self._store.read_outputs(after):
            yield from read_batch(batch, topic, reader)

    def effects(self) -> list[Effect]:
        """Return the effects of the fleet's agents with their states, as far as the outputs are still stored.

        Raises:
            DamagedDataError: If a file is damaged.
        """
        return fold(self.outputs(EFFECTS_TOPIC, message_type=EffectRecord))

    def __iter__(self) -> "Iterator[Snapshot]":
        return (self.snapshot(epoch) for epoch in self.epochs)

    def __len__(self) -> int:
        return len(self.epochs)

    def __repr__(self) -> str:
        return f"<SnapshotStore {self.location}: {len(self)} snapshots>"

    def _repr_html_(self) -> str:
        from snapline.storage.store.catalog import read_summaries

        return snapshot_cut.of_store(self.location, read_summaries(self._store))


class Snapshot:
    """One complete epoch in a store.

    Attributes:
        epoch: number of the epoch.
        root: digest of the epoch as hexadecimal text.
        created: time of creation in UTC, as text.
        trigger: reason why the snapshot was taken.
        fleet, protocol: names of the fleet and its protocol.
        plan: number of the plan that the fleet was running when the snapshot was taken.
        hosts: names of the fleet's hosts.
        agents: the snapshot's agents by id. Each agent is read when it is accessed.
    """

    def __init__(self, store: Store, epoch: int, fleet: Fleet | None = None) -> None:
        self._store, self._fleet = store, fleet
        self.root = store.read_ref(epoch)
        manifest = store.read_manifest(self.root, epoch=epoch)
        metadata = manifest.metadata
        self.epoch, self.created, self.trigger = epoch, metadata.created, metadata.trigger
        self.fleet, self.protocol, self.plan = metadata.fleet, metadata.protocol, metadata.plan
        self.hosts = sorted(metadata.hosts)
        self.agents: Mapping[str, SavedAgent] = _Agents(store, manifest, fleet)

    def fork(
        self,
        to: _Path,
        *,
        name: str,
        set: Mapping[str, Any] | None = None,  # the same name as on the command line
        inputs: ForkInputs = "drop",
        answers: ForkAnswers = "none",
        live: bool = False,
        accept_changes: bool = False,
        again: bool = False,
    ) -> Fork:
        """Create a new fleet in a new store, with this snapshot as its starting point. The new store is durable when the method returns.

        The parent fleet may be running and is not changed. `snapline run --store` runs the fork. If `to` is the folder `store` of a data
        directory, `snapline run --data-dir` works as well.

        Args:
            to: path or URL of the new store, which must not exist yet.
            name: name of the fork.
            set: new values for fields of states, by path such as `"agent.field.inner"`. Each value must have the declared type of its
                field, as represented in JSON. To set fields, the store must have been opened with the fleet.
            inputs: "copy" or "drop" for inputs that the agents have not consumed.
            answers: recorded answers on which the fork runs: "none", those that the parent has got since the snapshot ("parent"), or nothing
                but them ("only"; then everything that has none fails). The fork's first snapshot is then pinned.
            live: whether the fork may perform effects.
            accept_changes: whether dependencies may have changed even if the fleet's `on_change` refuses that.
            again: whether to remove an unfinished fork at `to` first. No other process may be writing to `to`.

        Raises:
            UsageError: If a field does not exist or a value has the wrong type, `to` exists, or the fleet's protocol differs from the
                snapshot's.
            EncodingError: If the store was opened with a fleet, and a class is missing or a state cannot be migrated to the version of its
                class.
            DamagedDataError: If the snapshot's data is damaged.
            StoreError: If reading or writing a store failed.
        """
        settings = {place: msgspec.json.encode(value) for place, value in (set or {}).items()}
        request = ForkRequest(
            name=name,
            settings=settings,
            fleet=self._fleet,
            inputs=inputs,
            is_live=live,
            answers=answers,
            accepts_changes=accept_changes,
        )
        return fork_snapshot(self._store, self.epoch, os.fspath(to), request, begin_again=again)

    @functools.cached_property
    def channels(self) -> dict[tuple[str, str], tuple[TransitMessage, ...]]:
        """Messages in transit by (sender, receiver), in order within each channel. A channel without messages in transit is omitted."""
        by_channel: dict[tuple[str, str], tuple[TransitMessage, ...]] = {}
        for agent in self.agents.values():
            by_channel |= {(sender, agent.agent): messages for sender, messages in agent.channels.items()}
        return by_channel

    @functools.cached_property
    def in_transit(self) -> tuple[TransitMessage, ...]:
        """All messages in channels and outboxes, which have been sent but not consumed."""
        parked = [message for agent in self.agents.values() for message in agent.outbox]
        return (*(message for messages in self.channels.values() for message in messages), *parked)

    @functools.cached_property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """The newest dead letters of each agent, oldest first."""
        return tuple(dead_letter for agent in self.agents.values() for dead_letter in agent.dead_letters)

    @functools.cached_property
    def pending_timers(self) -> tuple[PendingTimer, ...]:
        """Timers of all agents that have not fired."""
        return tuple(timer for agent in self.agents.values() for timer in agent.pending_timers)

    @functools.cached_property
    def pending_spawns(self) -> tuple[PendingSpawn, ...]:
        """Agents whose spawn requests have not been granted yet."""
        return tuple(spawn for agent in self.agents.values() for spawn in agent.pending_spawns)

    def __repr__(self) -> str:
        return f"<Snapshot {self.epoch} of fleet {self.fleet}: {len(self.agents)} agents, created {self.created}>"

    def _repr_html_(self) -> str:
        return snapshot_cut.of_snapshot(self)


class SavedAgent:
    """One agent as saved in a snapshot.

    Attributes:
        kind: class of the agent, as "module:Class".
        host, incarnation: host on which the agent ran, and number of the agent's incarnation.
        number: number of the agent's checkpoint, counted over all its incarnations.
        is_unborn: whether the agent has not been created yet, because its creation message is still in transit. An unborn agent has no
            state.
        is_started: whether `on_start` has run.
        is_leaving: whether the agent has called `ctx.stop()`.
        state_type, state_version, state_fields: name of the state's type, version of the state, and declared types of the state's fields.
        sent, received: sequence number of the last message sent to each other agent, and of the last message consumed from each other
            agent.
        dead_letter_count: number of dead letters, excluding those that a retry has handled. `dead_letters` contains only the newest of
            them.
    """

    def __init__(
        self,
        checkpoint: AgentCheckpoint,
        host: str,
        read_parts: ReadParts,
        *,
        fleet: Fleet | None = None,
        decode: Decode = decode_plainly,
    ) -> None:
        self._checkpoint = checkpoint
        self._read_parts = read_parts
        self._fleet = fleet
        self._decode = decode
        self.agent, self.kind, self.host = checkpoint.agent, checkpoint.kind, host
        self.incarnation, self.number = checkpoint.incarnation, checkpoint.number
        self.is_unborn, self.is_started = checkpoint.is_unborn, checkpoint.is_started
        self.is_leaving = checkpoint.is_leaving
        self.state_type, self.state_version = checkpoint.state_type, checkpoint.state_version
        self.state_fields = dict(checkpoint.state_fields)
        self.sent, self.received = dict(checkpoint.sent), dict(checkpoint.received)
        self.dead_letter_count = checkpoint.dead_letter_count

    @functools.cached_property
    def state(self) -> Any:
        """The agent's state as an object of the fleet's class, migrated if necessary. Without a fleet, or if the class is missing, the
        state consists of plain values.

        The state is None if the agent is unborn.

        Raises:
            DamagedDataError: If the state's data is damaged.
            EncodingError: If the state cannot be decoded as the type that its class declares. If this error occurs, open the store without
                the fleet.
            UsageError: If the state contains an array or tensor, and NumPy or torch is not installed.
        """
        if self.is_unborn:
            return None
        if self._fleet is None or class_of(self._fleet, self.kind) is None:
            return plain_value(self._tree)
        return restored(self._fleet, self._checkpoint, self._contents()).state

    def state_as(self, declared: type[_State], *, allow_pickle: bool = False) -> _State:
        """Return the state as an object of `declared`, a struct or dataclass. If `allow_pickle` is set, pickles are loaded, which runs code
        from them.

        Raises:
            EncodingError: If the state cannot be decoded as `declared`.
            DamagedDataError, UsageError: For the same reasons as `state`.
        """
        decoder = state_decoder(declared, allow_pickle=allow_pickle)
        state: _State = decoder.restore(self._checkpoint.state, self._checkpoint.parts, self._contents()).state
        return state

    def field(self, path: str) -> Any:
        """Return one field of the state, such as `"mind.notes[3].text"`, as a plain value. Large arrays in other fields are not read.

        Raises:
            NotFoundError: If there is no such field. The message lists the fields that exist.
            DamagedDataError, UsageError: For the same reasons as `state`.
        """
        return plain_value(find_field(self._tree, path))

    @functools.cached_property
    def channels(self) -> dict[str, tuple[TransitMessage, ...]]:
        """Messages in transit to this agent by sender, in order. A sender without messages in transit is omitted."""
        by_channel: dict[str, list[TransitMessage]] = {}
        for message in messages_to(self._checkpoint, self._decode):
            by_channel.setdefault(message.sender, []).append(message)
        return {sender: tuple(messages) for sender, messages in sorted(by_channel.items())}

    @functools.cached_property
    def outbox(self) -> tuple[TransitMessage, ...]:
        """Messages in the agent's outbox, which have no sequence numbers yet."""
        return tuple(messages_parked(self._checkpoint, self._decode))

    @functools.cached_property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """The agent's newest dead letters, oldest first."""
        return tuple(dead_letters(self._checkpoint, self._decode))

    @functools.cached_property
    def pending_timers(self) -> tuple[PendingTimer, ...]:
        """Timers of the agent that have not fired."""
        return tuple(pending_timers(self._checkpoint, self._decode))

    @functools.cached_property
    def pending_spawns(self) -> tuple[PendingSpawn, ...]:
        """Agents that this agent wants to spawn, but whose spawn requests have not been granted yet."""
        return tuple(pending_spawns(self._checkpoint))

    def describe(self, *, reads_parts: bool = True) -> object:
        """Return the state in a form for display, with the first values of arrays and the first and last records of histories.

        With `reads_parts=False`, only the type and size of large arrays and histories are shown.
        """
        return describe_state(self._checkpoint, self._read_parts if reads_parts else None)

    def __repr__(self) -> str:
        description = "unborn" if self.is_unborn else self.state_type
        return f"<SavedAgent {self.agent}: {description}, {self.kind} on {self.host}>"

    def _repr_html_(self) -> str:
        return snapshot_cut.of_agent(self)

    @functools.cached_property
    def _tree(self) -> object:
        return read_state(self._checkpoint, self._read_parts)

    def _contents(self) -> Sequence[Any]:
        return self._read_parts(self.agent, self._checkpoint.parts)


class _Agents(Mapping[str, SavedAgent]):
    """Agents of a snapshot. An agent's checkpoint is read each time the agent is accessed."""

    def __init__(self, store: Store, manifest: Manifest, fleet: Fleet | None) -> None:
        self._store, self._manifest, self._fleet = store, manifest, fleet
        self._lines: dict[str, AgentLine] = {line.agent: line for line in manifest.agents}
        self._read_parts = store.part_reader(manifest).read

    def __getitem__(self, agent: str) -> SavedAgent:
        """Return an agent. Raise NotFoundError if the snapshot does not contain the agent, or DamagedDataError if the agent's checkpoint is
        damaged."""
        line = self._lines.get(agent)
        if line is None:
            raise NotFoundError(
                f"agent {agent!r} is not in epoch {self._manifest.metadata.epoch}, which has {len(self)} agents: "
                "list(snapshot.agents) names them"
            )
        checkpoint = self._store.read_checkpoint(self._manifest, agent)
        return SavedAgent(checkpoint, line.host, self._read_parts, fleet=self._fleet, decode=self._decode)

    def _decode(self, receiver: str, payload: bytes) -> tuple[str, object]:
        line = self._lines.get(receiver)
        if self._fleet is None or line is None or line.is_unborn:
            return decode_plainly(receiver, payload)
        known = class_of(self._fleet, line.kind)
        return decode_plainly(receiver, payload) if known is None else decode_for(known, payload)

    def __contains__(self, agent: object) -> bool:
        return agent in self._lines

    def get(self, agent: str, default: Any = None) -> Any:
        """Return the agent, or `default` if the snapshot has no agent with this id."""
        return self[agent] if agent in self._lines else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def __repr__(self) -> str:
        return f"<{len(self)} agents: {', '.join(list(self._lines)[:10])}{', …' if len(self) > 10 else ''}>"
