"""Model of a fleet whose agents log the messages they send. The module contains the common part of all models of logged protocols,
including the recovery.

Theory of operation
-------------------
Receiving a message and running its turn is one step. A message that the agent may not consume yet stays in its channel. This rule excludes
no behaviour, because a message in a mailbox that may not be consumed is equivalent to a message in transit. A checkpoint contains the
core's image, the ledger (the explorer's ground truth) and the log, and is durable immediately.

A crash affects one agent. The recovery from a crash is one step. The product's code computes the recovery line (`Recoveries`). If an
agent's entry in the recovery line is a checkpoint, the agent restarts from that checkpoint. Every other agent keeps its live state. Every
channel is refilled from its sender's log with the messages that the receiver lacks. Messages that were in transit before the crash are
dropped, because they belong to an older incarnation.

In every state, the model checks that each channel contains exactly the messages sent and not consumed, in order (G3). Immediately after a
recovery, this check also detects every orphan. No other check of the ledgers is needed, because agents may send at any time. So any ledgers
that pass this check can also occur without crashes. In every state in which a crash is possible, the model examines all cuts. The model
compares the result with the product's recovery lines (G5) and obsolete checkpoints (G7).

*Recovery code* (`Recoveries`). `recovery.lines`, which uses the rollback-dependency graph, is called for every distinct set of columns. The
result of `recovery.lines` determines the recovery. `recovery.history`, which the coordinator runs, also computes obsolete checkpoints and
takes fifty times as long. So if several sets of columns differ only in the agents' names, `recovery.history` is called for only one of
them. G7: every checkpoint on the recovery line after some single failure, as computed from all cuts, is needed and must not count as
obsolete. The theorem in `recovery.garbage` that later recovery lines need no other checkpoints is not checked here.

`InducedModel` models fleets with uncoordinated or communication-induced checkpoints, and uses the product's checkpointing rules. At any
moment, an agent may take a basic checkpoint or send a message. The numbers of basic checkpoints and of messages are bounded. An agent may
also consume the first message in any channel, and before that, the rule may force a checkpoint. Any agent may crash in any state. In every
state, also after a crash, the model also checks what the protocol guarantees (G6). If the protocol is communication-induced, no checkpoint
may be useless. If the protocol promises RDT, every dependency must be tracked. A forced checkpoint remains even if the message that forced
it is undone. So after a crash, a rule may be in a state that no run without a crash reaches. The guarantees must hold in these states
too.
"""

import itertools
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from snapline.protocols.names import CIC_PROTOCOLS
from snapline.protocols.rule import CheckpointRule
from snapline.recovery.dependency_history import FleetHistory
from snapline.recovery.execution import NOT_RECEIVED, Execution, recovery_line
from snapline.sim.explorer.cuts import (
    AgentLedger,
    AllCuts,
    Column,
    Cut,
    Judgement,
    Numbers,
    Relation,
    describe_flow,
    empty_ledger,
    flow_of,
    replaced,
    with_consumed,
    with_sent,
)
from snapline.sim.explorer.state_search import (
    Bounds,
    CoreMemo,
    Fault,
    Interner,
    Memo,
    Model,
    Outputs,
    ProposedMove,
    State,
)

# -- recovery code --------------------------------------------------------------------------------------------------------

RENAMED_AGENTS_MAX = 4
"""Maximum number of agents for which comparing states up to renaming of agents saves time."""

Columns = tuple[int, ...]


