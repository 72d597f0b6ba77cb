"""Inputs in one host core after the fleet went back on purpose and dropped what earlier plans had taken."""

import pytest
from tests.agent_runtime.driving import Driver
from tests.agent_runtime.test_inputs import WALL_NS, Client

from snapline.agent_runtime.host import agent_io
from snapline.agent_runtime.host import host_events as ev
from snapline.messages import host_messages as msg
from snapline.storage.log.log_record import LoggedInput
from snapline.storage.packs.checkpoint import AgentCheckpoint


def logged(number: int, key: str, payload: bytes = b"\x01p", agent: str = "a") -> LoggedInput:
    return LoggedInput(agent, number, "shop", key, payload, WALL_NS)


@pytest.fixture
def driver() -> Driver:
    """Under plan 2: of agent `a` inputs 1 and 2 are dropped, and 3, taken since, is given."""
    made = Driver()
    made.receive_plan(2)
    made.load(2, logged(3, "later"), dropped=(logged(1, "one"), logged(2, "two", b"\x01q")))
    made.feed(msg.LogOpened(2))
    made.end_all()
    return made


def reasons(driver: Driver) -> list[str]:
    said = [x for x in driver.said if isinstance(x, ev.AnswerInputs)]
    return [answer.reason for answer in said[-1].answers]


def test_dropped_inputs_have_no_turn_and_later_ones_do(driver: Driver) -> None:
    turns = [x.payload for x in driver.said if isinstance(x, ev.StartTurn) and x.agent == "a" and x.what == "input"]
    assert turns == [b"\x01p"], "number 3 alone"
    inputs = driver.core.agents["a"].inputs
    assert inputs is not None and inputs.consumed == 3


def test_numbers_of_dropped_inputs_are_not_used_again(driver: Driver) -> None:
    client = Client(driver)
    client.offer(("a", "new", b"\x01n"))
    client.append()
    assert client.answers[1] == [("accepted", 4)]


def test_who_says_a_dropped_input_again_is_told_and_its_agent_does_not_get_it(driver: Driver) -> None:
    client = Client(driver)
    assert client.told(("a", "two", b"\x01q")) == [("refused", 2)]
    assert "was dropped" in reasons(driver)[0] and "another key" in reasons(driver)[0]
    assert (
        client.told(("a", "two", b"\x01other")) == [("refused", 2)] and "used for another input" in reasons(driver)[0]
    )


def test_who_waits_for_the_answer_to_a_dropped_input_is_told(driver: Driver) -> None:
    driver.feed(ev.ReplyAwaited(9, "a", "one", False))
    answer = driver.last(ev.AnswerAsk).answer
    assert answer.status == "unknown" and "was dropped" in answer.reason


def test_checkpoint_holds_that_they_are_dropped(driver: Driver) -> None:
    inputs = driver.core.agents["a"].inputs
    assert inputs is not None
    saved = inputs.saved()
    assert saved.number == 3 and [known.is_dropped for known in saved.keys] == [True, True, False]
    driver.checkpoints["a"] = AgentCheckpoint(agent="a", kind="k", epoch=1, is_started=True, inputs=saved)
    driver.receive_plan(3, line=1)
    driver.load(3)
    assert Client(driver).told(("a", "one", b"\x01p")) == [("refused", 1)]


def test_word_of_a_drop_is_not_forgotten_to_save_room(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_io, "REPLIES_BYTES_MAX", 1)
    inputs = driver.core.agents["a"].inputs
    assert inputs is not None
    inputs._forget_replies("none")
    assert [known.is_dropped for known in inputs.keys.values()] == [True, True, False]


def test_agent_that_is_created_again_drops_what_its_first_life_was_given() -> None:
    driver = Driver()
    driver.receive_plan(2)
    driver.load(2, logged(2, "k2", b"\x012", "c"), dropped=(logged(1, "k1", b"\x011", "c"),))
    driver.end_all()
    driver.wake("a")
    driver.end("a", spawns=[("c", "k", b"S")])
    driver.feed(msg.AgentsReserved(driver.last(msg.ReserveAgents).request, 0, (), 2, ""))
    driver.end("c")
    assert driver.turns["c"].payload == b"\x012", "else its numbers would be used again"
