"""The recovery line of an execution, by two independent algorithms, and the domino round by round.

Theory of operation
-------------------
Some agents fail and go back to their last checkpoint; the others have their live states. While an agent has received a message that no agent has
sent (an orphan), this agent must go back further. The recovery line is the result: the greatest consistent cut below the start.
Consistent cuts are closed under entrywise maximum, so there is exactly one (G5), and these must agree on it:

- `recovery_line`, on the rollback-dependency graph (Bhargava and Lian 1988). Nodes are intervals; an interval undone
  undoes the agent's next one and every interval that received from it. Undone is all that can be reached from the live
  intervals of the failed; an agent goes back to the checkpoint that opens its first undone interval. Since an agent's
  undone intervals are always a tail, one number per agent is enough, and each message is looked at once.
- `recovery_line_by_checkpoints`, on the checkpoint graph (Wang et al. 1995). Nodes are checkpoints and the live states
  of survivors; edges lead from each to the agent's next, and, for a message, from the checkpoint that opens the interval
  of its send to the one that closes that of its receive. As long as a root is reachable from a root, every such root
  moves down to its agent's last node not reachable from any.
- `rounds`, the orphan fix-point in synchronous steps: in each, all receivers of orphans go back at once. This shows which agents forced
  others to roll back, which is the domino effect (Randell 1975).

All are linear in intervals and messages, since every node is entered once. Live states are part of the definition:
without them a survivor would lose work that no failure touches (protocols.md, section 6).
"""

from collections.abc import Collection

import msgspec

from snapline.recovery.execution import NOT_RECEIVED, Execution, Line
from snapline.recovery.trace import Trace


class Round(msgspec.Struct, frozen=True):
    """One step of the domino.

    Attributes:
        moved: agent → the checkpoint it goes back to in this round, in the order of the trace's agents.
        orphans: the messages that forced the round, in send order; none in round 0, which sets the failed agents back.
    """

    moved: dict[str, int]
    orphans: list[str]


class Step(msgspec.Struct, frozen=True):
    """`Round` in ordinals."""

    moved: dict[int, int]
    orphans: list[int]


def recovery_line(execution: Execution, failed: Collection[int]) -> Line:
    """The recovery line if these agents fail, by the rollback-dependency graph."""
    received, agent_of, number_of = execution.received, execution.agent_of, execution.number_of
    line = execution.start(failed)
    waiting = [execution.intervals[agent][-1] for agent in failed]
    while waiting:
        for message in execution.sends[waiting.pop()]:
            node = received[message]
            if node == NOT_RECEIVED:
                continue
            agent, number = agent_of[node], number_of[node]
            if number < line[agent]:
                waiting += execution.intervals[agent][number : line[agent]]
                line[agent] = number
    return line


def recovery_line_by_checkpoints(execution: Execution, failed: Collection[int]) -> Line:
    """The recovery line if these agents fail, by the checkpoint graph."""
    roots = execution.start(failed)
    nodes = [root + 1 for root in roots]  # c(i,0) … the failed's last checkpoint, or the survivor's live state
    is_marked = [bytearray(count) for count in nodes]
    is_expanded = [bytearray(count) for count in nodes]
    while True:
        waiting = list(enumerate(roots))
        while waiting:
            agent, number = waiting.pop()
            if is_expanded[agent][number]:
                continue
            is_expanded[agent][number] = True
            for target, closing in _edges(execution, agent, number):
                if closing < nodes[target] and not is_marked[target][closing]:
                    is_marked[target][closing] = True
                    waiting.append((target, closing))
        has_moved = False
        for agent, root in enumerate(roots):
            while is_marked[agent][root]:  # stops at the initial one: no edge leads to it
                root -= 1
            has_moved |= root < roots[agent]
            roots[agent] = root
        if not has_moved:
            return roots


def _edges(execution: Execution, agent: int, number: int) -> list[tuple[int, int]]:
    """Return the checkpoint graph's edges out of c(agent, number), whether or not their ends are nodes."""
    if number == len(execution.intervals[agent]):
        return []  # a live state has no future
    edges = [(agent, number + 1)]
    for message in execution.sends[execution.intervals[agent][number]]:
        node = execution.received[message]
        if node != NOT_RECEIVED:
            edges.append((execution.agent_of[node], execution.number_of[node] + 1))
    return edges


def rounds(execution: Execution, failed: Collection[int]) -> list[Step]:
    """Return the domino in synchronous rounds. The first sets the failed agents back; each later one moves an agent.

    A round's orphans are those of the cut at its start. Only sends undone in the round before can have made them: the
    receivers of earlier ones have gone back already.
    """
    received, agent_of, number_of = execution.received, execution.agent_of, execution.number_of
    line = execution.live_line()
    moved = {agent: len(execution.intervals[agent]) - 1 for agent in sorted(failed)}
    orphans: list[int] = []
    steps = [Step(moved, orphans)]
    while moved:
        undone: list[int] = []
        for agent, number in moved.items():
            undone += execution.intervals[agent][number : line[agent]]
            line[agent] = number
        orphans = [
            message
            for node in undone
            for message in execution.sends[node]
            if received[message] != NOT_RECEIVED and number_of[received[message]] < line[agent_of[received[message]]]
        ]
        lowest: dict[int, int] = {}
        for message in orphans:
            node = received[message]
            agent = agent_of[node]
            lowest[agent] = min(number_of[node], lowest.get(agent, line[agent]))
        moved = dict(sorted(lowest.items()))
        if moved:
            steps.append(Step(moved, sorted(orphans)))
    return steps


def domino_rounds(trace: Trace, failed: Collection[str]) -> list[Round]:
    """Return `rounds` with names.

    Raises:
        UsageError: an agent is not in the trace.
    """
    execution = Execution.of(trace)
    return [
        Round(
            {execution.agents[agent]: number for agent, number in step.moved.items()},
            [execution.messages[message] for message in step.orphans],
        )
        for step in rounds(execution, execution.ordinals(failed))
    ]
