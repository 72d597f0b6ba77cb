"""`snapline agent send` and `agent ask`, against a fleet that is made up: one sentence and the right exit code for each mistake, never a traceback."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.test_outputs import Threaded
from tests.client.fake_fleet import FakeFleet
from tests.kit.command_line import Outcome, Run

from snapline.agent_runtime.host import host_events as ev
from snapline.client import queues
from snapline.messages.client_requests import InputOutcome


@pytest.fixture(scope="module")
def threaded() -> Iterator[Threaded]:
    made = Threaded()
    yield made
    made.stop()


@pytest.fixture
def fleet(threaded: Threaded) -> FakeFleet:
    found = threaded.fleet
    found.phase, found.reason, found.left = "running", "", []
    for taken in found.books.taken.values():
        taken.clear()
    for host in found.hosts.values():
        host.answers, host.hold = lambda offered: None, None
        host.replies, host.hold_asks = lambda *_: None, None
    return found


def send(run: Run, fleet: FakeFleet, *arguments: str | Path) -> Outcome:
    return run("agent", "send", *arguments, "--coordinator", fleet.address)


def test_an_input_has_a_receipt_for_programs_and_for_people(run: Run, fleet: FakeFleet) -> None:
    first = send(run, fleet, "a", "Paid", '{"amount": 5}')
    assert (first.code, first.err) == (0, "")
    key = first.json.pop("key")
    assert first.json == {
        "apiVersion": "snapline/v1", "kind": "Receipt", "agent": "a", "number": 1, "key": key, "is_repeated": False,
    }  # fmt: skip
    again = send(run, fleet, "a", "Paid", '{"amount":5,"note":""}', "--key", key)
    assert (again.json["number"], again.json["is_repeated"]) == (1, True), "JSON that means the same is the same input"
    table = send(run, fleet, "a", "Paid", '{"amount": 6}', "--key", "order-7", "-o", "table").out
    assert [line.split() for line in table.splitlines()] == [["agent", "a"], ["number", "2"], ["key", "order-7"]]
    table = send(run, fleet, "a", "Paid", '{"amount": 6}', "--key", "order-7", "-o", "table").out
    assert "repeated" in table and "yes: its key was known" in table


def test_json_may_come_from_stdin(
    run_process: Run, fleet: FakeFleet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "paid.json").write_text('{"amount": 5, "note": "ü"}')
    with (folder / "paid.json").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        from snapline.cli.agent import _fields_of

        assert bytes(_fields_of("-")) == '{"amount": 5, "note": "ü"}'.encode()  # type: ignore[call-overload]  # a Raw


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nobody", "Paid", '{"amount": 1}'), 4, "agent 'nobody' is not in this fleet: `snapline agent list` names"),
        (("no id", "Paid", '{"amount": 1}'), 2, "'no id' is no valid agent id"),
        (("a", "Payed", "{}"), 2, "has no handler for messages of type 'Payed'; those it has are for: Closed, Paid"),
        (("a", "Paid", '{"amount": }'), 2, "the message is no JSON (Expecting value: line 1 column 12 (char 11))"),
        (("a", "Paid", '{"amount": "x"}'), 2, "Expected `int`, got `str` - at `$.amount`"),
        (("a", "Paid", "[]"), 2, "Expected `object`, got `array`"),
        (("a", "Paid", "\udcff"), 2, "the message is no JSON (it is not UTF-8)"),
        (("a", "Paid", "[" * 100_000), 2, "the message is no JSON (it is nested too deep)"),
        (("a", "Paid", '{"amount": NaN}'), 2, "NaN is no number of JSON"),
        (("a", "Paid", '{"amount": 1, "amount": 2}'), 2, "'amount' stands twice"),
        (("a", "Paid", '{"amount": 1}', "--key", ""), 2, "is no key"),
        (("a", "Paid", json.dumps({"amount": 1, "note": "x" * 2**24})), 2, "the limit is 16,777,216"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "",
)
def test_a_mistake_is_one_sentence(
    run: Run, fleet: FakeFleet, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = send(run, fleet, *arguments)
    assert (done.code, done.out) == (code, ""), done.err
    assert words in done.err and len(done.err.splitlines()) == 1 and "Traceback" not in done.err


def test_a_key_that_was_used_for_another_input(run: Run, fleet: FakeFleet) -> None:
    assert send(run, fleet, "a", "Paid", '{"amount": 1}', "--key", "k").code == 0
    done = send(run, fleet, "a", "Paid", '{"amount": 2}', "--key", "k")
    assert (done.code, done.out) == (2, "") and "used" in done.err


def test_what_the_fleet_does_not_take(run: Run, fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "WAIT_LEAST_NS", 10**12)  # so the end does not find it under way
    monkeypatch.setattr(queues, "WAIT_MOST_NS", 10**12)
    fleet.left.append("b")
    done = send(run, fleet, "b", "Paid", '{"amount": 1}')
    assert done.code == 4 and "agent 'b' has stopped" in done.err
    fleet.hosts["h1"].answers = lambda offered: InputOutcome("retry", 0, "agent a is new")
    done = send(run, fleet, "a", "Paid", '{"amount": 1}', "--timeout", "3", "--key", "k")
    assert done.code == 14 and "the input with key k for agent a was not taken in time: agent a is new" in done.err
    fleet.hosts["h1"].answers, fleet.hosts["h1"].hold = lambda offered: None, []
    done = send(run, fleet, "a", "Paid", '{"amount": 1}', "--timeout", "2", "--key", "k")
    assert done.code == 9 and "may have been taken" in done.err and "give it again with the same key" in done.err
    fleet.phase, fleet.reason = "finished", "stop_when holds"
    done = send(run, fleet, "c", "Paid", '{"amount": 1}')
    assert done.code == 13 and "the fleet has ended: stop_when holds" in done.err


def test_nobody_is_there(run: Run) -> None:
    done = run("agent", "send", "a", "Paid", "{}", "--coordinator", "127.0.0.1:9")
    assert done.code == 8 and "no coordinator answers at 127.0.0.1:9" in done.err
    assert run("agent", "send", "a", "Paid", "{}").code == 2


def ask(run: Run, fleet: FakeFleet, *arguments: str) -> Outcome:
    return run("agent", "ask", *arguments, "--coordinator", fleet.address)


def test_an_answer_is_shown_to_programs_and_to_people(run: Run, fleet: FakeFleet) -> None:
    done = ask(run, fleet, "a", "Paid", '{"amount": 5}', "--key", "k")
    assert (done.code, done.err) == (0, "")
    assert done.json == {
        "apiVersion": "snapline/v1", "kind": "Reply", "agent": "a", "number": 1, "key": "k", "is_early": False,
        "message": {"type": "Taken", "fields": {"number": 1, "photo": ""}},
    }  # fmt: skip
    table = ask(run, fleet, "a", "Paid", '{"amount": 5}', "--key", "k", "--early", "-o", "table").out
    assert "Taken(number=1" in table and "yes: a recovery may undo it" in table
    fleet.hosts["h1"].replies = lambda *_: ev.AskAnswer("replied", 1)
    assert "it answered nothing" in ask(run, fleet, "a", "Paid", '{"amount": 5}', "--key", "k", "-o", "table").out


def test_questions_without_an_answer_are_one_sentence(run: Run, fleet: FakeFleet) -> None:
    fleet.hosts["h1"].replies = lambda *_: ev.AskAnswer("buried", 1)
    done = ask(run, fleet, "a", "Paid", '{"amount": 5}', "--key", "k")
    assert (done.code, done.out) == (3, "") and "`snapline agent dead-letters list` shows" in done.err
    fleet.hosts["h1"].hold_asks = []
    done = ask(run, fleet, "a", "Paid", '{"amount": 5}', "--key", "k", "--timeout", "2")
    assert (
        done.code == 9 and "as input 1 of agent a under key k" in done.err and "ask again with the same key" in done.err
    )
    assert len(done.err.splitlines()) == 1 and "Traceback" not in done.err
    assert ask(run, fleet, "nobody", "Paid", "{}").code == 4
    assert ask(run, fleet, "a", "Payed", "{}").code == 2
