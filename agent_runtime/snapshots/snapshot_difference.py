"""Lists the changes between two snapshots of a store. The comparison covers agents, their states, channels, timers and dead letters, and
the snapshots' metadata.

The fleet's classes are not needed. Checkpoints are read one pair at a time. In large parts, only the chunks that differ are read
(`state_difference.py`). An agent is not read if its two checkpoints have the same digest. Two checkpoints have the same digest only if a
snapshot is compared with itself, because a checkpoint contains its epoch's number.

Epoch and checkpoint numbers, times and turn counts differ between any two snapshots, so they are not compared. Neither are protocol images.
All data is checked against its digest (G11), and nothing is written. All lists are bounded. Each list states how many items it omits.
"""

from collections.abc import Iterator, Mapping

import msgspec

from snapline.agent_runtime.snapshots.state_difference import StateChanges, compare, shown
from snapline.errors import NotFoundError
from snapline.messages.payloads import describe_payload, plain_name
from snapline.storage.capture.saved_values import ReadParts, read_state
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage, SavedTimer
from snapline.storage.packs.manifest import AgentLine, Manifest
from snapline.storage.store.store import Store

AGENTS_MAX = 1000
"""Largest length of each of the lists of changed, created and removed agents. Further agents are only counted."""

CHANNELS_MAX = 1000
"""Largest number of changed channels listed."""

MESSAGES_SHOWN = 5
"""For each channel, largest number of messages shown that were added, and of messages that were removed."""

_NOT_COMPARED = ("epoch", "raft_index")
_HEAD = ("epoch", "created", "trigger", "fleet", "protocol", "plan")
_FIELDS = (
    "kind",
    "incarnation",
    "is_unborn",
    "is_started",
    "is_leaving",
    "state_type",
    "state_version",
    "state_fields",
)


class _Side:
    """One of the two snapshots in a comparison."""

    def __init__(self, store: Store, snapshot: str) -> None:
        self.epoch = store.resolve(snapshot)
        self.root = store.read_ref(self.epoch)
        self.manifest: Manifest = store.read_manifest(self.root, epoch=self.epoch)
        self.read_parts: ReadParts = store.part_reader(self.manifest).read
        self.lines: dict[str, AgentLine] = {line.agent: line for line in self.manifest.agents}

    def head(self) -> dict[str, object]:
        metadata = self.manifest.metadata
        return {"root": self.root, **{name: getattr(metadata, name) for name in _HEAD}, "agent_count": len(self.lines)}

    def metadata(self) -> dict[str, object]:
        fields: dict[str, object] = msgspec.to_builtins(self.manifest.metadata)
        return {name: value for name, value in fields.items() if name not in _NOT_COMPARED}


def snapshot_difference(store: Store, before: str, after: str, *, agent: str | None = None) -> dict[str, object]:
    """Return the changes from snapshot `before` to snapshot `after` as values that can be written as JSON.

    Args:
        before, after: snapshot names, as for `Store.resolve`.
        agent: id of the only agent to compare, together with its channels, or None to compare all agents.

    Raises:
        NotFoundError: If a snapshot does not exist, or neither snapshot contains the agent.
        DamagedDataError: If data in one of the snapshots is damaged.
    """
    old, new = _Side(store, before), _Side(store, after)
    agents = [agent] if agent is not None else sorted({**old.lines, **new.lines})
    if agent is not None and agent not in old.lines and agent not in new.lines:
        raise NotFoundError(f"agent {agent!r} is in neither epoch {old.epoch} nor epoch {new.epoch}")
    metadata = StateChanges()
    compare(old.metadata(), new.metadata(), metadata)
    return {
        "store": store.location,
        "before": old.head(),
        "after": new.head(),
        "metadata": metadata.shown,
        "metadata_more": metadata.more,
        **_Comparison(store, old, new).run(agents),
    }


