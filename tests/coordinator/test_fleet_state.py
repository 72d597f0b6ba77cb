"""The replicated core, rule by rule."""

from tests.coordinator.conftest import Agreed

from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import (
    CLIENTS_MAX,
    EPOCHS_OPEN_MAX,
    RECOVERING,
    RECOVERY_TRIGGER,
    RESULTS_KEPT,
    RUNNING,
    UNCHANGED,
)
from snapline.coordinator.state.fleet_state import FleetState

# ---- definition and hosts ---------------------------------------------------------------------------------------------


def test_a_fleet_is_defined_once_and_in_order(agreed: Agreed) -> None:
    agreed.do(op.DefineFleet("c", "f", "p", 0, 0, b"d", 3))
    assert agreed.try_(op.DefineFleet("c2", "f", "p", 0, 0, b"d", 3)).status == UNCHANGED
    assert "another fleet" in agreed.refused(op.DefineFleet("c", "g", "p", 0, 0, b"e", 3))
    assert "0 is next" in agreed.refused(op.DefineAgents(1, ("b",), ("m:A",)))
    agreed.do(op.DefineAgents(0, ("a", "b"), ("m:A", "m:A")))
    assert agreed.try_(op.DefineAgents(0, ("a", "b"), ("m:A", "m:A"))).status == UNCHANGED
    assert "defined twice" in agreed.refused(op.DefineAgents(2, ("a",), ("m:A",)))
    assert "more agents" in agreed.refused(op.DefineAgents(2, ("c", "d"), ("m:A", "m:A")))
    assert not agreed.state.is_defined
    agreed.do(op.DefineAgents(2, ("c",), ("m:A",)))
    assert agreed.state.is_defined


def test_the_same_run_of_a_host_keeps_its_start_and_a_new_one_gets_the_next(agreed: Agreed) -> None:
    assert agreed.do(op.AdmitHost("h1", "i1", "x:1", 0)).number == 1
    assert agreed.try_(op.AdmitHost("h1", "i1", "x:1", 0)).number == 1
    assert agreed.do(op.AdmitHost("h1", "i2", "x:2", 1)).number == 2
    assert "newer process" in agreed.refused(op.AdmitHost("h1", "i1", "x:1", 0))


def test_a_late_admission_does_not_replace_a_newer_run(agreed: Agreed) -> None:
    agreed.do(op.AdmitHost("h1", "new", "x:1", 0))
    assert "has start 1 by now" in agreed.refused(op.AdmitHost("h1", "old", "x:2", 0))


