"""What the coordinator knows of local recovery: its definition, eras, membership that plans keep, repeated creations, floors of logs."""

from pathlib import Path

import msgspec
import pytest
from tests.coordinator.bench import Bench
from tests.coordinator.conftest import Agreed
from tests.coordinator.test_fork_founding import DIGEST, Forked, fork_of, parent_store, state_of
from tests.storage.making import make_manifest, make_store, write_packs
from tests.storage.simulated_disk import SimulatedDisk

from snapline.coordinator.leader import events as ev
from snapline.coordinator.service.store_keeper import StoreKeeper
from snapline.coordinator.state import fleet_records
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import REFUSED, UNCHANGED, FleetImage, decode_image
from snapline.coordinator.state.fleet_state import FleetState
from snapline.coordinator.state.fleet_view import FleetView, has_fallen_back, lineage_of
from snapline.errors import UsageError
from snapline.messages import host_messages as msg
from snapline.protos.v1 import operation_pb2
from snapline.storage.disk.layout import manifest_path
from snapline.storage.log.log_record import CommitPart, LogBatch, LogName
from snapline.storage.packs.manifest import Metadata
from snapline.storage.store.store import Store


@pytest.fixture
def local(agreed: Agreed) -> Agreed:
    agreed.recovery = "local"
    return agreed


def local_bench() -> Bench:
    bench = Bench()
    bench.definition = msgspec.structs.replace(bench.definition, protocol="chandy-lamport", recovery="local")
    return bench


# ---- the definition ---------------------------------------------------------------------------------------------------

REFUSALS = [
    ("locally", "chandy-lamport", 'recovery is "global" or "local", not \'locally\''),
    ("local", "koo-toueg", "recovery=\"local\" needs the protocol 'chandy-lamport', not 'koo-toueg'"),
]


@pytest.mark.parametrize(("recovery", "protocol", "reason"), REFUSALS)
def test_other_kinds_of_recovery_are_refused(agreed: Agreed, recovery: str, protocol: str, reason: str) -> None:
    assert agreed.refused(op.DefineFleet("c", "f", protocol, 0, 0, b"d", 2, recovery=recovery)) == reason
    bench = Bench()
    bench.definition = msgspec.structs.replace(bench.definition, protocol=protocol, recovery=recovery)
    number = bench.attach("h1")
    assert bench.heard[number][-1] == msg.TurnedAway(f"this fleet cannot be run: {reason}", True)


def test_the_definition_of_a_host_reaches_the_state() -> None:
    bench = local_bench()
    bench.start_fleet("h1", "h2")
    assert bench.state.image.recovery == "local"


def test_a_fork_has_the_recovery_of_its_definition(tmp_path: Path) -> None:
    bench = Forked(state_of(fork_of(parent_store(tmp_path), tmp_path)))
    bench.definition = msgspec.structs.replace(bench.definition, protocol="chandy-lamport", recovery="local")
    bench.start_fleet("h1", "h2")
    image = bench.state.image
    assert (image.definition_digest, image.recovery, image.era) == (DIGEST, "local", 0)
    assert sorted(image.agents) == ["a0", "a1", "a2", "a5"]


def test_entries_hosts_and_images_of_earlier_releases_mean_global_recovery(agreed: Agreed) -> None:
    agreed.start("h1")
    image = msgspec.msgpack.decode(agreed.state.freeze())
    del image["recovery"], image["era"], image["agents"]["a0"]["parent"]
    assert decode_image(msgspec.msgpack.encode(image)) == agreed.state.image
    entry = operation_pb2.Operation(version=1, client="c", sequence=1)
    entry.define_fleet.protocol, entry.define_fleet.agents = "koo-toueg", 1
    state = FleetState()
    state.apply(op.decode_operation(entry.SerializeToString()))
    assert state.image.agents_defined == 1 and state.image.recovery == "global"
    bench = Bench()
    bench.definition = msgspec.structs.replace(bench.definition, recovery="")
    bench.start_fleet("h1", "h2")
    assert bench.state.image.recovery == FleetImage().recovery == "global"


# ---- eras ---------------------------------------------------------------------------------------------------------------


