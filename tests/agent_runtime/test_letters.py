"""What operators say about dead letters, in one host core: a letter has its other turn once, and keeps its number."""

import pytest
from tests.agent_runtime.driving import Driver, checkpoint
from tests.agent_runtime.test_durable_turns import RECEIVE, SEED, STEP, TOLD, finish_step
from tests.agent_runtime.test_inputs import WALL_NS, Client, ask, asked

from snapline.agent_runtime.durable import Pause
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.dead_letters import identity_of
from snapline.agent_runtime.host.host_state import LocalAgent
from snapline.agent_runtime.host.plans import creation_payload
from snapline.errors import ProtocolError
from snapline.messages import host_messages as msg
from snapline.messages.agent_commands import (
    DROP,
    RETRY,
    TARGET_GONE,
    DeadLetterCommand,
    dead_letter_command_payload,
    read_dead_letter_command,
)
from snapline.protocols.names import PROTOCOLS
from snapline.storage.log.log_record import LoggedInput
from snapline.storage.packs.checkpoint import (
    AgentCheckpoint,
    DeadLetterNumbers,
    DeadLetterRecord,
    KnownKey,
    SavedInputs,
    decode_checkpoint,
    encode_checkpoint,
)

LETTERS = [DeadLetterRecord("z", b"\x01" + bytes([65 + n]), "no", 3, 0) for n in range(3)]
"""Of agent a, numbers 4 to 6: three older ones are not kept."""


def word(verb: str, number: int, letter: DeadLetterRecord | None = None) -> bytes:
    return dead_letter_command_payload(DeadLetterCommand(verb, number, identity_of(letter or LETTERS[number - 4])))


def with_dead_letters(**fields: object) -> AgentCheckpoint:
    made: dict[str, object] = {"dead_letters": list(LETTERS), "dead_letter_count": 6, "is_started": True, **fields}
    return checkpoint("a", **made)


class Operator(Client):
    """Of a host whose log is open."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.offer(("b", "first", b"\x010"))
        self.open()
        self.append()
        driver.end("b")

    def say(self, key: str, payload: bytes, agent: str = "a") -> int:
        self.count += 1
        offered = ev.OfferedInput(agent, key, payload, is_operator_command=True)
        self.driver.feed(ev.InputsOffered(self.count, "op", WALL_NS, (offered,)))
        return self.count

    def settle(self, key: str, payload: bytes) -> None:
        self.say(key, payload)
        self.append()


@pytest.fixture
def driver() -> Driver:
    return Driver(checkpoints={"a": with_dead_letters(), "b": checkpoint("b", is_started=True)})


@pytest.fixture
def operator(driver: Driver) -> Operator:
    return Operator(driver)


def agent_of(driver: Driver) -> LocalAgent:
    return driver.core.agents["a"]


def told(driver: Driver, key: str) -> tuple[str, bytes]:
    """What the operator hears at once."""
    ask(driver, 77, "a", key, is_early=True)
    status, _, reply = asked(driver)[77]
    return status, reply


def saved(driver: Driver) -> AgentCheckpoint:
    """Agent a as a checkpoint taken now holds it, once through the file's format."""
    control = agent_of(driver).control(driver.now)
    made = with_dead_letters(
        dead_letters=control.dead_letters,
        dead_letter_count=control.dead_letter_count,
        inputs=control.inputs,
        **({"saved_numbers": control.dead_letter_numbers} if control.dead_letter_numbers else {}),
    )
    return decode_checkpoint(encode_checkpoint(made))


def restart(driver: Driver, kept: AgentCheckpoint, *logged: LoggedInput) -> None:
    """A plan takes agent a back to this."""
    driver.checkpoints["a"] = kept
    driver.receive_plan(2)
    driver.load(2, *logged)


