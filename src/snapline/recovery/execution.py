"""An execution as plain numbers: input of every analysis of a trace.

Theory of operation
-------------------
Interval I(i,x) is what agent i does from its checkpoint x to its checkpoint x+1; the last interval is live. For
recovery lines, useless and obsolete checkpoints only the interval of a send or receive matters, not its place in it. So
a trace of a million events becomes one *node* per interval and one pair of nodes per message. Nodes are numbered in the
order in which their checkpoints were taken; agents and messages by their order in the trace. Built in one pass.

A cut is written as a *line*: by agent, the number of its first interval outside. x means that the agent goes back to
checkpoint x; one more than the last checkpoint means that it keeps its live state. Lines are compared entry by entry;
the consistent ones are closed under entrywise minimum and maximum (protocols.md, section 6).
"""

from collections.abc import Collection, Iterable

import msgspec

from snapline.errors import UsageError
from snapline.recovery.trace import CheckpointTaken, MessageSent, Trace

NOT_RECEIVED = -1
"""Marker in `Execution.received`: this message was never received."""

Line = list[int]


class Execution(msgspec.Struct, frozen=True):
    """Intervals, and the messages between them. Read only.

    Attributes:
        agents: names; an agent is its index here.
        intervals: by agent, the nodes of its intervals 0, 1, 2 …; the last one is live.
        agent_of, number_of: by node, its agent and the number of the interval.
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
        """The execution that `trace` describes."""
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
        """Everyone keeps its live state."""
        return [len(nodes) for nodes in self.intervals]

    def start(self, failed: Iterable[int]) -> Line:
        """Return the line with the failed at their last checkpoint, the others at their live state."""
        line = self.live_line()
        for agent in failed:
            line[agent] = len(self.intervals[agent]) - 1
        return line

    def is_inside(self, node: int, line: Line) -> bool:
        """The interval lies before the line."""
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
        """Return the ordinals of these agents, ascending; of all if None.

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
