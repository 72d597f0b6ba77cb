"""Data types of the ground truth: channels, turns, images, histories, branches and cuts. `ground_truth.py` explains the theory."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Literal

import msgspec
from blake3 import blake3

from snapline.agent_runtime.host.host_events import Control, Spawn
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry, SavedTurn

Key = tuple[str, int, int, int]
"""Identity of a checkpoint: agent, incarnation, number and round."""

Report = Callable[[str, str, int, str], None]
"""Function that reports a violation. It takes the oracle, the guarantee, the time and a description."""

Finding = tuple[str, str, str]
"""Violation that a check has found: oracle, guarantee and description. The time is missing."""

Draws = tuple[object, ...]
"""Results of `ctx.random()`, `ctx.now()` and `ctx.step()` in a turn, in order."""


class StepOutcome(msgspec.Struct, frozen=True):
    """Outcome of an attempt to run a step in a turn that is not durable."""

    value: object = None
    error: Exception | None = None


DIGEST_BYTES = 16

_run_decoder = msgspec.msgpack.Decoder(list[JournalEntry])

NO_VOIDS: Mapping[int, int] = MappingProxyType({})
"""Empty mapping that is shared, because nearly all channels have no void messages."""


class ChannelTruth(msgspec.Struct):
    """All messages of a channel in one branch.

    Attributes:
        sent: payloads of the messages, in order.
        sent_at: for each message, the sender's turn that sent it.
        consumed_at: for each message consumed so far, the receiver's turn that consumed or skipped it.
        departed_at: for each message that has left, the sender's turn that had most recently begun or ended, or -1 if this turn is not in
            the branch. The list is empty if the world does not report departures.
        void: by the index of each void message, the number of void messages that the sender had before it. Void messages never arrive.
    """

    sender: str
    receiver: str
    sent: list[bytes]
    sent_at: list[int]
    consumed_at: list[int]
    void: Mapping[int, int]
    departed_at: list[int]


class Turn(msgspec.Struct):
    """A turn's input and the messages that it sent, recorded so that the turn can be replayed."""

    plan: int
    what: str
    sender: str
    payload: bytes
    sends: list[tuple[str, bytes]]
    spawns: list[Spawn]
    draws: Draws | None


class Captured(msgspec.Struct, frozen=True):
    """A captured image of an agent.

    Attributes:
        turns: number of turns that the agent had finished before the image was captured.
        voids: number of the agent's messages that had become void before the image was captured.
        parked: for each receiver, the number of messages that had been sent but were still in the outbox.
        rest: digest of the agent's other data (outbox, spawns, timers, dead letters, protocol state, inputs, outputs).
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
    """Event in which a message became a dead letter, or, if `is_over` is True, stopped being one.

    The counts `turns` and `voids` state when the change happened. If the message is a dead letter of its sender, only `voids` is used. The
    flag `is_counted` means that the dead letter was handled rather than dropped.
    """

    turns: int
    voids: int
    sender: str
    payload: bytes
    is_over: bool = False
    is_counted: bool = True

    def is_inside(self, turns: int, voids: int) -> bool:
        """Return whether the change happened before or at the position with these counts."""
        return self.turns <= turns and self.voids <= voids


class CommandEffect(msgspec.Struct, frozen=True):
    """An operator command, consumed with or without a turn, and the number of turns that the agent had finished by then."""

    turns: int
    verb: str
    identity: bytes


Deferral = Literal["first", "last", "over"]
"""What happens to a deferred message: it waits before or behind the others, or its turn has begun. The message that undoes a failed turn, and
that of a turn which begins again, wait before the others."""


class AgentHistory(msgspec.Struct):
    """An agent's history in one branch.

    Attributes:
        turns: number of turns that the agent has finished, including turns in earlier branches that lead to this branch.
        origin: image from which the agent starts in the branch, or None if the agent started in its initial state or did not exist.
        stopped_at: turn in which the agent stopped, or 0 if it has not stopped.
        voids: number of the agent's messages that have become void.
        failed_ns: time at which a checkpoint of the agent failed, or 0 if none failed. Work after that time cannot be saved under this
            plan.
        inputs: for each input's payload, the turn in which the input was consumed or dead-lettered.
        replies: for each input's payload, the answer that its turn gave.
        answered: for each input's payload, the turn or segment that gave the answer.
        dead_letter_answers: for each input's payload, the answers that turns gave to the dead letter that the input had become. The client
            may receive these answers too.
        put_off: events in which a message was deferred to a later turn, or in which a deferral ended. Each such event contains the number
            of finished turns, the message's payload, and whether the deferral has ended.
        outputs: for each emitted output, in order, its turn and its bytes.
        dead_letters: events in which messages became dead letters or stopped being dead letters.
        words: consumed operator commands about dead letters.
        captured: captured images of the agent in order, including images from before the branch.
        log: turns, in order. The list is empty unless turns are to be replayed.
        clocks: the agent's vector clock after each turn. Entry 0 is the clock before the first turn. The index of an agent's component is
            its entry in `GroundTruth.places`.
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
    dead_letter_answers: dict[bytes, list[bytes]] = {}
    put_off: list[tuple[int, bytes, Deferral]] = []
    outputs: list[tuple[int, bytes]] = []
    dead_letters: list[DeadLetterChange] = []
    words: list[CommandEffect] = []
    failed_ns: int = 0


