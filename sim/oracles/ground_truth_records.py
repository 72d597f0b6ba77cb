"""Records of the books: channels, turns, images, histories, branches, cuts. Theory in `ground_truth.py`."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import msgspec
from blake3 import blake3

from snapline.agent_runtime.host.events import Control, Spawn
from snapline.agent_runtime.undoing import UNDO
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry, SavedTurn

Key = tuple[str, int, int, int]
"""Agent, incarnation, number, round: what a checkpoint is known by."""

Report = Callable[[str, str, int, str], None]
"""Oracle, guarantee, time, one sentence."""

Draws = tuple[object, ...]
"""Results of `ctx.random()`, `ctx.now()` and `ctx.step()` in a turn, in order. None in its place: not known."""


class StepOutcome(msgspec.Struct, frozen=True):
    """Outcome of one attempt of a step, in a plain turn."""

    value: object = None
    error: Exception | None = None


DIGEST_BYTES = 16

_run_decoder = msgspec.msgpack.Decoder(list[JournalEntry])

NO_VOIDS: Mapping[int, int] = MappingProxyType({})
"""Void messages of nearly all channels: none."""


class ChannelTruth(msgspec.Struct):
    """All messages of one channel in one branch.

    Attributes:
        sent: payloads in order.
        sent_at: the sender's turn of each.
        got_at: the receiver's turn that consumed, or skipped, the first ones.
        left_at: the sender's last turn, begun or ended, when each one that is not void left, -1 where that turn is not in the branch;
            empty if the world does not say.
        void: index → how many void messages its sender had before; these never arrive.
    """

    sender: str
    receiver: str
    sent: list[bytes]
    sent_at: list[int]
    got_at: list[int]
    void: Mapping[int, int]
    left_at: list[int]


class Turn(msgspec.Struct):
    """Input and sends of a turn, for running it again."""

    plan: int
    what: str
    sender: str
    payload: bytes
    sends: list[tuple[str, bytes]]
    spawns: list[Spawn]
    draws: Draws | None


class Captured(msgspec.Struct, frozen=True):
    """An image of an agent's state.

    Attributes:
        turns: finished before it.
        voids: messages that had become void before.
        parked: receiver → messages sent by these turns that had not left.
        digest: of the state. rest: of what else belongs to the agent: outbox, spawns, timers, dead letters, the protocol's image, inputs, outputs.
    """

    plan: int
    agent: str
    number: int
    round: int
    basis: str
    t_ns: int
    turns: int
    voids: int
    parked: dict[str, int]
    digest: bytes
    rest: bytes = b""

    @property
    def key(self) -> Key:
        return self.agent, self.plan, self.number, self.round


class DeadLetterChange(msgspec.Struct, frozen=True):
    """A message became a dead letter, or, `is_over`, one is no more. `turns`, `voids`: when; a message of its sender is known by `voids` alone.
    `is_counted`: it was handled after all, not dropped."""

    turns: int
    voids: int
    sender: str
    payload: bytes
    is_over: bool = False
    is_counted: bool = True

    def is_inside(self, turns: int, voids: int) -> bool:
        """Return whether the change happened at or before that place."""
        return self.turns <= turns and self.voids <= voids


class CommandEffect(msgspec.Struct, frozen=True):
    """An operator's word was consumed, with or without a turn, at that turn."""

    turns: int
    verb: str
    identity: bytes


