"""The virtual disk, compared with the kernel's file system (what calls answer) and with the storage tests' model of POSIX (what a
power cut may leave); then its faults, and the real store on it."""

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.storage.making import make_manifest, make_store, seeded_bytes, write_packs
from tests.storage.simulated_disk import SimulatedDisk

from snapline.errors import DamagedDataError, StoreError, UsageError
from snapline.sim.choices import Key, RandomChoices, RecordedChoices
from snapline.sim.world import disk as disk_module
from snapline.sim.world.disk import STALE_NS, NodeDisk, VirtualDisk
from snapline.storage.disk.local_disk import Disk, LocalDisk, write_once
from snapline.storage.store.store import Store

DIRECTORIES = ("a", "b", "a/c")
FILES = ("f", "a/f", "b/f", "a/c/f", "a/c/g")
MISPLACED = ("a", "f/g", "b/c/f")

Call = tuple[str, str]
Contents = dict[str, bytes | None]

paths = st.sampled_from(DIRECTORIES + FILES + MISPLACED)
directories = st.sampled_from(("", *DIRECTORIES, "f"))
any_call = st.one_of(
    st.tuples(st.sampled_from(("make_directory", "remove_directory", "put", "unlink", "read", "size")), paths),
    st.tuples(st.sampled_from(("list_directory", "sync_directory")), directories),
)
changes = st.one_of(
    st.tuples(st.just("make_directory"), st.sampled_from(DIRECTORIES)),
    st.tuples(st.sampled_from(("put", "put unsynced", "unlink")), st.sampled_from(FILES)),
    st.tuples(st.just("sync_directory"), st.sampled_from(("", *DIRECTORIES))),
)


def do(disk: Disk, call: Call, data: bytes = b"0123456789") -> object:
    """Carry one call out; returns what it answers, or the number of its error."""
    name, path = call
    try:
        if not name.startswith("put"):
            args = (path, 2, 3) if name == "read" else (path,)
            return getattr(disk, name)(*args)
        handle = disk.open_temporary(path.rpartition("/")[0], "t")
        try:
            disk.write(handle, (data[:4], data[4:]))
            if name == "put":
                disk.sync_data(handle)
            disk.link(handle, path)
        finally:
            disk.close(handle)
    except OSError as error:
        return error.errno
    return None


def contents_of(disk: Disk, path: str = "") -> Contents:
    """All that can be seen: path → bytes, None for directories."""
    found: Contents = {}
    for entry in disk.list_directory(path):
        child = f"{path}/{entry.name}" if path else entry.name
        found[child] = None if entry.is_directory else disk.read(child, 0, 10**6)
        if entry.is_directory:
            found |= contents_of(disk, child)
    return found


class PrefixChoices:
    """Picks as told, then 0; remembers how many there were to choose from."""

    def __init__(self, prefix: list[int]) -> None:
        self.prefix = prefix
        self.sizes: list[int] = []

    def pick(self, stream: str, key: Key, n: int) -> int:
        self.sizes.append(n)
        return self.prefix[len(self.sizes) - 1] if len(self.sizes) <= len(self.prefix) else 0


class WorstChoices:
    """Everything that can be lost is lost."""

    def pick(self, stream: str, key: Key, n: int) -> int:
        return 1 if key[-1] == "bytes" else n - 1


def all_outcomes(run: Callable[[PrefixChoices], Contents]) -> Iterator[Contents]:
    """Yield what `run` gives for every sequence of choices."""
    waiting: list[list[int]] = [[]]
    while waiting:
        choices = PrefixChoices(waiting.pop())
        yield run(choices)
        known = len(choices.prefix)
        for position in range(known, len(choices.sizes)):
            zeros = [0] * (position - known)
            waiting += [[*choices.prefix, *zeros, pick] for pick in range(1, choices.sizes[position])]


def frozen(contents: Contents) -> tuple[tuple[str, bytes | None], ...]:
    return tuple(sorted(contents.items()))


