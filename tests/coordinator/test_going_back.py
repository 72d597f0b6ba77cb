"""The replicated state: going back on purpose is one entry, and what it made void never counts again."""

from tests.coordinator.conftest import Agreed

from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import (
    CONDEMNED,
    RECOVERING,
    RECOVERY_TRIGGER,
    UNCHANGED,
    VOID,
    PlanRecord,
)


def restore(agreed: Agreed, epoch: int, *, request: str = "", drop_inputs: bool = False) -> op.Restore:
    number = agreed.state.plan_number
    return op.Restore(number, epoch, ("h1",), "test", 0, 0, request or f"op-{number}", drop_inputs)


def go_back(agreed: Agreed, epoch: int, *, drop_inputs: bool = False) -> PlanRecord:
    agreed.do(restore(agreed, epoch, drop_inputs=drop_inputs))
    plan = agreed.state.plan
    assert plan is not None
    agreed.do(op.ConfirmPlan(plan.number, "h1", 1))
    return plan


def test_epochs_above_the_target_are_void_and_the_plan_starts_from_it_in_one_entry(agreed: Agreed) -> None:
    agreed.start("h1")
    first, second, third = agreed.epoch(), agreed.epoch(), agreed.epoch()
    opened = agreed.begin()
    result = agreed.do(restore(agreed, first))
    plan = agreed.state.plan
    assert plan is not None and plan.restore is not None
    assert (result.number, result.epochs, plan.line_epoch) == (2, (opened,), first)
    assert plan.restore.voided == [second, third] and agreed.line == first and agreed.state.phase == RECOVERING
    assert [agreed.state.image.epochs[x].status for x in (second, third)] == [VOID, VOID]


def test_next_failure_does_not_go_forward_again(agreed: Agreed) -> None:
    agreed.start("h1")
    first, second = agreed.epoch(), agreed.epoch()
    go_back(agreed, first)
    assert f"epoch {first} is the line" in agreed.refused(op.CommitPlan(2, second, ("h1",), ""))
    agreed.plan("h1")
    assert agreed.state.plan is not None and agreed.state.plan.line_epoch == first


def test_void_epoch_is_neither_condemned_nor_gone_back_to(agreed: Agreed) -> None:
    agreed.start("h1")
    first, second = agreed.epoch(), agreed.epoch()
    go_back(agreed, first)
    assert "is void" in agreed.refused(restore(agreed, second))
    assert agreed.try_(op.CondemnEpoch(second, "packs/x", "flipped")).status == UNCHANGED
    assert agreed.state.image.epochs[second].status == VOID


def test_what_cannot_be_gone_back_to_is_named_with_what_can(agreed: Agreed) -> None:
    agreed.start("h1")
    epochs = [agreed.epoch() for _ in range(4)]
    agreed.do(op.ForgetEpochs((epochs[0],)))
    agreed.do(op.CondemnEpoch(epochs[1], "packs/x", "flipped"))
    opened = agreed.begin()
    assert "does not keep epoch 1 any more" in agreed.refused(restore(agreed, epochs[0]))
    assert "damaged: go back to one of epochs 3, 4" in agreed.refused(restore(agreed, epochs[1]))
    assert "not complete yet" in agreed.refused(restore(agreed, opened))
    assert "there is no epoch 99" in agreed.refused(restore(agreed, 99))
    assert agreed.state.image.epochs[epochs[1]].status == CONDEMNED


def test_same_request_under_a_later_plan_is_the_same_restore(agreed: Agreed) -> None:
    agreed.start("h1")
    first = agreed.epoch()
    agreed.do(restore(agreed, first, request="mine"))
    agreed.plan("h1")
    again = agreed.try_(restore(agreed, first, request="mine"))
    assert (again.status, again.number, agreed.state.plan_number) == (UNCHANGED, 2, 3)
    assert agreed.do(restore(agreed, first, request="yours")).number == 4


def test_restore_to_the_newest_epoch_makes_nothing_void_and_answers_a_need(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    newest = agreed.epoch()
    agreed.lose("h2")
    plan = go_back(agreed, newest)
    assert plan.restore is not None and plan.restore.voided == [] and plan.lost == ["h2"]
    assert agreed.state.image.need is None


def test_agents_born_later_are_gone_and_those_that_left_are_back(agreed: Agreed) -> None:
    agreed.start("h1")
    agreed.create("early")
    target = agreed.epoch()
    agreed.create("late")
    agreed.remove("early")
    agreed.epoch()
    go_back(agreed, target)
    assert agreed.agents == ["a0", "a1", "a2", "a3", "early"]
    assert agreed.create("late").status == "applied", "the id is free: it was never there"
    assert agreed.state.image.agents["late"].incarnation == 2, "and its incarnation was never used (G9)"


def test_dropped_inputs_stay_dropped_under_every_plan_that_starts_there(agreed: Agreed) -> None:
    agreed.start("h1")
    target = agreed.epoch()
    agreed.epoch()
    assert go_back(agreed, target, drop_inputs=True).drop_before == 2
    agreed.plan("h1")
    assert agreed.state.plan is not None and agreed.state.plan.drop_before == 2, "its owner failed again"
    later = agreed.epoch()
    agreed.plan("h1")
    assert agreed.state.plan.line_epoch == later and agreed.state.plan.drop_before == 2, (
        "where agents checkpoint alone, one may stand there as it stood on the line"
    )
    agreed.do(op.CondemnEpoch(later, "packs/x", "flipped"))
    agreed.plan("h1")
    assert agreed.state.plan.line_epoch == target and agreed.state.plan.drop_before == 2


def test_without_drop_nothing_is_dropped_and_an_older_target_brings_all_back(agreed: Agreed) -> None:
    agreed.start("h1")
    first, second = agreed.epoch(), agreed.epoch()
    assert go_back(agreed, second).drop_before == 0
    assert go_back(agreed, second, drop_inputs=True).drop_before == 3
    assert go_back(agreed, second).drop_before == 3, "who was told that an input is dropped was told the truth"
    assert go_back(agreed, first).drop_before == 0


def test_forgetting_void_epochs_hides_nothing_of_the_histories_that_stand(agreed: Agreed) -> None:
    agreed.start("h1")
    target, void = agreed.epoch(), agreed.epoch()
    go_back(agreed, target)
    agreed.epoch()
    agreed.do(op.ForgetEpochs((void,)))
    assert agreed.state.image.forgotten == 0 and void not in agreed.state.image.epochs


def test_epoch_of_a_recovery_inherits_what_its_line_drops(agreed: Agreed) -> None:
    agreed.protocol = "uncoordinated"
    agreed.start("h1")
    target = agreed.epoch()
    agreed.do(restore(agreed, target, drop_inputs=True))
    made = agreed.do(op.BeginEpoch(target, RECOVERY_TRIGGER)).number
    agreed.complete(made)
    agreed.do(op.CommitPlan(2, made, ("h1",), "again"))
    assert agreed.state.plan is not None and agreed.state.plan.drop_before == 2