class Branch(msgspec.Struct):
    """The history of all agents under one plan, including the history that led to the plan.

    Attributes:
        loaded: ids of the agents that a host has started under this plan.
        settled: with local recovery, the agents whose histories at the start of the plan are known.
    """

    plan: int
    histories: dict[str, AgentHistory]
    channels: dict[tuple[str, str], ChannelTruth]
    loaded: dict[str, None]
    settled: dict[str, None] = {}


class CutPlace(msgspec.Struct, frozen=True):
    """An agent's position in a cut. `captured` is None if the agent does not exist yet or has left."""

    turns: int
    voids: int
    parked: Mapping[str, int]
    captured: Captured | None = None
    is_gone: bool = False


class CutRecord(msgspec.Struct):
    """A cut of the history under one plan. The record contains the positions of the agents in the cut, and of agents that had left before
    it.

    Attributes:
        checkpoints: for each agent, the digest of its checkpoint on disk when the epoch became complete.
    """

    epoch: int
    plan: int
    places: dict[str, CutPlace]
    checkpoints: dict[str, bytes]


_encode = msgspec.msgpack.Encoder(order="sorted").encode

NOWHERE = CutPlace(0, 0, {})
"""Position of an agent that does not exist yet, and so has taken no turns."""


def digest_of(data: bytes) -> bytes:
    """Return the digest of `data`, which is used for comparisons."""
    return blake3(data).digest(DIGEST_BYTES)


def rest_of(image: Control | AgentCheckpoint) -> bytes:
    """Return the digest of an agent's data, apart from its state and its channels."""
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
    """Return the durable turn in an image, with its complete journal. If the image was captured and not stored, add the sealed parts of the
    journal, which stored checkpoints already contain."""
    if isinstance(image, AgentCheckpoint) or image.turn is None or image.sealed is None:
        return image.turn
    entries = [entry for run in image.sealed.runs for entry in _run_decoder.decode(run)]
    return msgspec.structs.replace(image.turn, journal=entries + image.turn.journal)


def stash_of(put_off: Iterable[tuple[int, bytes, Deferral]]) -> list[bytes]:
    """Return the payloads of the messages that are still deferred, in order."""
    stash: list[bytes] = []
    for _, payload, deferral in put_off:
        if deferral == "over":
            stash.remove(payload)
        elif deferral == "first":
            stash.insert(0, payload)
        else:
            stash.append(payload)
    return stash


def show(payload: bytes) -> str:
    """Format a payload as text, shortened if necessary."""
    return repr(payload if len(payload) <= 40 else payload[:37] + b"...")
