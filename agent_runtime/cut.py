"""A complete cut, as `stop_when` and people see it."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.creation import CREATE, read_creation
from snapline.agent_runtime.encoding import split_message
from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.kinds import find_class
from snapline.agent_runtime.turns import restored
from snapline.errors import StoreError
from snapline.storage.capture.describe import plain
from snapline.storage.capture.image import Buffer
from snapline.storage.checkpoint import AgentCheckpoint, StatePart
from snapline.storage.store import Store


class TransitMessage(msgspec.Struct, frozen=True):
    """A message sent inside the cut and not consumed inside it.

    `number` is its number on the channel, or None if it was still waiting in its sender's outbox. `message` is None for
    the message that creates an agent.
    """

    sender: str
    receiver: str
    number: int | None
    message: object


class Cut:
    """One complete epoch: every agent's state, and everything in transit.

    Attributes:
        epoch: its number.
        states: agent → its state, decoded when asked for; agents that were not created yet are missing.
        in_transit: messages in channels and in outboxes; channel by channel in order.
        timers: how many timers were set, over all agents.
    """

    def __init__(
        self,
        epoch: int,
        checkpoints: Mapping[str, AgentCheckpoint],
        fleet: Fleet,
        read_parts: Callable[[str, Sequence[StatePart]], Sequence[Buffer]] | None = None,
    ) -> None:
        self.epoch = epoch
        self._checkpoints = dict(checkpoints)
        self._fleet = fleet
        self.states: Mapping[str, object] = _States(self._checkpoints, fleet, read_parts or _no_parts)

    @property
    def in_transit(self) -> tuple[TransitMessage, ...]:
        return tuple(self._messages())

    @property
    def timers(self) -> int:
        return sum(len(checkpoint.timers) for checkpoint in self._checkpoints.values())

    @property
    def is_quiet(self) -> bool:
        """Nothing is in transit, no timer is set, no agent is about to start: nothing will ever happen again."""
        return all(
            not checkpoint.in_transit
            and not checkpoint.outbox
            and not checkpoint.timers
            and not checkpoint.spawns
            and (checkpoint.is_unborn or checkpoint.is_started)
            for checkpoint in self._checkpoints.values()
        )

    def _messages(self) -> Iterator[TransitMessage]:
        for receiver, checkpoint in self._checkpoints.items():
            for sender, messages in checkpoint.in_transit.items():
                for message in messages:
                    yield TransitMessage(sender, receiver, message.number, self._decode(receiver, message.payload))
            for parked in checkpoint.outbox:
                yield TransitMessage(receiver, parked.receiver, None, self._decode(parked.receiver, parked.payload))

    def _decode(self, receiver: str, payload: bytes) -> object:
        if payload[:1] == CREATE:
            return None
        name, body = split_message(payload)
        checkpoint = self._checkpoints.get(receiver)
        if checkpoint is not None and not checkpoint.is_unborn:
            handler = agent_type(find_class(self._fleet, checkpoint.kind)).handlers.get(name)
            if handler is not None:
                with contextlib.suppress(Exception):  # it will be a dead letter: shown as far as it can be
                    return handler.decoder.decode(body)
        return _plain_body(body)


def _no_parts(agent: str, parts: Sequence[StatePart]) -> Sequence[Buffer]:
    if parts:
        raise StoreError(f"the state of agent {agent!r} has parts, and no store to read them from")
    return []


class _States(Mapping[str, object]):
    """`read_parts` reads what does not stand in the checkpoint itself: only of agents that are asked for."""

    def __init__(
        self,
        checkpoints: dict[str, AgentCheckpoint],
        fleet: Fleet,
        read_parts: Callable[[str, Sequence[StatePart]], Sequence[Buffer]],
    ) -> None:
        self._read_parts = read_parts
        self._checkpoints = {agent: found for agent, found in checkpoints.items() if not found.is_unborn}
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
        DamagedDataError: something in it is not what was written.
        NotFoundError: there is no such epoch.
    """
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    checkpoints = {checkpoint.agent: checkpoint for checkpoint in store.read_checkpoints(manifest)}
    return Cut(epoch, checkpoints, fleet, store.part_reader(manifest).read)


def describe_state(checkpoint: AgentCheckpoint) -> object:
    """The state for people to read, without the classes that wrote it."""
    return plain(checkpoint.state, checkpoint.parts) if checkpoint.state else None


def describe_payload(payload: bytes) -> object:
    """A message for people to read: its type's name and its fields."""
    if payload[:1] == CREATE:
        kind, state = read_creation(payload)
        return {"creates": kind, "state": plain(state)}
    try:
        name, body = split_message(payload)
    except (UnicodeDecodeError, IndexError):
        return f"<{len(payload)} bytes>"
    return {"type": name, "fields": _plain_body(body)}


def _plain_body(body: memoryview) -> object:
    try:
        return plain(bytes(body))
    except (msgspec.DecodeError, ValueError, TypeError):
        return f"<{len(body)} bytes>"
