"""Reading snapshots in a program or a notebook: `snapline.open_store(location).snapshot("latest").agents["a"].state`.

A store is read directly: no coordinator is called, and a fleet may run meanwhile. Nothing is imported because a store names it: without a fleet
states and messages come as plain values (`storage/capture/plain_values.py`), with one as its own classes. All data is compared with its digests first
(G11).

An agent's checkpoint is read when it is accessed, its state when that is accessed: a fleet of ten thousand agents opens as
quickly as one of two. A `SavedAgent` keeps what it has read, a `Snapshot` does not keep its agents.
"""

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from snapline.agent_runtime.effect_ledger import Effect, fold
from snapline.agent_runtime.encoding import state_decoder
from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host.restore import restored
from snapline.agent_runtime.kinds import class_of
from snapline.agent_runtime.reading import MessageReader, Output, OutputsReverted, read_batch
from snapline.agent_runtime.snapshots import html as snapshot_html
from snapline.agent_runtime.snapshots.cut import decode_for, describe_state
from snapline.agent_runtime.snapshots.cut_contents import (
    DeadLetter,
    Decode,
    PendingSpawn,
    PendingTimer,
    TransitMessage,
    dead_letters,
    decode_plainly,
    messages_parked,
    messages_to,
    pending_spawns,
    pending_timers,
)
from snapline.agent_runtime.snapshots.forking import Fork, ForkInputs, ForkRequest, fork_snapshot
from snapline.errors import NotFoundError
from snapline.messages.effect_records import EFFECTS_TOPIC, EffectRecord
from snapline.storage.capture.plain_values import find_field, plain_value
from snapline.storage.capture.saved_values import ReadParts, read_state
from snapline.storage.keys.key_files import Keys, keys_from_environment, read_keys
from snapline.storage.packs.checkpoint import AgentCheckpoint
from snapline.storage.store.manifest import AgentLine, Manifest
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
    """Open a store for reading, also while its fleet runs. A key that may only read is enough for a bucket.

    Args:
        location: a directory, or a URL such as `s3://bucket/prefix`, whose keys come from the environment.
        fleet: decode states and messages with the classes of this fleet; without it they are plain dicts, lists and arrays.
        store_keys: key file of an encrypted store, or several; without it those that `SNAPLINE_STORE_KEY` names.
        verify_keys: public keys whose signatures count; without them those that `SNAPLINE_VERIFY_KEY` names.

    Raises:
        StoreMissingError: there is no store.
        DamagedDataError: its identity file is damaged.
        StoreError: it cannot be read, or is encrypted and its key was not given.
        UsageError: no such scheme, or a key file cannot be used.
    """
    keys = keys_from_environment()
    given = read_keys(store_keys=_paths(store_keys), verify_keys=_paths(verify_keys))
    keys = Keys(given.wrapping or keys.wrapping, keys.signing, given.verifying or keys.verifying)
    return SnapshotStore(Store.open(location, keys=keys), fleet)


def _paths(given: _Path | Sequence[_Path]) -> list[Path]:
    """Return one path, or several, as a list."""
    return [Path(given)] if isinstance(given, str | os.PathLike) else [Path(path) for path in given]


class SnapshotStore:
    """A store, for reading; `open_store` makes it. Iterating gives its snapshots, oldest first.

    Attributes:
        location: path or URL of the store.
    """

    def __init__(self, store: Store, fleet: Fleet | None = None) -> None:
        self._store = store
        self._fleet = fleet
        self.location = store.location

    @property
    def epochs(self) -> list[int]:
        """Return the numbers of its snapshots, ascending."""
        return self._store.epochs()

    def snapshot(self, name: str | int = "latest") -> "Snapshot":
        """Return a snapshot: by its epoch's number, a tag, the first digits (four or more) of its root, or the latest.

        Raises:
            NotFoundError: there is none of this name, or several.
            DamagedDataError: its manifest is not what was written.
        """
        return Snapshot(self._store, self._store.resolve(str(name)), self._fleet)

    def outputs(
        self, topic: str = "", *, after: str = "", message_type: Any = None
    ) -> "Iterator[Output | OutputsReverted]":
        """Yield the fleet's outputs, in order, as far as they are released now.

        Args:
            topic: only these; empty: all that agents have named themselves. `@effects` is the ledger of effects.
            after: the cursor of an output: outputs after it; empty: from the oldest that are kept.
            message_type: class of the messages; without it they are plain values.

        Raises:
            UsageError: it is no cursor of this store.
            NotFoundError: outputs after it were deleted meanwhile.
            EncodingError: a message is not of this type.
            DamagedDataError: a file is not what was written.
        """
        reader = MessageReader(message_type, "message_type", "the output")
        for batch in self._store.read_outputs(after):
            yield from read_batch(batch, topic, reader)

    def effects(self) -> list[Effect]:
        """Return the effects of the fleet's agents, and their fates, as far as snapshots hold them and outputs are kept.

        Raises:
            DamagedDataError: a file is not what was written.
        """
        return fold(self.outputs(EFFECTS_TOPIC, message_type=EffectRecord))

    def __iter__(self) -> "Iterator[Snapshot]":
        return (self.snapshot(epoch) for epoch in self.epochs)

    def __len__(self) -> int:
        return len(self.epochs)

    def __repr__(self) -> str:
        return f"<SnapshotStore {self.location}: {len(self)} snapshots>"

    def _repr_html_(self) -> str:
        from snapline.storage.retention.catalog import read_summaries

        return snapshot_html.of_store(self.location, read_summaries(self._store))