class _Comparison:
    """Compares all agents of two snapshots. `_channels` contains each compared channel by (sender, receiver)."""

    def __init__(self, store: Store, old: _Side, new: _Side) -> None:
        self._store = store
        self._old = old
        self._new = new
        self._channels: dict[tuple[str, str], _Channel] = {}

    def run(self, agents: list[str]) -> dict[str, object]:
        added = [name for name in agents if name not in self._old.lines]
        removed = [name for name in agents if name not in self._new.lines]
        changed: list[dict[str, object]] = []
        changed_count = 0
        for name, before, after in self._pairs(agents):
            self._note_channels(name, before, after)
            if before is not None and after is not None:
                changes = self._compare(before, after)
                changed_count += bool(changes)
                if changes and len(changed) < AGENTS_MAX:
                    changed.append({"agent": name, "changes": changes.shown, "more": changes.more})
        channels = [row for _, channel in sorted(self._channels.items()) if (row := channel.row())]
        return {
            "agents_added": _named(added[:AGENTS_MAX], self._new.lines),
            "agents_added_more": max(0, len(added) - AGENTS_MAX),
            "agents_removed": _named(removed[:AGENTS_MAX], self._old.lines),
            "agents_removed_more": max(0, len(removed) - AGENTS_MAX),
            "agents_changed": changed,
            "agents_changed_more": changed_count - len(changed),
            "agents_unchanged": len(agents) - len(added) - len(removed) - changed_count,
            "channels": channels[:CHANNELS_MAX],
            "channels_more": max(0, len(channels) - CHANNELS_MAX),
        }

    def _pairs(self, agents: list[str]) -> Iterator[tuple[str, AgentCheckpoint | None, AgentCheckpoint | None]]:
        """Yield each agent with its checkpoints in both snapshots. Omit an agent if its checkpoint's bytes and its host are equal in both
        snapshots."""
        differ = [name for name in agents if not self._is_same(name)]
        sides = [
            (side.lines, self._store.read_checkpoints(side.manifest, [x for x in differ if x in side.lines]))
            for side in (self._old, self._new)
        ]
        for name in differ:
            before, after = (next(found) if name in lines else None for lines, found in sides)
            yield name, before, after

    def _is_same(self, agent: str) -> bool:
        old, new = self._old.lines.get(agent), self._new.lines.get(agent)
        return old is not None and new is not None and (old.digest, old.host) == (new.digest, new.host)

    def _compare(self, before: AgentCheckpoint, after: AgentCheckpoint) -> StateChanges:
        changes = StateChanges()
        compare(self._about(self._old, before), self._about(self._new, after), changes)
        old, new = read_state(before, self._old.read_parts), read_state(after, self._new.read_parts)
        try:
            compare(old, new, changes, "state")
        except RecursionError:
            changes.add("state", "unknown", reason="it is nested too deep to be compared")
        for name in ("timers", "outbox", "spawns", "dead_letters"):
            compare(_described(before, name), _described(after, name), changes, name)
        return changes

    def _about(self, side: _Side, checkpoint: AgentCheckpoint) -> dict[str, object]:
        fields = {name: getattr(checkpoint, name) for name in _FIELDS}
        return {"host": side.lines[checkpoint.agent].host, **fields}

    def _note_channels(self, agent: str, before: AgentCheckpoint | None, after: AgentCheckpoint | None) -> None:
        for place, checkpoint in enumerate((before, after)):
            if checkpoint is None:
                continue
            for receiver, number in checkpoint.sent.items():
                self._channel(agent, receiver).sent[place] = number
            for sender, number in checkpoint.received.items():
                self._channel(sender, agent).received[place] = number
            for sender, messages in checkpoint.in_transit.items():
                self._channel(sender, agent).in_transit[place] = messages

    def _channel(self, sender: str, receiver: str) -> "_Channel":
        return self._channels.setdefault((sender, receiver), _Channel(sender, receiver))


class _Channel:
    """A channel as recorded in two snapshots. A sequence number of 0 means that no message was sent or consumed, or that the agent that
    records this number is not compared."""

    def __init__(self, sender: str, receiver: str) -> None:
        self.sender = sender
        self.receiver = receiver
        self.sent = [0, 0]
        self.received = [0, 0]
        self.in_transit: list[list[InTransitMessage]] = [[], []]

    def row(self) -> dict[str, object] | None:
        """Return the changes in the channel, or None if it has not changed."""
        old, new = ({(x.number, x.payload): x for x in messages} for messages in self.in_transit)
        added = [x for key, x in new.items() if key not in old]
        removed = [x for key, x in old.items() if key not in new]
        if not added and not removed and self.sent[0] == self.sent[1] and self.received[0] == self.received[1]:
            return None
        return {
            "sender": self.sender,
            "receiver": self.receiver,
            "sent_before": self.sent[0],
            "sent_after": self.sent[1],
            "received_before": self.received[0],
            "received_after": self.received[1],
            "in_transit_added": len(added),
            "in_transit_removed": len(removed),
            "in_transit_kept": len(new) - len(added),
            "added": _messages(added),
            "removed": _messages(removed),
        }


def _messages(messages: list[InTransitMessage]) -> list[dict[str, object]]:
    return [{"number": x.number, "message": shown(describe_payload(x.payload))} for x in messages[:MESSAGES_SHOWN]]


def _named(agents: list[str], lines: Mapping[str, AgentLine]) -> list[dict[str, object]]:
    return [{"agent": agent, "kind": lines[agent].kind, "host": lines[agent].host} for agent in agents]


def _described(checkpoint: AgentCheckpoint, name: str) -> object:
    """Return one of a checkpoint's lists, such as its timers, in a form that can be compared."""
    match name:
        case "timers":
            return _timers(checkpoint.own_timers)
        case "outbox":
            return [{"receiver": x.receiver, "message": describe_payload(x.payload)} for x in checkpoint.outbox]
        case "spawns":
            return [
                {"agent": x.agent, "kind": plain_name(x.kind), "creates": describe_payload(x.payload)}
                for x in checkpoint.spawns
            ]
        case _:
            dead_letters = [
                {
                    "sender": x.sender,
                    "message": describe_payload(x.payload),
                    "error": x.error,
                    "attempts": x.attempts,
                    "time_ns": x.time_ns,
                }
                for x in checkpoint.dead_letters
            ]
            return {"count": checkpoint.dead_letter_count, "latest": dead_letters}


def _timers(timers: list[SavedTimer]) -> dict[str, object]:
    """Return timers by name. If several timers have the same name, a number is appended to every name except the first."""
    by_name: dict[str, object] = {}
    for timer in timers:
        name, number = timer.name, 1
        while name in by_name:
            number += 1
            name = f"{timer.name}#{number}"
        by_name[name] = {"remaining_s": timer.remaining_ns / 1e9, "message": describe_payload(timer.payload)}
    return by_name
