"""How agents stand, as one host core tells it: at once, or as soon as an agent is between two turns."""

import pytest
from tests.agent_runtime.driving import SECOND, Driver
from tests.agent_runtime.test_inputs import Client

from snapline.agent_runtime.host import views
from snapline.agent_runtime.host.host_events import (
    AgentView,
    AnswerView,
    AnswerWaiting,
    ViewRequested,
    WaitingAgentsRequested,
)
from snapline.messages import host_messages as msg


@pytest.fixture
def driver() -> Driver:
    return Driver()


def want(driver: Driver, request: int, agent: str = "a", *, is_settled: bool = True) -> None:
    driver.feed(ViewRequested(request, agent, is_settled))


def answers(driver: Driver) -> dict[int, AnswerView]:
    return {x.request: x for x in driver.all_of(AnswerView)}


def view(driver: Driver, request: int, agent: str = "a") -> AgentView:
    """As it is now, in a turn or not."""
    want(driver, request, agent, is_settled=False)
    found = answers(driver)[request].view
    assert found is not None
    return found


def test_a_settled_view_waits_for_the_end_of_the_turn_and_any_other_does_not() -> None:
    driver = Driver(starts=False)
    assert driver.turns["a"].what == "start"
    want(driver, 1)
    assert answers(driver) == {}
    now = view(driver, 2)
    assert (now.life, now.turn, now.sender) == ("starting", "start", "a")
    said = driver.end("a")
    assert [x.request for x in said if isinstance(x, AnswerView)] == [1]
    want(driver, 3)
    settled = answers(driver)[3].view
    assert settled is not None and (settled.life, settled.turn) == ("running", "")


def test_a_settled_view_is_of_the_moment_before_the_next_turn(driver: Driver) -> None:
    driver.wake("a")
    driver.wake("b")
    driver.end("b", ("a", b"\x01p"))
    want(driver, 1)
    (said,) = [x for x in driver.end("a") if isinstance(x, AnswerView)]
    assert said.view is not None and (said.view.turn, said.view.messages) == ("", 1)
    assert driver.turns["a"].payload == b"\x01p", "which has begun by now"


def test_between_two_attempts_that_wait_it_is_settled(driver: Driver) -> None:
    driver.wake("a")
    want(driver, 1)
    driver.fail("a", retries=2, waits_ns=(SECOND, SECOND))
    told = answers(driver)[1].view
    assert told is not None and (told.turn, told.attempts) == ("", 1)
    assert told.retry_ns is not None and 0 < told.retry_ns <= SECOND


def test_when_it_is_given_up_it_is_settled_and_has_a_dead_letter(driver: Driver) -> None:
    driver.wake("a")
    want(driver, 1)
    driver.fail("a", retries=0)
    told = answers(driver)[1].view
    assert told is not None and told.dead_letter_count == len(told.dead_letters) == 1


def test_a_failed_agent_is_not_looked_at_until_it_is_back(driver: Driver) -> None:
    driver.wake("a")
    driver.fail("a", on_error="recover")
    want(driver, 1)
    assert answers(driver) == {} and view(driver, 2).life == "failed"
    driver.receive_plan(2)
    assert answers(driver)[1] == AnswerView(1, None, "the fleet recovers")
    driver.load(2)


@pytest.mark.parametrize("is_settled", [True, False])
def test_what_is_not_here_is_refused(driver: Driver, is_settled: bool) -> None:
    want(driver, 1, "z", is_settled=is_settled)
    assert answers(driver)[1] == AnswerView(1, None, "agent z is not on host h1 just now")
    driver.receive_plan(2)
    want(driver, 2, "a", is_settled=is_settled)
    assert answers(driver)[2].view is None, "its agents are not loaded yet"


def test_what_waits_is_counted(driver: Driver) -> None:
    client = Client(driver)
    client.offer(("a", "k1", b"\x011"), ("a", "k2", b"\x012"))
    client.open()
    client.append()
    driver.end("a", timers=[("soon", SECOND, b"\x01t")])
    told = view(driver, 1)
    assert (told.turn, told.sender, told.inputs, told.inputs_consumed, told.keys) == ("input", "@shop", 1, 1, 1)
    ((name, remaining_ns),) = told.timers
    assert name == "soon" and 0 < remaining_ns <= SECOND


def test_an_agent_that_is_to_be_created_is_unborn(driver: Driver) -> None:
    driver.wake("a")
    driver.end("a", spawns=[("c", "k", b"S")])
    assert view(driver, 1).spawns == ("c",)
    driver.feed(msg.AgentsReserved(driver.last(msg.ReserveAgents).request, 0, (), 2, ""))
    assert (view(driver, 2, "c").life, view(driver, 3, "c").turn) == ("unborn", "create")


def test_of_all_agents_those_are_told_with_which_something_waits(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(driver)
    driver.wake("a")
    driver.fail("a", retries=0)
    client.offer(("b", "k1", b"\x011"), ("b", "k2", b"\x012"))
    client.open()
    client.append()
    driver.feed(WaitingAgentsRequested(4))
    told = driver.last(AnswerWaiting)
    assert [(each.agent, each.inputs, each.dead_letter_count) for each in told.agents] == [("b", 2, 0), ("a", 0, 1)]
    monkeypatch.setattr(views, "WAITING_SHOWN", 1)
    driver.feed(WaitingAgentsRequested(5))
    told = driver.last(AnswerWaiting)
    assert (len(told.agents), told.more) == (1, 1)
