"""Computes cuts, recovery lines and useless checkpoints directly from their definitions, by examining every cut.

Theory of operation
-------------------
An agent's *ledger* is the state of its application, which does not depend on the protocol. A ledger contains the number of messages sent to
each receiver and the identities of the messages consumed, in order. A message's identity is (sender, receiver, number). Message numbers are
reused after a rollback. So ledgers are compared immediately after a recovery, before a new message can reuse a number.

A *column* contains one agent's ledger at each of its checkpoints and, as the last entry, the agent's current ledger. Two entries in
different columns are *consistent* if neither includes the receipt of a message that the other has not sent. A cut is consistent if and only
if its entries are pairwise consistent. So a table of bits describes which entries of two agents are consistent, and one table per pair of
agents describes a fleet. Tables are numbered. The numbers of the tables for all pairs of agents form the *relation* of a state. There are
far fewer relations than states, so properties over all cuts are computed only once per relation.

G6: a checkpoint is useless if and only if no consistent cut contains it. RDT (rollback-dependency trackability) requires that any two
checkpoints or live states that no causal path connects belong to a common consistent cut. If no checkpoint is useless, this definition of
RDT is equivalent to the usual one, that every Z-path has a causal twin. If a Z-path between two entries had no causal twin, and no causal
path led in the opposite direction, no consistent cut would contain both entries. A causal path in the direction opposite to a Z-path would
close a Z-cycle. Causal paths are determined by exact vector clocks, which ledgers and messages carry if the protocol promises RDT.
"""

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from snapline.sim.explorer.state_search import Interner, Memo

# -- ledgers ---------------------------------------------------------------------------------------------------------------

ItemT = TypeVar("ItemT")

Numbers = tuple[int, ...]

_FLOW_BASE = 1 << 16
"""Base of a flow's digits. In an exploration, no agent sends as many as half this number of messages."""


class AgentLedger(NamedTuple):
    """An agent's ledger, which records the messages that the agent's application has sent and consumed.

    Attributes:
        sent: number of messages sent to each receiver. Messages are numbered from 1.
        consumed: numbers of the messages consumed from each sender, in order.
        vector: for each agent, its latest checkpoint interval in the causal past, or -1 if there is none. The tuple is empty if vector
            clocks are not used.
    """

    sent: Numbers
    consumed: tuple[Numbers, ...]
    vector: Numbers = ()


def empty_ledger(agents: int, agent: int, *, has_vector: bool = False) -> AgentLedger:
    """Return an agent's initial ledger."""
    vector = tuple(0 if other == agent else -1 for other in range(agents)) if has_vector else ()
    return AgentLedger((0,) * agents, ((),) * agents, vector)


def with_sent(ledger: AgentLedger, to: int) -> AgentLedger:
    """Return the ledger after sending another message to `to`."""
    return ledger._replace(sent=raised(ledger.sent, to))


def with_consumed(ledger: AgentLedger, sender: int, number: int) -> AgentLedger:
    """Return the ledger after consuming message `number` from `sender`."""
    return ledger._replace(consumed=replaced(ledger.consumed, sender, (*ledger.consumed[sender], number)))


def raised(numbers: Numbers, place: int) -> Numbers:
    """Return a copy of the numbers in which the number at index `place` is one higher."""
    return (*numbers[:place], numbers[place] + 1, *numbers[place + 1 :])


def replaced(items: tuple[ItemT, ...], place: int, item: ItemT) -> tuple[ItemT, ...]:
    """Return a copy of the items in which the item at index `place` is replaced with `item`."""
    return (*items[:place], item, *items[place + 1 :])


# -- exactly once ---------------------------------------------------------------------------------------------------------


