"""Useless checkpoints against their definition, untracked dependencies against theirs, and mutants of both."""

import random
from collections.abc import Callable, Iterator

import pytest
from tests.recovery.executions import consistent_cuts, parse, random_trace, small_trace, useless_by_definition

from snapline.recovery.execution import NOT_RECEIVED, Execution
from snapline.recovery.trace import CheckpointTaken, MessageSent, Trace
from snapline.recovery.trace_analysis import components_of, edges_of, untracked, useless

Useless = dict[str, list[int]]


def by_name(numbers: list[list[int]], trace: Trace) -> Useless:
    return {agent: found for agent, found in zip(trace.agents, numbers, strict=True) if found}


def by_components(trace: Trace) -> Useless:
    execution = Execution.of(trace)
    return by_name(useless(execution, components_of(edges_of(execution))), trace)


def test_the_vector() -> None:
    """V4: c's checkpoint 1 lies on a Z-cycle."""
    trace = parse("b>c c! c>a a>b")
    assert by_components(trace) == {"c": [1]}
    assert untracked(trace)


def test_the_newest_checkpoint_is_not_useless() -> None:
    """Live states count as last checkpoints: the cut of c(a,1) and b's live state is consistent."""
    assert by_components(parse("a>b a!")) == {}


def test_no_events_no_useless() -> None:
    assert by_components(Trace([], [])) == by_components(Trace(["a"], [])) == {}


def disagreements(way: Callable[[Trace], Useless], seeds: range) -> Iterator[str]:
    for seed in seeds:
        trace = small_trace(seed)
        expected = useless_by_definition(trace, consistent_cuts(trace))
        if (found := way(trace)) != expected:
            yield f"seed {seed}: {found}, by definition {expected}"


