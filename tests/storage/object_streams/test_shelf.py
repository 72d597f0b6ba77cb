"""A shelf keeps what is named, once, and forgets what is not."""

import contextlib
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.making import seeded_bytes
from tests.storage.object_streams.making import PATH, contents, open_object_stream, remove, save
from tests.storage.protecting import BOTH, NEW, OLD
from tests.storage.simulated_disk import SimulatedDisk

from snapline import failpoints
from snapline.errors import DamagedDataError, NotFoundError, StoreError, UsageError
from snapline.storage.disk.object_disk import ObjectDisk, open_disk
from snapline.storage.keys.key_files import NO_KEYS
from snapline.storage.store import object_segments as segments_module
from snapline.storage.store import object_stream as object_stream_module
from snapline.storage.store.object_segments import ObjectStreamInUseError
from snapline.storage.store.object_stream import ObjectStream, StaleReferenceError
from snapline.storage.store.store import Store, keys_in_use


def sizes(disk: SimulatedDisk) -> dict[str, int]:
    return {path: disk.size(path) for path in disk.files() if path.startswith("shelves/")}


def test_what_is_there_costs_a_reference() -> None:
    disk = SimulatedDisk()
    object_stream = open_object_stream(disk)
    save(object_stream, "first", "".join(map(str, range(20_000))))
    before = sum(sizes(disk).values())
    save(object_stream, "second", "".join(map(str, range(20_000))))
    assert sum(sizes(disk).values()) - before < 400
    assert set(contents(object_stream)["thread/"]) == {"first", "second"}


@pytest.mark.parametrize("order", [(b"", b"1"), (b"1", b""), (b"1", b"", b"22")])
def test_an_empty_object_begins_where_the_next_one_does(order: tuple[bytes, ...]) -> None:
    object_stream = open_object_stream()
    change = object_stream.change()
    digests = [change.add(data) for data in order]
    for number, digest in enumerate(digests):
        change.name(PATH, str(number), digest)
    object_stream.commit(change)
    for asked in (digests, digests[::-1]):
        assert object_stream.read(asked) == dict(zip(digests, order, strict=True))


def test_bytes_cannot_pass_for_bytes_with_references() -> None:
    object_stream = open_object_stream()
    change = object_stream.change()
    inner = change.add(b"inner")
    outer = change.add(b"x", [inner])
    forged = change.add((1).to_bytes(8, "little") + inner + b"x")
    assert len({inner, outer, forged}) == 3
    assert outer[-1] & 1 and not forged[-1] & 1


def test_what_nobody_names_is_forgotten_with_all_that_only_it_refers_to() -> None:
    object_stream = open_object_stream()
    first = save(object_stream, "first", "shared", "own")
    own = object_stream.references(first)[1]
    save(object_stream, "second", "shared")
    remove(object_stream, "first")
    assert not object_stream.holds(first) and not object_stream.holds(own)
    assert contents(object_stream) == {"thread/": {"second": ["shared"]}}
    with pytest.raises(NotFoundError, match="deleted"):
        object_stream.read([own])


def test_a_change_that_refers_to_what_is_gone_changes_nothing() -> None:
    object_stream = open_object_stream()
    gone = save(object_stream, "gone", "text")
    remove(object_stream, "gone")
    change = object_stream.change()
    change.name(PATH, "late", change.add(b"late", [gone]))
    with pytest.raises(StaleReferenceError, match="bring it again"):
        object_stream.commit(change)
    change = object_stream.change()
    change.name(PATH, "late", gone)
    with pytest.raises(StaleReferenceError):
        object_stream.commit(change)
    assert contents(object_stream) == {}


def test_a_name_that_is_taken_away_and_given_in_one_change_keeps_what_it_needs() -> None:
    object_stream = open_object_stream()
    digest = save(object_stream, "old", "text")
    change = object_stream.change()
    change.name(PATH, "old", None)
    change.name(PATH, "new", digest)
    object_stream.commit(change)
    assert object_stream.entries(PATH) == {"new": digest} and object_stream.read([digest]) == {digest: b"old"}


Step = tuple[str, str, list[str]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["save", "remove", "open", "again"]),
        st.sampled_from("abcd"),
        st.lists(st.sampled_from("uvwxyz")),
    ),
    max_size=40,
)


