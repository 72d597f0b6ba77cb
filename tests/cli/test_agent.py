"""`snapline agent dead-letters`, and what `snapline run` says of messages that no turn could take."""

from pathlib import Path

import pytest
from tests.cli.conftest import checkpoint_of
from tests.kit.command_line import Run

from snapline.cli.run import count_dead_letters
from snapline.storage.packs.checkpoint import AgentCheckpoint, DeadLetterRecord, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.store.store import Store

FLEET = """
import msgspec
import snapline

class Word(snapline.Message):
    text: str

class Count(snapline.Message):
    number: int

class Held(msgspec.Struct):
    numbers: list[int] = []

class Source(snapline.Agent):
    state: Held

    async def on_start(self, ctx: snapline.Context) -> None:
        for item in (Count(1), Word("two"), Count(3)):
            ctx.send("sink", item)

class Sink(snapline.Agent):
    state: Held
    retries = 1

    @snapline.handler
    async def on_any(self, message: Count | Word, ctx: snapline.Context) -> None:
        self.state.numbers.append(message.number if isinstance(message, Count) else message.text)

fleet = snapline.Fleet(
    "words",
    agents={"source": Source(Held()), "sink": Sink(Held())},
    triggers=[snapline.Every(seconds=0.1)],
    stop_when=lambda cut: cut.is_quiet,
)
"""


def test_a_field_of_the_wrong_type_costs_one_message_and_not_all_checkpoints(
    run: Run, run_process: Run, folder: Path
) -> None:
    (folder / "words.py").write_text(FLEET)
    done = run_process("run", "words:fleet", "--data-dir", "data", "--fail-on-dead-letters", "--quiet")
    assert (done.code, done.json["outcome"], done.json["dead_letters"]) == (3, "stopped", 1), done.err
    assert "snapline: 1 dead letter of 1 agent: `snapline agent dead-letters list --store data/store`" in done.err
    found = run("agent", "dead-letters", "list", "--store", "data/store").json
    assert (found["dead_letter_count"], found["agents"]) == (1, {"sink": 1})
    (letter,) = found["dead_letters"]
    assert (letter["agent"], letter["number"], letter["sender"], letter["attempts"]) == ("sink", 1, "source", 2)
    assert letter["message"] == {"type": "Word", "fields": {"text": "two"}}
    assert "cannot be saved after on_any: state.numbers[1] is declared as int and holds a str" in letter["error"]


def with_dead_letters(path: Path, count: int) -> None:
    """Epoch 3: `bank-1` has had `count` dead letters and keeps two; one was its `on_start`."""
    import msgspec

    store = Store.open(path)
    letters = [
        DeadLetterRecord("bank-1", b"", "Traceback\nKeyError: 'x'", 3, 0),
        DeadLetterRecord("b", b"\x01C\x80", "Late", 1, 0),
    ]
    publish(store, msgspec.structs.replace(checkpoint_of("bank-1", 3), dead_letters=letters, dead_letter_count=count))


def publish(store: Store, found: AgentCheckpoint) -> None:
    """Publish epoch 3 with this checkpoint of `bank-1` alone."""
    pack = store.write_pack(writer="h1.1", epoch=3, blobs=[("bank-1", encode_checkpoint(found))])
    lines = [
        agent_line(entry, pack=0, kind="tests:Bank", host="h1", incarnation=1) for entry in store.read_pack_index(pack)
    ]
    metadata = Metadata(epoch=3, created="2025-01-03T00:00:00Z", fleet="bank", trigger="period", hosts={"h1": 1})
    store.publish(3, store.write_manifest(Manifest(metadata, lines, [pack])))


def test_letters_are_numbered_as_they_came_and_older_ones_are_counted(run: Run, store: Path) -> None:
    with_dead_letters(store, 7)
    table = run("agent", "dead-letters", "list", "--store", store, "-o", "table").out.splitlines()
    assert [line.split()[:4] for line in table[1:3]] == [
        ["bank-1", "6", "bank-1", "(on_start)"],
        ["bank-1", "7", "b", "C()"],
    ]
    assert "KeyError: 'x'" in table[1] and "Traceback" not in table[1]
    assert table[3] == "and 5 others, which are not kept: older, or dropped"
    assert count_dead_letters(str(store), 3) == {"bank-1": (7, "Late")}
    assert count_dead_letters(str(store), 9) is None
    newest = run("agent", "dead-letters", "show", "bank-1", "--store", store).json
    assert (newest["number"], newest["error"]) == (7, "Late")
    shown = run("agent", "dead-letters", "show", "bank-1", "6", "--store", store, "-o", "table").out
    assert "(on_start)" in shown and "Traceback\nKeyError: 'x'\n" in shown


