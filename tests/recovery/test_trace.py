"""The trace format: what is read, what is refused and why, and what recoveries leave."""

import itertools
import json
import random
from collections.abc import Mapping

import pytest
from tests.recovery.executions import Going, line_by_fix_point, names_of, undo

from snapline.errors import SnaplineError, TraceError
from snapline.recovery.execution import Execution
from snapline.recovery.trace import (
    CheckpointTaken,
    Event,
    Header,
    MessageReceived,
    MessageSent,
    Recovery,
    Trace,
    encode,
    read_trace,
)


def read(*lines: Mapping[str, object] | str) -> Trace:
    return read_trace([(line if isinstance(line, str) else json.dumps(line)).encode() + b"\n" for line in lines])


def send(agent: str, message: str, to: str) -> dict[str, object]:
    return {"event": "send", "agent": agent, "message": message, "to": to}


def receive(agent: str, message: str) -> dict[str, object]:
    return {"event": "receive", "agent": agent, "message": message}


def checkpoint(agent: str, **fields: object) -> dict[str, object]:
    return {"event": "checkpoint", "agent": agent, **fields}


def recovery(**line: int | None) -> dict[str, object]:
    return {"event": "recovery", "line": line}


def test_events_in_their_order() -> None:
    trace = read(checkpoint("b"), send("b", "m1", "a"), checkpoint("b", index=2, kind="forced"), receive("a", "m1"))
    assert trace == Trace(
        ["b", "a"],
        [
            CheckpointTaken("b", 1, "basic"),
            MessageSent("b", "m1", "a"),
            CheckpointTaken("b", 2, "forced"),
            MessageReceived("a", "m1"),
        ],
    )


def test_an_empty_trace() -> None:
    assert read() == read("", "  ") == Trace([], [])


def test_the_header_comes_first_in_the_order_of_agents() -> None:
    trace = read("", {"snapline_trace": 1, "agents": ["c", "b"], "host": "h1"}, send("a", "m1", "b"), checkpoint("d"))
    assert trace.agents == ["c", "b", "a", "d"]
    assert read({"snapline_trace": 1}).agents == []


def test_unknown_fields_and_blank_lines_are_ignored() -> None:
    plain = [send("a", "m1", "b"), receive("b", "m1")]
    decorated: list[dict[str, object] | str] = [
        "",
        {"time_ns": 3, **plain[0], "size": {"bytes": [1, 2]}},
        " \t",
        plain[1],
    ]
    assert read(*decorated) == read(*plain)


def test_a_message_names_its_receiver_as_an_agent() -> None:
    assert read(send("a", "m1", "b")).agents == ["a", "b"]


def test_agents_may_write_to_themselves() -> None:
    assert len(read(send("a", "m1", "a"), receive("a", "m1")).events) == 2


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([send("a", "m1", "b"), "{"], ["line 2", "no JSON object"]),
        ([send("a", "m1", "b"), '{"event":"send"'], ["line 2", "no JSON object"]),
        (["[]"], ["line 1", "no JSON object"]),
        (["\udcff"], ["line 1"]),
        ([{"agent": "a"}], ["line 1", '"event"', "checkpoint"]),
        ([checkpoint("a"), {"event": "spawn", "agent": "a"}], ["line 2", "'spawn'", "recovery"]),
        ([{"event": ["send"], "agent": "a"}], ["line 1", "unknown event"]),
        ([{"event": "send", "agent": "a", "to": "b"}], ["line 1", "send", "message"]),
        ([checkpoint("a", kind="odd")], ["line 1", "odd"]),
        ([checkpoint("a", index="1")], ["line 1", "checkpoint", "index"]),
        ([{"event": "receive", "agent": 1, "message": "m1"}], ["line 1", "receive"]),
        ([{"snapline_trace": 2}], ["line 1", "format 2"]),
        ([{"snapline_trace": True}], ["line 1", "format True"]),
        ([{"snapline_trace": 1, "agents": "ab"}], ["line 1", "header"]),
        ([{"snapline_trace": 1, "agents": ["a", "a"]}], ["line 1", "'a' twice"]),
        ([checkpoint("a"), {"snapline_trace": 1}], ["line 2", "first line"]),
        ([{"snapline_trace": 1}, {"snapline_trace": 1}], ["line 2", "first line"]),
        (["", receive("b", "m1")], ["line 2", "'m1'", "no line before sends"]),
        ([send("a", "m1", "b"), "", send("c", "m1", "b")], ["line 3", "'m1'", "line 1"]),
        ([send("a", "m1", "b"), receive("b", "m1"), receive("b", "m1")], ["line 3", "'m1'", "line 2"]),
        ([send("a", "m1", "b"), "", receive("c", "m1")], ["line 3", "'m1'", "line 1", "'b'", "'c'"]),
        ([checkpoint("a"), checkpoint("b"), checkpoint("a", index=3)], ["line 3", "index 3", "line 1", "2 is due"]),
        ([checkpoint("a"), checkpoint("a", index=1)], ["line 2", "index 1", "line 1"]),
        ([checkpoint("a", index=0)], ["line 1", "index 0", "initial"]),
        ([checkpoint("a"), recovery(a=2)], ["line 2", "'a'", "no checkpoint 2", "1"]),
        ([recovery(a=-1)], ["line 1", "-1"]),
        ([recovery(a=1)], ["line 1", "'a'"]),
        ([{"event": "recovery", "line": {"a": "1"}}], ["line 1", "recovery"]),
        ([checkpoint("b"), send("a", "m1", "b"), receive("b", "m1"), recovery(a=0)], ["line 4", "orphan", "line 2", "line 3"]),
        (
            [send("a", "m1", "b"), receive("b", "m1"), checkpoint("b"), recovery(a=0, b=1)],
            ["line 4", "'m1'", "orphan", "line 1", "line 2"],
        ),
    ],
)  # fmt: skip
def test_what_is_broken_is_named(lines: list[Mapping[str, object] | str], said: list[str]) -> None:
    encoded = [
        (line if isinstance(line, str) else json.dumps(line)).encode("utf-8", "surrogateescape") for line in lines
    ]
    with pytest.raises(TraceError) as caught:
        read_trace(encoded)
    for words in said:
        assert words in str(caught.value)