def numbers(driver: Driver) -> list[int]:
    return agent_of(driver).dead_letter_numbers


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_in_every_protocol_a_retried_letter_has_its_own_turn_again_and_is_none_any_more(protocol: str) -> None:
    driver = Driver(protocol=protocol)
    operator = Operator(driver)
    for key in ("k1", "k2"):
        operator.offer(("a", key, b"\x01" + key.encode()))
        operator.append()
        driver.fail("a", retries=0)
    letter = DeadLetterRecord("@shop", b"\x01k2", "", 0, 0)
    operator.settle("k", word(RETRY, 2, letter))
    assert driver.turns["a"] == ev.StartTurn("a", 1, "letter", "@shop", b"\x01k2")
    assert numbers(driver) == [1, 2], "until the turn has ended"
    driver.end("a")
    assert (numbers(driver), agent_of(driver).dead_letter_count) == ([1], 1)
    assert told(driver, "k") == ("replied", b"")
    operator.settle("d", word(DROP, 1, DeadLetterRecord("@shop", b"\x01k1", "", 0, 0)))
    assert (numbers(driver), agent_of(driver).dead_letter_count) == ([], 1)
    assert "a" not in driver.turns


@pytest.mark.parametrize("protocol", ["uncoordinated", "hmnr"])
def test_an_agent_whose_letter_was_dropped_has_moved(protocol: str) -> None:
    driver = Driver(protocol=protocol)
    operator = Operator(driver)
    operator.offer(("a", "k1", b"\x01k"))
    operator.append()
    driver.fail("a", retries=0)
    agent_of(driver).logged.has_moved = False
    operator.settle("d", word(DROP, 1, DeadLetterRecord("@shop", b"\x01k", "", 0, 0)))
    assert agent_of(driver).logged.has_moved, "its next checkpoint differs"


def test_the_answer_of_a_letter_that_came_from_outside_is_told_to_the_operator(
    driver: Driver, operator: Operator
) -> None:
    operator.settle("k", word(RETRY, 4))
    driver.end("a", reply=b"\x01yes")
    assert told(driver, "k") == ("replied", b"\x01yes")


def test_on_start_is_run_again() -> None:
    letter = DeadLetterRecord("a", b"", "no", 1, 0)
    kept = with_dead_letters(dead_letters=[letter], dead_letter_count=1)
    driver = Driver(checkpoints={"a": kept, "b": checkpoint("b", is_started=True)})
    Operator(driver).settle("k", word(RETRY, 1, letter))
    assert driver.turns["a"] == ev.StartTurn("a", 1, "start", "a", b"")
    driver.end("a")
    assert numbers(driver) == []


def test_one_that_fails_again_is_a_new_letter_of_the_same_message(driver: Driver, operator: Operator) -> None:
    operator.settle("k", word(RETRY, 4))
    driver.fail("a", "ValueError: still", retries=1)
    assert driver.turns["a"].payload == b"\x01A", "retries count as ever"
    driver.fail("a", "ValueError: still", retries=1)
    assert (numbers(driver), agent_of(driver).dead_letter_count) == ([5, 6, 7], 6)
    newest = agent_of(driver).dead_letters[-1]
    assert (newest.sender, newest.payload, newest.error, newest.attempts) == ("z", b"\x01A", "ValueError: still", 2)
    assert told(driver, "k")[0] == "buried"
    assert driver.last(ev.MessageDeadLettered).what == "letter"


def test_a_dropped_letter_is_forgotten_without_a_turn_and_stays_counted(driver: Driver, operator: Operator) -> None:
    operator.settle("k", word(DROP, 5))
    assert "a" not in driver.turns
    assert (numbers(driver), agent_of(driver).dead_letter_count) == ([4, 6], 6)
    assert told(driver, "k") == ("replied", b"")


def test_numbers_stay_across_recoveries_and_are_not_given_twice(driver: Driver, operator: Operator) -> None:
    operator.settle("k1", word(RETRY, 6))
    driver.end("a")
    operator.settle("k2", word(DROP, 4))
    restart(driver, saved(driver))
    assert (numbers(driver), agent_of(driver).last_dead_letter) == ([5], 6)
    driver.wake("a")
    driver.fail("a", retries=0)
    assert numbers(driver) == [5, 7]


