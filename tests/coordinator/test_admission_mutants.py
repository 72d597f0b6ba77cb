"""Admission and forgetting: each of these faults is found by the tests that are named beside it."""

from collections.abc import Callable

import pytest
from tests.coordinator import test_fleet_state, test_leader
from tests.coordinator.conftest import Agreed

from snapline.coordinator.leader.hosts.admission import Admission
from snapline.coordinator.leader.hosts.failure_detector import HostRemoval
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


def by_rules(test: Callable[[Agreed], None]) -> Callable[[], None]:
    return lambda: test(Agreed())


FOUND_BY: dict[Patch, Callable[[], None]] = {
    admitted_before_the_probe: test_leader.test_nothing_is_committed_for_a_host_that_does_not_see_the_store,
    all_new_runs_are_probed: test_leader.test_of_a_host_one_new_run_is_probed_at_a_time,
    nobody_is_forgotten: test_leader.test_a_host_that_is_over_is_forgotten_after_ten_minutes,
    needed_hosts_are_forgotten: by_rules(test_fleet_state.test_what_is_forgotten_is_over_and_has_no_agents),
    starts_begin_anew: by_rules(test_fleet_state.test_a_host_that_was_forgotten_starts_above_all_that_were),
}


@pytest.mark.parametrize("mutant", FOUND_BY, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_found(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        FOUND_BY[mutant]()
