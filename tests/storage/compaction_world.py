"""A fleet, its store, the one who cleans up, and readers: for the tests of compaction."""

from hypothesis import strategies as st
from tests.storage.making import seeded_bytes
from tests.storage.making_chunks import (
    AGENTS,
    SLOTS,
    Promise,
    State,
    changed,
    check_chunked,
    check_manifest_restores,
    first_state,
    gather_manifest,
    live_shares,
    newest_manifest,
    pack_paths,
    write_hosts,
)
from tests.storage.simulated_disk import SimulatedDisk

from snapline.storage.disk import layout
from snapline.storage.keys.key_files import Keys
from snapline.storage.packs import compaction
from snapline.storage.packs.compaction import COMPACT_BYTES_MAX, GRACE_S, WRITER, LiveBlob, Survey
from snapline.storage.packs.manifest import Manifest
from snapline.storage.packs.pack import PackReference
from snapline.storage.store.store import Store

ROUNDS_MAX = 4
"""Of a compaction and a sweep, until what was replaced is gone: a pack that was itself made by compaction waits for its own grace."""


class World:
    """A fleet, its store, the one who cleans up, and readers. Time stands still but for `pass_time`."""

    def __init__(self, keys: Keys | None = None) -> None:
        self.disk = SimulatedDisk()
        self.store = Store.create("simulated", disk=self.disk, random_bytes=seeded_bytes(), keys=keys)
        self.cleaner = Store.open("simulated", disk=self.disk, keys=keys)
        self.now_s = 0.0
        self.epoch = 0
        self.version = 0
        self.state = first_state()
        self.written: dict[int, tuple[dict[str, PackReference], int, State]] = {}
        self.gathered: dict[int, tuple[Manifest, float]] = {}
        self.promises: dict[int, Promise] = {}
        self.held: list[tuple[int, Manifest]] = []

    # -- the fleet ---------------------------------------------------------------------------------------------------

    def change(self, number: int) -> None:
        self.version += 1
        agent, slot = AGENTS[number % len(AGENTS)], number // len(AGENTS) % SLOTS
        self.state = changed(self.state, agent, slot, self.version)

    def write(self, number: int) -> None:
        """Packs of a new epoch over one of the two newest ones."""
        bases = sorted(self.promises)[-2:]
        base = bases[number % len(bases)] if bases else 0
        base_state = self.promises[base].state if base else None
        self.epoch += 1
        packs = write_hosts(self.store, self.epoch, self.state, base=base, base_state=base_state)
        self.written[self.epoch] = packs, base, self.state

    def gather(self, epoch: int) -> None:
        packs, base, _ = self.written[epoch]
        if base in self.promises or base == 0:
            bases = {base: self.promises[base].root} if base else {}
            self.gathered[epoch] = gather_manifest(self.store, epoch, packs, bases), self.now_s

    def complete(self, epoch: int, *, is_published: bool = True) -> None:
        if epoch not in self.gathered:
            self.gather(epoch)
        _, base, state = self.written.pop(epoch)
        manifest, gathered_s = self.gathered.pop(epoch, (None, 0.0))
        is_late = self.now_s - gathered_s >= GRACE_S or (base and base not in self.promises)
        if manifest is None or is_late:
            return
        root = self.store.write_manifest(manifest)
        if is_published:
            self.store.publish(epoch, root)
            self.promises[epoch] = Promise(root, state)

    # -- the one who cleans up ---------------------------------------------------------------------------------------

    def delete(self, number: int) -> None:
        """Any epoch but the newest two, as the coordinator does; its readers know that."""
        old = sorted(self.promises)[:-2]
        if old:
            epoch = old[number % len(old)]
            self.held = [each for each in self.held if each[0] != epoch]
            del self.promises[epoch]
            self.cleaner.delete_epoch(epoch)

    def sweep(self) -> None:
        self.cleaner.delete_unreferenced(begun_below=self.epoch + 1, open_epochs=self.written, open_writers=(WRITER,))

    def compact(self, bytes_max: int = 10**9) -> compaction.Compacted:
        return self.cleaner.compact(now_s=self.now_s, bytes_max=bytes_max)

    def compact_fully(self) -> None:
        """Until nothing moves any more, and what was replaced is gone."""
        for _ in range(100):
            if not self.compact().copied_bytes:
                break
            self.now_s += GRACE_S
        else:
            raise AssertionError("compaction never ends")
        for _ in range(ROUNDS_MAX):
            self.now_s += GRACE_S
            self.compact()
            self.sweep()

    # -- readers -----------------------------------------------------------------------------------------------------

    def hold(self, number: int) -> None:
        if self.promises:
            epoch = sorted(self.promises)[number % len(self.promises)]
            self.held.append((epoch, self.cleaner.read_manifest(self.promises[epoch].root)))

    def read_held(self) -> None:
        """However long a reader takes, it finds what it began with."""
        for epoch, manifest in self.held:
            check_manifest_restores(self.store, manifest, self.promises[epoch].state)
        self.held = []

    def check(self) -> None:
        assert self.store.epochs() == sorted(self.promises)
        for epoch, promise in self.promises.items():
            assert self.store.read_ref(epoch) == promise.root
            check_chunked(self.store, epoch, promise.state)
            check_manifest_restores(self.store, newest_manifest(self.disk, promise.root), promise.state)
        assert self.store.verify().findings == []


