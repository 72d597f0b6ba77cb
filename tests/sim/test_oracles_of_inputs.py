"""The oracle of inputs and answers, told what happened by hand."""

import pytest

from snapline.sim.oracles.ground_truth_records import AgentHistory
from snapline.sim.oracles.input_output_oracles import InputOracle

Finding = tuple[str, str]


class Told:
    """An oracle, what it found, and one agent's history."""

    def __init__(self) -> None:
        self.found: list[Finding] = []
        self.oracle = InputOracle(lambda oracle, guarantee, _t_ns, text: self.found.append((guarantee, text)))
        self.history = AgentHistory("a", {}, {}, [], [], [])

    def offer(self, *payloads: bytes) -> None:
        for serial, payload in enumerate(payloads, 1):
            self.oracle.on_offered("a", "c", serial, payload)

    def acknowledge(self, t_ns: int, payload: bytes, number: int) -> None:
        """A host says that it has taken it, and its client hears that."""
        self.oracle.on_taken(payload, 1, number, is_repeated=False)
        self.oracle.on_acknowledged(t_ns, payload, number)

    def consume(self, payload: bytes, reply: bytes = b"") -> None:
        self.history.turns += 1
        self.oracle.on_consumed(self.history.turns, self.history, payload)
        self.history.inputs[payload] = self.history.turns
        self.history.replies[payload] = reply

    def end(self, *living: str) -> list[Finding]:
        self.oracle.check_end(99, {"a": self.history}, living or ("a",), 1)
        return self.found


@pytest.fixture
def told() -> Told:
    return Told()


def test_what_was_acknowledged_and_consumed_once_in_order_is_fine(told: Told) -> None:
    told.offer(b"1", b"2", b"3")
    for number, payload in enumerate((b"1", b"2"), 1):
        told.acknowledge(5, payload, number)
        told.consume(payload, b"yes")
    told.acknowledge(6, b"1", 1)
    told.oracle.on_answered(7, b"1", b"yes")
    assert told.end() == []


def test_what_nobody_offered_or_was_consumed_before_is_found(told: Told) -> None:
    told.offer(b"1")
    told.consume(b"?")
    told.consume(b"1")
    told.consume(b"1")
    assert told.found == [
        ("R1", "a consumed b'?', which nobody offered it"),
        ("R1", "a consumed input b'1' twice"),
    ]


def test_what_was_acknowledged_and_is_lost_is_found(told: Told) -> None:
    told.offer(b"1", b"2")
    told.acknowledge(5, b"1", 1)
    assert told.end() == [("R1", "input b'1' was acknowledged to c as number 1, and a has never consumed it")]


def test_two_numbers_and_another_order_are_found_but_not_of_what_was_given_up(told: Told) -> None:
    told.offer(b"1", b"2", b"3")
    told.oracle.on_given_up(b"1")
    for number, payload in enumerate((b"3", b"2", b"1"), 1):
        told.acknowledge(5, payload, number)
        told.consume(payload)
    told.acknowledge(6, b"2", 4)
    assert told.end() == [
        ("R1", "inputs 2 and 3 of c are inputs 2 and 1 of a: in another order than they were given"),
        ("R1", "b'2' for a was acknowledged as input 2 and as 4"),
        ("R1", "a consumed inputs of c in another order"),
    ]


def test_a_receipt_that_no_host_has_given_is_found(told: Told) -> None:
    told.offer(b"1")
    told.oracle.on_taken(b"1", 1, 7, is_repeated=False)
    told.oracle.on_acknowledged(5, b"1", 8)
    assert told.found == [("R1", "c was told that b'1' is input 8 of a, and no host has said so")]


def test_what_was_said_not_to_be_taken_and_is_consumed_is_found(told: Told) -> None:
    told.offer(b"1", b"2")
    told.oracle.on_denied(5, b"1", "not taken: no host")
    told.consume(b"1")
    told.consume(b"2")
    told.oracle.on_denied(6, b"2", "refused: no")
    assert told.found == [
        ("R1", "a consumed input b'1', of which c was told that it was not taken"),
        ("R1", "c was told that b'2' was not taken (refused: no), and a has consumed it"),
    ]


def test_what_was_in_doubt_or_is_given_again_may_be_consumed(told: Told) -> None:
    told.offer(b"1", b"2", b"3")
    told.oracle.on_given_up(b"1")
    told.oracle.on_denied(5, b"1", "refused: no")
    told.oracle.on_denied(5, b"2", "not taken: no host")
    told.oracle.on_offered_again(b"2", 4)
    told.acknowledge(6, b"3", 1)
    told.acknowledge(7, b"2", 2)
    for payload in (b"1", b"3", b"2"):
        told.consume(payload)
    assert told.end() == []


def test_an_input_that_its_agent_took_with_it_unseen_is_found(told: Told) -> None:
    told.offer(b"1", b"2")
    told.acknowledge(5, b"1", 1)
    told.acknowledge(5, b"2", 2)
    told.consume(b"1")
    assert told.end("b") == [("R1", "input b'2' was acknowledged to c, and a has stopped without it")]


def test_an_early_answer_that_no_turn_has_given_is_found(told: Told) -> None:
    told.offer(b"1")
    told.oracle.on_replied(b"1", b"undone")
    told.oracle.on_replied(b"1", b"yes")
    for answer in (b"", b"undone", b"yes", b"no"):
        told.oracle.on_answered_early(5, b"1", answer)
    assert told.found == [("R2", "b'1' for a was answered b'no', which no turn has answered")]


def test_a_dead_letter_that_its_agent_never_had_is_found(told: Told) -> None:
    told.offer(b"1")
    told.acknowledge(5, b"1", 1)
    told.consume(b"1")
    told.oracle.on_dead_letter_reported(b"1")
    assert told.end() == [("R2", "c was told that input b'1' is a dead letter, and a never had it")]


def test_answer_that_does_not_stand_is_found_unless_the_store_lost_an_epoch(told: Told) -> None:
    told.offer(b"1")
    told.acknowledge(5, b"1", 1)
    told.consume(b"1", b"yes")
    told.oracle.on_answered(7, b"1", b"no")
    assert told.end() == [("R2", "input b'1' was answered b'no', and a has answered b'yes'")]
    told.oracle.on_answered(8, b"1", b"yes")
    assert told.found[1:] == [("R2", "b'1' for a was answered b'yes' after b'no'")]
    told.found.clear()
    told.oracle.on_fallen_back()
    told.oracle.on_answered(9, b"1", b"no")
    assert told.end() == []