@given(STEPS)
@settings(deadline=None, max_examples=60)
def test_it_holds_what_a_dict_would(steps: list[Step]) -> None:
    """Names given and taken, segments written again, openings: whatever comes in whatever order."""
    disk, model = SimulatedDisk(), dict[str, list[str]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_stream_module, "SMALL_BYTES", 300)
        patch.setattr(object_stream_module, "SMALL_SEGMENTS_MAX", 3)
        patch.setattr(segments_module, "SEGMENT_BYTES_MAX", 600)
        object_stream = open_object_stream(disk)
        for seed, (step, name, texts) in enumerate(steps):
            if step == "save":
                save(object_stream, name, *texts)
                model[name] = texts
            elif step == "remove":
                remove(object_stream, name)
                model.pop(name, None)
            elif step == "open":
                object_stream.close()
                object_stream = open_object_stream(disk, seed=seed + 2)
            assert contents(object_stream).get("thread/", {}) == model
        object_stream.close()
        assert contents(open_object_stream(disk, seed=1000)).get("thread/", {}) == model


def test_dead_bytes_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_stream_module, "SMALL_BYTES", 1000)
    disk = SimulatedDisk()
    object_stream = open_object_stream(disk)
    save(object_stream, "kept", "kept")
    for number in range(300):
        save(object_stream, "changing", os.urandom(100).hex())
        assert sum(sizes(disk).values()) < 60_000, number
    assert contents(object_stream)["thread/"]["kept"] == ["kept"]


def test_a_second_one_on_the_folder_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    object_stream = ObjectStream.open(store, "play")
    words = f"is in use: one process.*and process {os.getpid()} on .* has"
    with pytest.raises(ObjectStreamInUseError, match=words) as caught:
        ObjectStream.open(Store.open(tmp_path / "store"), "play")
    assert caught.value.exit_code == 11
    save(object_stream, "a", "b")
    other = ObjectStream.open(store, "other")
    save(other, "c", "d")
    object_stream.close()
    object_stream.close()
    with pytest.raises(UsageError, match="closed"):
        save(object_stream, "e", "f")
    assert contents(ObjectStream.open(store, "play")) == {"thread/": {"a": ["b"]}}


def test_a_forked_process_may_not_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    object_stream = ObjectStream.open(Store.create(tmp_path / "store"), "play")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(UsageError, match="forked"):
        save(object_stream, "a", "b")