def flow_of(agent: int, ledger: AgentLedger, waiting: Sequence[Sequence[int]]) -> int:
    """Return a number with one digit for each of an agent's channels. The digit counts the messages sent minus the messages consumed, in
    transit or waiting for a turn.

    In the sum over all agents, every digit must be 0 (G3). If the numbers of a channel's messages are not 1, 2, 3, …, they count as more
    messages than any agent sends, so the sum is not 0.

    Args:
        waiting: for each sender, the numbers of the messages that are in transit to the agent or wait for a turn.
    """
    count, flow = len(ledger.sent), 0
    for other in range(count):
        numbers = [*ledger.consumed[other], *waiting[other]]
        held = len(numbers) if numbers == list(range(1, len(numbers) + 1)) else _FLOW_BASE // 2
        flow += ledger.sent[other] * _FLOW_BASE ** (agent * count + other)
        flow -= held * _FLOW_BASE ** (other * count + agent)
    return flow


def describe_flow(
    names: Sequence[str], ledgers: Sequence[AgentLedger], waiting: Sequence[Sequence[Sequence[int]]]
) -> str:
    """Describe the first channel on which messages are missing, duplicated or out of order. Return "" if there is none. `waiting` contains,
    for each receiver and sender, the numbers of messages that are in transit or wait for a turn."""
    for sender, ours in enumerate(ledgers):
        for receiver, theirs in enumerate(ledgers):
            consumed, held = list(theirs.consumed[sender]), list(waiting[receiver][sender])
            if consumed + held != list(range(1, ours.sent[receiver] + 1)):
                return (
                    f"{names[sender]} has sent {ours.sent[receiver]} to {names[receiver]}, "
                    f"which has consumed {consumed} and may consume {held}"
                )
    return ""


# -- all cuts -------------------------------------------------------------------------------------------------------------

Column = tuple[AgentLedger, ...]
Cut = tuple[int, ...]

Relation = tuple[int, ...]
"""Numbers of the tables for all pairs of agents."""


class Table(msgspec.Struct, frozen=True):
    """Relation between two agents' columns. The table contains, for each entry in the first column, bit masks of entries in the second
    column.

    Attributes:
        width: number of entries in the second column.
        consistent: for each entry in the first column, the entries in the second column that are consistent with it.
        concurrent: for each entry in the first column, the entries in the second column to which no causal path connects it. All masks are
            0 if vector clocks are not used.
    """

    width: int
    consistent: tuple[int, ...]
    concurrent: tuple[int, ...]


class Judgement(msgspec.Struct, frozen=True):
    """Properties of a relation, computed by examining every cut.

    Attributes:
        sizes: number of entries in each agent's column.
        cuts: the consistent cuts. Each item consists of one entry for each agent except the last, and a bit mask of the last agent's
            entries that make the cut consistent.
        useless: the agent and the number of each checkpoint that no consistent cut contains.
        untracked: the agents and the entries of each pair of entries that no causal path connects and no consistent cut contains.
    """

    sizes: tuple[int, ...]
    cuts: tuple[tuple[Cut, int], ...]
    useless: tuple[tuple[int, int], ...]
    untracked: tuple[tuple[int, int, int, int], ...]


