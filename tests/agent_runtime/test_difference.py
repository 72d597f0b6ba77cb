"""Differences between snapshots: nothing where nothing changed, everything where something did, and lists that end."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent_runtime.test_incremental_epochs import CHUNK, LENGTH, Host, Line

from snapline.agent_runtime.message_encoding import encode_body, encode_message
from snapline.agent_runtime.snapshots import snapshot_difference as snapshot_difference_module
from snapline.agent_runtime.snapshots import state_difference
from snapline.agent_runtime.snapshots.snapshot_difference import snapshot_difference
from snapline.agent_runtime.snapshots.state_difference import (
    StateChanges,
    _Alignment,
    compare,
    compare_arrays,
    compare_bytes,
    shown,
)
from snapline.errors import DamagedDataError, NotFoundError
from snapline.storage.capture.image import PART_ARRAY, PART_BLOB
from snapline.storage.capture.saved_values import Content, SavedArray, read_state
from snapline.storage.capture.values import ArrayHead, Blob, Pickled, encode_pickling
from snapline.storage.disk.record import digest_of
from snapline.storage.packs.checkpoint import (
    AgentCheckpoint,
    DeadLetterRecord,
    InTransitMessage,
    ParkedMessage,
    SavedTimer,
    SpawnRequest,
    StatePart,
    encode_checkpoint,
)
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.store.store import Store

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=True), st.text(max_size=3), st.binary(max_size=3)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.one_of(st.text(max_size=2), st.integers(0, 3)), inner, max_size=4),
    ),
    max_leaves=12,
)


def changes_of(before: object, after: object) -> list[dict[str, object]]:
    changes = StateChanges()
    compare(before, after, changes)
    return changes.shown


def is_same(first: object, second: object) -> bool:
    """The oracle: equal, and of the same types all the way down."""
    if type(first) is not type(second):
        return False
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(is_same, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(is_same(first[key], second[key]) for key in first)
    return first == second or (first != first and second != second)  # noqa: PLR0124


@settings(max_examples=100, deadline=None)
@given(VALUES, VALUES)
def test_there_are_changes_where_values_differ_and_nowhere_else(before: object, after: object) -> None:
    assert changes_of(before, before) == [] and changes_of(after, after) == []
    assert (changes_of(before, after) == []) is is_same(before, after)


def test_fields_are_named_by_their_paths() -> None:
    before = {"mind": {"mood": "calm", "odd key": 1, 7: [1, {"x": 2}]}, "gone": [1], "same": 1.5}
    after = {"mind": {"mood": "wild", "odd key": True, 7: [1, {"x": 3}]}, "new": "n", "same": 1.5}
    assert changes_of(before, after) == [
        {"path": "mind.mood", "change": "value", "before": "calm", "after": "wild"},
        {"path": "mind['odd key']", "change": "value", "before": 1, "after": True},
        {"path": "mind[7][1].x", "change": "value", "before": 2, "after": 3},
        {"path": "gone", "change": "removed", "before": [1]},
        {"path": "new", "change": "added", "after": "n"},
    ]


def test_changes_are_bounded_and_the_others_counted() -> None:
    changes = StateChanges()
    compare(dict.fromkeys(range(1000), 1), dict.fromkeys(range(1000), 2), changes)
    assert len(changes.shown) == state_difference.DIFFERENCES_MAX
    assert len(changes.shown) + changes.more == 1000


def test_what_is_shown_of_a_value_has_an_end() -> None:
    assert len(str(shown("x" * 10**6))) <= 300 and len(str(shown(bytes(10**6)))) < 400
    deep: object = 1
    for _ in range(50):
        deep = {"a": [deep] * 30}
    assert len(str(shown(deep))) < 10**6
    assert shown(list(range(25)))[-1] == "… 5 more"  # type: ignore[index]


def test_values_nested_too_deep_to_walk_are_still_compared() -> None:
    def nested(last: int) -> object:
        value: object = last
        for _ in range(200):
            value = [value]
        return value

    assert changes_of(nested(1), nested(1)) == []
    assert len(changes_of(nested(1), nested(2))) == 1


# ---- lists and histories -------------------------------------------------------------------------------------------

ITEMS = st.lists(st.integers(0, 8), max_size=12)


@settings(max_examples=150, deadline=None)
@given(ITEMS, ITEMS)
def test_an_alignment_accounts_for_every_item_once(before: list[int], after: list[int]) -> None:
    found = _Alignment(before, after)
    left = [x for i, x in enumerate(before) if i not in {*found.dropped, *(i for i, _ in found.edited)}]
    right = [
        x for j, x in enumerate(after) if j not in {*found.inserted, *found.appended, *(j for _, j in found.edited)}
    ]
    assert left == right, "what is neither is the same, in order"
    assert all(j > max([0, *(j for j, x in enumerate(after[: found.appended[0]]))]) for j in found.appended[1:])
    assert [*range(len(after) - len(found.appended), len(after))] == found.appended
    assert (before == after) is (found.keeps_length and not found.edited)


def longest_common(first: Sequence[int], second: Sequence[int]) -> int:
    row = [0] * (len(second) + 1)
    for x in first:
        row_before = row[:]
        for j, y in enumerate(second):
            row[j + 1] = row_before[j] + 1 if x == y else max(row_before[j + 1], row[j])
    return row[-1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 12), max_size=10, unique=True), st.lists(st.integers(0, 12), max_size=10, unique=True))
def test_as_much_as_possible_is_paired_where_no_two_are_equal(before: list[int], after: list[int]) -> None:
    found = _Alignment(before, after)
    assert len(before) - len(found.dropped) - len(found.edited) == longest_common(before, after)


def test_a_dropped_front_and_new_records_are_told_as_such() -> None:
    (change,) = changes_of({"log": list(range(100))}, {"log": [*range(3, 50), -1, *range(51, 100), 100, 101]})[:1]
    assert (change["length_before"], change["length_after"]) == (100, 99)
    assert [change[name] for name in ("appended", "inserted", "edited", "dropped")] == [2, 0, 1, 3]


def test_a_long_history_that_was_edited_is_aligned_in_a_moment() -> None:
    """Quadratic work would take minutes here."""
    before = list(range(100_000))
    after = [*before[10:50_000], -1, *before[50_001:], *range(-50, -2)]
    found = _Alignment(before, after)
    assert [len(x) for x in (found.edited, found.dropped, found.inserted, found.appended)] == [1, 10, 0, 48]


# ---- arrays --------------------------------------------------------------------------------------------------------


class Memory:
    """Bytes of parts, cut into chunks; notes how much is read."""

    def __init__(self) -> None:
        self.chunks: dict[bytes, bytes] = {}
        self.read_bytes = 0

    def content(self, data: bytes, sizes: Sequence[int], *, chunk_bytes: int = 0, kind: int = PART_BLOB) -> Content:
        pieces, start = [], 0
        for size in sizes:
            pieces.append(data[start : start + size])
            start += size
        assert start == len(data)
        self.chunks |= {digest_of(piece): piece for piece in pieces}
        digests = b"".join(digest_of(piece) for piece in pieces)
        part = StatePart(kind, b"", len(data), chunk_bytes, [] if chunk_bytes else list(sizes), digests)
        return Content(None, part, self.read)

    def array(self, values: Any, chunk_bytes: int) -> SavedArray:
        data = values.tobytes()
        sizes = [min(chunk_bytes, len(data) - start) for start in range(0, len(data), chunk_bytes)]
        content = self.content(data, sizes, chunk_bytes=chunk_bytes, kind=PART_ARRAY)
        return SavedArray(ArrayHead(values.dtype.str, values.shape), content, is_tensor=False)

    def read(self, part: StatePart) -> bytes:
        found = b"".join(self.chunks[chunk.digest] for chunk in part.chunks())
        self.read_bytes += len(found)
        return found


DTYPES = ["<f8", "<f4", "<f2", "<i8", "<u8", "<i1", "|u1", ">i4", "<c16", "|b1", "<U5", "|S3", "<M8[s]"]


def array_of(dtype: str, count: int, seed: int) -> Any:
    numbers = np.random.default_rng(seed)
    data = numbers.bytes(count * np.dtype(dtype).itemsize)
    if dtype == "<U5":
        return numbers.integers(0, 9, count).astype(dtype)
    return np.frombuffer(data, dtype).copy() if dtype != "|b1" else numbers.integers(0, 2, count).astype(bool)


@settings(max_examples=150, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    count=st.integers(1, 200),
    places=st.sets(st.integers(0, 199)),
    chunk_bytes=st.sampled_from([16, 48, 64, 1000]),
    batch_bytes=st.sampled_from([16, 200, 10**6]),
    with_numpy=st.booleans(),
)
def test_an_array_tells_what_numpy_finds(
    dtype: str, count: int, places: set[int], chunk_bytes: int, batch_bytes: int, with_numpy: bool
) -> None:
    before, other = array_of(dtype, count, 1), array_of(dtype, count, 2)
    after = before.copy()
    for place in places:
        if place < count:
            after[place] = other[place]
    memory = Memory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_difference, "BATCH_BYTES", batch_bytes)
        if not with_numpy:
            patch.setattr("importlib.util.find_spec", lambda name: None)
        found = compare_arrays(memory.array(before, chunk_bytes), memory.array(after, chunk_bytes))
    changed = [i for i in range(count) if before[i : i + 1].tobytes() != after[i : i + 1].tobytes()]
    assert (found.elements, found.changed) == (count, len(changed))
    if changed:
        assert (found.first, found.last) == (changed[0], changed[-1])
    expected = _largest(before, after, changed) if with_numpy else None
    if isinstance(expected, float) and isinstance(found.largest, float) and dtype == "<c16":
        # A modulus is rounded to one of two neighbours: NumPy's loops and its scalars do not always agree on which.
        assert expected in (found.largest, math.nextafter(found.largest, 0), math.nextafter(found.largest, math.inf))
    else:
        assert found.largest == expected


def _largest(before: Any, after: Any, changed: list[int]) -> object:
    """With Python's own numbers."""
    if before.dtype.kind not in "iufc":
        return None
    steps = []
    for i in changed:
        first, second = before[i].item(), after[i].item()
        with np.errstate(all="ignore"):
            step = (
                float(abs(np.complex128(second) - np.complex128(first)))
                if before.dtype.kind == "c"
                else abs(second - first)
            )
        if not math.isnan(step):
            steps.append(step)
    return max(steps, default=None)


