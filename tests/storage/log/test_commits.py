"""Commits in host logs: the newest whole one counts, however batches are cut and deleted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from snapline.errors import DamagedDataError
from snapline.storage.log import commits
from snapline.storage.log.commits import COMMIT, Entry, checkpoint_of, encode_commit, note_newest
from snapline.storage.log.log_record import CommitPart, LogBatch
from snapline.storage.packs.checkpoint import AgentCheckpoint


def checkpoint(agent: str, number: int) -> AgentCheckpoint:
    return AgentCheckpoint(agent=agent, kind="m:K", epoch=0, number=number, basis=COMMIT, state=b"x" * number)


def newest(*logs: list[LogBatch]) -> dict[str, int]:
    found: dict[str, Entry] = {}
    for log in logs:
        note_newest(log, found)
    return {agent: checkpoint_of(entry).number for agent, entry in found.items()}


def batches(parts: list[CommitPart]) -> list[LogBatch]:
    return [LogBatch(saved_commits=[part]) for part in parts]


def test_an_agent_s_newest_checkpoint_counts_in_whatever_log_it_is() -> None:
    first = batches(encode_commit(1, [checkpoint("a", 1), checkpoint("b", 5)]))
    second = batches(encode_commit(1, [checkpoint("a", 3)]))
    assert newest(first, second) == newest(second, first) == {"a": 3, "b": 5}


@given(st.data())
def test_only_whole_commits_count(data: st.DataObject) -> None:
    """The log may end within a commit, and batches from its start may have been deleted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "PART_BYTES", 50)
        written = [encode_commit(number, [checkpoint("a", number * 10)]) for number in (1, 2, 3)]
    everything = [part for parts in written for part in parts]
    start, end = sorted(data.draw(st.lists(st.integers(0, len(everything)), min_size=2, max_size=2)))
    left = everything[start:end]
    whole = [number * 10 for number, parts in enumerate(written, 1) if all(part in left for part in parts)]
    assert newest(batches(left)) == ({"a": max(whole)} if whole else {})


def test_a_commit_that_does_not_decode_or_names_another_checkpoint_is_damaged() -> None:
    (part,) = encode_commit(1, [checkpoint("a", 1)])
    with pytest.raises(DamagedDataError, match="commit 1 of a host log does not decode"):
        newest(batches([replace(part, data=part.data[:-1])]))
    ((agent, _, blob),) = commits._decode([part])
    with pytest.raises(DamagedDataError, match="a commit names checkpoint 2 of a, and holds another one"):
        checkpoint_of((agent, 2, blob))
