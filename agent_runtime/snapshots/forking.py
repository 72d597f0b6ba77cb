"""Forks of a snapshot: the whole request is checked, then a new store is written (`storage/transfer/forking.py`).

Errors in a fork's code and settings are found before a byte is written: a missing class, a state without a migration, an unfinished durable turn
without its handler, a field that does not exist or has another type. The snapshot is pinned meanwhile and otherwise untouched: its fleet may run on.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.agent_classes import class_of, plan_line
from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.snapshots.fork_effects import has_open_effect, without_open_effects
from snapline.agent_runtime.snapshots.state_setting import FieldSetting, find_agent, with_settings
from snapline.errors import FleetDefinitionError, UsageError
from snapline.ids import check_id
from snapline.messages.payloads import split_message, unwrapped
from snapline.protocols.names import is_autonomous
from snapline.storage.disk.opening import open_disk
from snapline.storage.keys.key_files import Keys
from snapline.storage.keys.protection import resolve_keys
from snapline.storage.log.record import LoggedInput
from snapline.storage.packs.checkpoint import AgentCheckpoint
from snapline.storage.retention.holds import Holds
from snapline.storage.store.manifest import Manifest
from snapline.storage.store.store import Store
from snapline.storage.timestamps import instant
from snapline.storage.transfer.forking import ForkOrder, write_fork
from snapline.storage.transfer.pending_inputs import first_gap, pending_inputs

ForkInputs = Literal["copy", "drop"]


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """A fork that was made.

    Attributes:
        name: its own.
        store, cluster: location and id of the fork's store.
        parent, parent_name: cluster id and name of the parent fleet.
        epoch: number of the snapshot, in both stores.
        root: digest of the fork's first snapshot.
        agents, messages: number of agents, and of messages in transit between them.
        inputs_copied, inputs_dropped: number of inputs that the parent had acknowledged and its agents had not consumed.
        effects_refused: number of effects that agents wait for in the snapshot. They belong to the parent; the fork's handlers get a refusal.
        changed: the fields that were set.
        not_begun: agents of the definition that are not in the snapshot (they left, or are new) and so do not start.
        is_live: whether it may do effects.
    """

    name: str
    store: str
    cluster: str
    parent: str
    parent_name: str
    epoch: int
    root: str
    agents: int
    messages: int
    inputs_copied: int = 0
    inputs_dropped: int = 0
    effects_refused: int = 0
    changed: tuple[str, ...] = ()
    not_begun: tuple[str, ...] = ()
    is_live: bool = False


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a fork.

    Attributes:
        name: its own.
        settings: field, as `AGENT.FIELD`, → new value, as JSON.
        fleet: fleet definition of the fork; None: that of its parent.
        inputs: whether inputs that are not consumed in the snapshot are copied.
        is_live: whether it may do effects.
    """

    name: str
    settings: Mapping[str, bytes] = {}
    fleet: Fleet | None = None
    inputs: ForkInputs = "drop"
    is_live: bool = False


def fork_snapshot(
    source: Store, epoch: int, to: str, request: ForkRequest, *, keys: Keys | None = None, begin_again: bool = False
) -> Fork:
    """Make a fork of a snapshot; its store, at the path or URL `to`, is durable on return.

    Args:
        keys: keys of the new store; None: those of the environment.
        begin_again: first remove the remains of an unfinished fork at `to`. No other process may be writing there.

    Raises:
        UsageError: the request does not fit the snapshot, or `to` holds something; nothing was written.
        EncodingError: a class is missing, or a state cannot be migrated to it; nothing was written.
        NotFoundError: there is no such snapshot.
        DamagedDataError: something of it is damaged.
        StoreError: a disk failed.
    """
    check_id(request.name, "fork")
    now_s = time.time()
    with Holds(source, now_s=lambda: now_s).holding(epoch):
        judged = _CheckedFork(source, epoch, request)
        order = judged.order(created=instant(now_s))
        fork = write_fork(source, epoch, open_disk(to), order, keys=resolve_keys(keys, None), begin_again=begin_again)
        return judged.report(fork, order)


