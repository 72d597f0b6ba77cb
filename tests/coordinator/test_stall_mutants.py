"""Faults put into the rules about hosts that hold the fleet up: for each, a test of `test_stalls.py` fails."""

from collections.abc import Callable

import pytest
from tests.coordinator import test_stalls as rules
from tests.coordinator.bench import SECOND

from snapline.coordinator.leader import fleet_end as stop_question
from snapline.coordinator.leader import recovery_plans
from snapline.coordinator.leader.fleet_end import StopQuestion
from snapline.coordinator.leader.hosts import failure_detector
from snapline.coordinator.leader.hosts.failure_detector import NetworkCut, Pair, Partitions, Running, StandbyHosts
from snapline.coordinator.leader.hosts.host_sessions import Attached, HostSession
from snapline.coordinator.leader.recovery_plans import PlanAnswers, Plans
from snapline.coordinator.state.fleet_records import PlanRecord
from snapline.messages.host_messages import Heartbeat, StopEvaluated

Patch = pytest.MonkeyPatch
NEVER_NS = 10**18


def nobody_decides_about_cuts(patch: Patch) -> None:
    patch.setattr(failure_detector, "CUT_NS", NEVER_NS)


def only_ids_decide(patch: Patch) -> None:
    """Of each pair the larger id goes, whoever is cut from more."""

    def mutant(self: Partitions, found: dict[Pair, NetworkCut]) -> dict[str, str]:
        return {max(pair): f"cut from {min(pair)} for 2.0 s" for pair in found}

    patch.setattr(Partitions, "_choose", mutant)


def idle_links_count(patch: Patch) -> None:
    known = Partitions._partitions

    def mutant(self: Partitions) -> dict[Pair, NetworkCut]:
        return {pair: NetworkCut(cut.since_ns, True) for pair, cut in known(self).items()}

    patch.setattr(Partitions, "_partitions", mutant)


def one_pair_at_a_time(patch: Patch) -> None:
    """Each recovery is for one host alone."""
    choose = Partitions._choose
    patch.setattr(Partitions, "_choose", lambda self, found: dict(list(choose(self, found).items())[:1]))


def cuts_count_before_the_fleet_runs(patch: Patch) -> None:
    evaluate = Partitions.evaluate

    def mutant(self: Partitions) -> None:
        self._running = Running(self._shared.state.plan_number, 1)
        evaluate(self)

    patch.setattr(Partitions, "evaluate", mutant)


def words_of_any_run_count(patch: Patch) -> None:
    def mutant(self: Partitions, plan: PlanRecord, host: str, peer: str, start: int) -> HostSession | None:
        return self._host_sessions.attached_session(peer) if peer in plan.hosts and peer != host else None

    patch.setattr(Partitions, "_other", mutant)


def who_was_put_out_is_used_at_once(patch: Patch) -> None:
    patch.setattr(StandbyHosts, "usable", lambda self, hosts: hosts)


def who_was_put_out_is_waited_for(patch: Patch) -> None:
    patch.setattr(StandbyHosts, "is_evicted", lambda self, host: False)


def the_grace_does_not_protect(patch: Patch) -> None:
    patch.setattr(StandbyHosts, "may_be_evicted", lambda self, host: True)


def spare_for_ever(patch: Patch) -> None:
    def mutant(self: StandbyHosts, host: str) -> bool:
        return bool(self._shared.state.image.hosts[host].spare)

    patch.setattr(StandbyHosts, "_is_kept_away", mutant)


def lateness_of_the_leader_counts_for_cuts(patch: Patch) -> None:
    evaluate = Partitions.evaluate

    def mutant(self: Partitions) -> None:
        for session in self._host_sessions._sessions.values():
            if isinstance(session.stage, Attached):
                session.beaten_ns = min(session.beaten_ns, session.stage.heard_ns) - 5 * SECOND
        if self._running is not None:
            self._running = Running(self._running.plan, self._running.since_ns - 5 * SECOND)
        evaluate(self)

    patch.setattr(Partitions, "evaluate", mutant)


def plans_are_waited_for_for_ever(patch: Patch) -> None:
    patch.setattr(recovery_plans, "ANSWER_NS", NEVER_NS)


def nobody_answers_and_all_are_put_out(patch: Patch) -> None:
    def mutant(self: Plans, plan: PlanRecord) -> None:
        late = self._answers.overdue(plan, [host for host in plan.hosts if self._has_applied(plan, host)])
        if late:
            self._standby_hosts.evict(late)

    patch.setattr(Plans, "_evict_overdue_hosts", mutant)


def patience_never_grows(patch: Patch) -> None:
    patch.setattr(recovery_plans, "DOUBLINGS_MAX", 0)


def patience_never_shrinks(patch: Patch) -> None:
    patch.setattr(PlanAnswers, "applied", PlanAnswers.stop_waiting)


