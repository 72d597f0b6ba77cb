"""Admission, forgetting, and what is answered on purpose: each of these faults is found by the test that is named beside it."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.coordinator import test_fleet_state, test_leader, test_lines
from tests.coordinator.conftest import Agreed

from snapline.coordinator.leader import core
from snapline.coordinator.leader.hosts.admission import Admission
from snapline.coordinator.leader.hosts.failure_detector import HostRemoval
from snapline.coordinator.leader.hosts.host_sessions import HostSessions
from snapline.coordinator.leader.modes.checkpoint_ledger import Ledger
from snapline.coordinator.state import fleet_state
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import ALIVE, OperationResult
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages.host_messages import Join

Patch = Callable[[pytest.MonkeyPatch], None]


def admitted_before_the_probe(patch: pytest.MonkeyPatch) -> None:
    """Whoever says Join is committed for ever."""
    joined = Admission.on_joined

    def mutant(self: Admission, number: int, join: Join) -> None:
        joined(self, number, join)
        session = self._host_sessions.opened(number)
        if session is not None and join.host not in self._shared.state.image.hosts:
            self._propose(session)

    patch.setattr(Admission, "on_joined", mutant)


def all_new_runs_are_probed(patch: pytest.MonkeyPatch) -> None:
    """Streams that never read their probe gather."""
    joined = Admission.on_joined

    def mutant(self: Admission, number: int, join: Join) -> None:
        host_sessions = self._host_sessions
        others, host_sessions._sessions = host_sessions._sessions, {}
        joined(self, number, join)
        host_sessions._sessions = {**others, **host_sessions._sessions}

    patch.setattr(Admission, "on_joined", mutant)


def nobody_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Records stay for ever."""
    patch.setattr(HostRemoval, "evaluate", lambda self: None)


def needed_hosts_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A host that is lost is forgotten although its agents have not moved."""

    def mutant(self: FleetView, host: str) -> bool:
        return host in self.image.hosts and self.image.hosts[host].state != ALIVE

    patch.setattr(FleetView, "may_forget", mutant)


def starts_begin_anew(patch: pytest.MonkeyPatch) -> None:
    """G9: a host that was forgotten gets a start that it had."""

    def mutant(self: FleetView, kind: op.ForgetHosts) -> OperationResult:
        for host in kind.hosts:
            self.image.hosts.pop(host, None)
        return OperationResult("applied")

    patch.setattr(fleet_state, "forget_hosts", mutant)


def an_old_epoch_is_answered_as_new(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "why_not_advanced", lambda self: "")


def a_fleet_that_has_ended_takes_any_host_for_its_own(patch: pytest.MonkeyPatch) -> None:
    original = Admission._refusal_of

    def refusal_of(self: Admission, *arguments: Any) -> str:
        return "" if self._shared.state.image.outcome else original(self, *arguments)

    patch.setattr(Admission, "_refusal_of", refusal_of)


def a_stranger_that_comes_late_is_turned_away(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HostSessions, "send_off", lambda self, session: self.reject_session(session, "ended", is_final=True))


def who_was_over_is_refused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core, "OVER", "never")


def by_rules(test: Callable[[Agreed], None]) -> Callable[[], None]:
    return lambda: test(Agreed())


FOUND_BY: dict[Patch, Callable[[], None]] = {
    admitted_before_the_probe: test_leader.test_a_host_that_sees_another_store_is_turned_away_for_good_and_nothing_is_committed_for_it,
    all_new_runs_are_probed: test_leader.test_of_a_host_one_new_run_is_probed_at_a_time,
    nobody_is_forgotten: test_leader.test_a_host_that_is_over_is_forgotten_after_ten_minutes,
    needed_hosts_are_forgotten: by_rules(test_fleet_state.test_what_is_forgotten_is_over_and_has_no_agents),
    starts_begin_anew: by_rules(test_fleet_state.test_a_host_that_was_forgotten_starts_above_all_that_were),
    an_old_epoch_is_answered_as_new: test_lines.test_a_line_that_is_held_back_says_by_whose_checkpoints,
    a_fleet_that_has_ended_takes_any_host_for_its_own: test_leader.test_a_host_of_another_fleet_that_comes_after_the_end_is_turned_away_and_hears_both_names,
    who_was_over_is_refused: test_leader.test_who_was_over_when_it_asked_hears_nothing,
    a_stranger_that_comes_late_is_turned_away: test_leader.test_a_host_that_comes_back_after_the_end_hears_of_it,
}


@pytest.mark.parametrize("mutant", FOUND_BY, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_found(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        FOUND_BY[mutant]()
