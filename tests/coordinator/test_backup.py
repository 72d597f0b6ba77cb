"""A backup is of some moment, the store is newer: what is restored stands where the lost coordinator would have gone on.

The oracle is the lost coordinator's own state: it knows all that happened after the backup. A random fleet begins and ends
epochs, creates and removes agents, loses hosts, finds epochs damaged and forgets old ones; the restored state must lead to the
same plan, and hold no number that was used.
"""

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from tests.coordinator.conftest import Agreed
from tests.coordinator.raft.marks import Marks
from tests.coordinator.raft.replicas import Cluster, Ledger, entry_of

from snapline.coordinator.raft import durability
from snapline.coordinator.raft.dump import decode_dump
from snapline.coordinator.raft.journal import SqliteJournal
from snapline.coordinator.raft.node import DUMP_FILE, JOURNAL_FILE
from snapline.coordinator.raft.raft_driver import Committed, Replica, ReplicaOptions
from snapline.coordinator.service import backup as restoring
from snapline.coordinator.service.backup import (
    NUMBERS_STEP,
    ORDINALS_STEP,
    describe_backup,
    read_backup,
    restore,
    restored_state,
    write_backup,
    write_replica,
)
from snapline.coordinator.service.leadership import MirroredMachine
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import COMPLETE, LOST, RECOVERING, RUNNING
from snapline.coordinator.state.fleet_state import FleetState
from snapline.errors import DamagedDataError, LogError, NotFoundError, UsageError
from snapline.protocols.names import is_autonomous
from snapline.storage.log.log_record import LogBatch, LogName
from snapline.storage.packs.checkpoint import AgentCheckpoint, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.store.store import Store

SEEDS = range(40)
STEPS = 60


