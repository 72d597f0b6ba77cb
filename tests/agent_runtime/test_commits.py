"""What a commit holds of an agent whose turn runs: the agent as it was before the turn; and which batches an epoch does not cover."""

from collections import deque

import pytest
from msgspec.structs import replace
from tests.agent_runtime.driving import Driver

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.commits import _committed
from snapline.agent_runtime.host.entries import IN_TURN, Entry, StashedEntry, TimerEntry
from snapline.agent_runtime.host.host_log import PendingCommit
from snapline.agent_runtime.host.host_state import LocalAgent, decode_released
from snapline.messages import host_messages as msg
from snapline.storage.log.log_record import CommitPart, LoggedEntry, LoggedInput
from snapline.storage.packs.checkpoint import JournalEntry, SavedTimer, StashedMessage


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


# -- the start of what an epoch does not cover ----------------------------------------------------------------------------


def offered(driver: Driver, key: str, agent: str = "a") -> None:
    driver.feed(ev.InputsOffered(1, "shop", 5, (ev.OfferedInput(agent, key, b"\x01p"),)))


def appended(driver: Driver) -> int:
    """The batch in progress becomes durable. Return its number."""
    last = [each for each in driver.said if isinstance(each, ev.AppendBatch)][-1]
    driver.feed(ev.BatchAppended(last.log, last.number))
    return last.number


def start(driver: Driver) -> int:
    return driver.core.log.start_beyond_states()


def test_an_epoch_covers_the_batches_before_the_first_input_that_waits() -> None:
    driver = Driver(is_local=True)
    assert start(driver) == 1
    offered(driver, "k1")
    driver.feed(msg.LogOpened(1))
    assert start(driver) == 1, "the batch is being written"
    assert appended(driver) == 1 and driver.turns["a"].what == "input"
    offered(driver, "k2")
    assert appended(driver) == 2 and start(driver) == 1, "the first input's turn runs"
    driver.end("a")
    assert start(driver) == 2, "the second one's turn runs"
    driver.end("a")
    assert start(driver) == 3 and not driver.turns


def test_the_batch_that_is_being_written_is_not_covered() -> None:
    """It may contain the mark of an effect, which no state contains before the batch is durable."""
    driver = Driver(is_local=True)
    offered(driver, "k1", "b")
    driver.feed(msg.LogOpened(1))
    appended(driver)
    driver.end("b")
    assert start(driver) == 2
    driver.core.log.put(PendingCommit(CommitPart(1, 0, False, b"")))
    driver.core.log.append()
    assert start(driver) == 2
    driver.feed(ev.BatchAppended(driver.core.log.name, 2))
    assert start(driver) == 3


def test_earlier_logs_are_needed_for_their_inputs_and_entries() -> None:
    """The inputs' agents consume them, or may be created again. The steps' turns run again."""
    logged = LoggedInput("a", 1, "shop", "k1", b"\x01p", 5)
    step = LoggedEntry("a", 1, b"seed", 0, b"", JournalEntry("step", "", b"", "done", b""))
    for contents in ({"inputs": (logged,)}, {"entries": (step,)}, {"inputs": (replace(logged, agent="gone"),)}):
        driver = Driver(is_local=True, starts=False)
        driver.receive_plan(2)
        agents = tuple(ev.LoadedAgent(agent, 2, None) for agent in driver.here)
        driver.feed(ev.AgentsLoaded(2, agents, **contents))
        assert start(driver) == 0, contents


# -- who goes on under a new plan -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", [1, 2])
def test_a_restore_takes_a_host_back_although_all_its_agents_have_asked_to_leave(era: int) -> None:
    """After a failure elsewhere, such agents are gone, and the host has nothing to load. A restore ends the history of everything."""
    driver = Driver(here=("a",), is_local=True)
    driver.core.agents["a"].is_retiring = True
    said = driver.feed(ev.PlanReceived(2, 0, "", 0, ("h1", "h2"), (ev.Placement("z", "k", "h2", 1),), era=era))
    assert any(isinstance(each, ev.CancelTurns) for each in said) == (era == 2)
    assert not driver.core.agents


def committed(driver: Driver) -> list[str]:
    """The batch of events ends. Return the agents of the commit that is captured then, which becomes durable."""
    captured = [x for x in driver.feed(ev.BatchEnded(), after_ns=0) if isinstance(x, ev.CaptureCommit)]
    for command in captured:
        driver.feed(ev.CommitCaptured(1, command.commit, (CommitPart(command.commit, 0, True, b""),)))
        appended(driver)
    return [each.agent for command in captured for each in command.agents]


@pytest.mark.parametrize("is_frozen", [False, True])
def test_the_last_turn_of_a_frozen_agent_is_committed_at_once(is_frozen: bool) -> None:
    """The plan that moves the agent waits for it. Other changes wait for 50 ms if nothing else does."""
    driver = Driver(is_local=True)
    driver.feed(msg.LogOpened(1))
    driver.remote_sends("z", "a", b"\x01p")
    committed(driver)
    driver.feed(msg.Quiesce(1, frozen=("a",) if is_frozen else ()))
    committed(driver)
    driver.end("a")
    assert committed(driver) == (["a"] if is_frozen else [])
