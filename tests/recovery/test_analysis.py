"""The whole answer: its fields and their order, and what protocols would have made of a trace."""

import random
from collections import defaultdict
from typing import Any

import msgspec
import pytest
from tests.recovery.executions import Ends, Going, parse, random_trace

from snapline.errors import UsageError
from snapline.protocols.rules import RULES
from snapline.recovery import trace_analysis as analysis_module
from snapline.recovery.trace import CheckpointTaken, MessageSent, Trace
from snapline.recovery.trace_analysis import analyze, decide_and_analyze, redecide, untracked

NO_DEPENDENCY_UNTRACKED = ("fdas", "fdi", "bhmr", "nras", "cbr", "cas")


def answer(trace: Trace, failed: list[str] | None = None, protocol: str | None = None) -> dict[str, Any]:
    return msgspec.convert(msgspec.to_builtins(analyze(trace, failed, protocol)), dict[str, Any])


def test_all_fields_in_their_order() -> None:
    trace = parse("a! a>m1:b m1>b b!f b>m2:a a>m3:b b>m4:c m2>a c!", "abc")
    found = answer(trace, ["b"])
    assert found == {
        "agents": ["a", "b", "c"],
        "failed": ["b"],
        "recovery_line": {"a": 1, "b": 0, "c": None},
        "rollback": {"a": {"checkpoints": 0, "events": 3}, "b": {"checkpoints": 1, "events": 3}},
        "in_transit": [],
        "domino": {"rolled_back": 2, "depth": 2, "reached_initial": ["b"]},
        "useless": {"b": [1]},
        "obsolete": {"a": [0], "b": [1], "c": [0]},
        "checkpoints": {"basic": 2, "forced": 1},
    }
    assert list(found) == [
        *("agents", "failed", "recovery_line", "rollback", "in_transit", "domino"),
        *("useless", "obsolete", "checkpoints"),
    ]
    assert list(answer(trace, protocol="none"))[-1] == "forced"


def test_by_default_all_fail() -> None:
    trace = parse("a! a>b b! b>a " * 3)
    found = answer(trace)
    assert found["failed"] == ["a", "b"]
    assert found["recovery_line"] == {"a": 1, "b": 0}
    assert found["domino"] == {"rolled_back": 2, "depth": 5, "reached_initial": ["b"]}
    assert found["rollback"] == {"a": {"checkpoints": 2, "events": 6}, "b": {"checkpoints": 3, "events": 6}}


def test_a_failed_agent_that_loses_nothing_goes_back_all_the_same() -> None:
    found = answer(parse("a! b!"), ["b"])
    assert found["rollback"] == {"b": {"checkpoints": 0, "events": 0}}
    assert found["domino"] == {"rolled_back": 1, "depth": 0, "reached_initial": []}


def test_nobody_fails() -> None:
    found = answer(parse("a>m1:b"), [])
    assert (found["failed"], found["recovery_line"], found["rollback"]) == ([], {"a": None, "b": None}, {})
    assert found["domino"] == {"rolled_back": 0, "depth": 0, "reached_initial": []}
    assert found["in_transit"] == ["m1"]


def test_an_empty_trace() -> None:
    found = answer(Trace([], []))
    assert (found["agents"], found["useless"], found["obsolete"]) == ([], {}, {})


def test_in_transit_is_in_send_order() -> None:
    trace = parse("a>m2:b b>m9:a a>m1:b m1>b a! b>m0:b", "ab")
    assert answer(trace, ["b"])["in_transit"] == ["m2", "m1"]
    assert answer(trace, ["a"])["in_transit"] == ["m2", "m9", "m0"]


def test_useless_and_obsolete_do_not_depend_on_who_fails() -> None:
    trace = random_trace(random.Random(3), 4, 80, 0.2)
    answers = [answer(trace, failed) for failed in ([], ["a"], ["b", "d"], None)]
    for name in ("useless", "obsolete", "checkpoints"):
        assert all(found[name] == answers[0][name] for found in answers)
    assert answers[0]["useless"]


def test_who_fails_is_given_in_the_order_of_the_trace() -> None:
    assert answer(parse("a>b b>c"), ["c", "a", "c"])["failed"] == ["a", "c"]


def test_an_unknown_agent_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no agent 'x': it has a, b"):
        analyze(parse("a>b"), ["a", "x"])
    with pytest.raises(UsageError, match="none at all"):
        analyze(Trace([], []), ["x"])


# -- protocols decide ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["none", "uncoordinated"])
def test_none_just_drops_forced_checkpoints(protocol: str) -> None:
    decided, forced = redecide(parse("a!f a! a>m1:b b!f m1>b b! b!f"), protocol)
    assert decided == parse("a! a>m1:b m1>b b!")
    assert forced == {}


def test_a_forced_checkpoint_stands_right_before_its_receive() -> None:
    decided, forced = redecide(parse("b>m1:c m1>c a! b!f a>m2:b m2>b"), "bcs")
    assert forced == {"b": [1]}
    assert decided == parse("b>m1:c m1>c a! a>m2:b b!f m2>b")


def test_ordinals_count_sends_receives_and_basic_checkpoints() -> None:
    trace = parse("b! b!f b>m1:a a! a! a>m2:b m2>b")
    assert redecide(trace, "bcs")[1] == {"b": [2]}
    assert redecide(trace, "cas")[1] == {"b": [1], "a": [2]}


