"""Finds useless checkpoints and untracked dependencies (G6) among the checkpoints and messages of one branch.

Theory of operation
-------------------
Checkpoints c(i,1), c(i,2), … divide the history of agent i into intervals I(i,0), I(i,1), …. The checkpoint c(i,0) is the agent's initial
state. The *rollback graph* (Wang 1997) has an edge from each interval to the same agent's next interval. For each message, the graph also
has an edge from the interval in which the message left its sender to the interval in which it was consumed. An edge means that if the first
interval is undone, the second must also be undone. A Z-path is a path that contains at least one message edge.

*Useless.* A checkpoint on a Z-cycle is part of no consistent cut (Netzer and Xu 1995). The checkpoint c(i,x) is on a Z-cycle if and only if
undoing I(i,x) undoes I(i,x−1). The edge I(i,x−1) → I(i,x) always exists, so the checkpoint is on a Z-cycle if and only if both intervals
are in the same strongly connected component. Tarjan's algorithm finds the strongly connected components in one pass. BCS, HMNR and the RDT
protocols promise that no checkpoint is useless. Uncoordinated agents promise nothing.

*Tracked.* RDT requires that wherever a Z-path leads from one interval to another, a causal path does so too. Let x be the greatest number
such that I(j,y) is reachable from I(i,x). Then x must be the entry for i in j's dependency vector at the end of I(j,y). Agents send their
dependency vectors with their messages, and receivers merge them. This module computes the dependency vectors from the order of turns in the
ground truth. A message carries the vector that its sender has at the message's *departure*, perhaps several turns after the turn that sent
it. If the world does not report departures (`on_left`), dependencies are not checked. A message may leave while its sender is processing
another message or is waiting to retry it. In this case, the departing message carries the vector that includes the other message, although
that message's turn may end in a later interval.

The interval in which a message left is always known exactly, because the outbox in an image shows which messages had not left before it.
"""

from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from snapline.protocols.names import CIC_PROTOCOLS, UNCOORDINATED
from snapline.sim.oracles.ground_truth import GroundTruth
from snapline.sim.oracles.ground_truth_records import AgentHistory, Branch, Captured, ChannelTruth, CutPlace, Finding

TRACKING_PROTOCOLS = ("fdas", "fdi", "bhmr", "nras", "cbr", "cas")
"""Protocols that promise RDT. BCS and HMNR only promise that no checkpoint is useless."""


class Flow(msgspec.Struct, frozen=True):
    """A consumed message, with the intervals and turns in which it left its sender and was consumed.

    `departed_at` is the sender's last turn that began or ended before the departure, or -1 if this turn is unknown. `consumed_at` is the
    receiver's turn that consumed the message.
    """

    sender: str
    sent_in: int
    departed_at: int
    receiver: str
    got_in: int
    consumed_at: int


class Intervals(msgspec.Struct):
    """The history of one branch, divided into checkpoint intervals.

    Attributes:
        checkpoints: for each agent, its images without the initial image. The image with the index x − 1 begins interval x.
        first: for each agent, the node of its interval 0. The nodes of the agent's other intervals follow.
        flows: all consumed messages.
        nodes: number of intervals.
    """

    checkpoints: dict[str, list[Captured]]
    first: dict[str, int]
    flows: list[Flow]
    nodes: int

    def edges(self) -> list[list[int]]:
        """Return the edges of the rollback graph. The list for each node contains the nodes that must also be undone if this node is
        undone."""
        successors: list[list[int]] = [[] for _ in range(self.nodes)]
        for agent, first in self.first.items():
            for node in range(first, first + len(self.checkpoints[agent])):
                successors[node].append(node + 1)
        seen: dict[tuple[int, int], None] = {}
        for flow in self.flows:
            edge = self.first[flow.sender] + flow.sent_in, self.first[flow.receiver] + flow.got_in
            if edge not in seen:
                seen[edge] = None
                successors[edge[0]].append(edge[1])
        return successors


