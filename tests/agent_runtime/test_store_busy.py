"""Backpressure of a slow store in logged protocols: basic checkpoints are put off, and nothing else changes."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.agent_runtime import driving
from tests.agent_runtime.coins import play_logged
from tests.agent_runtime.driving import SECOND, Driver, logged
from tests.agent_runtime.test_logged_world import useless
from tests.kit.host import Host
from tests.kit.logged_fleet import LoggedFleet

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host import logged_agent
from snapline.agent_runtime.host.coordinator_messages import heartbeat_of
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.host_state import LocalAgent
from snapline.agent_runtime.host.modes import logged as logged_mode
from snapline.agent_runtime.host.modes.logged_checkpoints import Saving
from snapline.messages import host_messages as msg
from snapline.protocols.names import UNCOORDINATED
from snapline.protocols.policy import Every, EveryMessages, Policy

BUSY, FREE = ev.StoreStatusChanged(True, "the disk is full"), ev.StoreStatusChanged(False, "")

EACH = EveryMessages(1)

Make = Callable[..., Driver]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a driver of a host core of a logged protocol, whose agents checkpoint after each message."""

    def driver(protocol: str = UNCOORDINATED, policy: Policy = EACH) -> Driver:
        core = functools.partial(HostCore, protocol=protocol, policy=policy)
        monkeypatch.setattr(driving, "HostCore", core)
        return Driver(there=())

    yield driver


def taken(commands: list[ev.HostOutput]) -> list[tuple[str, str]]:
    return [(x.agent, x.basis) for x in commands if isinstance(x, ev.TakeCheckpoint)]


def turn(driver: Driver, agent: str = "a", *sends: tuple[str, bytes]) -> list[tuple[str, str]]:
    """One turn of an agent; returns the checkpoints that were taken meanwhile."""
    before = len(driver.said)
    driver.wake(agent)
    driver.end(agent, *sends)
    return taken(driver.said[before:])


def test_basic_checkpoints_are_put_off_and_taken_once_when_the_store_has_caught_up(make: Make) -> None:
    driver = make()
    assert turn(driver) == [("a", "basic")]
    driver.feed(BUSY)
    turns = driver.core.shared.counts.turns
    assert [turn(driver, agent) for agent in "aabab"] == [[]] * 5
    assert driver.core.shared.counts.turns == turns + 5, "the agents go on"
    assert driver.core.shared.counts.put_off == 2, "one of each agent that has missed one"
    beat = heartbeat_of(driver.core, 1, now_ns=0)
    assert (beat.put_off, beat.store_problem) == (2, "the disk is full")
    assert taken(driver.feed(FREE)) == [("a", "basic"), ("b", "basic")]
    assert turn(driver) == [("a", "basic")] and heartbeat_of(driver.core, 2, now_ns=0).store_problem == ""


def test_problem_alone_puts_nothing_off(make: Make) -> None:
    driver = make()
    driver.feed(ev.StoreStatusChanged(False, "the disk is full"))
    assert turn(driver) == [("a", "basic")] and driver.core.shared.counts.put_off == 0


def test_agent_in_a_turn_takes_it_after_the_turn(make: Make) -> None:
    driver = make()
    driver.feed(BUSY)
    assert turn(driver) == []
    driver.wake("a")
    assert taken(driver.feed(FREE)) == []
    assert taken(driver.end("a")) == [("a", "basic")]


def test_forced_ones_are_taken_all_the_same_even_if_a_basic_one_was_owed_first(make: Make) -> None:
    """`cas` forces one after each send: here the policy owes a basic one in the same turn."""
    driver = make("cas")
    driver.feed(BUSY)
    assert [basis for agent, basis in turn(driver, "a", ("b", b"x")) if agent == "a"] == ["forced"]


def test_forced_one_of_a_turn_in_which_the_store_became_busy_is_taken(make: Make) -> None:
    driver = make("cas")
    driver.wake("a")
    driver.wake("a")  # the second message waits: the first one's basic checkpoint is owed when the turn ends
    driver.feed(BUSY)
    before = len(driver.said)
    driver.end("a", ("b", b"x"))
    assert ("a", "forced") in taken(driver.said[before:])