def test_an_era_begins_with_each_restore(local: Agreed) -> None:
    local.start("h1")
    epoch = local.epoch()
    local.plan("h1")
    assert local.state.image.era == 0
    local.do(op.Restore(2, epoch, ("h1",), "asked for", request="mine"))
    assert local.state.image.era == 3
    local.plan("h1")
    assert (local.state.plan_number, local.state.image.era) == (4, 3)
    assert local.try_(op.Restore(4, epoch, ("h1",), "asked for", request="mine")).status == UNCHANGED
    assert local.state.image.era == 3, "the restore had been made before"


def test_recoveries_after_a_restore_do_not_begin_an_era_again(local: Agreed) -> None:
    """Commits of the new era are kept, although the recovery line is older than epochs of the history before."""
    local.start("h1", "h2")
    first = local.epoch()
    for _ in range(2):
        local.epoch()
    local.do(op.Restore(1, first, ("h1", "h2"), "asked for", request="mine"))
    local.confirm()
    local.lose("h2")
    local.plan("h1")
    assert (local.state.plan_number, local.state.image.era) == (3, 2)


def test_hosts_learn_the_era_from_plans() -> None:
    bench = local_bench()
    bench.start_fleet("h1", "h2")
    epoch = bench.snapshot("h1", "h2")
    bench.feed(ev.RestoreRequested(7, "mine", epoch, "on purpose"))
    bench.pass_time(1)
    plans = [x for x in bench.directives("h1") if isinstance(x, msg.Plan)]
    assert [(plan.number, plan.era) for plan in plans] == [(1, 0), (2, 2)]


def before(local: Agreed, epoch: int) -> list[tuple[int, bool]] | None:
    found = lineage_of(local.state.image, epoch)
    return None if found is None else [(x.epoch, x.is_condemned) for x in found]


def test_outputs_of_a_condemned_epoch_stay_released(local: Agreed) -> None:
    """Recoveries undo nothing that an epoch contains, so they do not abandon the epoch. Hosts no longer have its outputs."""
    local.start("h1", "h2")
    first, second = local.epoch(), local.epoch()
    local.do(op.CondemnEpoch(second, "packs/x", "damaged"))
    local.lose("h2")
    local.plan("h1")
    third = local.epoch()
    assert before(local, third) == [(second, True), (first, False)]
    assert not has_fallen_back(local.state.image, third, second)
    local.do(op.Restore(2, first, ("h1",), "asked for", request="mine"))
    local.confirm()
    assert before(local, first) == [], "the fleet's first plan began at the initial states"
    fourth = local.epoch()
    assert before(local, fourth) == [(first, False)] and has_fallen_back(local.state.image, fourth, first)


def test_the_first_epoch_of_an_era_follows_its_line_after_any_number_of_recoveries(local: Agreed) -> None:
    local.start("h1")
    for _ in range(fleet_records.PLANS_KEPT + 1):
        local.plan("h1")
    first = local.epoch()
    assert before(local, first) == []
    local.do(op.Restore(local.state.plan_number, first, ("h1",), "asked for", request="mine"))
    local.confirm()
    for _ in range(fleet_records.PLANS_KEPT + 1):
        local.plan("h1")
    second = local.epoch()
    assert before(local, second) == [(first, False)]
    local.do(op.Restore(local.state.plan_number, first, ("h1",), "asked for", request="another"))
    local.confirm()
    for _ in range(fleet_records.PLANS_KEPT + 1):
        local.plan("h1")
    third = local.epoch()
    assert before(local, third) == [(first, False)]
    assert has_fallen_back(local.state.image, third, first), "from an epoch whose plan is forgotten"


# ---- agents that go on --------------------------------------------------------------------------------------------------


def incarnations(local: Agreed) -> dict[str, tuple[str, int]]:
    return {agent: (record.host, record.incarnation) for agent, record in local.state.living_agents()}


def test_only_the_agents_of_a_lost_host_start_again(local: Agreed) -> None:
    local.start("h1", "h2")
    before = incarnations(local)
    local.lose("h2")
    local.plan("h1")
    now = incarnations(local)
    assert {x for x in before if before[x][0] == "h2"} == {x for x in now if now[x] == ("h1", 2)} != set()
    assert all(now[agent] == before[agent] for agent in before if before[agent][0] == "h1")
    assert [plan.rolled_back for plan in local.state.image.plans] == [0, 2], "what the list of recoveries says"
    local.state.validate()