# ---- against the kernel and against the model of POSIX ------------------------------------------------------------------


@settings(max_examples=100)
@given(st.lists(any_call, max_size=25))
@example([("put", "f"), ("put", "f/g"), ("make_directory", "f"), ("list_directory", "f"), ("unlink", "f/g")])
def test_calls_answer_what_the_kernel_answers(program: list[Call]) -> None:
    with TemporaryDirectory() as folder:
        local, virtual = LocalDisk(Path(folder)), VirtualDisk().of("h1")
        for call in program:
            ours, theirs = do(virtual, call), do(local, call)
            if call[0] == "size" and call[1] in contents_of(local) and contents_of(local)[call[1]] is None:
                continue  # The size of a directory is a matter of the file system.
            assert ours == theirs, call
        assert contents_of(virtual) == contents_of(local)


def images_of(program: list[Call]) -> tuple[set[object], set[object]]:
    """What a power cut may leave: by the virtual disk, by the model."""

    def cut(choices: PrefixChoices) -> Contents:
        disk = VirtualDisk()
        for call in program:
            do(disk.of("h1"), call)
        disk.power_cut("h1", choices)
        return contents_of(disk.reader())

    model = SimulatedDisk()
    for call in program:
        do(model, call)
    return {frozen(x) for x in all_outcomes(cut)}, {frozen(contents_of(image)) for image in model.images()}


TELLING: list[Call] = [
    ("make_directory", "a"),
    ("put", "a/f"),
    ("sync_directory", "a"),
    ("put unsynced", "f"),
    ("sync_directory", ""),
    ("unlink", "a/f"),
    ("put unsynced", "a/f"),
    ("put", "b/f"),
]


@settings(max_examples=200)
@given(st.lists(changes, max_size=9))
@example(TELLING)
def test_a_power_cut_leaves_exactly_what_posix_allows(program: list[Call]) -> None:
    ours, allowed = images_of(program)
    assert ours == allowed


@settings(max_examples=200)
@given(st.lists(st.one_of(changes, st.tuples(st.just("remove_directory"), st.sampled_from(DIRECTORIES))), max_size=12))
def test_a_power_cut_with_removed_directories_leaves_nothing_else(program: list[Call]) -> None:
    """The model knows paths and no directories, so it also lets files of an old directory turn up in a new one.

    And it takes a sync of the new one for one of the old, whose names may come back with it: such syncs are left out.
    """
    model = SimulatedDisk()
    known: list[Call] = []
    removed: set[object] = set()
    for call in program:
        if (call[0] == "remove_directory" and call[1] not in model.nodes) or (
            call[0] == "sync_directory" and call[1] in removed
        ):
            continue
        do(model, call)
        known.append(call)
        if call[0] == "remove_directory":
            removed.add(call[1])
    ours, allowed = images_of(known)
    assert ours <= allowed


def settle_as_one(self: object, directory: object, name: str, changes: object, path: str) -> None:
    """A mutant: names are never lost."""


def keep_bytes(self: object, file: object, path: str) -> None:
    """A mutant: bytes are never lost."""


@pytest.mark.parametrize(("name", "mutant"), [("_settle_name", settle_as_one), ("_settle_bytes", keep_bytes)])
def test_a_disk_that_forgets_too_little_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, mutant: Callable[..., None]
) -> None:
    monkeypatch.setattr(disk_module._PowerCut, name, mutant)
    ours, allowed = images_of(TELLING)
    assert ours < allowed


def test_a_disk_that_syncs_no_names_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeDisk, "sync_directory", lambda self, path: None)
    ours, allowed = images_of(TELLING)
    assert ours > allowed


# ---- several nodes ------------------------------------------------------------------------------------------------------


def put(disk: Disk, path: str, data: bytes = b"0123456789") -> None:
    assert do(disk, ("put", path), data) is None


