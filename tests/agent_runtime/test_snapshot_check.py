"""Turns whose last result has arrived when the snapshot is taken: what follows is new, but the result must be one that the code can read."""

from typing import Any

import pytest
from tests.agent_runtime.migrating import State, saved

import snapline
from snapline.agent_runtime.durable import DONE, encode_result
from snapline.agent_runtime.message_encoding import encode_message
from snapline.agent_runtime.snapshots.snapshot_check import check_checkpoints
from snapline.storage.packs.checkpoint import JournalEntry, SavedTurn


class Note(snapline.Message):
    pass


def count() -> int:
    return 1


class Counter(snapline.Agent):
    state: State

    @snapline.handler(durable=True)
    async def on_note(self, message: Note, ctx: snapline.Context) -> None:
        self.state.value = await ctx.step("count", count)
        if self.state.value > 1:
            raise ValueError("too many")


@pytest.mark.parametrize(
    ("result", "reason"),
    [(1, ""), (2, ""), ("one", "on_note diverges from its journal: entry 1")],
)
def test_a_turn_may_fail_behind_its_journal_and_not_in_it(result: Any, reason: str) -> None:
    entry = JournalEntry("step", "count", b"", DONE, encode_result("count", result))
    turn = SavedTurn("message", "z", encode_message(Note()), b"s" * 16, "", [entry])
    fleet = snapline.Fleet("counters", agents={"a": Counter(State())})
    found = check_checkpoints(1, [saved(Counter, State(), saved_turn=turn)], fleet, lambda agent, parts: [])
    assert [found.agents, found.turns] == [1, 1]
    assert [each.reason[: len(reason)] for each in found.incompatibilities] == ([reason] if reason else []), found