def test_only_chunks_that_differ_are_read() -> None:
    memory = Memory()
    before = np.zeros((1000, 100))
    after = before.copy()
    after[500, 3] = 2.5
    found = compare_arrays(memory.array(before, 800), memory.array(after, 800))
    assert (found.changed, found.first, found.last, found.largest) == (1, 50_003, 50_003, 2.5)
    assert memory.read_bytes == 2 * 800


def test_bfloat16_and_unknown_numbers_of_torch() -> None:
    memory = Memory()
    words = np.array([1.0, 2.0, 3.0], "<f4").view("<u4") >> 16
    other = np.array([1.0, 2.5, 3.0], "<f4").view("<u4") >> 16
    first, second = (memory.array(x.astype("<u2"), 64) for x in (words, other))
    for name, largest in (("bfloat16", 0.5), ("float9_e9", None), ("O", None), ("i4,i4", None), ("(", None)):
        first.dtype = second.dtype = name
        found = compare_arrays(first, second)
        assert (found.changed, found.first, found.largest) == (1, 1, largest)


@pytest.mark.parametrize("shape", [(0,), (0, 5), ()])
def test_arrays_without_elements_or_axes(shape: tuple[int, ...]) -> None:
    memory, changes = Memory(), StateChanges()
    before, after = np.zeros(shape), np.ones(shape)
    compare(memory.array(before, 64), memory.array(after, 64), changes, "x")
    assert [change["changed_elements"] for change in changes.shown] == ([1] if shape == () else [])


