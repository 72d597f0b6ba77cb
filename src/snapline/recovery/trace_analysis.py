"""Analysis of a trace, which gives the cost of a failure and all other results of `snapline analyze` in one object.

`analyze` replaces the indices of an `execution` with names. The analysis takes time linear in the number of events.

Obsolete checkpoints
--------------------
An obsolete checkpoint cannot be on any later recovery line (G7). A checkpoint is kept iff it is on the recovery line for some *single*
failure in which the survivors keep their live states. Later lines, even after further recoveries, use no other checkpoints (protocols.md,
section 7). The line for several failures is the entrywise minimum of the lines for the single failures, so its entries are among theirs. At
most N(N+1)/2 checkpoints are kept for N agents (Wang, Chung, Lin and Fuchs 1995).

On the R-graph (defined below), the failure of i undoes all intervals that are reachable from i's live interval. Assign to every interval
the set of agents whose live interval reaches it. Along one agent's intervals, the set only grows, and c(j,x) is on the line of i iff I(j,x)
is the first of j's intervals whose set contains i. So c(j,x) is kept iff the set grows at I(j,x). The sets are bits of integers and are
passed once along each edge between components. Thus all N lines together cost one pass over the messages instead of N passes.

The rule applies to a trace, in which all live states are known. If reports arrive at different times, first find the greatest consistent
cut of the known states; otherwise a needed checkpoint may be deleted.

Useless checkpoints and untracked dependencies
----------------------------------------------
A Z-path from c(i,x) to c(j,y) is a sequence of messages (Netzer and Xu 1995). i sends the first message after c(i,x). The receiver of each
message sends the next one in the same or a later interval, perhaps before that receive. j receives the last message before c(j,y). A set of
checkpoints can be extended to a consistent cut iff no Z-path leads from one of them to another, or to itself. So c is *useless* iff a
Z-path leads from c to itself. Live states count as last checkpoints.

The R-graph has the intervals as nodes. The graph has an edge I(i,x) → I(i,x+1) for each pair of consecutive intervals, and for each message
an edge from the interval of its send to the interval of its receive. Z-paths from c(i,x) to c(j,y) are the paths in this graph from I(i,x)
to I(j,y-1) that contain at least one message. Therefore c(i,x) is useless iff I(i,x) reaches I(i,x-1). Since I(i,x-1) → I(i,x) is an edge,
this holds iff both lie in the same strongly connected component. One pass of Tarjan's algorithm (1972) gives the answer for all checkpoints
at once, in linear time.

RDT, rollback-dependency trackability (Wang 1997), means that a causal path connects every pair that a Z-path connects, so that dependency
vectors show the connection. Checking RDT takes time proportional to intervals and messages times agents.

Other protocols
---------------
`redecide` replays a trace under a protocol: it drops the forced checkpoints and decides anew where to force them. The messages, their
order, and the basic checkpoints remain. Before each receive, the protocol's rule decides whether a checkpoint is taken first (under `cas`,
always after each send). Each agent has the same rule as in a live fleet, which receives the trace's events. In a live fleet, `cas` takes
one checkpoint after all sends of a turn; a trace has no turns.

Rules may send deltas relative to the last message on a channel, which works only on FIFO channels. In a trace, messages may overtake each
other. If the receives on a channel are not a gapless prefix of its sends, in order, each message gets its full piggyback. (A gap is a lost
message, whose delta is also lost.)
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TypeVar

import msgspec

from snapline.errors import UsageError
from snapline.protocols.rule import CheckpointRule
from snapline.protocols.rules import RULES, make_rule
from snapline.recovery.execution import NOT_RECEIVED, Execution, Line, recovery_line, rounds
from snapline.recovery.trace import CheckpointTaken, Event, Kind, MessageReceived, MessageSent, Trace


def failures_undoing(execution: Execution, edges: list[list[int]], component: list[int]) -> list[int]:
    """Return, by node, the agents whose single failure undoes the node's interval. Bit i stands for agent i.

    Args:
        execution: the execution.
        edges: the result of `edges_of(execution)`.
        component: the result of `components_of(edges)`.
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
    """Return, by agent, the numbers of its obsolete checkpoints, ascending. `undone_by` is the result of `failures_undoing`."""
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


