"""The journal of one turn is bounded; what undoes effects is not refused by that."""

from typing import Any

import msgspec
import pytest

from snapline.agent_runtime import durable
from snapline.agent_runtime.durable import DONE, EffectIntent, EffectWork, SegmentEnd, TurnJournal
from snapline.errors import UsageError
from snapline.storage.packs.checkpoint import JournalEntry, SavedTurn

SEED = bytes(16)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "JOURNAL_ENTRIES_MAX", 5)
    monkeypatch.setattr(durable, "JOURNAL_BYTES_MAX", 100)


def entries_of(journal: TurnJournal, result: bytes, work: Any = None) -> list[JournalEntry]:
    """Ask for steps, each with this result, until the journal refuses one, or there are a dozen."""
    made: list[JournalEntry] = []

    async def handler() -> None:
        for _ in range(12):
            made.append(await journal.wait("step", "look", b"", work=work))

    running = handler()
    stand: Any = running.send(None)
    try:
        while isinstance(stand, SegmentEnd):
            stand = running.send(msgspec.structs.replace(stand.waits, outcome=DONE, result=result))
    except StopIteration:
        pass
    except UsageError as error:
        assert "the turn's journal is full" in str(error) and "let a long plan go on in another turn" in str(error)
    return made


@pytest.mark.parametrize(("size_bytes", "count"), [(1, 5), (40, 3), (100, 1), (500, 1)])
def test_a_full_journal_takes_no_entry_and_is_the_same_when_it_is_run_again(size_bytes: int, count: int) -> None:
    made = entries_of(TurnJournal(SEED), b"r" * size_bytes)
    assert len(made) == count
    again = TurnJournal(SEED, SavedTurn("message", "z", b"", SEED, "", made))
    running = again.wait("step", "look", b"")
    for entry in made:
        with pytest.raises(StopIteration) as ended:
            running.send(None)
        assert ended.value.value == entry
        running = again.wait("step", "look", b"")
    with pytest.raises(UsageError, match="journal is full"):
        running.send(None)


def test_the_time_is_an_entry_too() -> None:
    journal = TurnJournal(SEED)
    for number in range(5):
        assert journal.now(lambda number=number: number) == number  # type: ignore[misc]  # mypy infers no default
    with pytest.raises(UsageError, match="5 entries with 40 bytes"):
        journal.now(lambda: 0)


def test_compensations_are_not_refused() -> None:
    """As many as there were effects, and these were entries: a saga that cannot be undone would be worse than a long journal."""
    intent = EffectIntent("k", "release()", 0, is_undo=True)
    work = EffectWork(lambda: None, b"", intent, None, 1.0, ())
    assert len(entries_of(TurnJournal(SEED), b"r" * 500, work)) == 12