def test_all_start_again_where_recovery_is_global_or_on_purpose(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    agreed.lose("h2")
    agreed.plan("h1")
    assert {number for _, number in incarnations(agreed).values()} == {2}


def test_a_restore_starts_all_agents_again(local: Agreed) -> None:
    local.start("h1", "h2")
    epoch = local.epoch()
    local.do(op.Restore(1, epoch, ("h1", "h2"), "asked for", request="mine"))
    assert {number for _, number in incarnations(local).values()} == {2}


def test_a_host_that_has_not_confirmed_the_plan_before_starts_its_agents_again(local: Agreed) -> None:
    """Nobody knows whether it has loaded them."""
    local.start("h1", "h2", "h3")
    local.lose("h3")
    local.do(op.CommitPlan(1, 0, ("h1", "h2"), "h3 is lost"))
    local.do(op.ConfirmPlan(2, "h2", local.state.image.hosts["h2"].start))
    before = incarnations(local)
    local.do(op.CommitPlan(2, 0, ("h1", "h2"), "once more"))
    now = incarnations(local)
    assert all(now[x] == (before[x] if before[x][0] == "h2" else ("h1", 3)) for x in before)


def test_a_host_that_an_agent_leaves_starts_its_agents_again(local: Agreed) -> None:
    """They may depend on messages of each other that no commit contains."""
    local.start("h1", "h2")
    local.do(op.AdmitHost("h3", "h3.1", "h3:1", 0))
    before = incarnations(local)
    local.do(op.CommitPlan(1, 0, ("h1", "h2", "h3"), "they move", is_even=True, is_move=True))
    now = incarnations(local)
    left = {before[agent][0] for agent in before if now[agent][0] != before[agent][0]}
    assert left and all((now[x] == before[x]) == (before[x][0] not in left) for x in before)


def test_a_host_that_only_frozen_agents_leave_goes_on(local: Agreed) -> None:
    local.start("h1", "h2")
    before = incarnations(local)
    (moved, *others) = [agent for agent in before if before[agent][0] == "h1"]
    local.do(op.CommitPlan(1, 0, ("h1", "h2"), "it moves", is_move=True, placed={moved: "h2"}, frozen=(moved,)))
    assert incarnations(local) == {**before, moved: ("h2", 2)} and others
    plan = local.state.plan
    assert plan is not None and (plan.sources, plan.sources_since, plan.rolled_back) == (["h1"], 1, 1)


def test_a_move_names_the_agents_that_their_hosts_have_frozen_after_an_epoch() -> None:
    bench = local_bench()
    bench.start_fleet("h1", "h2")
    homes = {agent: record.host for agent, record in bench.state.living_agents()}
    moved = next(agent for agent, host in homes.items() if host == "h1")
    bench.feed(ev.MovesRequested(1, (), (), False, {moved: "h2"}))
    assert not [x for x in bench.directives("h1") if isinstance(x, msg.Quiesce) and x.frozen], "the epoch comes first"
    bench.pass_time(1)
    (epoch,) = bench.state.open_epochs()
    for host in ("h1", "h2"):
        bench.report(host, epoch)
    held = [x for x in bench.directives("h1") if isinstance(x, msg.Quiesce) and x.holds_effects]
    assert [x.frozen for x in held] == [(moved,)], "and the hosts have answered"
    assert (bench.state.plan_number, bench.state.image.begun) == (2, 1)
    now = {agent: (record.host, record.incarnation) for agent, record in bench.state.living_agents()}
    assert now == {agent: (host, 1) for agent, host in homes.items()} | {moved: ("h2", 2)}


def test_the_agents_of_a_host_with_a_failed_agent_start_again(local: Agreed) -> None:
    local.start("h1", "h2")
    local.do(op.CommitPlan(1, 0, ("h1", "h2"), "a0 failed", restarted=("h1",)))
    assert set(incarnations(local).values()) == {("h1", 2), ("h2", 1)}


def test_an_era_begins_when_commits_for_the_line_may_be_deleted(local: Agreed) -> None:
    """The second newest epoch lets commits be deleted. If it is damaged, too, an older one cannot be completed by commits."""
    local.start("h1", "h2")
    first, second, third = local.epoch(), local.epoch(), local.epoch()
    local.do(op.CondemnEpoch(third, "packs/x", "damaged"))
    local.lose("h2")
    local.plan("h1")
    assert (local.state.image.era, local.state.plan.line_epoch) == (0, second)  # type: ignore[union-attr]
    local.do(op.CondemnEpoch(second, "packs/x", "damaged"))
    local.do(op.CommitPlan(2, first, ("h1",), "another reason"))
    assert local.state.image.era == 3 and {number for _, number in incarnations(local).values()} == {3}


# ---- membership -------------------------------------------------------------------------------------------------------


def test_a_recovery_keeps_creations_and_removals_after_the_line(local: Agreed) -> None:
    local.start("h1", "h2")
    local.epoch()
    local.create("new")
    local.remove("a1")
    local.lose("h2")
    local.plan("h1")
    assert local.agents == ["a0", "a2", "a3", "new"] and local.state.has_left("a1")
    plan = local.state.plan
    assert plan is not None and [x for x, _ in local.state.placed_by(plan)] == local.agents
    assert local.state.members_of(local.epoch()) == local.agents


def test_a_recovery_from_the_initial_states_keeps_them_too(local: Agreed) -> None:
    local.start("h1")
    local.create("new")
    local.remove("a1")
    local.plan("h1", line=0)
    assert local.agents == ["a0", "a2", "a3", "new"]


def test_a_restore_undoes_them(local: Agreed) -> None:
    local.start("h1")
    epoch = local.epoch()
    local.create("new")
    local.remove("a1")
    local.do(op.Restore(1, epoch, ("h1",), "asked for"))
    assert local.agents == ["a0", "a1", "a2", "a3"] and "new" not in local.state.image.agents


def test_creations_after_a_restore_are_kept(local: Agreed) -> None:
    local.start("h1")
    epoch = local.epoch()
    local.do(op.Restore(1, epoch, ("h1",), "asked for"))
    local.do(op.ConfirmPlan(2, "h1", 1))
    local.create("new")
    local.plan("h1")
    assert local.agents == ["a0", "a1", "a2", "a3", "new"]


# ---- repeated creations -----------------------------------------------------------------------------------------------


def test_a_parent_may_ask_again_for_its_child(local: Agreed) -> None:
    local.start("h1", "h2")
    local.create("child", "h1", "a0")
    local.lose("h2")
    local.plan("h1")
    before = msgspec.structs.replace(local.state.image.agents["child"])
    again = local.create("child", "h1", "a0")
    assert (again.status, again.number) == ("applied", 2)
    assert local.state.image.agents["child"] == before and before.parent == "a0"


def test_nobody_else_may_create_an_agent_that_exists(local: Agreed) -> None:
    local.start("h1")
    for agent, parent in (("child", "a0"), ("orphan", "")):
        local.create(agent, "h1", parent)
    for agent, parent in (("child", "a1"), ("child", ""), ("orphan", "a0"), ("orphan", ""), ("a1", "a0")):
        assert "created before" in local.create(agent, "h1", parent).reason
    local.remove("child")
    assert "created before" in local.create("child", "h1", "a0").reason
    assert "no valid agent id" in local.create("other", "h1", "a 0").reason


def test_with_global_recovery_a_parent_may_not_ask_again(agreed: Agreed) -> None:
    agreed.start("h1")
    agreed.create("child", "h1", "a0")
    assert agreed.state.image.agents["child"].parent == ""
    assert "created before" in agreed.create("child", "h1", "a0").reason


def test_a_full_fleet_answers_a_repeated_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_records, "AGENTS_MAX", 5)
    local = Agreed()
    local.recovery = "local"
    local.start("h1")
    local.create("child", "h1", "a0")
    assert local.create("child", "h1", "a0").status == "applied"
    assert local.create("other", "h1", "a0").status == REFUSED


