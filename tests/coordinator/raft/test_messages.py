"""The codec keeps presence, knows every shape the library sends and no other, and never unpickles (test 8, part of 14)."""

import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.coordinator.raft import messages as codec
from snapline.coordinator.raft.messages import (
    COMMAND_BYTES_MAX,
    MESSAGES_MAX,
    NUMBER_MAX,
    Hello,
    Message,
    decode_batch,
    encode_hello,
    encode_message,
)
from snapline.errors import ProtocolError, UsageError
from snapline.protos.v1 import raft_pb2 as pb

number = st.integers(0, NUMBER_MAX)
small = st.integers(0, 3)
command = st.binary(min_size=1, max_size=40)
flag = st.booleans()


def of(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Message]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


def with_entries(
    message: Message, previous: tuple[int, int] | None, steps: list[tuple[bytes, int]], ahead: int
) -> Message:
    """As a leader makes them: one after the other, terms that never fall, none above its own."""
    if previous is None:
        return message | {"prevLogIdx": None, "prevLogTerm": None, "entries": []}
    (first, term), entries = previous, []
    for index, (command, step) in enumerate(steps, first + 1):
        term += step
        entries.append((command, index, term))
    return message | {"term": term + ahead, "prevLogIdx": first, "prevLogTerm": previous[1], "entries": entries}


head = {"term": number, "commit_index": number}
answer = of("next_node_idx", next_node_idx=st.integers(1, NUMBER_MAX), reset=flag, success=flag)
forwarded = of("apply_command", command=command)
response = of("apply_command_response", request_id=number)
SHAPES = {
    "request_vote": st.builds(
        lambda message, ahead: message | {"term": message["last_log_term"] + ahead},
        of("request_vote", term=small, last_log_index=number, last_log_term=st.integers(0, NUMBER_MAX - 3)),
        small,
    ),
    "response_vote": of("response_vote", term=number),
    "timeout_now": of("timeout_now", term=number),
    "entries": st.builds(
        with_entries,
        of("append_entries", **head),
        st.none() | st.tuples(st.integers(0, NUMBER_MAX - 9), st.integers(0, NUMBER_MAX - 99)),
        st.lists(st.tuples(command, small), max_size=5),
        small,
    ),
    "dump": of("append_entries", **head, serialized=st.none() | st.tuples(st.binary(max_size=40), flag, flag)),
    "answer": answer,
    "answer with term": st.builds(lambda m, term: m | {"term": term}, answer, number),
    "command": forwarded,
    "command with request": st.builds(lambda m, request: m | {"request_id": request}, forwarded, number),
    "position": st.builds(lambda m, i, t: m | {"log_idx": i, "log_term": t}, response, number, number),
    "error": st.builds(lambda m, e: m | {"error": e}, response, st.integers(1, 7)),
}
any_message = st.one_of(*SHAPES.values())


def again(message: Message) -> Message:
    hello, messages = decode_batch(encode_message(message))
    assert hello is None
    (found,) = messages
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_what_was_sent_comes_back(shape: str) -> None:
    @settings(derandomize=True, deadline=None, max_examples=60)
    @given(SHAPES[shape])
    def check(message: Message) -> None:
        found = again(message)
        assert found == message
        assert found.keys() == message.keys(), "presence is meaning"
        for entry in found.get("entries", []):
            assert [type(part) for part in entry] == [bytes, int, int], "the library compares entries exactly"

    check()


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(any_message, max_size=6))
def test_pieces_one_behind_the_other_are_a_batch(sent: list[Message]) -> None:
    assert decode_batch(b"".join(map(encode_message, sent))) == (None, sent)
    hello = Hello("cluster", "c1", 3, 4, "log", "10.0.0.1:7400")
    assert decode_batch(b"".join([encode_hello(hello), *map(encode_message, sent)])) == (hello, sent)


def test_no_previous_entry_is_not_entry_zero() -> None:
    head = {"type": "append_entries", "term": 1, "commit_index": 1, "entries": []}
    known, unknown = head | {"prevLogIdx": 0, "prevLogTerm": 0}, head | {"prevLogIdx": None, "prevLogTerm": None}
    assert again(known) == known != unknown == again(unknown)


