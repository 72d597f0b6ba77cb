"""The recovery line: four ways, one answer (G5); the vectors; and that a fault in a way is noticed."""

import inspect
import random
import time
import types
from collections.abc import Callable, Collection, Iterator

import pytest
from tests.recovery.executions import (
    Cut,
    Ends,
    consistent_cuts,
    line_by_fix_point,
    line_by_search,
    names_of,
    parse,
    random_trace,
    rounds_by_definition,
    small_trace,
    subsets,
)

from snapline.errors import UsageError
from snapline.recovery import execution as execution_module
from snapline.recovery.execution import (
    Execution,
    Line,
    domino_rounds,
    recovery_line,
    recovery_line_by_checkpoints,
    rounds,
)
from snapline.recovery.trace import Trace

Way = Callable[[Execution, Collection[int]], Line]

WAYS: list[Way] = [recovery_line, recovery_line_by_checkpoints]

FORK = "b>d c>d d! a>c c! a>b b! a!"

VECTORS = [
    ("V1", "all", "a0 b0", "b>a a! a!"),
    ("V2", "all", "a1 b0", "a! a>b b!"),
    ("V3", "all", "a1 b0", "a! a>b b! b>a"),
    ("V3 twice", "all", "a1 b0", "a! a>b b! b>a " * 2),
    ("V3 a hundred times", "all", "a1 b0", "a! a>b b! b>a " * 100),
    ("F1", "a", "a0 b0 c0 d0", "a>b a>c b>d c>d"),
    ("F2", "a", "a3 b0 c0 d0", "a! a! a! a>b a>c b>d c>d"),
    ("F3", "all", "a3 b2 c0 d0", "a! a>b b! a! a>b b! a! a>b a>c b>d c>d"),
    ("F4", "b", "a- b0 c- d0", "a>b a>c b>d c>d"),
    ("F5", "b", "a- b1 c- d0", "a! a>b b! a>c c! b>d c>d d! a>b a>c b>d c>d"),
    ("F6", "c", "a- b- c1 d0", "a>b b! a>c c! b>d c>d d! a>b a>c b>d c>d"),
    ("F7", "c", "a- b- c1 d1", "a>b b! b>d c>d d! a>c c! a>b a>c b>d c>d"),
    ("F8", "all", "a2 b2 c2 d2", f"{FORK} {FORK} a>b a>c b>d c>d"),
    ("F10", "all", "a1 b1 c1 d1", f"{FORK} {FORK.removesuffix(' a!')} a>b a>c b>d c>d"),
    ("L1", "a", "a0 b0 c0", "a>b b! b>c c! a>b b>c"),
    ("L2", "b", "a- b1 c0", "a>b b! b>c c! a>b b>c"),
    ("L3", "c", "a- b- c1", "a>b b! b>c c! a>b b>c"),
]


def expected_line(text: str, trace: Trace) -> Cut:
    """`a1 b-` as a cut of this trace."""
    live = Ends(trace).start(())
    return {word[0]: live[word[0]] if word[1] == "-" else int(word[1:]) for word in text.split()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("failed", "line", "text"), [vector[1:] for vector in VECTORS], ids=[v[0] for v in VECTORS])
def test_vectors(way: Way, failed: str, line: str, text: str) -> None:
    trace = parse(text, "abcd"[: len(line.split())])
    execution = Execution.of(trace)
    failing = execution.ordinals(None if failed == "all" else failed)
    expected = expected_line(line, trace)
    assert names_of(way(execution, failing), trace) == expected
    assert line_by_fix_point(trace, trace.agents if failed == "all" else failed) == expected


def disagreements(way: Way, seeds: range) -> Iterator[str]:
    """Where `way` differs from a search through all consistent cuts."""
    for seed in seeds:
        trace = small_trace(seed)
        execution = Execution.of(trace)
        cuts, ends = consistent_cuts(trace), Ends(trace)
        for failed in subsets(trace.agents):
            expected = line_by_search(cuts, ends.start(failed))
            assert line_by_fix_point(trace, failed) == expected
            found = names_of(way(execution, execution.ordinals(failed)), trace)
            if found != expected:
                yield f"seed {seed}, {failed} fail: {found}, and by search {expected}"


def by_rounds(execution: Execution, failed: Collection[int]) -> Line:
    line = execution.live_line()
    for step in rounds(execution, failed):
        for agent, number in step.moved.items():
            line[agent] = number
    return line


def all_agree(execution: Execution, failed: Collection[int]) -> Line:
    """The line, if all three ways say the same; else nothing that is one."""
    found = [way(execution, failed) for way in (*WAYS, by_rounds)]
    return found[0] if found[0] == found[1] == found[2] else [-1] * len(execution.agents)