def test_a_repeated_request_is_answered_like_the_first() -> None:
    bench = local_bench()
    bench.start_fleet("h1", "h2")
    children = (msg.AgentKind("child", "m:N"),)
    bench.say("h1", msg.ReserveAgents(1, 1, children, "a0"))
    assert bench.last("h1") == msg.AgentsReserved(1, incarnation=1, ordinals=(4,))
    bench.say("h1", msg.ReserveAgents(2, 1, children, "a0"))
    assert bench.last("h1") == msg.AgentsReserved(2, incarnation=1, ordinals=(4,))
    bench.say("h2", msg.ReserveAgents(1, 1, children, "a1"))
    answer = bench.last("h2")
    assert isinstance(answer, msg.AgentsReserved) and "created before" in answer.refused


# ---- floors and deletion ----------------------------------------------------------------------------------------------


def test_floors_and_starts_that_hosts_report_reach_the_manifest() -> None:
    bench = local_bench()
    bench.start_fleet("h1", "h2")
    bench.feed(ev.SnapshotRequested(1))
    bench.report("h1", 1, log_floor=7, log_start=8)
    bench.report("h2", 1)
    (command,) = [x for x in bench.commands if isinstance(x, ev.WriteManifest)]
    assert (command.log_floors, command.log_starts) == ({"h1-1": 7}, {"h1-1": 8})


