"""Reading snapshots in a program or a notebook: `snapline.open_store(location).snapshot("latest").agents["a"].state`.

The reader opens the store directly: it calls no coordinator, and the fleet may be running. The reader imports no code that a store names.
Without a fleet, states and messages are plain values (`storage/capture/saved_value_formats.py`); with a fleet they are objects of its
classes. All data is checked against its digests first (G11).

Checkpoints and states are read on access, so a fleet of ten thousand agents opens as quickly as one of two. A `SavedAgent` caches what it has read; a
`Snapshot` does not cache its agents.
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
from snapline.agent_runtime.snapshots.snapshot_forks import Fork, ForkInputs, ForkRequest, fork_snapshot
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
    """Open a store for reading, even while its fleet runs. For a bucket, read-only credentials suffice.

    Args:
        location: a directory, or a URL such as `s3://bucket/prefix`, whose keys come from the environment.
        fleet: decode states and messages with the classes of this fleet; without it they are plain dicts, lists and arrays.
        store_keys: one or more key files of an encrypted store; default: those in `SNAPLINE_STORE_KEY`.
        verify_keys: public keys of trusted signatures; default: those in `SNAPLINE_VERIFY_KEY`.

    Raises:
        StoreMissingError: If there is no store.
        DamagedDataError: If the store's identity file is damaged.
        StoreError: If the store cannot be read, or is encrypted and no key was given.
        UsageError: If the URL scheme is unknown, or a key file cannot be used.
    """
    keys = keys_from_environment()
    read_store_keys = read_keys(store_keys=_paths(store_keys), verify_keys=_paths(verify_keys))
    keys = Keys(read_store_keys.wrapping or keys.wrapping, keys.signing, read_store_keys.verifying or keys.verifying)
    return SnapshotStore(Store.open(location, keys=keys), fleet)


def _paths(given: _Path | Sequence[_Path]) -> list[Path]:
    """Return one path, or several, as a list."""
    return [Path(given)] if isinstance(given, str | os.PathLike) else [Path(path) for path in given]


class SnapshotStore:
    """A store opened for reading by `open_store`. Iteration yields its snapshots, oldest first.

    Attributes:
        location: path or URL of the store.
    """

    def __init__(self, store: Store, fleet: Fleet | None = None) -> None:
        self._store = store
        self._fleet = fleet
        self.location = store.location

    @property
    def epochs(self) -> list[int]:
        """Return the epoch numbers of the store's snapshots, ascending."""
        return self._store.epochs()

    def snapshot(self, name: str | int = "latest") -> "Snapshot":
        """Return a snapshot: by its epoch's number, a tag, the first digits (four or more) of its root, or the latest.

        Raises:
            NotFoundError: If no snapshot has this name, or several do.
            DamagedDataError: If the snapshot's manifest is damaged.
        """
        return Snapshot(self._store, self._store.resolve(str(name)), self._fleet)

    def outputs(
        self, topic: str = "", *, after: str = "", message_type: Any = None
    ) -> "Iterator[Output | OutputsReverted]":
        """Yield the fleet's released outputs, in order.

        Args:
            topic: topic of the outputs; empty: all topics of agents. `@effects` is the ledger of effects.
            after: cursor of an output; only later outputs are returned. Empty: from the oldest kept output.
            message_type: class of the messages; default: plain values.

        Raises:
            UsageError: If the cursor does not belong to this store.
            NotFoundError: If outputs after the cursor have been deleted.
            EncodingError: If a message is not of this type.
            DamagedDataError: If a file is damaged.
        """
        reader = MessageReader(message_type, "message_type", "the output")
        for batch in self._store.read_outputs(after):
            yield from read_batch(batch, topic, reader)

    def effects(self) -> list[Effect]:
        """Return the effects of the fleet's agents and their outcomes, from the snapshots and the kept outputs.

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
        root: digest of the epoch, in hexadecimal digits.
        created: time of creation in UTC, as text.
        trigger: reason for the snapshot.
        fleet, protocol: names of the fleet and its protocol.
        plan: number of the plan (start or recovery) under which the snapshot was made.
        hosts: names of the fleet's hosts.
        agents: agent → `SavedAgent`, read when accessed.
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
        live: bool = False,
        again: bool = False,
    ) -> Fork:
        """Make a new fleet that begins with this snapshot, in a new store; durable on return.

        The parent fleet may be running, and is not changed. `snapline run --store` (or `--data-dir`, if `to` is its folder
        `store`) runs the fork.

        Args:
            to: path or URL of the new store; it must not exist.
            name: name of the fork.
            set: field of a state, `"agent.field.inner"`, → new JSON value of the declared type. The store must have been opened with the fleet.
            inputs: treatment of inputs that the agents have not consumed: "copy" copies them.
            live: whether the fork may do effects.
            again: first remove the remains of an unfinished fork at `to`. No other process may be writing to that location.

        Raises:
            UsageError: If a field is missing or of another type, `to` exists, or the fleet has another protocol.
            EncodingError: If a class of the fleet that the store was opened with is gone, or a state cannot be migrated to it.
            DamagedDataError: If data of the snapshot is damaged.
            StoreError: If reading or writing a store failed.
        """
        settings = {place: msgspec.json.encode(value) for place, value in (set or {}).items()}
        request = ForkRequest(name=name, settings=settings, fleet=self._fleet, inputs=inputs, is_live=live)
        return fork_snapshot(self._store, self.epoch, os.fspath(to), request, begin_again=again)

    @functools.cached_property
    def channels(self) -> dict[tuple[str, str], tuple[TransitMessage, ...]]:
        """Mapping from (sender, receiver) to the messages in transit, in order. Channels without such messages are omitted."""
        by_channel: dict[tuple[str, str], tuple[TransitMessage, ...]] = {}
        for agent in self.agents.values():
            by_channel |= {(sender, agent.agent): messages for sender, messages in agent.channels.items()}
        return by_channel

    @functools.cached_property
    def in_transit(self) -> tuple[TransitMessage, ...]:
        """All messages that were sent and not consumed, in channels and in outboxes."""
        parked = [message for agent in self.agents.values() for message in agent.outbox]
        return (*(message for messages in self.channels.values() for message in messages), *parked)

    @functools.cached_property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Messages that could not be handled: the newest ones of each agent, oldest first."""
        return tuple(dead_letter for agent in self.agents.values() for dead_letter in agent.dead_letters)

    @functools.cached_property
    def pending_timers(self) -> tuple[PendingTimer, ...]:
        """Timers that had not fired."""
        return tuple(timer for agent in self.agents.values() for timer in agent.pending_timers)

    @functools.cached_property
    def pending_spawns(self) -> tuple[PendingSpawn, ...]:
        """Agents whose creation was requested and not granted yet."""
        return tuple(spawn for agent in self.agents.values() for spawn in agent.pending_spawns)

    def __repr__(self) -> str:
        return f"<Snapshot {self.epoch} of fleet {self.fleet}: {len(self.agents)} agents, created {self.created}>"

    def _repr_html_(self) -> str:
        return snapshot_cut.of_snapshot(self)