class Recoveries:
    """Uses the product's code to compute the recovery lines after single failures, and checks the results.

    Attributes:
        lines: for each tuple of columns, the recovery lines after the failure of each agent. A line contains one entry from each column.
        history_type: class that computes the recovery history. Mutants replace it.
    """

    history_type: type[FleetHistory] = FleetHistory

    def __init__(self, names: list[str], cuts: AllCuts) -> None:
        self.lines: Memo[Columns, tuple[Cut, ...]] = Memo(self._lines_of)
        self._names, self._cuts = names, cuts
        self._agents = range(len(names))
        self._renamings = [tuple(self._agents)]
        if len(names) <= RENAMED_AGENTS_MAX:
            self._renamings = list(itertools.permutations(self._agents))
        self._renamed_columns: Interner[tuple[Cut, ...]] = Interner()
        self._renamed: Memo[tuple[int, tuple[int, ...]], int] = Memo(lambda key: self._rename(*key))
        self._sent: Memo[int, list[tuple[int, int, int]]] = Memo(self._sent_in)
        self._received: Memo[int, dict[tuple[int, int], int]] = Memo(self._received_in)
        self._asked: set[Columns] = set()

    def check(self, columns: Columns, relation: Relation) -> None:
        """Check the product's recovery lines and obsolete checkpoints for every single failure. Raise `Fault` if one of them is wrong."""
        expected = [self._cuts.lines[relation, (agent,)] for agent in self._agents]
        self._compare(self.lines[columns], expected)
        key = min(
            tuple([self._renamed[columns[agent], renaming] for agent in renaming]) for renaming in self._renamings
        )
        if key not in self._asked:
            self._asked.add(key)
            self._check_history([self._cuts.columns.values[column] for column in columns], expected)

    def _compare(self, lines: "tuple[Cut, ...] | list[Cut]", expected: list[Cut]) -> None:
        for agent, (line, right) in enumerate(zip(lines, expected, strict=True)):
            if line != right:
                text = f"{self._names[agent]} fails: the recovery line is {line}, by all cuts it is {right}"
                raise Fault("recovery line", "G5", text)

    def _rename(self, column: int, renaming: tuple[int, ...]) -> int:
        """Return a number that identifies the column regardless of vector clocks, after the agents have been renamed by `renaming`."""
        entries = []
        for ledger in self._cuts.columns.values[column]:
            received = [len(ledger.consumed[agent]) for agent in renaming]
            entries.append((*(ledger.sent[agent] for agent in renaming), *received))
        return self._renamed_columns.of(tuple(entries))

    # -- recovery.lines -------------------------------------------------------------------------------------------------

    def _lines_of(self, columns: Columns) -> tuple[Cut, ...]:
        execution = self.execution_of(columns)
        return tuple([tuple(recovery_line(execution, [agent])) for agent in self._agents])

    def execution_of(self, columns: Columns) -> Execution:
        """Convert the columns to an execution that consists of intervals and messages, as if it had been read from a trace. Events are not
        counted."""
        execution = Execution(self._names, [], [], [], [], [], [], [], [], 0)
        first = 0
        for agent, column in enumerate(columns):
            count = len(self._cuts.columns.values[column]) - 1
            execution.intervals.append(list(range(first, first + count)))
            execution.agent_of.extend([agent] * count)
            execution.number_of.extend(range(count))
            execution.sends.extend([[] for _ in range(count)])
            first += count
        for sender, column in enumerate(columns):
            for receiver, number, interval in self._sent[column]:
                node = execution.intervals[sender][interval]
                execution.sends[node].append(len(execution.messages))
                execution.messages.append(f"{sender}>{receiver}:{number}")
                execution.sent.append(node)
                received = self._received[columns[receiver]].get((sender, number))
                execution.received.append(NOT_RECEIVED if received is None else execution.intervals[receiver][received])
        return execution

    def _sent_in(self, column: int) -> list[tuple[int, int, int]]:
        """Return the receiver, the number and the interval of every message sent. The interval ends at the first entry that includes the
        send."""
        entries = self._cuts.columns.values[column]
        return [
            (receiver, number, sum([ledger.sent[receiver] < number for ledger in entries]) - 1)
            for receiver, count in enumerate(entries[-1].sent)
            for number in range(1, count + 1)
        ]

    def _received_in(self, column: int) -> dict[tuple[int, int], int]:
        """Return, for each sender and message number, the interval in which the message was consumed."""
        entries = self._cuts.columns.values[column]
        return {
            (sender, number): sum([number not in ledger.consumed[sender] for ledger in entries]) - 1
            for sender, numbers in enumerate(entries[-1].consumed)
            for number in numbers
        }

    # -- recovery.history -----------------------------------------------------------------------------------------------

    def _check_history(self, columns: list[Column], expected: list[Cut]) -> None:
        history = self.history_type(self._names)
        for name, column in zip(self._names, columns, strict=True):
            self._report(history, name, column)
        lines = [self._places(line.checkpoints, columns) for line in history.lines([[name] for name in self._names])]
        self._compare(lines, expected)
        for name, numbers in history.obsolete().items():
            agent = self._names.index(name)
            for failed, line in zip(self._names, expected, strict=True):
                if line[agent] in numbers:
                    text = f"checkpoint {line[agent]} of {name} is called obsolete, and if {failed} fails it is needed"
                    raise Fault("garbage", "G7", text)

    def _report(self, history: FleetHistory, name: str, column: Column) -> None:
        before = column[0]
        for number, ledger in enumerate(column[1:-1], 1):
            history.add(name, number, self._sent_since(before, ledger), self._received_since(before, ledger))
            before = ledger
        history.report_live(name, self._received_since(before, column[-1]), self._sent_since(before, column[-1]))

    def _sent_since(self, before: AgentLedger, ledger: AgentLedger) -> dict[str, int]:
        pairs = zip(self._names, before.sent, ledger.sent, strict=True)
        return {name: count for name, old, count in pairs if count != old}

    def _received_since(self, before: AgentLedger, ledger: AgentLedger) -> dict[str, int]:
        pairs = zip(self._names, before.consumed, ledger.consumed, strict=True)
        return {name: numbers[-1] for name, old, numbers in pairs if numbers != old}

    def _places(self, line: dict[str, int | None], columns: list[Column]) -> Cut:
        """Convert a recovery line to positions in the columns. None in `line` represents the live state, which is the last entry of a
        column."""
        places = [line[name] for name in self._names]
        pairs = zip(places, columns, strict=True)
        return tuple(len(column) - 1 if place is None else place for place, column in pairs)