def test_a_dump_that_is_not_there_is_not_an_empty_part() -> None:
    head: Message = {"type": "append_entries", "term": 1, "commit_index": 1}
    for serialized in (None, (b"", False, True), (b"", True, False)):
        assert again(head | {"serialized": serialized})["serialized"] == serialized


@pytest.mark.parametrize(
    "message",
    [
        {"type": "append_entries", "term": 1, "commit_index": 1},
        {"type": "append_entries", "term": 1, "commit_index": 1, "serialized": False},
        {"type": "append_entries", "term": 1, "commit_index": 1, "prevLogIdx": 1, "prevLogTerm": 1},
        {"type": "append_entries", "term": 1, "commit_index": 1, "prevLogIdx": 1, "prevLogTerm": None, "entries": []},
        {
            "type": "append_entries",
            "term": 1,
            "commit_index": 1,
            "prevLogIdx": 1,
            "prevLogTerm": 1,
            "transmission": "finish",
            "data": b"\x80",
        },
        {"type": "next_node_idx", "next_node_idx": -1, "reset": True, "success": False},
        {"type": "next_node_idx", "next_node_idx": None, "reset": True, "success": False},
        {"type": "next_node_idx", "next_node_idx": 1, "reset": True, "success": False, "extra": 1},
        {"type": "apply_command", "command": "text"},
        {"type": "apply_command_response", "request_id": 1, "log_idx": 1},
        {"type": "apply_command_response", "request_id": 1, "log_idx": 1, "log_term": 1, "error": 2},
        {"type": "request_vote", "term": 1},
        {"type": "request_vote", "term": None, "last_log_index": 1, "last_log_term": 1},
        {"type": "status"},
        {"term": 1},
    ],
    ids=str,
)
def test_shapes_that_are_not_known_are_not_sent(message: Message) -> None:
    with pytest.raises(UsageError):
        encode_message(message)


def entries(**fields: Any) -> pb.RaftMessage:
    return pb.RaftMessage(append_entries=pb.AppendEntries(entries=pb.LogEntries(**fields)))


@pytest.mark.parametrize(
    "message",
    [
        pb.RaftMessage(),
        pb.RaftMessage(append_entries=pb.AppendEntries(term=1)),
        pb.RaftMessage(apply_command_response=pb.ApplyCommandResponse(request_id=1)),
        pb.RaftMessage(apply_command=pb.ApplyCommand()),
        pb.RaftMessage(apply_command=pb.ApplyCommand(command=bytes(COMMAND_BYTES_MAX + 1))),
        entries(prev_log_index=1),
        entries(prev_log_term=1),
        entries(command=[b"a", b"b"], index=[1], term=[1, 1]),
        entries(command=[b""], index=[1], term=[1]),
        entries(command=[bytes(COMMAND_BYTES_MAX + 1)], index=[1], term=[1]),
    ],
    ids=lambda message: str(message)[:60],
)
def test_shapes_that_are_not_known_are_not_taken(message: pb.RaftMessage) -> None:
    with pytest.raises(ProtocolError):
        decode_batch(pb.RaftBatch(messages=[message]).SerializeToString())


def test_a_batch_is_bounded() -> None:
    piece = encode_message({"type": "timeout_now", "term": 1})
    assert len(decode_batch(piece * MESSAGES_MAX)[1]) == MESSAGES_MAX
    with pytest.raises(ProtocolError):
        decode_batch(piece * (MESSAGES_MAX + 1))


def test_another_version_is_refused() -> None:
    data = pb.RaftBatch(hello=pb.RaftHello(node="c1", version=codec.VERSION + 1)).SerializeToString()
    with pytest.raises(ProtocolError, match="version"):
        decode_batch(data)


