"""Analysis of a trace: the cost of a failure and all other results of `snapline analyze`.

`analyze` returns names instead of the indices that the module `execution` uses. The analysis takes time linear in the number of events.

Obsolete checkpoints
--------------------
A checkpoint is obsolete if it cannot be on any later recovery line (G7). A checkpoint is kept if and only if it is on the recovery line for
the failure of some *single* agent, in which the other agents keep their live states. Later recovery lines, even after further recoveries,
contain no other existing checkpoints (protocols.md, section 7). The recovery line for several simultaneous failures is the entrywise
minimum of the lines for single failures, so it contains no other checkpoints. At most N(N+1)/2 checkpoints are kept for N agents (Wang,
Chung, Lin and Fuchs 1995).

On the R-graph (defined below), a failure of agent i undoes all intervals that are reachable from i's live interval. Assign to each interval
the set of agents from whose live intervals it is reachable. From one interval of an agent to the next, the set can only grow. Checkpoint x
of agent j is on the recovery line for a failure of i if and only if I(j,x) is the first of j's intervals whose set contains i. So c(j,x) is
kept if and only if the set grows at I(j,x). Each set of agents is stored as the bits of an integer and passed once along each edge between
components. So all N lines together take one pass over the messages instead of N passes.

This rule assumes that all live states are known, as in a trace. If agents report their states at different times, first compute the
greatest consistent cut of the known states. Without this step, a checkpoint that is still needed may be deleted.

Useless checkpoints and untracked dependencies
----------------------------------------------
A Z-path from c(i,x) to c(j,y) is a sequence of messages (Netzer and Xu 1995). Agent i sends the first message of the sequence after c(i,x).
The receiver of each message sends the next message in the same interval, perhaps before that receive, or in a later interval. Agent j
receives the last message of the sequence before c(j,y). A set of checkpoints can be extended to a consistent cut if and only if no Z-path
leads from a checkpoint in the set to a checkpoint in the set. So a checkpoint is *useless* if and only if a Z-path leads from the
checkpoint to itself. For this purpose, each agent's live state counts as its last checkpoint.

The nodes of the R-graph (rollback-dependency graph) are the intervals of all agents. The R-graph has an edge I(i,x) → I(i,x+1) between
consecutive intervals. For each message, it has an edge from the interval of the send to the interval of the receive. The Z-paths from
c(i,x) to c(j,y) correspond to the paths from I(i,x) to I(j,y-1) in the R-graph that contain at least one message. Therefore c(i,x) is
useless if and only if I(i,x-1) is reachable from I(i,x). The edge I(i,x-1) → I(i,x) exists, so c(i,x) is useless if and only if both
intervals belong to the same strongly connected component. One pass of Tarjan's algorithm (1972) finds all useless checkpoints in linear
time.

RDT (rollback-dependency trackability, Wang 1997) means that wherever a Z-path connects two checkpoints, a causal path also connects them,
so dependency vectors show the connection. Checking RDT takes time proportional to the number of intervals and messages times the number of
agents.

Other protocols
---------------
`redecide` replays a trace under a different protocol. The replay drops the forced checkpoints and lets the other protocol decide where to
force checkpoints. The replay does not change the messages, their order, or the basic checkpoints. Before each receive, the protocol decides
whether to take a checkpoint first. The protocol `cas` takes one after each send instead. The replay runs the same protocol code as a live
fleet, with the events of the trace. In a live fleet, `cas` takes one checkpoint after all sends of a turn, but a trace does not show turns.

A message may carry only the changes since the last message on its channel, which is correct only if the channel is FIFO. In a trace,
messages may overtake each other. If the receives on a channel are not a prefix of its sends, in order and without gaps, each message
carries its full protocol data. (A gap means that a message and the changes that it carried were lost.)
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
    """Return, for each node, the set of agents whose single failure would undo the node's interval. Bit i represents agent i.

    Args:
        edges: the result of `edges_of` for this execution.
        component: the result of `components_of` for these edges.
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
    """Return, for each agent, the numbers of its obsolete checkpoints in ascending order. Pass the result of `failures_undoing` as
    `undone_by`."""
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
    """A violation of RDT: a Z-path leads from the sender's interval to the receiver's interval, but no causal path does."""

    sender: str
    sender_interval: int
    receiver: str
    receiver_interval: int


def edges_of(execution: Execution) -> list[list[int]]:
    """Return, for each node of the R-graph, the nodes to which its edges lead."""
    received = execution.received
    edges = [
        [received[message] for message in messages if received[message] != NOT_RECEIVED] for messages in execution.sends
    ]
    for nodes in execution.intervals:
        for node, after in pairwise(nodes):
            edges[node].append(after)
    return edges