# -- agents with logs -----------------------------------------------------------------------------------------------------


class LoggedMessage(NamedTuple):
    """A message in its sender's log."""

    number: int
    piggyback: bytes
    vector: Numbers


Log = tuple[tuple[LoggedMessage, ...], ...]
"""Messages sent, in order, by receiver."""


class SavedState(NamedTuple):
    """State of an agent that a checkpoint saves.

    Attributes:
        core: number that identifies the image of the agent's core.
        mark: the protocol's counter. Depending on the protocol, it is the number of basic checkpoints so far or the number of the
            checkpoint's round.
    """

    core: int
    ledger: AgentLedger
    log: Log
    mark: int = 0


class LoggedNode(NamedTuple):
    """State of an agent.

    Attributes:
        checkpoints: the agent's permanent checkpoints, starting with the initial checkpoint.
        channels: for each sender, the messages in transit to the agent.
        tentative: the agent's tentative checkpoint, whose round is undecided, or None.
        words: messages from the coordinator that the agent has not yet handled.
    """

    now: SavedState
    checkpoints: tuple[SavedState, ...]
    channels: Log
    tentative: SavedState | None = None
    words: tuple[Any, ...] = ()


class LoggedModel(Model):
    """Model of a fleet that runs a protocol with message logs."""

    def __init__(self, bounds: Bounds) -> None:
        self.actors = bounds.agents + 1
        self.labels = Interner()
        self.bounds = bounds
        self.agents = range(bounds.agents)
        self.names = [chr(ord("a") + agent) for agent in self.agents]
        self.nodes: list[Interner[LoggedNode]] = [Interner() for _ in self.agents]
        self.cuts = AllCuts(bounds.agents)
        self.recoveries = Recoveries(self.names, self.cuts)
        self._judged: Memo[tuple[int, ...], None] = Memo(self._judge)
        self._checked_recoveries: Memo[tuple[int, ...], None] = Memo(self._check_recoveries)
        self.flows = [self._flow_memo(agent) for agent in self.agents]
        self._tables: Memo[tuple[int, int, int, int], int] = Memo(lambda key: self.cuts.table(*key))
        self._restarted_nodes: Memo[tuple[int, int, int, int], int] = Memo(lambda key: self._restarted_node(*key))
        self._filled: Memo[tuple[int, ...], State] = Memo(self._fill)
        self.items: Interner[Any] = Interner()

    # -- differences between protocols ----------------------------------------------------------------------------------

    @abstractmethod
    def columns_of(self, state: State) -> tuple[int, ...]:
        """Return the numbers that identify the columns of all agents."""

    @abstractmethod
    def can_crash(self, state: State) -> bool:
        """Return whether the bounds allow another crash."""

    @abstractmethod
    def restart(self, agent: int, past: SavedState, place: int, begun: int) -> SavedState:
        """Return an agent's live state after a restart from the checkpoint `past`, which is at position `place` in the agent's column.
        `begun` is the number of rounds begun so far."""

    @abstractmethod
    def check_promises(self, judgement: Judgement) -> None:
        """Check the protocol's guarantees in a state, based on an examination of all cuts in that state."""

    def arrive(self, actor: int, node: int, item: int) -> tuple[int, Outputs]:
        value = self.items.values[item]
        agent_node = self.nodes[actor].values[node]
        if isinstance(value, msgspec.Struct):
            return self.nodes[actor].of(agent_node._replace(words=(*agent_node.words, value))), ()
        sender, message = value
        channels = replaced(agent_node.channels, sender, (*agent_node.channels[sender], message))
        return self.nodes[actor].of(agent_node._replace(channels=channels)), ()

    def _flow_memo(self, agent: int) -> Memo[int, int]:
        return Memo(lambda number: self._flow(agent, self.nodes[agent].values[number]))

    # -- oracles --------------------------------------------------------------------------------------------------------

    def check(self, state: State) -> None:
        if sum([flow[node] for flow, node in zip(self.flows, state, strict=False)]):
            raise self._flow_fault(state)
        columns = self.columns_of(state)
        self._judged[columns]
        if self.can_crash(state):
            self._checked_recoveries[columns]

    def _judge(self, columns: tuple[int, ...]) -> None:
        self.check_promises(self.cuts.judgements[self.relation_of(columns)])

    def _check_recoveries(self, columns: tuple[int, ...]) -> None:
        self.recoveries.check(columns, self.relation_of(columns))

    def relation_of(self, columns: tuple[int, ...]) -> Relation:
        """Return the relation of these columns, which consists of the numbers of the tables for all pairs of agents."""
        return tuple([self._tables[i, j, columns[i], columns[j]] for i, j in self.cuts.pairs])

    def _flow(self, agent: int, node: LoggedNode) -> int:
        return flow_of(agent, node.now.ledger, _waiting(node))

    def _flow_fault(self, state: State) -> Fault:
        nodes = [interner.values[number] for interner, number in zip(self.nodes, state, strict=False)]
        text = describe_flow(self.names, [node.now.ledger for node in nodes], [_waiting(node) for node in nodes])
        return Fault("exactly once", "G3", text)

    # -- recoveries -----------------------------------------------------------------------------------------------------

    def recovered(self, nodes: State, places: Cut, *, begun: int = 0) -> State:
        """Return the nodes of all agents after a recovery to the recovery line `places`. `begun` is the number of rounds begun so far."""
        return self._filled[
            tuple([self._restarted_nodes[agent, nodes[agent], places[agent], begun] for agent in self.agents])
        ]

    def _restarted_node(self, agent: int, number: int, place: int, begun: int) -> int:
        """Return an agent's node after a recovery to position `place` in its column. The channels in the node are still empty."""
        node = self.nodes[agent].values[number]
        empty: Log = ((),) * len(self.agents)
        if place == len(node.checkpoints):
            return self.nodes[agent].of(node._replace(channels=empty))
        now = self.restart(agent, node.checkpoints[place], place, begun)
        return self.nodes[agent].of(LoggedNode(now, node.checkpoints[: place + 1], empty))

    def _fill(self, stems: tuple[int, ...]) -> State:
        """Refill every channel from its sender's log."""
        nodes = [interner.values[stem] for interner, stem in zip(self.nodes, stems, strict=True)]
        return tuple(
            self.nodes[agent].of(node._replace(channels=tuple(self.missing_messages(nodes, agent))))
            for agent, node in enumerate(nodes)
        )

    def missing_messages(self, nodes: list[LoggedNode], agent: int) -> Iterator[tuple[LoggedMessage, ...]]:
        """Yield, for each sender, the messages in the sender's log that must be delivered to `agent` again."""
        for sender, node in enumerate(nodes):
            yield node.now.log[agent][len(nodes[agent].now.ledger.consumed[sender]) :]


