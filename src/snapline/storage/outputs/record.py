"""The output files: outputs of agents, as released with an epoch.

All are records (`storage/store/record.py`) of kind `OUTP`. A release is one file, or several parts where there is much: part 0 says how many
outputs are in which part, the others bear the random id of their release, which part 0 names. So tries that died leave parts that are never read,
and no try can complete another's. Every part names its place; elsewhere it is damage.

What follows from the epoch is the same in every try: the outputs, in their order, and hence every reader's cursor. How they
are divided into parts may differ.

Where the store is encrypted, the outputs are sealed under a key of their own, derived from the id of the release as a pack's from its id,
and bound to everything else in the part; epoch, root, lengths and counts remain to be seen.
"""

from collections.abc import Sequence

import msgspec

from snapline.errors import UsageError
from snapline.ids import check_id
from snapline.storage.outputs.names import Cursor, PartName, first_path
from snapline.storage.store import files
from snapline.storage.store.damage import check_place, damaged
from snapline.storage.store.guard import Guard
from snapline.storage.store.guarded_data import open_data
from snapline.storage.store.layout import EPOCH_MAX, check_root
from snapline.storage.store.record import canonical, seal, unseal

FILE_BYTES_MAX = 2**26
"""64 MiB, one part. Checked before writing, and before anything is read."""

PART_BYTES = 2**23
"""8 MiB: where a part ends, unless one output alone is longer. A reader holds one part at a time."""

OUTPUT_KIND = b"OUTP"
WRITER = "outputs"
"""Names the key of those who release, as a host's run names that of its packs."""

_PURPOSE = "snapline outputs 1"
_OVERHEAD_BYTES = 64
"""Estimated size of one output without its texts and payload."""


RESERVED = "@"
"""Prefix of the runtime's own topics: no agent can emit under them by `ctx.emit`."""


def is_wanted(topic: str, wanted: str) -> bool:
    """Return whether a consumer of `wanted` gets this topic. "" is all that agents have chosen themselves."""
    return topic == wanted if wanted else not topic.startswith(RESERVED)