@pytest.mark.parametrize("verb", [RETRY, DROP])
def test_a_word_takes_effect_once_wherever_a_recovery_cuts(verb: str, driver: Driver, operator: Operator) -> None:
    before = saved(driver)
    operator.settle("k", word(verb, 5))
    (logged,) = driver.last(ev.AppendBatch).inputs
    while_it_runs = saved(driver)
    if verb == RETRY:
        driver.end("a")
    after = saved(driver)
    for number, kept in enumerate((before, while_it_runs) if verb == RETRY else (before,), 2):
        driver.plan = max(driver.plan, number)
        driver.checkpoints["a"] = kept
        driver.receive_plan(number)
        driver.load(number, logged)
        assert ("a" in driver.turns) == (verb == RETRY)
        if verb == RETRY:
            driver.end("a")
        assert numbers(driver) == [4, 6]
    driver.checkpoints["a"] = after
    driver.receive_plan(9)
    driver.load(9, logged)
    assert "a" not in driver.turns and numbers(driver) == [4, 6], "it is in the checkpoint"


def test_a_letter_that_a_recovery_has_made_another_one_is_left_alone(driver: Driver, operator: Operator) -> None:
    operator.settle("k", word(RETRY, 6))
    (logged,) = driver.last(ev.AppendBatch).inputs
    other = DeadLetterRecord("z", b"\x01X", "no", 1, 0)
    restart(driver, with_dead_letters(dead_letters=[*LETTERS[:2], other]), logged)
    assert "a" not in driver.turns and numbers(driver) == [4, 5, 6]
    assert told(driver, "k") == ("replied", TARGET_GONE)


def test_two_words_about_one_letter_are_one_turn(driver: Driver, operator: Operator) -> None:
    operator.say("k1", word(RETRY, 4))
    operator.say("k2", word(RETRY, 4))
    operator.append()
    operator.append()
    driver.end("a")
    assert "a" not in driver.turns
    assert told(driver, "k2") == ("replied", TARGET_GONE)


def test_the_same_key_again_is_the_same_word(driver: Driver, operator: Operator) -> None:
    operator.settle("k", word(DROP, 4))
    again = operator.say("k", word(DROP, 4))
    assert operator.answers[again] == [("repeated", 1)], "although there is no such letter any more"


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (word(RETRY, 9, LETTERS[0]), "agent 'a' has no such dead letter 9; those that it has: 4, 5, 6"),
        (word(RETRY, 4, LETTERS[1]), "agent 'a' has no such dead letter 4; those that it has: 4, 5, 6"),
    ],
)
def test_what_is_no_letter_is_refused(payload: bytes, reason: str, driver: Driver, operator: Operator) -> None:
    request = operator.say("k", payload)
    assert operator.answers[request] == [("refused", 0)] and operator.reason(request) == reason


def test_a_creation_can_be_dropped_and_not_retried() -> None:
    letter = DeadLetterRecord("a", creation_payload("k", b"S"), "exists", 1, 0)
    kept = with_dead_letters(dead_letters=[letter], dead_letter_count=1)
    driver = Driver(checkpoints={"a": kept, "b": checkpoint("b", is_started=True)})
    operator = Operator(driver)
    assert "is the creation of an agent: drop it" in operator.reason(operator.say("k", word(RETRY, 1, letter)))
    operator.settle("k2", word(DROP, 1, letter))
    assert numbers(driver) == []


def test_clients_cannot_say_what_operators_say(driver: Driver, operator: Operator) -> None:
    request = operator.offer(("a", "k", word(DROP, 4)))
    assert operator.answers[request] == [("refused", 0)]


def test_an_agent_that_stops_takes_no_words(driver: Driver, operator: Operator) -> None:
    driver.wake("a")
    driver.end("a", stops=True)
    assert operator.reason(operator.say("k", word(DROP, 4))) == "agent a has stopped"