def components_of(edges: list[list[int]]) -> list[int]:
    """Return, for each node, the number of its strongly connected component. An edge between two components leads from the higher to the
    lower number."""
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
    """Return, for each agent, the numbers of its useless checkpoints in ascending order. `component` is
    `components_of(edges_of(execution))`."""
    return [
        [number for number, (before, node) in enumerate(pairwise(nodes), 1) if component[before] == component[node]]
        for nodes in execution.intervals
    ]


def untracked(trace: Trace) -> list[Untracked]:
    """Return the violations of RDT. For each interval and agent, report only the agent's last interval from which the dependency is not
    tracked.

    The vector of an interval belongs to the checkpoint that ends it. The vector contains, for each agent, the last interval from which a
    causal path leads to that checkpoint. Time and space are proportional to the number of events times the number of agents, so this
    function is for tests and for traces of moderate size.
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
    """Return, for each node and agent, the agent's last interval from which the node is reachable in the R-graph, or -1 if there is
    none."""
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
    """Return, for each node and agent, the agent's last interval from which a causal path leads to the end of the node's interval, or -1 if
    there is none."""
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
    """Return the trace that would have resulted under `protocol`, and the events that force checkpoints in it.

    Args:
        trace: the original execution. The trace's forced checkpoints are ignored, and its other checkpoints are renumbered.
        protocol: a protocol's name in `RULES`, or "none".

    Returns:
        The new trace, and for each agent the ordinals of the events that forced a checkpoint. Under `cas`, the events that force
            checkpoints are sends, and under all other protocols, receives.
        `cas`, sends. An agent's sends, receives and basic checkpoints are numbered from 0. Agents without forced checkpoints have no
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
    """Check that a protocol exists. Return its name in `RULES`, where "none" becomes "uncoordinated".

    Raises:
        UsageError: If `protocol` is neither a name in `RULES` nor "none".
    """
    name = UNCOORDINATED if protocol == NONE else protocol
    if name not in RULES:
        raise UsageError(f"--protocol {protocol!r} is unknown: choose one of {', '.join([NONE, *RULES])}")
    return name


class _Decision:
    """Replays a trace under a protocol, with separate protocol state for each agent, and collects the events of the resulting trace.

    Attributes:
        forced: for each agent, the ordinals of the events that forced a checkpoint.
        _seen: for each agent, the number of its events so far, not counting forced checkpoints.
        _numbers: for each agent, the number of its last checkpoint in the new trace.
        _carried: for each message that will be received, its sender and its piggyback.
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
    """Return the channels on which messages were reordered or lost: for some n, the n-th message received is not the n-th message sent."""
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
    """The losses of one agent in a rollback: how many checkpoints it loses, and how many of its sends and receives are undone."""

    checkpoints: int
    events: int


class Domino(msgspec.Struct, frozen=True):
    """The extent to which a failure spreads over the fleet.

    Attributes:
        rolled_back: number of agents that return to a checkpoint, including the failed agents.
        depth: number of rounds of the domino effect, not counting the initial rollback of the failed agents.
        reached_initial: the agents that return to their initial checkpoints.
    """

    rolled_back: int
    depth: int
    reached_initial: list[str]


class Checkpoints(msgspec.Struct, frozen=True, gc=False):
    """The number of basic checkpoints and the number of forced checkpoints, neither of which includes initial checkpoints."""

    basic: int
    forced: int


class Analysis(msgspec.Struct, frozen=True):
    """The result of an analysis. The fields are those that `snapline analyze -o json` prints, in the same order.

    Attributes:
        failed: the failed agents, in the order of the trace.
        recovery_line: for each agent, the checkpoint to which it returns, or None if it keeps its live state.
        rollback: the losses of each agent that returns to a checkpoint.
        in_transit: messages sent but not received inside the recovery line, in send order.
        useless: for each agent, its useless checkpoints, which lie on a Z-cycle. Agents without useless checkpoints have no entry. This
            field does not depend on `failed`.
        obsolete: for each agent, its checkpoints that no later recovery line contains. This field does not depend on `failed`.
        forced: for each agent, the ordinals of the events that forced a checkpoint (see `redecide`). The field is unset if the trace is
            analyzed under its own protocol.
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
    """Analyze `trace`, or the trace that would have resulted under `protocol`.

    Args:
        protocol: the protocol that decides where to force checkpoints. The protocol "none" drops all forced checkpoints. If `protocol` is
            None, the forced checkpoints in `trace` are kept.

    Raises:
        UsageError: an agent is not in the trace, or the protocol does not exist.
    """
    return decide_and_analyze(trace, failed, protocol)[1]


def decide_and_analyze(
    trace: Trace, failed: Collection[str] | None = None, protocol: str | None = None
) -> tuple[Trace, Analysis]:
    """Analyze a trace as `analyze` does, but return the analyzed trace as well, which is `trace` itself if `protocol` is None."""
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
    """Return a mapping from each agent's name to its list, without the agents whose list is empty."""
    return {agent: items for agent, items in zip(agents, lists, strict=True) if items}
