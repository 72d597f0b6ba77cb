"""The store as its callers use it, on the real file system."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.forked_process import run_forked
from tests.storage.making import check_epoch_restores, make_manifest, seeded_bytes, write_epoch, write_packs
from tests.storage.simulated_disk import SimulatedDisk

from snapline.errors import DamagedDataError, EncodingError, NotFoundError, StoreError, StoreMissingError, UsageError
from snapline.storage.disk.local_disk import LocalDisk
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage, decode_checkpoint, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata
from snapline.storage.packs.pack import PackReference
from snapline.storage.store.store import Store

numbers = st.integers(min_value=0, max_value=2**63 - 1)
names = st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True)
checkpoints: st.SearchStrategy[AgentCheckpoint] = st.builds(
    AgentCheckpoint,
    agent=names,
    kind=st.text(),
    epoch=numbers,
    state=st.binary(max_size=5000) | st.binary(max_size=50).map(lambda part: part * 3000),
    state_fields=st.dictionaries(st.text(), st.text(), max_size=3),
    sent=st.dictionaries(names, numbers, max_size=4),
    in_transit=st.dictionaries(
        names, st.lists(st.builds(InTransitMessage, numbers, numbers, st.binary(), st.binary()), max_size=3), max_size=3
    ),
    recorded_ns=numbers,
    basis=st.sampled_from(["coordinated", "initial", "basic", "forced", "tentative"]),
    sender_log=st.dictionaries(
        names, st.lists(st.builds(InTransitMessage, numbers, numbers, st.binary(), st.binary()), max_size=3), max_size=3
    ),
    round=numbers,
    turns=numbers,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def test_published_epoch_restores_after_reopening(store: Store) -> None:
    write_epoch(store, 1)
    write_epoch(store, 2)
    again = Store.open(f"file://{store.location}")
    assert again.store_id == store.store_id
    assert again.epochs() == [1, 2]
    check_epoch_restores(again, 1)
    check_epoch_restores(again, 2)
    verification = again.verify()
    assert verification.is_whole and not verification.unreferenced
    assert len(verification.checked) == 1 + 2 * (1 + 1 + 2)


@settings(max_examples=20, deadline=None)
@given(written=st.lists(checkpoints, max_size=5, unique_by=lambda checkpoint: checkpoint.agent))
def test_any_checkpoints_come_back_equal(written: list[AgentCheckpoint]) -> None:
    disk = SimulatedDisk()
    store = Store.create("simulated", disk=disk)
    pack = store.write_pack(writer="w", epoch=7, blobs=((x.agent, encode_checkpoint(x)) for x in written))
    manifest = make_manifest(store, 7, {"w": pack})
    root = store.write_manifest(manifest)
    store.publish(7, root)
    found = Store.open("simulated", disk=disk).read_manifest(root)
    assert list(store.read_checkpoints(found)) == sorted(written, key=lambda checkpoint: checkpoint.agent)
    assert store.verify().is_whole


@pytest.mark.parametrize("size_bytes", [0, 1, 2**16, 2**16 + 1, 9 * 2**20])
@pytest.mark.parametrize("is_random", [True, False])
def test_states_of_all_sizes_come_back(store: Store, size_bytes: int, is_random: bool) -> None:
    state = seeded_bytes()(size_bytes) if is_random else b"words and " * (size_bytes // 10)
    written = AgentCheckpoint(agent="a", kind="k", epoch=1, state=state)
    pack = store.write_pack(writer="w", epoch=1, blobs=[("a", encode_checkpoint(written)), ("b", b"")])
    if size_bytes > 2**10:
        assert (pack.size_bytes < size_bytes / 2) is not is_random, "compressed exactly where it pays"
    manifest = make_manifest(store, 1, {"w": pack})
    assert store.read_checkpoint(manifest, "a") == written
    store.write_manifest(manifest)
    assert store.verify().is_whole


def test_agents_are_read_by_name(store: Store) -> None:
    root = write_epoch(store, 1)
    manifest = store.read_manifest(root)
    assert store.read_checkpoint(manifest, "b1").agent == "b1"
    assert [x.agent for x in store.read_checkpoints(manifest, ["b1", "a1", "b1"])] == ["a1", "b1"]
    with pytest.raises(NotFoundError, match="'nobody' is not in epoch 1"):
        store.read_checkpoint(manifest, "nobody")


def test_checkpoint_of_another_version_is_refused() -> None:
    fields = msgspec.to_builtins(AgentCheckpoint(agent="a", kind="k", epoch=1))
    with pytest.raises(StoreError, match="format version 3, this snapline reads up to 2") as caught:
        decode_checkpoint(msgspec.msgpack.encode((3, fields)))
    assert not isinstance(caught.value, DamagedDataError)
    with pytest.raises(DamagedDataError):
        decode_checkpoint(msgspec.msgpack.encode((1, fields | {"unknown": 1})))
    with pytest.raises(EncodingError, match="'a' cannot be encoded"):
        encode_checkpoint(AgentCheckpoint(agent="a", kind="k", epoch=2**70))


def test_checkpoint_under_another_agents_name_is_refused(store: Store) -> None:
    pack = store.write_pack(
        writer="w", epoch=1, blobs=[("b", encode_checkpoint(AgentCheckpoint(agent="a", kind="k", epoch=1)))]
    )
    with pytest.raises(DamagedDataError, match="checkpoint of 'a'"):
        store.read_checkpoint(make_manifest(store, 1, {"w": pack}), "b")


# -- opening -----------------------------------------------------------------------------------------------------------


def test_unknown_schemes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ftp:// is no scheme of a store: give a directory, file:///"):
        Store.open("ftp://x/y")
    for url in ("file://other/x", "file://", "file:///x?y=1", ""):
        with pytest.raises(UsageError):
            Store.open(url)


def test_escaped_file_urls_name_the_unescaped_path(tmp_path: Path) -> None:
    store = Store.create((tmp_path / "with space").as_uri())
    assert (tmp_path / "with space" / "snapline-store").is_file()
    assert Store.open(tmp_path / "with space").store_id == store.store_id


def test_missing_store_is_not_made_by_opening(tmp_path: Path) -> None:
    with pytest.raises(StoreMissingError, match="there is no store at"):
        Store.open(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_store_is_not_made_over_something_else(tmp_path: Path, store: Store) -> None:
    with pytest.raises(UsageError, match="there is a store"):
        Store.create(store.location)
    (tmp_path / "letters.txt").touch()
    for function in (Store.create, Store.open_or_create):
        with pytest.raises(UsageError, match=r"holds"):
            function(tmp_path)


def test_store_that_lost_its_identity_gets_no_new_one(store: Store) -> None:
    write_epoch(store, 1)
    (Path(store.location) / "snapline-store").unlink()
    with pytest.raises(UsageError, match="lost the file 'snapline-store'"):
        Store.open_or_create(store.location)
    with pytest.raises(StoreError, match="is away"):
        store.verify()


def test_racing_creators_get_one_store(tmp_path: Path) -> None:
    barrier, found = threading.Barrier(8), list[str]()

    def create() -> None:
        barrier.wait()
        found.append(Store.open_or_create(tmp_path / "deep" / "store").store_id)

    _run_threads(create, 8)
    assert len(found) == 8 and len(set(found)) == 1


class Compared(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    comparisons = 0

    def __lt__(self, other: str) -> bool:
        Compared.comparisons += 1
        return str.__lt__(self, other)

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_recovery_finds_each_of_its_agents_without_looking_at_all(store: Store) -> None:
    """A host that loads tens of thousands asks for each of them: of 30,000 the scan took forty seconds."""
    manifest = store.read_manifest(write_epoch(store, 1))
    line = manifest.agents[0]
    lines = [msgspec.structs.replace(line, agent=Compared(f"a{number:06}")) for number in range(10_000)]
    many = Manifest(manifest.metadata, lines, manifest.packs)
    Compared.comparisons = 0
    assert [many.line_of(f"a{number:06}").agent for number in (0, 4_711, 9_999)] == ["a000000", "a004711", "a009999"]
    assert Compared.comparisons <= 3 * 20
    mixed = Manifest(manifest.metadata, lines[::-1], manifest.packs)
    assert mixed.line_of("a004711") is lines[4_711]
    with pytest.raises(NotFoundError, match="a010000"):
        many.line_of("a010000")


# -- publishing --------------------------------------------------------------------------------------------------------


def test_publishing_again_is_success_and_another_root_is_an_error(store: Store) -> None:
    root = write_epoch(store, 1)
    store.publish(1, root)
    manifest = store.read_manifest(root)
    assert store.write_manifest(manifest) == root
    other = store.write_manifest(
        Manifest(msgspec.structs.replace(manifest.metadata, trigger="x"), manifest.agents, manifest.packs)
    )
    with pytest.raises(StoreError, match="two fleets on one store"):
        store.publish(1, other)
    assert store.read_ref(1) == root


def test_racing_publishers_agree_or_are_told(store: Store) -> None:
    """One root wins; who brought the same bytes succeeds, everyone else learns of the other fleet."""
    manifest = make_manifest(store, 1, write_packs(store, 1))
    roots = [
        store.write_manifest(
            Manifest(msgspec.structs.replace(manifest.metadata, trigger=name), manifest.agents, manifest.packs)
        )
        for name in "ab"
    ]
    for epoch in range(2, 12):
        barrier, outcomes = threading.Barrier(8), list[tuple[str, bool]]()

        def publish(
            root: str,
            epoch: int = epoch,
            barrier: threading.Barrier = barrier,
            outcomes: list[tuple[str, bool]] = outcomes,
        ) -> None:
            barrier.wait()
            try:
                # The manifest is of epoch 1: publish compares refs, not manifests.
                store.publish(epoch, root)
                outcomes.append((root, True))
            except StoreError as error:
                assert "two fleets" in str(error)
                outcomes.append((root, False))

        _run_threads(publish, 8, [(roots[number % 2],) for number in range(8)])
        winner = store.read_ref(epoch)
        assert sorted(outcomes) == sorted((root, root == winner) for root in roots * 4)


def test_ref_without_manifest_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="it is missing"):
        store.publish(1, "0" * 64)
    assert store.epochs() == []


def test_same_content_at_other_places_has_the_same_root_and_is_refused(store: Store) -> None:
    first = make_manifest(store, 1, write_packs(store, 1))
    store.write_manifest(first)
    with pytest.raises(StoreError, match="exists with other packs"):
        store.write_manifest(make_manifest(store, 1, write_packs(store, 1)))


def test_manifests_that_contradict_themselves_are_not_written(store: Store) -> None:
    good = make_manifest(store, 1, write_packs(store, 1))
    line = good.agents[0]
    replace = msgspec.structs.replace
    bad = [
        replace(good, metadata=Metadata(epoch=0)),
        replace(good, agents=[line, line]),
        replace(good, agents=[replace(line, pack=2)]),
        replace(good, agents=[replace(line, offset=10**6)]),
        replace(good, agents=[replace(line, codec=9)]),
        replace(good, agents=[replace(line, digest=b"short")]),
        replace(good, agents=[replace(line, agent="not an id")]),
        replace(good, packs=[good.packs[0]] * 2),
        replace(good, packs=[PackReference("packs/../../1.x", 1, bytes(32)), good.packs[1]]),
    ]
    for manifest in bad:
        with pytest.raises(UsageError, match="cannot be written"):
            store.write_manifest(manifest)
    assert not store.verify().checked[1:][2:], "nothing but identity and packs"


def test_names_that_are_not_ids_are_refused(store: Store) -> None:
    for writer in ("..", ".", "a/b", ""):
        with pytest.raises(UsageError):
            store.write_pack(writer=writer, epoch=1, blobs=[])
    with pytest.raises(UsageError, match="twice"):
        store.write_pack(writer="w", epoch=1, blobs=[("a", b"1"), ("a", b"2")])
    with pytest.raises(UsageError):
        store.write_pack(writer="w", epoch=1, blobs=[("../a", b"1")])
    with pytest.raises(UsageError):
        store.write_pack(writer="w", epoch=-1, blobs=[])
    with pytest.raises(UsageError, match="no path of a pack"):
        store.read_pack_index(PackReference("store", 1, bytes(32)))
    with pytest.raises(UsageError):
        store.read_probe("packs/w/x")
    with pytest.raises(UsageError):
        store.publish(1, "../../x")
    assert store.verify().unreferenced == [], "no file remains of the refused packs"


def test_pack_that_differs_from_its_report_is_damaged(store: Store) -> None:
    pack = write_packs(store, 1)["h1"]
    for wrong, reason in [
        (msgspec.structs.replace(pack, size_bytes=pack.size_bytes + 1), "truncated"),
        (msgspec.structs.replace(pack, size_bytes=pack.size_bytes - 1), "1 surplus bytes"),
        (msgspec.structs.replace(pack, index_digest=bytes(32)), "not the one that was reported"),
        (msgspec.structs.replace(pack, path=pack.path[:-4] + "0000"), "missing"),
    ]:
        with pytest.raises(DamagedDataError, match=f"epoch 1.*{reason}"):
            store.read_pack_index(wrong)


def test_snapshots_are_found_by_number_prefix_and_latest(store: Store) -> None:
    with pytest.raises(NotFoundError, match="no snapshot yet"):
        store.resolve("latest")
    roots = {epoch: write_epoch(store, epoch) for epoch in (3, 12)}
    assert store.resolve("latest") == 12
    assert store.resolve("3") == 3
    assert store.resolve(roots[3][:8]) == 3 and store.resolve(roots[12]) == 12
    for missing in ("4", "", "abc", "zzzzzz"):
        with pytest.raises(NotFoundError):
            store.resolve(missing)
    store.publish(13, roots[12])
    with pytest.raises(NotFoundError, match=r"\[12, 13\]"):
        store.resolve(roots[12][:10])
    with pytest.raises(NotFoundError):
        store.read_ref(99)
    with pytest.raises(NotFoundError):
        store.verify(99)


def test_probe_is_read_by_another_process_of_the_same_store_only(tmp_path: Path, store: Store) -> None:
    path, content = store.write_probe()
    assert Store.open(store.location).read_probe(path) == content
    assert store.verify().is_whole
    other = Store.create(tmp_path / "other")
    with pytest.raises(DamagedDataError, match="missing"):
        other.read_probe(path)
    (Path(other.location) / path).write_bytes((Path(store.location) / path).read_bytes())
    with pytest.raises(DamagedDataError, match="belongs to store"):
        other.read_probe(path)
    store.remove_probe(path)
    store.remove_probe(path)
    assert list((Path(store.location) / "probes").iterdir()) == []


# -- deleting ----------------------------------------------------------------------------------------------------------


def test_deleted_epoch_leaves_nothing_and_others_stay(store: Store) -> None:
    write_epoch(store, 1)
    write_epoch(store, 2)
    assert len(store.delete_epoch(1)) == 4
    assert store.delete_epoch(1) == []
    assert store.epochs() == [2]
    verification = store.verify()
    assert verification.is_whole and verification.unreferenced == []
    check_epoch_restores(store, 2)


def test_sweep_removes_garbage_and_nothing_that_may_be_in_use(store: Store) -> None:
    write_epoch(store, 1)
    aborted = write_packs(store, 2)  # aborted after its packs
    store.write_manifest(make_manifest(store, 3, write_packs(store, 3)))  # aborted after its manifest
    spare = store.write_pack(writer="h1.1", epoch=1, blobs=[])  # a pack that was written twice
    write_packs(store, 4)  # open
    write_packs(store, 9)  # began after the caller looked
    fresh = store.write_pack(writer="h3.1", epoch=2, blobs=[])  # by a writer said to be open
    removed = store.delete_unreferenced(begun_below=5, open_epochs=[4], open_writers=["h3.1"])
    assert {pack.path for pack in aborted.values()} | {spare.path} < set(removed)
    assert len(removed) == 2 + 1 + 2 + 1
    assert {int(path.rpartition("/")[2].partition(".")[0]) for path in store.verify().unreferenced} == {2, 4, 9}
    assert (Path(store.location) / fresh.path).exists()
    check_epoch_restores(store, 1)
    assert store.verify().is_whole
    store.delete_epoch(1)
    store.delete_unreferenced(begun_below=10)
    assert list((Path(store.location) / "packs").iterdir()) == []
    write_epoch(store, 11)  # the writers' directories are made again
    check_epoch_restores(store, 11)


def test_sweep_keeps_everything_of_epochs_it_cannot_read(store: Store) -> None:
    roots = [write_epoch(store, epoch) for epoch in (1, 2)]
    (Path(store.location) / "refs/epochs/1").write_bytes(b"damaged")
    (Path(store.location) / f"manifests/{roots[1]}.0").write_bytes(b"damaged")
    assert store.delete_unreferenced(begun_below=100) == []


@pytest.mark.parametrize("what", ["refs/epochs/1", "manifests"])
def test_damaged_epoch_can_be_deleted(store: Store, what: str) -> None:
    root = write_epoch(store, 1)
    (Path(store.location) / (what if what != "manifests" else f"manifests/{root}.0")).write_bytes(b"damaged")
    write_epoch(store, 2)
    store.delete_epoch(1)
    store.delete_unreferenced(begun_below=3)
    verification = store.verify()
    assert verification.is_whole and verification.unreferenced == []
    check_epoch_restores(store, 2)


# -- the local disk ----------------------------------------------------------------------------------------------------


def test_small_commit_costs_one_data_sync_and_one_directory_sync() -> None:
    disk = SimulatedDisk()
    store = Store.create("simulated", disk=disk)
    store.write_pack(writer="w", epoch=1, blobs=[("a", b"1")])
    disk.calls.clear()
    store.write_pack(writer="w", epoch=2, blobs=[(f"a{n}", b"1" * n) for n in range(50)])
    assert disk.calls == ["open_temporary", "write", "sync_data", "link", "sync_directory"]


def test_store_works_where_files_must_have_names(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path / "store")
    disk._has_unnamed_files = False
    store = Store.create("unused", disk=disk)
    write_epoch(store, 1)
    check_epoch_restores(store, 1)
    assert store.verify().is_whole and store.verify().unreferenced == []
    leftover = tmp_path / "store" / "temporary" / f"7-{'0' * 32}"
    leftover.touch()
    assert store.verify().unreferenced == [f"temporary/{leftover.name}"]
    assert store.delete_unreferenced(begun_below=7) == []
    assert store.delete_unreferenced(begun_below=8) == [f"temporary/{leftover.name}"]


@pytest.mark.parametrize("has_unnamed_files", [True, False])
def test_linking_never_replaces_a_file(tmp_path: Path, has_unnamed_files: bool) -> None:
    disk = LocalDisk(tmp_path)
    disk._has_unnamed_files = has_unnamed_files
    (tmp_path / "taken").write_bytes(b"old")
    handle = disk.open_temporary("", "0-name")
    disk.write(handle, [b"new"])
    with pytest.raises(FileExistsError):
        disk.link(handle, "taken")
    disk.close(handle)
    assert (tmp_path / "taken").read_bytes() == b"old"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "taken"]


def test_many_pieces_and_short_writes_arrive_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writev = os.writev
    monkeypatch.setattr(
        os, "writev", lambda handle, buffers: writev(handle, [b"".join(buffers)[:70_001]]), raising=True
    )
    disk = LocalDisk(tmp_path)
    pieces = [bytes([number % 256]) * (number % 700) for number in range(3000)]
    handle = disk.open_temporary("", "0-name")
    disk.write(handle, pieces)
    disk.link(handle, "file")
    disk.close(handle)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)
    assert disk.read("file", 5, 10**7) == b"".join(pieces)[5:]


_KILLED = """
import os, signal, sys
from snapline import failpoints
from snapline.storage.store.store import Store
from tests.storage.making import write_epoch
store = Store.open(sys.argv[1])
write_epoch(store, 1)
def hook(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
failpoints.install(hook)
write_epoch(store, 2)
store.delete_epoch(1)
"""


@pytest.mark.parametrize(
    ("point", "epochs"),
    [
        ("store.pack.written", [1]),
        ("store.manifest.linked", [1]),
        ("store.ref.linked", [1, 2]),
        ("store.delete.ref", [2]),
        ("store.delete.manifest", [2]),
    ],
)
def test_killed_process_leaves_a_whole_store(store: Store, point: str, epochs: list[int]) -> None:
    assert run_forked(_KILLED, store.location, point).returncode == -9
    assert store.epochs() == epochs
    for epoch in epochs:
        check_epoch_restores(store, epoch)
    assert store.verify().is_whole
    store.delete_unreferenced(begun_below=3)
    assert store.verify().unreferenced == []
    assert not (Path(store.location) / "temporary").exists()


def _run_threads(target: object, count: int, arguments: list[tuple[str]] | None = None) -> None:
    threads = [threading.Thread(target=target, args=arguments[n] if arguments else ()) for n in range(count)]  # type: ignore[arg-type]  # any callable
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


# ---- a store that is away ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["nothing", "an empty mount point", "another store"])
def test_a_store_that_is_away_is_not_judged(tmp_path: Path, left: str) -> None:
    place = tmp_path / "store"
    store = Store.create(place)
    place.rename(tmp_path / "away")
    if left != "nothing":
        place.mkdir()
    if left == "another store":
        Store.create(tmp_path / "other")
        place.rmdir()
        (tmp_path / "other").rename(place)
    reads: list[Callable[[], object]] = [lambda: store.read_manifest("0" * 64, epoch=1), lambda: store.read_ref(1)]
    for read in (*reads, store.epochs):
        with pytest.raises(StoreError, match=r"is away|another store") as caught:
            read()
        assert not isinstance(caught.value, DamagedDataError)
    shutil.rmtree(place, ignore_errors=True)
    (tmp_path / "away").rename(place)
    assert store.epochs() == []
    with pytest.raises(DamagedDataError, match="missing"):
        store.read_manifest("0" * 64, epoch=1)
