"""Turns of unchanged agents, frame by frame: what they send, when they stand, and that they can be begun again anywhere."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.adapters.autogen.environment import PYTHON, needed

from snapline.adapters.autogen.worker import AutogenWorker, KeptValue, ReceivedReply, TurnSegment
from snapline.errors import DivergenceError

pytestmark = needed

PROGRAM = "tests.adapters.autogen.turn_program:register"


@pytest.fixture
async def worker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AutogenWorker]:
    monkeypatch.setenv("SNAPLINE_AUTOGEN_PYTHON", PYTHON)
    made = AutogenWorker(PROGRAM)
    yield made
    await made.close()


class Played:
    """A turn that is played by hand: the test is its peers."""

    def __init__(self, worker: AutogenWorker, what: str, number: int, state: KeptValue | None = None) -> None:
        body = json.dumps({"what": what, "number": number})
        message = {"form": "message", "type": "Order", "body": body}
        kept = None if state is None else {"form": state.form, "body": state.body}
        self.worker = worker
        self.begin: dict[str, Any] = {
            "turn": "doer..0",
            "seed": "seed",
            "agent": "doer/0",
            "state": kept,
            "message": message,
            "sender": "",
            "topic": "",
            "id": "1",
        }
        self.heard: list[ReceivedReply] = []
        self.said: list[list[Any]] = []

    async def go_on(self) -> TurnSegment:
        found = await self.worker.segment(self.begin, list(self.heard), list(self.said))
        self.said += [item.comparison_key() for item in found.items]
        return found

    def hear(self, call: int, value: int) -> None:
        self.heard.append(ReceivedReply(call, KeptValue("message", json.dumps({"value": value}), "Number"), False))

    async def to_the_end(self, worker: AutogenWorker | None = None) -> TurnSegment:
        """Each call is answered by twice its number, the newest first."""
        open_calls: list[tuple[int, int]] = []
        for _ in range(100):
            found = await self.go_on()
            if found.is_over:
                return found
            open_calls += [(item.call, value_of(item.message)) for item in found.items if item.call >= 0]
            call, value = open_calls.pop()
            self.hear(call, 2 * value)
            self.worker = worker or self.worker
        raise AssertionError("it does not end")


def value_of(message: KeptValue | None) -> int:
    assert message is not None
    found: int = json.loads(message.body)["value"]
    return found


def heard(segment: TurnSegment) -> list[int]:
    assert segment.state is not None and segment.state.form == "json", segment.text
    found: list[int] = json.loads(segment.state.body)["heard"]
    return found


@pytest.mark.parametrize(
    ("what", "number", "answer", "calls"),
    [("ask", 7, 14, 1), ("gather", 5, 20, 5), ("wait", 4, 12, 4), ("publish", 3, 3, 0), ("tell", 3, 3, 0)],
)
async def test_a_handler_gets_its_replies_however_it_awaits_them(
    worker: AutogenWorker, what: str, number: int, answer: int, calls: int
) -> None:
    turn = Played(worker, what, number)
    found = await turn.to_the_end()
    assert value_of(found.answer) == answer and heard(found) == [answer] and len(turn.heard) == calls


async def test_a_send_that_nobody_awaits_asks_for_no_reply(worker: AutogenWorker) -> None:
    found = await Played(worker, "tell", 3).go_on()
    assert found.is_over and [item.call for item in found.items] == [-1, -1, -1]


async def test_calls_of_a_gather_are_under_way_together(worker: AutogenWorker) -> None:
    found = await Played(worker, "gather", 5).go_on()
    assert not found.is_over and [item.call for item in found.items] == [0, 1, 2, 3, 4]


async def test_a_turn_ends_when_its_tasks_have(worker: AutogenWorker) -> None:
    """The handler has returned; a task of it goes on with a reply."""
    assert heard(await Played(worker, "later", 4).to_the_end()) == [0, 8]


async def test_subscribers_get_what_is_published_but_not_who_publishes(worker: AutogenWorker) -> None:
    (item,) = (await Played(worker, "publish", 3).go_on()).items
    assert item.to == ["doer/x", "peer/x"] and item.topic == "news/x" and item.sender == "doer/0"


async def test_a_time_out_around_a_reply_is_seen_when_the_host_looks(worker: AutogenWorker) -> None:
    turn = Played(worker, "hurry", 4)
    assert not (await turn.go_on()).is_over
    for _ in range(1000):
        found = await turn.go_on()
        if found.is_over:
            break
    assert value_of(found.answer) == -1


async def test_an_error_is_an_answer_and_leaves_what_the_handler_has_done(worker: AutogenWorker) -> None:
    found = await Played(worker, "fail", 4).go_on()
    assert found.error is not None and found.error.type == "KeyError" and "KeyError: 4" in found.text
    assert heard(found) == [4]


async def test_a_state_that_cannot_be_kept_is_an_error_that_names_the_attribute(worker: AutogenWorker) -> None:
    found = await Played(worker, "unkeepable", 4).go_on()
    assert found.error is not None and found.state is None and "attribute 'heard' of agent doer/0" in found.text


async def test_a_turn_goes_on_from_the_state_that_its_host_says(worker: AutogenWorker) -> None:
    state = KeptValue("json", json.dumps({"heard": [1, 2]}))
    assert heard(await Played(worker, "publish", 3, state).go_on()) == [1, 2, 3]
    assert heard(await Played(worker, "publish", 3, state).go_on()) == [1, 2, 3]


@pytest.mark.parametrize("what", ["chain", "gather", "wait"])
async def test_a_turn_begun_again_in_another_process_comes_to_the_same(worker: AutogenWorker, what: str) -> None:
    """After each reply in turn: chance is the turn's, and nothing is said twice."""
    other = AutogenWorker(PROGRAM)
    try:
        alone, moved = Played(worker, what, 4), Played(worker, what, 4)
        expected, found = await alone.to_the_end(), await moved.to_the_end(other)
    finally:
        await other.close()
    assert (found.answer, found.state) == (expected.answer, expected.state)
    assert moved.said == alone.said


async def test_a_turn_whose_process_ends_is_begun_again(
    worker: AutogenWorker, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("DIED", str(tmp_path / "died"))
    assert value_of((await Played(worker, "die", 4).go_on()).answer) == 4
    assert (tmp_path / "died").exists()


async def test_a_turn_that_sends_something_else_when_it_is_run_again_does_not_go_on(worker: AutogenWorker) -> None:
    turn = Played(worker, "ask", 4)
    await turn.go_on()
    turn.said[0][0] = ["peer/9"]
    turn.begin["seed"] = "another"  # the process does not know this turn
    with pytest.raises(DivergenceError, match="run again"):
        await turn.go_on()
