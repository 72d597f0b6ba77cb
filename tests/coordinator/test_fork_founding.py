"""What a fork's coordinator begins with, and that its fleet starts from the snapshot it was made of, or not at all."""

import os
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from tests.coordinator.bench import Bench

from snapline import failpoints
from snapline.coordinator.leader import events as ev
from snapline.coordinator.raft.dump import decode_dump
from snapline.coordinator.raft.journal import SqliteJournal
from snapline.coordinator.raft.node import DUMP_FILE, JOURNAL_FILE
from snapline.coordinator.service.backup import (
    FORK_SCRATCH_FOLDER,
    NUMBERS_STEP,
    create_fork_log,
    fork_initial_state,
    restored_state,
)
from snapline.coordinator.service.fleet_answers import forked_from, history
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import FORMING, REFUSED, RUNNING
from snapline.coordinator.state.fleet_state import FleetState
from snapline.errors import DamagedDataError
from snapline.messages import host_messages as msg
from snapline.storage.disk.object_disk import open_disk
from snapline.storage.disk.store_files import LogMark
from snapline.storage.packs.checkpoint import AgentCheckpoint, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.store.store import Store
from snapline.storage.transfer.forking import ForkOrder, write_fork

DIGEST = b"d" * 32
EPOCH, PLAN = 7, 3


def parent_store(folder: Path, protocol: str = "chandy-lamport", **about: object) -> Store:
    """Epoch 7 of agents a0, a1, a2 and a5; a2 is not made yet in it."""
    store = Store.create(folder / "parent")
    agents = ("a0", "a1", "a2", "a5")
    blobs = [
        (x, encode_checkpoint(AgentCheckpoint(agent=x, kind="m:A", epoch=EPOCH, is_unborn=x == "a2"))) for x in agents
    ]
    pack = store.write_pack(writer="h1.4", epoch=EPOCH, blobs=blobs)
    lines = [
        agent_line(x, pack=0, kind="m:A", host="h1", incarnation=PLAN, is_unborn=x.name == "a2")
        for x in store.read_pack_index(pack)
    ]
    metadata = Metadata(
        epoch=EPOCH, fleet="f", cluster=store.store_id, plan=PLAN, protocol=protocol, hosts={"h1": 4, "h2": 9},
        channel_state_messages=2, **about,  # type: ignore[arg-type]
    )  # fmt: skip
    store.publish(EPOCH, store.write_manifest(Manifest(metadata, lines, [pack])))
    return store


def fork_of(parent: Store, folder: Path, *, is_live: bool = False) -> Store:
    order = ForkOrder(
        name="other", parent_name="f", is_live=is_live, created="2026-01-01T00:00:00Z", fleet="f",
        config_hash=DIGEST.hex(), gone=["a3", "a4"],
    )  # fmt: skip
    return write_fork(parent, EPOCH, open_disk(str(folder / "fork")), order, keys=None)


def state_of(fork: Store) -> FleetState:
    record = fork.fork_record()
    assert record is not None
    root = fork.read_ref(EPOCH)
    return fork_initial_state(record, root, fork.read_manifest(root, epoch=EPOCH))


@pytest.fixture
def fork(tmp_path: Path) -> Store:
    return fork_of(parent_store(tmp_path), tmp_path)


class Forked(Bench):
    """A leader of a fork."""

    def __init__(self, state: FleetState, hosts_expected: int = 2) -> None:
        self.first = state
        super().__init__(hosts_expected, agents=5)

    def start_leader(self, client: str = "leader") -> None:
        if self.first is not None:
            self.state, self.first = self.first, None  # type: ignore[assignment]  # once
        super().start_leader(client)

    def join(
        self,
        host: str,
        instance: str = "",
        *,
        digest: bytes = DIGEST,
        plan: int = 0,
        fleet: str = "f",
        parts: tuple[str, ...] = (),
    ) -> int:
        return super().join(host, instance, digest=digest, plan=plan, fleet=fleet, parts=parts)


# ---- the state ------------------------------------------------------------------------------------------------------


def test_it_begins_with_the_snapshot_and_its_agents(fork: Store) -> None:
    state = state_of(fork)
    image = state.image
    assert (state.phase, state.newest_complete(), image.begun, state.plan_number) == (FORMING, EPOCH, EPOCH, PLAN)
    assert (image.cluster, image.name, image.definition_digest) == (fork.store_id, "f", DIGEST)
    assert state.members_of(EPOCH) == ["a0", "a1", "a5"] and image.epochs[EPOCH].unborn == ["a2"]
    assert list(image.gone) == ["a3", "a4"] and image.forgotten_start == 9
    assert not state.is_defined and not state.is_fork_without_epoch
    assert state_of(fork).freeze() == state.freeze(), "all replicas make the same"
    assert FleetState.restore(state.freeze()).image == image


