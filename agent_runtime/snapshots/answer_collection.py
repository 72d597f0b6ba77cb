"""Collects the answers that a fleet has got since a snapshot, from its host logs and answer files (`agent_runtime/recorded_answers.py`)."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from snapline.agent_runtime.durable import ADOPTED, DONE, FAILED
from snapline.agent_runtime.recorded_answers import Question, question_of
from snapline.errors import NotFoundError
from snapline.storage.capture.chunking import whole_turn
from snapline.storage.log.answer_files import KEPT_KINDS, RecordedAnswer, unique_batches
from snapline.storage.log.log_record import BEGUN, LoggedEntry, LogName
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry, SavedTurn
from snapline.storage.packs.manifest import Manifest
from snapline.storage.store.reader import StoreReader


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
