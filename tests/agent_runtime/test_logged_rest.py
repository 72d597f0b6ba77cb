"""An agent that comes to rest has, in the end, a checkpoint of where it rests: without it the fleet's line never gets there."""

import functools

import pytest
from tests.agent_runtime import driving
from tests.agent_runtime.driving import SECOND, Driver

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.host_state import LocalAgent
from snapline.agent_runtime.host.modes.logged_checkpoints import Saving
from snapline.messages import host_messages as msg
from snapline.protocols.names import PROTOCOLS, is_autonomous
from snapline.protocols.policy import Every


def spawning(monkeypatch: pytest.MonkeyPatch, protocol: str) -> Driver:
    """Agent a has spawned c, and a checkpoint fell due before the coordinator's answer came."""
    monkeypatch.setattr(driving, "HostCore", functools.partial(HostCore, protocol=protocol, policy=Every(1, jitter=0)))
    driver = Driver(there=(), here=("a",), starts=False)
    driver.end("a", spawns=[("c", "k", b"S")])
    driver.feed(ev.TimerFired(), after_ns=2 * SECOND)
    taken = driver.last(ev.TakeCheckpoint)
    assert (taken.agent, len(taken.control.spawns)) == ("a", 1), "the spawn is in the checkpoint, its message is not"
    return driver


def answer(driver: Driver) -> None:
    request = driver.last(msg.ReserveAgents).request
    driver.feed(msg.AgentsReserved(request, 0, (), 1, "", (7,)))
    driver.end("c")


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if is_autonomous(name)])
def test_sends_that_waited_for_a_reservation_are_checkpointed(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once they were not, and the child's creation stayed above the line for ever: the idle fleet never ended."""
    driver = spawning(monkeypatch, protocol)
    answer(driver)
    driver.feed(ev.TimerFired(), after_ns=2 * SECOND)
    newest = {x.agent: x for x in driver.all_of(ev.TakeCheckpoint)}
    assert newest["a"].sent["c"] == newest["c"].received["a"] == 1
    assert not any(agent.logged.has_moved for agent in driver.core.agents.values())


def test_the_invariant_finds_a_move_that_nobody_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: what leaves after a reservation is not noted."""
    driver = spawning(monkeypatch, "hmnr")
    note = Saving.moved

    def deaf(self: Saving, agent: LocalAgent) -> None:
        if agent is not self._shared.agents["a"]:
            note(self, agent)

    monkeypatch.setattr(Saving, "moved", deaf)
    with pytest.raises(AssertionError, match="a has moved, and its clock was not told"):
        answer(driver)
