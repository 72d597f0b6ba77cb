"""Contents of one agent's checkpoint, and its bytes.

A checkpoint is one blob of a pack: the MessagePack array `[version, fields]`. `docs/snapshot-format.md` lists the fields
for a reader without this code. `storage/` treats the state itself as opaque bytes: `agent_runtime` encodes it.

All channel numbers count from 1; 0 means that nothing was sent, or consumed, on that channel.
"""

from collections.abc import Iterable

import msgspec

from snapline.errors import DamagedDataError, EncodingError, StoreError
from snapline.storage.packs.saved_effects import SavedEffects
from snapline.storage.store.record import DIGEST_BYTES, Buffer

CHECKPOINT_VERSION = 2
"""Version of the fields below. Version 1, which had no parts, is read as well; others are refused."""

_READABLE = (1, CHECKPOINT_VERSION)


class InTransitMessage(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A message sent inside the cut and not yet consumed inside it."""

    number: int
    stamp: int
    payload: bytes
    piggyback: bytes = b""


class ParkedMessage(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A message that a finished turn sent and that had no channel credit yet: it has no number."""

    receiver: str
    payload: bytes


class SavedTimer(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A timer that had not fired; `remaining_ns` counts from the record."""

    name: str
    remaining_ns: int
    payload: bytes


class BootClock(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Reading of a machine's clock that counts on during sleep or while our processes are down, and cannot be set; of one start of the machine,
    `boot`."""

    boot: str
    now_ns: int

    def since(self, earlier: "BootClock") -> int:
        """Return the nanoseconds since another reading; 0 if unknown: of another machine, or before this one was started."""
        return max(0, self.now_ns - earlier.now_ns) if self.boot == earlier.boot else 0


class DeadLetterRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A message whose handler failed `attempts` times; `time_ns` is wall-clock time since 1970; `key` is that of an input."""

    sender: str
    payload: bytes
    error: str
    attempts: int
    time_ns: int
    key: str = ""


class DeadLetterNumbers(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Numbers of an agent's dead letters: those that are kept, in their order, and the newest there ever was."""

    last: int
    numbers: list[int]


def counted_letters(count: int, kept: int) -> DeadLetterNumbers:
    """Return the numbers as long as none was taken out. `count`: how many there ever were; `kept`: the newest ones."""
    last = max(count, kept)
    return DeadLetterNumbers(last, list(range(last - kept + 1, last + 1)))


class SpawnRequest(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A spawn that a finished turn requested and that the coordinator had not reserved yet."""

    agent: str
    kind: str
    payload: bytes


DROPPED = b"\x00dropped"
"""Stands in place of an answer: the input was dropped when the fleet went back on purpose. No message has an empty type name."""


class KnownKey(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """An input that the agent has consumed: the key that its client gave it, for the case that it comes again.

    Attributes:
        number: of the input.
        digest: of its payload, 16 bytes.
        admitted_ns: wall-clock time since 1970 of its host.
        is_dead_lettered: it became a dead letter.
        reply: what its turn answered; empty: nothing, or it is forgotten. `DROPPED`: it had no turn, and counts as a dead letter.
        is_open: it is consumed, and its turn has not ended yet: a durable one, or one that waits in the stash.
        retried_by: the key of the operator's word that had its dead letter tried again: what that is answered is the answer to both.
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
        """Return whether it never had a turn: the fleet went back, and inputs were dropped."""
        return self.reply == DROPPED


class SavedInputs(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Inputs from outside that an agent knows: the number of the last one it consumed, and the latest keys, oldest first."""

    number: int = 0
    keys: list[KnownKey] = []

    @property
    def settled(self) -> int:
        """The last input up to which all turns have ended."""
        return min([known.number - 1 for known in self.keys if known.is_open], default=self.number)


NO_INPUTS = SavedInputs()


class SavedOutput(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """An output of an agent that its host does not know to be released.

    Attributes:
        number: of the agent's outputs, from 1, over all its owners and lives, along its history.
        payload: as `encode_message` gives it.
        emitted_ns: wall-clock time since 1970, for people only.
    """

    number: int
    topic: str
    payload: bytes
    emitted_ns: int


class SavedOutputs(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """An agent's outputs: the number of the last one, and the pending ones: ascending, without a gap, up to that number."""

    number: int = 0
    pending: list[SavedOutput] = []


NO_OUTPUTS = SavedOutputs()


TURN_TIMER = "\0waited"
"""Names the timer of a durable turn that waits: no agent's own has such a name."""


class JournalEntry(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One entry of a durable turn: a request of its handler, and the outcome.

    Attributes:
        kind: "step", "effect", "call", "sleep", "receive" or "now".
        name: of the step, or effect; the agent that is called; the type that is to be received.
        digest: of the arguments, 8 bytes; empty: there are none.
        outcome: "done", "failed", or "late", when its time was over; "" as long as the turn waits for it. Of effects also "adopted": an
            earlier turn has done it; and "refused": with other arguments.
        result: the value, encoded; of "receive" the message; of a failed step its error.
        sender: of a received message; of an effect that was called its key and generation.
    """

    kind: str
    name: str
    digest: bytes = b""
    outcome: str = ""
    result: bytes = b""
    sender: str = ""


class SavedTurn(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A durable turn that has begun and not ended. The state saved with it is the one that it began with.

    Attributes:
        what, sender, payload, key: of its cause; `key` of an input.
        seed: of its random numbers, 16 bytes.
        journal: finished entries; in a file those that are in no chunk yet (`AgentCheckpoint.journal_part`).
        waits: the entry that it waits for; None: the last one is finished, and the turn has not gone on yet.
    """

    what: str
    sender: str
    payload: bytes
    seed: bytes
    key: str = ""
    journal: list[JournalEntry] = []
    waits: JournalEntry | None = None


class StashedMessage(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A message that counts as received and has not had its turn: a durable turn has taken a later one first.

    Attributes:
        key: of an input.
    """

    sender: str
    payload: bytes
    key: str = ""


class ChunkReference(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A chunk of a state's part: BLAKE3 of its plain bytes, and how many they are."""

    digest: bytes
    size_bytes: int


class StatePart(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A part of a state outside the state's own bytes: an array, a history, a blob.

    Attributes:
        kind: `PART_…` of `storage/capture/image.py`.
        head: what the kind needs to make it an object again.
        size_bytes: of all chunks together.
        chunk_bytes: size of every chunk but the last; 0: see `sizes`.
        sizes: of each chunk, where `chunk_bytes` is 0.
        digests: of the chunks in order, 32 bytes each, one after the other.
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
        """Return what is impossible about it; empty if nothing is. Asked before anything is allocated."""
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
    """One agent inside one cut: state, channel numbers, channel state, outbox, timers, dead letters.

    Or, in a checkpoint pack, one that an agent took on its own: then `epoch` is 0 and `in_transit` empty, since it is in no
    cut yet, and `sender_log` holds what a later cut may need. `basis`, `sender_log`, `round`, `turns` and `inputs` are missing in
    files of earlier releases: they read as their defaults. `outputs`, `turn`, `journal`, `stash` and `effects` are missing where there are none,
    `dead_letter_numbers` where no dead letter was ever taken out, `durable_turns` where none has begun, `clock` where no timer is set.

    Attributes:
        agent: its id.
        kind: class of the agent, `"module:Class"`.
        incarnation: the incarnation that recorded it.
        number: how many checkpoints this agent had taken before, over all incarnations.
        epoch: the epoch this record serves; 0: none yet.
        basis: why it was taken: "coordinated" (for an epoch), "initial", "basic", "forced" or "tentative".
        round: the epoch of the koo-toueg round that a tentative one belongs to.
        turns: finished since the checkpoint before.
        parts: of the state, in the order in which it names them.
        is_unborn: the message that creates the agent is in transit in this cut: there is no state yet.
        is_started: `on_start` has run.
        is_leaving: `ctx.stop()` was called.
        state: encoded by `agent_runtime`; opaque here.
        state_type: declared type of the state, for a readable difference.
        state_version: schema version of the state.
        state_fields: field → declared type.
        sent: receiver → last number that left before the record.
        received: sender → last number consumed before the record.
        protocol_state: frozen image of the checkpointing protocol's core.
        in_transit: sender → the channel state, in order of numbers.
        sender_log: receiver → all that was sent since the checkpoint before, in order of numbers.
        outbox: sent by finished turns, waiting for channel credit, in order.
        dead_letters: the latest ones; `dead_letter_count` counts all there ever were, less those that were handled after all.
        saved_numbers: `dead_letter_numbers`, under that name in the file.
        recorded_ns: wall-clock time since 1970, for pictures only: nothing is decided from it.
        inputs: consumed from outside; those beyond its number come again from the host log.
        saved_outputs, saved_turn, saved_stash, saved_turns, saved_effects: `outputs`, `turn`, `stash`, `durable_turns` and `effects`, under those
            names in the file.
        saved_clock: when it was recorded, by the machine's own clock: what has passed since counts for its timers.
        saved_journal: `journal_part`, under the name `journal` in the file.
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
        """Numbers of its dead letters. Until one is taken out they are counted."""
        return self.saved_numbers or counted_letters(self.dead_letter_count, len(self.dead_letters))

    @property
    def outputs(self) -> SavedOutputs:
        """Outputs that it has emitted; its pending outputs are in no output file of an epoch before this one's."""
        return self.saved_outputs or NO_OUTPUTS

    @property
    def turn(self) -> SavedTurn | None:
        """A durable turn that has not ended; the state is the one that it began with."""
        return self.saved_turn or None

    @property
    def journal_part(self) -> StatePart | None:
        """The beginning of its journal, in chunks; `storage/capture/sealed_journal.py` puts both together."""
        return self.saved_journal or None

    @property
    def journal_entries(self) -> int:
        """Number of finished entries of the turn."""
        open_entries = 0 if self.turn is None else len(self.turn.journal)
        part = self.journal_part
        return open_entries if part is None else open_entries + _head_decoder.decode(part.head)[0]

    @property
    def chunked(self) -> list[StatePart]:
        """All that is in chunks: the parts of the state, and the journal's."""
        return self.parts if self.journal_part is None else [*self.parts, self.journal_part]

    @property
    def durable_turns(self) -> int:
        """Number of durable turns begun in the agent's history; the last one may not have ended."""
        return max(self.saved_turns or 0, 1 if self.saved_turn else 0)

    @property
    def ended_turns(self) -> int:
        """Number of them that have ended."""
        return self.durable_turns - (1 if self.saved_turn else 0)

    @property
    def own_timers(self) -> list[SavedTimer]:
        """Timers that the agent has set; all of `timers` but the one of its durable turn."""
        return [timer for timer in self.timers if timer.name != TURN_TIMER]

    @property
    def stash(self) -> list[StashedMessage]:
        """Received, waiting for their turns, in order."""
        return self.saved_stash or []

    @property
    def effects(self) -> SavedEffects | None:
        """External effects that it knows of."""
        return self.saved_effects or None

    @property
    def state_bytes(self) -> int:
        """Size of the state: its own bytes and its parts."""
        return len(self.state) + sum([part.size_bytes for part in self.parts])

    def digests(self) -> dict[bytes, None]:
        """Return the digests of the chunks that state and journal consist of, each once, in order."""
        return {chunk.digest: None for part in self.chunked for chunk in part.chunks()}


_encoder = msgspec.msgpack.Encoder(order="sorted")
_envelope_decoder = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_decoder = msgspec.msgpack.Decoder(AgentCheckpoint)
_head_decoder = msgspec.msgpack.Decoder(tuple[int])


def encode_checkpoint(checkpoint: AgentCheckpoint) -> bytes:
    """Return the blob for `checkpoint`: the same bytes for the same values.

    Raises:
        EncodingError: a field holds a value that MessagePack cannot, such as an integer above 64 bits.
    """
    try:
        return _encoder.encode((CHECKPOINT_VERSION, checkpoint))
    except (OverflowError, TypeError, ValueError) as error:
        raise EncodingError(f"the checkpoint of agent {checkpoint.agent!r} cannot be encoded: {error}") from error


def size_of(messages: Iterable[list[InTransitMessage]]) -> tuple[int, int]:
    """Return how many messages these channels hold, and the bytes of their payloads and piggybacks."""
    count = size_bytes = 0
    for channel in messages:
        count += len(channel)
        size_bytes += sum([len(message.payload) + len(message.piggyback) for message in channel])
    return count, size_bytes


def decode_checkpoint(blob: Buffer) -> AgentCheckpoint:
    """Return the checkpoint in `blob`, whose digest the caller has checked.

    Raises:
        StoreError: it has a version this release does not read.
        DamagedDataError: it is no checkpoint.
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
