"""Commits in host logs: the newest whole one counts, however batches are cut and deleted, and large checkpoints are written as changes."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from snapline.errors import DamagedDataError
from snapline.storage.log import commits
from snapline.storage.log.commits import (
    COMMIT,
    CommitEncoder,
    CommitEntry,
    NewestCommit,
    checkpoint_of,
    note_newest,
)
from snapline.storage.log.log_record import CommitPart, LogBatch
from snapline.storage.packs.checkpoint import AgentCheckpoint

LARGE = 20_000


def checkpoint(agent: str, number: int, state: bytes = b"") -> AgentCheckpoint:
    return AgentCheckpoint(agent=agent, kind="m:K", epoch=0, number=number, basis=COMMIT, state=state or b"x" * number)


def found_in(*logs: list[LogBatch]) -> dict[str, NewestCommit]:
    found: dict[str, NewestCommit] = {}
    for log in logs:
        note_newest(log, found)
    return found


def newest(*logs: list[LogBatch]) -> dict[str, int]:
    return {agent: checkpoint_of(commit).number for agent, commit in found_in(*logs).items()}


def encode_commit(number: int, checkpoints: list[AgentCheckpoint]) -> list[CommitPart]:
    return CommitEncoder().encode(1, number, checkpoints)


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
    (entry,) = commits._decode([part])
    with pytest.raises(DamagedDataError, match="a commit names checkpoint 2 of a, and holds another one"):
        checkpoint_of(NewestCommit("a", 2, (entry,)))


# -- changes --------------------------------------------------------------------------------------------------------------


@given(st.data())
def test_each_checkpoint_is_found_while_its_log_is_there(data: st.DataObject) -> None:
    """Agents of all sizes change a little or entirely, record epochs, and are committed or not. A log is read up to any batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "CHAIN_MAX", data.draw(st.integers(0, 4)))
        patch.setattr(commits, "PREVIOUS_BYTES_MAX", data.draw(st.sampled_from([30_000, 1_000_000])))
        encoder, log, number = CommitEncoder(), [], 0
        states = {"a": b"a" * 100, "b": bytes(LARGE), "c": bytes(range(250)) * 80}
        expected: list[dict[str, bytes]] = [{}]
        for commit in range(1, data.draw(st.integers(1, 12)) + 1):
            chosen = data.draw(st.sets(st.sampled_from(sorted(states)), min_size=1))
            for agent in sorted(chosen):
                place = data.draw(st.integers(0, len(states[agent])))
                states[agent] = states[agent][:place] + data.draw(st.binary(max_size=9)) + states[agent][place + 5 :]
                if data.draw(st.booleans()):
                    encoder.recorded(agent)
            changed = []
            for agent in sorted(chosen):
                number += 1
                changed.append(checkpoint(agent, number, states[agent] or b"-"))
            log.append(encoder.encode(1, commit, changed))
            expected.append(expected[-1] | {each.agent: each.state for each in changed})
    end = data.draw(st.integers(0, len(log)))
    found = found_in(batches([part for parts in log[:end] for part in parts]))
    assert {agent: checkpoint_of(commit).state for agent, commit in found.items()} == expected[end]


def test_a_large_state_is_written_as_changes_until_a_new_log_an_epoch_or_many_changes() -> None:
    encoder = CommitEncoder()

    def base(number: int, plan: int = 1) -> int:
        state = number.to_bytes(4, "big") + bytes(LARGE)
        (entry,) = commits._decode(encoder.encode(plan, number, [checkpoint("a", number, state)]))
        assert (len(entry.checkpoint) < 200) == (entry.base > 0)
        return entry.base

    assert [base(1), base(2), base(3)] == [0, 1, 2]
    encoder.recorded("a")
    assert [base(4), base(5)] == [0, 4]
    assert [base(6, plan=2), base(7, plan=2)] == [0, 6]
    wholes = [number for number in range(8, 300) if not base(number, plan=2)]
    assert {after - before for before, after in itertools.pairwise(wholes)} == {commits.CHAIN_MAX + 1}


def test_changes_without_the_checkpoint_before_them_are_found_but_not_used() -> None:
    """The epoch that covers the missing commits has a newer checkpoint of the agent. Otherwise the log is damaged."""
    encoder = CommitEncoder()
    log = [encoder.encode(1, n, [checkpoint("a", n, bytes([n]) + bytes(LARGE))]) for n in (1, 2, 3)]
    for left in (log[1:], [log[0], log[2]]):
        (commit,) = found_in(batches([part for parts in left for part in parts])).values()
        assert (commit.number, commit.entries) == (3, ())
        with pytest.raises(DamagedDataError, match="checkpoint 3 of a in a commit refers to one that is missing"):
            checkpoint_of(commit)
    encoder.recorded("a")
    whole = encoder.encode(1, 4, [checkpoint("a", 4, bytes(LARGE))])
    assert newest(batches([*log[2], *whole])) == {"a": 4}


def test_changes_of_another_checkpoint_or_damaged_ones_are_damaged() -> None:
    encoder = CommitEncoder()
    parts = [encoder.encode(1, n, [checkpoint("a", n, bytes([n]) + bytes(LARGE))]) for n in (1, 2)]
    (whole,), (changes,) = (commits._decode(part) for part in parts)
    other = replace(whole, checkpoint=whole.checkpoint[:-1] + b"\1")
    with pytest.raises(DamagedDataError, match="the changes of checkpoint 2 of a in a commit do not fit checkpoint 1"):
        checkpoint_of(NewestCommit("a", 2, (other, changes)))
    short = replace(whole, checkpoint=b"")
    for entries in [(whole, replace(changes, checkpoint=b"\xc1")), (short, changes)]:
        with pytest.raises(DamagedDataError, match="the changes of checkpoint 2 of a in a commit are damaged"):
            checkpoint_of(NewestCommit("a", 2, entries))


def test_small_checkpoints_are_written_whole() -> None:
    encoder = CommitEncoder()
    entries = [commits._decode(encoder.encode(1, n, [checkpoint("a", n, bytes(100))])) for n in (1, 2)]
    assert [entry.base for (entry,) in entries] == [0, 0]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(entries[0]), type=list[CommitEntry]) == entries[0]
