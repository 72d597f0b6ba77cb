"""Checks of the product's recovery code against all cuts, in every state in which an agent could crash.

`recovery.lines`, on the rollback-dependency graph, is called for every distinct set of columns; recoveries use its result.
`recovery.history`, which the coordinator runs, also computes obsolete checkpoints and takes fifty times as long. Of all sets
of columns that differ only in the agents' names, it is called for the first one.

G7: the checkpoints on the recovery line of any single failure, computed from all cuts, are needed, and none of them may be
called obsolete. The theorem of `recovery.garbage`, that later lines need no other checkpoints, is not checked here.
"""

import itertools

from snapline.recovery.execution import NOT_RECEIVED, Execution
from snapline.recovery.history import FleetHistory
from snapline.recovery.lines import recovery_line
from snapline.sim.explorer.cuts import AgentLedger, AllCuts, Column, Cut, Relation
from snapline.sim.explorer.state_search import Fault, Interner, Memo

RENAMED_AGENTS_MAX = 4
"""Largest number of agents for which renaming saves time."""

Columns = tuple[int, ...]


class Recoveries:
    """Recovery lines that the product computes after single failures.

    Attributes:
        lines: columns → recovery lines by failed agent, as entries of the columns.
        history_type: class of the history; mutants replace it.
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
        """Raise `Fault` if the product's result for any single failure is wrong."""
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
        """Return the number of a column without vectors and with its peers in another order."""
        entries = []
        for books in self._cuts.columns.values[column]:
            received = [len(books.consumed[agent]) for agent in renaming]
            entries.append((*(books.sent[agent] for agent in renaming), *received))
        return self._renamed_columns.of(tuple(entries))

    # -- recovery.lines -------------------------------------------------------------------------------------------------

    def _lines_of(self, columns: Columns) -> tuple[Cut, ...]:
        execution = self.execution_of(columns)
        return tuple([tuple(recovery_line(execution, [agent])) for agent in self._agents])

    def execution_of(self, columns: Columns) -> Execution:
        """Return the columns as intervals and messages, for the code that reads traces. Events are not counted."""
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
        """Return (receiver, number, interval) of every message sent. The interval ends at the first entry that includes the send."""
        entries = self._cuts.columns.values[column]
        return [
            (receiver, number, sum([books.sent[receiver] < number for books in entries]) - 1)
            for receiver, count in enumerate(entries[-1].sent)
            for number in range(1, count + 1)
        ]

    def _received_in(self, column: int) -> dict[tuple[int, int], int]:
        """Return, by (sender, number), the interval in which the message was consumed."""
        entries = self._cuts.columns.values[column]
        return {
            (sender, number): sum([number not in books.consumed[sender] for books in entries]) - 1
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
        for number, books in enumerate(column[1:-1], 1):
            history.add(name, number, self._sent_since(before, books), self._received_since(before, books))
            before = books
        history.report_live(name, self._received_since(before, column[-1]), self._sent_since(before, column[-1]))

    def _sent_since(self, before: AgentLedger, books: AgentLedger) -> dict[str, int]:
        pairs = zip(self._names, before.sent, books.sent, strict=True)
        return {name: count for name, old, count in pairs if count != old}

    def _received_since(self, before: AgentLedger, books: AgentLedger) -> dict[str, int]:
        pairs = zip(self._names, before.consumed, books.consumed, strict=True)
        return {name: numbers[-1] for name, old, numbers in pairs if numbers != old}

    def _places(self, line: dict[str, int | None], columns: list[Column]) -> Cut:
        """Return a recovery line as entries of the columns; the last entry is the live state."""
        places = [line[name] for name in self._names]
        pairs = zip(places, columns, strict=True)
        return tuple(len(column) - 1 if place is None else place for place, column in pairs)
