"""Compact numeric form of an execution, on which every trace analysis works, and the execution's recovery lines.

Theory of operation
-------------------
Interval I(i,x) is what agent i does from its checkpoint x to its checkpoint x+1; the last interval is live. For
recovery lines, useless and obsolete checkpoints only the interval of a send or receive matters, not its place in it. So
a trace of a million events becomes one *node* per interval and one pair of nodes per message. Nodes are numbered in the
order in which their checkpoints were taken; agents and messages by their order in the trace. An execution is built in one
pass.

A cut is written as a *line*: by agent, the number of its first interval outside the cut. The number x means that the
agent returns to checkpoint x; one more than the last checkpoint means that the agent keeps its live state. Lines are
compared entry by entry; the consistent lines are closed under entrywise minimum and maximum (protocols.md, section 6).

Recovery lines
--------------
Two independent algorithms find the recovery line, and a third computes the domino effect round by round. Some agents
fail and return to their last checkpoint; the others keep their live states. While an agent has received a message that no
agent has sent (an orphan), this agent must return to an earlier checkpoint. The line is the result: the greatest
consistent cut below the start. Consistent cuts are closed under entrywise maximum, so there is exactly one (G5), and the
following algorithms must agree on it:

- `recovery_line`, on the rollback-dependency graph (Bhargava and Lian 1988). Nodes are intervals; an interval undone
  undoes the agent's next one and every interval that received from it. Undone is all that can be reached from the live
  intervals of the failed; an agent goes back to the checkpoint that opens its first undone interval. Since an agent's
  undone intervals are always a tail, one number per agent is enough, and each message is looked at once.
- `recovery_line_by_checkpoints`, on the checkpoint graph (Wang et al. 1995). Nodes are checkpoints and the live states of survivors;
  edges lead from each to the agent's next, and, for a message, from the checkpoint that opens the interval of its send to the one that
  closes that of its receive. As long as a root is reachable from a root, every such root moves down to its agent's last node that is
  not reachable from any root.
- `rounds`, the orphan fix-point in synchronous steps: in each step, all receivers of orphans roll back at once. This shows which agents
  forced others to roll back, which is the domino effect (Randell 1975).

All are linear in intervals and messages, since every node is entered once. Live states are part of the definition:
without them a survivor would lose work that no failure touches (protocols.md, section 6).
"""

from collections.abc import Collection, Iterable

import msgspec

from snapline.errors import UsageError
from snapline.recovery.trace import CheckpointTaken, MessageSent, Trace

NOT_RECEIVED = -1
"""Marker in `Execution.received`: this message was never received."""

Line = list[int]


class Execution(msgspec.Struct, frozen=True):
    """An execution: the intervals of its agents, and the messages between them. Read only.

    Attributes:
        agents: names; an agent is its index here.
        intervals: by agent, the nodes of its intervals 0, 1, 2 …; the last one is live.
        agent_of, number_of: by node, the agent and the number of the interval.
        events: by node, the number of its sends and receives.
        messages: ids in send order; a message is its index here.
        sent: by message, the node of its send.
        received: by message, the node of its receive, or LOST.
        sends: by node, its messages in send order.
        forced: number of forced checkpoints.
    """

    agents: list[str]
    intervals: list[list[int]]
    agent_of: list[int]
    number_of: list[int]
    events: list[int]
    messages: list[str]
    sent: list[int]
    received: list[int]
    sends: list[list[int]]
    forced: int

    @staticmethod
    def of(trace: Trace) -> "Execution":
        """Return the execution that `trace` describes."""
        count = len(trace.agents)
        index = {agent: i for i, agent in enumerate(trace.agents)}
        intervals = [[i] for i in range(count)]
        agent_of, number_of = list(range(count)), [0] * count
        live = list(range(count))
        events = [0] * count
        messages: list[str] = []
        sent: list[int] = []
        received: list[int] = []
        sends: list[list[int]] = [[] for _ in range(count)]
        known: dict[str, int] = {}
        forced = 0
        for event in trace.events:
            agent = index[event.agent]
            kind = type(event)
            if kind is CheckpointTaken:
                live[agent] = node = len(agent_of)
                agent_of.append(agent)
                number_of.append(len(intervals[agent]))
                intervals[agent].append(node)
                events.append(0)
                sends.append([])
                forced += event.kind == "forced"  # type: ignore[union-attr]  # the type is known, and isinstance is slow
                continue
            node = live[agent]
            events[node] += 1
            if kind is MessageSent:
                message = event.message  # type: ignore[union-attr]  # as above
                known[message] = len(messages)
                sends[node].append(len(messages))
                messages.append(message)
                sent.append(node)
                received.append(NOT_RECEIVED)
            else:
                received[known[event.message]] = node  # type: ignore[union-attr]  # as above
        return Execution(trace.agents, intervals, agent_of, number_of, events, messages, sent, received, sends, forced)

    def live_line(self) -> Line:
        """Return the line on which every agent keeps its live state."""
        return [len(nodes) for nodes in self.intervals]

    def start(self, failed: Iterable[int]) -> Line:
        """Return the line with the failed agents at their last checkpoints and the other agents at their live states."""
        line = self.live_line()
        for agent in failed:
            line[agent] = len(self.intervals[agent]) - 1
        return line

    def is_inside(self, node: int, line: Line) -> bool:
        """Return whether the interval lies before the line."""
        return self.number_of[node] < line[self.agent_of[node]]

    def in_transit(self, line: Line) -> list[int]:
        """Return the messages sent inside the line and not received inside it, in send order."""
        number_of, agent_of = self.number_of, self.agent_of
        return [
            message
            for message, (sent, received) in enumerate(zip(self.sent, self.received, strict=True))
            if number_of[sent] < line[agent_of[sent]]
            and (received == NOT_RECEIVED or number_of[received] >= line[agent_of[received]])
        ]

    def ordinals(self, failed: Collection[str] | None) -> list[int]:
        """Return the ordinals of these agents, or of all agents if None, ascending.

        Raises:
            UsageError: an agent is not in the trace.
        """
        if failed is None:
            return list(range(len(self.agents)))
        named = set(failed)
        unknown = sorted(named.difference(self.agents))
        if unknown:
            known = ", ".join(self.agents) or "none at all"
            raise UsageError(f"the trace has no agent {', '.join(map(repr, unknown))}: it has {known}")
        return [i for i, agent in enumerate(self.agents) if agent in named]


class Round(msgspec.Struct, frozen=True):
    """One step of the domino effect.

    Attributes:
        moved: agent → the checkpoint to which the agent returns in this round, in the order of the trace's agents.
        orphans: the messages that forced the round, in send order; empty in round 0, which rolls the failed agents back.
    """

    moved: dict[str, int]
    orphans: list[str]


class Step(msgspec.Struct, frozen=True):
    """Like `Round`, with ordinals instead of names."""

    moved: dict[int, int]
    orphans: list[int]


def recovery_line(execution: Execution, failed: Collection[int]) -> Line:
    """Return the recovery line if these agents fail, computed with the rollback-dependency graph."""
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
    """Return the recovery line if these agents fail, computed with the checkpoint graph."""
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
            while is_marked[agent][root]:  # stops at the initial checkpoint, to which no edge leads
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
    """Return the domino effect in synchronous rounds. The first round rolls the failed agents back; each later round moves at least one
    agent.

    A round's orphans are those of the cut at its start. Only sends undone in the previous round can have caused them:
    the receivers of earlier orphans have rolled back already.
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
    """Return the rounds of `rounds` with names instead of ordinals.

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
