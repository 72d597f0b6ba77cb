"""Model of fleets whose agents log their sent messages: the common part of all logged protocols, including the recovery.

Theory of operation
-------------------
An agent receives a message and runs its turn in one step; a message that it cannot consume yet stays in its channel. (This
loses no behaviour: a message in a mailbox that no turn may consume is equivalent to one in transit.) A checkpoint saves the
core's image, the books and the log, and is durable at once.

A crash hits one agent. The recovery is one step. The product's code computes the recovery line (`recoveries`). Agents with a
checkpoint on the line restart from it; the others keep their live state. Every channel is refilled from its sender's log with
the messages that its receiver lacks. Messages in transit before the crash are dropped, as everything of an older incarnation.

Checks in every state: each channel holds exactly the messages sent and not consumed, in order (G3). Right after a recovery,
this also finds every orphan. No other check of the books is needed: agents send at any time, so a run without crashes can
produce any books that pass. Checks in every state that a crash may follow: the product's recovery lines (G5) and the
checkpoints that it calls obsolete (G7), against all cuts.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from snapline.sim.explorer.cuts import (
    AgentLedger,
    AllCuts,
    Cut,
    Judgement,
    Numbers,
    Relation,
    describe_flow,
    flow_of,
    replaced,
)
from snapline.sim.explorer.recovery_checks import Recoveries
from snapline.sim.explorer.state_search import Bounds, Fault, Interner, Memo, Model, Outputs, State


class LoggedMessage(NamedTuple):
    """Message in its sender's log."""

    number: int
    piggyback: bytes
    vector: Numbers


Log = tuple[tuple[LoggedMessage, ...], ...]
"""Messages sent, by receiver."""


class SavedState(NamedTuple):
    """State of an agent that a checkpoint saves.

    Attributes:
        core: number of its core's image.
        mark: the protocol's counter: the number of basic checkpoints so far, or the round of the checkpoint.
    """

    core: int
    books: AgentLedger
    log: Log
    mark: int = 0


class LoggedNode(NamedTuple):
    """State of one agent.

    Attributes:
        now: the live state.
        checkpoints: permanent checkpoints, from the initial one on.
        channels: messages in transit to the agent, by sender.
        tentative: the undecided checkpoint, if any.
        words: messages of the coordinator that have not been handled.
    """

    now: SavedState
    checkpoints: tuple[SavedState, ...]
    channels: Log
    tentative: SavedState | None = None
    words: tuple[Any, ...] = ()


class LoggedModel(Model):
    """Model of a fleet under a logged protocol."""

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
        """Return the number of each agent's column."""

    @abstractmethod
    def can_crash(self, state: State) -> bool:
        """Return whether crashes are left within the bounds."""

    @abstractmethod
    def restart(self, agent: int, past: SavedState, place: int, begun: int) -> SavedState:
        """Return the live state of an agent that restarts from its checkpoint `place`. `begun`: number of rounds begun so far."""

    @abstractmethod
    def check_promises(self, judgement: Judgement) -> None:
        """Check the protocol's promises for every state, from all its cuts."""

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
        """Return the numbers of the tables of all pairs."""
        return tuple([self._tables[i, j, columns[i], columns[j]] for i, j in self.cuts.pairs])

    def _flow(self, agent: int, node: LoggedNode) -> int:
        return flow_of(agent, node.now.books, _waiting(node))

    def _flow_fault(self, state: State) -> Fault:
        nodes = [interner.values[number] for interner, number in zip(self.nodes, state, strict=False)]
        text = describe_flow(self.names, [node.now.books for node in nodes], [_waiting(node) for node in nodes])
        return Fault("exactly once", "G3", text)

    # -- recoveries -----------------------------------------------------------------------------------------------------

    def recovered(self, nodes: State, places: Cut, *, begun: int = 0) -> State:
        """Return the agents' nodes after a recovery to `places`. `begun`: number of rounds begun so far."""
        return self._filled[
            tuple([self._restarted_nodes[agent, nodes[agent], places[agent], begun] for agent in self.agents])
        ]

    def _restarted_node(self, agent: int, number: int, place: int, begun: int) -> int:
        """Return the node of an agent on the recovery line, with empty channels."""
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
        """Yield, for each sender, the part of its log that must be delivered to `agent` again."""
        for sender, node in enumerate(nodes):
            yield node.now.log[agent][len(nodes[agent].now.books.consumed[sender]) :]


def _waiting(node: LoggedNode) -> list[list[int]]:
    return [[message.number for message in messages] for messages in node.channels]