class AllCuts:
    """The tables and judgements for all columns that occur in one exploration.

    Attributes:
        pairs: pairs of agents, in the order in which relations list them.
        columns, tables: all columns and tables seen so far.
        lines: for each relation and set of failed agents, the recovery line.
    """

    def __init__(self, agents: int) -> None:
        self.pairs = list(itertools.combinations(range(agents), 2))
        self.columns: Interner[Column] = Interner()
        self.tables: Interner[Table] = Interner()
        self.judgements: Memo[Relation, Judgement] = Memo(self._judge)
        self.lines: Memo[tuple[Relation, tuple[int, ...]], Cut] = Memo(lambda key: self._line(*key))
        self._agents = agents

    def table(self, first: int, second: int, first_column: int, second_column: int) -> int:
        """Return the number of the table that relates these columns of two agents."""
        ours, theirs = self.columns.values[first_column], self.columns.values[second_column]
        ends = [(y.sent[first], max(y.consumed[first], default=0)) for y in theirs]
        consistent = [
            _mask(
                [consumed <= x.sent[second] and max(x.consumed[second], default=0) <= sent for sent, consumed in ends]
            )
            for x in ours
        ]
        concurrent = [0] * len(ours)
        if ours[0].vector:
            pasts = [y.vector[first] for y in theirs]
            concurrent = [
                _mask([past < number and x.vector[second] < other for other, past in enumerate(pasts)])
                for number, x in enumerate(ours)
            ]
        return self.tables.of(Table(len(theirs), tuple(consistent), tuple(concurrent)))

    def _judge(self, relation: Relation) -> Judgement:
        tables = {pair: self.tables.values[number] for pair, number in zip(self.pairs, relation, strict=True)}
        sizes = (len(tables[0, 1].consistent), *(tables[0, other].width for other in range(1, self._agents)))
        cuts = tuple(self._cuts(tables, sizes))
        together = {pair: [0] * sizes[pair[0]] for pair in self.pairs}
        for prefix, mask in cuts:
            for first, second in self.pairs:
                is_last = second == self._agents - 1
                together[first, second][prefix[first]] |= mask if is_last else 1 << prefix[second]
        return Judgement(sizes, cuts, self._useless(sizes, together), self._untracked(tables, together))

    def _cuts(self, tables: dict[tuple[int, int], Table], sizes: tuple[int, ...]) -> list[tuple[Cut, int]]:
        """Return the consistent cuts. The cuts are built agent by agent, by intersecting the masks of the entries chosen so far."""
        last = self._agents - 1
        prefixes: list[Cut] = [()]
        for agent in range(last):
            prefixes = [
                (*prefix, place)
                for prefix in prefixes
                for place in _bits(_fitting(tables, prefix, agent, sizes[agent]))
            ]
        cuts = [(prefix, _fitting(tables, prefix, last, sizes[last])) for prefix in prefixes]
        return [cut for cut in cuts if cut[1]]

    def _useless(
        self, sizes: tuple[int, ...], together: dict[tuple[int, int], list[int]]
    ) -> tuple[tuple[int, int], ...]:
        useless = []
        for agent, size in enumerate(sizes):
            if agent:
                used = functools.reduce(operator.or_, together[0, agent])
            else:
                used = _mask([mask > 0 for mask in together[0, 1]])
            useless += [(agent, number) for number in range(size) if not used >> number & 1]
        return tuple(useless)

    def _untracked(
        self, tables: dict[tuple[int, int], Table], together: dict[tuple[int, int], list[int]]
    ) -> tuple[tuple[int, int, int, int], ...]:
        return tuple(
            (first, x, second, y)
            for first, second in self.pairs
            for x, (concurrent, used) in enumerate(
                zip(tables[first, second].concurrent, together[first, second], strict=True)
            )
            for y in _bits(concurrent & ~used)
        )

    def _line(self, relation: Relation, failed: tuple[int, ...]) -> Cut:
        """Return the greatest consistent cut that does not contain the failed agents' live states."""
        judgement = self.judgements[relation]
        tops = [size - 1 - (agent in failed) for agent, size in enumerate(judgement.sizes)]
        reachable = (2 << tops[-1]) - 1
        below = [
            (*prefix, (mask & reachable).bit_length() - 1)  # only the highest entry can be in the greatest cut
            for prefix, mask in judgement.cuts
            if mask & reachable and all(map(operator.le, prefix, tops))
        ]
        greatest = tuple(map(max, zip(*below, strict=True)))
        assert greatest in below, "the greatest consistent cut is not unique"
        return greatest


def _fitting(tables: dict[tuple[int, int], Table], prefix: Cut, agent: int, size: int) -> int:
    """Return a bit mask of the entries of `agent` that are consistent with all entries in `prefix`."""
    mask = (1 << size) - 1
    for other, place in enumerate(prefix):
        mask &= tables[other, agent].consistent[place]
    return mask


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _mask(statements: Sequence[bool]) -> int:
    return sum([1 << place for place, is_true in enumerate(statements) if is_true])