def test_cas_takes_one_right_after_each_send() -> None:
    decided, forced = redecide(parse("a>m1:b a! a>m2:b m1>b"), "cas")
    assert decided == parse("a>m1:b a!f a! a>m2:b a!f m1>b")
    assert forced == {"a": [0, 2]}


def stripped(trace: Trace) -> list[object]:
    return [
        (event.agent, "checkpoint") if isinstance(event, CheckpointTaken) else event
        for event in trace.events
        if not (isinstance(event, CheckpointTaken) and event.kind == "forced")
    ]


def ordinals_of_forced(trace: Trace, *, after_sends: bool) -> dict[str, list[int]]:
    """By agent, which of its stripped events follows (cas: precedes) each forced checkpoint."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    seen: defaultdict[str, int] = defaultdict(int)
    for event in trace.events:
        if isinstance(event, CheckpointTaken) and event.kind == "forced":
            found[event.agent].append(seen[event.agent] - after_sends)
        else:
            seen[event.agent] += 1
    return dict(found)


@pytest.mark.parametrize("protocol", RULES)
@pytest.mark.parametrize("is_fifo", [True, False])
def test_every_protocol_on_random_executions(protocol: str, is_fifo: bool) -> None:
    """Nothing but forced checkpoints changes; those decided are where they are said to be; G6 holds for what comes out."""
    useless = dependencies = 0
    for seed in range(40):
        source = random.Random(seed)
        trace = random_trace(
            source, source.randint(1, 6), source.randint(0, 90), source.choice((0.1, 0.3)), is_fifo=is_fifo
        )
        decided, analysis = decide_and_analyze(trace, None, protocol)
        assert decided.agents == trace.agents
        assert stripped(decided) == stripped(trace)
        assert ordinals_of_forced(decided, after_sends=protocol == "cas") == analysis.forced
        numbers = [(event.agent, event.number) for event in decided.events if isinstance(event, CheckpointTaken)]
        assert sorted(numbers) == [(a, n) for a, last in sorted(Ends(decided).last.items()) for n in range(1, last + 1)]
        assert redecide(decided, protocol) == (decided, analysis.forced), "decided again, it is the same"
        assert analyze(decided) == msgspec.structs.replace(analysis, forced=msgspec.UNSET)
        useless += len(analysis.useless)
        dependencies += len(untracked(decided))
    assert (useless > 0) == (protocol == "uncoordinated")
    if protocol in NO_DEPENDENCY_UNTRACKED:
        assert dependencies == 0
    else:
        assert dependencies > 0, "the check can fail"


def bcs_by_definition(trace: Trace) -> dict[str, list[int]]:
    """The rule on plain integers, carried beside the messages."""
    index, seen, carried = dict.fromkeys(trace.agents, 0), dict.fromkeys(trace.agents, 0), {}
    forced: defaultdict[str, list[int]] = defaultdict(list)
    for event in trace.events:
        if isinstance(event, CheckpointTaken):
            if event.kind == "forced":
                continue
            index[event.agent] += 1
        elif isinstance(event, MessageSent):
            carried[event.message] = index[event.agent]
        elif carried[event.message] > index[event.agent]:
            forced[event.agent].append(seen[event.agent])
            index[event.agent] = carried[event.message]
        seen[event.agent] += 1
    return dict(forced)


@pytest.mark.parametrize("seed", range(60))
def test_bcs_against_its_definition(seed: int) -> None:
    source = random.Random(seed)
    trace = random_trace(source, source.randint(2, 6), 150, 0.15)
    assert redecide(trace, "bcs")[1] == bcs_by_definition(trace)


def test_channels_that_reorder_get_full_piggybacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delta lost or overtaken would be missed: with deltas everywhere, useless checkpoints come through."""

    def useless_of(protocol: str) -> int:
        found = 0
        for seed in range(120):
            source = random.Random(seed)
            going = Going(source, Trace(list("abcd"), []))
            for _ in range(90):
                going.step(0.15)
            found += len(analyze(going.trace(), protocol=protocol).useless)
        return found

    assert useless_of("hmnr") == 0
    monkeypatch.setattr(analysis_module, "_reordering_channels", lambda trace: set())
    assert useless_of("hmnr") > 0


@pytest.mark.parametrize(
    ("text", "channels"),
    [
        ("a>m1:b a>m2:b m1>b m2>b a>m3:b", set()),
        ("a>m1:b a>m2:b m2>b", {("a", "b")}),
        ("a>m1:b a>m2:b m2>b m1>b b>m3:a m3>a", {("a", "b")}),
        ("a>m1:b a>m2:c m2>c m1>b", set()),
        ("a>m1:a a>m2:a m2>a", {("a", "a")}),
    ],
)
def test_which_channels_reorder(text: str, channels: set[tuple[str, str]]) -> None:
    assert analysis_module._reordering_channels(parse(text)) == channels


def test_an_unknown_protocol_is_named_with_the_choices() -> None:
    with pytest.raises(UsageError, match=r"'chandy-lamport' is unknown: choose one of none, .*bcs.*hmnr.*cas"):
        analyze(parse("a>b"), protocol="chandy-lamport")
