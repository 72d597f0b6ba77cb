"""A complete cut, for `stop_when` and for display."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from snapline.agent_runtime.agent import Agent, agent_type
from snapline.agent_runtime.agent_classes import find_class
from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host.restore import restored
from snapline.agent_runtime.snapshots.cut_contents import (
    DeadLetter,
    PendingSpawn,
    PendingTimer,
    PendingTurn,
    TransitMessage,
    dead_letters,
    decode_plainly,
    deferred_messages,
    messages_parked,
    messages_to,
    open_effects,
    pending_spawns,
    pending_timers,
    pending_turns,
    turns_with_effects,
)
from snapline.errors import StoreError
from snapline.messages.payloads import CREATE, split_message, unwrapped
from snapline.storage.capture.describe import plain
from snapline.storage.capture.image import Buffer
from snapline.storage.capture.saved_values import FAILURES, ReadParts
from snapline.storage.packs.checkpoint import AgentCheckpoint, StatePart
from snapline.storage.store.store import Store


class Cut:
    """One complete epoch: the state of each agent, and all messages in transit.

    Attributes:
        epoch: its number.
        states: agent → state, decoded on access; agents that do not exist yet are missing.
        in_transit: messages in channels and outboxes, in order for each channel.
        dead_letters: messages that could not be handled: the newest of each agent, oldest first.
        dead_letter_count: number of all dead letters ever, over all agents, without those that were retried and handled.
        timers: number of pending timers, over all agents.
        pending_timers: the pending timers.
        pending_turns: unfinished durable turns; `states` holds the states from before these turns.
        open_effects: unfinished effects and compensations, as `agent: effect`. `stop_when` does not end a fleet in such a cut.
        turns_with_effects: unfinished durable turns that had done effects, as `agent: a turn that has done effect, effect`. `stop_when` gives these
            some seconds to end.
        pending_spawns: agents requested and not granted yet; for a granted one the creation message is in transit.
    """

    def __init__(
        self,
        epoch: int,
        checkpoints: Mapping[str, AgentCheckpoint],
        fleet: Fleet,
        read_parts: ReadParts | None = None,
    ) -> None:
        self.epoch = epoch
        self._checkpoints = dict(checkpoints)
        self._fleet = fleet
        self.states: Mapping[str, object] = _States(self._checkpoints, fleet, read_parts or _no_parts)

    @property
    def in_transit(self) -> tuple[TransitMessage, ...]:
        return tuple(
            message
            for checkpoint in self._checkpoints.values()
            for messages in (messages_to, messages_parked, deferred_messages)
            for message in messages(checkpoint, self._decode)
        )

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        return tuple(x for checkpoint in self._checkpoints.values() for x in dead_letters(checkpoint, self._decode))

    @property
    def dead_letter_count(self) -> int:
        return sum(checkpoint.dead_letter_count for checkpoint in self._checkpoints.values())

    @property
    def timers(self) -> int:
        return len(self.pending_timers)

    @property
    def pending_timers(self) -> tuple[PendingTimer, ...]:
        return tuple(x for checkpoint in self._checkpoints.values() for x in pending_timers(checkpoint, self._decode))

    @property
    def pending_turns(self) -> tuple[PendingTurn, ...]:
        return tuple(x for checkpoint in self._checkpoints.values() for x in pending_turns(checkpoint, self._decode))

    @property
    def open_effects(self) -> tuple[str, ...]:
        return tuple(x for checkpoint in self._checkpoints.values() for x in open_effects(checkpoint))

    @property
    def turns_with_effects(self) -> tuple[str, ...]:
        return tuple(x for checkpoint in self._checkpoints.values() for x in turns_with_effects(checkpoint))

    @property
    def pending_spawns(self) -> tuple[PendingSpawn, ...]:
        return tuple(x for checkpoint in self._checkpoints.values() for x in pending_spawns(checkpoint))

    def __repr__(self) -> str:
        transit = sum(
            [
                len(checkpoint.outbox) + sum(map(len, checkpoint.in_transit.values()))
                for checkpoint in self._checkpoints.values()
            ]
        )
        return f"<Cut of epoch {self.epoch}: {len(self.states)} agents, {transit} messages in transit>"

    def describe(self, agent: str) -> object:
        """Return an agent's state as plain JSON values. Large arrays are described, not read.

        Raises:
            KeyError: no such agent.
        """
        return describe_state(self._checkpoints[agent])

    def _repr_html_(self) -> str:
        from snapline.agent_runtime.snapshots import html

        return html.of_cut(self)

    @property
    def is_quiet(self) -> bool:
        """Return whether the fleet is at rest: nothing is in transit, no timer is set, no durable turn waits, no agent is about to start."""
        return all(
            not checkpoint.in_transit
            and not checkpoint.outbox
            and not checkpoint.timers
            and not checkpoint.spawns
            and checkpoint.turn is None
            and not checkpoint.stash
            and (checkpoint.is_unborn or checkpoint.is_started)
            for checkpoint in self._checkpoints.values()
        )

    def _decode(self, receiver: str, payload: bytes) -> tuple[str, object]:
        checkpoint = self._checkpoints.get(receiver)
        if checkpoint is None or checkpoint.is_unborn:
            return decode_plainly(receiver, payload)
        return decode_for(find_class(self._fleet, checkpoint.kind), payload)


def decode_for(agent_class: type[Agent], payload: bytes) -> tuple[str, object]:
    """Decode a message as its receiver's class declares it, or plainly if no handler exists, as for a future dead letter."""
    with contextlib.suppress(Exception):
        name, body = split_message(unwrapped(payload))
        handler = agent_type(agent_class).handlers.get(name)
        if handler is not None and payload[:1] != CREATE:
            return name, handler.decoder.decode(body)
    return decode_plainly("", payload)


