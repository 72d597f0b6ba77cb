"""Names and file format of released outputs.

Every file is a record (`storage/disk/record.py`) of kind `OUTP`. A small release is one file, and a large release has several parts. Part 0
lists the number of outputs of each part. The names of all other parts contain the random id of their release, which part 0 also contains.
So parts of interrupted release attempts are never read, and no attempt can complete another attempt's release. Every part contains its
path. A part that is found at any other path counts as damaged.

The epoch determines the outputs and their order. So outputs and cursors are the same in every attempt to release an epoch. Only the
division into parts may differ between attempts.

In an encrypted store, the outputs are encrypted under a separate key, which is derived from the id of the release. The encryption also
binds the outputs to all other fields of the part. Epoch, root, lengths and counts are not encrypted.

The names of output files, and of the consumers' position files:

    outputs/<epoch>.0                   first part of an epoch's release, which lists the counts of all parts
    outputs/<epoch>.<part>.<release>    part 1, 2 … of the release whose random id part 0 contains
    outputs/consumers/<name>.<number>   position of a named consumer; the file with the highest number is valid

A consumer's name may contain dots, so the last dot ends the name.
"""

import re
from collections.abc import Sequence

import msgspec

from snapline.errors import UsageError
from snapline.ids import check_id
from snapline.storage.disk import store_files
from snapline.storage.disk.layout import EPOCH_MAX, OUTPUTS, check_root
from snapline.storage.disk.record import Guard, canonical, check_place, damaged, open_data, seal, unseal

CONSUMERS = f"{OUTPUTS}/consumers"

_NUMBER = r"[1-9][0-9]{0,18}"
_COUNT = r"0|[1-9][0-9]{0,18}"
_PART = re.compile(rf"{OUTPUTS}/({_NUMBER})\.(?:0|([1-9][0-9]{{0,8}})\.([0-9a-f]{{32}}))")
_CONSUMER = re.compile(rf"{CONSUMERS}/([A-Za-z0-9_.-]{{1,128}})\.({_NUMBER})")
_CURSOR = re.compile(rf"({_NUMBER})\.({_COUNT})")


class Cursor(msgspec.Struct, frozen=True, order=True, gc=False):
    """Cursor of a reader that has read all releases before `epoch` and the first `taken` outputs of that epoch's release."""

    epoch: int = 0
    taken: int = 0

    def __str__(self) -> str:
        return f"{self.epoch}.{self.taken}" if self.epoch else ""


START = Cursor()
"""Cursor before all outputs, whose text form is empty."""


class PartName(msgspec.Struct, frozen=True, gc=False):
    """Name of a part, parsed from its path. `release` is empty for part 0."""

    epoch: int
    part: int
    release: str

    @property
    def path(self) -> str:
        """Path of the part's file."""
        return f"{OUTPUTS}/{self.epoch}.{self.part}" + (f".{self.release}" if self.part else "")


def first_path(epoch: int) -> str:
    """Return the path of part 0 of an epoch's release. Raise UsageError if the epoch is invalid."""
    if not 1 <= epoch <= EPOCH_MAX:
        raise UsageError(f"{epoch} is no epoch that outputs are released with: they count from 1")
    return PartName(epoch, 0, "").path


def parse_part_path(path: str) -> PartName | None:
    """Parse the path of a part. Return None if the path is invalid."""
    match = _PART.fullmatch(path)
    if match is None or int(match[1]) > EPOCH_MAX:
        return None
    return PartName(int(match[1]), int(match[2] or 0), match[3] or "")


def parse_cursor(text: str) -> Cursor:
    """Parse a cursor. Raise UsageError if `text` is invalid."""
    if not text:
        return START
    match = _CURSOR.fullmatch(text)
    if match is None or int(match[1]) > EPOCH_MAX or int(match[2]) > EPOCH_MAX:
        raise UsageError(f"{text!r} is no cursor: give one that came with an output, or '' for the beginning")
    return Cursor(int(match[1]), int(match[2]))


def consumer_path(name: str, number: int) -> str:
    """Return the path of a consumer's position with this number. Raise UsageError if the name is invalid."""
    return f"{CONSUMERS}/{check_id(name, 'consumer')}.{number}"


def parse_consumer_path(path: str) -> tuple[str, int] | None:
    """Parse the path of a position into the consumer's name and the position's number. Return None if the path is invalid."""
    match = _CONSUMER.fullmatch(path)
    return None if match is None or int(match[2]) > EPOCH_MAX else (match[1], int(match[2]))


FILE_BYTES_MAX = 2**26
"""Largest part (64 MiB). The size is checked before writing and before reading."""

PART_BYTES = 2**23
"""Maximum size of a part (8 MiB), unless a single output is larger. A reader keeps one part in memory at a time."""

OUTPUT_KIND = b"OUTP"
WRITER = "outputs"
"""Writer id under which the encryption keys of releases are stored. Likewise, the keys of packs are stored under the id of a host's
start."""

_PURPOSE = "snapline outputs 1"
_OVERHEAD_BYTES = 64
"""Estimated size of one output, excluding its texts and payload."""


RESERVED_TOPIC_PREFIX = "@"
"""Prefix of the topics that the runtime itself uses. `ctx.emit` rejects topics with this prefix."""


