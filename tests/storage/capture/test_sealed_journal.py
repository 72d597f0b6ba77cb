"""Sealed runs of journals: nothing is lost, and where they are cut depends on the entries alone."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.errors import DamagedDataError
from snapline.storage.capture import chunking
from snapline.storage.capture.chunking import (
    SealedJournal,
    SealedRuns,
    chunk_image,
    split_journal,
    whole_turn,
    with_journal,
)
from snapline.storage.capture.image import StateImage
from snapline.storage.packs.checkpoint import (
    AgentCheckpoint,
    JournalEntry,
    SavedTurn,
    decode_checkpoint,
    encode_checkpoint,
)

GROWTH = st.lists(st.lists(st.integers(0, 40), max_size=8), max_size=12)
"""At each checkpoint, the sizes of the results that have come since."""


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "RUN_ENTRIES", 4)
    monkeypatch.setattr(chunking, "RUN_BYTES", 64)


def entry(number: int, size_bytes: int) -> JournalEntry:
    return JournalEntry("step", f"s{number}", b"", "done", bytes([number % 256]) * size_bytes)


def saved(journal: list[JournalEntry], sealed: SealedRuns | None) -> tuple[AgentCheckpoint, bytes]:
    """The checkpoint, as a reader has it, and the content of its journal's part."""
    turn = SavedTurn("message", "b", b"", bytes(16), journal=journal[sealed.count if sealed is not None else 0 :])
    found = chunk_image(with_journal(StateImage(b"\xc0"), sealed), None)
    parts, journal_part = split_journal(found.parts)
    checkpoint = AgentCheckpoint(
        agent="a", kind="k", epoch=1, parts=parts, saved_turn=turn, saved_journal=journal_part or msgspec.UNSET
    )
    content = {chunk.digest: chunk.data for chunk in found.new}
    chunks = journal_part.chunks() if journal_part is not None else []
    return decode_checkpoint(encode_checkpoint(checkpoint)), b"".join([content[chunk.digest] for chunk in chunks])


@given(growth=GROWTH)
def test_a_journal_comes_back_whole_and_its_runs_do_not_depend_on_the_checkpoints(growth: list[list[int]]) -> None:
    journal: list[JournalEntry] = []
    sealed = SealedJournal()
    runs: SealedRuns | None = None
    for sizes in growth:
        journal += [entry(len(journal) + place, size) for place, size in enumerate(sizes)]
        before, runs = runs, sealed.seal(journal)
        assert before is None or (runs is not None and runs.runs[: len(before.runs)] == before.runs)
        checkpoint, content = saved(journal, runs)
        rest = checkpoint.turn
        assert rest is not None and len(rest.journal) < 4 and sum([len(each.result) for each in rest.journal]) < 64
        assert checkpoint.journal_entries == len(journal) and not checkpoint.parts
        whole = whole_turn(checkpoint, content)
        assert whole.turn is not None and whole.turn.journal == journal and whole.journal_part is None
    assert SealedJournal().seal(journal) == runs


def test_a_checkpoint_without_a_sealed_journal_has_no_word_of_it() -> None:
    checkpoint, _ = saved([entry(0, 3)], None)
    fields = msgspec.msgpack.decode(encode_checkpoint(checkpoint))[1]
    assert "journal" not in fields and whole_turn(checkpoint, b"") is checkpoint


def test_what_is_no_journal_is_damage() -> None:
    journal = [entry(number, 1) for number in range(4)]
    checkpoint, content = saved(journal, SealedJournal().seal(journal))
    with pytest.raises(DamagedDataError, match="does not decode"):
        whole_turn(checkpoint, bytes(len(content)))
    with pytest.raises(DamagedDataError, match="has a journal and no turn"):
        whole_turn(msgspec.structs.replace(checkpoint, saved_turn=msgspec.UNSET), content)
