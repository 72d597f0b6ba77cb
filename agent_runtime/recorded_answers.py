"""Recorded answers: results of steps and effects, and decisions on approvals, which a fleet takes instead of asking again.

A model's answer costs money, and a second one may differ. So a fork, a test or a simulation can run on the answers that another fleet has
got since a snapshot. An answer belongs to a *question*, which consists of the agent, the name of the step, the digest of its arguments, and
the number of times that the agent has asked this since the snapshot. These *occurrences* are counted in the order of the agent's durable
turns and of the places in their journals, also in groups, whose members end in any order. Attempts at one step count once. The agents'
checkpoints contain the counts, so that an agent asks for the same occurrences again after a recovery.

Recorded answers may come from a history that a recovery has undone. Each was a possible answer to its question, so a fleet that runs on them
does nothing that it could not have done without them.

A fork takes the outcomes of its parent's effects without calling anybody, and does not undo these effects. Approvals that people have
decided are taken too, unless the fork may act outside.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from snapline.agent_runtime.durable import LOST
from snapline.storage.log.answer_files import RecordedAnswer, RecordedAnswers
from snapline.storage.packs.checkpoint import AskedQuestion, JournalEntry

Question = tuple[str, str, bytes]
"""Kind, name and digest of a request."""


def question_of(entry: JournalEntry) -> Question:
    """Return the question that a journal entry asks."""
    return entry.kind, entry.name, entry.digest


class AnswerBook:
    """The recorded answers of a fleet, by agent, question and occurrence.

    Attributes:
        is_complete, asks_people: as in `RecordedAnswers`.
    """

    def __init__(self, recorded: RecordedAnswers) -> None:
        self.is_complete, self.asks_people = recorded.is_complete, recorded.asks_people
        self._answers: dict[str, dict[Question, dict[int, RecordedAnswer]]] = {}
        for answer in recorded.answers:
            questions = self._answers.setdefault(answer.agent, {})
            questions.setdefault((answer.kind, answer.name, answer.digest), {})[answer.occurrence] = answer

    def find(self, agent: str, question: Question, occurrence: int) -> RecordedAnswer | None:
        """Return the answer that the agent got when it asked this for the `occurrence`-th time, or None if there is none."""
        return self._answers.get(agent, {}).get(question, {}).get(occurrence)

    def knows(self, agent: str, question: Question) -> bool:
        """Return whether there is any answer to the question. Other questions need not be counted."""
        return question in self._answers.get(agent, {})


class AskedQuestions:
    """The number of times that an agent has asked each question, in turns that have ended since its recorded answers begin."""

    __slots__ = ("_counts", "_counts_in_turn", "_journal", "_seen")

    def __init__(self, saved: Iterable[AskedQuestion] = ()) -> None:
        self._counts = {(each.kind, each.name, each.digest): each.count for each in saved}
        self._journal: list[JournalEntry] = []
        self._seen = 0
        self._counts_in_turn: Counter[Question] = Counter()
        """Questions in the first `_seen` entries of `_journal`, so that each entry is counted once, however long the journal is."""

    def occurrence(self, question: Question, journal: list[JournalEntry], members: Iterable[JournalEntry] = ()) -> int:
        """Return the occurrence of a question. `journal` contains the entries before it, and `members` the earlier members of its group."""
        if journal is not self._journal or len(journal) < self._seen:
            self._journal, self._seen, self._counts_in_turn = journal, 0, Counter()
        self._counts_in_turn.update(map(question_of, _answered(islice(journal, self._seen, None))))
        self._seen = len(journal)
        in_group = sum([question_of(entry) == question for entry in members])
        return 1 + self._counts.get(question, 0) + self._counts_in_turn[question] + in_group

    def add(self, agent: str, entries: Iterable[JournalEntry], book: AnswerBook) -> None:
        """Count the requests of a turn that has ended."""
        for question in map(question_of, _answered(entries)):
            if book.knows(agent, question):
                self._counts[question] = self._counts.get(question, 0) + 1

    def saved(self) -> list[AskedQuestion]:
        """Return the counts for a checkpoint."""
        return [AskedQuestion(*question, count) for question, count in self._counts.items()]


def _answered(entries: Iterable[JournalEntry]) -> Iterator[JournalEntry]:
    """Yield the entries without those that were lost in a race, of which no log knows."""
    return (entry for entry in entries if entry.outcome != LOST)