def test_words_of_an_agent_that_stops_are_no_dead_letters_of_anybody(driver: Driver, operator: Operator) -> None:
    driver.wake("a")
    operator.settle("k", word(DROP, 4))
    before = driver.core.shared.counts.dead_letters
    driver.end("a", stops=True)
    assert driver.core.shared.counts.dead_letters == before


def test_a_letter_that_crashes_its_agent_too_often_is_buried_again(driver: Driver, operator: Operator) -> None:
    operator.settle("k", word(RETRY, 4))
    (logged,) = driver.last(ev.AppendBatch).inputs
    driver.fail("a", on_error="recover", retries=0)
    restart(driver, with_dead_letters(), logged)
    assert "a" not in driver.turns and numbers(driver) == [5, 6, 7]
    assert agent_of(driver).dead_letters[-1].payload == b"\x01A"


def test_the_newest_hundred_keep_their_numbers(driver: Driver) -> None:
    for _ in range(99):
        driver.wake("a")
        driver.fail("a", retries=0)
    assert numbers(driver) == list(range(6, 106)) and len(agent_of(driver).dead_letters) == 100


def test_until_a_letter_is_taken_out_files_are_as_before(driver: Driver, operator: Operator) -> None:
    assert "saved_numbers" not in repr(agent_of(driver).control(driver.now).dead_letter_numbers)
    assert agent_of(driver).control(driver.now).dead_letter_numbers is None
    assert with_dead_letters().dead_letter_numbers == DeadLetterNumbers(6, [4, 5, 6])
    assert b"letter_numbers" not in encode_checkpoint(with_dead_letters())
    operator.settle("k", word(DROP, 5))
    assert saved(driver).dead_letter_numbers == DeadLetterNumbers(6, [4, 6])


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x01retry", b"\x00\x93\xa3eat\x01\xc4\x00", b"\x00\xff"])
def test_what_is_no_word_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="command"):
        read_dead_letter_command(data)


@pytest.fixture
def ordered() -> Operator:
    """Input "order" has become a dead letter, and an operator has it tried again: its turn has begun."""
    letter = DeadLetterRecord("@shop", b"\x01A", "no", 1, 0, "order")
    known = SavedInputs(1, [KnownKey("order", 1, b"d" * 16, WALL_NS, True)])
    kept = with_dead_letters(dead_letters=[letter], dead_letter_count=1, inputs=known)
    driver = Driver(checkpoints={"a": kept, "b": checkpoint("b", is_started=True)})
    operator = Operator(driver)
    operator.settle("k", word(RETRY, 1, letter))
    assert driver.turns["a"].sender == "@shop"
    return operator


def complete(driver: Driver, consumed: int) -> None:
    driver.feed(msg.EndEpoch(1, True, "", ("a",), (consumed,)))


def test_client_of_a_letter_that_is_tried_again_gets_the_answer_of_its_new_turn(ordered: Operator) -> None:
    ordered.driver.end("a", reply=b"\x01yes")
    ask(ordered.driver, 1, "a", "order")
    assert asked(ordered.driver) == {}, "no complete epoch holds the new turn"
    complete(ordered.driver, 2)
    assert asked(ordered.driver) == {1: ("replied", 2, b"\x01yes")}
    assert saved(ordered.driver).inputs.keys[0].retried_by == "k"


def test_until_the_new_turn_has_ended_the_letter_is_one(ordered: Operator) -> None:
    ask(ordered.driver, 1, "a", "order")
    assert asked(ordered.driver) == {1: ("buried", 1, b"")}


def test_client_waits_for_a_durable_turn_of_its_letter(ordered: Operator) -> None:
    ordered.driver.end("a", pause=Pause(SEED, STEP, None, []))
    ask(ordered.driver, 1, "a", "order", is_early=True)
    assert asked(ordered.driver) == {}
    finish_step(ordered.driver)
    ordered.driver.end("a", reply=b"\x01yes")
    assert asked(ordered.driver) == {1: ("replied", 2, b"\x01yes")}