class Fleet(Agreed):
    """A fleet state, and the store that goes with it."""

    def __init__(self, folder: Path, protocol: str = "chandy-lamport") -> None:
        super().__init__()
        self.protocol = protocol
        self.store = Store.create(folder / "store")
        self.packs: dict[int, str] = {}

    def define(self, agents: int = 4) -> None:
        self.do(op.DefineFleet(self.store.store_id, "f", self.protocol, 0, 0, b"d", agents))
        self.do(op.DefineAgents(0, tuple(f"a{n}" for n in range(agents)), ("m:A",) * agents))

    def complete(self, epoch: int, *unborn: str) -> None:
        """Complete an epoch in the store and in the log."""
        image = self.state.image
        members = dict.fromkeys([*self.state.members_of(epoch), *unborn])
        blobs = [(x, encode_checkpoint(AgentCheckpoint(agent=x, kind="m:A", epoch=epoch))) for x in members]
        pack = self.store.write_pack(writer="h1.1", epoch=epoch, blobs=blobs)
        lines = [
            agent_line(entry, pack=0, kind="m:A", host=image.agents[entry.name].host, incarnation=1,
                       is_unborn=entry.name in unborn)
            for entry in self.store.read_pack_index(pack)
        ]  # fmt: skip
        plan = self.state.plan
        assert plan is not None
        about = Metadata(
            epoch=epoch,
            created="2025-01-01T00:00:00.000Z",
            cluster=self.store.store_id,
            plan=plan.number,
            protocol=self.protocol,
            hosts={host: image.hosts[host].start for host in plan.hosts},
            config_hash=image.definition_digest.hex(),
        )
        root = self.store.write_manifest(Manifest(about, lines, [pack]))
        self.do(op.CompleteEpoch(epoch, root, unborn))
        self.store.publish(epoch, root)
        self.packs[epoch] = pack.path

    def backup(self) -> bytes:
        return self.state.freeze()

    def damage(self, epoch: int) -> None:
        (Path(self.store.location) / self.packs[epoch]).unlink()
        self.do(op.CondemnEpoch(epoch, self.packs[epoch], "vanished"))

    def forget(self, epoch: int) -> None:
        if self.try_(op.ForgetEpochs((epoch,))).epochs:
            self.store.delete_epoch(epoch)

    def spawn(self, agent: str, host: str) -> None:
        start = self.state.image.hosts[host].start
        self.do(op.CreateAgents(host, start, self.state.plan_number, (agent,), ("m:A",)))

    def retire(self, agent: str) -> None:
        host = self.state.image.agents[agent].host
        start = self.state.image.hosts[host].start
        self.do(op.RemoveAgent(host, start, self.state.plan_number, agent))

    def restart(self, host: str) -> None:
        """The host dies and comes back; the fleet recovers."""
        start = self.state.image.hosts[host].start
        self.do(op.AdmitHost(host, f"{host}-{start + 1}", f"{host}:1", start))
        self.plan(*self.state.image.hosts)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """A running fleet of four agents on two hosts; nothing is synced."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    made = Fleet(tmp_path)
    made.start("h1", "h2")
    return made


# ---- against the truth ----------------------------------------------------------------------------------------------


def live(fleet: Fleet, seed: int) -> bytes:
    """Do things to a running fleet at random; returns a backup of a random moment."""
    chance = random.Random(seed)
    backup_at = chance.randrange(STEPS)
    image = b""
    for step in range(STEPS):
        if step == backup_at:
            image = fleet.backup()
        _one_step(fleet, chance, step)
    return image


def _one_step(fleet: Fleet, chance: random.Random, step: int) -> None:
    state = fleet.state
    assert state.plan is not None
    opened, complete = state.open_epochs(), state.complete_epochs()
    living = [agent for agent, _ in state.living_agents()]
    match chance.choice(
        ("begin", "begin", "complete", "complete", "abort", "create", "remove", "lose", "damage", "forget")
    ):
        case "begin" if len(opened) < 3:
            fleet.begin()
        case "complete" if opened:
            # A creation in transit on one cut is on the next one in transit still, or received.
            before = state.image.epochs[complete[-1]].unborn if complete else []
            later = [x for x, record in state.image.agents.items() if record.born_epoch >= opened[0]]
            fleet.complete(opened[0], *[x for x in later if x in before or chance.random() < 0.5])
        case "abort" if opened:
            fleet.do(op.AbortEpoch(opened[-1], "test"))
        case "create":
            fleet.spawn(f"b{step}", chance.choice(state.plan.hosts))
        case "remove" if len(living) > 2:
            fleet.retire(chance.choice(living))
        case "lose":
            fleet.restart(chance.choice(("h1", "h2")))
        case "damage" if len(complete) > 1 and chance.random() < 0.5:
            fleet.damage(complete[-1])
            fleet.plan("h1", "h2")
        case "forget" if len(complete) > 2:
            fleet.forget(complete[0])


def started_by_a_plan(state: FleetState) -> dict[str, None]:
    """The agents that the next plan starts; `state` is changed."""
    image = state.image
    for host in ("h1", "h2"):
        record = image.hosts[host]
        state.apply(
            op.Operation(1, "test", 10**9 + len(image.requests), op.AdmitHost(host, f"new-{host}", "x:1", record.start))
        )
    kind = op.CommitPlan(state.plan_number, state.newest_complete(), ("h1", "h2"), "test")
    result = state.apply(op.Operation(1, "planner", 1, kind))
    assert not result.is_refused, result
    state.validate()
    plan = state.plan
    assert plan is not None
    return dict.fromkeys(sorted(agent for agent, _ in state.placed_by(plan)))


def check(fleet: Fleet, image: bytes) -> None:
    """The restored state leads where the lost one would have gone, with numbers of its own."""
    lost = fleet.state
    restored = restored_state(image, fleet.store)
    found = FleetState.restore(restored.state)
    assert found.phase == RECOVERING and not found.open_epochs()
    assert found.newest_complete() == lost.newest_complete()
    # What is in no manifest and in no backup is not seen: less than one number a step.
    assert found.image.begun > lost.image.begun + NUMBERS_STEP - STEPS
    assert found.plan_number > lost.plan_number + NUMBERS_STEP - STEPS
    assert found.image.next_ordinal >= lost.image.next_ordinal
    for host, record in lost.image.hosts.items():
        assert found.image.hosts[host].start > record.start + NUMBERS_STEP - STEPS
    for epoch in found.complete_epochs():
        assert fleet.store.read_ref(epoch) == found.image.epochs[epoch].root
        known = lost.image.epochs.get(epoch)
        if known is not None and known.status == COMPLETE:
            assert sorted(found.members_of(epoch)) == sorted(lost.members_of(epoch)), epoch
            assert sorted(found.image.epochs[epoch].unborn) == sorted(known.unborn)
    assert started_by_a_plan(found) == started_by_a_plan(FleetState.restore(lost.freeze()))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_restored_fleet_goes_on_where_the_lost_one_was(fleet: Fleet, seed: int) -> None:
    image = live(fleet, seed)
    if fleet.state.newest_complete() or not fleet.state.image.completed:
        check(fleet, image)


def no_steps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restoring, "NUMBERS_STEP", 0)


def nothing_is_adopted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restoring, "_with_newer", lambda state, found, skipped: (state, ()))


def removals_are_final(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restoring, "_record_membership", lambda *_: None)


def what_vanished_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restoring, "_check_known", lambda *_: None)


def ordinals_go_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restoring, "ORDINALS_STEP", 0)


@pytest.mark.parametrize(
    "mutant", [no_steps, nothing_is_adopted, removals_are_final, what_vanished_is_kept, ordinals_go_on]
)
def test_the_check_finds_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    mutant(monkeypatch)
    for seed in SEEDS:
        fleet = Fleet(tmp_path / str(seed))
        fleet.start("h1", "h2")
        image = live(fleet, seed)
        if fleet.state.newest_complete() or not fleet.state.image.completed:
            try:
                check(fleet, image)
            except (AssertionError, UsageError, NotFoundError):
                return
    pytest.fail("no seed finds it")


# ---- by hand --------------------------------------------------------------------------------------------------------


def test_a_backup_of_a_fleet_at_work(fleet: Fleet) -> None:
    first = fleet.epoch()
    fleet.begin()
    image = fleet.backup()
    found = FleetState.restore(restored_state(image, fleet.store).state)
    assert (found.phase, found.newest_complete(), found.open_epochs()) == (RECOVERING, first, ())
    assert (found.plan_number, found.image.begun) == (1 + NUMBERS_STEP, 2 + NUMBERS_STEP)
    assert found.image.next_ordinal == 4 + ORDINALS_STEP
    assert found.image.need is not None and "restored from a backup" in found.image.need.reason


def test_restoring_twice_gives_the_same_bytes(fleet: Fleet) -> None:
    """Replicas are restored one by one."""
    fleet.epoch()
    image = fleet.backup()
    fleet.spawn("b", "h1")
    fleet.epoch()
    assert restored_state(image, fleet.store) == restored_state(image, fleet.store)


def test_a_second_loss_goes_on_above_the_first(fleet: Fleet) -> None:
    """The same old backup again: what was done after the first restore is in the store."""
    image = fleet.backup()
    fleet.state = FleetState.restore(restored_state(image, fleet.store).state)
    fleet.plan("h1", "h2", line=0)
    fleet.epoch()
    again = FleetState.restore(restored_state(image, fleet.store).state)
    assert (
        again.plan_number > fleet.state.plan_number + NUMBERS_STEP - 1 and again.image.begun > fleet.state.image.begun
    )


def test_a_restored_fleet_with_local_recovery_goes_back_to_its_newest_epoch(fleet: Fleet) -> None:
    """A creation, removal or restore after the backup may be unknown, so commits of before are void, and membership is that of the epoch."""
    fleet.state.image.recovery = "local"
    fleet.epoch()
    fleet.spawn("after", "h1")
    found = FleetState.restore(restored_state(fleet.backup(), fleet.store).state)
    assert found.image.recovery == "local" and found.image.era == found.plan_number + 1
    fleet.state, fleet.log = found, []
    for host in ("h1", "h2"):
        start = found.image.hosts[host].start
        fleet.do(op.AdmitHost(host, f"{host}-2", "x:1", start))
    fleet.plan("h1", "h2")
    assert "after" not in found.image.agents and found.image.era == found.plan_number
    fleet.spawn("next", "h1")
    fleet.plan("h1", "h2")
    assert "next" in found.image.agents


def test_hosts_that_joined_later_are_known_from_the_store(fleet: Fleet) -> None:
    image = fleet.backup()
    fleet.do(op.AdmitHost("h3", "h3-1", "h3:1", 0))
    fleet.lose("h2")
    fleet.plan("h1", "h3", line=0)
    fleet.spawn("c", "h3")
    fleet.epoch()
    found = FleetState.restore(restored_state(image, fleet.store).state)
    assert found.plan is not None and found.plan.hosts == ["h1", "h3"]
    assert (found.image.hosts["h3"].start, found.image.hosts["h3"].state) == (1 + NUMBERS_STEP, LOST)
    assert found.image.agents["c"].host == "h3"


def test_numbers_go_on_above_those_of_host_logs(fleet: Fleet) -> None:
    """A log may be all that is left of a plan or a host; under its name inputs would be refused, since it gets sealed."""
    fleet.epoch()
    image = fleet.backup()
    for log in (LogName(70, "h1", 50), LogName(60, "h9", 3)):
        fleet.store.append_batch(fleet.store.prepare_batch(log, 1, LogBatch()))
    found = FleetState.restore(restored_state(image, fleet.store).state)
    assert found.plan_number == 70 + NUMBERS_STEP
    assert (found.image.hosts["h1"].start, found.image.hosts["h9"].start) == (50 + NUMBERS_STEP, 3 + NUMBERS_STEP)


def test_no_token_of_a_backup_is_good_any_more_and_the_book_is_kept(fleet: Fleet) -> None:
    """It may have been revoked since."""
    fleet.epoch()
    fleet.do(op.MakeToken("ada", "admin", bytes(32), 1 << 62))
    fleet.do(op.RecordCall("ada", "admin", b"", "", "ForgetHost", "host h9", "allowed"))
    image = fleet.backup()
    fleet.do(op.RevokeToken("ada"))
    found = FleetState.restore(restored_state(image, fleet.store).state).image
    assert found.tokens == {} and [each.call for each in found.calls] == ["ForgetHost"]


def test_the_history_of_recoveries_is_kept_without_the_start(fleet: Fleet) -> None:
    fleet.epoch()
    fleet.restart("h1")
    fleet.restart("h2")
    found = FleetState.restore(restored_state(fleet.backup(), fleet.store).state)
    assert [plan.number for plan in found.image.plans] == [2 + NUMBERS_STEP, 3 + NUMBERS_STEP]


def test_autonomous_fleets_adopt_no_agent_that_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place in the vectors of the others' checkpoints is in no manifest."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    fleet = Fleet(tmp_path, "hmnr")
    assert is_autonomous(fleet.protocol)
    fleet.start("h1", "h2")
    first = fleet.epoch()
    image = fleet.backup()
    second = fleet.epoch()
    restored = restored_state(image, fleet.store)
    assert restored.adopted == (second,)
    fleet.spawn("b", "h1")
    third = fleet.epoch()
    restored = restored_state(image, fleet.store)
    assert restored.adopted == () and "created after the backup" in restored.skipped[third]
    assert FleetState.restore(restored.state).newest_complete() == first


def test_a_store_without_a_line_is_refused(fleet: Fleet) -> None:
    """Going back to the initial states would undo all that the fleet has done."""
    epoch = fleet.epoch()
    image = fleet.backup()
    fleet.store.delete_epoch(epoch)
    with pytest.raises(UsageError, match="no snapshot that the fleet could go back to"):
        restored_state(image, fleet.store)


def test_the_first_epoch_may_be_newer_than_the_backup_and_damaged(fleet: Fleet) -> None:
    image = fleet.backup()
    assert FleetState.restore(restored_state(image, fleet.store).state).newest_complete() == 0
    epoch = fleet.epoch()
    (Path(fleet.store.location) / fleet.packs[epoch]).unlink()
    with pytest.raises(UsageError, match=rf"epoch {epoch}: .*packs"):
        restored_state(image, fleet.store)


def test_a_fleet_that_has_not_begun_has_nothing_to_restore(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.define()
    with pytest.raises(UsageError, match="had not begun"):
        restored_state(fleet.backup(), fleet.store)


def test_a_fleet_that_has_ended_stays_so(fleet: Fleet) -> None:
    epoch = fleet.epoch()
    fleet.do(op.EndFleet(epoch, "stopped", "done"))
    found = FleetState.restore(restored_state(fleet.backup(), fleet.store).state)
    assert found.phase == "finished" and found.image.need is None


# ---- files ----------------------------------------------------------------------------------------------------------


def test_a_backup_file_is_read_back(fleet: Fleet, tmp_path: Path) -> None:
    fleet.epoch()
    written = write_backup(tmp_path / "backup", fleet.backup(), fleet.store.store_id)
    assert read_backup(tmp_path / "backup") == written
    described = describe_backup(written)
    assert (described["phase"], described["last_complete_epoch"], described["agents"]) == (RUNNING, 1, 4)


def test_every_changed_byte_of_a_backup_is_found(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "backup"
    write_backup(path, fleet.backup(), fleet.store.store_id)
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x40]) + whole[position + 1 :])
        with pytest.raises(DamagedDataError, match="backup"):
            read_backup(path)
    for end in (0, 1, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(DamagedDataError, match="backup"):
            read_backup(path)


def test_an_image_that_cannot_be_read_is_no_backup(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="image"):
        write_backup(tmp_path / "backup", b"nothing", "c")
    assert not (tmp_path / "backup").exists()
    with pytest.raises(NotFoundError):
        read_backup(tmp_path / "backup")


def test_a_folder_in_use_or_another_store_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    write_backup(tmp_path / "backup", fleet.backup(), fleet.store.store_id)
    with pytest.raises(UsageError, match="not empty"):
        restore(tmp_path / "backup", Path(fleet.store.location), store=fleet.store.location, node="c1")
    Store.create(tmp_path / "other")
    with pytest.raises(UsageError, match=f"belongs to store {fleet.store.store_id}"):
        restore(tmp_path / "backup", tmp_path / "new", store=str(tmp_path / "other"), node="c1")
    assert not (tmp_path / "new").exists()


def test_replicas_that_differ_differ_in_their_term(tmp_path: Path) -> None:
    """Raft compares entries by index and term: two dumps under one term would stay different for ever."""
    terms = {}
    for name, state in (("a", b"one"), ("b", b"one"), ("c", b"two")):
        write_replica(tmp_path / name, state, cluster="s", node="c1", marks=Marks())
        terms[name] = decode_dump((tmp_path / name / DUMP_FILE).read_bytes()).last[2]
    assert terms["a"] == terms["b"] != terms["c"]


def test_journal_and_dump_fit_together(tmp_path: Path) -> None:
    write_replica(tmp_path, b"state", cluster="s", node="c2", marks=Marks())
    dump = decode_dump((tmp_path / DUMP_FILE).read_bytes())
    journal = SqliteJournal(tmp_path / JOURNAL_FILE, cluster="s", node="c2")
    assert (dump.cluster, dump.node, dump.state) == ("s", "c2", b"state")
    assert journal[:] == [dump.previous, dump.last]
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (dump.last[2], None)
    assert journal.getRaftCommitIndex() == dump.last[1] and not journal.is_new
    journal._destroy()


async def test_a_replica_begins_with_the_restored_state(fleet: Fleet, tmp_path: Path) -> None:
    fleet.epoch()
    write_backup(tmp_path / "backup", fleet.backup(), fleet.store.store_id)
    told = restore(tmp_path / "backup", tmp_path / "new", store=fleet.store.location, node="c1")
    machine = MirroredMachine()
    options = ReplicaOptions(
        node="c1",
        members={"c1": "127.0.0.1:1"},
        folder=tmp_path / "new",
        cluster=fleet.store.store_id,
        marks=fleet.store,
    )
    replica = Replica(options, machine, on_alarm=lambda text: pytest.fail(text))
    machine.post_with(replica.driver.call_on_loop)
    await replica.start()
    try:
        await replica.driver.wait_ready(timeout_s=15.0)
        assert machine.freeze() == restored_state(fleet.backup(), fleet.store).state
        assert (told["line_epoch"], told["next_plan"]) == (1, 2 + NUMBERS_STEP)
        assert machine.state.plan_number == 1 + NUMBERS_STEP
    finally:
        await replica.stop()


# ---- several replicas -----------------------------------------------------------------------------------------------


class EndedError(BaseException):
    """Instead of the end of the process."""


async def three_from(folder: Path, *states: bytes) -> Cluster:
    """Replicas of a register, each from a state of its own."""
    cluster = Cluster(folder, len(states))
    for number, state in enumerate(states, 1):
        write_replica(folder / f"c{number}", state, cluster="tests", node=f"c{number}", marks=cluster.marks)
    return await cluster.start()


def register_of(value: int) -> bytes:
    made = Ledger()
    made.registers["x"] = value
    return made.freeze()


async def test_three_replicas_of_one_backup_go_on_together(tmp_path: Path) -> None:
    cluster = await three_from(tmp_path, *[register_of(7)] * 3)
    try:
        replica = cluster.replicas["c1"]
        await replica.driver.wait_ready(timeout_s=15.0)
        assert [machine.registers for machine in cluster.machines.values()] == [{"x": 7}] * 3
        outcome = await replica.driver.propose(entry_of("client", 1, "x", ("write", 8)), timeout_s=10.0)
        assert isinstance(outcome, Committed), outcome
        for each in cluster.replicas.values():
            await each.driver.wait_ready(timeout_s=10.0)
        assert [machine.registers for machine in cluster.machines.values()] == [{"x": 8}] * 3
    finally:
        for name in cluster.names:
            await cluster.stop_one(name)


async def test_a_replica_restored_from_something_else_is_found_out(tmp_path: Path) -> None:
    """Its log would otherwise fit, and it would answer from another state for ever."""
    reasons: list[str] = []

    def end(reason: str) -> NoReturn:
        reasons.append(reason)
        raise EndedError(reason)

    durability.set_fail_stop_hook(end)
    cluster = await three_from(tmp_path, register_of(7), register_of(7), register_of(8))
    try:
        async with asyncio.timeout(20.0):
            while not reasons:
                await asyncio.sleep(0.05)
        assert "contradicts committed entry" in reasons[0]
    finally:
        for name in cluster.names:
            await cluster.stop_one(name)
        durability.set_fail_stop_hook(None)