# ---- blobs ---------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    before=st.binary(max_size=60),
    place=st.integers(0, 60),
    removed=st.integers(0, 20),
    added=st.binary(max_size=20),
    cuts=st.sampled_from([1, 3, 7, 100]),
    is_inline=st.booleans(),
)
def test_a_blob_tells_where_it_changed(
    before: bytes, place: int, removed: int, added: bytes, cuts: int, is_inline: bool
) -> None:
    place = min(place, len(before))
    after = before[:place] + added + before[place + removed :]
    memory = Memory()

    def content(data: bytes) -> Content:
        sizes = [min(cuts, len(data) - i) for i in range(0, len(data), cuts)]
        return Content(data, None, memory.read) if is_inline else memory.content(data, sizes)

    found = compare_bytes(content(before), content(after))
    if found is None:
        assert before == after
    else:
        assert before != after
        end, new_end = found.offset + found.removed, found.offset + found.added
        assert before[: found.offset] == after[: found.offset] and before[end:] == after[new_end:]
        assert len(before) - found.removed + found.added == len(after)


# ---- whole snapshots -----------------------------------------------------------------------------------------------


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path / "store")
    made.end(made.write(), is_complete=True)
    return made


def paths_of(found: dict[str, Any], agent: str) -> dict[str, dict[str, Any]]:
    (row,) = [row for row in found["agents_changed"] if row["agent"] == agent]
    return {change["path"]: change for change in row["changes"]}