def test_what_is_forgotten_is_over_and_has_no_agents(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    agreed.do(op.AdmitHost("h3", "i", "x:3", 0))
    agreed.do(op.AdmitHost("h4", "i", "x:4", 0))
    agreed.lose("h2")
    agreed.lose("h4")
    for host in ("h1", "h2", "h3"):
        assert f"host {host} is alive" in agreed.refused(op.ForgetHosts(("h4", host)))
    agreed.do(op.ForgetHosts(("h4", "nobody")))
    assert list(agreed.state.image.hosts) == ["h1", "h2", "h3"]
    assert agreed.try_(op.ForgetHosts(("h4",))).status == UNCHANGED


def test_a_host_that_was_forgotten_starts_above_all_that_were(agreed: Agreed) -> None:
    agreed.do(op.AdmitHost("h1", "i1", "x:1", 0))
    agreed.do(op.AdmitHost("h1", "i2", "x:1", 1))
    agreed.do(op.LoseHosts((op.LostHost("h1", 2),), "gone"))
    agreed.do(op.ForgetHosts(("h1",)))
    assert agreed.do(op.AdmitHost("h1", "i3", "x:1", 0)).number == 3
    assert agreed.do(op.AdmitHost("h2", "i1", "x:2", 0)).number == 3


def test_a_new_run_of_a_living_host_means_that_the_old_one_is_lost(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    epoch = agreed.begin()
    result = agreed.do(op.AdmitHost("h2", "h2-2", "x:2", 1))
    assert result.epochs == (epoch,) and agreed.state.phase == RECOVERING
    assert agreed.state.image.need is not None and agreed.state.image.need.lost == ["h2"]


def test_a_host_that_was_only_slow_comes_back_under_its_start(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    agreed.lose("h2")
    assert agreed.do(op.AdmitHost("h2", "h2-1", "h2:1", 0)).number == 1
    assert agreed.state.phase == RECOVERING, "what it did meanwhile is void all the same"


def test_a_loss_of_an_older_run_changes_nothing(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    agreed.lose("h2")
    agreed.do(op.AdmitHost("h2", "h2-2", "x:2", 1))
    assert agreed.try_(op.LoseHosts((op.LostHost("h2", 1),), "late")).status == UNCHANGED


def spare(agreed: Agreed, host: str) -> None:
    lost = op.LostHost(host, agreed.state.image.hosts[host].start)
    agreed.do(op.LoseHosts((lost,), f"host {host}: cut from h1", is_spare=True))


def test_a_host_that_was_put_out_stays_spare_until_a_plan_may_use_it_or_it_is_started_anew(agreed: Agreed) -> None:
    agreed.start("h1", "h2", "h3")
    hosts = agreed.state.image.hosts
    spare(agreed, "h2")
    agreed.do(op.AdmitHost("h2", "h2-1", "h2:1", 1))
    assert (hosts["h2"].state, hosts["h2"].spare) == ("alive", "host h2: cut from h1")
    agreed.plan("h1", "h3")
    assert hosts["h2"].spare
    agreed.plan("h1", "h2", "h3")
    assert not hosts["h2"].spare
    agreed.lose("h3")
    assert not hosts["h3"].spare, "nobody put it out"
    agreed.plan("h1", "h2")
    spare(agreed, "h2")
    agreed.do(op.AdmitHost("h2", "h2-2", "h2:1", 1))
    assert not hosts["h2"].spare


def test_losing_a_host_without_agents_needs_no_plan(agreed: Agreed) -> None:
    agreed.start("h1", "h2", "h3", agents=2)
    epoch = agreed.begin()
    agreed.lose("h3")
    assert agreed.state.phase == RUNNING and agreed.state.open_epochs() == (epoch,)


# ---- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_names_what_it_expects(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    first = agreed.epoch()
    agreed.epoch()
    agreed.lose("h2")
    assert "plan 1 is current" in agreed.refused(op.CommitPlan(0, 2, ("h1",), ""))
    assert "epoch 2 is the line" in agreed.refused(op.CommitPlan(1, first, ("h1",), ""))
    assert "not alive" in agreed.refused(op.CommitPlan(1, 2, ("h1", "h2"), ""))
    assert "needs hosts" in agreed.refused(op.CommitPlan(1, 2, (), ""))
    agreed.plan("h1")
    assert agreed.state.phase == RUNNING


def test_a_plan_is_done_when_all_its_hosts_have_applied_it(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    agreed.lose("h2")
    agreed.do(op.AdmitHost("h2", "h2-2", "x:2", 1))
    agreed.do(op.CommitPlan(1, 0, ("h1", "h2"), ""))
    agreed.do(op.ConfirmPlan(2, "h1", 1))
    assert agreed.state.phase == RECOVERING
    assert "this run" in agreed.refused(op.ConfirmPlan(2, "h2", 1))
    assert "no longer" in agreed.refused(op.ConfirmPlan(1, "h2", 2))
    assert agreed.try_(op.ConfirmPlan(2, "h1", 1)).status == UNCHANGED
    agreed.do(op.ConfirmPlan(2, "h2", 2))
    assert agreed.state.phase == RUNNING


def test_agents_stay_where_their_host_is_and_the_others_spread(agreed: Agreed) -> None:
    agreed.start("h1", "h2", "h3", agents=6)
    assert list(agreed.places().values()) == ["h1", "h2", "h3", "h1", "h2", "h3"]
    agreed.lose("h2")
    agreed.plan("h1", "h3")
    assert list(agreed.places().values()) == ["h1", "h1", "h3", "h1", "h3", "h3"]


def test_every_plan_raises_every_incarnation(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    for expected in (1, 2, 3):
        assert {record.incarnation for _, record in agreed.state.living_agents()} == {expected}
        agreed.plan("h1", "h2")


def test_a_plan_ends_open_epochs(agreed: Agreed) -> None:
    agreed.start("h1")
    epochs = (agreed.begin(), agreed.begin())
    result = agreed.do(op.CommitPlan(1, 0, ("h1",), "agent failed"))
    assert result.epochs == epochs and agreed.state.open_epochs() == ()
    assert "not open" in agreed.refused(op.CompleteEpoch(1, "r"))


def test_no_epoch_begins_before_the_plan_is_done(agreed: Agreed) -> None:
    agreed.start("h1")
    agreed.do(op.CommitPlan(1, 0, ("h1",), ""))
    assert "recovering" in agreed.refused(op.BeginEpoch(0, "hand"))


# ---- epochs -----------------------------------------------------------------------------------------------------------


def test_an_epoch_has_one_outcome(agreed: Agreed) -> None:
    agreed.start("h1")
    first, second = agreed.begin(), agreed.begin()
    agreed.complete(first)
    assert agreed.try_(op.CompleteEpoch(first, "root-1")).status == UNCHANGED
    assert "not open" in agreed.refused(op.CompleteEpoch(first, "other"))
    assert "not open" in agreed.refused(op.AbortEpoch(first, ""))
    agreed.do(op.AbortEpoch(second, "late"))
    assert "not open" in agreed.refused(op.CompleteEpoch(second, "root-2"))
    assert "not open" in agreed.refused(op.AbortEpoch(second, ""))


def test_begin_is_compare_and_set_and_bounded(agreed: Agreed) -> None:
    agreed.start("h1")
    agreed.begin()
    assert "epoch 1 has begun" in agreed.refused(op.BeginEpoch(0, "hand"))
    for _ in range(EPOCHS_OPEN_MAX - 1):
        agreed.begin()
    assert "are open" in agreed.refused(op.BeginEpoch(EPOCHS_OPEN_MAX, "period"))


def test_epochs_complete_in_any_order_and_the_newest_is_the_line(agreed: Agreed) -> None:
    agreed.start("h1")
    first, second = agreed.begin(), agreed.begin()
    agreed.complete(second)
    assert agreed.line == second
    agreed.complete(first)
    assert agreed.line == second


def test_a_condemned_epoch_is_no_line_and_its_plan_is_replaced(agreed: Agreed) -> None:
    agreed.start("h1")
    first, second = agreed.epoch(), agreed.epoch()
    agreed.do(op.CommitPlan(1, second, ("h1",), ""))
    agreed.do(op.CondemnEpoch(second, "packs/x", "flipped"))
    assert agreed.line == first and agreed.state.phase == RECOVERING
    assert "no longer" in agreed.refused(op.ConfirmPlan(2, "h1", 1))
    agreed.plan("h1")
    plan = agreed.state.plan
    assert plan is not None and (plan.line_epoch, plan.condemned) == (first, [second])
    agreed.do(op.CondemnEpoch(first, "packs/y", "flipped"))
    assert agreed.state.phase == RUNNING, "the line of a plan that is done is needed no more"
    agreed.plan("h1")
    assert agreed.state.plan is not None and agreed.state.plan.line_epoch == 0


def test_an_epoch_of_a_recovery_ends_with_the_line_that_it_stands_on(agreed: Agreed) -> None:
    agreed.protocol = "uncoordinated"
    agreed.start("h1")
    line = agreed.epoch()
    agreed.do(op.CommitPlan(1, line, ("h1",), ""))
    epoch = agreed.do(op.BeginEpoch(line, RECOVERY_TRIGGER)).number
    assert agreed.do(op.CondemnEpoch(line, "packs/x", "flipped")).epochs == (epoch,)
    assert not agreed.state.open_epochs()


def test_the_line_is_never_forgotten(agreed: Agreed) -> None:
    agreed.start("h1")
    epochs = [agreed.epoch() for _ in range(3)]
    assert agreed.do(op.ForgetEpochs(tuple(epochs))).epochs == (1, 2)
    agreed.begin()
    assert agreed.try_(op.ForgetEpochs((3, 4, 5))).status == UNCHANGED


def test_an_epoch_that_is_named_twice_is_forgotten_once(agreed: Agreed) -> None:
    """Leaders proposed so once, and such an entry is applied by every replica whenever it starts."""
    agreed.start("h1")
    first, second, _ = [agreed.epoch() for _ in range(3)]
    assert agreed.do(op.ForgetEpochs((first, second, second))).epochs == (first, second)


def test_the_line_of_an_open_plan_is_never_forgotten(agreed: Agreed) -> None:
    agreed.start("h1")
    first = agreed.epoch()
    agreed.do(op.CommitPlan(1, first, ("h1",), ""))
    assert agreed.try_(op.ForgetEpochs((first,))).status == UNCHANGED


# ---- agents that come and go --------------------------------------------------------------------------------------------


def test_a_new_agent_is_in_the_epochs_that_begin_after_it(agreed: Agreed) -> None:
    agreed.start("h1")
    first = agreed.begin()
    result = agreed.create("new")
    assert (result.begun, result.epochs, result.number) == (first, (first,), 1)
    second = agreed.begin()
    assert "new" not in agreed.state.members_of(first) and "new" in agreed.state.members_of(second)


def test_a_leaving_agent_is_in_the_epochs_begun_before(agreed: Agreed) -> None:
    agreed.start("h1")
    first = agreed.begin()
    assert agreed.remove("a1").epochs == (first,)
    second = agreed.begin()
    assert "a1" in agreed.state.members_of(first) and "a1" not in agreed.state.members_of(second)
    assert agreed.state.has_left_before("a1", second) and not agreed.state.has_left_before("a1", first)
    assert agreed.remove("a1").status == UNCHANGED


def test_creations_and_removals_after_the_line_are_void(agreed: Agreed) -> None:
    agreed.start("h1")
    agreed.create("early")
    agreed.remove("a0")
    agreed.epoch()
    agreed.create("late")
    agreed.remove("a1")
    agreed.plan("h1")
    assert sorted(agreed.agents) == ["a1", "a2", "a3", "early"]
    assert agreed.create("late").number == 2, "a void id may be used again, under a later incarnation"
    assert "never used again" in agreed.create("a0").reason


def test_line_0_holds_the_initial_agents_alone(agreed: Agreed) -> None:
    agreed.start("h1")
    agreed.create("new")
    agreed.remove("a0")
    agreed.plan("h1")
    assert agreed.agents == ["a0", "a1", "a2", "a3"]


def test_an_agent_that_is_unborn_on_the_line_exists_again(agreed: Agreed) -> None:
    agreed.start("h1")
    epoch = agreed.begin()
    agreed.create("named")
    agreed.create("unnamed")
    agreed.complete(epoch, "named")
    for _ in range(2):
        agreed.plan("h1")
        plan = agreed.state.plan
        assert plan is not None and plan.unborn == ["named"]
        assert sorted(agreed.agents) == ["a0", "a1", "a2", "a3", "named"]
    # Its creation may be in transit, or wait in its parent's outbox: then the parent asks again, and gets what is there.
    before = agreed.state.image.agents["named"]
    assert agreed.create("named").number == 3
    assert agreed.state.image.agents["named"] == before
    assert agreed.create("unnamed").number == 3
    assert "created before" in agreed.create("unnamed").reason


def test_an_unborn_agent_that_was_never_created_is_refused(agreed: Agreed) -> None:
    agreed.start("h1")
    epoch = agreed.begin()
    assert "never created" in agreed.refused(op.CompleteEpoch(epoch, "r", ("ghost",)))


def test_ids_of_the_long_gone_stay_known(agreed: Agreed) -> None:
    agreed.start("h1")
    agreed.create("short")
    agreed.epoch()
    agreed.remove("short")
    epochs = [agreed.epoch() for _ in range(3)]
    agreed.do(op.ForgetEpochs((1, *epochs[:1])))
    assert "short" not in agreed.state.image.agents and "short" in agreed.state.image.gone
    assert agreed.state.has_left_before("short", epochs[-1])
    assert "never used again" in agreed.create("short").reason
    for epoch in epochs[1:]:
        agreed.do(op.CondemnEpoch(epoch, "x", "y"))
    agreed.plan("h1")
    assert agreed.create("short").number == 2, "from the initial states everything is void"


def test_requests_of_replaced_plans_and_runs_are_refused(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    agreed.plan("h1", "h2")
    assert "plan 1 has been replaced" in agreed.refused(op.CreateAgents("h1", 1, 1, ("x",), ("m:X",)))
    assert "run of host h1 is over" in agreed.refused(op.CreateAgents("h1", 2, 2, ("x",), ("m:X",)))
    assert "not on host h1" in agreed.refused(op.RemoveAgent("h1", 1, 2, "a1"))
    assert "no valid agent id" in agreed.refused(op.CreateAgents("h1", 1, 2, ("x y",), ("m:X",)))


def test_the_plan_that_hosts_are_told_does_not_change_with_creations(agreed: Agreed) -> None:
    agreed.start("h1")
    plan = agreed.state.plan
    assert plan is not None
    before = [agent for agent, _ in agreed.state.placed_by(plan)]
    agreed.create("new")
    agreed.remove("a0")
    assert [agent for agent, _ in agreed.state.placed_by(plan)] == before == ["a0", "a1", "a2", "a3"]


# ---- requests, the end, images ------------------------------------------------------------------------------------------


def test_a_request_is_done_once() -> None:
    agreed = Agreed()
    agreed.start("h1")
    request = op.Operation(5, "h1.1.reserve", 1, op.CreateAgents("h1", 1, 1, ("x",), ("m:X",)))
    first = agreed.state.apply(request)
    assert first.status == "applied" and agreed.state.apply(request) == first
    other = op.Operation(5, "h1.1.reserve", 1, op.CreateAgents("h1", 1, 1, ("y",), ("m:X",)))
    assert agreed.state.apply(other).reason == "request 1 of h1.1.reserve was another one before"
    again = FleetState.restore(agreed.state.freeze())
    assert again.apply(request) == first, "the table survives a restart"


def test_requests_older_than_the_window_are_refused() -> None:
    state = FleetState()
    for number in range(2, RESULTS_KEPT + 2):
        state.apply(op.Operation(1, "c", number, op.AbortEpoch(number, "")))
    assert "too old" in state.apply(op.Operation(1, "c", 1, op.AdmitHost("h1", "i", "a", 0))).reason
    assert not state.image.hosts


def test_the_client_longest_silent_is_forgotten_first() -> None:
    state = FleetState()
    for number in range(CLIENTS_MAX):
        state.apply(op.Operation(1, f"c{number}", 1, op.AbortEpoch(1, "")))
    state.apply(op.Operation(1, "c0", 2, op.AbortEpoch(1, "")))
    state.apply(op.Operation(1, "new", 1, op.AbortEpoch(1, "")))
    assert "c0" in state.image.requests and "c1" not in state.image.requests


def test_the_end_aborts_what_is_open_and_is_final(agreed: Agreed) -> None:
    agreed.start("h1")
    complete, opened = agreed.epoch(), agreed.begin()
    assert "not complete" in agreed.refused(op.EndFleet(opened, "stopped", ""))
    assert agreed.do(op.EndFleet(complete, "stopped", "done")).epochs == (opened,)
    assert agreed.state.phase == "finished"
    assert agreed.try_(op.EndFleet(0, "failed", "")).status == UNCHANGED
    assert "ended" in agreed.refused(op.CommitPlan(1, complete, ("h1",), ""))
    assert "ended" in agreed.refused(op.AdmitHost("h9", "i", "a", 0))
    assert agreed.try_(op.LoseHosts((op.LostHost("h1", 1),), "")).status == "applied"
    assert agreed.state.phase == "finished"


# ---- logged protocols -------------------------------------------------------------------------------------------------


def logged(agreed: Agreed, protocol: str) -> None:
    for host in ("h1", "h2"):
        agreed.do(op.AdmitHost(host, f"{host}-1", f"{host}:1", 0))
    agreed.do(op.DefineFleet("c", "f", protocol, 0, 0, b"d", 2, policy="every 2s", log_bytes_max=7))
    agreed.do(op.DefineAgents(0, ("a", "b"), ("m:A", "m:A")))
    agreed.plan("h1", "h2")


def test_an_epoch_for_a_recovery_begins_while_the_fleet_recovers_and_becomes_its_line(agreed: Agreed) -> None:
    logged(agreed, "uncoordinated")
    agreed.lose("h2")
    assert "recovering" in agreed.refused(op.BeginEpoch(0, "hand"))
    epoch = agreed.do(op.BeginEpoch(0, "recovery")).number
    agreed.complete(epoch)
    agreed.do(op.CommitPlan(1, epoch, ("h1",), "test", 1, 3))
    plan = agreed.state.plan
    assert plan is not None and (plan.line_epoch, plan.rolled_back, plan.checkpoints_lost) == (epoch, 1, 3)
    assert agreed.state.image.policy == "every 2s" and agreed.state.image.log_bytes_max == 7


def test_another_loss_aborts_the_epoch_of_a_recovery(agreed: Agreed) -> None:
    logged(agreed, "hmnr")
    agreed.lose("h2")
    epoch = agreed.do(op.BeginEpoch(0, "recovery")).number
    assert agreed.lose("h1").epochs == (epoch,)
    assert agreed.state.open_epochs() == ()


def test_only_autonomous_fleets_have_epochs_for_recoveries(agreed: Agreed) -> None:
    logged(agreed, "koo-toueg")
    agreed.lose("h2")
    assert "recovering" in agreed.refused(op.BeginEpoch(0, "recovery"))


def test_ordinals_are_never_used_again(agreed: Agreed) -> None:
    """An agent whose creation is void takes its ordinal along: vectors on the wire may still name it."""
    agreed.start("h1", "h2", agents=3)
    agents = agreed.state.image.agents
    assert [agents[f"a{n}"].ordinal for n in range(3)] == [0, 1, 2]
    agreed.create("x")
    assert agents["x"].ordinal == 3
    agreed.lose("h2")
    agreed.plan("h1")
    assert "x" not in agents
    agreed.create("x")
    assert agents["x"].ordinal == 4


def test_an_agent_that_is_unborn_again_keeps_its_ordinal(agreed: Agreed) -> None:
    agreed.start("h1", "h2", agents=3)
    agreed.create("x")
    epoch = agreed.begin()
    agreed.complete(epoch, "x")
    agreed.lose("h2")
    agreed.plan("h1")
    agreed.create("x")
    assert agreed.state.image.agents["x"].ordinal == 3