def _waiting(node: LoggedNode) -> list[list[int]]:
    return [[message.number for message in messages] for messages in node.channels]


# -- autonomous checkpoints -----------------------------------------------------------------------------------------------

RDT_PROTOCOLS = ("fdas", "fdi", "bhmr", "nras", "cbr", "cas")


class InducedModel(LoggedModel):
    """Model of a fleet whose agents follow a checkpointing rule. The state of the coordinator is the number of crashes so far."""

    def __init__(self, bounds: Bounds, rule_type: type[CheckpointRule]) -> None:
        super().__init__(bounds)
        self.rule_type = rule_type
        self.promises_no_useless = rule_type.name in CIC_PROTOCOLS
        self.promises_tracking = rule_type.name in RDT_PROTOCOLS
        self.cores = [self._cores_of(agent) for agent in self.agents]
        self._columns = [self._columns_memo(agent) for agent in self.agents]

    def _cores_of(self, agent: int) -> CoreMemo[CheckpointRule]:
        return CoreMemo(lambda rule: rule.freeze(), lambda image: self.rule_type.restore(agent, image))

    def _columns_memo(self, agent: int) -> Memo[int, int]:
        return Memo(lambda number: self._column(self.nodes[agent].values[number]))

    def _column(self, node: LoggedNode) -> int:
        return self.cuts.columns.of((*(past.ledger for past in node.checkpoints), node.now.ledger))

    def start(self) -> State:
        return (*(self._first_node(agent) for agent in self.agents), 0)

    def _first_node(self, agent: int) -> int:
        count = len(self.agents)
        ledger = empty_ledger(count, agent, has_vector=self.promises_tracking)
        core = self.cores[agent].enter(self.rule_type(agent, count))
        past = SavedState(core, ledger, ((),) * count)
        return self.nodes[agent].of(LoggedNode(past, (past,), ((),) * count))

    # -- steps ----------------------------------------------------------------------------------------------------------

    def proposals(self, actor: int, node: int) -> Iterator[ProposedMove]:
        if actor == len(self.agents):
            return
        name, agent_node = self.names[actor], self.nodes[actor].values[node]
        if agent_node.now.mark < self.bounds.checkpoints:
            yield ProposedMove(f"{name} takes a basic checkpoint", "checkpoint")
        if sum(agent_node.now.ledger.sent) < self.bounds.sends:
            for to in self.agents:
                if to != actor:
                    yield ProposedMove(f"{name} sends to {self.names[to]}", "send", to)
        for sender, messages in enumerate(agent_node.channels):
            if messages:
                yield ProposedMove(f"{name} receives {messages[0].number} from {self.names[sender]}", "receive", sender)

    def carry_out(self, actor: int, node: int, proposal: ProposedMove) -> tuple[int, Outputs]:
        agent_node = self.nodes[actor].values[node]
        match proposal.kind:
            case "checkpoint":
                return self.nodes[actor].of(self.checkpoint(actor, agent_node, None)), ()
            case "send":
                return self._send(actor, agent_node, proposal.detail)
            case _:
                return self.nodes[actor].of(self.receive(actor, agent_node, proposal.detail)), ()

    def checkpoint(self, agent: int, node: LoggedNode, cause: bytes | None, *, is_basic: bool = True) -> LoggedNode:
        """Record the checkpoint in the rule first and then save the state, so that the saved image includes the effect on the rule."""
        core, _ = self.cores[agent].run(node.now.core, ("checkpoint", cause), lambda rule: rule.checkpoint(cause))
        saved = node.now._replace(core=core, mark=node.now.mark + is_basic)
        checkpoints = (*node.checkpoints, saved)
        return node._replace(now=self.restart(agent, saved, len(checkpoints) - 1), checkpoints=checkpoints)

    def _send(self, agent: int, node: LoggedNode, to: int) -> tuple[int, Outputs]:
        now = node.now
        core, piggyback = self.cores[agent].run(now.core, ("send", to), lambda rule: rule.send(to))
        sent = LoggedMessage(now.ledger.sent[to] + 1, piggyback, now.ledger.vector)
        log = replaced(now.log, to, (*now.log[to], sent))
        after = node._replace(now=now._replace(core=core, ledger=with_sent(now.ledger, to), log=log))
        if self.rule_type.checkpoints_after_sends:
            after = self.checkpoint(agent, after, None, is_basic=False)
        return self.nodes[agent].of(after), ((to, self.items.of((agent, sent))),)

    def receive(self, agent: int, node: LoggedNode, sender: int) -> LoggedNode:
        """Receive a message. Take a checkpoint if the rule forces one, then merge the piggyback, and then run the turn (the rule's duties 1
        and 2)."""
        message = node.channels[sender][0]
        node = node._replace(channels=replaced(node.channels, sender, node.channels[sender][1:]))
        cores, piggyback = self.cores[agent], message.piggyback
        _, is_forced = cores.run(
            node.now.core, ("forces", sender, piggyback), lambda rule: rule.forces(sender, piggyback)
        )
        if is_forced:
            node = self.checkpoint(agent, node, piggyback, is_basic=False)
        core, _ = cores.run(node.now.core, ("receive", sender, piggyback), lambda rule: rule.receive(sender, piggyback))
        ledger = with_consumed(node.now.ledger, sender, message.number)
        ledger = ledger._replace(vector=tuple(map(max, ledger.vector, message.vector)))
        return node._replace(now=node.now._replace(core=core, ledger=ledger))

    # -- recoveries -----------------------------------------------------------------------------------------------------

    def crashes(self, state: State) -> list[tuple[int, State]]:
        if not self.can_crash(state):
            return []
        count = len(self.agents)
        lines = self.recoveries.lines[self.columns_of(state)]
        return [
            (self.labels.of(f"{name} crashes"), (*self.recovered(state, lines[agent]), state[count] + 1))
            for agent, name in enumerate(self.names)
        ]

    def can_crash(self, state: State) -> bool:
        return state[-1] < self.bounds.crashes

    def restart(self, agent: int, past: SavedState, place: int, begun: int = 0) -> SavedState:
        if not past.ledger.vector:
            return past
        return past._replace(ledger=past.ledger._replace(vector=replaced(past.ledger.vector, agent, place)))

    # -- oracles --------------------------------------------------------------------------------------------------------

    def columns_of(self, state: State) -> tuple[int, ...]:
        return tuple([memo[node] for memo, node in zip(self._columns, state, strict=False)])

    def check_promises(self, judgement: Judgement) -> None:
        if self.promises_no_useless and judgement.useless:
            agent, number = judgement.useless[0]
            raise Fault(
                "useless checkpoints", "G6", f"no consistent cut contains checkpoint {number} of {self.names[agent]}"
            )
        if self.promises_tracking and judgement.untracked:
            i, x, j, y = judgement.untracked[0]
            text = f"no causal path joins {x} of {self.names[i]} and {y} of {self.names[j]}, and no consistent cut holds both"
            raise Fault("untracked dependencies", "G6", text)

    def unfinished(self, actor: int, node: int) -> str:
        if actor == len(self.agents):
            return ""
        agent_node = self.nodes[actor].values[node]
        return f"{self.names[actor]} has messages waiting" if any(agent_node.channels) else ""