class EmittedOutput(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """An output of an agent.

    Attributes:
        agent: its sender.
        number: counts the outputs of this agent along its history, from 1.
        topic: chosen by the agent.
        payload: the message, as `encode_message` gives it.
        emitted_ns: wall-clock time since 1970, for people.
    """

    agent: str
    number: int
    topic: str
    payload: bytes
    emitted_ns: int


class OutputBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of a part's record.

    Attributes:
        after: the epoch before this one in its history; what was released between them is reverted.
        counts: how many outputs each part has, part 0 first.
        created_ns: wall-clock time since 1970 when it was written.
        data: MessagePack of the list of `EmittedOutput`; encrypted if there is a key.
        epoch, store: where it belongs.
        key: id of the key that `data` is encrypted under; empty: it is not.
        part: which one this is.
        previous: epoch and number of outputs of the newest release before this one in the store, of whatever history, that holds outputs or
            takes some back; (0, 0) if there was none. So a reader sees that something in between was deleted.
        release: 32 random hexadecimal digits.
        root: of the epoch.
    """

    after: int
    counts: list[int]
    created_ns: int
    data: bytes
    epoch: int
    key: str
    part: int
    previous: tuple[int, int]
    release: str
    root: str
    store: str

    def context(self) -> bytes:
        """Return what encryption binds the data to: all else."""
        return canonical.encode((_PURPOSE, msgspec.structs.replace(self, data=b"")))

    @property
    def path(self) -> str:
        """Path of the part."""
        return PartName(self.epoch, self.part, self.release if self.part else "").path

    @property
    def end(self) -> Cursor:
        """Cursor of a reader that has taken all of this release."""
        return Cursor(self.epoch, sum(self.counts))

    def part_path(self, part: int) -> str:
        """Return where another part of this release lies."""
        return PartName(self.epoch, part, self.release if part else "").path


class Release(msgspec.Struct, frozen=True):
    """All that was released with one epoch; the fields are those of `OutputBody`."""

    epoch: int
    after: int
    root: str
    created_ns: int
    outputs: list[EmittedOutput]


_body_decoder = msgspec.msgpack.Decoder(OutputBody)
_outputs_decoder = msgspec.msgpack.Decoder(list[EmittedOutput])


def check_outputs(outputs: Sequence[EmittedOutput]) -> list[EmittedOutput]:
    """Return the outputs in their order, by agent and number; UsageError if one cannot be, or comes twice."""
    ordered = sorted(outputs, key=_place)
    reason = _contradiction(ordered)
    if reason:
        raise UsageError(f"outputs cannot be released: {reason}")
    return ordered


def divide(outputs: Sequence[EmittedOutput]) -> list[list[EmittedOutput]]:
    """Return the outputs in parts, at least one: each as long as one read should be."""
    parts: list[list[EmittedOutput]] = [[]]
    size_bytes = 0
    for each in outputs:
        length = len(each.payload) + len(each.topic) + len(each.agent) + _OVERHEAD_BYTES
        if parts[-1] and size_bytes + length > PART_BYTES:
            parts.append([])
            size_bytes = 0
        parts[-1].append(each)
        size_bytes += length
    return parts


def encode_parts(head: OutputBody, parts: Sequence[Sequence[EmittedOutput]], guard: Guard | None) -> list[bytes]:
    """Return the parts' files. The key that they need is durable when this returns.

    Raises:
        UsageError: one is too large.
        StoreError: the key could not be written.
    """
    cipher = guard.begin_pack(WRITER, head.release) if guard is not None and guard.encrypts else None
    encoded = []
    for part, outputs in enumerate(parts):
        data, key = canonical.encode(outputs), cipher.key_id if cipher is not None else ""
        body = msgspec.structs.replace(head, part=part, data=data, key=key)
        if cipher is not None:
            body = msgspec.structs.replace(body, data=cipher.seal(part, body.context(), data))
        encoded.append(seal(OUTPUT_KIND, canonical.encode(body)))
        if len(encoded[-1]) > FILE_BYTES_MAX:
            raise UsageError(f"{body.path} would have {len(encoded[-1])} bytes, at most {FILE_BYTES_MAX} are possible")
    return encoded


def decode_part(data: bytes, *, path: str, store_id: str | None) -> OutputBody:
    """Return the body of the file at `path`, after every check that needs no key; `store_id` None skips that comparison.

    Raises:
        DamagedDataError: damaged, or of another place or store.
        StoreError: of a later version.
    """
    raw = unseal(OUTPUT_KIND, data, path=path, epoch=None)
    with files.decoding(path):
        body = _body_decoder.decode(raw)
    check_place(body, path, store_id)
    reason = _impossible(body)
    if reason:
        raise damaged(path, reason)
    return body


def open_outputs(body: OutputBody, guard: Guard | None) -> list[EmittedOutput]:
    """Return the outputs in a part that was checked.

    Raises:
        DamagedDataError: it does not open under its key, or what is inside cannot be.
        StoreError: it is not encrypted, and there is a key; or the other way round.
    """
    data = open_data(
        body.data,
        guard,
        key=body.key,
        nonce=body.release,
        index=body.part,
        context=body.context(),
        path=body.path,
    )
    with files.decoding(body.path):
        outputs = _outputs_decoder.decode(data)
    reason = _contradiction(outputs)
    if not reason and len(outputs) != body.counts[body.part]:
        reason = f"it holds {len(outputs)} outputs, not {body.counts[body.part]}"
    if reason:
        raise damaged(body.path, reason)
    return outputs


def _place(output: EmittedOutput) -> tuple[str, int]:
    return output.agent, output.number


def _contradiction(outputs: Sequence[EmittedOutput]) -> str:
    """Return what is impossible about outputs in their order; empty if nothing is. Asked before writing and after reading."""
    for index, each in enumerate(outputs):
        if not 1 <= each.number <= EPOCH_MAX:
            return f"{each.number} is no number of an output: they count from 1"
        if index and _place(outputs[index - 1]) >= _place(each):
            return f"output {each.number} of agent {each.agent!r} is out of order, or comes twice"
        try:
            check_id(each.agent)
        except UsageError as error:
            return str(error)
    return ""


def _impossible(body: OutputBody) -> str:
    try:
        first_path(body.epoch)
        check_root(body.root)
    except UsageError as error:
        return str(error)
    if not 0 <= body.after < body.epoch or not 0 <= body.previous[0] < body.epoch or min(body.previous) < 0:
        return f"it is of epoch {body.epoch}, and names {body.after} and {body.previous[0]} as earlier ones"
    if not 0 <= body.part < len(body.counts) or min(body.counts) < 0:
        return f"it is part {body.part} of {len(body.counts)}"
    return ""
