"""A compact numeric representation of an execution, which all trace analyses use, and algorithms that compute its recovery lines.

Theory of operation
-------------------
The interval I(i,x) is the part of agent i's execution from its checkpoint x to its checkpoint x+1. An agent's last interval is live, which
means that it ends at the agent's current state. The position of a send or receive within its interval does not affect recovery lines or
useless and obsolete checkpoints. So a trace becomes one *node* per interval and one pair of nodes per message. Nodes are numbered in the
order in which their checkpoints were taken. Agents and messages are numbered in the order of the trace. An execution is built in one pass
over the trace.

A cut is represented by a *line*: a list that contains, for each agent, the number of the agent's first interval outside the cut. If an
agent's number is x, the agent returns to checkpoint x. If an agent's number is one more than its last checkpoint, the agent keeps its live
state. Lines are compared entry by entry. The consistent lines are closed under entrywise minimum and maximum (protocols.md, section 6).

Recovery lines
--------------
Two independent algorithms compute the recovery line, and a third computes the rounds of the domino effect. The failed agents return to
their last checkpoints, and the other agents keep their live states at first. While an agent has received an orphan, which is a message that
no agent has sent, the agent must return to an earlier checkpoint. The result is the recovery line, which is the greatest consistent cut
that is not after these initial states. Consistent cuts are closed under entrywise maximum, so there is exactly one recovery line (G5), and
the following algorithms must agree on it.

- `recovery_line` uses the rollback-dependency graph (Bhargava and Lian 1988). Nodes are intervals. If an interval is undone, the agent's
  next interval and every interval that received a message from it are also undone. So every interval is undone that is reachable from the
  live interval of a failed agent. An agent returns to the checkpoint that begins its first undone interval. An agent's undone intervals are
  always its last ones, so one number per agent is sufficient, and each message is examined once.
- `recovery_line_by_checkpoints` uses the checkpoint graph (Wang et al. 1995). Nodes are checkpoints and the live states of survivors. An
  edge leads from each node to the next node of the same agent. For each message, an edge leads from the checkpoint that begins the interval
  of its send to the checkpoint that ends the interval of its receive. The *roots* are initially the last nodes of all agents. As long as a
  root is reachable from any root, that root is replaced by its agent's last node that is not reachable from any root.
- `rounds` rolls agents back in synchronous rounds: in each round, all receivers of orphans roll back at the same time. The rounds show
  which agents forced others to roll back, which is the domino effect (Randell 1975).

The time of each algorithm is linear in the number of intervals and messages, since every node is entered once. Live states are part of the
definition of a recovery line, because without them a survivor would lose work that no failure affects (protocols.md, section 6).
"""

from collections.abc import Collection, Iterable

import msgspec

from snapline.errors import UsageError
from snapline.recovery.trace import CheckpointTaken, MessageSent, Trace

NOT_RECEIVED = -1
"""Value in `Execution.received` for a message that was never received."""

Line = list[int]


class Execution(msgspec.Struct, frozen=True):
    """An execution, with the intervals of its agents and the messages between them. Read only.

    Attributes:
        agents: names of the agents. An agent is identified by its index in this list.
        intervals: for each agent, the nodes of its intervals 0, 1, 2 …, where the last interval is live.
        agent_of, number_of: for each node, its agent and the number of its interval.
        events: for each node, the number of sends and receives in its interval.
        messages: ids of the messages in send order. A message is identified by its index in this list.
        sent: for each message, the node of the interval in which it was sent.
        received: for each message, the node of the interval in which it was received, or NOT_RECEIVED.
        sends: for each node, the messages sent in its interval, in send order.
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
        """Return the line on which the failed agents are at their last checkpoints, and the other agents keep their live states."""
        line = self.live_line()
        for agent in failed:
            line[agent] = len(self.intervals[agent]) - 1
        return line

    def is_inside(self, node: int, line: Line) -> bool:
        """Return whether the node's interval lies inside the line."""
        return self.number_of[node] < line[self.agent_of[node]]

    def in_transit(self, line: Line) -> list[int]:
        """Return the messages that were sent inside the line but not received inside it, in send order."""
        number_of, agent_of = self.number_of, self.agent_of
        return [
            message
            for message, (sent, received) in enumerate(zip(self.sent, self.received, strict=True))
            if number_of[sent] < line[agent_of[sent]]
            and (received == NOT_RECEIVED or number_of[received] >= line[agent_of[received]])
        ]

    def ordinals(self, failed: Collection[str] | None) -> list[int]:
        """Return the indices of these agents in ascending order. If `failed` is None, return the indices of all agents.

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
    """One round of the domino effect.

    Attributes:
        moved: for each agent that rolls back in this round, the checkpoint to which it returns. Agents are in the order of the trace.
        orphans: ids of the orphans that caused the round, in send order. The list is empty in the first round, which rolls the failed
            agents back.
    """

    moved: dict[str, int]
    orphans: list[str]


class Step(msgspec.Struct, frozen=True):
    """One round of the domino effect, like `Round`, but with indices of agents and messages instead of names."""

    moved: dict[int, int]
    orphans: list[int]


def recovery_line(execution: Execution, failed: Collection[int]) -> Line:
    """Return the recovery line for a failure of these agents, computed with the rollback-dependency graph."""
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
    """Return the recovery line for a failure of these agents, computed with the checkpoint graph."""
    roots = execution.start(failed)
    nodes = [
        root + 1 for root in roots
    ]  # c(i,0) … to the failed agent's last checkpoint, or to the survivor's live state
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
            while is_marked[agent][root]:  # this stops at the initial checkpoint, to which no edge leads
                root -= 1
            has_moved |= root < roots[agent]
            roots[agent] = root
        if not has_moved:
            return roots


def _edges(execution: Execution, agent: int, number: int) -> list[tuple[int, int]]:
    """Return the edges of the checkpoint graph that start at checkpoint `number` of `agent`. An edge may lead to a state that is not a node
    of the graph."""
    if number == len(execution.intervals[agent]):
        return []  # no interval follows a live state
    edges = [(agent, number + 1)]
    for message in execution.sends[execution.intervals[agent][number]]:
        node = execution.received[message]
        if node != NOT_RECEIVED:
            edges.append((execution.agent_of[node], execution.number_of[node] + 1))
    return edges


def rounds(execution: Execution, failed: Collection[int]) -> list[Step]:
    """Return the synchronous rounds of the domino effect. The first round rolls the failed agents back. Each later round rolls back at
    least one agent.

    The orphans of a round are the orphans in the cut at the start of the round. Only sends undone in the previous round can have caused
    these orphans, because the receivers of earlier orphans have already rolled back.
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
    """Return the same rounds as `rounds`, with names instead of indices.

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
