"""An agent whose state cannot be imaged, in protocols in which agents checkpoint on their own: it goes no further, and says so.

The image is taken after the core has asked for it and for the turn behind it, so the turn may run all the same.
"""

import functools
from collections.abc import Callable, Iterator

import pytest
from tests.agent_runtime import driving
from tests.agent_runtime.driving import Driver

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.host_state import LocalAgent
from snapline.agent_runtime.host.modes.logged import FREEZE_NS, HostFreeze
from snapline.agent_runtime.host.turn_ends import TurnEnds
from snapline.messages import host_messages as msg
from snapline.protocols.policy import Manual

REFUSED = "field 'x' is a lock"

Make = Callable[[], Driver]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a driver of a core that forces a checkpoint before each message."""

    def driver() -> Driver:
        monkeypatch.setattr(driving, "HostCore", functools.partial(HostCore, protocol="cbr", policy=Manual()))
        return Driver(there=())

    yield driver


def refuse(driver: Driver, agent: str) -> list[ev.HostOutput]:
    """The image that was asked for last cannot be taken."""
    (*_, asked) = [x for x in driver.said if isinstance(x, ev.TakeCheckpoint) and x.agent == agent]
    return driver.feed(ev.CheckpointFailed(agent, asked.control.incarnation, REFUSED), after_ns=0)


def force(driver: Driver, agent: str = "a") -> None:
    """A message comes, a checkpoint is forced before it, and that one cannot be taken. The turn runs."""
    driver.wake(agent)
    assert [x.basis for x in driver.said if isinstance(x, ev.TakeCheckpoint)][-1] == "forced"
    refuse(driver, agent)
    assert agent in driver.turns


def frozen(commands: list[ev.HostOutput]) -> list[ev.ReportFrozen]:
    return [x for x in commands if isinstance(x, ev.ReportFrozen)]


def test_the_turn_behind_a_forced_checkpoint_that_failed_does_not_count(make: Make) -> None:
    """Its sends would carry the index of a checkpoint that does not exist."""
    driver = make()
    force(driver)
    consumed, turns = driver.core.agents["a"].inlets["z"].consumed, driver.core.shared.counts.turns
    said = driver.end("a", ("b", b"\x01x"), timers=[("late", 5, b"")], spawns=[("c", "k", b"")])
    assert not said and "b" not in driver.turns, "nothing leaves"
    assert driver.core.agents["a"].inlets["z"].consumed == consumed, "its message is not received"
    assert driver.core.shared.counts.turns == turns and not driver.core.agents["a"].timers


def test_a_failing_turn_behind_it_means_nothing_either(make: Make) -> None:
    driver = make()
    force(driver)
    assert not driver.fail("a", on_error="undo", retries=3)
    assert not driver.core.agents["a"].dead_letters


def test_what_was_parked_stays_so(make: Make) -> None:
    """It would carry what the rule has merged since."""
    driver = make()
    driver.wake("a")
    driver.end("a", *[("b", b"\x01x")] * (driver_credit(driver) + 5))
    parked = driver.core.agents["a"].parked
    assert parked
    force(driver)
    while "b" in driver.turns:
        driver.end("b")
    assert driver.core.agents["a"].parked == parked


def driver_credit(driver: Driver) -> int:
    driver.core._ends.open(driver.core.agents["a"], "b")
    return driver.core.agents["a"].outlets["b"].credit


def test_what_a_checkpoint_does_not_hold_is_said_behind_it(make: Make) -> None:
    """Whoever judges images by the commands relies on that: a message that it was forced for is buried in the same instant."""
    driver = make()
    driver.wake("b")
    said = driver.end("b", ("a", b"\x00\x00\x01k"))
    kinds = [type(x) for x in said if isinstance(x, ev.TakeCheckpoint | ev.MessageDeadLettered) and x.agent == "a"]
    assert kinds == [ev.TakeCheckpoint, ev.MessageDeadLettered]


def test_a_freeze_names_those_whose_image_failed(make: Make) -> None:
    """What it does not name stands in the store, says the host."""
    driver = make()
    for agent in "ab":
        driver.wake(agent)
        driver.end(agent)
    said = driver.feed(msg.FreezeAgents(1, 7))
    assert [x.agent for x in said if isinstance(x, ev.TakeCheckpoint)] == ["a", "b"] and not frozen(said)
    refuse(driver, "b")
    assert frozen(driver.feed(ev.TimerFired())) == [ev.ReportFrozen(1, 7, ("b",))]
    assert driver.core.wakeup_ns is None or driver.core.wakeup_ns > driver.now


def test_one_that_is_found_unsavable_later_is_named_anew(make: Make) -> None:
    driver = make()
    driver.wake("a")
    driver.end("a")
    driver.feed(msg.FreezeAgents(1, 7))
    assert frozen(driver.feed(ev.TimerFired())) == [ev.ReportFrozen(1, 7, ())]
    refuse(driver, "a")
    assert frozen(driver.feed(ev.TimerFired())) == [ev.ReportFrozen(1, 7, ("a",))]


def test_a_freeze_does_not_wait_for_the_turn_of_one_that_failed(make: Make) -> None:
    driver = make()
    force(driver)
    driver.feed(msg.FreezeAgents(1, 7))
    assert frozen(driver.feed(ev.TimerFired())) == [ev.ReportFrozen(1, 7, ("a",))]


def test_a_freeze_still_waits_for_a_turn_that_runs(make: Make) -> None:
    driver = make()
    driver.wake("a")
    driver.feed(msg.FreezeAgents(1, 7))
    assert not frozen(driver.feed(ev.TimerFired()))
    assert frozen(driver.feed(ev.TimerFired(), after_ns=FREEZE_NS)) == [ev.ReportFrozen(1, 7, ("a",))]


# ---- mutants --------------------------------------------------------------------------------------------------------


def a_failed_agent_goes_on(patch: pytest.MonkeyPatch) -> None:
    end = TurnEnds.on_turn_ended

    def mutant(self: TurnEnds, event: ev.TurnEnded) -> None:
        agent = self._shared.agents[event.agent]
        agent.is_failed, was_failed = False, agent.is_failed
        end(self, event)
        agent.is_failed = was_failed

    patch.setattr(TurnEnds, "on_turn_ended", mutant)


def parked_messages_leave_a_failed_agent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LocalAgent, "is_silent", property(lambda self: self.is_held))


def frozen_before_the_images_are_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HostFreeze, "_report_soon", lambda self: self.unfrozen or self._report())


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (a_failed_agent_goes_on, test_the_turn_behind_a_forced_checkpoint_that_failed_does_not_count),
        (parked_messages_leave_a_failed_agent, test_what_was_parked_stays_so),
        (frozen_before_the_images_are_taken, test_a_freeze_names_those_whose_image_failed),
    ],
    ids=lambda value: value.__name__,
)
def test_a_mutant_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None],
    test: Callable[[Make], None],
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        test(make)