class Untracked(msgspec.Struct, frozen=True):
    """A violation of RDT: a Z-path leads from `sender`'s interval to `receiver`'s interval, but no causal path does."""

    sender: str
    sender_interval: int
    receiver: str
    receiver_interval: int


def edges_of(execution: Execution) -> list[list[int]]:
    """Return, by node, the targets of its edges in the R-graph."""
    received = execution.received
    edges = [
        [received[message] for message in messages if received[message] != NOT_RECEIVED] for messages in execution.sends
    ]
    for nodes in execution.intervals:
        for node, after in pairwise(nodes):
            edges[node].append(after)
    return edges


def components_of(edges: list[list[int]]) -> list[int]:
    """Return, by node, the number of its strongly connected component. Edges between components lead from higher to lower numbers."""
    count = len(edges)
    component = [-1] * count
    entered = [0] * count  # order of entry, from 1; 0 means that the node has not been visited yet
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
    """Return, by agent, the numbers of its useless checkpoints, ascending. `component` is `components_of(edges_of(execution))`."""
    return [
        [number for number, (before, node) in enumerate(pairwise(nodes), 1) if component[before] == component[node]]
        for nodes in execution.intervals
    ]


def untracked(trace: Trace) -> list[Untracked]:
    """Return the violations of RDT. For each pair of an interval and an agent, report only the agent's last interval that is not tracked.

    The vector of an interval is the vector of the checkpoint that ends it: by agent, the last interval from which a causal path leads to
    that checkpoint. Time and space grow with events times agents, so this function is for tests and traces of moderate size.
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
    """Return, by node and agent, the agent's last interval from which the R-graph leads to the node, or -1 if there is none."""
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
    """Return, by node and agent, the agent's last interval from which a causal path leads to the end of the node's interval, or -1 if there
    is none."""
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


NONE = "none"
"""Name of the protocol that drops all forced checkpoints and adds none."""

UNCOORDINATED = "uncoordinated"


def redecide(trace: Trace, protocol: str) -> tuple[Trace, dict[str, list[int]]]:
    """Return the execution as it would have been under `protocol`, and the events that force checkpoints in it.

    Args:
        trace: the original execution. The forced checkpoints in `trace` are ignored, and the remaining checkpoints are renumbered.
        protocol: a name in `RULES`, or "none".

    Returns:
        The new trace, and agent → ordinals of the events that forced a checkpoint. The events that force checkpoints are receives or, for
        `cas`, sends. Ordinals count the agent's sends, receives and basic checkpoints from 0. Agents without forced checkpoints have no
        entry.

    Raises:
        UsageError: the protocol does not exist.
    """
    decision = _Decision(trace, check_protocol(protocol))
    for event in trace.events:
        match event:
            case CheckpointTaken():
                if event.kind == "basic":
                    decision.take_basic(event)
            case MessageSent():
                decision.send(event)
            case MessageReceived():
                decision.receive(event)
    forced = {agent: ordinals for agent, ordinals in decision.forced.items() if ordinals}
    return Trace(list(trace.agents), decision.events), forced


def check_protocol(protocol: str) -> str:
    """Check the name of a protocol. Return the name of its rule.

    Raises:
        UsageError: `protocol` is neither a rule nor "none".
    """
    name = UNCOORDINATED if protocol == NONE else protocol
    if name not in RULES:
        raise UsageError(f"--protocol {protocol!r} is unknown: choose one of {', '.join([NONE, *RULES])}")
    return name