def test_freeze_takes_live_states_all_the_same(make: Make) -> None:
    """What survives a failure must reach the store, if any of it does."""
    driver = make()
    driver.feed(BUSY)
    turn(driver)
    assert taken(driver.feed(msg.FreezeAgents(1, 7))) == [("a", "basic")]
    assert taken(driver.feed(FREE)) == [], "the agent has not moved since"


def test_plan_begins_with_a_good_opinion(make: Make) -> None:
    driver = make()
    driver.feed(BUSY)
    turn(driver)
    driver.receive_plan(2)
    assert (
        logged(driver.core).holds.backlog.is_busy,
        logged(driver.core).holds.backlog.problem,
        driver.core.shared.counts.put_off,
    ) == (False, "", 1)
    driver.load(2)
    assert taken(driver.feed(FREE)) == []


def test_time_that_comes_while_the_store_is_busy_is_no_busy_loop(make: Make) -> None:
    driver = make(policy=Every(seconds=1))
    driver.feed(BUSY)
    turn(driver)
    assert driver.core.mode.wakeups_ns()
    assert taken(driver.feed(ev.TimerFired(), after_ns=2 * SECOND)) == []
    assert driver.core.shared.counts.put_off == 2 and driver.core.mode.wakeups_ns() == []
    assert sorted(taken(driver.feed(FREE))) == [("a", "basic"), ("b", "basic")]


LIMIT = 2


def with_slow_store(monkeypatch: pytest.MonkeyPatch) -> list[Host]:
    """Hosts of the seeded world say that their store is busy, as the checkpoint writer does. Returns those that did."""
    carry, write = Host._carry, LoggedFleet.write
    told: list[Host] = []

    def full(self: Host, command: ev.HostOutput) -> None:
        carry(self, command)
        if len(self.writing) > LIMIT and not logged(self.core).holds.backlog.is_busy:
            told.append(self)
            self.feed(BUSY)

    def drained(self: LoggedFleet, host: Host) -> None:
        write(self, host)
        if len(host.writing) <= LIMIT // 2 and logged(host.core).holds.backlog.is_busy:
            host.feed(FREE)

    monkeypatch.setattr(Host, "_carry", full)
    monkeypatch.setattr(LoggedFleet, "write", drained)
    return told


