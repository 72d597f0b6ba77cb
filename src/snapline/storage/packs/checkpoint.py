"""Contents of an agent's checkpoint, and their encoding.

A checkpoint is one blob of a pack: the MessagePack array `[version, fields]`. `docs/snapshot-format.md` describes the fields for programs
that read checkpoints without Snapline. The `storage` package treats the agent's state as opaque bytes, which `agent_runtime` encodes.

Messages on each channel are numbered from 1. The number 0 means that no message was sent or consumed on the channel.

A checkpoint also contains records of the agent's external effects (`agent_runtime/host/host_effects.py`).
"""

from collections.abc import Iterable

import msgspec

from snapline.errors import DamagedDataError, EncodingError, StoreError
from snapline.storage.disk.record import DIGEST_BYTES, Buffer, canonical


class KnownEffect(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A finished external effect, stored under its key so that repeated requests get the recorded result.

    Attributes:
        key: key of the effect, unique within the agent. A key that begins with `@` was generated for the effect's turn, and is discarded
            with that turn.
        generation: number of times that the effect was executed, not counting retries. The first execution is generation 1, and each
            compensation increases the generation by one.
        digest: 8-byte digest of the effect's name and arguments.
        outcome: "done", "failed" or "compensated".
        result: encoded result of a successful effect.
        arguments: arguments as text, for display.
        ended_ns: wall-clock time on the agent's host at which the effect ended, in nanoseconds since 1970.
        is_orphan: whether the effect's turn has failed permanently and no later turn has adopted the effect, so that it may be compensated.
        name, undo, undo_arguments: as in `MadeEffect`, or empty if the effect cannot be compensated.
        dead_letter: number of the dead letter that the failed turn left, or 0 if unknown.
        late_s: how many seconds the last call of a failed effect may have continued after the effect ended.
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
    """An external effect whose outcome the agent's current turn is waiting for.

    Attributes:
        key, generation, digest, arguments: as in `KnownEffect`.
        number: sequence number of the output that announces the effect. The effect may run after that output has been released.
        name, undo, undo_arguments: as in `MadeEffect`.
        undoes, undoes_generation: key and generation of the effect that this effect compensates, or empty if this effect is not a
            compensation.
        is_marked: whether a mark is written to the host log before each call. If so, an effect without a mark was never called.
        is_begun: whether the host log contains, or has contained, a mark for this effect. The log may drop the mark before the effect has
            finished.
        is_repeated: whether a call under this key has failed, or was made in a reverted history. The earlier call may have taken effect.
        timeout_s: time limit of each call in seconds.
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
    """An external effect that the agent's current durable turn has executed or attempted. If the turn fails, the effect is compensated.

    Attributes:
        undo: compensation as `"module:function"`, or "" if there is none.
        undo_arguments: encoded arguments of the compensation.
    """

    key: str
    generation: int
    name: str
    undo: str = ""
    undo_arguments: list[bytes] = []


class SavedEffects(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """External effects of an agent: the latest finished effects and the current turn's effects, both oldest first, and the open effect, if
    the turn waits for a single one."""

    keys: list[KnownEffect] = []
    made: list[MadeEffect] = []
    open: OpenEffect | None = None


CHECKPOINT_VERSION = 2
"""Version of the fields below. Version 1, which had no state parts, can still be read. Other versions are rejected."""

_READABLE = (1, CHECKPOINT_VERSION)


class InTransitMessage(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A message in transit, which was sent but not consumed before the cut."""

    number: int
    stamp: int
    payload: bytes
    piggyback: bytes = b""


class ParkedMessage(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A message sent by a finished turn that is waiting for channel credit. The message has not been assigned a channel number yet."""

    receiver: str
    payload: bytes


class SavedTimer(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A timer that was pending when the checkpoint was taken. `remaining_ns` is the time until it would have fired, in nanoseconds."""

    name: str
    remaining_ns: int
    payload: bytes


class BootClock(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Reading of a machine's monotonic clock, which keeps running while the machine sleeps and while no Snapline process runs. `boot`
    identifies the current boot of the machine."""

    boot: str
    now_ns: int

    def since(self, earlier: "BootClock") -> int:
        """Return the nanoseconds elapsed since `earlier`, or 0 if the two readings come from different boots."""
        return max(0, self.now_ns - earlier.now_ns) if self.boot == earlier.boot else 0


class DeadLetterRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Dead letter: a message whose handler failed `attempts` times. `time_ns` is wall-clock time in nanoseconds since 1970. `key` is the
    idempotency key if the message is an input."""

    sender: str
    payload: bytes
    error: str
    attempts: int
    time_ns: int
    key: str = ""


class DeadLetterNumbers(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Numbers of the dead letters that an agent keeps, in ascending order, and the highest number ever assigned."""

    last: int
    numbers: list[int]


def consecutive_dead_letter_numbers(count: int, kept: int) -> DeadLetterNumbers:
    """Number dead letters consecutively, which is correct if none was ever removed. `count` is the number of dead letters ever created, of
    which the newest `kept` are still stored."""
    last = max(count, kept)
    return DeadLetterNumbers(last, list(range(last - kept + 1, last + 1)))


class SpawnRequest(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A spawn request of a finished turn, for which the coordinator has not reserved an agent yet."""

    agent: str
    kind: str
    payload: bytes


DROPPED_REPLY = b"\x00dropped"
"""Value stored as the reply to an input that an intended rollback dropped. No encoded message begins like it: its type name would be
empty."""


class KnownKey(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Record of a consumed input, stored under the client's idempotency key. The record allows the agent to detect duplicates of the input.

    Attributes:
        number: sequence number of the consumed input.
        digest: 16-byte digest of the input's payload.
        admitted_ns: wall-clock time at which the host accepted the input, in nanoseconds since 1970.
        is_dead_lettered: whether the input became a dead letter.
        reply: reply of the input's turn, or b"" if the turn gave no reply or the reply has been discarded. `DROPPED_REPLY` means that the
            input had no turn and counts as a dead letter.
        is_open: whether the input is consumed but its turn has not ended, because the turn is durable or the input waits in the stash.
        retried_by: key of the operator command that retried the input's dead letter. The input and the command both receive the reply of
            the retried turn.
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
        """Return whether the input never got a turn because a rollback dropped it."""
        return self.reply == DROPPED_REPLY


class SavedInputs(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Record of the external inputs that an agent has consumed. `number` is the sequence number of the last input, and `keys` lists the
    latest `KnownKey` records, oldest first."""

    number: int = 0
    keys: list[KnownKey] = []

    @property
    def settled(self) -> int:
        """Highest input number such that the turns of all inputs up to it have ended."""
        return min([known.number - 1 for known in self.keys if known.is_open], default=self.number)


NO_INPUTS = SavedInputs()


class SavedOutput(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """An emitted output that has not been released yet, as far as the agent's host knows.

    Attributes:
        number: sequence number of the output, counted from 1 over the agent's history, across all owners and incarnations.
        payload: message payload as encoded by `encode_message`.
        emitted_ns: wall-clock time of emission in nanoseconds since 1970, for display only.
    """

    number: int
    topic: str
    payload: bytes
    emitted_ns: int


class SavedOutputs(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """An agent's outputs. `number` is the sequence number of the last output, and `pending` lists the unreleased outputs up to that number
    without gaps."""

    number: int = 0
    pending: list[SavedOutput] = []


NO_OUTPUTS = SavedOutputs()


TURN_TIMER = "\0waited"
"""Name of the timer on which a durable turn waits. The timers of a group's members have their places behind it. No timer that an agent
sets can have these names."""


class JournalEntry(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Journal entry of a durable turn, which records a request by the turn's handler and its outcome.

    Attributes:
        kind: "step", "effect", "call", "sleep", "receive", "approval", "guard", "now" or "rolled_back".
        name: name of the step or effect, name of the called agent, type of the message to receive, or reason of a guard's violation.
        digest: 8-byte digest of the arguments, or b"" if there are none. For an approval, 16-byte digest of what people see.
        outcome: "done", "failed", or "late" after a timeout. The outcome is "" while the turn is waiting. An effect may also be "adopted"
            (executed by an earlier turn) or "refused" (requested by an earlier turn with other arguments).
        result: the encoded result. The result of "receive" is the message, and the result of a failed step is the error.
            While the turn waits for an approval, the result contains its details.
        sender: sender of a received message or of an answer to an approval, or key and generation of an external effect.
    """

    kind: str
    name: str
    digest: bytes = b""
    outcome: str = ""
    result: bytes = b""
    sender: str = ""


class AbandonedTurn(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """An attempt at a durable turn that `Context.restart_turn` has ended.

    Attributes:
        reason: why the attempt was ended.
        entries: kind, name and outcome of its journal entries, newest last. Only the newest 64 are kept.
    """

    reason: str
    entries: list[tuple[str, str, str]] = []


class SavedTurn(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A durable turn that has begun but has not ended. The turn is saved together with the agent's state from the beginning of the turn.

    Attributes:
        what, sender, payload, key: the message that caused the turn. `key` is set only for inputs.
        seed: 16-byte seed of the turn's random numbers.
        journal: finished entries. A file contains only the entries that are not stored in chunks (`AgentCheckpoint.journal_part`).
        waits: entry that the turn is waiting for, or None if the last entry is finished and the turn has not resumed yet.
        members: entries of the group that the turn is waiting for, in order. At least one of them is not finished, and `waits` is
            None. They follow the entries of the journal.
        group: number of entries at the end of the journal that were the members of a group, until the turn resumes.
        abandoned: earlier attempts at the turn, oldest first.
    """

    what: str
    sender: str
    payload: bytes
    seed: bytes
    key: str = ""
    journal: list[JournalEntry] = []
    waits: JournalEntry | None = None
    members: list[JournalEntry] = []
    group: int = 0
    abandoned: list[AbandonedTurn] = []

    @property
    def awaited(self) -> JournalEntry | None:
        """Return the entry that the turn is waiting for, or the first unfinished one of a group."""
        return self.waits or next((member for member in self.members if not member.outcome), None)


class StashedMessage(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A received message whose turn is postponed, because a durable turn received a later message first.

    Attributes:
        key: idempotency key if the message is an input, otherwise "".
        abandoned: earlier attempts at the turn of this message, oldest first.
    """

    sender: str
    payload: bytes
    key: str = ""
    abandoned: list[AbandonedTurn] = []


class ApprovalDecision(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """The decision on an approval. `by` is the name of the person, or "" if the approval expired."""

    id: str
    is_granted: bool
    by: str = ""


class SavedApprovals(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Answers to approvals that an agent keeps until its turn asks for them, and the latest decisions. Both are sorted by age, oldest
    first."""

    kept: list[StashedMessage] = []
    decided: list[ApprovalDecision] = []


class AskedQuestion(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """The number of times that an agent has made a request, in durable turns that have ended since its recorded answers begin
    (`storage/log/answer_files.py`). `kind`, `name` and `digest` are as in `JournalEntry`."""

    kind: str
    name: str
    digest: bytes
    count: int


class ChunkReference(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Reference to a chunk of a state part, consisting of the BLAKE3 digest and the length of the chunk's plaintext."""

    digest: bytes
    size_bytes: int


class StatePart(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A part of an agent's state that is stored separately: an array, a history or a blob.

    Attributes:
        kind: one of the constants `PART_…` in `storage/capture/image.py`.
        head: information needed to rebuild the object from its chunks.
        size_bytes: total length of all chunks, in bytes.
        chunk_bytes: size of every chunk except the last, in bytes, or 0 if `sizes` lists the sizes.
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
        """Return why the part is invalid, or "" if it is valid. Parts are checked before anything is allocated."""
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

    A checkpoint in a checkpoint pack was taken independently by its agent. Such a checkpoint belongs to no cut yet, so `epoch` is 0,
    `in_transit` is empty, and `sender_log` contains messages that a later cut may need.

    Files written by earlier releases lack `basis`, `sender_log`, `round`, `turns` and `inputs`, which then have their default values. Files
    omit `outputs`, `turn`, `journal`, `stash`, `effects`, `approvals` and `asked` where they are empty. Files omit `dead_letter_numbers` if no dead letter was
    ever removed, `durable_turns` if no durable turn has begun, and `clock` if no timer is set.

    Attributes:
        kind: agent class, as `"module:Class"`.
        incarnation: incarnation of the agent that took the checkpoint.
        number: number of earlier checkpoints of this agent, across all incarnations.
        epoch: epoch to which the checkpoint belongs, or 0 if it belongs to no epoch yet.
        basis: reason for the checkpoint: "coordinated" (for an epoch), "initial", "basic", "forced" or "tentative".
        round: for a tentative checkpoint, the epoch of its koo-toueg round.
        turns: number of turns that the agent has finished since the previous checkpoint.
        parts: state parts, in the order in which the state refers to them.
        is_unborn: whether the message that creates the agent is still in transit in this cut. If so, there is no state yet.
        is_started: `on_start` has run.
        is_leaving: `ctx.stop()` was called.
        state: agent state as encoded by `agent_runtime`, opaque to `storage`.
        state_type: declared type of the state, which allows readable comparisons of states.
        state_version: schema version of the state.
        state_fields: map from each field of the state to its declared type.
        sent: map from receiver to the number of the last message sent before the checkpoint.
        received: map from sender to the number of the last message consumed before the checkpoint.
        protocol_state: encoded state of the checkpointing protocol's core.
        in_transit: map from sender to the messages in transit from that sender, sorted by number.
        sender_log: map from receiver to all messages sent to it since the previous checkpoint, sorted by number.
        outbox: messages of finished turns that are waiting for channel credit, in order.
        dead_letters: the latest dead letters. `dead_letter_count` is the number of dead letters in the agent's history, excluding those
            that were handled successfully later.
        saved_numbers: `dead_letter_numbers` in the form stored in the file.
        recorded_ns: wall-clock time in nanoseconds since 1970, used only in diagrams and never for decisions.
        inputs: consumed external inputs. The host log redelivers later inputs.
        saved_outputs, saved_turn, saved_stash, saved_turns, saved_effects, saved_group, saved_approvals, saved_asked: `outputs`, `turn`,
            `stash`, `durable_turns`, `effects`, `effect_group`, `approvals` and `asked` in the form stored in the file.
        saved_clock: reading of the machine's clock when the checkpoint was taken. Time that elapses after the checkpoint counts towards the
            timers.
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
    saved_group: list[tuple[int, OpenEffect]] | msgspec.UnsetType = msgspec.field(
        default=msgspec.UNSET, name="effect_group"
    )
    saved_approvals: SavedApprovals | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="approvals")
    saved_asked: list[AskedQuestion] | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="asked")
    saved_clock: BootClock | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="clock")

    @property
    def dead_letter_numbers(self) -> DeadLetterNumbers:
        """Numbers of the agent's dead letters, which are consecutive if none was ever removed."""
        return self.saved_numbers or consecutive_dead_letter_numbers(self.dead_letter_count, len(self.dead_letters))

    @property
    def outputs(self) -> SavedOutputs:
        """Outputs of the agent. The pending outputs are in no output file of an earlier epoch."""
        return self.saved_outputs or NO_OUTPUTS

    @property
    def turn(self) -> SavedTurn | None:
        """The durable turn in progress, or None. During a durable turn, the saved state is the state at the beginning of the turn."""
        return self.saved_turn or None

    @property
    def journal_part(self) -> StatePart | None:
        """First part of the turn's journal, which is stored in chunks, or None. `storage/capture/chunking.py` appends the rest of the
        journal."""
        return self.saved_journal or None

    @property
    def journal_entries(self) -> int:
        """Number of finished entries in the journal of the durable turn."""
        open_entries = 0 if self.turn is None else len(self.turn.journal)
        part = self.journal_part
        return open_entries if part is None else open_entries + _head_decoder.decode(part.head)[0]

    @property
    def chunked(self) -> list[StatePart]:
        """All parts that are stored in chunks, which are the state parts and the journal part."""
        return self.parts if self.journal_part is None else [*self.parts, self.journal_part]

    @property
    def durable_turns(self) -> int:
        """Number of durable turns that have begun in the agent's history. The last of these turns may not have ended."""
        return max(self.saved_turns or 0, 1 if self.saved_turn else 0)

    @property
    def ended_turns(self) -> int:
        """Number of durable turns that have ended."""
        return self.durable_turns - (1 if self.saved_turn else 0)

    @property
    def own_timers(self) -> list[SavedTimer]:
        """Timers that the agent has set, excluding the timer of its durable turn."""
        return [timer for timer in self.timers if not timer.name.startswith(TURN_TIMER)]

    @property
    def stash(self) -> list[StashedMessage]:
        """Received messages that wait for their turns, in order."""
        return self.saved_stash or []

    @property
    def approvals(self) -> SavedApprovals | None:
        """Answers to approvals and decisions that the agent remembers, or None if there are none."""
        return self.saved_approvals or None

    @property
    def asked(self) -> list[AskedQuestion]:
        """Requests of the agent, if its fleet runs on recorded answers."""
        return self.saved_asked or []

    @property
    def effects(self) -> SavedEffects | None:
        """External effects that the agent remembers, or None if there are none."""
        return self.saved_effects or None

    @property
    def effect_group(self) -> dict[int, OpenEffect]:
        """Open effects of the group for which the turn waits, by their places in the journal."""
        return dict(self.saved_group or ())

    @property
    def open_effects(self) -> list[OpenEffect]:
        """Effects for whose outcomes the turn waits."""
        single = self.effects.open if self.effects is not None else None
        return list(self.effect_group.values()) if single is None else [single]

    @property
    def state_bytes(self) -> int:
        """Total size of the state in bytes, including its parts."""
        return len(self.state) + sum([part.size_bytes for part in self.parts])

    def digests(self) -> dict[bytes, None]:
        """Return the digests of all chunks of the state and the journal, in order and without duplicates. The result is a dict used as an
        ordered set, with None as every value."""
        return {chunk.digest: None for part in self.chunked for chunk in part.chunks()}


_envelope_decoder = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_decoder = msgspec.msgpack.Decoder(AgentCheckpoint)
_head_decoder = msgspec.msgpack.Decoder(tuple[int])


def encode_checkpoint(checkpoint: AgentCheckpoint) -> bytes:
    """Encode a checkpoint as a blob. Equal checkpoints have equal encodings.

    Raises:
        EncodingError: If MessagePack cannot encode a field's value, such as an integer above 64 bits.
    """
    try:
        return canonical.encode((CHECKPOINT_VERSION, checkpoint))
    except (OverflowError, TypeError, ValueError) as error:
        raise EncodingError(f"the checkpoint of agent {checkpoint.agent!r} cannot be encoded: {error}") from error


def size_of(messages: Iterable[list[InTransitMessage]]) -> tuple[int, int]:
    """Return the number of messages in these channels, and the total size of their payloads and piggybacked data in bytes."""
    count = size_bytes = 0
    for channel in messages:
        count += len(channel)
        size_bytes += sum([len(message.payload) + len(message.piggyback) for message in channel])
    return count, size_bytes


def decode_checkpoint(blob: Buffer) -> AgentCheckpoint:
    """Decode a checkpoint from a blob whose digest the caller has checked.

    Raises:
        StoreError: If this release of Snapline does not support the checkpoint's version.
        DamagedDataError: If the blob does not contain a checkpoint.
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
