"""Inputs of an agent that stops before they had their turns, in one host core: dead letters that are kept, and clients that are told."""

import pytest
from tests.agent_runtime.driving import Driver
from tests.agent_runtime.test_inputs import WALL_NS, Client, ask, asked, logged
from tests.agent_runtime.test_letters import Operator

from snapline.agent_runtime.durable import call_payload, refusal_of
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.dead_letters import identity_of
from snapline.messages import host_messages as msg
from snapline.messages.agent_commands import DROP, RETRY, DeadLetterCommand, dead_letter_command_payload
from snapline.protocols.names import PROTOCOLS
from snapline.storage.packs.checkpoint import AgentCheckpoint, KnownKey, SavedInputs, StashedMessage


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def client(driver: Driver) -> Operator:
    """One whose host has a log already."""
    return Operator(driver)


def stop_with_inputs(driver: Driver, client: Client, *keys: str) -> None:
    """Agent a stops at the end of a turn; inputs with these keys came meanwhile."""
    driver.wake("a")
    client.offer(*[("a", key, b"\x01" + key.encode()) for key in keys])
    client.append()
    driver.end("a", stops=True)


def dead_letters_of(driver: Driver, agent: str = "a") -> list[tuple[str, bytes]]:
    return [(letter.sender, letter.payload) for letter in driver.core.agents[agent].dead_letters]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_inputs_of_an_agent_that_stops_before_their_turns_are_dead_letters(protocol: str) -> None:
    driver = Driver(protocol=protocol)
    client = Operator(driver)
    for key in ("quit", "k1", "k2"):
        client.offer(("a", key, b"\x01" + key.encode()))
        client.append()
    driver.end("a", stops=True)
    assert dead_letters_of(driver) == [("@shop", b"\x01k1"), ("@shop", b"\x01k2")]
    assert "stopped before" in driver.core.agents["a"].dead_letters[0].error
    buried = [x.payload for x in driver.all_of(ev.MessageDeadLettered)]
    assert buried == [b"\x01k1", b"\x01k2"] and driver.core.shared.counts.dead_letters == 2
    assert driver.all_of(msg.RetireAgent) == [], "it stays: its letters are its own"


def test_client_is_told_that_its_agent_stopped_before_its_input_had_a_turn(driver: Driver, client: Client) -> None:
    driver.wake("a")
    client.offer(("a", "k1", b"\x011"))
    client.append()
    ask(driver, 1, "a", "k1", is_early=True)
    ask(driver, 2, "a", "k1")
    driver.end("a", stops=True)
    assert asked(driver) == {1: ("buried", 1, b"")}, "who waits for what is final waits for an epoch that holds it"
    assert driver.last(msg.WantEpoch) == msg.WantEpoch(1)
    driver.feed(msg.EndEpoch(1, True, "", ("a",), (1,)))
    assert asked(driver)[2] == ("buried", 1, b"")


def test_later_ask_and_repeat_with_the_key_of_such_an_input_hear_of_it(driver: Driver, client: Client) -> None:
    stop_with_inputs(driver, client, "k1")
    driver.feed(msg.EndEpoch(1, True, "", ("a",), (1,)))
    assert client.told(("a", "k1", b"\x01k1")) == [("repeated", 1)]
    ask(driver, 1, "a", "k1")
    assert asked(driver)[1] == ("buried", 1, b"")


def test_input_that_was_not_durable_when_its_agent_stopped_is_one_too(driver: Driver, client: Client) -> None:
    driver.wake("a")
    request = client.offer(("a", "k1", b"\x011"))
    driver.end("a", stops=True)
    assert driver.all_of(msg.RetireAgent) == [], "it may be durable already"
    client.append()
    assert client.answers[request] == [("accepted", 1)] and dead_letters_of(driver) == [("@shop", b"\x011")]


def test_input_that_was_held_back_is_one_too(driver: Driver, client: Client) -> None:
    """Above a bound of its outputs an agent puts off what nobody needs a turn of."""
    driver.wake("a")
    client.offer(("a", "k1", b"\x011"), ("a", "k2", b"\x012"))
    client.append()
    agent = driver.core.agents["a"]
    agent.deferred.append(agent.mailbox.popleft())
    driver.end("a", stops=True)
    assert dead_letters_of(driver) == [("@shop", b"\x011"), ("@shop", b"\x012")]


def test_input_that_a_durable_turn_put_off_is_one_too() -> None:
    stashed = [StashedMessage("@shop", b"\x01k1", "k1"), StashedMessage("z", b"\x01other", "")]
    saved = SavedInputs(1, [KnownKey("k1", 1, b"", WALL_NS, False, b"", True)])
    stopped = AgentCheckpoint(
        agent="a", kind="k", epoch=1, is_started=True, is_leaving=True, saved_stash=stashed, inputs=saved
    )
    driver = Driver(checkpoints={"a": stopped})
    assert dead_letters_of(driver) == [("@shop", b"\x01k1")]
    ask(driver, 1, "a", "k1", is_early=True)
    assert asked(driver)[1] == ("buried", 1, b"")