class _Decision:
    """Replays a trace with one rule per agent, and collects the events of the new execution.

    Attributes:
        events: the events of the new trace so far.
        forced: agent → ordinals of the events that forced a checkpoint.
        _seen: agent → number of its events so far, not counting forced checkpoints.
        _numbers: agent → number of the agent's last checkpoint in the new trace.
        _carried: message that will be received → its sender and piggyback.
    """

    def __init__(self, trace: Trace, name: str) -> None:
        count = len(trace.agents)
        self.events: list[Event] = []
        self.forced: dict[str, list[int]] = {agent: [] for agent in trace.agents}
        self._ordinals = {agent: i for i, agent in enumerate(trace.agents)}
        self._rules: dict[str, CheckpointRule] = {
            agent: make_rule(name, i, count) for agent, i in self._ordinals.items()
        }
        self._takes_after_sends = RULES[name].checkpoints_after_sends
        self._reordering = _reordering_channels(trace)
        self._received = {event.message for event in trace.events if isinstance(event, MessageReceived)}
        self._seen = dict.fromkeys(trace.agents, 0)
        self._numbers = dict.fromkeys(trace.agents, 0)
        self._carried: dict[str, tuple[int, bytes]] = {}

    def take_basic(self, event: CheckpointTaken) -> None:
        self._rules[event.agent].checkpoint()
        self._add_checkpoint(event.agent, "basic")
        self._seen[event.agent] += 1

    def send(self, event: MessageSent) -> None:
        sender, rule, to = event.agent, self._rules[event.agent], self._ordinals[event.to]
        piggyback = rule.send_full(to) if (sender, event.to) in self._reordering else rule.send(to)
        if event.message in self._received:
            self._carried[event.message] = (self._ordinals[sender], piggyback)
        self.events.append(event)
        if self._takes_after_sends:
            rule.checkpoint()
            self._force(sender)
        self._seen[sender] += 1

    def receive(self, event: MessageReceived) -> None:
        agent, rule = event.agent, self._rules[event.agent]
        sender, piggyback = self._carried.pop(event.message)
        if rule.forces(sender, piggyback):
            rule.checkpoint(piggyback)
            self._force(agent)
        rule.receive(sender, piggyback)
        self.events.append(event)
        self._seen[agent] += 1

    def _force(self, agent: str) -> None:
        self.forced[agent].append(self._seen[agent])
        self._add_checkpoint(agent, "forced")

    def _add_checkpoint(self, agent: str, kind: Kind) -> None:
        self._numbers[agent] += 1
        self.events.append(CheckpointTaken(agent, self._numbers[agent], kind))


def _reordering_channels(trace: Trace) -> set[tuple[str, str]]:
    """Return the channels on which, for some n, the n-th received message is not the n-th sent message."""
    sent: defaultdict[tuple[str, str], int] = defaultdict(int)
    received: defaultdict[tuple[str, str], int] = defaultdict(int)
    sent_at: dict[str, tuple[tuple[str, str], int]] = {}
    reordering = set()
    for event in trace.events:
        if isinstance(event, MessageSent):
            channel = (event.agent, event.to)
            sent_at[event.message] = (channel, sent[channel])
            sent[channel] += 1
        elif isinstance(event, MessageReceived):
            channel, index = sent_at[event.message]
            if index != received[channel]:
                reordering.add(channel)
            received[channel] += 1
    return reordering


_Item = TypeVar("_Item")


class Rollback(msgspec.Struct, frozen=True, gc=False):
    """The losses of one agent: the number of checkpoints that it loses, and the number of its sends and receives that are undone."""

    checkpoints: int
    events: int


class Domino(msgspec.Struct, frozen=True):
    """The spread of a failure over the fleet.

    Attributes:
        rolled_back: number of agents that return to a checkpoint, including the failed agents.
        depth: number of synchronous rounds in which some agent moved, after the failed agents had rolled back.
        reached_initial: the agents that return to checkpoint 0.
    """

    rolled_back: int
    depth: int
    reached_initial: list[str]


class Checkpoints(msgspec.Struct, frozen=True, gc=False):
    """The numbers of basic and forced checkpoints, not counting initial checkpoints."""

    basic: int
    forced: int


