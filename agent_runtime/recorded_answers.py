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
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

import msgspec

from snapline.agent_runtime.durable import ADOPTED, DONE, FAILED
from snapline.errors import NotFoundError
from snapline.storage.capture.chunking import whole_turn
from snapline.storage.log.answer_files import KEPT_KINDS, RecordedAnswer, RecordedAnswers, unique_batches
from snapline.storage.log.log_record import BEGUN, LoggedEntry, LogName
from snapline.storage.packs.checkpoint import AgentCheckpoint, AskedQuestion, JournalEntry, SavedTurn
from snapline.storage.packs.manifest import Manifest
from snapline.storage.store.reader import StoreReader

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
        self._counts_in_turn.update(map(question_of, islice(journal, self._seen, None)))
        self._seen = len(journal)
        in_group = sum([question_of(entry) == question for entry in members])
        return 1 + self._counts.get(question, 0) + self._counts_in_turn[question] + in_group

    def add(self, agent: str, entries: Iterable[JournalEntry], book: AnswerBook) -> None:
        """Count the requests of a turn that has ended."""
        for question in map(question_of, entries):
            if book.knows(agent, question):
                self._counts[question] = self._counts.get(question, 0) + 1

    def saved(self) -> list[AskedQuestion]:
        """Return the counts for a checkpoint."""
        return [AskedQuestion(*question, count) for question, count in self._counts.items()]


# ---- collecting ------------------------------------------------------------------------------------------------------


class Collected(msgspec.Struct, frozen=True):
    """Answers that were collected from a store.

    Attributes:
        answers: the answers, sorted by agent, question and occurrence.
        lost_batches: number of batches since the snapshot that were deleted before their answers were kept.
    """

    answers: list[RecordedAnswer]
    lost_batches: int


def collect(store: StoreReader, epoch: int | None, *, has_failures: bool = False) -> Collected:
    """Collect the answers that a fleet has got since a snapshot, or since its beginning if `epoch` is None.

    With `has_failures`, the answers include steps and effects that failed. Without them, a fleet asks again.

    Raises:
        NotFoundError: If the store does not contain the snapshot.
        DamagedDataError, StoreError: If the store is damaged or unreadable.
    """
    manifest = None if epoch is None else store.read_manifest(store.read_ref(epoch), epoch=epoch)
    checkpoints = [] if manifest is None else list(whole_checkpoints(store, manifest))
    batches: dict[tuple[LogName, int], list[LoggedEntry]] = {}
    numbers = store.exclude_deleted(store.read_logs())
    for log in numbers:
        for number in numbers[log]:
            try:
                batch = store.read_batch(log, number)
            except NotFoundError:  # it has just been deleted, so its answers are in a file by now
                continue
            batches[log, number] = batch.entries if batch is not None else []
    for kept in unique_batches(map(store.read_answers, store.answer_files())):
        batches.setdefault((kept.log, kept.number), kept.entries)
    entries = [entry for place in sorted(batches) for entry in batches[place]]
    answers = answers_in(entries, checkpoints, has_failures=has_failures)
    return Collected(answers, _count_lost(batches, manifest))


NOTHING_COLLECTED = Collected([], 0)


def whole_checkpoints(
    store: StoreReader, manifest: Manifest, agents: Collection[str] | None = None
) -> Iterator[AgentCheckpoint]:
    """Yield the checkpoints of a snapshot, or of some agents in it, with the complete journals of their turns. Raise DamagedDataError or
    StoreError."""
    read_parts = store.part_reader(manifest).read
    for checkpoint in store.read_checkpoints(manifest, agents):
        journal = checkpoint.journal_part
        yield checkpoint if journal is None else whole_turn(checkpoint, read_parts(checkpoint.agent, [journal])[0])


def answers_in(
    logged: Iterable[LoggedEntry], checkpoints: Iterable[AgentCheckpoint], *, has_failures: bool = False
) -> list[RecordedAnswer]:
    """Return the answers in log entries, oldest first, that were given since a snapshot.

    Of the entries of one turn, only those of its newest run count, because they agree with what the fleet has then done. The journal of a
    turn that was open in the snapshot is part of the answers, since a fork counts its entries too.
    """
    begun = {checkpoint.agent: checkpoint for checkpoint in checkpoints}
    turns: dict[tuple[str, int], list[LoggedEntry]] = {}
    for each in logged:
        checkpoint = begun.get(each.agent)
        if each.entry.kind in KEPT_KINDS and (checkpoint is None or each.turn > checkpoint.ended_turns):
            turns.setdefault((each.agent, each.turn), []).append(each)
    open_turns = {(x.agent, x.durable_turns): x.turn for x in begun.values() if x.turn is not None}
    answers = []
    counts: Counter[tuple[str, Question]] = Counter()
    for agent, number in sorted({*turns, *open_turns}):
        for entry in _run_of(turns.get((agent, number), []), open_turns.get((agent, number))):
            question = question_of(entry)
            counts[agent, question] += 1
            if entry.outcome in (DONE, ADOPTED) or (has_failures and entry.outcome == FAILED):
                answers.append(
                    RecordedAnswer(agent, *question, counts[agent, question], entry.outcome, entry.result, entry.sender)
                )
    return sorted(
        answers, key=lambda answer: (answer.agent, answer.kind, answer.name, answer.digest, answer.occurrence)
    )


def _run_of(logged: list[LoggedEntry], begun: SavedTurn | None) -> list[JournalEntry]:
    """Return the answers of a turn's newest run in the order of their places. `begun` is the turn as it was in the snapshot."""
    known = [] if begun is None else [*begun.journal, *begun.members]
    settled = {place: entry for place, entry in enumerate(known) if entry.outcome}
    newest = {x.place: x.entry for x in logged if x.seed == logged[-1].seed and x.entry.outcome != BEGUN}
    places = newest | settled
    return [places[place] for place in sorted(places) if places[place].kind in KEPT_KINDS]


def _count_lost(batches: Mapping[tuple[LogName, int], object], manifest: Manifest | None) -> int:
    """Return how many batches since a snapshot are neither in the logs nor in the answer files."""
    plan, starts = (0, {}) if manifest is None else (manifest.metadata.plan, manifest.metadata.log_starts)
    logs: dict[LogName, list[int]] = {}
    for log, number in batches:
        logs.setdefault(log, []).append(number)
    lost = 0
    for log, numbers in logs.items():
        if log.plan >= plan:
            first = starts.get(f"{log.host}-{log.start}", min(numbers)) if log.plan == plan else 1
            lost += max(numbers) - first + 1 - sum([number >= first for number in numbers])
    return max(0, lost)
