"""Histories: a list to the agent, and segments that give that list again to the store."""

import copy
import itertools
import pickle
import random
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import example, given, settings
from tests.storage.capture.segments_kept import Kept, Message, message, new_bytes, read, take

from snapline.errors import EncodingError
from snapline.storage.capture import history as history_module
from snapline.storage.capture.history import (
    LOG_RECORDS_MIN,
    MERGED_SEGMENTS,
    OPEN_SEGMENTS_MAX,
    History,
    Segment,
    add,
    first_open_index,
    is_full,
)

# It is a list.

indexes = st.integers(-12, 12)
slices = st.builds(slice, st.none() | indexes, st.none() | indexes, st.sampled_from([None, 1, 1, 2, -1, -2]))
records = st.integers(0, 2**40) | st.text(max_size=6)
edits = st.one_of(
    st.tuples(st.just("append"), records),
    st.tuples(st.just("append"), records),
    st.tuples(st.just("extend"), st.lists(records, max_size=8)),
    st.tuples(st.just("insert"), indexes, records),
    st.tuples(st.just("set"), indexes | slices, records, st.lists(records, max_size=4)),
    st.tuples(st.just("delete"), indexes | slices),
    st.tuples(st.just("pop"), indexes),
    st.tuples(st.just("remove"), records),
    st.tuples(st.just("clear")),
    st.tuples(st.just("reverse")),
)


def edit(target: Any, step: tuple[Any, ...]) -> object:
    """Do one edit; returns what it gave or how it failed."""
    try:
        match step:
            case ("set", index, one, many):
                target[index] = many if isinstance(index, slice) else one
                return None
            case ("delete", index):
                del target[index]
                return None
            case (name, *arguments):
                return getattr(target, name)(*arguments)
    except (IndexError, ValueError) as error:
        return IndexError if isinstance(error, IndexError) else ValueError
    raise AssertionError(step)


@settings(max_examples=50, deadline=None)
@given(st.lists(edits, max_size=30))
def test_does_to_itself_what_a_list_does(steps: list[tuple[Any, ...]]) -> None:
    history: History[Any] = History()
    model: list[Any] = []
    for step in steps:
        assert edit(history, step) == edit(model, step)
        assert history == model and list(history) == model and len(history) == len(model)
        history.capture(None)
    assert history[1:5:2] == model[1:5:2] and list(reversed(history)) == model[::-1]
    assert all(history.index(x) == model.index(x) and history.count(x) == model.count(x) for x in model)


# Captures.

actions = st.one_of(
    edits,
    edits,
    st.tuples(st.just("take"), st.integers(0, 3)),
    st.tuples(st.just("take"), st.just(0)),
    st.tuples(st.just("restore"), st.integers(0, 3)),
    st.tuples(st.just("mark")),
    st.tuples(st.just("rollback")),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(actions, max_size=60), st.sampled_from([64, 400, 256 * 1024]))
