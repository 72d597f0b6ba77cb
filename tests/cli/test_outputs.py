"""`snapline output …`, against a coordinator with the real feed, and stores at rest."""

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.client.fake_fleet import FakeFleet
from tests.client.test_outputs import OutputCoordinator, sold
from tests.kit.command_line import Run
from tests.storage.making import make_store
from tests.storage.outputs.releasing import root_of
from tests.storage.simulated_disk import SimulatedDisk

from snapline.storage.store.store import Store

_Result = TypeVar("_Result")


class Threaded:
    """A fleet on a thread of its own: the command has an event loop itself."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.store = make_store(SimulatedDisk())
        self.fleet = FakeFleet()
        self.coordinator = self.fleet.coordinator = OutputCoordinator(self.fleet, self.store)
        self.run(self.fleet.start())

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def stop(self) -> None:
        self.run(self.fleet.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def threaded() -> Iterator[Threaded]:
    made = Threaded()
    fill(made.store)
    yield made
    made.stop()


def fill(store: Store) -> None:
    for epoch, after in ((1, 0), (2, 1), (4, 1)):
        outputs = [sold("a1", epoch), sold("b1", epoch, topic="stock")]
        store.release_outputs(epoch, root_of(epoch), after, outputs, created_ns=10**18)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_status_says_what_waits_where_something_does(run: Run, threaded: Threaded) -> None:
    where = ("status", "--coordinator", threaded.fleet.address)
    assert "OUTPUTS WAITING" not in run(*where, "-o", "table").out
    threaded.fleet.inputs_waiting = 7
    (line,) = [
        line for line in run(*where, "-o", "table").out.splitlines() if line.split() == ["h2", "7", "0", "0", "0", "0"]
    ]
    found = run(*where).json["hosts"][1]
    assert line and (found["inputs_waiting"], found["outputs_waiting"], found["agents_full"]) == (7, 0, 0)


def test_outputs_are_printed_one_to_a_line(run: Run, threaded: Threaded) -> None:
    found = run("output", "tail", "sales", "--coordinator", threaded.fleet.address)
    assert (found.code, found.err) == (0, "")
    first, second, undone, last = lines(found.out)
    assert first == {
        "apiVersion": "snapline/v1", "kind": "Output", "agent": "a1", "number": 1, "topic": "sales",
        "message": {"type": "Sold", "fields": {"item": "item 1", "price": 1}}, "epoch": 1,
        "emitted": "1970-01-01T00:00:00.000Z", "cursor": "1.1",
    }  # fmt: skip
    assert undone == {
        "apiVersion": "snapline/v1", "kind": "OutputsUndone", "after": 1, "epochs": [2], "cursor": "4.0",
    }  # fmt: skip
    assert (second["cursor"], last["cursor"]) == ("2.1", "4.1")
    table = run("output", "tail", "--after", "2.1", "--coordinator", threaded.fleet.address, "-o", "table").out
    assert table.splitlines() == [
        '2.2  b1 2  stock  Sold {"item": "item 2", "price": 2}',
        "4.0  the fleet went back: what was given out after epoch 1 is undone",
        '4.1  a1 4  sales  Sold {"item": "item 4", "price": 4}',
        '4.2  b1 4  stock  Sold {"item": "item 4", "price": 4}',
    ]


def test_a_store_at_rest_prints_the_same(run: Run, threaded: Threaded, tmp_path: Path) -> None:
    fill(Store.create(tmp_path / "store"))
    rest = run("output", "tail", "--store", tmp_path / "store")
    assert rest.code == 0 and rest.out == run("output", "tail", "--coordinator", threaded.fleet.address).out


def test_a_consumer_goes_on_and_is_listed_and_forgotten(run: Run, threaded: Threaded) -> None:
    where = ("--coordinator", threaded.fleet.address)
    assert len(lines(run("output", "tail", "--consumer", "billing", *where).out)) == 7
    assert run("output", "tail", "--consumer", "billing", *where).out == ""
    found = run("output", "consumers", "list", *where)
    assert [(each["name"], each["cursor"]) for each in found.json["consumers"]] == [("billing", "4.2")]
    assert found.json["consumers"][0]["acknowledged"].startswith("20")
    assert run("output", "consumers", "list", *where, "-o", "table").out.split()[:5] == [
        *("CONSUMER", "CURSOR", "ACKNOWLEDGED", "billing", "4.2"),
    ]  # fmt: skip
    assert run("output", "consumers", "forget", "billing", *where).json["consumer"] == "billing"
    again = run("output", "consumers", "forget", "billing", *where)
    assert again.code == 4 and "`snapline output consumers list` shows them" in again.err
    assert run("output", "consumers", "list", *where).json["consumers"] == []


def test_following_ends_with_the_fleet(run: Run, threaded: Threaded) -> None:
    threaded.coordinator.has_ended = True
    found = run("output", "tail", "--follow", "--consumer", "c1", "--coordinator", threaded.fleet.address)
    assert found.code == 0 and len(lines(found.out)) == 7
    assert threaded.store.output_consumers()["c1"].cursor == "4.2"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--after", "x"), 2, "is no cursor"),
        (("--after", "9.1"), 2, "another's cursor"),
        (("--after", "1.1", "--consumer", "c1"), 2, "both say where to begin"),
        (("--consumer", "c/1"), 2, "no valid consumer id"),
        (("--store", "."), 2, "give one of them"),
    ],
)
def test_mistakes_are_one_sentence(
    run: Run, threaded: Threaded, arguments: tuple[str, ...], code: int, words: str
) -> None:
    found = run("output", "tail", *arguments, "--coordinator", threaded.fleet.address)
    assert found.code == code and words in found.err and len(found.err.splitlines()) == 1 and found.out == ""


def test_a_store_at_rest_is_not_followed(run: Run, tmp_path: Path) -> None:
    fill(Store.create(tmp_path / "store"))
    for option in (("--follow",), ("--consumer", "c1")):
        found = run("output", "tail", *option, "--store", tmp_path / "store")
        assert found.code == 2 and "take a fleet that runs" in found.err
    assert run("output", "tail", "--store", tmp_path / "none").code == 10


def test_what_was_deleted_is_told(run: Run, threaded: Threaded) -> None:
    threaded.store.delete_outputs(now_ns=10**18 + 1, age_ns_max=0, age_ns_min=0)
    found = run("output", "tail", "--after", "1.1", "--coordinator", threaded.fleet.address)
    assert found.code == 4 and "the oldest that are left are of epoch 4" in found.err