class AgentHistory(msgspec.Struct):
    """One agent in one branch.

    Attributes:
        turns: finished, over all branches that lead here.
        origin: the image from which the branch starts; None for one that started in its initial state, or was not born.
        stopped_at: its last turn, in which it stopped; 0 while it has not.
        voids: so many of the messages that it sent are void.
        failed_ns: when it was found that it may not go on under this plan; 0: it may.
        inputs: payload → the turn that consumed it, or the dead letters did. replies: payload → what its turn answered; answered:
            payload → the turn, or its segment, that ended with that. answers_to_letters: what a dead letter's turn has answered: its client may be told that, too.
        put_off: messages that were consumed before their turns, and those of them that have had them: the turn then, payload, whether
            it is over.
        outputs: turn and bytes of what it emitted, in order.
        letters: what became of dead letters. words: what operators said about them, as it was consumed.
        captured: images in order; those before the branch too.
        log: of turns, in order; empty unless they are to be run again.
        clocks: vector clock after each turn, by place in `GroundTruth.places`; [0] is before the first.
    """

    agent: str
    inward: dict[str, ChannelTruth]
    outward: dict[str, ChannelTruth]
    captured: list[Captured]
    log: list[Turn]
    clocks: list[list[int]]
    turns: int = 0
    origin: Captured | None = None
    stopped_at: int = 0
    voids: int = 0
    inputs: dict[bytes, int] = {}
    replies: dict[bytes, bytes] = {}
    answered: dict[bytes, int] = {}
    answers_to_letters: dict[bytes, list[bytes]] = {}
    put_off: list[tuple[int, bytes, bool]] = []
    outputs: list[tuple[int, bytes]] = []
    letters: list[DeadLetterChange] = []
    words: list[CommandEffect] = []
    failed_ns: int = 0


class Branch(msgspec.Struct):
    """History of the agents under one plan, and all that led there.

    Attributes:
        loaded: agents that a host has started under this plan.
    """

    plan: int
    histories: dict[str, AgentHistory]
    channels: dict[tuple[str, str], ChannelTruth]
    loaded: dict[str, None]


class CutPlace(msgspec.Struct, frozen=True):
    """Place of one agent in a cut. `captured` is None for an unborn agent, and for one that is gone."""

    turns: int
    voids: int
    parked: Mapping[str, int]
    captured: Captured | None = None
    is_gone: bool = False


class CutRecord(msgspec.Struct):
    """A cut of one branch: agents of the cut, and those that were gone before it.

    Attributes:
        checkpoints: agent → digest of the checkpoint as it lay on the disk when the epoch was complete.
    """

    epoch: int
    plan: int
    places: dict[str, CutPlace]
    checkpoints: dict[str, bytes]


_encode = msgspec.msgpack.Encoder(order="sorted").encode

NOWHERE = CutPlace(0, 0, {})
"""Place of an unborn agent: it has done nothing."""


def digest_of(data: bytes) -> bytes:
    """Return what `data` is compared by."""
    return blake3(data).digest(DIGEST_BYTES)


def rest_of(image: Control | AgentCheckpoint) -> bytes:
    """Return what the rest of an agent, besides its state and its channels, is compared by."""
    fields = (
        image.is_started,
        image.is_leaving,
        image.outbox,
        image.spawns,
        image.timers,
        image.dead_letters,
        image.dead_letter_count,
        image.protocol_state,
        image.inputs,
        _turn_of(image),
        image.stash,
        image.outputs,
    )
    return digest_of(_encode(fields))


def _turn_of(image: Control | AgentCheckpoint) -> SavedTurn | None:
    """Return the durable turn with its whole journal, sealed runs included; a checkpoint has all in the turn."""
    if isinstance(image, AgentCheckpoint) or image.turn is None or image.sealed is None:
        return image.turn
    entries = [entry for run in image.sealed.runs for entry in _run_decoder.decode(run)]
    return msgspec.structs.replace(image.turn, journal=entries + image.turn.journal)


def stash_of(put_off: Iterable[tuple[int, bytes, bool]]) -> list[bytes]:
    """Return what is still put off, in order. What undoes a failed turn comes before all else."""
    stash: list[bytes] = []
    for _, payload, is_over in put_off:
        if is_over:
            stash.remove(payload)
        elif payload.startswith(UNDO):
            stash.insert(0, payload)
        else:
            stash.append(payload)
    return stash


def show(payload: bytes) -> str:
    """A payload for a sentence."""
    return repr(payload if len(payload) <= 40 else payload[:37] + b"...")