def intervals_of(branch: Branch) -> Intervals:
    """Divide the history of a branch into intervals."""
    checkpoints: dict[str, list[Captured]] = {}
    first: dict[str, int] = {}
    nodes = 0
    for agent, history in branch.histories.items():
        checkpoints[agent] = [x for x in history.captured if x.basis != "initial"]
        first[agent] = nodes
        nodes += len(checkpoints[agent]) + 1
    flows: list[Flow] = []
    for channel in branch.channels.values():
        flows.extend(_flows_of(channel, checkpoints))
    return Intervals(checkpoints, first, flows, nodes)


def _flows_of(channel: ChannelTruth, checkpoints: dict[str, list[Captured]]) -> Iterator[Flow]:
    left = [GroundTruth.left(channel, _place(x)) for x in checkpoints[channel.sender]]
    got = [bisect_right(channel.consumed_at, x.turns) for x in checkpoints[channel.receiver]]
    voids = 0
    for index in range(min(len(channel.consumed_at), len(channel.sent_at))):
        if index in channel.void:
            voids += 1
            continue
        departed_at = channel.departed_at[index - voids] if index - voids < len(channel.departed_at) else -1
        yield Flow(
            channel.sender,
            bisect_right(left, index),
            departed_at,
            channel.receiver,
            bisect_right(got, index),
            channel.consumed_at[index],
        )


def _place(captured: Captured) -> CutPlace:
    return CutPlace(captured.turns, captured.voids, captured.parked)


def useless(intervals: Intervals) -> list[Captured]:
    """Return the useless checkpoints, which are part of no consistent cut."""
    components = components_of(intervals.edges())
    return [
        captured
        for agent, first in intervals.first.items()
        for node, captured in enumerate(intervals.checkpoints[agent], first)
        if components[node] == components[node + 1]
    ]


def components_of(edges: list[list[int]]) -> list[int]:
    """Return, for each node, the number of its strongly connected component. The function uses Tarjan's algorithm (1972) without
    recursion."""
    order: list[int] = [-1] * len(edges)
    low: list[int] = [0] * len(edges)
    component: list[int] = [-1] * len(edges)
    stack: list[int] = []
    count = 0
    for root in range(len(edges)):
        if order[root] >= 0:
            continue
        path = [(root, 0)]
        while path:
            node, position = path.pop()
            if position == 0:
                order[node] = low[node] = count
                count += 1
                stack.append(node)
            elif component[edges[node][position - 1]] < 0:
                low[node] = min(low[node], low[edges[node][position - 1]])
            while position < len(edges[node]) and order[edges[node][position]] >= 0:
                if component[edges[node][position]] < 0:
                    low[node] = min(low[node], order[edges[node][position]])
                position += 1
            if position < len(edges[node]):
                path.append((node, position + 1))
                path.append((edges[node][position], 0))
            elif low[node] == order[node]:
                member = -1
                while member != node:
                    member = stack.pop()
                    component[member] = node
    return component


# ---- tracking -----------------------------------------------------------------------------------------------------


def untracked(branch: Branch, intervals: Intervals) -> Iterator[str]:
    """Yield a description of each dependency that the dependency vectors do not show."""
    vectors = _vectors_of(branch, intervals)
    reach = _reach_of(intervals)
    for agent, first in intervals.first.items():
        for interval in range(len(intervals.checkpoints[agent]) + 1):
            seen = vectors[agent][interval]
            for other, last in reach[first + interval].items():
                if other != agent and last > seen.get(other, -1):
                    yield (
                        f"undoing interval {last} of {other} undoes interval {interval} of {agent}, and the vector "
                        f"there shows only {seen.get(other, -1)}"
                    )
                    return


def _reach_of(intervals: Intervals) -> list[dict[str, int]]:
    """Return, for each node and agent, the agent's last interval from which the node can be reached."""
    edges = intervals.edges()
    reach: list[dict[str, int]] = [{} for _ in edges]
    for agent, first in intervals.first.items():
        for interval in range(len(intervals.checkpoints[agent]), -1, -1):
            waiting = [first + interval]
            while waiting:
                node = waiting.pop()
                if agent not in reach[node]:
                    reach[node][agent] = interval
                    waiting.extend(edges[node])
    return reach


