"""What becomes of the files of epochs that the coordinator has forgotten: the policy, pins and tags decide, and time."""

import logging
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.storage import making
from tests.storage.making import make_manifest, make_store, write_packs
from tests.storage.making_chunks import changed, commit_chunked, first_state, write_hosts
from tests.storage.simulated_disk import SimulatedDisk

from snapline.coordinator.leader import events as ev
from snapline.coordinator.service.store_keeper import StoreKeeper
from snapline.coordinator.state.fleet_view import FleetView
from snapline.errors import StoreError
from snapline.messages.host_messages import ReportedPack
from snapline.storage.disk import layout
from snapline.storage.outputs.output_record import EmittedOutput
from snapline.storage.packs.manifest import Manifest
from snapline.storage.retention.epoch_retention import Policy
from snapline.storage.store.store import Holds, Store
from snapline.storage.timestamps import instant

HOUR = 3600.0
NOON = 1_741_521_600.0
POLICY = Policy(keep_last=2, hourly=3, daily=2)


class Bench:
    """A store whose clock is set by hand, and its keeper. `missing_time`: epochs whose manifests have no time."""

    def __init__(self, policy: Policy | None = POLICY) -> None:
        self.now_s = NOON
        self.disk = SimulatedDisk()
        self.store = make_store(self.disk)
        self.policy = policy
        self.keeper = self.restarted()
        self.holds = Holds(self.store, now_s=lambda: self.now_s)

    def restarted(self) -> StoreKeeper:
        return StoreKeeper(
            self.store, FleetView(), retention=self.policy, wall_ns=lambda: round(self.now_s * 1_000_000_000)
        )

    def write(self, epoch: int, created_s: float | None) -> None:
        manifest = make_manifest(self.store, epoch, write_packs(self.store, epoch))
        about = {name: getattr(manifest.metadata, name) for name in manifest.metadata.__struct_fields__}
        about["created"] = "" if created_s is None else instant(created_s)
        self.store.publish(
            epoch,
            self.store.write_manifest(Manifest(type(manifest.metadata)(**about), manifest.agents, manifest.packs)),
        )

    def every(self, count: int, step_s: float) -> None:
        """Epochs 1 to `count`, the last one now."""
        for epoch in range(1, count + 1):
            self.write(epoch, self.now_s - (count - epoch) * step_s)

    def forget(self, *epochs: int) -> list[int]:
        self.keeper.delete(ev.DeleteEpochs(epochs))
        return self.store.epochs()

    def sweep(self, *kept: int, begun: int = 99) -> list[int]:
        self.keeper.sweep(ev.SweepStore(kept, (), begun))
        return self.store.epochs()


def test_forgotten_epochs_stay_as_long_as_the_policy_says() -> None:
    bench = Bench()
    bench.every(10, HOUR / 2)  # 7:30, 8:00, … 11:30, 12:00
    assert bench.forget(*range(1, 9)) == [7, 9, 10], "10:30, the newest of that hour, beside the last two"


def test_only_what_is_forgotten_goes_whatever_the_policy_says() -> None:
    bench = Bench(Policy(1, 0, 0))
    bench.every(6, 1.0)
    assert bench.forget(2) == [1, 3, 4, 5, 6]
    assert bench.sweep(3, 4, begun=5) == [3, 4, 6], "6 has begun since the command was given"


def test_the_next_sweep_finds_what_time_has_made_old() -> None:
    bench = Bench()
    bench.every(4, HOUR)
    assert bench.forget(1, 2) == [2, 3, 4]
    bench.now_s += 2 * HOUR
    bench.write(5, bench.now_s)
    assert bench.sweep(4, 5) == [4, 5], "3 and 2 are older than three hours, and not the newest of their day"


def test_without_a_policy_all_that_is_forgotten_goes_but_what_is_held() -> None:
    bench = Bench(None)
    bench.every(5, 1.0)
    bench.holds.pin(1)
    bench.holds.tag("good", 2)
    assert bench.forget(1, 2, 3) == [1, 2, 4, 5]
    assert bench.sweep(5) == [1, 2, 5]
    bench.holds.unpin(1)
    bench.holds.untag("good")
    assert bench.sweep(5) == [5]


def test_pins_and_tags_stay_under_a_policy_too() -> None:
    bench = Bench(Policy(1, 0, 0))
    bench.every(4, 1.0)
    bench.holds.pin(1)
    assert bench.forget(1, 2, 3) == [1, 4]
    assert bench.restarted() is not None and bench.sweep() == [1, 4]


def test_a_clock_that_is_wrong_deletes_nothing() -> None:
    bench = Bench(Policy(1, 0, 0))
    bench.write(1, None)
    bench.write(2, NOON + HOUR)
    bench.write(3, NOON)
    assert bench.forget(1, 2) == [1, 2, 3]
    bench.now_s += 2 * HOUR
    assert bench.sweep(3) == [1, 3]


def test_manifests_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.every(8, HOUR)
    reads: list[int | None] = []
    read = Store.read_manifest

    def counted(self: Store, root: str, *, epoch: int | None = None) -> Manifest:
        reads.append(epoch)
        return read(self, root, epoch=epoch)

    monkeypatch.setattr(Store, "read_manifest", counted)
    bench.forget(1)
    assert reads == list(range(1, 9))
    bench.forget(2)
    bench.sweep(*range(3, 9))
    assert reads == list(range(1, 9))


def test_a_damaged_epoch_goes_when_it_is_not_among_the_last() -> None:
    bench = Bench(Policy(2, 0, 0))
    bench.every(5, 1.0)
    for epoch in (2, 4):
        node = bench.disk.nodes[layout.manifest_path(bench.store.read_ref(epoch))]
        assert node is not None
        node.data = node.data[:-1] + bytes([node.data[-1] ^ 1])
    assert bench.forget(1, 2, 3, 4) == [3, 4, 5]


