"""Forks as their users ask for them: fields that are set, changed code, inputs, and what is refused before anything is written."""

import copy
import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import snapline
from snapline.agent_runtime.agent import Agent, agent_type, state_version_of
from snapline.agent_runtime.durable import REFUSED
from snapline.agent_runtime.effect_ledger import UNDO
from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.message_encoding import encode_body, encode_message
from snapline.agent_runtime.snapshots.snapshot_forks import Fork, ForkRequest, SettingError, fork_snapshot
from snapline.errors import EncodingError, FleetDefinitionError, UsageError
from snapline.storage.capture.chunking import chunk_image
from snapline.storage.capture.encoder import StateEncoder
from snapline.storage.capture.image import ArenaPool
from snapline.storage.keys.key_files import generate_signing_key, generate_wrapping_key
from snapline.storage.log.log_record import LogBatch, LoggedEntry, LoggedInput, LogName
from snapline.storage.packs.checkpoint import (
    AgentCheckpoint,
    DeadLetterNumbers,
    DeadLetterRecord,
    InTransitMessage,
    JournalEntry,
    KnownEffect,
    MadeEffect,
    OpenEffect,
    SavedEffects,
    SavedInputs,
    SavedTurn,
    StashedMessage,
    encode_checkpoint,
)
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line, chunk_place
from snapline.storage.packs.pack import KIND_CHUNK, PackBlob
from snapline.storage.store.store import Holds, Store


class Note(msgspec.Struct):
    text: str
    stars: int = 0


@dataclass
class Mind:
    mood: str
    notes: list[Note] = field(default_factory=list)
    last: Note | None = None


class Book(msgspec.Struct):
    pages: int
    mind: Mind
    table: dict[str, int] = {}
    by_year: dict[int, Note] = {}
    ratio: float = 0.5
    names: set[str] = set()
    either: int | str = 0
    met: datetime.datetime | None = None


class Pair(msgspec.Struct, array_like=True, tag="pair"):
    left: int
    right: Note


class Reader(Agent):
    state: Book


class Weighed(msgspec.Struct):
    count: int
    weights: np.ndarray
    pair: Pair
    name: str = msgspec.field(name="n", default="")


class Weigher(Agent):
    state: Weighed

    @snapline.handler(durable=True)
    async def on_note(self, message: Note, ctx: snapline.Context) -> None:
        await ctx.sleep(1)


def reader_state() -> Book:
    mind = Mind("calm", [Note("a", 1), Note("b")], Note("z"))
    return Book(7, mind, {"x": 1}, {1999: Note("old")}, names={"n"})


def weigher_state() -> Weighed:
    return Weighed(3, np.arange(50_000.0), Pair(1, Note("r")), "w")


def made(agent: Agent, name: str, **more: Any) -> tuple[AgentCheckpoint, list[PackBlob]]:
    """A checkpoint as a host makes it, and the chunks of its state."""
    known = agent_type(type(agent))
    image = StateEncoder(ArenaPool()).encode(agent.state)
    parts = chunk_image(image, None).parts
    contents = [bytes(chunk.data or b"") for part in image.parts for chunk in part.chunks]
    digests = [chunk.digest for part in parts for chunk in part.chunks()]
    blobs = [PackBlob("", KIND_CHUNK, data, digest) for data, digest in zip(contents, digests, strict=True)]
    checkpoint = AgentCheckpoint(
        agent=name,
        kind=known.kind,
        epoch=4,
        number=2,
        state=bytes(image.skeleton),
        parts=parts,
        state_type=known.state_name,
        state_version=state_version_of(type(agent)),
        state_fields=known.state_fields,
    )
    return msgspec.structs.replace(checkpoint, **more), blobs


AGENTS: dict[str, Agent] = {"r": Reader(reader_state()), "r.one": Reader(reader_state()), "w": Weigher(weigher_state())}


