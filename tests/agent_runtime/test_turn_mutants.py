"""Faults put into turns on purpose: each must be found by the test that pins what it breaks."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.agent_runtime import test_turns as rules

from snapline.agent_runtime import context, fleet
from snapline.agent_runtime.context import Context, RareRequests
from snapline.agent_runtime.host import turns
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.storage.capture.image import Authors

Patch = pytest.MonkeyPatch


def a_state_is_not_compared(patch: Patch) -> None:
    patch.setattr(fleet, "check_declared", lambda *arguments: None)


def only_the_last_handlers_are_named(patch: Patch) -> None:
    def take(self: Any) -> Any:
        self.imaged_authors, self.authors = Authors(self.authors), {}
        return self.imaged_authors

    patch.setattr(turns._Running, "take_authors", take)


def the_second_spawn_of_an_id_is_taken(patch: Patch) -> None:
    class Forgetful(dict[str, Any]):
        def __contains__(self, key: object) -> bool:
            return False

    original = RareRequests.__init__

    def init(self: RareRequests) -> None:
        original(self)
        self.spawns = Forgetful()

    patch.setattr(RareRequests, "__init__", init)


def a_spawned_state_is_not_read_back(patch: Patch) -> None:
    patch.setattr(context, "check_state_image", lambda *arguments: None)


def of_another_type() -> None:
    rules.test_a_turn_that_leaves_a_field_of_another_type_fails_and_is_undone(rules.Runner())


def named() -> None:
    made = rules.Keeping(rules.Sum())
    rules.test_where_turns_are_not_checked_the_first_capture_names_field_and_handlers(made)


def spawned_once() -> None:
    rules.test_an_id_is_spawned_once_in_a_turn(Context("a", 1, "b", TurnEnvironment()))


def spawned_well() -> None:
    rules.test_a_spawn_is_checked_at_once(Context("a", 1, "b", TurnEnvironment()))


@pytest.mark.parametrize(
    ("mutant", "found_by"),
    [
        (a_state_is_not_compared, of_another_type),
        (only_the_last_handlers_are_named, named),
        (the_second_spawn_of_an_id_is_taken, spawned_once),
        (a_spawned_state_is_not_read_back, spawned_well),
    ],
)
def test_the_mutant_is_found(mutant: Callable[[Patch], None], found_by: Callable[[], None], monkeypatch: Patch) -> None:
    found_by()
    mutant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        found_by()
