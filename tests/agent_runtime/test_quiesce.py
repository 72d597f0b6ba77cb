"""Holding inputs and effects back at a host, while the fleet, a host or agents are about to end or to move."""

import pytest
from tests.agent_runtime.driving import Driver
from tests.agent_runtime.test_effects import PROTOCOLS, ask, begun, checkpoint, end, intent, ledger, release, runs
from tests.agent_runtime.test_letters import Operator

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.entries import IN_TURN, SegmentEntry
from snapline.messages import host_messages as ends
from snapline.messages import host_messages as msg

HOLD = ends.Quiesce(7, holds_effects=True)
GO_ON = ends.Quiesce(8)


def quiesced(driver: Driver) -> list[int]:
    return [said.number for said in driver.all_of(ends.Quiesced)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_effect_is_begun_while_effects_are_held(protocol: str) -> None:
    driver = begun(protocol=protocol)
    driver.feed(HOLD)
    assert quiesced(driver) == [7], "none is being called"
    ask(driver, intent())
    assert not runs(release(driver))
    (run,) = runs(driver.feed(GO_ON))
    assert (run.name, run.is_in_doubt) == ("pay", False)


def test_host_answers_when_the_effect_that_is_being_called_has_ended() -> None:
    driver = begun()
    ask(driver, intent())
    release(driver)
    driver.feed(HOLD)
    assert quiesced(driver) == []
    end(driver)
    assert quiesced(driver) == [7] and [record.stage for record in ledger(driver)] == ["done"]


def test_effect_whose_turn_fails_before_it_has_ended_is_waited_for_no_more() -> None:
    driver = begun()
    ask(driver, intent())
    release(driver)
    driver.feed(HOLD)
    agent = driver.core.agents["a"]
    agent.current, agent.stage = SegmentEntry(), IN_TURN
    driver.turns["a"] = ev.StartTurn("a", 1, "segment", "z", b"\x02Go\x01")
    driver.fail("a", is_final=True)
    assert quiesced(driver) == [7]


def test_effect_that_has_its_mark_is_called_though_effects_are_held() -> None:
    """Else a later life would take it for one that was called, and ask people."""
    driver = begun()
    driver.feed(msg.LogOpened(1))
    ask(driver, intent(is_repeatable=False))
    release(driver)
    driver.feed(msg.LogOpened(1))
    driver.feed(HOLD)
    assert quiesced(driver) == []
    batch = driver.last(ev.AppendBatch)
    assert runs(driver.feed(ev.BatchAppended(batch.log, batch.number)))
    end(driver)
    assert quiesced(driver) == [7]


def test_effect_without_its_mark_is_not_in_doubt_after_the_plan() -> None:
    driver = begun()
    driver.feed(HOLD)
    ask(driver, intent(is_repeatable=False))
    release(driver)
    later = Driver(checkpoints={"a": checkpoint(driver)}, begun=1, starts=False)
    ask(later, intent(is_repeatable=False))
    effects = later.core.agents["a"].effects
    assert effects is not None and not effects.open[0].needs_people


@pytest.mark.parametrize("event", [msg.Welcome(1, "c"), GO_ON])
def test_hold_ends_with_its_stream(event: msg.Directive) -> None:
    driver = begun()
    driver.feed(HOLD)
    ask(driver, intent())
    release(driver)
    assert runs(driver.feed(event))


def test_plan_ends_the_hold() -> None:
    driver = begun()
    driver.feed(HOLD)
    driver.feed(ends.Quiesce(8, holds_inputs=True, holds_effects=True))
    driver.receive_plan(2)
    driver.load(2)
    assert not driver.core.shared.agents["a"].is_failed
    driver.end("a")
    driver.remote_sends("z", "a", b"\x02Go\x01")
    driver.end("a")
    client = Operator(driver)
    assert client.answers[client.count] == [("accepted", 1)]


def test_inputs_of_clients_wait_at_a_fleet_that_is_about_to_end() -> None:
    driver = Driver()
    client = Operator(driver)
    driver.feed(ends.Quiesce(7, holds_inputs=True))
    request = client.offer(("a", "k", b"\x011"))
    assert client.answers[request] == [("retry", 0)] and "about to end" in client.reason(request)
    assert client.told(("b", "first", b"\x010")) == [("repeated", 1)]
    driver.feed(GO_ON)
    request = client.offer(("a", "k", b"\x011"))
    client.append()
    assert client.answers[request] == [("accepted", 1)]
