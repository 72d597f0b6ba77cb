"""What a commit holds of an agent whose turn runs: the agent as it was before the turn."""

from collections import deque

from snapline.agent_runtime.host.commits import _committed
from snapline.agent_runtime.host.entries import IN_TURN, Entry, StashedEntry, TimerEntry
from snapline.agent_runtime.host.host_state import LocalAgent, decode_released
from snapline.storage.packs.checkpoint import SavedTimer, StashedMessage


def agent_in(entry: Entry) -> LocalAgent:
    agent = LocalAgent("a", "m:K", 1)
    agent.current, agent.stage = entry, IN_TURN
    return agent


def test_the_timer_of_a_running_turn_fires_again_first() -> None:
    agent = agent_in(TimerEntry("running", b"1"))
    agent.mailbox = deque([TimerEntry("waiting", b"2")])
    assert _committed(agent, 0).control.timers == [SavedTimer("running", 0, b"1"), SavedTimer("waiting", 0, b"2")]


def test_the_stashed_message_of_a_running_turn_is_the_first_again() -> None:
    agent = agent_in(StashedEntry(StashedMessage("b", b"1")))
    agent.stash = [StashedMessage("b", b"2")]
    assert [stashed.payload for stashed in _committed(agent, 0).control.stash] == [b"1", b"2"]


def test_messages_that_wait_for_a_creation_are_told_apart() -> None:
    agent = LocalAgent("a", "m:K", 1)
    agent.held = [("b", b"1"), ("c", b"2")]
    control = _committed(agent, 0).control
    assert [parked.payload for parked in control.outbox] == [b"1", b"2"]
    assert decode_released(control.protocol_state) == ({}, 2)


def test_a_commit_contains_the_numbers_of_channels_whose_sender_has_left() -> None:
    """The recovery line may still contain a message of that channel. Without the number, a recovery would deliver it again."""
    agent = LocalAgent("a", "m:K", 1)
    agent.ended = {"gone": (7, 0)}
    assert _committed(agent, 0).received == {"gone": 7}