def write(store: Store, epoch: int, plan: int, **floors: int) -> str:
    manifest = make_manifest(store, epoch, write_packs(store, epoch))
    about = msgspec.structs.replace(manifest.metadata, plan=plan, log_floors={f"{x}-1": y for x, y in floors.items()})
    root = store.write_manifest(msgspec.structs.replace(manifest, metadata=about))
    store.publish(epoch, root)
    return root


@pytest.mark.parametrize("name", ["log_floors", "log_starts"])
def test_manifests_keep_floors_and_starts_and_omit_an_empty_map(name: str) -> None:
    disk = SimulatedDisk()
    store = make_store(disk)
    keeper = StoreKeeper(store, FleetView())
    for epoch, floors in ((1, {}), (2, {"h-1-3": 7})):
        command = ev.WriteManifest(epoch, 1, "", {}, (), (), (), 0, 0, 0)
        written = keeper.write_manifest(msgspec.structs.replace(command, **{name: floors}))
        assert getattr(store.read_manifest(written.root).metadata, name) == floors
        node = disk.nodes[manifest_path(written.root)]
        assert node is not None and (name.encode() in node.data) == bool(floors)


@pytest.mark.parametrize("floors", [{"h1": 1}, {"h1-1": 0}, {"h 1-1": 1}, {"h1-01": 1}])
@pytest.mark.parametrize("name", ["log_floors", "log_starts"])
def test_impossible_floors_and_starts_are_not_written(name: str, floors: dict[str, int]) -> None:
    store = make_store(SimulatedDisk())
    manifest = make_manifest(store, 1, write_packs(store, 1))
    wrong = msgspec.structs.replace(manifest, metadata=msgspec.structs.replace(Metadata(epoch=1), **{name: floors}))
    with pytest.raises(UsageError, match="no number of a batch"):
        store.write_manifest(wrong)


@pytest.mark.parametrize(("era", "wanted"), [(0, {1: [2], 2: [2, 3]}), (2, {1: [2], 2: [2, 3]}), (3, {1: [2], 2: [3]})])
def test_the_sweep_deletes_commits_that_the_second_newest_epoch_covers(era: int, wanted: dict[int, list[int]]) -> None:
    store = make_store(SimulatedDisk())
    for plan, count in ((1, 2), (2, 3)):
        for number in range(1, count + 1):
            batch = LogBatch(saved_commits=[CommitPart(number, 0, True, b"")])
            assert store.append_batch(store.prepare_batch(LogName(plan, "h1", 1), number, batch))
    epochs = {4: write(store, 4, 2, h1=2), 2: write(store, 2, 1), 3: write(store, 3, 2, h1=1)}
    keeper = StoreKeeper(store, FleetView())
    keeper.sweep_logs(ev.SweepLogs(2, {4: epochs[4]}, {}, 0))
    assert {log.plan: numbers for log, numbers in store.read_logs().items()} == {1: [1, 2], 2: [1, 2, 3]}
    keeper.sweep_logs(ev.SweepLogs(2, epochs, {}, 0, era))
    assert {log.plan: numbers for log, numbers in store.read_logs().items()} == wanted


def test_the_leader_sends_the_era_and_only_usable_epochs_with_a_sweep() -> None:
    bench = local_bench()
    bench.start_fleet("h1", "h2")
    first, second = bench.snapshot("h1", "h2"), bench.snapshot("h1", "h2")
    bench.feed(ev.RestoreRequested(7, "mine", first, "on purpose"))
    bench.pass_time(1)
    bench.apply_plan("h1", "h2")
    bench.pass_time(600)
    sweep = [x for x in bench.commands if isinstance(x, ev.SweepLogs)][-1]
    assert (sweep.era, list(sweep.epochs)) == (2, [first]) and second not in sweep.epochs