def matches_topic(topic: str, wanted: str) -> bool:
    """Return whether outputs with the topic `topic` match a consumer's filter `wanted`. An empty filter matches all topics that agents
    use."""
    return topic == wanted if wanted else not topic.startswith(RESERVED_TOPIC_PREFIX)


class EmittedOutput(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """An output emitted by an agent.

    Attributes:
        agent: sender of the output.
        number: sequence number of the output, counted from 1 over the agent's history.
        topic: topic that the agent chose.
        payload: message payload as encoded by `encode_message`.
        emitted_ns: wall-clock time of emission in nanoseconds since 1970, for display only.
    """

    agent: str
    number: int
    topic: str
    payload: bytes
    emitted_ns: int


class OutputBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of a part's record.

    Attributes:
        after: previous epoch in this epoch's history. The release reverts all outputs that were released between the two epochs.
        counts: number of outputs in each part, beginning with part 0.
        created_ns: wall-clock time at which the release was created, in nanoseconds since 1970.
        data: MessagePack encoding of the list of `EmittedOutput`, encrypted if there is a key.
        epoch, store: epoch and store of the release.
        key: id of the key that encrypts `data`, or "" if `data` is not encrypted.
        part: number of this part.
        previous: epoch and number of outputs of the newest earlier release in the store that contains or reverts outputs, or (0, 0) if
            there is none. The earlier release may belong to another history. A reader that has not read that release has missed outputs.
        release: random id of the release, 32 hexadecimal digits.
        root: root hash of the epoch.
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
        """Return the encryption context, which binds the data to all other fields."""
        return canonical.encode((_PURPOSE, msgspec.structs.replace(self, data=b"")))

    @property
    def path(self) -> str:
        """Path of the part."""
        return PartName(self.epoch, self.part, self.release if self.part else "").path

    @property
    def end(self) -> Cursor:
        """Cursor of a reader that has read the whole release."""
        return Cursor(self.epoch, sum(self.counts))

    def part_path(self, part: int) -> str:
        """Return the path of the given part of this release."""
        return PartName(self.epoch, part, self.release if part else "").path


class Release(msgspec.Struct, frozen=True):
    """All outputs that were released with one epoch. The fields mean the same as in `OutputBody`."""

    epoch: int
    after: int
    root: str
    created_ns: int
    outputs: list[EmittedOutput]


_body_decoder = msgspec.msgpack.Decoder(OutputBody)
_outputs_decoder = msgspec.msgpack.Decoder(list[EmittedOutput])


def check_outputs(outputs: Sequence[EmittedOutput]) -> list[EmittedOutput]:
    """Sort the outputs by agent and number. Raise UsageError if an output is invalid or duplicate."""
    ordered = sorted(outputs, key=_place)
    reason = _contradiction(ordered)
    if reason:
        raise UsageError(f"outputs cannot be released: {reason}")
    return ordered


def split_into_parts(outputs: Sequence[EmittedOutput]) -> list[list[EmittedOutput]]:
    """Split the outputs into one or more parts of about `PART_BYTES` each."""
    parts: list[list[EmittedOutput]] = [[]]
    size_bytes = 0
    for output in outputs:
        length = len(output.payload) + len(output.topic) + len(output.agent) + _OVERHEAD_BYTES
        if parts[-1] and size_bytes + length > PART_BYTES:
            parts.append([])
            size_bytes = 0
        parts[-1].append(output)
        size_bytes += length
    return parts


def encode_parts(head: OutputBody, parts: Sequence[Sequence[EmittedOutput]], guard: Guard | None) -> list[bytes]:
    """Encode the parts of a release as files. The function returns only after the parts' encryption key is durable.

    Raises:
        UsageError: If a part is too large.
        StoreError: If the encryption key cannot be written.
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
    """Decode the part at `path`, and make every check that needs no key. If `store_id` is None, the store's id is not checked.

    Raises:
        DamagedDataError: If the file is damaged, or belongs to another path or store.
        StoreError: If the file was written by a later version of Snapline.
    """
    raw = unseal(OUTPUT_KIND, data, path=path, epoch=None)
    with store_files.decoding(path):
        body = _body_decoder.decode(raw)
    check_place(body, path, store_id)
    reason = _contradiction_in_body(body)
    if reason:
        raise damaged(path, reason)
    return body


def open_outputs(body: OutputBody, guard: Guard | None) -> list[EmittedOutput]:
    """Decrypt and decode the outputs in a part that `decode_part` has checked.

    Raises:
        DamagedDataError: If the data cannot be decrypted, or its contents are invalid.
        StoreError: If the part is unencrypted although there is a key, or encrypted although there is none.
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
    with store_files.decoding(body.path):
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
    """Return why the sorted outputs are invalid, or "" if they are valid. Outputs are checked before writing and after reading."""
    for index, output in enumerate(outputs):
        if not 1 <= output.number <= EPOCH_MAX:
            return f"{output.number} is no number of an output: they count from 1"
        if index and _place(outputs[index - 1]) >= _place(output):
            return f"output {output.number} of agent {output.agent!r} is out of order, or comes twice"
        try:
            check_id(output.agent)
        except UsageError as error:
            return str(error)
    return ""


def _contradiction_in_body(body: OutputBody) -> str:
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