def test_real_states_with_parts_are_compared_field_by_field(host: Host) -> None:
    state = host.state("a")
    before = state.weights.copy()
    state.weights[5 * CHUNK // 8] += 2.0
    state.weights[7] -= 0.5
    state.chat.append(Line("new", 1))
    state.chat[1] = Line("edited", 2)
    state.document = Blob(state.document.data[:1000] + b"more" + state.document.data[1000:])
    expected = np.abs(state.weights - before)
    assert host.write() == 2
    host.end(2, is_complete=True)
    found: dict[str, Any] = snapshot_difference(host.store, "1", "2")
    changes = paths_of(found, "a")
    assert set(changes) == {"state.weights", "state.chat", "state.document", "state.turns"}
    weights = changes["state.weights"]
    assert weights["elements"] == LENGTH and weights["changed_elements"] == 5, "two of ours, three of Host.change"
    assert (weights["first_changed"], weights["last_changed"]) == ([7], [5 * CHUNK // 8])
    assert weights["largest_change"] == expected.max()
    chat = changes["state.chat"]
    assert (chat["edited"], chat["appended"], chat["dropped"]) == (1, 2, 0)
    assert chat["records"][0] == {
        "edited": 1,
        "before": {"text": "hello 1", "number": 1},
        "after": {"text": "edited", "number": 2},
    }
    document = changes["state.document"]
    assert (document["offset"], document["removed_bytes"], document["added_bytes"]) == (1000, 0, 4)
    assert (document["size_before"], document["size_after"]) == (300_000, 300_004)
    assert (found["agents_unchanged"], found["agents_added"], found["agents_removed"]) == (1, [], [])


def test_nothing_of_unchanged_parts_is_read(host: Host) -> None:
    host.state("b").turns = 77
    host.end(host.write(), is_complete=True)
    reads: list[int] = []

    class Counting:
        def __init__(self, disk: Any) -> None:
            self._disk = disk

        def __getattr__(self, name: str) -> Any:
            return getattr(self._disk, name)

        def read_into(self, path: str, offset: int, buffers: Any) -> int:
            reads.append(sum(map(len, buffers)))
            return int(self._disk.read_into(path, offset, buffers))

    host.store._disk = Counting(host.store._disk)
    found: dict[str, Any] = snapshot_difference(host.store, "1", "2")
    assert paths_of(found, "b")["state.turns"]["after"] == 77
    assert sum(reads) < 5 * CHUNK, "the chunk of agent a that Host.change touched, and its history"
    reads.clear()
    snapshot_difference(host.store, "1", "2", agent="b")
    assert reads == []


def test_a_damaged_chunk_that_is_needed_is_told(host: Host, tmp_path: Path) -> None:
    host.state("a").weights[:] += 1
    host.end(host.write(), is_complete=True)
    for path in (tmp_path / "store" / "packs").rglob("2.*"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.chmod(0o644)
        path.write_bytes(data)
    with pytest.raises(DamagedDataError, match="epoch 2"):
        snapshot_difference(host.store, "1", "2")


# ---- everything but states -----------------------------------------------------------------------------------------


def message(number: int, payload: bytes = b"") -> InTransitMessage:
    return InTransitMessage(number, 0, payload or encode_message(Line("m", number)))


def checkpoint(agent: str, epoch: int, **fields: Any) -> AgentCheckpoint:
    return AgentCheckpoint(
        agent=agent, kind="tests:Agent", epoch=epoch, number=epoch, state=encode_body({"x": 1}), **fields
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "plain")


def write(store: Store, epoch: int, checkpoints: list[AgentCheckpoint], *, host: str = "h1", **about: Any) -> None:
    pack = store.write_pack(writer="h1.1", epoch=epoch, blobs=[(x.agent, encode_checkpoint(x)) for x in checkpoints])
    lines = [agent_line(x, pack=0, kind="tests:Agent", host=host, incarnation=1) for x in store.read_pack_index(pack)]
    store.publish(epoch, store.write_manifest(Manifest(Metadata(epoch=epoch, **about), lines, [pack])))


def test_snapshots_of_different_numbers_and_nothing_else_are_equal(store: Store) -> None:
    for epoch in (1, 2):
        write(store, epoch, [checkpoint("a", epoch, recorded_ns=epoch, turns=epoch)])
    found = snapshot_difference(store, "1", "2")
    assert (found["agents_changed"], found["agents_unchanged"], found["channels"], found["metadata"]) == ([], 1, [], [])


def test_agents_come_go_and_move(store: Store) -> None:
    write(store, 1, [checkpoint(x, 1) for x in "abc"], plan=1, hosts={"h1": 1})
    write(store, 2, [checkpoint(x, 2, incarnation=2) for x in "bcd"], host="h2", plan=2, hosts={"h2": 1})
    found: dict[str, Any] = snapshot_difference(store, "1", "2")
    assert [row["agent"] for row in found["agents_added"]] == ["d"]
    assert found["agents_removed"] == [{"agent": "a", "kind": "tests:Agent", "host": "h1"}]
    changes = paths_of(found, "b")
    assert (changes["host"]["after"], changes["incarnation"]["after"]) == ("h2", 2)
    assert {change["path"]: change["change"] for change in found["metadata"]} == {
        "plan": "value",
        "hosts.h1": "removed",
        "hosts.h2": "added",
    }


def test_a_new_version_of_a_class_is_shown(store: Store) -> None:
    write(store, 1, [checkpoint("a", 1, state_version=1, state_fields={"x": "int"})], kinds={"tests:Agent": "1"})
    write(
        store,
        2,
        [checkpoint("a", 2, state_version=2, state_fields={"x": "int", "y": "str"})],
        kinds={"tests:Agent": "2"},
    )
    found = snapshot_difference(store, "1", "2")
    assert set(paths_of(found, "a")) == {"state_version", "state_fields.y"}
    assert found["metadata"][0]["path"] == "kinds['tests:Agent']"  # type: ignore[index]


def test_channels_timers_and_letters(store: Store) -> None:
    timer = SavedTimer("tick", 10**9, encode_message(Line("t", 1)))
    letter = DeadLetterRecord("b", encode_message(Line("d", 1)), "ValueError", 3, 5)
    write(
        store,
        1,
        [
            checkpoint("a", 1, received={"b": 2}, in_transit={"b": [message(3), message(4)]}, timers=[timer, timer]),
            checkpoint("b", 1, sent={"a": 4}),
        ],
    )
    write(
        store,
        2,
        [
            checkpoint(
                "a",
                2,
                received={"b": 3},
                in_transit={"b": [message(4), message(5)]},
                dead_letters=[letter],
                dead_letter_count=9,
            ),
            checkpoint(
                "b", 2, sent={"a": 5}, outbox=[ParkedMessage("a", b"\x01x\x01")], spawns=[SpawnRequest("c", "k", b"")]
            ),
        ],
    )
    found: dict[str, Any] = snapshot_difference(store, "1", "2")
    (channel,) = found["channels"]
    assert (channel["sender"], channel["receiver"]) == ("b", "a")
    assert [channel[x] for x in ("sent_before", "sent_after", "received_before", "received_after")] == [4, 5, 2, 3]
    assert [channel[x] for x in ("in_transit_added", "in_transit_removed", "in_transit_kept")] == [1, 1, 1]
    assert [row["number"] for row in channel["added"]] == [5] and [row["number"] for row in channel["removed"]] == [3]
    changes = paths_of(found, "a")
    assert changes["timers.tick"]["change"] == changes["timers['tick#2']"]["change"] == "removed"
    assert changes["dead_letters.count"]["after"] == 9
    assert changes["dead_letters.latest"]["records"][0]["after"]["error"] == "ValueError"
    assert set(paths_of(found, "b")) == {"outbox", "spawns"}


def test_a_message_under_a_number_used_again_is_another_one(store: Store) -> None:
    """After a rollback the channel counts on from before."""
    write(store, 1, [checkpoint("a", 1, in_transit={"b": [message(3)]})])
    write(store, 2, [checkpoint("a", 2, in_transit={"b": [message(3, encode_message(Line("other", 3)))]})])
    found: dict[str, Any] = snapshot_difference(store, "1", "2")
    (channel,) = found["channels"]
    assert (channel["in_transit_added"], channel["in_transit_removed"]) == (1, 1)


def test_lists_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_difference_module, "AGENTS_MAX", 2)
    monkeypatch.setattr(snapshot_difference_module, "CHANNELS_MAX", 1)
    names = [f"a{n}" for n in range(5)]
    write(store, 1, [checkpoint(x, 1) for x in [*names, *(f"g{n}" for n in range(4))]])
    many = {"z": [message(n) for n in range(1, 9)]}
    write(store, 2, [checkpoint(x, 2, incarnation=2, in_transit=many) for x in [*names, *(f"n{n}" for n in range(3))]])
    found: dict[str, Any] = snapshot_difference(store, "1", "2")
    for name, more in (("changed", 3), ("added", 1), ("removed", 2)):
        assert (len(found[f"agents_{name}"]), found[f"agents_{name}_more"]) == (2, more)
    assert (len(found["channels"]), found["channels_more"], len(found["channels"][0]["added"])) == (1, 7, 5)


def test_one_snapshot_with_itself_reads_no_checkpoint(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write(store, 1, [checkpoint("a", 1), checkpoint("b", 1)])
    monkeypatch.setattr(Store, "_read_line", lambda *_: pytest.fail("a checkpoint was read"))
    found = snapshot_difference(store, "1", "latest")
    assert (found["agents_changed"], found["agents_unchanged"]) == ([], 2)


def test_what_is_not_there_is_refused(store: Store) -> None:
    write(store, 1, [checkpoint("a", 1)])
    with pytest.raises(NotFoundError, match="'9'"):
        snapshot_difference(store, "1", "9")
    with pytest.raises(NotFoundError, match="agent 'z' is in neither"):
        snapshot_difference(store, "1", "1", agent="z")


def test_an_agent_that_is_born_or_gone_has_its_channels(store: Store) -> None:
    write(store, 1, [checkpoint("a", 1, in_transit={"b": [message(1)]})])
    write(store, 2, [checkpoint("b", 2)])
    found: dict[str, Any] = snapshot_difference(store, "1", "2", agent="a")
    assert [row["agent"] for row in found["agents_removed"]] == ["a"] and found["agents_added"] == []
    assert found["channels"][0]["in_transit_removed"] == 1


# ---- values that nobody looks into ---------------------------------------------------------------------------------


def state_of(value: object) -> AgentCheckpoint:
    import msgspec

    return AgentCheckpoint(agent="a", kind="k", epoch=1, state=msgspec.msgpack.encode(value, enc_hook=encode_pickling))


def read(found: AgentCheckpoint) -> object:
    return read_state(found, lambda agent, parts: pytest.fail("nothing is to be read"))


def test_pickles_and_generators_are_compared_as_bytes_and_never_loaded() -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return pytest.fail, ("a pickle was loaded",)

    before = read(state_of({"p": Pickled(Bomb()), "r": random.Random(1), "g": np.random.default_rng(1)}))
    after = read(state_of({"p": Pickled(1), "r": random.Random(2), "g": np.random.default_rng(1)}))
    assert {x["path"]: x["change"] for x in changes_of(before, after)} == {"p": "pickle", "r": "random generator"}


def test_small_arrays_blobs_and_histories_in_the_record() -> None:
    from snapline.storage.capture.history import History

    before = read(state_of([np.arange(3), Blob(b"abc"), History([1, 2])]))
    after = read(state_of([np.arange(3) * 2, Blob(b"abXc"), History([1, 2, 3])]))
    assert [x["change"] for x in changes_of(before, after)] == ["array", "blob", "history"]
    assert (
        changes_of(before, read(state_of([np.arange(4), Blob(b"abc"), History([1, 2])])))[0]["change"] == "array type"
    )


def test_a_state_that_cannot_be_decoded_is_damage() -> None:
    for state in (b"\xc1", b"\xd4\x02\x05", b"\x81\xa1"):
        with pytest.raises(DamagedDataError, match="cannot be read"):
            read(AgentCheckpoint(agent="a", kind="k", epoch=1, state=state))


# ---- the tests above can fail --------------------------------------------------------------------------------------


def test_the_array_test_catches_a_forgotten_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    right = state_difference._add
    monkeypatch.setattr(
        state_difference, "_add", lambda found, start, count, ends, largest: right(found, 0, count, ends, largest)
    )
    with pytest.raises(AssertionError):
        test_only_chunks_that_differ_are_read()


def test_the_alignment_test_catches_a_chain_that_is_not_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        chain: list[tuple[int, int]] = []
        for pair in pairs:
            if not chain or pair[0] > chain[-1][0]:
                chain.append(pair)
        return chain

    monkeypatch.setattr(state_difference, "_longest_chain", greedy)
    with pytest.raises(AssertionError):
        test_as_much_as_possible_is_paired_where_no_two_are_equal()
