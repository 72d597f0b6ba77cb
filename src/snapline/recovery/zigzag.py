"""Useless checkpoints (Z-cycles) and untracked dependencies, from the R-graph.

Theory of operation
-------------------
A Z-path from c(i,x) to c(j,y) is a sequence of messages: i sends the first after c(i,x), the receiver of each sends the next
one in the same or a later interval, perhaps before that receive, and j receives the last before c(j,y) (Netzer and Xu
1995). A set of checkpoints extends to a consistent cut iff no Z-path leads from one of them to another, or to itself;
so c is *useless* iff a Z-path leads from it to itself. Live states count as last checkpoints.

The R-graph has the intervals as nodes and edges I(i,x) → I(i,x+1) and, for each message, from the interval of its send
to that of its receive. Z-paths from c(i,x) to c(j,y) are its paths from I(i,x) to I(j,y-1) with at least one message.
c(i,x) is therefore useless iff I(i,x) reaches I(i,x-1). As I(i,x-1) → I(i,x) is an edge, that is: iff both lie in one
strongly connected component. One pass of Tarjan (1972) answers for all checkpoints at once, in linear time.

RDT, rollback-dependency trackability (Wang 1997): a causal path connects everything that a Z-path connects, so that
dependency vectors show it. That check costs intervals and messages times agents.
"""

from itertools import pairwise

import msgspec

from snapline.recovery.execution import NOT_RECEIVED, Execution
from snapline.recovery.trace import CheckpointTaken, MessageSent, Trace


class Untracked(msgspec.Struct, frozen=True):
    """A Z-path leads from `sender`'s interval to `receiver`'s, and no causal path does."""

    sender: str
    sender_interval: int
    receiver: str
    receiver_interval: int


def edges_of(execution: Execution) -> list[list[int]]:
    """Return, by node, where the R-graph leads from it."""
    received = execution.received
    edges = [
        [received[message] for message in messages if received[message] != NOT_RECEIVED] for messages in execution.sends
    ]
    for nodes in execution.intervals:
        for node, after in pairwise(nodes):
            edges[node].append(after)
    return edges


def components_of(edges: list[list[int]]) -> list[int]:
    """Return, by node, its strongly connected component. Edges between components lead from higher numbers to lower ones."""
    count = len(edges)
    component = [-1] * count
    entered = [0] * count  # order of entry, from 1; 0: not visited yet
    lowest = [0] * count
    open_nodes: list[int] = []
    clock = components = 0
    for root in range(count):
        if entered[root]:
            continue
        path = [root]
        edge_iterators = [iter(edges[root])]
        clock += 1
        entered[root] = lowest[root] = clock
        open_nodes.append(root)
        while path:
            node = path[-1]
            low = lowest[node]
            for target in edge_iterators[-1]:
                if not entered[target]:
                    clock += 1
                    entered[target] = lowest[target] = clock
                    open_nodes.append(target)
                    path.append(target)
                    edge_iterators.append(iter(edges[target]))
                    break
                if component[target] < 0 and entered[target] < low:
                    low = entered[target]
            else:
                path.pop()
                edge_iterators.pop()
                if low == entered[node]:
                    while component[node] < 0:
                        component[open_nodes.pop()] = components
                    components += 1
                elif low < lowest[path[-1]]:
                    lowest[path[-1]] = low
            lowest[node] = low
    return component


def useless(execution: Execution, component: list[int]) -> list[list[int]]:
    """Return, by agent, the numbers of its useless checkpoints, ascending. `component`: `components_of(edges_of(execution))`."""
    return [
        [number for number, (before, node) in enumerate(pairwise(nodes), 1) if component[before] == component[node]]
        for nodes in execution.intervals
    ]


def untracked(trace: Trace) -> list[Untracked]:
    """Return the violations of RDT: for each pair of an interval and another agent, the last interval that is not tracked.

    The vector of an interval is that of its closing checkpoint: by agent, the last interval from which a causal path
    leads to it. Time and space grow with the trace times its agents: for tests and traces of moderate size.
    """
    execution = Execution.of(trace)
    edges = edges_of(execution)
    reaching = _last_reaching(execution, edges, components_of(edges))
    causal = _causal_vectors(trace, execution)
    names = execution.agents
    return [
        Untracked(names[agent], zigzag[agent], names[execution.agent_of[node]], execution.number_of[node])
        for node, zigzag in enumerate(reaching)
        for agent in range(len(names))
        if zigzag[agent] > causal[node][agent]
    ]


def _last_reaching(execution: Execution, edges: list[list[int]], component: list[int]) -> list[list[int]]:
    """Return, by node, by agent: the last interval of that agent from which the R-graph leads to the node; -1 if none."""
    vectors = [[-1] * len(execution.agents) for _ in range(max(component, default=-1) + 1)]
    for node, agent in enumerate(execution.agent_of):
        vector = vectors[component[node]]
        vector[agent] = max(vector[agent], execution.number_of[node])
    for node in sorted(range(len(edges)), key=component.__getitem__, reverse=True):
        source = vectors[component[node]]
        for target in edges[node]:
            if component[target] != component[node]:
                vectors[component[target]] = list(map(max, vectors[component[target]], source))
    return [vectors[component[node]] for node in range(len(edges))]


def _causal_vectors(trace: Trace, execution: Execution) -> list[list[int]]:
    """Return, by node, by agent: the last interval of that agent from which a causal path leads to the end of the node."""
    agents = {agent: i for i, agent in enumerate(trace.agents)}
    current = [[-1] * len(agents) for _ in agents]
    for agent, vector in enumerate(current):
        vector[agent] = 0
    closed: list[list[int]] = [[] for _ in execution.agent_of]
    carried: dict[str, list[int]] = {}
    for event in trace.events:
        agent = agents[event.agent]
        vector = current[agent]
        if isinstance(event, CheckpointTaken):
            closed[execution.intervals[agent][event.number - 1]] = list(vector)
            vector[agent] = event.number
        elif isinstance(event, MessageSent):
            carried[event.message] = list(vector)
        else:
            current[agent] = list(map(max, vector, carried[event.message]))
    for agent, vector in enumerate(current):
        closed[execution.intervals[agent][-1]] = vector
    return closed