def test_inputs_found_in_a_log_for_an_agent_that_has_stopped_are_dead_letters(driver: Driver, client: Client) -> None:
    stop_with_inputs(driver, client, "k1")
    driver.receive_plan(2)
    stopped = AgentCheckpoint(agent="a", kind="k", epoch=1, is_started=True, is_leaving=True)
    driver.checkpoints = {"a": stopped, "b": AgentCheckpoint(agent="b", kind="k", epoch=1, is_started=True)}
    driver.load(2, logged("a", 1, "k1"))
    assert dead_letters_of(driver) == [("@shop", b"\x01p")]


def test_dead_letter_of_a_client_keeps_its_agent_however_it_came_about(driver: Driver, client: Client) -> None:
    client.offer(("a", "k1", b"\x011"))
    client.append()
    driver.fail("a", retries=0)
    driver.wake("a")
    driver.end("a", stops=True)
    assert driver.all_of(msg.RetireAgent) == [] and dead_letters_of(driver) == [("@shop", b"\x011")]


def test_message_of_another_agent_keeps_none_that_has_stopped(driver: Driver) -> None:
    driver.wake("a")
    driver.remote_sends("z", "a", b"\x01x")
    driver.end("a", stops=True)
    assert dead_letters_of(driver) == [] and len(driver.all_of(msg.RetireAgent)) == 1


def word_about(driver: Driver, verb: str) -> bytes:
    agent = driver.core.agents["a"]
    return dead_letter_command_payload(
        DeadLetterCommand(verb, agent.dead_letter_numbers[0], identity_of(agent.dead_letters[0]))
    )


def test_agent_that_has_stopped_leaves_when_its_letters_are_dropped(driver: Driver, client: Operator) -> None:
    stop_with_inputs(driver, client, "k1")
    client.settle("op1", word_about(driver, DROP))
    ask(driver, 1, "a", "op1")
    assert driver.all_of(msg.RetireAgent) == [], "the operator has not heard of it"
    driver.feed(msg.EndEpoch(1, True, "", ("a",), (2,)))
    assert asked(driver)[1] == ("replied", 2, b"") and len(driver.all_of(msg.RetireAgent)) == 1


def test_nobody_can_retry_the_letters_of_an_agent_that_has_stopped(driver: Driver, client: Operator) -> None:
    stop_with_inputs(driver, client, "k1")
    request = client.say("op1", word_about(driver, RETRY))
    assert client.answers[request] == [("refused", 0)]
    assert client.reason(request) == "agent a has stopped: a dead letter of it can only be dropped"


def test_retry_that_came_before_the_agent_stopped_leaves_the_letter_there(driver: Driver, client: Operator) -> None:
    client.offer(("a", "k1", b"\x011"))
    client.append()
    driver.fail("a", retries=0)
    driver.wake("a")
    client.settle("op1", word_about(driver, RETRY))
    ask(driver, 1, "a", "op1", is_early=True)
    driver.end("a", stops=True)
    assert asked(driver)[1] == ("buried", 2, b"") and dead_letters_of(driver) == [("@shop", b"\x011")]
    assert driver.core.agents["a"].dead_letter_numbers == [2]


def test_agent_that_is_held_buries_its_inputs_when_it_is_let_go() -> None:
    driver = Driver(protocol="hmnr")
    client = Operator(driver)
    driver.wake("a")
    client.offer(("a", "k1", b"\x011"))
    client.append()
    driver.feed(msg.FreezeAgents(1, driver.plan))
    driver.end("a", stops=True)
    driver.feed(msg.ThawAgents(1, driver.plan))
    assert dead_letters_of(driver) == [("@shop", b"\x011")]


def test_agent_that_stays_for_its_letters_holds_up_nobody_who_sends_to_it(driver: Driver, client: Operator) -> None:
    stop_with_inputs(driver, client, "k1")
    for number in range(1000):
        driver.remote_sends("z", "a", b"\x01%d" % number)
    assert not driver.core.agents["a"].mailbox
    driver.flush()
    assert driver.remote.credits[1] > 1000 and driver.core.shared.counts.dead_letters == 1001


def test_call_of_an_agent_that_stays_for_its_letters_is_refused(driver: Driver, client: Operator) -> None:
    stop_with_inputs(driver, client, "k1")
    driver.remote_sends("z", "a", call_payload(b"12345678", b"\x01x"))
    driver.flush()
    assert [item[:2] for item in driver.items()] == [(("a", "z"), refusal_of(call_payload(b"12345678", b"\x01x")))]