def with_errors(path: Path, errors: list[str]) -> None:
    """Epoch 3: `bank-1` has a dead letter with each of these errors."""
    import msgspec

    store = Store.open(path)
    letters = [DeadLetterRecord("b", b"\x01C\x80", error, 1, 0) for error in errors]
    found = msgspec.structs.replace(checkpoint_of("bank-1", 3), dead_letters=letters, dead_letter_count=len(letters))
    publish(store, found)


@pytest.mark.parametrize(
    ("errors", "limit", "listed", "beneath"),
    [
        (["A"] * 20, (), 20, ["", "COUNT  ERROR", "   20  A"]),
        (
            ["B", *["A"] * 24],
            (),
            20,
            ["and 5 more: `--limit 25` lists all", "", "COUNT  ERROR", "   24  A", "    1  B"],
        ),
        (["B", "A", "A"], ("--limit", "1"), 1, ["and 2 more: `--limit 3` lists all", "", "COUNT  ERROR"]),
        (["A", "B", "C"], ("--limit", "2"), 2, ["and 1 more: `--limit 3` lists all"]),
        (["A", "B"], (), 2, []),
        (["A", *map(str, range(12))] * 2, ("--limit", "99"), 26, ["", "COUNT  ERROR", "    2  A"]),
    ],
)
def test_the_first_letters_are_listed_and_all_are_counted_by_their_errors(
    run: Run, store: Path, errors: list[str], limit: tuple[str, ...], listed: int, beneath: list[str]
) -> None:
    with_errors(store, errors)
    where = ("agent", "dead-letters", "list", "--store", store, *limit)
    lines = [line.rstrip() for line in run(*where, "-o", "table").out.splitlines()]
    assert [line.split()[1] for line in lines[1 : listed + 1]] == [str(n) for n in range(1, listed + 1)]
    assert lines[listed + 1 :][: len(beneath)] == beneath and bool(lines[listed + 1 :]) == bool(beneath)
    if len(set(errors)) > 10:
        assert len(lines) == listed + 14 and lines[-1] == "and 3 other errors"


def test_json_lists_all_letters_unless_a_limit_is_given(run: Run, store: Path) -> None:
    with_errors(store, ["B", *["A"] * 24])
    where = ("agent", "dead-letters", "list", "--store", store)
    every, few = run(*where).json, run(*where, "--limit", "2").json
    assert (len(every["dead_letters"]), every["dead_letter_count"]) == (25, 25)
    assert every["errors"] == {"A": 24, "B": 1}
    assert few == {**every, "dead_letters": every["dead_letters"][:2]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bank-1", "5"], "has no dead letter 5 in epoch 3: give one of 6 to 7"),
        (["bank-1", "--snapshot", "2"], "agent 'bank-1' has no dead letters in epoch 2"),
        (["nobody"], "nobody"),
    ],
)
def test_letters_that_are_not_there(run: Run, store: Path, arguments: list[str], words: str) -> None:
    with_dead_letters(store, 7)
    done = run("agent", "dead-letters", "show", *arguments, "--store", store)
    assert (done.code, done.out) == (4, "") and words in done.err


def test_a_snapshot_without_letters(run: Run, store: Path) -> None:
    made = Store.open(store)
    manifest = made.read_manifest(made.read_ref(2))
    kept = [line for line in manifest.agents if line.agent == "bank-1"]
    metadata = Metadata(epoch=3, created="2025-01-03T00:00:00Z", fleet="bank", trigger="period", hosts={"h1": 1})
    made.publish(3, made.write_manifest(Manifest(metadata, kept, manifest.packs)))
    assert run("agent", "dead-letters", "list", "--store", store).json["dead_letters"] == []
    table = run("agent", "dead-letters", "list", "--store", store, "-o", "table").out
    assert table == "no dead letters in epoch 3\n"