Step = tuple[str, int]
NUMBERED = ("change", "change", "write", "gather", "complete", "complete", "abort", "delete", "compact", "hold")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(NUMBERED), st.integers(0, 30)),
        st.tuples(st.sampled_from(("commit", "commit", "commit", "sweep", "read", "pass", "check")), st.just(0)),
    ),
    min_size=10,
    max_size=60,
)


def play(world: World, steps: list[Step]) -> None:
    for what, number in steps:
        if what == "change":
            world.change(number)
        elif what == "write" and len(world.written) < 3:
            world.write(number)
        elif what == "gather" and world.written:
            world.gather(sorted(world.written)[number % len(world.written)])
        elif what in ("complete", "abort") and world.written:
            world.complete(sorted(world.written)[number % len(world.written)], is_published=what == "complete")
        elif what == "commit":
            world.change(world.version)
            world.write(0)
            world.complete(world.epoch)
        elif what == "delete":
            world.delete(number)
        elif what == "sweep":
            world.sweep()
        elif what == "compact":
            world.compact((10**9, 700)[number % 2])
        elif what == "hold":
            world.hold(number)
        elif what == "read":
            world.read_held()
        elif what == "pass":
            world.now_s += GRACE_S / 2
        elif what == "check":
            world.check()


def finish(world: World) -> None:
    """What is open ends; then nothing but live packs is left."""
    for epoch in sorted(world.written):
        world.complete(epoch, is_published=False)
    world.sweep()
    world.check()
    world.compact_fully()
    world.check()
    assert all(share >= compaction.LIVE_SHARE_MIN for share in live_shares(world.store, world.disk).values())
    verification = world.store.verify()
    assert verification.unreferenced == []
    assert len(world.disk.list_directory(layout.MANIFESTS)) == len(world.promises)


def commit(world: World, count: int = 1) -> None:
    for _ in range(count):
        play(world, [("commit", 0)])


def sparse_world(keys: Keys | None = None) -> World:
    """Epochs 5 to 7 of which each reuses a little of epoch 1, which is gone with those after it."""
    world = World(keys)
    commit(world, 7)
    for _ in range(4):
        world.delete(0)
    return world


def disk_bytes(disk: SimulatedDisk) -> int:
    return sum([disk.size(path) for path in pack_paths(disk)])


def plan_compaction(world: World, bytes_max: int = COMPACT_BYTES_MAX) -> list[LiveBlob]:
    """The blobs that should move."""
    survey = Survey(world.disk, world.store.store_id, ())
    return survey.blobs_of(survey.choose(bytes_max), bytes_max)