def loading_does_not_count(patch: Patch) -> None:
    overdue = PlanAnswers.overdue

    def mutant(self: PlanAnswers, plan: PlanRecord, answered: list[str]) -> dict[str, str]:
        for host in plan.hosts:
            session = self._host_sessions.attached_session(host)
            if session is not None:
                session.heartbeat = Heartbeat(1)
        return overdue(self, plan, answered)

    patch.setattr(PlanAnswers, "overdue", mutant)


def steps_of_any_plan_count(patch: Patch) -> None:
    overdue = PlanAnswers.overdue

    def mutant(self: PlanAnswers, plan: PlanRecord, answered: list[str]) -> dict[str, str]:
        for host in plan.hosts:
            session = self._host_sessions.attached_session(host)
            if session is not None:
                steps = session.heartbeat.steps_loaded
                session.heartbeat = Heartbeat(1, plan=plan.number, steps_loaded=steps)
        return overdue(self, plan, answered)

    patch.setattr(PlanAnswers, "overdue", mutant)


def lateness_of_the_leader_counts_for_plans(patch: Patch) -> None:
    patch.setattr(PlanAnswers, "shift", lambda self, late_ns: None)


def one_host_is_asked_for_ever(patch: Patch) -> None:
    patch.setattr(stop_question, "ANSWER_NS", NEVER_NS)


def late_answers_are_dropped(patch: Patch) -> None:
    reached = StopQuestion.on_stop_evaluated

    def mutant(self: StopQuestion, session: HostSession, message: StopEvaluated) -> None:
        asked = self._asked.get(session.id)
        if asked is not None and not self._is_overdue(asked):
            reached(self, session, message)

    patch.setattr(StopQuestion, "on_stop_evaluated", mutant)


def only_the_last_epoch_asked_about_is_kept(patch: Patch) -> None:
    patch.setattr(StopQuestion, "epochs_read", ())


def lateness_of_the_leader_counts_for_questions(patch: Patch) -> None:
    patch.setattr(StopQuestion, "shift", lambda self, late_ns: None)


MUTANTS: list[tuple[Callable[[Patch], None], Callable[[], None]]] = [
    (nobody_decides_about_cuts, rules.test_of_a_cut_pair_the_larger_id_goes_and_its_agents_move),
    (only_ids_decide, rules.test_who_is_cut_from_more_peers_goes),
    (idle_links_count, rules.test_a_link_that_nothing_waits_for_is_left_alone),
    (one_pair_at_a_time, rules.test_a_network_that_falls_apart_is_decided_at_once),
    (cuts_count_before_the_fleet_runs, rules.test_a_cut_counts_from_when_the_fleet_runs),
    (words_of_any_run_count, rules.test_words_of_another_plan_or_of_another_run_do_not_count),
    (who_was_put_out_is_used_at_once, rules.test_the_plan_does_not_wait_for_who_was_put_out_nor_use_it_when_it_is_back_before),
    (who_was_put_out_is_waited_for, rules.test_a_network_that_falls_apart_is_decided_at_once),
    (the_grace_does_not_protect, rules.test_nobody_is_put_out_twice_within_the_rejoin_grace),
    (spare_for_ever, rules.test_a_spare_host_is_used_again_after_a_time),
    (lateness_of_the_leader_counts_for_cuts, rules.test_a_leader_that_did_not_run_suspects_no_link_for_that),
    (plans_are_waited_for_for_ever, rules.test_a_host_that_never_applies_the_plan_counts_as_failed),
    (nobody_answers_and_all_are_put_out, rules.test_a_plan_that_nobody_answers_is_made_anew_for_all_and_each_time_waited_for_twice_as_long),
    (patience_never_grows, rules.test_a_plan_that_nobody_answers_is_made_anew_for_all_and_each_time_waited_for_twice_as_long),
    (patience_never_shrinks, rules.test_a_plan_that_was_applied_in_time_is_waited_for_as_long_as_at_first_the_next_time),
    (loading_does_not_count, rules.test_a_host_that_gets_on_with_loading_is_waited_for),
    (steps_of_any_plan_count, rules.test_steps_under_an_older_plan_are_no_answer),
    (lateness_of_the_leader_counts_for_plans, rules.test_a_leader_that_did_not_run_finds_no_answer_overdue_for_that),
    (one_host_is_asked_for_ever, rules.test_a_host_that_does_not_answer_whether_to_stop_is_replaced_by_the_next),
    (late_answers_are_dropped, rules.test_a_late_answer_counts),
    (only_the_last_epoch_asked_about_is_kept, rules.test_nobody_is_asked_twice_at_once_and_the_epochs_that_are_asked_about_are_kept),
    (lateness_of_the_leader_counts_for_questions, rules.test_a_leader_that_did_not_run_asks_nobody_else_for_that),
]  # fmt: skip


@pytest.mark.parametrize(("mutant", "rule"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_a_mutant_is_found(
    mutant: Callable[[Patch], None], rule: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        rule()