def test_an_epoch_that_cannot_be_read_just_now_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Policy(1, 0, 0))
    bench.every(3, 1.0)
    read = Store.read_manifest

    def refuse(self: Store, root: str, *, epoch: int | None = None) -> Manifest:
        if epoch == 1:
            raise StoreError("not mounted")
        return read(self, root, epoch=epoch)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "read_manifest", refuse)
        assert bench.forget(1, 2) == [1, 3]
    assert bench.sweep(3) == [3]


def test_one_epoch_that_cannot_be_deleted_does_not_keep_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(None)
    bench.every(3, 1.0)
    delete = Store.delete_epoch

    def refuse(self: Store, epoch: int) -> list[str]:
        if epoch == 1:
            raise StoreError("not mounted")
        return delete(self, epoch)

    monkeypatch.setattr(Store, "delete_epoch", refuse)
    assert bench.forget(1, 2) == [1, 3]
    assert "epoch 1 remains in the store: not mounted" in caplog.text
    assert not [path for path in bench.disk.files() if path.startswith("deleting/")]


def test_a_damaged_tag_stops_deletions_but_not_the_sweep_of_garbage(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(None)
    bench.every(2, 1.0)
    garbage = write_packs(bench.store, 3)["h1"].path
    bench.holds.tag("good", 2)
    node = bench.disk.nodes["tags/good"]
    assert node is not None
    node.data = node.data[:-1]
    assert bench.sweep(2) == [1, 2]
    assert "forgotten epochs remain in the store: tags/good" in caplog.text
    assert garbage not in bench.disk.files()


def test_the_sweep_clears_what_dead_deleters_left() -> None:
    bench = Bench(None)
    bench.every(2, 1.0)

    def die(epoch: int) -> list[str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.holds.delete([1], die)
    bench.sweep(1, 2)
    with pytest.raises(StoreError, match="being deleted"):
        bench.holds.pin(1)
    bench.now_s += 2 * HOUR
    bench.sweep(1, 2)
    bench.holds.pin(1)


def test_forgotten_epochs_that_were_aborted_cost_no_files() -> None:
    bench = Bench(None)
    bench.every(1, 1.0)
    calls = len(bench.disk.calls)
    assert bench.forget(7, 8, 9) == [1]
    assert len(bench.disk.calls) == calls


def test_deletions_are_quiet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    store = Store.create(tmp_path / "store")
    keeper = StoreKeeper(store, FleetView(), retention=POLICY)
    keeper.delete(ev.DeleteEpochs((1, 2)))
    keeper.sweep(ev.SweepStore((), (), 9))
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("apart_s", "consumer", "oldest"),
    [(120, "c1", 31), (6 * 3600, "", 32)],
    ids=["passed an hour ago", "a week old"],
)
def test_sweeps_delete_outputs_that_are_old_or_that_all_have_had(apart_s: int, consumer: str, oldest: int) -> None:
    bench = Bench(None)
    for epoch in range(1, 61):
        bench.now_s += apart_s
        output = EmittedOutput("a1", epoch, "news", b"", 0)
        created_ns = round(bench.now_s * 1e9)
        bench.store.release_outputs(epoch, f"{epoch:064x}", epoch - 1, [output], created_ns=created_ns)
    if consumer:
        bench.store.acknowledge_outputs(consumer, "60.1", now_ns=0)
    bench.sweep()
    assert bench.store.output_epochs() == list(range(oldest, 61))


@pytest.mark.parametrize(("forgotten", "may_be_reused"), [((2, 3), True), ((1,), False)])
def test_what_is_forgotten_is_no_base_and_older_epochs_may_stay_one(
    forgotten: tuple[int, ...], may_be_reused: bool
) -> None:
    """A fleet that was taken back builds on an epoch older than those that are void, and forgotten first."""
    bench = Bench(None)
    state = first_state()
    roots = {epoch: commit_chunked(bench.store, epoch, state) for epoch in (1, 2, 3)}
    packs = write_hosts(bench.store, 4, changed(state, "a1", 0, 4), base=1, base_state=state)
    reported = tuple(ReportedPack(x.path, x.size_bytes, x.index_digest) for x in packs.values())
    bench.forget(*forgotten)
    bases = {1: roots[1]}
    written = bench.keeper.write_manifest(ev.WriteManifest(4, 1, "", {}, reported, (), (), 0, 0, 0, bases))
    assert bool(written.root) is may_be_reused, written.error


def test_the_newest_epoch_before_a_turn_is_one_that_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    original = making.make_checkpoint
    monkeypatch.setattr(
        making, "make_checkpoint", lambda agent, epoch: replace(original(agent, epoch), saved_turns=epoch)
    )
    bench = Bench()
    for epoch in (1, 2, 3):
        bench.write(epoch, NOON)
    before = partial(ev.ResolveSnapshot, "turn", "a1")
    assert bench.keeper.resolve(before(3, (3, 2, 1))) == ev.SnapshotResolved("turn", 2, agent="a1")
    assert bench.keeper.resolve(before(3, (9, 3, 1))).epoch == 1, "somebody has deleted epoch 9"
    assert "begun in all snapshots" in bench.keeper.resolve(before(1, (3, 2, 1))).error
    assert bench.keeper.resolve(ev.ResolveSnapshot("turn", "late", 1, (3, 2))).epoch == 3, "it is created later"
    manifest = bench.store.read_manifest(bench.store.read_ref(2), epoch=2)
    for pack in manifest.packs:
        bench.disk.unlink(pack.path)
    assert bench.keeper.resolve(before(3, (3, 2, 1))).epoch == 1