def test_letter_that_fails_once_more_stays_that_of_its_input(ordered: Operator) -> None:
    ordered.driver.end("a", pause=Pause(SEED, STEP, None, []))
    finish_step(ordered.driver)
    ordered.driver.fail("a", retries=0)
    (again,) = agent_of(ordered.driver).dead_letters
    assert again.key == "order"
    complete(ordered.driver, 2)
    ask(ordered.driver, 1, "a", "order")
    ordered.settle("k2", word(RETRY, 2, again))
    ordered.driver.end("a", reply=b"\x01yes")
    complete(ordered.driver, 3)
    ask(ordered.driver, 2, "a", "order")
    assert asked(ordered.driver) == {1: ("buried", 2, b""), 2: ("replied", 3, b"\x01yes")}


def test_plain_turn_that_fails_once_more_too(ordered: Operator) -> None:
    ordered.driver.fail("a", retries=0)
    assert agent_of(ordered.driver).dead_letters[0].key == "order"
    assert saved(ordered.driver).inputs.keys[0].retried_by == "k"


# ---- durable turns ----------------------------------------------------------------------------------------------------


def test_a_letter_s_durable_turn_has_its_message_from_the_first_step_on(driver: Driver, operator: Operator) -> None:
    operator.settle("k", word(RETRY, 5))
    driver.end("a", pause=Pause(SEED, STEP, None, []))
    assert (numbers(driver), agent_of(driver).dead_letter_count) == ([4, 6], 5), "a checkpoint holds the turn instead"
    turn = agent_of(driver).control(driver.now).turn
    assert turn is not None and (turn.what, turn.sender, turn.payload, turn.key) == ("letter", "z", b"\x01B", "k")
    finish_step(driver)
    driver.end("a", reply=b"\x01yes")
    assert told(driver, "k") == ("replied", b"\x01yes")


def test_a_letter_s_durable_turn_that_fails_for_good_is_a_new_letter(driver: Driver, operator: Operator) -> None:
    operator.settle("k", word(RETRY, 5))
    driver.end("a", pause=Pause(SEED, STEP, None, []))
    finish_step(driver)
    driver.fail("a", retries=0)
    assert (numbers(driver), agent_of(driver).dead_letter_count) == ([4, 6, 7], 6)
    newest = agent_of(driver).dead_letters[-1]
    assert (newest.sender, newest.payload) == ("z", b"\x01B")
    assert told(driver, "k")[0] == "buried"


@pytest.mark.parametrize("verb", [RETRY, DROP])
def test_a_word_that_a_durable_turn_puts_off_takes_effect_after_it(
    verb: str, driver: Driver, operator: Operator
) -> None:
    driver.wake("a")
    driver.end("a", pause=Pause(SEED, RECEIVE, None, []))
    operator.settle("k1", word(verb, 5))
    operator.settle("k2", word(DROP, 4))
    operator.settle("k3", word(DROP, 4))
    operator.offer(("a", "told", TOLD))
    operator.append()
    assert driver.turns["a"].what == "segment" and numbers(driver) == [4, 5, 6]
    assert [stashed.key for stashed in agent_of(driver).control(driver.now).stash] == ["k1", "k2", "k3"]
    driver.end("a")
    if verb == RETRY:
        assert driver.turns["a"] == ev.StartTurn("a", 1, "letter", "z", b"\x01B", number=2)
        driver.end("a")
    assert numbers(driver) == [6] and "a" not in driver.turns
    assert [told(driver, key) for key in ("k1", "k2", "k3")] == [
        ("replied", b""),
        ("replied", b""),
        ("replied", TARGET_GONE),
    ]


def test_what_waits_behind_words_that_were_put_off_has_its_turn(driver: Driver, operator: Operator) -> None:
    driver.wake("a")
    driver.end("a", pause=Pause(SEED, RECEIVE, None, []))
    operator.settle("k1", word(DROP, 5))
    operator.offer(("a", "told", TOLD), ("a", "next", b"\x01n"))
    operator.append()
    driver.end("a")
    assert driver.turns["a"].payload == b"\x01n" and numbers(driver) == [4, 6]