def write(folder: Path, protocol: str = "chandy-lamport", **more: Mapping[str, Any]) -> Store:
    """Epoch 4 of three agents; `more`: fields of the checkpoint of an agent, whose dots are underscores."""
    store = Store.open_or_create(folder / "parent")
    written = [made(agent, name, **more.get(name.replace(".", "_"), {})) for name, agent in AGENTS.items()]
    chunks = {blob.digest: blob for _, blobs in written for blob in blobs}
    kinds = {x.agent: x for x, _ in written}
    encoded = [(x.agent, encode_checkpoint(x)) for x, _ in written]
    pack = store.write_pack(writer="h1.1", epoch=4, blobs=encoded, chunks=chunks.values())
    entries = store.read_pack_index(pack)
    lines = [
        agent_line(entry, pack=0, kind=kinds[entry.name].kind, host="h1", incarnation=1,
                   is_unborn=kinds[entry.name].is_unborn)
        for entry in entries if entry.name
    ]  # fmt: skip
    places = [chunk_place(entry, pack=0) for entry in entries if not entry.name]
    about = Metadata(epoch=4, fleet="library", cluster=store.store_id, plan=3, protocol=protocol, config_hash="cd")
    store.publish(4, store.write_manifest(Manifest(about, lines, [pack], places)))
    return store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write(tmp_path, r={"received": {"w": 4, "gone": 2}, "inputs": SavedInputs(2)})


def library(**options: Any) -> Fleet:
    return Fleet("library", agents=dict(AGENTS), **options)


def fork(store: Store, to: Path, *, settings: Mapping[str, str] | None = None, **options: Any) -> Fork:
    encoded = {place: value.encode() for place, value in (settings or {}).items()}
    fleet = options.pop("fleet", library())
    return fork_snapshot(store, 4, str(to), ForkRequest(name="f", settings=encoded, fleet=fleet, **options))


def states_of(store: str | Path) -> dict[str, Any]:
    snapshot = snapline.open_store(store, fleet=library()).snapshot()
    return {name: agent.state for name, agent in snapshot.agents.items()}


# ---- fields that are set --------------------------------------------------------------------------------------------


def set_pages(book: Book, value: Any) -> None:
    book.pages = value


def set_note(book: Book, value: Any) -> None:
    book.mind.notes[1].stars = value


