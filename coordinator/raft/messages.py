"""Wire format of Raft messages, and the conversion between pysyncobj's dictionaries and protobuf.

pysyncobj distinguishes messages by their keys, and treats an absent key differently from None. For example, an `append_entries` message
with the key `prevLogIdx` contains entries, and one with `serialized` contains a piece of a dump; either value may be None. The codec
therefore knows the *shape*, which is the set of keys, of each message that the library sends. The codec preserves exactly which keys are
present. The codec refuses messages with any other shape, both when encoding and when decoding. The encoding uses no pickle. `transmission`
frames cannot be encoded, because the library would unpickle them.

A *piece* is one message, encoded as a batch that contains only that message. Because protobuf merges concatenated messages, a batch is
simply the concatenation of its pieces. Each message is encoded only once, on the thread that creates it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from snapline.coordinator.raft.pysyncobj_adapter import ENTRY_BYTES_MAX
from snapline.errors import ProtocolError, UsageError
from snapline.protos.v1 import raft_pb2 as pb

Message = dict[str, Any]
"""A message as pysyncobj creates and reads it. The value of `"type"` is the kind of message."""

VERSION = 1
"""Version of this encoding. Replicas with different versions refuse each other."""

COMMAND_BYTES_MAX = ENTRY_BYTES_MAX + 16
"""Largest size, in bytes, of an entry including the prefixes of all layers."""

NUMBER_MAX = 2**62
"""Largest accepted term or index. No cluster reaches it, and SQLite can store it."""

ERRORS = range(1, 8)
"""The library's error codes for a forwarded command. Code 0, which means success, is excluded, because it would acknowledge an entry that
is in no log."""

MESSAGES_MAX = 1024
"""Largest number of messages in one batch. A malicious batch could contain millions of messages, whose dictionaries take a gigabyte."""

_VOTES = {
    "request_vote": (pb.RequestVote, ("term", "last_log_index", "last_log_term")),
    "response_vote": (pb.ResponseVote, ("term",)),
    "timeout_now": (pb.TimeoutNow, ("term",)),
}
_HEAD = {"type", "term", "commit_index"}
_ENTRIES_KEYS = _HEAD | {"prevLogIdx", "prevLogTerm", "entries"}
_DUMP_KEYS = _HEAD | {"serialized"}
_MAY_BE_NONE = {"prevLogIdx", "prevLogTerm", "serialized"}
_NEXT_KEYS = {"type", "next_node_idx", "reset", "success"}
_RESPONSE_KEYS = {"type", "request_id"}


class Hello(NamedTuple):
    """First message of a Raft stream, which identifies the sender."""

    cluster: str
    node: str
    boot: int
    stream: int
    log: str = ""
    address: str = ""

    @property
    def session(self) -> tuple[int, int]:
        """Return a pair that increases with each stream of a replica, even across restarts, as long as the replica keeps its log."""
        return self.boot, self.stream


# ---- encoding -------------------------------------------------------------------------------------------------------


def encode_hello(hello: Hello) -> bytes:
    """Encode the hello message as the first piece of a stream."""
    made = pb.RaftHello(**hello._asdict(), version=VERSION)
    return pb.RaftBatch(hello=made).SerializeToString()


def encode_message(message: Message) -> bytes:
    """Encode `message` as a piece.

    Raises:
        UsageError: this codec does not know the message's shape; it may be a `transmission` frame.
    """
    try:
        for key, value in message.items():
            if value is None and key not in _MAY_BE_NONE:  # protobuf's constructors would treat None as absent
                raise ValueError(f"{key} is None")
        made = _message_of(message)
    except (TypeError, ValueError, KeyError) as error:
        raise UsageError(f"a Raft message that cannot be sent: {_shape(message)} ({error})") from error
    return pb.RaftBatch(messages=[made]).SerializeToString()


def _message_of(message: Message) -> pb.RaftMessage:
    match message["type"]:
        case "append_entries":
            return pb.RaftMessage(append_entries=_append_entries(message))
        case "next_node_idx":
            _expect(message, _NEXT_KEYS, optional={"term"})
            made = pb.NextNodeIndex(
                next_node_index=message["next_node_idx"], reset=message["reset"], success=message["success"]
            )
            if "term" in message:
                made.term = message["term"]
            return pb.RaftMessage(next_node_index=made)
        case "apply_command":
            _expect(message, {"type", "command"}, optional={"request_id"})
            command = pb.ApplyCommand(command=message["command"])
            if "request_id" in message:
                command.request_id = message["request_id"]
            return pb.RaftMessage(apply_command=command)
        case "apply_command_response":
            return pb.RaftMessage(apply_command_response=_response(message))
        case kind:
            message_class, fields = _VOTES[kind]
            _expect(message, {"type", *fields})
            return pb.RaftMessage(**{kind: message_class(**{field: message[field] for field in fields})})


def _append_entries(message: Message) -> pb.AppendEntries:
    made = pb.AppendEntries(term=message["term"], commit_index=message["commit_index"])
    if message.keys() == _ENTRIES_KEYS:
        made.entries.SetInParent()
        entries = message["entries"]
        if entries:
            commands, indexes, terms = zip(*entries, strict=True)
            made.entries.command.extend(commands)
            made.entries.index.extend(indexes)
            made.entries.term.extend(terms)
        if (message["prevLogIdx"] is None) != (message["prevLogTerm"] is None):
            raise ValueError("prevLogIdx and prevLogTerm are known, or unknown, together")
        if message["prevLogIdx"] is not None:
            made.entries.prev_log_index, made.entries.prev_log_term = message["prevLogIdx"], message["prevLogTerm"]
        return made
    _expect(message, _DUMP_KEYS)
    made.dump.SetInParent()
    if message["serialized"] is not None:
        made.dump.data, made.dump.is_first, made.dump.is_last = message["serialized"]
    return made


def _response(message: Message) -> pb.ApplyCommandResponse:
    if "error" in message:
        _expect(message, _RESPONSE_KEYS | {"error"})
        return pb.ApplyCommandResponse(request_id=message["request_id"], error=message["error"])
    _expect(message, _RESPONSE_KEYS | {"log_idx", "log_term"})
    position = pb.LogPosition(index=message["log_idx"], term=message["log_term"])
    return pb.ApplyCommandResponse(request_id=message["request_id"], position=position)


def _expect(message: Message, keys: set[str], optional: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    if message.keys() - optional != keys:
        raise ValueError(f"its keys should be {sorted(keys)}")


def _shape(message: Message) -> str:
    """Describe a message for logs by its keys and small values."""
    return ", ".join(
        f"{key}={value if isinstance(value, int | str) else type(value).__name__}" for key, value in message.items()
    )


# ---- decoding -------------------------------------------------------------------------------------------------------


def decode_batch(data: bytes) -> tuple[Hello | None, list[Message]]:
    """Return the hello message in the batch, or None if there is none, and all other messages in order.

    Raises:
        ProtocolError: the data is not a batch, or a message has an unknown or contradictory shape.
    """
    try:
        batch = pb.RaftBatch.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"{len(data)} bytes are no Raft batch: {error}") from error
    if len(batch.messages) > MESSAGES_MAX:
        raise ProtocolError(f"a Raft batch of {len(batch.messages)} messages: at most {MESSAGES_MAX}")
    hello = _hello_from(batch.hello) if batch.HasField("hello") else None
    return hello, [_decode(message) for message in batch.messages]


def _hello_from(hello: pb.RaftHello) -> Hello:
    if hello.version != VERSION:
        raise ProtocolError(
            f"replica {hello.node} speaks version {hello.version} of the Raft messages, this one {VERSION}: "
            "run the same release everywhere"
        )
    return Hello(hello.cluster, hello.node, hello.boot, hello.stream, hello.log, hello.address)


def _decode(message: pb.RaftMessage) -> Message:
    match message.WhichOneof("kind"):
        case "append_entries":
            return _append_entries_from(message.append_entries)
        case "next_node_index":
            found = message.next_node_index
            _check_numbers("next_node_idx", found.next_node_index, found.term)
            if not found.next_node_index:
                raise ProtocolError("next_node_idx of entry 0: entries are numbered from 1")
            made = {
                "type": "next_node_idx",
                "next_node_idx": found.next_node_index,
                "reset": found.reset,
                "success": found.success,
            }
            return made | {"term": found.term} if found.HasField("term") else made
        case "apply_command":
            return _command_from(message.apply_command)
        case "apply_command_response":
            return _response_from(message.apply_command_response)
        case "request_vote" | "response_vote" | "timeout_now" as kind:
            vote = getattr(message, kind)
            numbers = {field: getattr(vote, field) for field in _VOTES[kind][1]}
            _check_numbers(kind, *numbers.values())
            if numbers.get("last_log_term", 0) > numbers["term"]:
                raise ProtocolError(
                    f"request_vote in term {numbers['term']} with a log of term {numbers['last_log_term']}"
                )
            return {"type": kind, **numbers}
        case _:
            raise ProtocolError("a Raft message of no known kind: run the same release everywhere")


def _append_entries_from(found: pb.AppendEntries) -> Message:
    _check_numbers("append_entries", found.term, found.commit_index)
    made: Message = {"type": "append_entries", "term": found.term, "commit_index": found.commit_index}
    match found.WhichOneof("kind"):
        case "entries":
            entries = found.entries
            has_previous = entries.HasField("prev_log_index")
            if has_previous != entries.HasField("prev_log_term"):
                raise ProtocolError("append_entries with half of the previous entry's position")
            made["prevLogIdx"] = entries.prev_log_index if has_previous else None
            made["prevLogTerm"] = entries.prev_log_term if has_previous else None
            previous = (entries.prev_log_index, entries.prev_log_term) if has_previous else None
            made["entries"] = _entries_from(entries.command, entries.index, entries.term)
            _check_entries(made["entries"], previous, found.term)
        case "dump":
            dump = found.dump
            made["serialized"] = (dump.data, dump.is_first, dump.is_last) if dump.HasField("data") else None
        case _:
            raise ProtocolError("append_entries with neither entries nor a dump")
    return made


def _entries_from(
    commands: Sequence[bytes], indexes: Sequence[int], terms: Sequence[int]
) -> list[tuple[bytes, int, int]]:
    if not len(commands) == len(indexes) == len(terms):
        raise ProtocolError(f"log entries in columns of {len(commands)}, {len(indexes)} and {len(terms)}")
    for command in commands:
        _check_command(command)
    return list(zip(commands, indexes, terms, strict=True))


def _check_entries(entries: Sequence[tuple[bytes, int, int]], previous: tuple[int, int] | None, term: int) -> None:
    """Check that the entries follow each other and `previous` without gaps, that their terms never decrease, and that no term exceeds the
    leader's.

    Without this check, a peer could end this process, because the journal ends the process if it receives other entries.
    """
    if previous is None:
        if entries:
            raise ProtocolError(f"{len(entries)} log entries that follow nothing")
        return
    last_index, last_term = previous
    _check_numbers("append_entries", last_index, last_term)
    for _, index, entry_term in entries:
        if index != last_index + 1 or not last_term <= entry_term:
            raise ProtocolError(f"entry {index} of term {entry_term} cannot follow {last_index} of term {last_term}")
        last_index, last_term = index, entry_term
    if last_term > term:
        raise ProtocolError(f"entry {last_index} of term {last_term} from a leader of term {term}")


def _check_numbers(kind: str, *numbers: int) -> None:
    if max(numbers) > NUMBER_MAX:
        raise ProtocolError(f"{kind} with the number {max(numbers)}: terms and indexes end at {NUMBER_MAX}")


def _command_from(found: pb.ApplyCommand) -> Message:
    _check_command(found.command)
    made: Message = {"type": "apply_command", "command": found.command}
    return made | {"request_id": found.request_id} if found.HasField("request_id") else made


def _response_from(found: pb.ApplyCommandResponse) -> Message:
    made: Message = {"type": "apply_command_response", "request_id": found.request_id}
    match found.WhichOneof("outcome"):
        case "position":
            _check_numbers("apply_command_response", found.position.index, found.position.term)
            return made | {"log_idx": found.position.index, "log_term": found.position.term}
        case "error":
            if found.error not in ERRORS:
                raise ProtocolError(f"apply_command_response with the error {found.error}, which there is not")
            return made | {"error": found.error}
        case _:
            raise ProtocolError("apply_command_response without an outcome")


def _check_command(command: bytes) -> None:
    if not 0 < len(command) <= COMMAND_BYTES_MAX:
        raise ProtocolError(f"a command of {len(command)} bytes: they have 1 to {COMMAND_BYTES_MAX}")