def test_places_in_vectors_stay_what_they_were_and_none_is_used_again(tmp_path: Path) -> None:
    ordinals = {"a0": 4, "a1": 1, "a2": 9, "a5": 0}
    image = state_of(fork_of(parent_store(tmp_path, "hmnr", ordinals=ordinals, next_ordinal=12), tmp_path)).image
    assert {agent: record.ordinal for agent, record in image.agents.items()} == ordinals
    assert image.next_ordinal == 12


def test_a_record_that_contradicts_its_epoch_is_found(fork: Store, tmp_path: Path) -> None:
    record = fork.fork_record()
    assert record is not None
    manifest = fork.read_manifest(fork.read_ref(EPOCH))
    with pytest.raises(DamagedDataError, match="contradict each other about agent 'a1'"):
        fork_initial_state(msgspec.structs.replace(record, gone=["a1"]), "r", manifest)
    about = msgspec.structs.replace(manifest.metadata, protocol="bcs")
    with pytest.raises(DamagedDataError, match="contradict each other about agent 'a0'"):
        fork_initial_state(record, "r", msgspec.structs.replace(manifest, metadata=about))


# ---- the fleet starts -----------------------------------------------------------------------------------------------


def test_the_first_plan_starts_from_the_snapshot_when_all_hosts_are_there(fork: Store) -> None:
    bench = Forked(state_of(fork))
    bench.attach("h1")
    assert bench.state.is_defined and bench.state.plan is None
    bench.attach("h2")
    plan = next(x for x in bench.directives("h2") if isinstance(x, msg.Plan))
    assert (plan.number, plan.line_epoch, plan.line_root, plan.begun_epoch) == (
        PLAN + 1,
        EPOCH,
        fork.read_ref(EPOCH),
        EPOCH,
    )
    assert [(x.agent, x.is_unborn, x.incarnation) for x in plan.agents] == [
        ("a0", False, PLAN + 1), ("a1", False, PLAN + 1), ("a2", True, PLAN + 1), ("a5", False, PLAN + 1),
    ]  # fmt: skip
    assert bench.state.image.hosts["h1"].start == 10
    bench.apply_plan("h1", "h2")
    assert bench.state.phase == RUNNING and bench.snapshot("h1", "h2") == EPOCH + 1
    assert history(bench.state).recoveries == (), "the start of a fork is no recovery"
    bench.say("h1", msg.AgentFailed("a0", PLAN + 1, "it raised"))
    assert [recovery.line_epoch for recovery in history(bench.state).recoveries] == [EPOCH + 1]


def test_an_id_of_an_agent_that_has_left_is_not_used_again(fork: Store) -> None:
    bench = Forked(state_of(fork))
    bench.start_fleet("h1", "h2")
    bench.say("h1", msg.ReserveAgents(1, PLAN + 1, (msg.AgentKind("a3", "m:A"),)))
    answer = bench.last("h1")
    assert isinstance(answer, msg.AgentsReserved) and "never used again" in answer.refused


def test_a_leader_that_dies_before_the_first_plan_leaves_the_fork_as_it_was(fork: Store) -> None:
    bench = Forked(state_of(fork))
    bench.attach("h1")
    bench.start_leader("second")
    bench.start_fleet("h1", "h2")
    assert bench.state.plan is not None and bench.state.plan.line_epoch == EPOCH


def test_another_definition_than_the_one_it_was_made_for_is_turned_away(fork: Store) -> None:
    bench = Forked(state_of(fork))
    number = bench.join("h1", digest=b"e" * 32)
    told = bench.heard[number][-1]
    assert isinstance(told, msg.TurnedAway) and told.is_final and "another definition of fleet" in told.reason
    other = op.DefineFleet(fork.store_id, "f", "p", 0, 0, b"e" * 32, 5)
    assert bench.state.apply(op.Operation(1, "c", 1, other)).status == REFUSED


@pytest.mark.parametrize("is_live", [False, True])
def test_hosts_are_told_whether_effects_are_refused(is_live: bool, tmp_path: Path) -> None:
    bench = Forked(state_of(fork_of(parent_store(tmp_path), tmp_path, is_live=is_live)))
    bench.attach("h1")
    welcome = next(x for x in bench.directives("h1") if isinstance(x, msg.Welcome))
    assert welcome.refuses_effects is not is_live
    told = forked_from(bench.state)
    assert told is not None and (told.name, told.parent_name, told.epoch, told.is_live) == (
        "other",
        "f",
        EPOCH,
        is_live,
    )


def test_a_fork_whose_snapshot_is_damaged_ends_and_never_starts_from_initial_states(fork: Store) -> None:
    bench = Forked(state_of(fork))
    bench.damaged[EPOCH] = "manifests/x"
    for host in ("h1", "h2"):
        bench.attach(host)
    assert (bench.state.phase, bench.count(op.CommitPlan)) == ("failed", 0)
    assert "make the fork again" in bench.state.image.ending


