"""Obsolete checkpoints: those that no later recovery line can contain (G7).

Theory of operation
-------------------
A checkpoint is kept iff it is on the recovery line of some *single* failure, the survivors at their live states; later
lines, also after further recoveries, use no other (protocols.md, section 7). The line of several failures is the
entrywise minimum of their single lines, so its entries are among theirs. At most N(N+1)/2 checkpoints stay for N agents
(Wang, Chung, Lin and Fuchs 1995).

On the R-graph (`zigzag`): the failure of i undoes what is reachable from i's live interval. Give every interval the set
of agents whose live interval reaches it. Along one agent's intervals the set only grows, and c(j,x) is on the line of
i iff I(j,x) is the first of j's intervals whose set has i. So c(j,x) stays iff the set grows at I(j,x). The sets are
bits of integers and are passed once along each edge between components: all N lines together cost one pass over the
messages instead of N.

This applies to a trace, in which all live states are known. For reports that arrive at different times, find the greatest
consistent cut of the known states first: otherwise a needed checkpoint can be lost.
"""

from snapline.recovery.execution import Execution


def failures_undoing(execution: Execution, edges: list[list[int]], component: list[int]) -> list[int]:
    """Return, by node, the agents whose single failure undoes it: bit i is agent i.

    Args:
        execution: the execution.
        edges: `zigzag.edges_of(execution)`.
        component: `zigzag.components_of(edges)`.
    """
    undone_by = [0] * (max(component, default=-1) + 1)
    for agent, nodes in enumerate(execution.intervals):
        undone_by[component[nodes[-1]]] |= 1 << agent
    for node in sorted(range(len(edges)), key=component.__getitem__, reverse=True):
        agents = undone_by[component[node]]
        if agents:
            for target in edges[node]:
                undone_by[component[target]] |= agents
    return [undone_by[component[node]] for node in range(len(edges))]


def obsolete(execution: Execution, undone_by: list[int]) -> list[list[int]]:
    """Return, by agent, the numbers of its obsolete checkpoints, ascending. `undone_by`: result of `failures_undoing`."""
    by_agent: list[list[int]] = []
    for nodes in execution.intervals:
        numbers = []
        before = 0
        for number, node in enumerate(nodes):
            if undone_by[node] == before:
                numbers.append(number)
            before = undone_by[node]
        by_agent.append(numbers)
    return by_agent