PLACES: dict[str, tuple[Any, Any]] = {
    "pages": (st.integers(-(2**60), 2**60), set_pages),
    "mind.notes[1].stars": (st.integers(0, 9), set_note),
    "mind.mood": (st.text(max_size=5), lambda book, value: setattr(book.mind, "mood", value)),
    "mind.last.text": (st.text(max_size=5), lambda book, value: setattr(book.mind.last, "text", value)),
    "table.x": (st.integers(0, 9), lambda book, value: book.table.__setitem__("x", value)),
    'table["a b"]': (st.integers(0, 9), lambda book, value: book.table.__setitem__("a b", value)),
    "by_year[1999].stars": (st.integers(0, 9), lambda book, value: setattr(book.by_year[1999], "stars", value)),
    "ratio": (st.floats(0, 1), lambda book, value: setattr(book, "ratio", value)),
    "names": (st.lists(st.text(max_size=2)), lambda book, value: setattr(book, "names", set(value))),
    "either": (st.one_of(st.integers(0, 3), st.text(max_size=2)), lambda book, value: setattr(book, "either", value)),
}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_fork_differs_from_its_snapshot_by_what_was_set_alone(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("forks")
    source = write(folder)
    expected = {"r": reader_state(), "r.one": reader_state()}
    wished: dict[str, str] = {}
    for agent, book in expected.items():
        for place in data.draw(st.lists(st.sampled_from(sorted(PLACES)), unique=True)):
            values, act = PLACES[place]
            value = data.draw(values)
            act(book, copy.deepcopy(value))
            wished[f"{agent}.{place}"] = msgspec.json.encode(value).decode()
    report = fork(source, folder / "f", settings=wished)
    found = states_of(folder / "f")
    assert {name: found[name] for name in expected} == expected
    assert sorted(report.changed) == sorted(wished)
    old, new = (x.read_checkpoints(x.read_manifest(x.read_ref(4))) for x in (source, Store.open(folder / "f")))
    for before, after in zip(old, new, strict=True):
        assert msgspec.structs.replace(before, state=b"") == msgspec.structs.replace(after, state=b"")
        if not any(place.startswith(f"{before.agent}.") for place in wished):
            assert before == after


def test_plain_values_beside_arrays_and_in_records_that_are_arrays_can_be_set(store: Store, tmp_path: Path) -> None:
    fork(
        store, tmp_path / "f", settings={"w.count": "9", "w.pair.left": "5", "w.pair.right.stars": "4", "w.name": '"v"'}
    )
    state = states_of(tmp_path / "f")["w"]
    assert (state.count, state.pair, state.name) == (9, Pair(5, Note("r", 4)), "v")
    assert np.array_equal(state.weights, np.arange(50_000.0))


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("r.pages", "true", r"r.pages cannot be true: it is declared as int"),
        ("r.pages", "1.5", "declared as int"),
        ("r.mind.notes[0].stars", '"x"', "declared as int"),
        ("r.mind.notes[7].stars", "1", r"'mind.notes' in the state of r is list\[.*Note\], which has no 7"),
        ("r.paces", "1", "Book has no 'paces', but pages, mind, table"),
        ("r.mind.last.size", "1", "Note has no 'size', but text, stars"),
        ("r.pages.deep", "1", "'pages' in the state of r is int, which has no 'deep'"),
        ("r.by_year.tuesday", "{}", "'tuesday' is no key there"),
        ("r.by_year[2000].stars", "1", "there is no 2000 in 1999"),
        ("r.ratio", "null", "declared as float"),
        ("r.met", '"2026-01-02T12:00:00+02:00"', "keep it in UTC"),
        ("x.pages", "1", "'x.pages' names no field of an agent in the snapshot"),
        ("r", "1", "names no field of an agent"),
        ("w.weights", "[1]", "w.weights is an array, a history or the like"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence_and_nothing_is_written(
    place: str, value: str, words: str, store: Store, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=words):
        fork(store, tmp_path / "f", settings={"r.one.pages": "1", place: value})
    assert not (tmp_path / "f").exists()
    assert Holds(store, now_s=lambda: 0.0).pinned() == []


def test_fields_are_set_by_declared_types_only(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name the fleet's classes with --fleet"):
        fork(store, tmp_path / "f", settings={"r.pages": "1"}, fleet=None)


TURN = SavedTurn("message", "r", encode_message(Note("go")), b"s" * 16)


def test_the_state_of_a_durable_turn_in_its_middle_is_not_changed(tmp_path: Path) -> None:
    source = write(tmp_path, w={"saved_turn": TURN}, r={"is_unborn": True, "state": b""})
    fork(source, tmp_path / "f")
    for place, words in (("w.count", "in the middle of a durable turn"), ("r.pages", "the agent is not made yet")):
        with pytest.raises(SettingError, match=words):
            fork(source, tmp_path / "g", settings={place: "1"})


# ---- changed code ---------------------------------------------------------------------------------------------------


def test_a_durable_turn_whose_handler_is_gone_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, known = write(tmp_path, w={"saved_turn": TURN}), agent_type(Weigher)
    plain = msgspec.structs.replace(known.handlers["Note"], is_durable=False)
    for handlers, words in (({}, "has no handler for it"), ({"Note": plain}, "on_note is not durable any more")):
        monkeypatch.setitem(known.handlers, "Note", known.handlers["Note"])
        with monkeypatch.context() as patch:
            patch.setattr(
                "snapline.agent_runtime.snapshots.snapshot_forks.agent_type",
                lambda _, handlers=handlers: msgspec.structs.replace(known, handlers=handlers),
            )
            with pytest.raises(FleetDefinitionError, match=f"middle of a durable turn for 'Note'.*{words}"):
                fork(source, tmp_path / "f")
    assert not (tmp_path / "f").exists()


class Shelf(msgspec.Struct):
    size: int
    label: str = ""


class Keeper(Agent):
    state: Shelf
    state_version = 1


@snapline.migrates(Keeper, from_version=0)
def _measure(state: dict[str, Any]) -> dict[str, Any]:
    return {"size": len(state["items"])}


def keeper_store(folder: Path, version: int) -> Store:
    store = Store.create(folder / f"keeper-{version}")
    found = AgentCheckpoint(
        agent="k", kind=agent_type(Keeper).kind, epoch=4, state=encode_body({"items": [1, 2]}), state_type="Shelf",
        state_version=version, state_fields={"items": "list"},
    )  # fmt: skip
    pack = store.write_pack(writer="h1.1", epoch=4, blobs=[("k", encode_checkpoint(found))])
    lines = [agent_line(x, pack=0, kind=found.kind, host="h1", incarnation=1) for x in store.read_pack_index(pack)]
    about = Metadata(epoch=4, fleet="k", plan=1, protocol="chandy-lamport", config_hash="cd")
    store.publish(4, store.write_manifest(Manifest(about, lines, [pack])))
    return store


def test_states_are_migrated_where_a_field_is_set_and_left_to_the_hosts_elsewhere(tmp_path: Path) -> None:
    fleet = Fleet("k", agents={"k": Keeper(Shelf(0)), "l": Keeper(Shelf(0))})
    source = keeper_store(tmp_path, 0)
    report = fork(source, tmp_path / "f", fleet=fleet, settings={"k.label": '"top"'})
    agent = snapline.open_store(tmp_path / "f", fleet=fleet).snapshot().agents["k"]
    assert (agent.state, agent.state_version) == (Shelf(2, "top"), 1)
    assert report.not_begun == ("l",)
    fork(source, tmp_path / "g", fleet=fleet)
    agent = snapline.open_store(tmp_path / "g", fleet=fleet).snapshot().agents["k"]
    assert (agent.state, agent.state_version) == (Shelf(2), 0)


def test_a_state_that_nothing_migrates_and_a_class_that_is_gone_are_said_before_anything_is_written(
    store: Store, tmp_path: Path
) -> None:
    fleet = Fleet("k", agents={"k": Keeper(Shelf(0))})
    with pytest.raises(EncodingError, match="the checkpoint is of newer code"):
        fork(keeper_store(tmp_path, 2), tmp_path / "f", fleet=fleet)
    gone = write_kind(tmp_path, "tests.agent_runtime.test_forking:Vanished")
    with pytest.raises(EncodingError, match=r"there is no agent class 'tests.agent_runtime.test_forking:Vanished'"):
        fork(gone, tmp_path / "f", fleet=fleet)
    assert not (tmp_path / "f").exists()


def write_kind(folder: Path, kind: str) -> Store:
    store = Store.create(folder / "gone")
    blob = encode_checkpoint(AgentCheckpoint(agent="v", kind=kind, epoch=4))
    pack = store.write_pack(writer="h1.1", epoch=4, blobs=[("v", blob)])
    lines = [agent_line(x, pack=0, kind=kind, host="h1", incarnation=1) for x in store.read_pack_index(pack)]
    about = Metadata(epoch=4, fleet="k", plan=1, protocol="chandy-lamport", config_hash="cd")
    store.publish(4, store.write_manifest(Manifest(about, lines, [pack])))
    return store


def test_the_definition_is_the_parents_or_the_one_that_is_given(store: Store, tmp_path: Path) -> None:
    fork(store, tmp_path / "f", fleet=None)
    fork(store, tmp_path / "g")
    hashes = [
        x.read_manifest(x.read_ref(4)).metadata.config_hash for x in map(Store.open, (tmp_path / "f", tmp_path / "g"))
    ]
    assert hashes == ["cd", library().definition_digest().hex()]
    with pytest.raises(
        FleetDefinitionError, match="by protocol chandy-lamport, and fleet 'library' has bcs: a fork keeps it"
    ):
        fork(store, tmp_path / "h", fleet=library(protocol="bcs"))


def test_vectors_without_their_places_cannot_be_forked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="was written by an earlier release, and lacks what a fork under hmnr needs"):
        fork(write(tmp_path, "hmnr"), tmp_path / "f", fleet=None)


# ---- names and inputs -----------------------------------------------------------------------------------------------


def test_agents_that_have_left_are_remembered_and_a_fork_of_a_fork_says_so(store: Store, tmp_path: Path) -> None:
    report = fork(store, tmp_path / "f")
    first = Store.open(tmp_path / "f")
    record = first.fork_record()
    assert record is not None and record.gone == ["gone"]
    assert (report.parent, report.parent_name, report.cluster) == (store.store_id, "library", first.store_id)
    assert (report.agents, report.epoch, report.is_live, report.root) == (3, 4, False, first.read_ref(4))
    again = fork(first, tmp_path / "g", is_live=True)
    assert (again.parent, again.parent_name, again.is_live) == (first.store_id, "f", True)
    second = Store.open(tmp_path / "g").fork_record()
    assert second is not None and second.gone == ["gone"] and second.is_live


def log_inputs(store: Store, *numbers: int) -> None:
    log = LogName(3, "h1", 1)
    inputs = [LoggedInput("r", number, "c", f"k{number}", encode_message(Note("in")), 0) for number in numbers]
    inputs.append(LoggedInput("later", 1, "c", "k", b"", 0))
    assert store.append_batch(store.prepare_batch(log, 1, LogBatch(inputs)))


def test_inputs_beyond_the_snapshot_are_dropped_or_copied_by_word(store: Store, tmp_path: Path) -> None:
    log_inputs(store, 2, 3, 4)
    dropped = fork(store, tmp_path / "f")
    assert (dropped.inputs_copied, dropped.inputs_dropped) == (0, 2)
    assert Store.open(tmp_path / "f").read_logs() == {}
    copied = fork(store, tmp_path / "g", inputs="copy")
    assert (copied.inputs_copied, copied.inputs_dropped) == (2, 0)
    batch = Store.open(tmp_path / "g").read_batch(LogName(3, "fork", 0), 1)
    assert batch is not None and [(each.agent, each.number) for each in batch.inputs] == [("r", 3), ("r", 4)]


def test_inputs_that_are_not_kept_any_more_cannot_be_copied(store: Store, tmp_path: Path) -> None:
    log_inputs(store, 4, 5)
    with pytest.raises(UsageError, match=r"input 3 of agent 'r' is not kept any more.*--inputs drop"):
        fork(store, tmp_path / "f", inputs="copy")
    assert not (tmp_path / "f").exists()
    assert fork(store, tmp_path / "f").inputs_dropped == 2


def test_a_parent_that_is_deleted_afterwards_is_not_missed(tmp_path: Path) -> None:
    source = write(tmp_path, r={"in_transit": {"w": [InTransitMessage(1, 3, encode_message(Note("m")))]}})
    fork(source, tmp_path / "f")
    source.delete_epoch(4)
    snapshot = snapline.open_store(tmp_path / "f", fleet=library()).snapshot()
    assert [message.message for message in snapshot.in_transit] == [{"text": "m", "stars": 0}]


OPEN = OpenEffect("k", 1, b"12345678", "[]", 3, "pay", "m:undo", [b"\x01"])
MADE = MadeEffect("j", 1, "book", "m:undo")
ENDED = KnownEffect("j", 1, b"12345678", "done", b"\x01", "[]", 5)


def test_effects_that_are_open_in_the_snapshot_stay_the_parents(tmp_path: Path) -> None:
    standing = msgspec.structs.replace(TURN, waits=JournalEntry("effect", "pay", b"12345678"))
    undoing = [StashedMessage("w", UNDO + b"x"), StashedMessage("r", encode_message(Note("later")))]
    effects = SavedEffects([ENDED], [MADE], OPEN)
    source = write(tmp_path, w={"saved_turn": standing, "saved_effects": effects, "saved_stash": undoing})
    for is_live in (False, True):
        to = tmp_path / f"f-{is_live}"
        assert fork(source, to, is_live=is_live).effects_refused == 1
        store = Store.open(to)
        found = store.read_checkpoint(store.read_manifest(store.read_ref(4)), "w")
        assert found.turn is not None and found.turn.waits is None
        (entry,) = found.turn.journal
        assert entry.outcome == REFUSED and b"it is its parent's" in entry.result
        assert found.effects == SavedEffects([ENDED]) and found.stash == undoing[1:]


@pytest.mark.parametrize(("outcome", "expected"), [("done", "adopted"), ("failed", "refused")])
def test_a_fork_on_the_parents_answers_takes_the_outcome_of_the_open_effect(
    tmp_path: Path, outcome: str, expected: str
) -> None:
    asked = JournalEntry("effect", "pay", b"12345678")
    earlier = msgspec.structs.replace(asked, outcome="done", result=b"\x01")
    standing = msgspec.structs.replace(TURN, journal=[earlier], waits=asked)
    source = write(tmp_path, w={"saved_turn": standing, "saved_effects": SavedEffects([], [MADE], OPEN)})
    turn = source.read_checkpoint(source.read_manifest(source.read_ref(4)), "w").durable_turns
    later = msgspec.structs.replace(asked, outcome=outcome, result=b"\x02")
    entry = LoggedEntry("w", turn, standing.seed, 1, b"", later)
    batch = LogBatch([], [entry])
    assert source.append_batch(source.prepare_batch(LogName(3, "h1", 1), 1, batch))
    made = fork(source, tmp_path / "f", answers="parent")
    assert (made.answers, made.effects_refused) == (2, 0) if outcome == "done" else (1, 1)
    store = Store.open(tmp_path / "f")
    found = store.read_checkpoint(store.read_manifest(store.read_ref(4)), "w").turn
    assert found is not None and [x.outcome for x in found.journal] == ["done", expected]
    recorded = store.recorded_answers()
    assert recorded is not None and [x.occurrence for x in recorded.answers] == [1, 2][: made.answers]


def test_a_turn_that_undoes_is_gone_and_agents_without_effects_are_as_they_were(tmp_path: Path) -> None:
    turn = SavedTurn("stashed", "w", UNDO + b"x", b"s" * 16, waits=JournalEntry("effect", "pay/undo"))
    source = write(tmp_path, w={"saved_turn": turn, "saved_effects": SavedEffects([ENDED], [], OPEN)})
    fork(source, tmp_path / "f", settings={"w.count": "4"})
    store = Store.open(tmp_path / "f")
    found = store.read_checkpoint(store.read_manifest(store.read_ref(4)), "w")
    assert found.turn is None and found.effects == SavedEffects([ENDED])
    assert states_of(tmp_path / "f")["w"].count == 4


def begun_by(tmp_path: Path, **changes: Any) -> AgentCheckpoint:
    """What agent `w` begins with in a fork that may do effects."""
    fork(write(tmp_path, w=changes), tmp_path / "f", is_live=True)
    store = Store.open(tmp_path / "f")
    return store.read_checkpoint(store.read_manifest(store.read_ref(4)), "w")


def test_what_undoes_effects_without_keys_stays_the_parents_too(tmp_path: Path) -> None:
    """Such keys are forgotten with their turn: then the checkpoint has no other word of effects."""
    assert not begun_by(tmp_path, saved_stash=[StashedMessage("w", UNDO + b"x")]).stash


def test_a_turn_that_undoes_effects_without_keys_is_gone_too(tmp_path: Path) -> None:
    turn = SavedTurn("stashed", "w", UNDO + b"x", b"s" * 16, waits=JournalEntry("effect", "pay/undo"))
    assert begun_by(tmp_path, saved_turn=turn).turn is None


def test_an_effect_whose_intent_is_not_said_yet_is_the_parents_too(tmp_path: Path) -> None:
    """A checkpoint may be taken between the end of the segment and the intent; the parent goes on from there."""
    standing = msgspec.structs.replace(TURN, waits=JournalEntry("effect", "pay", b"12345678"))
    turn = begun_by(tmp_path, saved_turn=standing).turn
    assert turn is not None and turn.waits is None and turn.journal[-1].outcome == REFUSED


def test_what_a_failed_turn_of_the_parent_has_left_is_no_orphan_in_a_fork(tmp_path: Path) -> None:
    """A turn of the fork would take it over, and undo it if it fails, as the parent does."""
    left = msgspec.structs.replace(
        ENDED, is_orphan=True, name="book", undo="m:undo", undo_arguments=[b"\x01"], dead_letter=3
    )
    assert begun_by(tmp_path, saved_effects=SavedEffects([left])).effects == SavedEffects([ENDED])


def test_dead_letters_that_undo_are_not_taken_along(tmp_path: Path) -> None:
    letters = [DeadLetterRecord("w", payload, "e", 1, 0) for payload in (b"\x01a", UNDO + b"x", b"\x01b")]
    found = begun_by(tmp_path, dead_letters=letters, dead_letter_count=5)
    assert [letter.payload for letter in found.dead_letters] == [b"\x01a", b"\x01b"]
    assert found.dead_letter_numbers == DeadLetterNumbers(5, [3, 5]) and found.dead_letter_count == 5


@pytest.mark.parametrize("is_signed", [False, True])
def test_a_fork_takes_its_keys_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_signed: bool
) -> None:
    """Else what is secret in the parent would stand there for all to read, and a fork of a signed fleet be nobody's."""
    for variable in ("SNAPLINE_STORE_KEY", "SNAPLINE_SIGNING_KEY", "SNAPLINE_VERIFY_KEY"):
        monkeypatch.delenv(variable, raising=False)
    secret = b"kept from strangers"
    inner = {"dead_letters": [DeadLetterRecord("w", b"\x01a" + secret, "e", 1, 0)], "dead_letter_count": 1}
    source = write(tmp_path, w=inner)
    generate_wrapping_key(tmp_path / "key")
    monkeypatch.setenv("SNAPLINE_STORE_KEY", str(tmp_path / "key"))
    if is_signed:
        generate_signing_key(tmp_path / "sign", tmp_path / "verify")
        monkeypatch.setenv("SNAPLINE_SIGNING_KEY", str(tmp_path / "sign"))
        monkeypatch.setenv("SNAPLINE_VERIFY_KEY", str(tmp_path / "verify"))
    fork(source, tmp_path / "f", settings={"w.count": "4"})
    assert states_of(tmp_path / "f")["w"].count == 4 and Store.open(tmp_path / "f").verify().is_whole
    files = [path for path in (tmp_path / "f").rglob("*") if path.is_file()]
    assert files and not [path for path in files if secret in path.read_bytes()]