def test_useless_is_what_no_consistent_cut_contains() -> None:
    assert not list(disagreements(by_components, range(600)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_useless_is_what_no_consistent_cut_contains_in_many() -> None:
    assert not list(disagreements(by_components, range(2_000, 150_000)))


@pytest.mark.parametrize("seed", range(40))
def test_useless_by_a_search_from_each_checkpoint(seed: int) -> None:
    """Larger executions than cuts can be enumerated for: the R-graph's rule itself, one search per checkpoint."""
    source = random.Random(seed)
    trace = random_trace(source, source.randint(2, 10), 300, source.choice((0.05, 0.2)))
    execution = Execution.of(trace)
    assert by_components(trace) == by_name(by_search(execution, edges_of(execution)), trace)


def by_search(execution: Execution, edges: list[list[int]]) -> list[list[int]]:
    """c(i,x) is useless iff I(i,x-1) is reachable from I(i,x)."""
    return [
        [number for number in range(1, len(nodes)) if nodes[number - 1] in reachable(edges, nodes[number])]
        for nodes in execution.intervals
    ]


def reachable(edges: list[list[int]], start: int) -> set[int]:
    found, waiting = {start}, [start]
    while waiting:
        for target in edges[waiting.pop()]:
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found


@pytest.mark.parametrize("seed", range(30))
def test_components_against_mutual_reach(seed: int) -> None:
    source = random.Random(seed)
    count = source.randint(1, 30)
    edges = [[source.randrange(count) for _ in range(source.randint(0, 3))] for _ in range(count)]
    component = components_of(edges)
    reach = [reachable(edges, node) for node in range(count)]
    for node in range(count):
        for other in range(count):
            assert (component[node] == component[other]) == (other in reach[node] and node in reach[other])
        assert all(component[node] >= component[target] for target in edges[node]), "higher leads to lower"


def test_a_long_cycle_needs_no_deep_stack() -> None:
    count = 200_000
    assert set(components_of([[(node + 1) % count] for node in range(count)])) == {0}


# -- mutants of the test for useless checkpoints -----------------------------------------------------------------------


def causal_paths_only(trace: Trace) -> Useless:
    """A path may go on only with what was sent after its last receive: on events, that never leads back."""
    after: dict[int, list[int]] = {position: [] for position in range(len(trace.events))}
    latest: dict[str, int] = {}
    sent: dict[str, int] = {}
    for position, event in enumerate(trace.events):
        if event.agent in latest:
            after[latest[event.agent]].append(position)
        latest[event.agent] = position
        if isinstance(event, MessageSent):
            sent[event.message] = position
        elif not isinstance(event, CheckpointTaken):
            after[sent[event.message]].append(position)
    reach = {position: reachable(list(after.values()), position) for position in after}
    found: Useless = {}
    for position, event in enumerate(trace.events):
        if isinstance(event, CheckpointTaken) and any(earlier in reach[position] for earlier in range(position)):
            found.setdefault(event.agent, []).append(event.number)
    return found


def same_interval_only(trace: Trace) -> Useless:
    """A path may go on only in the interval of its last receive, not in a later one."""
    execution = Execution.of(trace)
    messages = [
        [execution.received[m] for m in sends if execution.received[m] != NOT_RECEIVED] for sends in execution.sends
    ]
    return by_name(by_search(execution, messages), trace)


def live_states_left_out(trace: Trace) -> Useless:
    """What only the live state has received belongs to no cut."""
    last = {agent: max((e.number for e in events_of(trace, agent)), default=0) for agent in trace.agents}
    cuts = [cut for cut in consistent_cuts(trace) if all(cut[agent] <= last[agent] for agent in cut)]
    return useless_by_definition(trace, cuts)


def events_of(trace: Trace, agent: str) -> list[CheckpointTaken]:
    return [event for event in trace.events if isinstance(event, CheckpointTaken) and event.agent == agent]


@pytest.mark.parametrize("way", [causal_paths_only, same_interval_only, live_states_left_out])
def test_a_faulty_test_is_noticed(way: Callable[[Trace], Useless]) -> None:
    assert next(disagreements(way, range(300)), None) is not None


# -- untracked dependencies ---------------------------------------------------------------------------------------------


def untracked_by_definition(trace: Trace) -> set[tuple[str, int, str, int]]:
    """All (i, x, j, y) where I(i,x) leads to I(j,y) in the R-graph and no causal path from I(i,≥x) to I(j,≤y) exists.

    Causal paths are followed on events: program order and messages.
    """
    execution = Execution.of(trace)
    edges = edges_of(execution)
    node_of = interval_of_events(trace, execution)
    after: list[list[int]] = [[] for _ in trace.events]
    latest: dict[str, int] = {}
    sent: dict[str, int] = {}
    for position, event in enumerate(trace.events):
        if event.agent in latest:
            after[latest[event.agent]].append(position)
        latest[event.agent] = position
        if isinstance(event, MessageSent):
            sent[event.message] = position
        elif not isinstance(event, CheckpointTaken):
            after[sent[event.message]].append(position)
    causal = set()
    for position in range(len(trace.events)):
        causal |= {(node_of[position], node_of[other]) for other in reachable(after, position)}
    found = set()
    for start, sender in enumerate(execution.agent_of):
        for end in reachable(edges, start):
            receiver = execution.agent_of[end]
            is_tracked = any(
                (a, b) in causal or a == b
                for a in execution.intervals[sender][execution.number_of[start] :]
                for b in execution.intervals[receiver][: execution.number_of[end] + 1]
            )
            if not is_tracked:
                names = execution.agents
                found.add((names[sender], execution.number_of[start], names[receiver], execution.number_of[end]))
    return found


def interval_of_events(trace: Trace, execution: Execution) -> list[int]:
    """By event, its node; a checkpoint belongs to the interval that it opens."""
    numbers = dict.fromkeys(trace.agents, 0)
    nodes = []
    for event in trace.events:
        if isinstance(event, CheckpointTaken):
            numbers[event.agent] = event.number
        nodes.append(execution.intervals[trace.agents.index(event.agent)][numbers[event.agent]])
    return nodes


def test_untracked_dependencies_against_their_definition() -> None:
    """For each agent and interval the latest untracked one is reported; earlier ones may hide behind it."""
    seen = 0
    for seed in range(150):
        source = random.Random(seed)
        trace = random_trace(source, source.randint(2, 4), 25, source.choice((0.1, 0.3)))
        expected = untracked_by_definition(trace)
        latest: dict[tuple[str, str, int], int] = {}
        for sender, x, receiver, y in expected:
            latest[sender, receiver, y] = max(x, latest.get((sender, receiver, y), x))
        found = {
            (entry.sender, entry.receiver, entry.receiver_interval): entry.sender_interval for entry in untracked(trace)
        }
        assert found == latest, f"seed {seed}"
        seen += bool(expected)
    assert seen > 50
