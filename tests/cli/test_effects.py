"""`snapline effect …`, against a coordinator with the real feed, and stores at rest."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.cli.test_outputs import Threaded
from tests.kit.command_line import Run
from tests.storage.outputs.releasing import root_of

from snapline.agent_runtime.message_encoding import encode_message
from snapline.messages.agent_commands import EffectRetry, read_effect_request
from snapline.messages.client_requests import InputOutcome
from snapline.messages.effect_records import EFFECTS_TOPIC, EffectRecord, UnfinishedEffect
from snapline.storage.outputs.output_record import EmittedOutput
from snapline.storage.store.store import Store


def word(number: int, stage: str, key: str, result: str = "", *, agent: str = "a1", undoes: str = "") -> EmittedOutput:
    record = EffectRecord(stage, key, 1, "pay", f"c/{agent}/{key}", result=result, undoes=undoes, undoes_generation=1)
    return EmittedOutput(agent, number, EFFECTS_TOPIC, encode_message(record), number * 10**9)


WORDS = [
    [word(1, "intent", "one"), word(2, "done", "one", '"receipt"'), word(3, "intent", "two")],
    [word(4, "failed", "two", "ValueError: no"), word(5, "intent", "one/undo", undoes="one")],
    [word(6, "done", "one/undo", "null", undoes="one"), word(1, "intent", "one", agent="b1")],
]


def fill(store: Store) -> None:
    for epoch, outputs in enumerate(WORDS, 1):
        store.release_outputs(epoch, root_of(epoch), epoch - 1, outputs, created_ns=10**18)


@pytest.fixture
def threaded() -> Iterator[Threaded]:
    made = Threaded()
    fill(made.store)
    yield made
    made.stop()


def test_effects_of_a_fleet_that_runs_are_listed_with_their_fates(run: Run, threaded: Threaded) -> None:
    where = ("--coordinator", threaded.fleet.address)
    found = run("effect", "list", *where)
    assert (found.code, found.err) == (0, "")
    assert [(row["agent"], row["key"], row["fate"], row["result"]) for row in found.json["effects"]] == [
        ("a1", "one", "compensated", '"receipt"'),
        ("b1", "one", "open", ""),
        ("a1", "two", "failed", "ValueError: no"),
        ("a1", "one/undo", "done", "null"),
    ]
    assert [row["key"] for row in run("effect", "list", "--open", *where).json["effects"]] == ["one", "two"]
    assert [row["key"] for row in run("effect", "list", "--agent", "b1", *where).json["effects"]] == ["one"]
    table = run("effect", "list", *where, "-o", "table").out.splitlines()
    assert table[0].split() == ["AGENT", "KEY", "NAME", "FATE", "ASKED", "(UTC)", "RESULT"] and len(table) == 5


def test_the_newest_effects_are_listed_and_the_others_counted(run: Run, tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    effects = [word(number, "intent", f"key-{number}") for number in range(1, 31)]
    store.release_outputs(1, root_of(1), 0, effects, created_ns=10**18)
    where = ("effect", "list", "--store", store.location)

    def keys(*limit: str) -> list[str]:
        return [row["key"] for row in run(*where, *limit, "-o", "json").json["effects"]]

    assert keys() == [f"key-{number}" for number in range(1, 31)]
    assert keys("--limit", "2") == ["key-29", "key-30"] and len(keys("--limit", "31")) == 30
    lines = run(*where, "-o", "table").out.splitlines()
    assert [line.split()[1] for line in lines[1:-1]] == [f"key-{number}" for number in range(11, 31)]
    assert lines[-1] == "and 10 older: `--limit 30` lists all"
    assert len(run(*where, "-o", "table", "--limit", "30").out.splitlines()) == 31


def test_a_list_with_effects_that_are_left_says_what_is_to_do(run: Run, tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    stages = (["intent", "done"], ["left"], ["done"])  # a retry of the turn has taken it over
    for epoch, names in enumerate(stages, 1):
        outputs = [word(2 * epoch + number, stage, "one") for number, stage in enumerate(names)]
        store.release_outputs(epoch, root_of(epoch), epoch - 1, outputs, created_ns=10**18)
        shown = run("effect", "list", "--store", store.location, "-o", "table").out
        assert ("did not undo the effect: retry its dead letter" in shown) == (epoch == 2)


def test_how_those_stand_that_have_not_ended_their_hosts_tell(run: Run, threaded: Threaded) -> None:
    asked = EffectRecord("intent", "three", 1, "pay", "c/b1/three", arguments="[1]")
    threaded.fleet.hosts["h1"].standing = [
        UnfinishedEffect("b1", "one", 1, "in doubt"),
        UnfinishedEffect("a1", "one", 1, "open"),  # it has ended since
        UnfinishedEffect("gone", "one", 1, "open"),
    ]
    threaded.fleet.hosts["h2"].standing = [UnfinishedEffect("b1", "three", 1, "waiting", asked, 7 * 10**9)]
    found = run("effect", "list", "--open", "--coordinator", threaded.fleet.address).json["effects"]
    assert [(row["agent"], row["key"], row["fate"], row["arguments"]) for row in found] == [
        ("b1", "one", "in doubt", ""),
        ("a1", "two", "failed", ""),
        ("b1", "three", "waiting", "[1]"),
    ]
    threaded.fleet.hosts["h1"].standing = [UnfinishedEffect("a1", "two", 1, "waiting", replace(asked, key="two"), 9)]
    threaded.fleet.states["h2"] = "lost"
    found = run("effect", "list", "--open", "--coordinator", threaded.fleet.address).json["effects"]
    assert [(row["key"], row["fate"]) for row in found] == [("one", "open"), ("two", "waiting")], "asked for again"


def test_people_have_effects_tried_again_and_undone(run: Run, threaded: Threaded) -> None:
    where = ("--coordinator", threaded.fleet.address)
    for host in threaded.fleet.hosts.values():
        host.answers = lambda x: InputOutcome("refused", reason="it is done") if b"done" in x.payload else None
    for verb in ("retry", "undo"):
        found = run("effect", verb, "a", "refund-17#2", *where, "-o", "table")
        assert (found.code, found.out.split()) == (0, ["KEY", "OUTCOME", "refund-17#2", "done"])
    found = run("effect", "retry", "a", "done", *where)
    assert (found.code, found.err) == (2, "snapline: it is done\n")
    found = run("effect", "retry", "a", "k", "done", *where)
    assert found.code == 3 and [row["reason"] for row in found.json["effects"]] == ["", "it is done"]
    assert run("effect", "undo", "a", *where).code == 2 and run("effect", "undo", "nobody", "k", *where).code == 4
    said = [
        read_effect_request(x.payload)
        for host in threaded.fleet.hosts.values()
        for _, some in host.offered
        for x in some
    ]
    assert EffectRetry("undo", "refund-17", 2) in said and EffectRetry("retry", "k", 1) in said


def test_one_effect_is_shown_with_its_compensations_from_a_store_at_rest(run: Run, tmp_path: Path) -> None:
    fill(Store.create(tmp_path / "store"))
    where = ("--store", tmp_path / "store")
    shown = run("effect", "show", "a1", "one", *where)
    assert [row["key"] for row in shown.json["effects"]] == ["one", "one/undo"]
    text = run("effect", "show", "a1", "one", *where, "-o", "table").out
    assert "outside_key    c/a1/one\n" in text and "undoes         one\n" in text
    missing = run("effect", "show", "a1", "three", *where)
    assert missing.code == 4 and "see `snapline effect list --agent a1`" in missing.err
    assert run("effect", "list", *where, "--coordinator", "x:1").code == 2
    assert run("output", "tail", *where).out == "", "it is not among the outputs of all topics"


def test_what_came_of_an_effect_is_said_in_one_way(run: Run) -> None:
    where = ("--coordinator", "127.0.0.1:1")
    for words in ((), ("--result", "1", "--not-done")):
        found = run("effect", "resolve", "a", "k", *words, *where)
        assert found.code == 2 and "Give --result JSON, or --not-done" in found.err
    found = run("effect", "resolve", "a", "k", "--result", "receipt", *where)
    assert found.code == 2 and "--result is no JSON" in found.err and "a text stands in quotes" in found.err