class _CheckedFork:
    """A request that fits its snapshot: all checkpoints have been read, and none that would be refused is left."""

    def __init__(self, source: Store, epoch: int, request: ForkRequest) -> None:
        self._source = source
        self._request = request
        self._manifest: Manifest = source.read_manifest(source.read_ref(epoch), epoch=epoch)
        self._check_protocol()
        record = source.fork_record()
        self._gone: dict[str, None] = dict.fromkeys(record.gone if record is not None else ())
        self._parent_name = record.name if record is not None else self._manifest.metadata.fleet
        self._consumed: dict[str, int] = {}
        self._settled: dict[str, AgentCheckpoint] = {}
        """Checkpoints of agents that wait for effects, with those refused."""
        self._effects_refused = 0
        self._settings = self._settings_by_agent()
        self._changed = self._check_all()
        self._pending = pending_inputs(source, self._consumed)

    def _check_protocol(self) -> None:
        metadata, fleet = self._manifest.metadata, self._request.fleet
        if fleet is not None and fleet.protocol != metadata.protocol:
            raise FleetDefinitionError(
                f"the snapshot was made by protocol {metadata.protocol}, and fleet {fleet.name!r} has {fleet.protocol}: a fork keeps it"
            )
        if is_autonomous(metadata.protocol) and len(metadata.ordinals) < len(self._manifest.agents):
            raise UsageError(
                f"epoch {metadata.epoch} was written by an earlier release, and lacks what a fork under {metadata.protocol} needs: run the fleet "
                "with this one, take a snapshot, and fork that"
            )

    def _settings_by_agent(self) -> dict[str, list[FieldSetting]]:
        agents = {line.agent: None for line in self._manifest.agents}
        settings: dict[str, list[FieldSetting]] = {}
        for place, value in self._request.settings.items():
            agent, path = find_agent(place, agents)
            settings.setdefault(agent, []).append(FieldSetting(agent, path, value))
        if settings and self._request.fleet is None:
            raise UsageError(
                "fields are set by their declared types: name the fleet's classes with --fleet MODULE:FLEET"
            )
        return settings

    # ---- all checkpoints --------------------------------------------------------------------------------------------

    def _check_all(self) -> dict[str, AgentCheckpoint]:
        fleet, kept = self._request.fleet, dict[str, AgentCheckpoint]()
        read = self._read(kept)
        if fleet is None:
            for _ in read:
                pass
            return {}
        plans = plan_line(fleet, self._checked_turns(read, fleet))
        return {
            agent: with_settings(plans.get(agent), kept[agent], settings) for agent, settings in self._settings.items()
        }

    def _read(self, kept: dict[str, AgentCheckpoint]) -> Iterator[AgentCheckpoint]:
        agents = {line.agent: None for line in self._manifest.agents}
        for checkpoint in self._source.read_checkpoints(self._manifest):
            agent = checkpoint.agent
            others = (checkpoint.sent, checkpoint.received, checkpoint.in_transit)
            self._gone |= {name: None for names in others for name in names if name not in agents}
            self._consumed[agent] = checkpoint.inputs.number
            begins = msgspec.structs.replace(without_open_effects(checkpoint), saved_clock=msgspec.UNSET)
            self._effects_refused += has_open_effect(checkpoint)
            if agent in self._settings:
                kept[agent] = begins
            elif begins != checkpoint:
                self._settled[agent] = begins
            yield begins

    def _checked_turns(self, read: Iterable[AgentCheckpoint], fleet: Fleet) -> Iterator[AgentCheckpoint]:
        """Check that a durable turn in its middle finds the handler that began it."""
        for checkpoint in read:
            agent_class = class_of(fleet, checkpoint.kind)  # a missing class is reported together with all others
            if checkpoint.turn is not None and agent_class is not None:
                name = split_message(unwrapped(checkpoint.turn.payload))[0]
                handler = agent_type(agent_class).handlers.get(name)
                if handler is None or not handler.is_durable:
                    lacks = "has no handler for it" if handler is None else f"{handler.name} is not durable any more"
                    raise FleetDefinitionError(
                        f"agent {checkpoint.agent!r} is in the middle of a durable turn for {name!r}, and {agent_class.__qualname__} {lacks}: "
                        "take a snapshot when the turn is over, or fork with the handler as it was"
                    )
            yield checkpoint

    # ---- what the fork will hold --------------------------------------------------------------------------------------

    def order(self, *, created: str) -> ForkOrder:
        """Return the order for storage. UsageError: inputs to copy are no longer kept."""
        metadata, fleet = self._manifest.metadata, self._request.fleet
        is_copied = self._request.inputs == "copy"
        return ForkOrder(
            name=self._request.name,
            parent_name=self._parent_name,
            is_live=self._request.is_live,
            created=created,
            fleet=metadata.fleet if fleet is None else fleet.name,
            config_hash=metadata.config_hash if fleet is None else fleet.definition_digest().hex(),
            gone=sorted(self._gone),
            changed=self._settled | self._changed,
            inputs=self._whole(self._pending) if is_copied else (),
        )

    def _whole(self, inputs: list[LoggedInput]) -> list[LoggedInput]:
        gap = first_gap(inputs, self._consumed)
        if gap is not None:
            raise UsageError(
                f"input {gap[1]} of agent {gap[0]!r} is not kept any more, since newer snapshots have consumed it: fork with --inputs "
                "drop, or fork a later snapshot"
            )
        return inputs

    def report(self, made: Store, order: ForkOrder) -> Fork:
        """Return the fork that has been made."""
        manifest, fleet = self._manifest, self._request.fleet
        agents = {line.agent: None for line in manifest.agents}
        copied = len(order.inputs)
        return Fork(
            name=order.name,
            store=made.location,
            cluster=made.store_id,
            parent=self._source.store_id,
            parent_name=order.parent_name,
            epoch=manifest.metadata.epoch,
            root=made.read_ref(manifest.metadata.epoch),
            agents=len(agents),
            messages=manifest.metadata.channel_state_messages,
            inputs_copied=copied,
            inputs_dropped=len(self._pending) - copied,
            changed=tuple([setting.place for some in self._settings.values() for setting in some]),
            effects_refused=self._effects_refused,
            not_begun=tuple(sorted(name for name in fleet.agents if name not in agents)) if fleet is not None else (),
            is_live=order.is_live,
        )
