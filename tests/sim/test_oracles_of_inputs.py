"""The oracle of inputs and answers, told what happened by hand."""

import pytest

from snapline.sim.oracles.book_records import AgentHistory
from snapline.sim.oracles.inputs import InputOracle

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
        told.oracle.on_acknowledged(5, payload, number)
        told.consume(payload, b"yes")
    told.oracle.on_acknowledged(6, b"1", 1)
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


def test_what_was_acknowledged_and_is_lost_is_found_unless_its_agent_is_gone(told: Told) -> None:
    told.offer(b"1", b"2")
    told.oracle.on_acknowledged(5, b"1", 1)
    assert told.end("b") == []
    assert told.end() == [("R1", "input b'1' was acknowledged to c as number 1, and a has never consumed it")]


def test_two_numbers_and_another_order_are_found_but_not_of_what_was_given_up(told: Told) -> None:
    told.offer(b"1", b"2", b"3")
    for payload in (b"3", b"2", b"1"):
        told.oracle.on_acknowledged(5, payload, 1)
        told.consume(payload)
    told.oracle.on_given_up(b"1")
    told.oracle.on_acknowledged(6, b"2", 4)
    assert told.end() == [
        ("R1", "b'2' for a was acknowledged as input 1 and as 4"),
        ("R1", "a consumed inputs of c in another order"),
    ]


def test_answer_that_does_not_stand_is_found_unless_the_store_lost_an_epoch(told: Told) -> None:
    told.offer(b"1")
    told.oracle.on_acknowledged(5, b"1", 1)
    told.consume(b"1", b"yes")
    told.oracle.on_answered(7, b"1", b"no")
    assert told.end() == [("R2", "input b'1' was answered b'no', and a has answered b'yes'")]
    told.oracle.on_answered(8, b"1", b"yes")
    assert told.found[1:] == [("R2", "b'1' for a was answered b'yes' after b'no'")]
    told.found.clear()
    told.oracle.on_fallen_back()
    told.oracle.on_answered(9, b"1", b"no")
    assert told.end() == []