def test_any_capture_gives_the_list_whatever_became_of_those_before(steps: list[Any], target_bytes: int) -> None:
    """A base may be any complete checkpoint, or none; others were aborted; agents go back to earlier ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_module, "SEGMENT_BYTES_MAX", target_bytes)
        _run(steps)


def _run(steps: list[Any]) -> None:
    model: list[Any] = list(range(12))
    history: History[Any] = History(model)
    complete = [take(history, None)]
    mark = None
    for step in steps:
        if step[0] == "take":
            base = complete[-step[1]] if 0 < step[1] <= len(complete) else None
            kept = take(history, base)
            assert read(kept.contents, Any) == model
            complete += [kept] if step[1] != 3 else []  # 3: this epoch is aborted
        elif step[0] == "restore" and 0 < step[1] <= len(complete):
            kept = complete[-step[1]]
            history, model, mark = kept.restored(Any), list(kept.model), None
            kept.by_token = {token: kept.bytes_of(chunk) for token, chunk in history.table_entries().items()}
            complete = [kept]
        elif step[0] == "mark":
            mark = history.mark(), list(model)
        elif step[0] == "rollback" and mark is not None:
            history.rollback(mark[0])
            (_, model), mark = mark, None
        elif step[0] not in ("restore", "rollback"):
            assert edit(history, step) == edit(model, step)
        assert history == model


def test_a_capture_holds_what_was_appended_and_no_more() -> None:
    history = History([message(i, 1000) for i in range(2000)])
    base = take(history, None)
    new = [message(2000 + i, 1000) for i in range(10)]
    history.extend(new)
    assert new_bytes(history, base) <= len(msgspec.msgpack.encode(new)) + 10
    assert new_bytes(history, base) == new_bytes(history, base) > 0, "what no base has is handed out again"
    base = take(history, base)
    assert new_bytes(history, base) == 0


@pytest.mark.parametrize("place", [0, 1000, 1999])
def test_an_edit_of_an_old_record_does_not_rewrite_the_rest(place: int) -> None:
    history = History([message(i, 1000) for i in range(2000)])
    base = take(history, None)
    history[place] = message(5, 900)
    del history[place - 1]
    history.insert(place, message(6, 900))
    assert new_bytes(history, base) < 2 * 1000


def test_a_base_that_lacks_a_segment_gets_it_although_its_bytes_were_dropped() -> None:
    """Such as a checkpoint that the agent takes on its own, between those of the epochs."""
    history = History([message(i, 1000) for i in range(1000)])
    first = take(history, None)
    history.append(message(0))
    second = take(history, first)
    assert sum(chunk.data is None for chunk in history.capture(second.table()).chunks) == len(second.contents)
    assert read(take(history, None).contents, Message) == list(history)


def test_bytes_of_segments_do_not_stay_in_memory() -> None:
    history = History([message(i, 1000) for i in range(5000)])
    history.capture(take(history, None).table())
    assert sum(len(s.data) for s in history._segments if s.data is not None) <= history_module.SEGMENT_BYTES_MAX


@pytest.mark.parametrize("seed", range(5))
def test_merging_writes_each_byte_a_few_times_and_keeps_segments_few(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """M is made smaller, so that 1000 captures fill many segments."""
    target = 4096
    monkeypatch.setattr(history_module, "SEGMENT_BYTES_MAX", target)
    draw, history, base, written = random.Random(seed), History[Message](), None, 0
    lengths = ([20], [350], [20, 20, 20, 4500], [1, 2500, 150], [1400])[seed]
    for number in range(1000):
        history.append(message(number, draw.choice(lengths)))
        part = history.capture(base.table() if base else None)
        written += sum(chunk.size_bytes for chunk in part.chunks if chunk.data is not None)
        base = Kept(part, base, [])
        sizes = [chunk.size_bytes for chunk in part.chunks]
        still_open = next((i for i, size in enumerate(reversed(sizes)) if is_full(size, target)), len(sizes))
        assert still_open <= OPEN_SEGMENTS_MAX and sum(sizes[len(sizes) - still_open :]) <= target
        assert len(sizes) <= OPEN_SEGMENTS_MAX + 1 + 4 * part.size_bytes / target and max(sizes) <= target + 500
    assert read(base.contents if base else [], Message) == list(history)
    assert written <= 4.2 * part.size_bytes, f"each byte {written / part.size_bytes:.1f} times"
    if len(lengths) == 1:
        assert len(sizes) <= OPEN_SEGMENTS_MAX + 1.6 * part.size_bytes / target


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 31) | st.integers(32, 255) | st.integers(256, 5000) | st.just(1), max_size=100),
    st.randoms(),
    st.integers(1, 2),
)
@example([20] * 7 + [40], random.Random(1), 40)
def test_segments_stay_in_order_and_few(sizes: list[int], draw: random.Random, times: int) -> None:
    """The invariants that `history.py` states, for contents of any sizes."""
    target, segments, joined = 4096, list[Segment](), b""
    for size in sizes * times:
        content = draw.randbytes(size)
        joined += content
        add(segments, content, target)
        assert b"".join(segment.data or b"" for segment in segments) == joined
        lengths = [segment.size_bytes for segment in segments]
        assert lengths == [len(segment.data or b"") for segment in segments]
        first = first_open_index(segments, target)
        assert len(segments) - first <= OPEN_SEGMENTS_MAX and sum(lengths[first:]) <= target
        assert all(is_full(a, target) or is_full(b, target) for a, b in itertools.pairwise(lengths[:first]))
        assert max(lengths) <= max(target, *sizes)
        assert len({segment.token for segment in segments}) == len(segments)


@pytest.mark.parametrize("stop", [5, 700, 900])
def test_many_records_may_be_put_in_the_middle(stop: int) -> None:
    """They become several operations, which must not turn their order around."""
    model = [message(i, 1000) for i in range(2000)]
    history = History(model)
    base = take(history, None)
    history[5:stop] = model[5:stop] = [message(i, 900) for i in range(5000, 5800)]
    kept = take(history, base)
    assert kept.contents[0] == base.contents[0] and read(kept.contents, Message) == model


def test_no_content_is_longer_than_asked_for() -> None:
    history = History(message(i, i % 700) for i in range(3000))
    base = take(history, None)
    assert max(map(len, base.contents)) <= history_module.SEGMENT_BYTES_MAX and len(base.contents) < 9
    history.append(message(0, 1_000_000))
    history.extend(message(i, i % 700) for i in range(3000))
    sizes = [chunk.size_bytes for chunk in history.capture(base.table()).chunks]
    assert [size > history_module.SEGMENT_BYTES_MAX for size in sizes].count(True) == 1


def test_what_was_handed_out_is_not_encoded_again_while_no_epoch_completes() -> None:
    """The store is away for a while: a capture still costs what was appended."""
    history = History([message(i, 1000) for i in range(1000)])
    first = take(history, None)
    for _ in range(3):
        history.append(message(1))
        chunks = history.capture(None).chunks
        assert {chunk.token for chunk in chunks} >= set(first.by_token) and all(chunk.data for chunk in chunks)


def test_a_rollback_forgets_what_came_after_the_mark() -> None:
    history = History(["a"])
    base = take(history, None)
    history.append("b")
    mark = history.mark()
    history.append("c")
    history[0] = "d"
    take(history, base)
    history.rollback(mark)
    assert history == ["a", "b"] and read(take(history, base).contents, str) == ["a", "b"]


@pytest.mark.parametrize(
    ("spans", "operations"),
    [
        ([(5, 6), (4, 5), (3, 4)], 1),
        ([(5, 6), (5, 6), (5, 6)], 1),
        ([(5, 6), (4, 7), (1, 9)], 1),
        ([(5, 6), (6, 7), (4, 5)], 3),
        ([(5, 6), (3, 4), (3, 4)], 2),
        ([(2, 3), (5, 6), (2, 3)], 3),
    ],
)
def test_deletions_in_a_row_share_one_operation(spans: list[tuple[int, int]], operations: int) -> None:
    history, model = History(range(1000)), list(range(1000))
    base = take(history, None)
    for start, stop in spans:
        del history[start:stop], model[start:stop]
    kept = take(history, base)
    assert read(kept.contents, int) == model
    assert len(kept.contents[-1]) == 21 * operations


def test_eight_small_segments_become_one() -> None:
    history, counts = History[int](), []
    for number in range(3 * MERGED_SEGMENTS):
        history.append(number)
        counts.append(len(history.capture(None).chunks))
    assert max(counts) == MERGED_SEGMENTS - 1 and counts[MERGED_SEGMENTS - 1] == 1


@pytest.mark.parametrize("how", ["queue", "shrink", "one large", "slices"])
def test_dead_bytes_stay_below_half(how: str) -> None:
    """Of a queue; of long messages that are shortened later; of one large record that is replaced again and again."""
    draw, history, base = random.Random(1), History(message(i) for i in range(200)), None
    for number in range(600):
        if how == "queue":
            history.append(message(number, draw.randrange(200)))
            del history[0]
        elif how == "shrink":
            history.append(message(number, 2000))
            history[-20 if number > 20 else 0] = message(number, 5)
        elif how == "one large":
            history[0] = message(number, 5000)
        else:
            history[10:150] = [message(number, 40)] * draw.randrange(300)
        base = take(history, base)
        live = len(msgspec.msgpack.encode(list(history)))
        size = sum(map(len, base.contents))
        assert size <= 2.2 * live + 12_000, (number, size, live)
    assert read(base.contents if base else [], Message) == list(history)


def test_dead_bytes_are_known_after_a_restore() -> None:
    history = History([message(i, 500) for i in range(1000)])
    base = take(history, None)
    history[0:480] = [message(0, 1)]
    kept = take(history, base)
    back = kept.restored(Message)
    assert back._dead_bytes == pytest.approx(history._dead_bytes, rel=0.05)
    kept.by_token = {token: kept.bytes_of(chunk) for token, chunk in back.table_entries().items()}
    assert new_bytes(back, kept) == 0
    del back[0:100]
    assert sum(map(len, take(back, kept).contents)) < 530 * 425


def test_a_restored_history_reuses_all_segments_and_merges_the_small_ones() -> None:
    history, base = History(message(i, 1000) for i in range(1000)), None
    for number in range(6):
        base = take(history, base)
        history.append(message(number))
    assert base is not None
    back = base.restored(Message)
    entries = back.table_entries()
    assert list(entries.values()) == base.state_part().chunks()
    kept = copy.copy(base)
    kept.by_token = {token: base.bytes_of(chunk) for token, chunk in entries.items()}
    back.append(message(7))
    assert 0 < new_bytes(back, kept) < 100
    assert read(take(back, kept).contents, Message) == list(back)
    for number in range(MERGED_SEGMENTS):
        back.append(message(number))
        assert read(take(back, kept).contents, Message) == list(back)


def test_a_log_that_nobody_captures_stays_small() -> None:
    history = History(range(10))
    history.capture(None)
    for number in range(10 * LOG_RECORDS_MIN):
        history.append(number)
        del history[0]
        assert history._log is None or sum(len(o.records) + 1 for o in history._log) <= 3 * LOG_RECORDS_MIN
    assert read(take(history, None).contents, int) == list(history)


def test_edits_of_what_was_just_appended_leave_nothing_dead() -> None:
    """Such as an answer that arrives in pieces: `history[-1] = longer`."""
    history = History(["question"])
    base = take(history, None)
    history.append("")
    for length in range(500):
        history[-1] = "a" * length
    assert new_bytes(history, base) < 600


def test_a_capture_that_fails_changes_nothing() -> None:
    history: History[Any] = History(range(5000))
    base = take(history, None)
    history.extend([1, 2**70])
    history[0] = 9
    for known in (base, None):
        with pytest.raises(EncodingError, match="a int in a History cannot be encoded"):
            take(history, known)
    history[-1] = 7
    assert read(take(history, base).contents, int) == [9, *range(1, 5000), 1, 7], "the bad record has gone"


def test_copies_share_no_token() -> None:
    """Otherwise two histories could give one token two contents."""
    history = History([message(1)])
    history.capture(None)
    for twin in (copy.copy(history), copy.deepcopy(history), pickle.loads(pickle.dumps(history))):
        assert twin == history and twin is not history
        twin.append(message(2))
        assert history == [message(1)]
        ours, theirs = history.capture(None).chunks, twin.capture(None).chunks
        assert not {chunk.token for chunk in ours} & {chunk.token for chunk in theirs}