def test_many_threads_save_at_once(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    object_stream = ObjectStream.open(store, "play")

    def work(number: int) -> None:
        for step in range(20):
            save(object_stream, f"{step}", "shared", f"{number} {step}", path=("thread", str(number)))
            if step >= 3:
                remove(object_stream, f"{step - 3}", path=("thread", str(number)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {
        f"thread/{number}": {f"{step}": ["shared", f"{number} {step}"] for step in (17, 18, 19)} for number in range(8)
    }
    assert contents(object_stream) == expected
    object_stream.close()
    assert contents(ObjectStream.open(store, "play")) == expected


def test_on_an_object_store_each_commit_is_an_object_and_the_second_writer_is_refused() -> None:
    pytest.importorskip("obstore")
    url = "memory://shelf-of-two"
    first = ObjectStream.open(Store.open_or_create(url), "play")
    save(first, "a", "b")
    second = ObjectStream.open(Store.open(url), "play")
    save(second, "c", "d")
    with pytest.raises(ObjectStreamInUseError, match="another process writes"):
        save(first, "e", "f")
    for number in range(100):
        save(second, f"{number}", "b")
    disk = open_disk(url)
    assert isinstance(disk, ObjectDisk)
    assert len(disk.list_directory("shelves/play")) < 40, "small ones are written again as one"
    expected = {"a": ["b"], "c": ["d"]} | {f"{number}": ["b"] for number in range(100)}
    assert contents(ObjectStream.open(Store.open(url), "play")) == {"thread/": expected}


def test_an_encrypted_shelf_shows_nothing_and_opens_under_its_key_only(tmp_path: Path) -> None:
    store = Store.open_or_create(tmp_path / "store", keys=OLD)
    object_stream = ObjectStream.open(store, "play")
    save(object_stream, "a name", "a secret")
    object_stream.close()
    data = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert b"a secret" not in data and b"a name" not in data and b"thread" not in data
    assert keys_in_use(store.disk, store.store_id)
    assert contents(ObjectStream.open(Store.open(tmp_path / "store", keys=BOTH), "play")) == {
        "thread/": {"a name": ["a secret"]}
    }
    for keys in (NO_KEYS, NEW):
        with pytest.raises(StoreError):
            ObjectStream.open(Store.open(tmp_path / "store", keys=keys), "play")


def test_a_plain_shelf_is_refused_where_there_is_a_key(tmp_path: Path) -> None:
    save(ObjectStream.open(Store.create(tmp_path / "store", keys=NO_KEYS), "play"), "a", "b")
    with pytest.raises(StoreError, match="made without encryption"):
        Store.open(tmp_path / "store", keys=OLD)


def saved(disk: SimulatedDisk, count: int = 4) -> dict[str, dict[str, list[str]]]:
    object_stream = open_object_stream(disk)
    for number in range(count):
        save(object_stream, f"{number}", "shared", f"text {number}")
    return contents(object_stream)


def test_every_changed_byte_is_found_or_was_never_acknowledged() -> None:
    """Of the newest segment the end may be torn; what was acknowledged before the last commit must be there, or the shelf refuses."""
    disk = SimulatedDisk()
    whole = saved(disk)
    path = "shelves/play/1"
    data = disk.read(path, 0, 10**6)
    for place in range(len(data)):
        image = disk.copy()
        node = image.nodes[path]
        assert node is not None
        node.data = data[:place] + bytes((data[place] ^ 0x10,)) + data[place + 1 :]
        try:
            found = contents(open_object_stream(image))["thread/"]
        except StoreError:
            continue
        lost = {name: texts for name, texts in whole["thread/"].items() if name not in found}
        assert set(lost) <= {"3"} and found.items() <= whole["thread/"].items(), place


def test_once_another_segment_begins_every_changed_byte_is_found() -> None:
    disk = SimulatedDisk()
    saved(disk)
    save(open_object_stream(disk, seed=5), "more", "more")
    for path in ("shelves/play/1", "shelves/play/2"):
        data = disk.read(path, 0, 10**6)
        for place in range(0, len(data), 7 if path.endswith("1") else 1):
            image = disk.copy()
            node = image.nodes[path]
            assert node is not None
            node.data = data[:place] + bytes((data[place] ^ 0x10,)) + data[place + 1 :]
            if path.endswith("1"):
                with pytest.raises(DamagedDataError):
                    contents(open_object_stream(image))
            else:
                with contextlib.suppress(StoreError):
                    assert "more" not in contents(open_object_stream(image))["thread/"], place


def test_a_missing_segment_is_damage() -> None:
    disk = SimulatedDisk()
    saved(disk)
    save(open_object_stream(disk, seed=5), "more", "more")
    del disk.nodes["shelves/play/1"]
    with pytest.raises(DamagedDataError, match="shelves/play/1"):
        open_object_stream(disk)


@pytest.mark.parametrize("step", ["written", "durable"])
def test_an_interrupted_commit_closes_the_shelf_and_leaves_the_files_whole(tmp_path: Path, step: str) -> None:
    store = Store.create(tmp_path / "store")
    object_stream = ObjectStream.open(store, "play")
    save(object_stream, "a", "b")

    def interrupt(name: str) -> None:
        if name == f"store.shelf.commit.{step}":
            raise KeyboardInterrupt

    failpoints.install(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            save(object_stream, "c", "d")
    finally:
        failpoints.install(None)
    with pytest.raises(UsageError, match="closed"):
        save(object_stream, "e", "f")
    object_stream.close()
    again = ObjectStream.open(store, "play")
    assert contents(again)["thread/"] in ({"a": ["b"]}, {"a": ["b"], "c": ["d"]})
    save(again, "g", "h")


def test_names_that_cannot_be_said_are_refused_before_anything_is_written() -> None:
    with pytest.raises(UsageError, match="UTF-8"):
        open_object_stream().change().name(PATH, "\ud800", None)
    with pytest.raises(UsageError, match="shelf"):
        ObjectStream.open(Store.create("simulated", disk=SimulatedDisk(), random_bytes=seeded_bytes(1)), "a/b")


def test_verification_reads_every_byte_of_a_shelf() -> None:
    disk = SimulatedDisk()
    saved(disk)
    save(open_object_stream(disk, seed=5), "more", "more")
    store = Store.open("simulated", disk=disk)
    verification = store.verify()
    assert verification.is_whole
    assert {"shelves/play/1", "shelves/play/2"} <= {each.path for each in verification.checked}
    data = disk.read("shelves/play/1", 0, 10**6)
    for place in range(0, len(data), 5):
        image = disk.copy()
        node = image.nodes["shelves/play/1"]
        assert node is not None
        node.data = data[:place] + bytes((data[place] ^ 0x10,)) + data[place + 1 :]
        found = Store.open("simulated", disk=image).verify().findings
        assert [each.path for each in found] == ["shelves/play/1"], place
    del disk.nodes["shelves/play/1"]
    assert [each.path for each in store.verify().findings] == ["shelves/play/1"]