class Snapshot:
    """One complete epoch, as it is in a store.

    Attributes:
        epoch: its number.
        root: its digest, in hexadecimal digits.
        created: when, UTC, as text.
        trigger: why.
        fleet, protocol: names.
        plan: number of the start or recovery of the fleet that it was made under.
        hosts: names of the hosts that the fleet ran on.
        agents: agent → `SavedAgent`, read when accessed.
    """

    def __init__(self, store: Store, epoch: int, fleet: Fleet | None = None) -> None:
        self._store, self._fleet = store, fleet
        self.root = store.read_ref(epoch)
        manifest = store.read_manifest(self.root, epoch=epoch)
        about = manifest.metadata
        self.epoch, self.created, self.trigger = epoch, about.created, about.trigger
        self.fleet, self.protocol, self.plan = about.fleet, about.protocol, about.plan
        self.hosts = sorted(about.hosts)
        self.agents: Mapping[str, SavedAgent] = _Agents(store, manifest, fleet)

    def fork(
        self,
        to: _Path,
        *,
        name: str,
        set: Mapping[str, Any] | None = None,  # as on the command line
        inputs: ForkInputs = "drop",
        live: bool = False,
        again: bool = False,
    ) -> Fork:
        """Make a new fleet that begins with this snapshot, in a store of its own; durable when this returns.

        The fleet of the snapshot may run meanwhile, and is not changed. `snapline run --store` (or `--data-dir`, if `to` is its folder
        `store`) runs the fork.

        Args:
            to: where its store goes, as path or URL; nothing may be there.
            name: of the fork.
            set: fields of states, `"agent.field.inner"`, → their new values, as JSON knows them. Takes a store that was opened with the fleet:
                values must be of the declared types.
            inputs: treatment of inputs from outside that the agents have not consumed: "copy" copies them.
            live: whether it may do effects.
            again: first remove the remains of an unfinished fork there. Nobody else may make one there just now.

        Raises:
            UsageError: a field is not there or of another type, something is at `to`, or the fleet is of another protocol.
            EncodingError: a class of the fleet that the store was opened with is gone, or a state cannot be migrated to it.
            DamagedDataError: something in the snapshot is not what was written.
            StoreError: a disk failed.
        """
        settings = {place: msgspec.json.encode(value) for place, value in (set or {}).items()}
        wish = ForkRequest(name=name, settings=settings, fleet=self._fleet, inputs=inputs, is_live=live)
        return fork_snapshot(self._store, self.epoch, os.fspath(to), wish, begin_again=again)

    @functools.cached_property
    def channels(self) -> dict[tuple[str, str], tuple[TransitMessage, ...]]:
        """(Sender, receiver) → the messages in transit, in order; only channels that have some."""
        found: dict[tuple[str, str], tuple[TransitMessage, ...]] = {}
        for agent in self.agents.values():
            found |= {(sender, agent.agent): messages for sender, messages in agent.channels.items()}
        return found

    @functools.cached_property
    def in_transit(self) -> tuple[TransitMessage, ...]:
        """All messages that are sent and not consumed: in channels, and in outboxes."""
        parked = [message for agent in self.agents.values() for message in agent.outbox]
        return (*(message for messages in self.channels.values() for message in messages), *parked)

    @functools.cached_property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Messages that could not be handled: of each agent the newest ones, oldest first."""
        return tuple(letter for agent in self.agents.values() for letter in agent.dead_letters)

    @functools.cached_property
    def pending_timers(self) -> tuple[PendingTimer, ...]:
        """Timers that had not fired."""
        return tuple(timer for agent in self.agents.values() for timer in agent.pending_timers)

    @functools.cached_property
    def pending_spawns(self) -> tuple[PendingSpawn, ...]:
        """Agents that were requested and not granted yet."""
        return tuple(spawn for agent in self.agents.values() for spawn in agent.pending_spawns)

    def __repr__(self) -> str:
        return f"<Snapshot {self.epoch} of fleet {self.fleet}: {len(self.agents)} agents, created {self.created}>"

    def _repr_html_(self) -> str:
        return snapshot_html.of_snapshot(self)


class SavedAgent:
    """One agent inside a snapshot.

    Attributes:
        agent: its id.
        kind: its class, "module:Class".
        host, incarnation: where it ran, and in which of its lives.
        number: of its checkpoint, over all incarnations.
        is_unborn: the message that creates it is in transit: it has no state yet.
        is_started: `on_start` has run.
        is_leaving: `ctx.stop()` was called.
        state_type, state_version, state_fields: of the state: name, version, field → declared type.
        sent, received: agent → last number sent to it, consumed from it.
        dead_letter_count: how many there ever were, less those that were retried and handled; `dead_letters` has the newest.
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
        """State of the agent: as the fleet's class declares it, migrated if need be; plain values where no fleet or no such class is given.

        None if the agent is unborn.

        Raises:
            DamagedDataError: something of it is not what was written.
            EncodingError: it does not decode as its class declares it: open the store without the fleet.
            UsageError: it holds an array or tensor, and NumPy or torch is not installed.
        """
        if self.is_unborn:
            return None
        if self._fleet is None or class_of(self._fleet, self.kind) is None:
            return plain_value(self._tree)
        return restored(self._fleet, self._checkpoint, self._contents()).state

    def state_as(self, declared: type[_State], *, allow_pickle: bool = False) -> _State:
        """Return its state as an object of `declared`, a struct or dataclass. `allow_pickle`: load its pickles, which runs their code.

        Raises:
            EncodingError: it does not decode as that; otherwise as `state`.
        """
        decoder = state_decoder(declared, allow_pickle=allow_pickle)
        made: _State = decoder.restore(self._checkpoint.state, self._checkpoint.parts, self._contents()).state
        return made

    def field(self, path: str) -> Any:
        """Return one field, such as `"mind.notes[3].text"`, as a plain value. Large arrays next to it are not read.

        Raises:
            NotFoundError: there is no such field; names those that there are.
            DamagedDataError, UsageError: as `state`.
        """
        return plain_value(find_field(self._tree, path))

    @functools.cached_property
    def channels(self) -> dict[str, tuple[TransitMessage, ...]]:
        """Sender → the messages that are in transit from it, in order; only senders that have some."""
        found: dict[str, list[TransitMessage]] = {}
        for message in messages_to(self._checkpoint, self._decode):
            found.setdefault(message.sender, []).append(message)
        return {sender: tuple(messages) for sender, messages in sorted(found.items())}

    @functools.cached_property
    def outbox(self) -> tuple[TransitMessage, ...]:
        """Messages in its outbox, which have no number yet."""
        return tuple(messages_parked(self._checkpoint, self._decode))

    @functools.cached_property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """The newest messages that it could not handle, oldest first."""
        return tuple(dead_letters(self._checkpoint, self._decode))

    @functools.cached_property
    def pending_timers(self) -> tuple[PendingTimer, ...]:
        """Timers of the agent that had not fired."""
        return tuple(pending_timers(self._checkpoint, self._decode))

    @functools.cached_property
    def pending_spawns(self) -> tuple[PendingSpawn, ...]:
        """Agents that it requested and that had not been granted."""
        return tuple(pending_spawns(self._checkpoint))

    def describe(self, *, reads_parts: bool = True) -> object:
        """Return its state for people: of arrays the first values, of histories the first and last records.

        `reads_parts=False`: large parts next to the state's record are named by their size alone.
        """
        return describe_state(self._checkpoint, self._read_parts if reads_parts else None)

    def __repr__(self) -> str:
        what = "unborn" if self.is_unborn else self.state_type
        return f"<SavedAgent {self.agent}: {what}, {self.kind} on {self.host}>"

    def _repr_html_(self) -> str:
        return snapshot_html.of_agent(self)

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
        """Return an agent. NotFoundError: the snapshot has no such agent; DamagedDataError: its checkpoint is not what was written."""
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
        """Return the agent, or `default` if the snapshot has none of this name."""
        return self[agent] if agent in self._lines else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def __repr__(self) -> str:
        return f"<{len(self)} agents: {', '.join(list(self._lines)[:10])}{', …' if len(self) > 10 else ''}>"