@given(st.lists(st.tuples(st.booleans(), changes), max_size=20), st.integers())
def test_a_crash_loses_nothing_that_was_written(program: list[tuple[bool, Call]], seed: int) -> None:
    disk = VirtualDisk()
    for is_first, call in program:
        do(disk.of("h1" if is_first else "h2"), call)
    before = contents_of(disk.of("h2"))
    disk.crash("h1")
    assert contents_of(disk.of("h1")) == before
    disk.power_cut("h2", RecordedChoices({}))
    assert contents_of(disk.reader()) == before


@given(st.lists(st.tuples(st.booleans(), changes), max_size=20), st.integers())
def test_a_power_cut_concerns_one_node_only(program: list[tuple[bool, Call]], seed: int) -> None:
    """h1 works in a/, h2 in b/; the cut of h1 leaves b/ alone, and what it left is durable."""
    disk = VirtualDisk()
    for name in DIRECTORIES:
        do(disk.reader(), ("make_directory", name))
        do(disk.reader(), ("sync_directory", name.rpartition("/")[0]))
    for call in (call for _, call in program):
        if "/" in call[1] or call[1] in DIRECTORIES:
            do(disk.of("h1" if call[1][0] == "a" else "h2"), call)

    def of_h2() -> Contents:
        return {path: data for path, data in contents_of(disk.reader()).items() if path[0] == "b"}

    before = of_h2()
    disk.power_cut("h1", RandomChoices(seed))
    assert of_h2() == before
    after = contents_of(disk.reader())
    disk.power_cut("h1", WorstChoices())
    assert contents_of(disk.reader()) == after


def test_whoever_syncs_a_directory_makes_all_its_names_durable() -> None:
    """A publisher that finds the file there syncs its directory, since who linked it may not have come that far."""
    disk = VirtualDisk()
    put(disk.of("h1"), "f")
    disk.of("h2").sync_directory("")
    disk.power_cut("h1", WorstChoices())
    assert disk.files() == ["f"]


def test_what_another_node_removed_and_did_not_sync_comes_back_whole() -> None:
    disk = VirtualDisk()
    one, other = disk.of("h1"), disk.of("h2")
    for call in (("make_directory", "a"), ("put", "a/f"), ("sync_directory", "a"), ("sync_directory", "")):
        do(one, call)
    for call in (("unlink", "a/f"), ("remove_directory", "a")):
        assert do(other, call) is None
    assert disk.files() == []
    disk.power_cut("h1", WorstChoices())
    assert disk.files() == []
    disk.power_cut("h2", WorstChoices())
    assert disk.files() == ["a/f"]


def test_a_name_that_is_kept_keeps_what_happened_to_it_before() -> None:
    disk = VirtualDisk()
    put(disk.of("h1"), "f")
    disk.of("h2").unlink("f")
    disk.power_cut("h2", RecordedChoices({}))
    disk.power_cut("h1", WorstChoices())
    assert disk.files() == []
    put(disk.of("h1"), "g")
    disk.of("h2").unlink("g")
    disk.power_cut("h2", WorstChoices())
    assert disk.files() == ["g"]


def test_handles_end_with_the_process() -> None:
    disk = VirtualDisk()
    node = disk.of("h1")
    handle = node.open_temporary("", "t")
    disk.crash("h1")
    node.close(handle)
    with pytest.raises(OSError) as caught:
        node.write(handle, (b"x",))
    assert caught.value.errno == errno.EBADF


def test_a_torn_tail_keeps_what_was_synced_before() -> None:
    ends = set()
    for fate in range(4):
        disk = VirtualDisk()
        node = disk.of("h1")
        handle = node.open_temporary("", "t")
        node.link(handle, "f")
        node.sync_directory("")
        node.write(handle, (b"synced",))
        node.sync_data(handle)
        node.write(handle, (b"tail",))
        disk.power_cut("h1", PrefixChoices([fate]))
        ends.add(disk.reader().read("f", 0, 100))
    assert ends == {b"syncedtail", b"syncedta", b"syncedta\0\0", b"synced"}


