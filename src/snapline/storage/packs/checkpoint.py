"""Contents of the checkpoint of one agent, and their encoding as bytes.

A checkpoint is one blob of a pack: the MessagePack array `[version, fields]`. `docs/snapshot-format.md` lists the fields for readers
without this code. Code in `storage/` treats the agent's state as opaque bytes, which `agent_runtime` encodes.

All channel numbers count from 1. A channel number of 0 means that nothing was sent or consumed on that channel.

A checkpoint also contains records of the agent's external effects (`agent_runtime/host/host_effects.py`).
"""

from collections.abc import Iterable

import msgspec

from snapline.errors import DamagedDataError, EncodingError, StoreError
from snapline.storage.disk.record import DIGEST_BYTES, Buffer, canonical


class KnownEffect(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A finished effect of the agent, kept under its key so that repeated requests can be answered.

    Attributes:
        key: key, unique within the agent. A key that begins with `@` was generated for the effect's turn and is forgotten with that turn.
        generation: number of real executions, not counting retries. The generation is 1 at first, and increases by one after each
            compensation.
        digest: 8-byte digest of name and arguments.
        outcome: "done", "failed" or "compensated".
        result: encoded result of a successful effect.
        arguments: arguments as text, for display.
        ended_ns: wall-clock time on the agent's host at which the effect ended, in nanoseconds since 1970.
        is_orphan: the effect's turn has failed permanently and no later turn has adopted the effect, so it may be compensated.
        name, undo, undo_arguments: same as in `MadeEffect`, but empty if the effect cannot be compensated.
        dead_letter: number of the dead letter of the failed turn that left this orphan, or 0 if unknown.
        late_s: time in seconds for which the last call of a failed effect may have continued after the effect ended.
    """

    key: str
    generation: int
    digest: bytes
    outcome: str
    result: bytes
    arguments: str
    ended_ns: int
    is_orphan: bool = False
    name: str = ""
    undo: str = ""
    undo_arguments: list[bytes] = []
    dead_letter: int = 0
    late_s: float = 0.0


class OpenEffect(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """The effect for whose outcome the agent's current turn waits.

    Attributes:
        key, generation, digest, arguments: same as in `KnownEffect`.
        number: number of the agent's output that announces the effect. The effect may run after that output is released.
        name, undo, undo_arguments: same as in `MadeEffect`.
        undoes, undoes_generation: key and generation of the effect that this effect compensates, if it is a compensation.
        is_marked: a mark is written to the host log before each call, so without a mark the effect was never called.
        is_begun: such a mark exists or existed. The log may drop the mark while the effect is still open.
        is_repeated: a call under this key has failed, or was made in a reverted history. That call may have taken effect.
        timeout_s: time limit of a call in seconds.
    """

    key: str
    generation: int
    digest: bytes
    arguments: str
    number: int
    name: str
    undo: str = ""
    undo_arguments: list[bytes] = []
    undoes: str = ""
    undoes_generation: int = 0
    is_marked: bool = False
    is_begun: bool = False
    is_repeated: bool = False
    timeout_s: float = 0.0


class MadeEffect(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """An effect that the agent's current durable turn has executed or tried. If the turn fails, the effect is compensated.

    Attributes:
        undo: compensation as `"module:function"`, or "" if there is none.
        undo_arguments: arguments of the compensation, each of them encoded.
    """

    key: str
    generation: int
    name: str
    undo: str = ""
    undo_arguments: list[bytes] = []


class SavedEffects(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Effects of an agent: the latest finished effects and the current turn's effects, both from oldest to newest, and the open effect."""

    keys: list[KnownEffect] = []
    made: list[MadeEffect] = []
    open: OpenEffect | None = None


CHECKPOINT_VERSION = 2
"""Version of the fields below. Version 1, which had no state parts, can still be read. Other versions are rejected."""

_READABLE = (1, CHECKPOINT_VERSION)


class InTransitMessage(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A message that is in transit in the cut: it was sent before the cut, but not consumed before the cut."""

    number: int
    stamp: int
    payload: bytes
    piggyback: bytes = b""


class ParkedMessage(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A message that a finished turn has sent and that waits for channel credit. The message has no channel number yet."""

    receiver: str
    payload: bytes


class SavedTimer(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A timer that had not fired by the time of the checkpoint. `remaining_ns` is the time that was left then."""

    name: str
    remaining_ns: int
    payload: bytes


class BootClock(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Reading of a machine's monotonic clock, which keeps running during sleep and while no process of ours runs. `boot` identifies the
    boot of the machine."""

    boot: str
    now_ns: int

    def since(self, earlier: "BootClock") -> int:
        """Return the nanoseconds since another reading, or 0 if that reading is from another machine or boot."""
        return max(0, self.now_ns - earlier.now_ns) if self.boot == earlier.boot else 0


class DeadLetterRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A message whose handler failed `attempts` times. `time_ns` is wall-clock time in nanoseconds since 1970. `key` is an input's
    idempotency key."""

    sender: str
    payload: bytes
    error: str
    attempts: int
    time_ns: int
    key: str = ""


class DeadLetterNumbers(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Numbers of an agent's dead letters: the numbers of all that are kept, in order, and the highest number ever assigned."""

    last: int
    numbers: list[int]


def consecutive_dead_letter_numbers(count: int, kept: int) -> DeadLetterNumbers:
    """Return the numbers of the dead letters if none was ever removed. `count` counts all dead letters, and the newest `kept` of them are
    kept."""
    last = max(count, kept)
    return DeadLetterNumbers(last, list(range(last - kept + 1, last + 1)))


class SpawnRequest(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A spawn that a finished turn has requested. The coordinator has not reserved an agent for it yet."""

    agent: str
    kind: str
    payload: bytes


DROPPED_REPLY = b"\x00dropped"
"""Value stored as the reply to an input that an intended rollback dropped. No encoded message begins like it: its type name would be
empty."""


class KnownKey(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Record of a consumed input, stored under its client's key. With this record the agent detects duplicates of the input.

    Attributes:
        number: sequence number of the consumed input.
        digest: 16-byte digest of the input's payload.
        admitted_ns: wall-clock time on the host at which the input was accepted, in nanoseconds since 1970.
        is_dead_lettered: the input became a dead letter.
        reply: reply of the input's turn, or b"" if there was none or it has been forgotten. `DROPPED_REPLY` means that the input had no
            turn and counts as a dead letter.
        is_open: the input is consumed, but its turn has not ended: the turn is durable, or the input waits in the stash.
        retried_by: key of the operator command that retried the input's dead letter. The input and the command both get the reply of that
            retry.
    """

    key: str
    number: int
    digest: bytes
    admitted_ns: int
    is_dead_lettered: bool
    reply: bytes = b""
    is_open: bool = False
    retried_by: str = ""

    @property
    def is_dropped(self) -> bool:
        """Return whether the input never had a turn because a rollback dropped it."""
        return self.reply == DROPPED_REPLY


class SavedInputs(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """External inputs that an agent has consumed. `number` is the number of the last input, and `keys` lists the latest keys, oldest
    first."""

    number: int = 0
    keys: list[KnownKey] = []

    @property
    def settled(self) -> int:
        """Highest input number up to which all turns have ended."""
        return min([known.number - 1 for known in self.keys if known.is_open], default=self.number)


NO_INPUTS = SavedInputs()


class SavedOutput(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """An output that has not been released yet, as far as the agent's host knows.

    Attributes:
        number: sequence number of the output, counted from 1 in the agent's history across all its owners and incarnations.
        payload: the message as encoded by `encode_message`.
        emitted_ns: wall-clock time of emission in nanoseconds since 1970, for display only.
    """

    number: int
    topic: str
    payload: bytes
    emitted_ns: int


class SavedOutputs(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """An agent's outputs. `number` is the number of the last output, and `pending` lists the pending outputs up to it in order, without a
    gap."""

    number: int = 0
    pending: list[SavedOutput] = []


NO_OUTPUTS = SavedOutputs()


TURN_TIMER = "\0waited"
"""Name of the timer on which a durable turn waits. No timer that an agent sets can have this name."""


class JournalEntry(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One entry in the journal of a durable turn: a request by the turn's handler, and its outcome.

    Attributes:
        kind: "step", "effect", "call", "sleep", "receive" or "now".
        name: name of the step or effect, the called agent, or the type of message to receive.
        digest: 8-byte digest of the arguments, or b"" if there are none.
        outcome: "done", "failed", or "late" after a timeout. The outcome is "" while the turn waits for it. Effects may also be "adopted"
            (an earlier turn has executed the effect) or "refused" (an earlier turn used other arguments).
        result: the encoded result. For "receive" it is the message, and for a failed step it is the error.
        sender: sender of a received message, or key and generation of an effect that was called.
    """

    kind: str
    name: str
    digest: bytes = b""
    outcome: str = ""
    result: bytes = b""
    sender: str = ""


class SavedTurn(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A durable turn that has begun but not ended. The turn is saved with the agent's state as it was when the turn began.

    Attributes:
        what, sender, payload, key: the message that caused the turn. `key` is set only for inputs.
        seed: 16-byte seed of the turn's random numbers.
        journal: finished entries. In a file, these are only the entries that are not in chunks yet (`AgentCheckpoint.journal_part`).
        waits: the entry for which the turn waits, or None if the last entry is finished and the turn has not resumed yet.
    """

    what: str
    sender: str
    payload: bytes
    seed: bytes
    key: str = ""
    journal: list[JournalEntry] = []
    waits: JournalEntry | None = None


class StashedMessage(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A message that counts as received but has not had its turn, because a durable turn received a later message first.

    Attributes:
        key: idempotency key, if the message is an input.
    """

    sender: str
    payload: bytes
    key: str = ""


class ChunkReference(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Reference to a chunk of a state part: BLAKE3 digest and length of the chunk's plaintext."""

    digest: bytes
    size_bytes: int


class StatePart(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A part of a state that is stored separately from the state's own bytes: an array, a history or a blob.

    Attributes:
        kind: `PART_…` of `storage/capture/image.py`.
        head: information that this kind of part needs to rebuild the object.
        size_bytes: total length of all chunks, in bytes.
        chunk_bytes: size in bytes of every chunk except the last, or 0 if `sizes` lists the sizes.
        sizes: size of each chunk in bytes, if `chunk_bytes` is 0.
        digests: concatenated 32-byte digests of the chunks, in order.
    """

    kind: int
    head: bytes
    size_bytes: int
    chunk_bytes: int
    sizes: list[int]
    digests: bytes

    def chunks(self) -> list[ChunkReference]:
        """Return the chunks in order."""
        count = len(self.digests) // DIGEST_BYTES
        sizes = self.sizes if self.chunk_bytes == 0 else self._fixed_sizes(count)
        return [
            ChunkReference(self.digests[DIGEST_BYTES * i : DIGEST_BYTES * (i + 1)], size)
            for i, size in enumerate(sizes)
        ]

    def contradiction(self) -> str:
        """Return why the part is invalid, or "" if it is valid. The check runs before anything is allocated."""
        count, rest = divmod(len(self.digests), DIGEST_BYTES)
        if rest or self.size_bytes < 0 or self.chunk_bytes < 0 or any(size <= 0 for size in self.sizes):
            return "a part has an impossible length"
        if self.chunk_bytes:
            is_right = not self.sizes and count == -(-self.size_bytes // self.chunk_bytes)
        else:
            is_right = len(self.sizes) == count and sum(self.sizes) == self.size_bytes
        return "" if is_right else "the chunks of a part do not add up to its length"

    def _fixed_sizes(self, count: int) -> list[int]:
        return [min(self.chunk_bytes, self.size_bytes - i * self.chunk_bytes) for i in range(count)]


class AgentCheckpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Checkpoint of one agent in one cut: state, channel numbers, channel state, outbox, timers and dead letters.

    In a checkpoint pack, the checkpoint is one that the agent took independently. Then `epoch` is 0 and `in_transit` is empty, since the
    checkpoint is in no cut yet, and `sender_log` contains messages that a later cut may need.

    Files of earlier releases lack `basis`, `sender_log`, `round`, `turns` and `inputs`, which then have their default values. Files omit
    `outputs`, `turn`, `journal`, `stash` and `effects` if they are empty. Files omit `dead_letter_numbers` if no dead letter was ever
    removed, `durable_turns` if no durable turn has begun, and `clock` if no timer is set.

    Attributes:
        agent: id of the agent.
        kind: class of the agent, as `"module:Class"`.
        incarnation: incarnation of the agent that recorded the checkpoint.
        number: number of earlier checkpoints of this agent, across all incarnations.
        epoch: the epoch of this checkpoint, or 0 if the checkpoint belongs to no epoch yet.
        basis: reason for the checkpoint: "coordinated" (for an epoch), "initial", "basic", "forced" or "tentative".
        round: for a tentative checkpoint, the epoch of its koo-toueg round.
        turns: number of turns that the agent has finished since the previous checkpoint.
        parts: parts of the state, in the order in which the state names them.
        is_unborn: the message that creates the agent is in transit in this cut, so there is no state yet.
        is_started: `on_start` has run.
        is_leaving: `ctx.stop()` was called.
        state: state as encoded by `agent_runtime`. Code in `storage/` does not interpret it.
        state_type: declared type of the state, used to show readable differences.
        state_version: schema version of the state.
        state_fields: map from each field of the state to its declared type.
        sent: map from receiver to the number of the last message sent before the checkpoint.
        received: map from sender to the number of the last message consumed before the checkpoint.
        protocol_state: encoded state of the checkpointing protocol's core.
        in_transit: map from sender to the messages in transit on the channel, sorted by number.
        sender_log: map from receiver to all messages sent since the previous checkpoint, sorted by number.
        outbox: messages of finished turns that wait for channel credit, in order.
        dead_letters: the latest dead letters. `dead_letter_count` counts all dead letters in the agent's history, except those that were
            handled successfully later.
        saved_numbers: `dead_letter_numbers`, as stored in the file.
        recorded_ns: wall-clock time in nanoseconds since 1970, used only in diagrams and never for decisions.
        inputs: consumed external inputs. The host log delivers later inputs again.
        saved_outputs, saved_turn, saved_stash, saved_turns, saved_effects: `outputs`, `turn`, `stash`, `durable_turns` and `effects`, as
            stored in the file.
        saved_clock: reading of the machine's clock at the checkpoint. The time that elapses after it counts for the timers.
        saved_journal: `journal_part`, stored in the file as `journal`.
    """

    agent: str
    kind: str
    epoch: int
    incarnation: int = 1
    number: int = 0
    is_unborn: bool = False
    is_started: bool = False
    is_leaving: bool = False
    state: bytes = b""
    state_type: str = ""
    state_version: int = 0
    state_fields: dict[str, str] = {}
    sent: dict[str, int] = {}
    received: dict[str, int] = {}
    protocol_state: bytes = b""
    in_transit: dict[str, list[InTransitMessage]] = {}
    outbox: list[ParkedMessage] = []
    spawns: list[SpawnRequest] = []
    timers: list[SavedTimer] = []
    dead_letters: list[DeadLetterRecord] = []
    dead_letter_count: int = 0
    recorded_ns: int = 0
    basis: str = "coordinated"
    sender_log: dict[str, list[InTransitMessage]] = {}
    round: int = 0
    turns: int = 0
    parts: list[StatePart] = []
    inputs: SavedInputs = NO_INPUTS
    saved_outputs: SavedOutputs | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="outputs")
    saved_turn: SavedTurn | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="turn")
    saved_journal: StatePart | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="journal")
    saved_stash: list[StashedMessage] | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="stash")
    saved_numbers: DeadLetterNumbers | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="letter_numbers")
    saved_turns: int | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="durable_turns")
    saved_effects: SavedEffects | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="effects")
    saved_clock: BootClock | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="clock")

    @property
    def dead_letter_numbers(self) -> DeadLetterNumbers:
        """Numbers of the agent's dead letters, which are consecutive until a dead letter is removed."""
        return self.saved_numbers or consecutive_dead_letter_numbers(self.dead_letter_count, len(self.dead_letters))

    @property
    def outputs(self) -> SavedOutputs:
        """Outputs of the agent. No output file of an earlier epoch contains the pending outputs."""
        return self.saved_outputs or NO_OUTPUTS

    @property
    def turn(self) -> SavedTurn | None:
        """The durable turn that has not ended, or None. The saved state is the state as it was when that turn began."""
        return self.saved_turn or None

    @property
    def journal_part(self) -> StatePart | None:
        """The beginning of the turn's journal, stored in chunks, or None. `storage/capture/chunking.py` combines it with the rest of the
        journal."""
        return self.saved_journal or None

    @property
    def journal_entries(self) -> int:
        """Number of finished entries in the turn's journal."""
        open_entries = 0 if self.turn is None else len(self.turn.journal)
        part = self.journal_part
        return open_entries if part is None else open_entries + _head_decoder.decode(part.head)[0]

    @property
    def chunked(self) -> list[StatePart]:
        """All parts that are stored in chunks: the parts of the state, and the part of the journal."""
        return self.parts if self.journal_part is None else [*self.parts, self.journal_part]

    @property
    def durable_turns(self) -> int:
        """Number of durable turns that have begun in the agent's history. The last of them may not have ended."""
        return max(self.saved_turns or 0, 1 if self.saved_turn else 0)

    @property
    def ended_turns(self) -> int:
        """Number of durable turns that have ended."""
        return self.durable_turns - (1 if self.saved_turn else 0)

    @property
    def own_timers(self) -> list[SavedTimer]:
        """Timers that the agent has set: all of `timers` except the timer of the agent's durable turn."""
        return [timer for timer in self.timers if timer.name != TURN_TIMER]

    @property
    def stash(self) -> list[StashedMessage]:
        """Received messages that wait for their turns, in order."""
        return self.saved_stash or []

    @property
    def effects(self) -> SavedEffects | None:
        """External effects that the agent remembers, or None if there are none."""
        return self.saved_effects or None

    @property
    def state_bytes(self) -> int:
        """Size of the state in bytes, which includes the state's own bytes and its parts."""
        return len(self.state) + sum([part.size_bytes for part in self.parts])

    def digests(self) -> dict[bytes, None]:
        """Return the digests of the chunks of the state and the journal, without duplicates, in order. The values of the dict are None."""
        return {chunk.digest: None for part in self.chunked for chunk in part.chunks()}


_envelope_decoder = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_decoder = msgspec.msgpack.Decoder(AgentCheckpoint)
_head_decoder = msgspec.msgpack.Decoder(tuple[int])


def encode_checkpoint(checkpoint: AgentCheckpoint) -> bytes:
    """Return the encoded blob of `checkpoint`. Equal checkpoints have equal encodings.

    Raises:
        EncodingError: If MessagePack cannot encode a field's value, such as an integer above 64 bits.
    """
    try:
        return canonical.encode((CHECKPOINT_VERSION, checkpoint))
    except (OverflowError, TypeError, ValueError) as error:
        raise EncodingError(f"the checkpoint of agent {checkpoint.agent!r} cannot be encoded: {error}") from error


def size_of(messages: Iterable[list[InTransitMessage]]) -> tuple[int, int]:
    """Return the number of messages in these channels, and the total bytes of their payloads and piggybacked data."""
    count = size_bytes = 0
    for channel in messages:
        count += len(channel)
        size_bytes += sum([len(message.payload) + len(message.piggyback) for message in channel])
    return count, size_bytes


def decode_checkpoint(blob: Buffer) -> AgentCheckpoint:
    """Return the checkpoint encoded in `blob`, whose digest the caller has checked.

    Raises:
        StoreError: If this release of Snapline cannot read the version of the checkpoint.
        DamagedDataError: If `blob` is not a checkpoint.
    """
    try:
        version, fields = _envelope_decoder.decode(blob)
        if version in _READABLE:
            return _decoder.decode(fields)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedDataError(f"these {len(blob)} bytes are no checkpoint: {error}") from error
    raise StoreError(
        f"the checkpoint has format version {version}, this snapline reads up to {CHECKPOINT_VERSION}: use a newer snapline"
    )
