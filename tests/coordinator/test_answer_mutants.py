"""Faults put into what the coordinator answers on purpose: each must be found by the test that pins what it breaks."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.coordinator import test_leader, test_lines

from snapline.coordinator.leader import core
from snapline.coordinator.leader.hosts.admission import Admission
from snapline.coordinator.leader.hosts.host_sessions import HostSessions
from snapline.coordinator.leader.modes.checkpoint_ledger import Ledger

Patch = pytest.MonkeyPatch


def an_old_epoch_is_answered_as_new(patch: Patch) -> None:
    patch.setattr(Ledger, "why_not_advanced", lambda self: "")


def a_fleet_that_has_ended_takes_any_host_for_its_own(patch: Patch) -> None:
    original = Admission._refusal_of

    def refusal_of(self: Admission, *arguments: Any) -> str:
        return "" if self._shared.state.image.outcome else original(self, *arguments)

    patch.setattr(Admission, "_refusal_of", refusal_of)


def a_stranger_that_comes_late_is_turned_away(patch: Patch) -> None:
    patch.setattr(HostSessions, "send_off", lambda self, session: self.reject_session(session, "ended", is_final=True))


def who_was_over_is_refused(patch: Patch) -> None:
    patch.setattr(core, "OVER", "never")


@pytest.mark.parametrize(
    ("mutant", "found_by"),
    [
        (an_old_epoch_is_answered_as_new, test_lines.test_a_line_that_is_held_back_says_by_whose_checkpoints),
        (
            a_fleet_that_has_ended_takes_any_host_for_its_own,
            test_leader.test_a_host_of_another_fleet_that_comes_after_the_end_is_turned_away_and_hears_both_names,
        ),
        (who_was_over_is_refused, test_leader.test_who_was_over_when_it_asked_hears_nothing),
        (a_stranger_that_comes_late_is_turned_away, test_leader.test_a_host_that_comes_back_after_the_end_hears_of_it),
    ],
)
def test_the_mutant_is_found(mutant: Callable[[Patch], None], found_by: Callable[[], None], monkeypatch: Patch) -> None:
    found_by()
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        found_by()