# ---- faults -------------------------------------------------------------------------------------------------------------


def test_an_io_error_hits_every_call_of_that_node_alone() -> None:
    disk = VirtualDisk()
    node = disk.of("h1")
    put(node, "f")
    handle = node.open_temporary("", "t")
    disk.set_fault("h1", "eio", True)
    for call in ("read", "size", "unlink", "put"):
        assert do(node, (call, "f")) == errno.EIO
    for call in ("list_directory", "sync_directory", "make_directory", "remove_directory"):
        assert do(node, (call, "")) == errno.EIO
    with pytest.raises(OSError):
        node.write(handle, (b"x",))
    with pytest.raises(OSError):
        node.link(handle, "g")
    with pytest.raises(OSError):
        node.sync_data(handle)
    assert do(disk.of("h2"), ("read", "f")) == b"234"
    disk.set_fault("h1", "eio", False)
    assert do(node, ("read", "f")) == b"234"


def test_a_full_disk_may_take_half() -> None:
    disk = VirtualDisk()
    node = disk.of("h1")
    handle = node.open_temporary("", "t")
    disk.set_fault("", "full", True)
    with pytest.raises(OSError) as caught:
        node.write(handle, (b"0123", b"4567"))
    assert caught.value.errno == errno.ENOSPC
    node.link(handle, "f")
    assert node.read("f", 0, 100) == b"0123"
    assert do(node, ("put", "g")) == do(node, ("make_directory", "a")) == errno.ENOSPC
    assert do(disk.reader(), ("put", "g")) is None


def test_a_failed_sync_shows_after_the_next_power_cut_even_if_later_ones_succeed() -> None:
    disk = VirtualDisk()
    node = disk.of("h1")
    handle = node.open_temporary("", "t")
    node.write(handle, (b"lost",))
    disk.set_fault("h1", "failed-sync", True)
    with pytest.raises(OSError):
        node.sync_data(handle)
    disk.set_fault("h1", "failed-sync", False)
    node.write(handle, (b"kept",))
    node.sync_data(handle)
    node.link(handle, "f")
    assert disk.of("h2").read("f", 0, 100) == b"lostkept"
    disk.power_cut("h1", RecordedChoices({}))
    assert disk.of("h2").read("f", 0, 100) == b"\0\0\0\0kept"


def test_a_stale_cache_hides_new_files_of_others_for_a_moment() -> None:
    now_ns = 0
    disk = VirtualDisk(lambda: now_ns)
    writer, stale, fresh = disk.of("h1"), disk.of("h2"), disk.of("h3")
    disk.set_fault("h2", "stale-read", True)
    put(writer, "f")
    put(stale, "g")
    for call in (("read", "f"), ("size", "f")):
        assert do(stale, call) == errno.ENOENT
        assert do(writer, call) == do(fresh, call) != errno.ENOENT
    assert [entry.name for entry in stale.list_directory("")] == ["g"]
    now_ns = STALE_NS
    assert stale.size("f") == 10


def test_a_stale_cache_is_refreshed_by_who_finds_the_name_taken() -> None:
    """Else a writer would be told that the file is there and is not there."""
    disk = VirtualDisk()
    disk.set_fault("", "stale-read", True)
    put(disk.of("h1"), "f")
    assert do(disk.of("h2"), ("read", "f")) == errno.ENOENT
    assert do(disk.of("h2"), ("put", "f")) == errno.EEXIST
    assert do(disk.of("h2"), ("read", "f")) == b"234"