@pytest.mark.parametrize(
    "seeds", [range(3, 5), pytest.param(range(5, 40), marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize(
    "protocol", [UNCOORDINATED, "bcs", *[pytest.param(each, marks=pytest.mark.slow) for each in ("fdas", "cas")]]
)
def test_lines_stay_consistent_and_recovery_exact(protocol: str, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    told = with_slow_store(monkeypatch)
    put_off = completed = 0
    for seed in seeds:
        world = play_logged(seed, protocol)
        completed += world.completed
        if protocol != UNCOORDINATED:
            assert useless(world) == 0
    put_off = sum(host.core.shared.counts.put_off for host in dict.fromkeys(told))
    assert completed > 12 and len(told) > 12 and put_off > 12, (completed, len(told), put_off)


def test_mutant_that_puts_forced_ones_off_is_found(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    def lazy(self: Saving, agent: LocalAgent, basis: str, **rest: Any) -> None:
        if not self._holds.backlog.is_busy:
            take(self, agent, basis, **rest)

    take = Saving.take
    monkeypatch.setattr(Saving, "take", lazy)
    with pytest.raises(AssertionError):
        test_forced_ones_are_taken_all_the_same_even_if_a_basic_one_was_owed_first(make)


# ---- no room for more -------------------------------------------------------------------------------------------------

FULL = ev.StoreStatusChanged(True, "the disk is full", True)
LOGS_MAX = 1000


@pytest.fixture
def few_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs of a host may have a thousand bytes."""
    monkeypatch.setattr(logged_agent, "LOGS_BYTES_MAX", LOGS_MAX)
    monkeypatch.setattr(logged_mode, "LOGS_BYTES_MAX", LOGS_MAX)


def starts(commands: list[ev.HostOutput]) -> list[str]:
    return [x.agent for x in commands if isinstance(x, ev.StartTurn)]


def test_full_queue_makes_the_agents_stand_still_and_says_so(make: Make) -> None:
    """Forced checkpoints cannot be put off: without this they would fill the memory."""
    driver = make("cas")
    driver.feed(FULL)
    driver.wake("a")
    assert driver.turns == {}
    beat = heartbeat_of(driver.core, 1, now_ns=0)
    assert beat.is_standing and beat.store_problem == "the disk is full"
    assert "the agents are paused: the disk is full" in driver.notes()
    assert starts(driver.feed(FREE)) == ["a"]
    assert not heartbeat_of(driver.core, 2, now_ns=0).is_standing


def test_logs_without_room_make_the_agents_stand_still_until_the_store_takes_them(make: Make, few_logs: None) -> None:
    driver = make()
    driver.feed(BUSY)
    turn(driver, "a", *[("b", b"\x01" * 300)] * 6)
    assert logged(driver.core).holds.backlog.is_standing
    assert LOGS_MAX < logged(driver.core).holds.backlog.log_bytes <= LOGS_MAX + 400, (
        "the rest of the turn's messages are parked"
    )
    assert driver.core.agents["a"].parked == 2
    assert starts(driver.end("b")) == [], "its next message waits"
    assert starts(driver.feed(ev.TimerFired())) == []
    commands = driver.feed(FREE)
    assert ("a", "basic") in taken(commands) and "b" in starts(commands)
    assert driver.core.agents["a"].parked == 0 and logged(driver.core).holds.backlog.log_bytes < LOGS_MAX


def test_many_small_logs_go_to_a_store_that_takes_them(make: Make, few_logs: None) -> None:
    """Nobody stands still, although no agent's own log is large, and none is due by its policy."""
    driver = make(policy=Every(seconds=1000))
    for agent, other in (("a", "b"), ("b", "a")):
        turn(driver, agent, *[(other, b"\x01" * 200)] * 3)
        while driver.turns:
            driver.end(next(iter(driver.turns)))
    assert logged(driver.core).holds.backlog.log_bytes > LOGS_MAX and not logged(driver.core).holds.backlog.is_standing
    assert driver.core.wakeup_ns is not None and driver.core.wakeup_ns <= driver.now
    assert taken(driver.feed(ev.TimerFired())) == [("a", "basic"), ("b", "basic")]
    assert logged(driver.core).holds.backlog.log_bytes == 0 and logged(driver.core).holds.backlog.save_ns is None


def test_agents_that_no_round_saves_stand_still_until_one_does(make: Make, few_logs: None) -> None:
    """In koo-toueg fleets only rounds bring logs into the store; the coordinator begins one when it hears of large logs."""
    driver = make("koo-toueg")
    turn(driver, "a", *[("b", b"\x01" * 300)] * 6)
    assert logged(driver.core).holds.backlog.is_standing and starts(driver.end("b")) == []
    driver.feed(msg.RequestCheckpoints(1, 1, ("a",), ("",), (0,)))
    assert driver.last(ev.TakeCheckpoint).basis == "tentative"
    assert logged(driver.core).holds.backlog.is_standing, "it may come to nothing"
    assert "b" in starts(driver.feed(msg.EndEpoch(1, True)))
    assert not logged(driver.core).holds.backlog.is_standing and logged(driver.core).holds.backlog.log_bytes < LOGS_MAX


def test_spawned_agents_and_thawed_ones_stand_still_too(make: Make) -> None:
    driver = make()
    driver.wake("a")
    driver.end("a", spawns=[("c", "k", b"S")])
    driver.feed(FULL)
    driver.feed(msg.AgentsReserved(driver.last(msg.ReserveAgents).request, 0, (), 1, "", (7,)))
    driver.feed(msg.FreezeAgents(1, 7))
    driver.feed(msg.ThawAgents(1, 7))
    assert driver.turns == {} and all(agent.is_held for agent in driver.core.agents.values())
    driver.feed(FREE)
    driver.end("c")
    assert not any(agent.is_held for agent in driver.core.agents.values())