class SavedAgent:
    """One agent inside a snapshot.

    Attributes:
        agent: the agent's id.
        kind: class of the agent, as "module:Class".
        host, incarnation: host and incarnation of the agent.
        number: number of the checkpoint, over all incarnations.
        is_unborn: the creation message is in transit, so the agent has no state yet.
        is_started: `on_start` has run.
        is_leaving: `ctx.stop()` was called.
        state_type, state_version, state_fields: the state's type name, its version, and field → declared type.
        sent, received: agent → number of the last message sent to that agent, and of the last message consumed from it.
        dead_letter_count: number of all dead letters, without those that were retried and handled; `dead_letters` contains the newest ones.
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
        """State of the agent, as an object of the fleet's class, migrated if needed. Without a fleet or such a class, the state is returned
        as plain values.

        The state is None if the agent is unborn.

        Raises:
            DamagedDataError: If data of the state is damaged.
            EncodingError: If the state does not decode as its class declares: open the store without the fleet.
            UsageError: If the state holds an array or tensor, and NumPy or torch is not installed.
        """
        if self.is_unborn:
            return None
        if self._fleet is None or class_of(self._fleet, self.kind) is None:
            return plain_value(self._tree)
        return restored(self._fleet, self._checkpoint, self._contents()).state

    def state_as(self, declared: type[_State], *, allow_pickle: bool = False) -> _State:
        """Return the state as an object of `declared`, a struct or dataclass. `allow_pickle`: load pickles, which runs their code.

        Raises:
            EncodingError: If the state does not decode as `declared`; other errors as for `state`.
        """
        decoder = state_decoder(declared, allow_pickle=allow_pickle)
        state: _State = decoder.restore(self._checkpoint.state, self._checkpoint.parts, self._contents()).state
        return state

    def field(self, path: str) -> Any:
        """Return one field, such as `"mind.notes[3].text"`, as a plain value. Large arrays in other fields are not read.

        Raises:
            NotFoundError: If there is no such field. The message lists the existing ones.
            DamagedDataError, UsageError: If as for `state`.
        """
        return plain_value(find_field(self._tree, path))

    @functools.cached_property
    def channels(self) -> dict[str, tuple[TransitMessage, ...]]:
        """Mapping from a sender to its messages in transit to this agent, in order. Senders without such messages are omitted."""
        by_channel: dict[str, list[TransitMessage]] = {}
        for message in messages_to(self._checkpoint, self._decode):
            by_channel.setdefault(message.sender, []).append(message)
        return {sender: tuple(messages) for sender, messages in sorted(by_channel.items())}

    @functools.cached_property
    def outbox(self) -> tuple[TransitMessage, ...]:
        """Messages in the agent's outbox, which have no number yet."""
        return tuple(messages_parked(self._checkpoint, self._decode))

    @functools.cached_property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """The newest messages that the agent could not handle, oldest first."""
        return tuple(dead_letters(self._checkpoint, self._decode))

    @functools.cached_property
    def pending_timers(self) -> tuple[PendingTimer, ...]:
        """Timers of the agent that had not fired."""
        return tuple(pending_timers(self._checkpoint, self._decode))

    @functools.cached_property
    def pending_spawns(self) -> tuple[PendingSpawn, ...]:
        """Agents whose creation this agent had requested and that had not been granted."""
        return tuple(pending_spawns(self._checkpoint))

    def describe(self, *, reads_parts: bool = True) -> object:
        """Return the state for display: the first values of arrays, the first and last records of histories.

        With `reads_parts=False`, only the size of large parts outside the state's record is shown.
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
    """Agents of a snapshot; reads an agent's checkpoint each time it is accessed."""

    def __init__(self, store: Store, manifest: Manifest, fleet: Fleet | None) -> None:
        self._store, self._manifest, self._fleet = store, manifest, fleet
        self._lines: dict[str, AgentLine] = {line.agent: line for line in manifest.agents}
        self._read_parts = store.part_reader(manifest).read

    def __getitem__(self, agent: str) -> SavedAgent:
        """Return an agent. NotFoundError: the snapshot has no such agent; DamagedDataError: its checkpoint is damaged."""
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