class Analysis(msgspec.Struct, frozen=True):
    """The result of an analysis, with the fields of `snapline analyze -o json` in their order.

    Attributes:
        agents: all agents, in the order of the trace.
        failed: the failed agents, in the same order.
        recovery_line: agent → the checkpoint to which the agent returns, or None if the agent keeps its live state.
        rollback: agent → its losses, for agents that return to a checkpoint.
        in_transit: messages sent inside the line but not received inside it, in send order.
        domino: the spread of the failure.
        useless: agent → its checkpoints that lie on a Z-cycle. Agents without any have no entry. The result does not depend on `failed`.
        obsolete: agent → its checkpoints that no later recovery line contains. The result does not depend on `failed`.
        checkpoints: numbers of basic and forced checkpoints.
        forced: only with a protocol: agent → ordinals of the events that forced a checkpoint (`redecide`).
    """

    agents: list[str]
    failed: list[str]
    recovery_line: dict[str, int | None]
    rollback: dict[str, Rollback]
    in_transit: list[str]
    domino: Domino
    useless: dict[str, list[int]]
    obsolete: dict[str, list[int]]
    checkpoints: Checkpoints
    forced: dict[str, list[int]] | msgspec.UnsetType = msgspec.UNSET


def analyze(trace: Trace, failed: Collection[str] | None = None, protocol: str | None = None) -> Analysis:
    """Analyse `trace`, or the execution that would have resulted under `protocol`.

    Args:
        trace: the execution.
        failed: the agents that fail; None means all agents.
        protocol: the protocol that decides on forced checkpoints instead of those in the trace. "none" only drops them. None keeps them.

    Raises:
        UsageError: an agent is not in the trace, or the protocol does not exist.
    """
    return decide_and_analyze(trace, failed, protocol)[1]


def decide_and_analyze(
    trace: Trace, failed: Collection[str] | None = None, protocol: str | None = None
) -> tuple[Trace, Analysis]:
    """Do the same as `analyze`, but also return the analysed execution, which is `trace` itself if `protocol` is None."""
    if protocol is None:
        return trace, _analyze(Execution.of(trace), failed, msgspec.UNSET)
    decided, forced = redecide(trace, protocol)
    return decided, _analyze(Execution.of(decided), failed, forced)


def _analyze(
    execution: Execution, failed: Collection[str] | None, forced: dict[str, list[int]] | msgspec.UnsetType
) -> Analysis:
    failing = execution.ordinals(failed)
    names = execution.agents
    line = recovery_line(execution, failing)
    restart = {
        name: number if number < len(nodes) else None
        for name, number, nodes in zip(names, line, execution.intervals, strict=True)
    }
    rollback = _rollback(execution, line)
    edges = edges_of(execution)
    component = components_of(edges)
    count = len(execution.agent_of) - len(names)
    return Analysis(
        agents=list(names),
        failed=[names[agent] for agent in failing],
        recovery_line=restart,
        rollback=rollback,
        in_transit=[execution.messages[message] for message in execution.in_transit(line)],
        domino=Domino(
            rolled_back=len(rollback),
            depth=len(rounds(execution, failing)) - 1,
            reached_initial=[name for name, number in restart.items() if number == 0],
        ),
        useless=_named(names, useless(execution, component)),
        obsolete=_named(names, obsolete(execution, failures_undoing(execution, edges, component))),
        checkpoints=Checkpoints(basic=count - execution.forced, forced=execution.forced),
        forced=forced,
    )


def _rollback(execution: Execution, line: Line) -> dict[str, Rollback]:
    losses = {}
    for name, number, nodes in zip(execution.agents, line, execution.intervals, strict=True):
        if number < len(nodes):
            events = sum(execution.events[node] for node in nodes[number:])
            losses[name] = Rollback(checkpoints=len(nodes) - 1 - number, events=events)
    return losses


def _named(agents: Sequence[str], lists: Sequence[list[_Item]]) -> dict[str, list[_Item]]:
    """Map the name of each agent to its list. Omit agents whose list is empty."""
    return {agent: items for agent, items in zip(agents, lists, strict=True) if items}
