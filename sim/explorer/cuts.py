"""Cuts, recovery lines and useless checkpoints by definition: every cut is examined.

Theory of operation
-------------------
A *column* is one agent's books at each of its checkpoints and, as the last entry, now. Two entries of two columns are
*consistent* if neither has consumed what the other has not sent. A cut is consistent iff its entries are, pair by pair:
so one table of bits describes two agents, and one such table for each pair describes a fleet. Tables are numbered;
the numbers of all pairs make up the *relation* of a state. There are far fewer relations than states, so everything
by definition, over all cuts, is known for every state and yet computed only once a relation.

G6: a checkpoint is useless iff no consistent cut holds it. RDT: wherever two entries, live states too, are joined by no
causal path in either direction, some consistent cut holds both. (If no checkpoint is useless, this is the same as "every
Z-path has a causal twin": a Z-path between the two without one, in either direction, would keep them out of all cuts; and
a causal path against a Z-path would close a Z-cycle.) Causal paths come from true vector clocks, which the books keep and
messages carry where RDT is promised.
"""

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence

import msgspec

from snapline.sim.explorer.books import AgentBooks
from snapline.sim.explorer.interning import Interner, Memo

Column = tuple[AgentBooks, ...]
Cut = tuple[int, ...]

Relation = tuple[int, ...]
"""Number of the table of each pair of agents."""


class Table(msgspec.Struct, frozen=True):
    """Relation of two columns: by entry of the first, a mask of the entries of the second.

    Attributes:
        width: how many entries the second has.
        consistent: neither has consumed what the other has not sent.
        apart: no causal path joins them; all 0 where no vectors are kept.
    """

    width: int
    consistent: tuple[int, ...]
    apart: tuple[int, ...]


class Judgement(msgspec.Struct, frozen=True):
    """Properties of one relation, from all cuts.

    Attributes:
        sizes: by agent, how many entries its column has.
        cuts: the consistent ones: the entries of all agents but the last, and a mask of the entries of the last.
        useless: (agent, number) of every checkpoint that is in no consistent cut.
        untracked: (agent, entry, agent, entry) that no causal path joins and that no consistent cut holds both of.
    """

    sizes: tuple[int, ...]
    cuts: tuple[tuple[Cut, int], ...]
    useless: tuple[tuple[int, int], ...]
    untracked: tuple[tuple[int, int, int, int], ...]


class AllCuts:
    """Tables, relations and judgements of the columns of one exploration.

    Attributes:
        pairs: of agents, in the order in which relations have them.
        columns, tables: all that have been met.
        judgements: by relation.
        lines: by relation and failed agents, the recovery line.
    """

    def __init__(self, agents: int) -> None:
        self.pairs = list(itertools.combinations(range(agents), 2))
        self.columns: Interner[Column] = Interner()
        self.tables: Interner[Table] = Interner()
        self.judgements: Memo[Relation, Judgement] = Memo(self._judge)
        self.lines: Memo[tuple[Relation, tuple[int, ...]], Cut] = Memo(lambda key: self._line(*key))
        self._agents = agents

    def table(self, first: int, second: int, first_column: int, second_column: int) -> int:
        """The number of the table of two agents and their columns."""
        ours, theirs = self.columns.values[first_column], self.columns.values[second_column]
        ends = [(y.sent[first], max(y.consumed[first], default=0)) for y in theirs]
        consistent = [
            _mask(
                [consumed <= x.sent[second] and max(x.consumed[second], default=0) <= sent for sent, consumed in ends]
            )
            for x in ours
        ]
        apart = [0] * len(ours)
        if ours[0].vector:
            pasts = [y.vector[first] for y in theirs]
            apart = [
                _mask([past < number and x.vector[second] < other for other, past in enumerate(pasts)])
                for number, x in enumerate(ours)
            ]
        return self.tables.of(Table(len(theirs), tuple(consistent), tuple(apart)))

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
        """Agent by agent: what goes with the entries chosen so far is the intersection of their masks."""
        last = self._agents - 1
        prefixes: list[Cut] = [()]
        for agent in range(last):
            prefixes = [
                (*prefix, place)
                for prefix in prefixes
                for place in _bits(_fitting(tables, prefix, agent, sizes[agent]))
            ]
        found = [(prefix, _fitting(tables, prefix, last, sizes[last])) for prefix in prefixes]
        return [cut for cut in found if cut[1]]

    def _useless(
        self, sizes: tuple[int, ...], together: dict[tuple[int, int], list[int]]
    ) -> tuple[tuple[int, int], ...]:
        found = []
        for agent, size in enumerate(sizes):
            if agent:
                used = functools.reduce(operator.or_, together[0, agent])
            else:
                used = _mask([mask > 0 for mask in together[0, 1]])
            found += [(agent, number) for number in range(size) if not used >> number & 1]
        return tuple(found)

    def _untracked(
        self, tables: dict[tuple[int, int], Table], together: dict[tuple[int, int], list[int]]
    ) -> tuple[tuple[int, int, int, int], ...]:
        return tuple(
            (first, x, second, y)
            for first, second in self.pairs
            for x, (apart, used) in enumerate(zip(tables[first, second].apart, together[first, second], strict=True))
            for y in _bits(apart & ~used)
        )

    def _line(self, relation: Relation, failed: tuple[int, ...]) -> Cut:
        """The greatest of the consistent cuts that hold no live state of the failed."""
        judgement = self.judgements[relation]
        tops = [size - 1 - (agent in failed) for agent, size in enumerate(judgement.sizes)]
        reachable = (2 << tops[-1]) - 1
        below = [
            (*prefix, (mask & reachable).bit_length() - 1)  # the highest entry will do: a maximum is sought
            for prefix, mask in judgement.cuts
            if mask & reachable and all(map(operator.le, prefix, tops))
        ]
        greatest = tuple(map(max, zip(*below, strict=True)))
        assert greatest in below, "the greatest consistent cut is not unique"
        return greatest


def _fitting(tables: dict[tuple[int, int], Table], prefix: Cut, agent: int, size: int) -> int:
    """The entries of `agent` that are consistent with all of `prefix`."""
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