def test_bytes_from_anywhere_raise_nothing_else() -> None:
    """Any bytes are a batch or a protocol error; nothing else is caught by the stream's reader."""
    chance = random.Random(5)
    good = b"".join(map(encode_message, EXAMPLES))
    taken = 0
    for _ in range(3000):
        spoiled = bytearray(good if chance.random() < 0.8 else chance.randbytes(chance.randrange(60)))
        for _ in range(chance.randrange(1, 4)):
            if spoiled:
                spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
        del spoiled[len(spoiled) - chance.choice([0, 0, 1, 5]) :]
        try:
            decode_batch(bytes(spoiled))
            taken += 1
        except ProtocolError:
            pass
    assert 0 < taken < 3000


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.trace,))


def bombs(trace: Path) -> list[Message]:
    """Every message with a field of bytes, with a pickle in it that leaves a trace, by itself and behind each first byte."""
    found: list[Message] = []
    for first in (b"", b"\0", b"\1", b"\2", b"\3"):
        data = first + pickle.dumps(Bomb(trace))
        position = {"term": 1, "commit_index": 1, "prevLogIdx": 1, "prevLogTerm": 0}
        found += [
            {"type": "apply_command", "command": data},
            {"type": "apply_command", "command": data, "request_id": 1},
            {"type": "append_entries", **position, "entries": [(data, 2, 1)]},
            {"type": "append_entries", "term": 1, "commit_index": 1, "serialized": (data, True, False)},
            {"type": "append_entries", "term": 1, "commit_index": 1, "serialized": (data, True, True)},
        ]
    return found


def test_a_pickle_in_any_field_stays_bytes(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    for message in bombs(trace):
        assert again(message) == message
    assert not trace.exists()
    pickle.loads(pickle.dumps(Bomb(trace)))
    assert trace.exists(), "the bomb would have left a trace"


EXAMPLES: list[Message] = [
    {"type": "request_vote", "term": 3, "last_log_index": 7, "last_log_term": 2},
    {
        "type": "append_entries",
        "term": 3,
        "commit_index": 6,
        "prevLogIdx": 5,
        "prevLogTerm": 2,
        "entries": [(b"\0one", 6, 3), (b"\1", 7, 3)],
    },
    {"type": "append_entries", "term": 3, "commit_index": 6, "prevLogIdx": None, "prevLogTerm": None, "entries": []},
    {"type": "append_entries", "term": 3, "commit_index": 6, "serialized": None},
    {"type": "append_entries", "term": 3, "commit_index": 6, "serialized": (b"part", True, False)},
    {"type": "next_node_idx", "next_node_idx": 8, "reset": False, "success": True, "term": 3},
    {"type": "apply_command", "command": b"\0two"},
    {"type": "apply_command_response", "request_id": 5, "error": 2},
    {"type": "apply_command_response", "request_id": 5, "log_idx": 9, "log_term": 3},
]

MUTANTS: dict[str, tuple[str, str]] = {
    "None becomes absent": ('made["prevLogIdx"] = entries.prev_log_index if has_previous else None', "pass"),
    "None becomes zero": ("entries.prev_log_index if has_previous else None", "entries.prev_log_index"),
    "no dump becomes an empty one": (' if dump.HasField("data") else None', ""),
    "a request id appears": (' if found.HasField("request_id") else made', ""),
    "the term is lost": ('return made | {"term": found.term} if found.HasField("term") else made', "return made"),
    "an error becomes a position": ('case "error":', 'case "nothing":'),
    "flags are swapped": ("dump.is_first, dump.is_last)", "dump.is_last, dump.is_first)"),
    "entries become lists": (
        "list(zip(commands, indexes, terms, strict=True))",
        "list(map(list, zip(commands, indexes, terms)))",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_examples_find_a_wrong_codec(name: str) -> None:
    right, wrong = MUTANTS[name]
    source = Path(codec.__file__).read_text()
    assert source.count(right) == 1, right
    made: dict[str, Any] = {"__name__": "mutant"}
    exec(compile(source.replace(right, wrong), "mutant", "exec"), made)  # noqa: S102  # our own source

    def is_right(message: Message) -> bool:
        try:
            return bool(made["decode_batch"](encode_message(message))[1] == [message])
        except ProtocolError:
            return False

    assert all(decode_batch(encode_message(message))[1] == [message] for message in EXAMPLES)
    assert not all(map(is_right, EXAMPLES))
