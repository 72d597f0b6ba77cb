"""Scenario scripts of the whole host hold: what comes in leads to these commands, in this order. And they can fail.

After a change that is meant: `python -m tests.agent_runtime.host_script --rewrite tests/scenarios/host/*.txt`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.agent_runtime import test_host_mutants as mutants
from tests.agent_runtime.host_script import renew
from tests.kit.golden import check_script

from snapline.errors import UsageError

SCENARIOS = {path.stem: path for path in (Path(__file__).resolve().parents[1] / "scenarios" / "host").glob("*.txt")}

FOUND = {
    mutants.sends_leave_after_the_record: "epoch-by-word",
    mutants.newer_stamps_do_not_wait_for_the_record: "epoch-by-stamp",
    mutants.parked_messages_are_overtaken: "parked-for-credit",
    mutants.restored_mailboxes_are_empty: "freeze",
    mutants.a_plan_keeps_the_queue_of_the_old_links: "plan-replaces-plan",
    mutants.held_sends_leave_before_the_reservation: "spawn",
}


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_the_host_does_what_the_script_says(name: str) -> None:
    assert check_script(SCENARIOS[name], renew) == ""


@pytest.mark.parametrize(("mutant", "name"), FOUND.items(), ids=lambda each: getattr(each, "__name__", each))
def test_another_host_does_something_else(
    mutant: Callable[[pytest.MonkeyPatch], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    try:
        assert check_script(SCENARIOS[name], renew) != ""
    except UsageError as error:
        assert "no host has asked for a turn" in str(error), "it goes so far that the script cannot be played"