def _no_parts(agent: str, parts: Sequence[StatePart]) -> Sequence[Buffer]:
    if parts:
        raise StoreError(f"the state of agent {agent!r} has parts, and no store to read them from")
    return []


class _States(Mapping[str, object]):
    """States by agent. `read_parts` reads the parts that are not in the checkpoint itself: only of agents that are accessed."""

    def __init__(
        self,
        checkpoints: dict[str, AgentCheckpoint],
        fleet: Fleet,
        read_parts: ReadParts,
    ) -> None:
        self._read_parts = read_parts
        self._checkpoints = {agent: checkpoint for agent, checkpoint in checkpoints.items() if not checkpoint.is_unborn}
        self._fleet = fleet
        self._decoded: dict[str, object] = {}

    def __getitem__(self, agent: str) -> object:
        if agent not in self._decoded:
            checkpoint = self._checkpoints[agent]
            contents = self._read_parts(agent, checkpoint.parts)
            self._decoded[agent] = restored(self._fleet, checkpoint, contents).state
        return self._decoded[agent]

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkpoints)

    def __len__(self) -> int:
        return len(self._checkpoints)


def load_cut(store: Store, epoch: int, fleet: Fleet) -> Cut:
    """Read a complete epoch from the store.

    Raises:
        DamagedDataError: data in the epoch is damaged.
        NotFoundError: there is no such epoch.
    """
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    checkpoints = {checkpoint.agent: checkpoint for checkpoint in store.read_checkpoints(manifest)}
    return Cut(epoch, checkpoints, fleet, store.part_reader(manifest).read)


def describe_state(checkpoint: AgentCheckpoint, read_parts: ReadParts | None = None) -> object:
    """Return the state for display, without the classes that wrote it. Without `read_parts`, parts outside the state's record are described, not
    read.

    Raises:
        DamagedDataError: a part is damaged.
    """
    if not checkpoint.state:
        return None
    read = None if read_parts is None else lambda part: read_parts(checkpoint.agent, [part])[0]
    try:
        return plain(checkpoint.state, checkpoint.parts, read)
    except FAILURES as error:
        return f"<{len(checkpoint.state)} bytes that only its own class can read: {error}>"