def test_faults_of_all_and_of_one_are_switches_of_their_own() -> None:
    disk = VirtualDisk()
    disk.set_fault("", "slow", True)
    disk.set_fault("h1", "eio", True)
    disk.set_fault("", "eio", True)
    disk.set_fault("", "eio", False)
    assert disk.is_slow("h1") and disk.is_slow("h9")
    assert do(disk.of("h1"), ("size", "")) == errno.EIO
    assert do(disk.of("h2"), ("list_directory", "")) == []
    disk.clear_faults()
    assert not disk.is_slow("h1")
    assert do(disk.of("h1"), ("list_directory", "")) == []


def test_a_fault_or_file_that_is_not_there_is_misuse() -> None:
    with pytest.raises(UsageError, match="eoi"):
        VirtualDisk().set_fault("h1", "eoi", True)
    with pytest.raises(UsageError, match="missing"):
        VirtualDisk().flip("missing", 0)


@given(st.integers(min_value=0), st.binary(max_size=20))
def test_a_flip_changes_one_bit_for_good(bit: int, data: bytes) -> None:
    disk = VirtualDisk()
    put(disk.of("h1"), "f", data)
    disk.of("h1").sync_directory("")
    disk.flip("f", bit)
    disk.power_cut("h1", WorstChoices())
    after = disk.of("h2").read("f", 0, 100)
    differing = [(a ^ b).bit_count() for a, b in zip(data, after, strict=True)]
    assert sum(differing) == (1 if data else 0)
    assert disk.used_bytes() == len(data)


# ---- the store on it ----------------------------------------------------------------------------------------------------


def store_of(disk: VirtualDisk, node: str, store_id: str) -> Store:
    return Store(disk.of(node), store_id, random_bytes=seeded_bytes(sum(node.encode())))


def write_epochs(disk: VirtualDisk, epochs: int = 3) -> Store:
    """Hosts write packs, the coordinator manifests and refs; returns a store without faults."""
    first = make_store(disk.of("c1"))
    for epoch in range(1, epochs + 1):
        packs = write_packs(store_of(disk, "h1", first.store_id), epoch)
        root = first.write_manifest(make_manifest(first, epoch, packs))
        first.publish(epoch, root)
    return Store(disk.reader(), first.store_id)


def test_published_epochs_survive_when_everybody_loses_power() -> None:
    disk = VirtualDisk()
    store = write_epochs(disk)
    for node in ("c1", "h1"):
        disk.power_cut(node, WorstChoices())
    assert store.epochs() == [1, 2, 3]
    assert store.verify().is_whole


@pytest.mark.parametrize("call", ["sync_data", "sync_directory"])
def test_a_store_that_does_not_sync_loses_them(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr(NodeDisk, call, lambda self, what: None)
    disk = VirtualDisk()
    store = write_epochs(disk)
    assert store.epochs() == [1, 2, 3]
    for node in ("c1", "h1"):
        disk.power_cut(node, WorstChoices())
    with contextlib.suppress(StoreError, DamagedDataError):
        assert store.epochs() != [1, 2, 3] or not store.verify().is_whole


def test_the_store_finds_every_flipped_bit() -> None:
    disk = VirtualDisk()
    store = write_epochs(disk, epochs=1)
    for path in disk.files():
        for bit in (0, 77, 1_001):
            disk.flip(path, bit)
            assert not store.verify().is_whole, path
            disk.flip(path, bit)
    assert store.verify().is_whole


@pytest.mark.parametrize("fault", ["eio", "full", "failed-sync"])
def test_a_store_whose_disk_fails_leaves_no_half_file(fault: str) -> None:
    disk = VirtualDisk()
    store = write_epochs(disk, epochs=1)
    before = disk.files()
    disk.set_fault("h1", fault, True)
    with pytest.raises((StoreError, DamagedDataError)):
        write_packs(store_of(disk, "h1", store.store_id), 2)
    disk.power_cut("h1", RandomChoices(0))
    assert disk.files() == before
    disk.clear_faults()
    write_once(disk.of("h1"), "packs/f", (b"whole",), temporary_name="t", point="test")
    assert disk.reader().read("packs/f", 0, 100) == b"whole"