def test_four_ways_agree_on_all_failures() -> None:
    """Two graphs, the orphan fix-point, and all cuts; rounds too."""
    assert not list(disagreements(all_agree, range(600)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_four_ways_agree_on_all_failures_of_many() -> None:
    assert not list(disagreements(all_agree, range(2_000, 150_000)))


@pytest.mark.parametrize("seed", range(60))
def test_three_ways_agree_on_larger_executions(seed: int) -> None:
    source = random.Random(seed)
    trace = random_trace(source, source.randint(2, 12), 400, source.choice((0.02, 0.1, 0.3)))
    execution = Execution.of(trace)
    for _ in range(4):
        failed = source.sample(trace.agents, source.randint(1, len(trace.agents)))
        found = all_agree(execution, execution.ordinals(failed))
        assert names_of(found, trace) == line_by_fix_point(trace, failed)


def test_the_line_is_consistent_and_nobody_failed_stays_live() -> None:
    for seed in range(300):
        source = random.Random(seed)
        trace = random_trace(source, source.randint(1, 6), 60, 0.2)
        execution, ends = Execution.of(trace), Ends(trace)
        failed = source.sample(trace.agents, source.randint(0, len(trace.agents)))
        line = recovery_line(execution, execution.ordinals(failed))
        cut = names_of(line, trace)
        assert not ends.orphans(cut)
        assert all(cut[agent] <= ends.last[agent] for agent in failed)
        in_transit = [
            message
            for message, (agent, interval) in ends.sent.items()
            if interval < cut[agent]
            and not (message in ends.received and ends.received[message][1] < cut[ends.received[message][0]])
        ]
        assert [execution.messages[message] for message in execution.in_transit(line)] == in_transit


def test_nobody_fails_nobody_moves() -> None:
    execution = Execution.of(parse("a! a>b b! b>a"))
    assert recovery_line(execution, []) == recovery_line_by_checkpoints(execution, []) == execution.live_line()
    assert Execution.of(Trace([], [])).live_line() == []


# -- the domino, round by round -----------------------------------------------------------------------------------------


def test_the_rounds_of_the_staircase() -> None:
    trace = parse("a! a>m1:b m1>b b! b>m2:a m2>a a! a>m3:b m3>b b! b>m4:a m4>a")
    found = domino_rounds(trace, ["b"])
    assert [(step.moved, step.orphans) for step in found] == [
        ({"b": 2}, []),
        ({"a": 2}, ["m4"]),
        ({"b": 1}, ["m3"]),
        ({"a": 1}, ["m2"]),
        ({"b": 0}, ["m1"]),
    ]


def test_agents_of_one_round_move_at_once() -> None:
    found = domino_rounds(parse("a>m1:b m1>b a>m2:c m2>c b>m3:c m3>c", "abc"), ["a"])
    assert [(step.moved, step.orphans) for step in found] == [({"a": 0}, []), ({"b": 0, "c": 0}, ["m1", "m2"])]


def rounds_disagree(
    ask: Callable[[Trace, Collection[str]], list[execution_module.Round]], seeds: range
) -> Iterator[str]:
    for seed in seeds:
        source = random.Random(seed)
        trace = random_trace(source, source.randint(1, 6), source.randint(1, 80), source.choice((0.1, 0.3)))
        failed = source.sample(trace.agents, source.randint(0, len(trace.agents)))
        found = [(step.moved, step.orphans) for step in ask(trace, failed)]
        if found != rounds_by_definition(trace, failed):
            yield f"seed {seed}: {failed} fail"


def test_rounds_against_their_definition() -> None:
    assert not list(rounds_disagree(domino_rounds, range(600)))


def test_unknown_agents_are_named() -> None:
    with pytest.raises(UsageError, match=r"no agent 'x', 'y': it has a, b"):
        domino_rounds(parse("a>b"), ["y", "a", "x"])


def test_the_staircase_takes_milliseconds() -> None:
    """1,000 checkpoints per agent; a search without memory of what it has visited would double with each of them."""
    execution = Execution.of(parse("a! a>b b! b>a " * 1_000))
    start_s = time.perf_counter()
    for way in WAYS:
        assert way(execution, [0, 1]) == [1, 0]
    assert len(rounds(execution, [1])) == 2_001
    assert time.perf_counter() - start_s < 1.0, "some 10 ms on an idle machine"


# -- mutants ------------------------------------------------------------------------------------------------------------


def mutant(old: str, new: str) -> types.ModuleType:
    """The module with one fault."""
    source = inspect.getsource(execution_module)
    assert source.count(old) == 1, f"{old!r} does not stand once in the module"
    module = types.ModuleType("mutant")
    exec(compile(source.replace(old, new), "mutant", "exec"), module.__dict__)  # noqa: S102  # our own source
    return module


MUTANTS = {
    "live states left out": (
        "recovery_line",
        "    line = execution.start(failed)\n",
        "    failed = range(len(execution.agents))\n    line = execution.start(failed)\n",
    ),
    "live states left out of the checkpoint graph": (
        "recovery_line_by_checkpoints",
        "roots = execution.start(failed)",
        "roots = execution.start(range(len(execution.agents)))",
    ),
    "received ≥ sent": (
        "recovery_line",
        "    waiting = [execution.intervals[agent][-1] for agent in failed]",
        "    waiting = [node for agent in failed for node in execution.intervals[agent][-2:]]",
    ),
    "only the first interval undone": (
        "recovery_line",
        "waiting += execution.intervals[agent][number : line[agent]]",
        "waiting += execution.intervals[agent][number : number + 1]",
    ),
    "one pass": (
        "recovery_line",
        "    while waiting:\n        for message in execution.sends[waiting.pop()]:",
        "    for start in list(waiting):\n        for message in execution.sends[start]:",
    ),
    "one pass over the checkpoint graph": (
        "recovery_line_by_checkpoints",
        "        if not has_moved:\n            return roots",
        "        return roots",
    ),
    "one-edge reach": (
        "recovery_line_by_checkpoints",
        "                    waiting.append((target, closing))\n",
        "",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_faulty_line_is_noticed(name: str) -> None:
    function, old, new = MUTANTS[name]
    way: Way = getattr(mutant(old, new), function)
    assert next(disagreements(way, range(300)), None) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    while moved:", "    if moved:"),
        ("orphans = [\n", "orphans = []\n        _ = [\n"),
        ("lowest.get(agent, line[agent])", "line[agent]"),
        ("Step(moved, sorted(orphans))", "Step(moved, orphans)"),
    ],
)
def test_a_fault_in_the_rounds_is_noticed(old: str, new: str) -> None:
    ask: Callable[[Trace, Collection[str]], list[execution_module.Round]] = mutant(old, new).domino_rounds
    assert next(rounds_disagree(ask, range(200)), None) is not None
