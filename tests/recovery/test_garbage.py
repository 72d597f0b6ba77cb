"""Obsolete checkpoints: exactly those on no line of a single failure; no later line needs one (G7)."""

import random
from collections.abc import Callable

import pytest
from tests.recovery.executions import (
    Cut,
    Ends,
    Going,
    consistent_cuts,
    line_by_fix_point,
    line_by_search,
    parse,
    random_trace,
    small_trace,
    undo,
)

from snapline.recovery.execution import Execution, Line, recovery_line
from snapline.recovery.trace import CheckpointTaken, MessageReceived, MessageSent, Trace
from snapline.recovery.trace_analysis import components_of, edges_of, failures_undoing, obsolete

Kept = dict[str, set[int]]


def kept_by_rule(trace: Trace) -> Kept:
    execution = Execution.of(trace)
    edges = edges_of(execution)
    found = obsolete(execution, failures_undoing(execution, edges, components_of(edges)))
    return {
        agent: set(range(len(nodes))) - set(numbers)
        for agent, nodes, numbers in zip(trace.agents, execution.intervals, found, strict=True)
    }


def kept_by_definition(trace: Trace) -> Kept:
    """On the line, by search, of some single failure."""
    ends, cuts = Ends(trace), consistent_cuts(trace)
    lines = [line_by_search(cuts, ends.start([agent])) for agent in trace.agents]
    return {agent: {line[agent] for line in lines} - {ends.last[agent] + 1} for agent in trace.agents}


def test_kept_is_what_is_on_the_line_of_a_single_failure() -> None:
    for seed in range(800):
        trace = small_trace(seed)
        assert kept_by_rule(trace) == kept_by_definition(trace), f"seed {seed}"


def single_failure_lines(execution: Execution, undone_by: list[int]) -> list[Line]:
    """By agent, the recovery line of its failure alone, as what `failures_undoing` found implies it."""
    lines = [execution.live_line() for _ in execution.agents]
    for agent, nodes in enumerate(execution.intervals):
        before = 0
        for number, node in enumerate(nodes):
            new = undone_by[node] & ~before
            before = undone_by[node]
            while new:
                lines[(new & -new).bit_length() - 1][agent] = number
                new &= new - 1
    return lines


@pytest.mark.parametrize("seed", range(60))
def test_the_single_lines_of_larger_executions(seed: int) -> None:
    source = random.Random(seed)
    trace = random_trace(source, source.randint(1, 12), 300, source.choice((0.02, 0.1, 0.3)))
    execution = Execution.of(trace)
    edges = edges_of(execution)
    found = single_failure_lines(execution, failures_undoing(execution, edges, components_of(edges)))
    assert found == [recovery_line(execution, [agent]) for agent in range(len(trace.agents))]


def nested(agents: int) -> Trace:
    """Agent i's last interval reaches the ith interval of all later agents: each failure has entries of its own."""
    names = [f"p{i}" for i in range(agents)]
    trace = Trace(names, [])
    for i, sender in enumerate(names):
        for receiver in names[i + 1 :]:
            message = f"{sender}>{receiver}"
            trace.events.extend([MessageSent(sender, message, receiver), MessageReceived(receiver, message)])
            trace.events.append(CheckpointTaken(receiver, i + 1))
    return trace


@pytest.mark.parametrize("agents", [1, 2, 3, 7, 20])
def test_the_bound_is_reached(agents: int) -> None:
    """N(N+1)/2 (Wang, Chung, Lin and Fuchs 1995)."""
    assert sum(map(len, kept_by_rule(nested(agents)).values())) == agents * (agents + 1) // 2


def test_the_initial_checkpoint_is_obsolete_once_nothing_leads_back_to_it() -> None:
    assert kept_by_rule(parse("a! b! a>b b>a")) == {"a": {1}, "b": {1}}
    assert kept_by_rule(parse("a!", "ab")) == {"a": {1}, "b": {0}}


# -- what happens later -------------------------------------------------------------------------------------------------


def needed_later(trace: Trace, kept: Kept, source: random.Random) -> str:
    """Go on at random, with failures of any number of agents and recoveries; name a checkpoint of today that a line
    needs and that is not kept, or say "".
    """
    today = dict(Ends(trace).last)  # above it are later checkpoints, although recoveries may use numbers again
    for _ in range(source.randint(1, 4)):
        going = Going(source, trace)
        for _ in range(source.randint(0, 25)):
            going.step(source.choice((0.1, 0.4)))
        trace = going.trace()
        failed = source.sample(trace.agents, source.randint(1, len(trace.agents)))
        line = line_by_fix_point(trace, failed)
        live = Ends(trace).start(())
        for agent, number in line.items():
            if number < live[agent] and number <= today[agent] and number not in kept[agent]:
                return f"{agent} needs {number} when {failed} fail"
        if source.random() < 0.6:
            trace = undo(trace, line)
            today = {agent: min(number, line[agent]) for agent, number in today.items()}
    return ""


def losses(rule: Callable[[Trace], Kept], seeds: range) -> int:
    found = 0
    for seed in seeds:
        source = random.Random(seed)
        trace = random_trace(source, source.randint(2, 5), source.randint(5, 50), source.choice((0.15, 0.4)))
        found += bool(needed_later(trace, rule(trace), source))
    return found


def test_no_continuation_needs_an_obsolete_checkpoint() -> None:
    assert losses(kept_by_rule, range(300)) == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_continuation_needs_an_obsolete_checkpoint_in_many() -> None:
    assert losses(kept_by_rule, range(2_000, 40_000)) == 0


def keep_the_latest(trace: Trace) -> Kept:
    return {agent: {number} for agent, number in Ends(trace).last.items()}


def keep_todays_total_failure_line(trace: Trace) -> Kept:
    return {agent: {number} for agent, number in line_by_fix_point(trace, trace.agents).items()}


def keep_what_single_failures_need_without_live_states(trace: Trace) -> Kept:
    """The line of a failure in which everybody goes back at least to its last checkpoint: one line for all."""
    line: Cut = line_by_fix_point(trace, trace.agents)
    return {agent: {line[agent], last} for agent, last in Ends(trace).last.items()}


@pytest.mark.parametrize(
    "rule", [keep_the_latest, keep_todays_total_failure_line, keep_what_single_failures_need_without_live_states]
)
def test_a_greedy_rule_is_noticed(rule: Callable[[Trace], Kept]) -> None:
    assert losses(rule, range(150)) > 0