def test_a_running_fork_that_loses_its_only_line_ends(fork: Store) -> None:
    bench = Forked(state_of(fork))
    bench.start_fleet("h1", "h2")
    start = bench.state.image.hosts["h1"].start
    bench.say("h1", msg.AgentFailed("a0", PLAN + 1, "it raised"))
    bench.say("h1", msg.PlanRefused(bench.state.plan_number, start, EPOCH, "packs/x", "flipped"))
    assert bench.state.phase == "failed" and bench.count(op.CommitPlan) == 2
    refused = op.CommitPlan(bench.state.plan_number, 0, ("h1",), "x")
    assert bench.state.apply(op.Operation(1, "c", 1, refused)).status == REFUSED


def test_the_snapshot_itself_releases_no_outputs_and_the_next_epoch_comes_after_it(fork: Store) -> None:
    """What the snapshot holds as pending is the parent's: its own release of that epoch has it."""
    bench = Forked(state_of(fork))
    bench.emitted = {EPOCH: {"a0": 3}, EPOCH + 1: {"a0": 5}}
    bench.start_fleet("h1", "h2")
    assert bench.given(ev.ReleaseEpoch) == 0
    bench.snapshot("h1", "h2")
    (release,) = [x for x in bench.commands if isinstance(x, ev.ReleaseEpoch)]
    assert (release.epoch, [x.epoch for x in release.ancestors]) == (EPOCH + 1, [EPOCH])


def test_a_backup_of_a_fork_is_restored_as_a_fork(fork: Store) -> None:
    bench = Forked(state_of(fork))
    bench.start_fleet("h1", "h2")
    restored = FleetState.restore(restored_state(bench.state.freeze(), fork).state)
    assert restored.image.fork == bench.state.image.fork and restored.newest_complete() == EPOCH
    assert restored.plan_number == PLAN + 1 + NUMBERS_STEP and not restored.is_fork_without_epoch


# ---- the log --------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_a_replica_founds_its_log_once_and_marks_nothing_before_it_is_there(
    fork: Store, tmp_path: Path, no_sync: None
) -> None:
    folder = tmp_path / "c1"
    folder.mkdir()
    assert create_fork_log(folder, fork, node="c1")
    assert (folder / DUMP_FILE).exists() and not (folder / FORK_SCRATCH_FOLDER).exists() and fork.log_marks() == {}
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert not create_fork_log(folder, fork, node="c1")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_replica_that_lost_its_log_makes_none(fork: Store, tmp_path: Path, no_sync: None) -> None:
    (tmp_path / "c1").mkdir()
    fork.add_log_mark("c1", LogMark("lost", True))
    assert not create_fork_log(tmp_path / "c1", fork, node="c1")
    assert create_fork_log(tmp_path / "c2", fork, node="c2")


def test_a_store_that_is_no_forks_founds_nothing(tmp_path: Path) -> None:
    assert not create_fork_log(tmp_path, parent_store(tmp_path), node="c1")


def test_a_replica_that_comes_when_the_snapshot_is_deleted_makes_none(fork: Store, tmp_path: Path) -> None:
    fork.delete_epoch(EPOCH)
    assert not create_fork_log(tmp_path / "c3", fork, node="c3")


class DiedError(BaseException):
    """The process ended here."""


def test_a_crash_anywhere_in_the_founding_is_made_good(fork: Store, tmp_path: Path, no_sync: None) -> None:
    for moment in range(1000):
        folder = tmp_path / f"c-{moment}"
        folder.mkdir()
        if not _dies(folder, fork, moment):
            assert moment > 10
            return
        assert fork.log_marks() == {}
        assert not (folder / JOURNAL_FILE).exists() or (folder / DUMP_FILE).exists()
        create_fork_log(folder, fork, node="c1")
        dump = decode_dump((folder / DUMP_FILE).read_bytes())
        assert FleetState.restore(dump.state).image == state_of(fork).image
        journal = SqliteJournal(folder / JOURNAL_FILE, cluster=fork.store_id, node="c1", fail=_fail)
        assert [(entry[1], entry[2] > 0) for entry in journal[:]] == [(1, False), (2, True)]
        journal.abandon()
    raise AssertionError("a founding has more failpoints than expected")


def _fail(reason: str) -> NoReturn:
    raise AssertionError(reason)


def _dies(folder: Path, fork: Store, moment: int) -> bool:
    """Whether a founding passes so many failpoints; it ends at that one."""
    left = moment

    def die(point: str) -> None:
        nonlocal left
        if left == 0:
            raise DiedError(point)
        left -= 1

    failpoints.install(die)
    try:
        create_fork_log(folder, fork, node="c1")
    except DiedError:
        return True
    finally:
        failpoints.install(None)
    return False