def _vectors_of(branch: Branch, intervals: Intervals) -> dict[str, list[dict[str, int]]]:
    """Return each agent's dependency vector at the end of each interval, computed by replaying the branch's turns in a causal order."""
    runs = {agent: _Run(history, intervals.checkpoints[agent]) for agent, history in branch.histories.items()}
    for flow in intervals.flows:
        runs[flow.receiver].flows.setdefault(flow.consumed_at, []).append(flow)
    is_moving = True
    while is_moving:
        is_moving = False
        for run in runs.values():
            while run.step(runs):
                is_moving = True
    return {agent: run.ends for agent, run in runs.items()}


class _Run:
    """Replays one agent's turns and images, but computes only dependency vectors."""

    def __init__(self, history: AgentHistory, checkpoints: list[Captured]) -> None:
        self.agent = history.agent
        self.turns = history.turns
        self.turn = 0
        self.vector: dict[str, int] = {self.agent: 0}
        self.after: list[dict[str, int]] = [self.vector]
        """Vector at the end of each turn, before an image is taken."""
        self.ends: list[dict[str, int]] = []
        self.flows: dict[int, list[Flow]] = {}
        self._images = [x.turns for x in checkpoints]
        self._take_images()

    def _take_images(self) -> None:
        while len(self.ends) < len(self._images) and self._images[len(self.ends)] == self.turn:
            self.ends.append(self.vector)
            self.vector = {**self.vector, self.agent: len(self.ends)}

    def carried(self, flow: Flow) -> dict[str, int] | None:
        """Return the vector that a message of this agent carries, or None if the message has not left yet."""
        if flow.departed_at >= len(self.after):
            return None
        return {
            **self.after[flow.departed_at],
            self.agent: flow.sent_in,
        }  # only images lie between that turn and the departure

    def step(self, runs: "dict[str, _Run]") -> bool:
        """Replay the next turn. Return False if there is no next turn, or if a message that the turn consumes has not left yet."""
        if self.turn == self.turns:
            if len(self.ends) == len(self._images):
                self.ends.append(self.vector)
            return False
        brought = [runs[flow.sender].carried(flow) for flow in self.flows.get(self.turn + 1, ())]
        if None in brought:
            return False
        self.turn += 1
        for vector in brought:
            assert vector is not None
            self.vector = {**self.vector, **{x: n for x, n in vector.items() if n > self.vector.get(x, -1)}}
        self.after.append(self.vector)
        self._take_images()
        return True


def _is_reported(branch: Branch, flows: list[Flow]) -> bool:
    """Return whether the sender's vector at departure is known for all messages, which requires that the turn of each departure has
    ended."""
    return all(0 <= flow.departed_at <= branch.histories[flow.sender].turns for flow in flows)


# ---- the end of a run ---------------------------------------------------------------------------------------------


class UselessReport(msgspec.Struct):
    """The result of the check of a whole run, with the number of useless checkpoints and the violations."""

    checkpoints: int
    useless: int
    is_tracking_judged: bool
    findings: list[Finding]


def check_branch(branch: Branch, protocol: str) -> UselessReport:
    """Check the surviving branch of a fleet whose agents take checkpoints independently."""
    report = UselessReport(0, 0, False, [])
    if protocol != UNCOORDINATED and protocol not in CIC_PROTOCOLS:
        return report
    intervals = intervals_of(branch)
    useless_checkpoints = useless(intervals)
    report.checkpoints, report.useless = sum(map(len, intervals.checkpoints.values())), len(useless_checkpoints)
    if useless_checkpoints and protocol in CIC_PROTOCOLS:
        x = useless_checkpoints[0]
        text = f"checkpoint {x.number} of {x.agent} ({x.basis}, plan {x.plan}) is useless: it lies on a Z-cycle"
        report.findings.append(("useless", "G6", text))
    elif protocol in TRACKING_PROTOCOLS and _is_reported(branch, intervals.flows):
        report.is_tracking_judged = True
        report.findings.extend(("tracking", "G6", f"{protocol}: {text}") for text in untracked(branch, intervals))
    return report