def test_the_error_belongs_to_the_tree() -> None:
    assert issubclass(TraceError, SnaplineError) and TraceError.exit_code == 6


# -- recoveries ---------------------------------------------------------------------------------------------------------


def test_a_recovery_undoes_what_lies_past_its_line() -> None:
    trace = read(checkpoint("a"), send("a", "m1", "b"), checkpoint("a"), checkpoint("b"), recovery(a=1))
    assert trace == Trace(["a", "b"], [CheckpointTaken("a", 1), CheckpointTaken("b", 1)])


def test_numbers_past_the_line_are_used_again() -> None:
    trace = read(checkpoint("a"), checkpoint("a"), recovery(a=1), checkpoint("a", index=2, kind="forced"))
    assert trace.events == [CheckpointTaken("a", 1), CheckpointTaken("a", 2, "forced")]


def test_null_and_no_entry_keep_the_live_state() -> None:
    events = [send("a", "m1", "b"), checkpoint("b"), send("b", "m2", "a")]
    assert read(*events, recovery(a=None)) == read(*events, recovery()) == read(*events)


def test_a_receive_undone_puts_its_message_back_in_transit() -> None:
    trace = read(send("a", "m1", "b"), receive("b", "m1"), recovery(b=0), checkpoint("b"), receive("b", "m1"))
    assert trace.events == [MessageSent("a", "m1", "b"), CheckpointTaken("b", 1), MessageReceived("b", "m1")]


def test_a_send_undone_never_was() -> None:
    with pytest.raises(TraceError, match="line 3: 'b' receives message 'm1', which no line before sends"):
        read(send("a", "m1", "b"), recovery(a=0), receive("b", "m1"))
    again = read(send("a", "m1", "b"), recovery(a=0), send("a", "m1", "c"), receive("c", "m1"))
    assert again.events == [MessageSent("a", "m1", "c"), MessageReceived("c", "m1")]


def test_both_ends_undone_leave_nothing() -> None:
    trace = read(send("a", "m1", "b"), receive("b", "m1"), recovery(a=0, b=0), send("a", "m1", "b"), receive("b", "m1"))
    assert trace.events == [MessageSent("a", "m1", "b"), MessageReceived("b", "m1")]


@pytest.mark.parametrize("seed", range(300))
def test_what_survives_many_recoveries(seed: int) -> None:
    """Random executions with recoveries to their lines, against an execution that is truncated after each of them."""
    source = random.Random(seed)
    agents = [chr(ord("a") + i) for i in range(source.randint(1, 4))]
    lines = [encode(Header(agents=agents))]
    trace = Trace(agents, [])
    for _ in range(source.randint(1, 6)):
        going = Going(source, trace)
        for _ in range(source.randint(0, 15)):
            going.step(0.25)
        lines += map(encode, going.events[len(trace.events) :])
        trace = going.trace()
        line = line_by_fix_point(trace, source.sample(agents, source.randint(0, len(agents))))
        live = names_of(Execution.of(trace).live_line(), trace)
        lines.append(
            encode(Recovery({agent: number if number < live[agent] else None for agent, number in line.items()}))
        )
        trace = undo(trace, line)
    assert read_trace(lines) == trace


@pytest.mark.parametrize("seed", range(50))
def test_what_is_written_is_read(seed: int) -> None:
    source = random.Random(seed)
    going = Going(source, Trace(["a", "b", "ü\n\u2028"], []))
    for _ in range(40):
        going.step(0.2)
    trace = going.trace()
    items: list[Header | Event] = [Header(agents=trace.agents), *trace.events]
    lines = [encode(item) for item in items]
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") for line in lines)
    assert read_trace(lines) == trace
    assert read_trace(line.rstrip() for line in lines) == trace


def test_the_lines_as_others_see_them() -> None:
    items: list[Event | Recovery | Header] = [
        Header(agents=["a", "b"]),
        CheckpointTaken("a", 1, "forced"),
        MessageSent("a", "m1", "b"),
        MessageReceived("b", "m1"),
        Recovery({"a": 1, "b": None}),
    ]
    assert [json.loads(encode(item)) for item in items] == [
        {"snapline_trace": 1, "agents": ["a", "b"]},
        {"event": "checkpoint", "agent": "a", "index": 1, "kind": "forced"},
        {"event": "send", "agent": "a", "message": "m1", "to": "b"},
        {"event": "receive", "agent": "b", "message": "m1"},
        {"event": "recovery", "line": {"a": 1, "b": None}},
    ]


def test_many_recoveries_stay_linear() -> None:
    """Each undoes little: what was undone before is not looked at again."""
    steps = ([checkpoint("a"), send("a", f"m{number}", "b"), recovery(a=number + 1)] for number in range(20_000))
    trace = read_trace(json.dumps(line).encode() for line in itertools.chain.from_iterable(steps))
    assert len(trace.events) == 20_000
