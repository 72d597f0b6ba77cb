"""Epochs that store only what changed: whatever is written, aborted, deleted and loaded, a state comes back as it was.

The oracle is a copy of the state at the moment of its capture; it knows nothing of chunks.
"""

import copy
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import snapline
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.checkpoint_writer import ChunkTables
from snapline.agent_runtime.host.epoch_files import Capture, LoadedLine, StoredEpoch, load_line, write_epoch
from snapline.agent_runtime.host.host_state import DurableTurn
from snapline.agent_runtime.host.turns import Turns
from snapline.errors import SnaplineError, StoreError
from snapline.protocols.epoch_stamped import RecordedPart
from snapline.storage.capture import chunking
from snapline.storage.capture.history import History
from snapline.storage.capture.image import ARENA_IMAGES_MAX, ArenaBusyError, ChunkTable
from snapline.storage.capture.values import Blob
from snapline.storage.packs.checkpoint import JournalEntry, SavedTurn
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.packs.pack import PackReference
from snapline.storage.store.store import Store

CHUNK = 64 * 1024


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of journals: so that a few entries fill some."""
    monkeypatch.setattr(chunking, "RUN_ENTRIES", 3)


LENGTH = 20 * CHUNK // 8


class Line(snapline.Message):
    text: str
    number: int


class Memory(msgspec.Struct):
    turns: int
    weights: np.ndarray[Any, Any]
    chat: History[Line]
    document: Blob


class Thinker(snapline.Agent):
    state: Memory
    on_error = "keep"


def make(seed: int) -> Memory:
    numbers = np.random.default_rng(seed)
    chat: History[Line] = History([Line(f"hello {seed}", i) for i in range(5)])
    return Memory(0, numbers.random(LENGTH), chat, Blob(numbers.bytes(300_000)))


fleet = snapline.Fleet("thinkers", agents={"a": Thinker(make(1)), "b": Thinker(make(2))})


def same(first: Memory, second: Memory) -> bool:
    return (
        first.turns == second.turns
        and np.array_equal(first.weights, second.weights)
        and list(first.chat) == list(second.chat)
        and first.document.data == second.document.data
    )


class Host:
    """One host with two agents, its store, and a coordinator that keeps its word."""

    def __init__(self, path: Path) -> None:
        self.store = Store.create(path)
        self.turns = Turns(fleet, lambda event: None, lambda text: None)
        self.tables = ChunkTables()
        self.epoch = 0
        self.open: dict[int, tuple[StoredEpoch, dict[str, Memory]]] = {}
        self.complete: dict[int, dict[str, Memory]] = {}
        self.turn = DurableTurn(SavedTurn("message", "b", b"\x02Go", bytes(16)))
        self.journals: dict[int, list[JournalEntry]] = {}
        for agent in ("a", "b"):
            self.turns.add(agent, fleet.make(agent))

    def state(self, agent: str) -> Memory:
        found: Memory = self.turns.object_of(agent).state
        return found

    def change(self, agent: str, place: int, count: int) -> None:
        state = self.state(agent)
        state.turns += 1
        if agent == "a":
            self.ask(place % 7)
        state.weights[place % LENGTH : place % LENGTH + count] += 1.0
        state.chat.append(Line(f"turn {state.turns}", place))
        if place % 5 == 0 and len(state.chat) > 3:
            del state.chat[place % 3]
        if place % 11 == 0:
            state.document = Blob(state.document.data[:1000] + b"more" + state.document.data[1000:])

    def ask(self, count: int) -> None:
        """The durable turn of `a` goes on by as many entries."""
        for _ in range(count):
            number = len(self.turn.journal)
            self.turn.journal.append(JournalEntry("step", f"s{number}", b"", "done", number.to_bytes(8, "big")))

    def write(self) -> int:
        self.epoch += 1
        self.journals[self.epoch] = list(self.turn.journal)
        copies, captures = {}, {}
        for agent in ("a", "b"):
            copies[agent] = copy.deepcopy(self.state(agent))
            base = self.tables.base_of(agent)
            known, version, image = self.turns.capture(agent, base)
            control = ev.Control(1, self.epoch, True, True, False, [], [], [], [], 0)
            if agent == "a":
                turn, sealed = self.turn.saved()
                control = msgspec.structs.replace(control, turn=turn, sealed=sealed)
            captures[agent] = Capture(known, version, image, control, 1, 2, self.tables.base_epoch, base)
        self.change("a", 17, 3)  # What happens after the capture is not in it.
        records = {agent: RecordedPart(self.epoch, False, {}, {}, {}) for agent in captures}
        stored = write_epoch(self.store, "h1-1", 1, ev.StoreEpoch(self.epoch, 1, records, {}), captures)
        for capture in captures.values():
            capture.release()
        self.tables.written(self.epoch, stored.tables)
        self.open[self.epoch] = stored, copies
        return self.epoch

    def end(self, epoch: int, *, is_complete: bool) -> None:
        stored, copies = self.open.pop(epoch)
        if is_complete:
            pack = stored.report.pack
            reference = PackReference(pack.path, pack.size_bytes, pack.index_digest)
            bases = {number: self.store.read_ref(number) for number in self.complete}
            gathered = self.store.gather([reference], epoch=epoch, bases=bases)
            entries = gathered.checkpoints[0].values()
            lines = [agent_line(entry, pack=0, kind="", host="h1", incarnation=1) for entry in entries]
            manifest = Manifest(Metadata(epoch=epoch), lines, gathered.packs, gathered.chunks)
            self.store.publish(epoch, self.store.write_manifest(manifest))
            self.complete[epoch] = copies
        self.tables.ended(epoch, is_complete=is_complete)

    def recover(self, epoch: int) -> None:
        self.open.clear()
        command = ev.LoadAgents(2, epoch, self.store.read_ref(epoch), self.places())
        found = load_line(self.store, fleet, command)
        self.turns.forget_all()
        for agent, made in found.objects.items():
            assert same(made.state, self.complete[epoch][agent])
            self.turns.add(agent, made)
        self.turn = DurableTurn(self.turn_of(found, epoch))
        self.tables.loaded(epoch, found.tables)

    def places(self) -> tuple[ev.Placement, ...]:
        return tuple(ev.Placement(agent, "", "h1", 2) for agent in ("a", "b"))

    def turn_of(self, found: LoadedLine, epoch: int) -> SavedTurn:
        """The durable turn of `a`, with its whole journal."""
        checkpoint = found.agents[0].checkpoint
        assert checkpoint is not None and checkpoint.turn is not None
        assert checkpoint.turn.journal == self.journals[epoch] and checkpoint.journal_part is None
        return checkpoint.turn

    def delete(self, epoch: int) -> None:
        self.store.delete_epoch(epoch)
        del self.complete[epoch]

    def check(self) -> None:
        """Every epoch that is there restores exactly, and nothing else lies in the store but what is open."""
        for epoch, copies in self.complete.items():
            command = ev.LoadAgents(2, epoch, self.store.read_ref(epoch), self.places())
            found = load_line(self.store, fleet, command)
            for agent, made in found.objects.items():
                assert same(made.state, copies[agent])
            self.turn_of(found, epoch)
        self.store.delete_unreferenced(begun_below=self.epoch + 1, open_epochs=self.open)
        verification = self.store.verify()
        assert verification.is_whole, verification.findings


def test_an_epoch_writes_what_changed(tmp_path: Path) -> None:
    host = Host(tmp_path / "store")
    host.end(host.write(), is_complete=True)
    host.change("b", 3 * CHUNK // 8, 10)
    epoch = host.write()
    size_bytes = host.open[epoch][0].report.pack.size_bytes
    assert size_bytes < 3 * CHUNK, "one chunk of each agent's weights has changed"
    host.end(epoch, is_complete=True)
    host.delete(1)
    host.check()


def test_an_epoch_writes_what_a_journal_has_got_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And after a recovery too, though the runs were cut again."""
    monkeypatch.setattr(chunking, "RUN_ENTRIES", 1000)
    host = Host(tmp_path / "store")
    host.ask(10_000)
    sizes = []
    for _ in range(4):
        epoch = host.write()
        sizes.append(host.open[epoch][0].report.pack.size_bytes)
        host.end(epoch, is_complete=True)
        host.ask(20)
        if epoch == 2:
            host.recover(epoch)
    host.check()
    whole = len(msgspec.msgpack.encode(host.turn.journal))
    assert whole > 300_000 and all(size < 4 * CHUNK + 20_000 for size in sizes[1:]), (sizes, whole)


def test_a_journal_is_counted_without_being_read(tmp_path: Path) -> None:
    host = Host(tmp_path / "store")
    host.ask(8)
    epoch = host.write()
    host.end(epoch, is_complete=True)
    checkpoint = host.store.read_checkpoint(host.store.read_manifest(host.store.read_ref(epoch)), "a")
    assert checkpoint.turn is not None and len(checkpoint.turn.journal) == 2 and checkpoint.journal_entries == 8


def test_two_agents_with_the_same_content_write_it_once(tmp_path: Path) -> None:
    host = Host(tmp_path / "store")
    host.state("b").weights[:] = host.state("a").weights
    epoch = host.write()
    assert host.open[epoch][0].report.pack.size_bytes < 1.2 * (LENGTH * 8 + 2 * 300_000)
    host.end(epoch, is_complete=True)
    host.check()


def test_many_chunks_go_into_packs_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapline.agent_runtime.host.epoch_files.CHUNK_PACK_BYTES", 5 * CHUNK)
    host = Host(tmp_path / "store")
    for _ in range(2):
        host.end(host.write(), is_complete=True)
        host.state("a").weights += 1
    manifest = host.store.read_manifest(host.store.read_ref(1))
    assert len(manifest.packs) > 5
    host.check()


def test_a_base_that_is_not_kept_any_more_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    host = Host(tmp_path / "store")
    for _ in range(2):
        host.end(host.write(), is_complete=True)
    epoch = host.write()
    host.delete(2)
    with pytest.raises(StoreError, match="written over epoch 2, which is not kept any more"):
        host.end(epoch, is_complete=True)
    host.check()


Step = tuple[str, int, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.integers(0, 10**6), st.integers(1, 2 * CHUNK // 8)),
        st.tuples(st.just("write"), st.just(0), st.just(0)),
        st.tuples(st.just("complete"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("abort"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("recover"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("delete"), st.just(0), st.just(0)),
    ),
    min_size=5,
    max_size=25,
)


def play(host: Host, steps: list[Step]) -> None:
    """Carry the steps out as far as they are possible. As the coordinator does, the newest two epochs are kept."""
    for what, number, count in steps:
        if what == "change":
            host.change("ab"[number % 2], number, count)
        elif what == "write" and len(host.open) < 3:
            host.write()
        elif what in ("complete", "abort") and host.open:
            epoch = sorted(host.open)[number % len(host.open)]
            host.end(epoch, is_complete=what == "complete")
        elif what == "recover" and host.complete:
            epoch = sorted(host.complete)[-1 - number % min(2, len(host.complete))]
            for later in [each for each in host.complete if each > epoch]:
                host.delete(later)
            host.recover(epoch)
        elif what == "delete" and len(host.complete) > 3:
            host.delete(min(host.complete))


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_whatever_happens_states_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    host = Host(tmp_path_factory.mktemp("store") / "store")
    play(host, [("write", 0, 0), ("complete", 0, 0), *steps, ("write", 0, 0), ("complete", 0, 0)])
    host.check()


def _forget_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """An aborted epoch becomes the base."""
    ended = ChunkTables.ended
    monkeypatch.setattr(ChunkTables, "ended", lambda self, epoch, is_complete: ended(self, epoch, is_complete=True))


def _keep_old_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan does not change the base."""
    monkeypatch.setattr(ChunkTables, "loaded", lambda self, epoch, tables: None)


def _forget_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that came back lacks its beginning."""
    monkeypatch.setattr("snapline.agent_runtime.host.epoch_files.whole_turn", lambda checkpoint, content: checkpoint)


def _cut_where_the_checkpoint_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is not in the checkpoint."""
    saved = DurableTurn.saved
    monkeypatch.setattr(DurableTurn, "saved", lambda turn: (replace(saved(turn)[0], journal=[]), saved(turn)[1]))


def _delete_all_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletion does not ask what other manifests name."""
    monkeypatch.setattr("snapline.storage.retention.epoch_retention._NamedPacks.needs", lambda self, path: False)


@pytest.mark.parametrize(
    "mutant", [_forget_the_base, _keep_old_tables, _forget_the_runs, _cut_where_the_checkpoint_is, _delete_all_packs]
)
def test_the_property_catches(mutant: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    steps: list[Step] = [("write", 0, 0), ("complete", 0, 0), ("change", 6, 5), ("write", 0, 0), ("abort", 0, 0)]
    steps += [("write", 0, 0), ("complete", 0, 0), ("write", 0, 0), ("complete", 0, 0), ("recover", 1, 0)]
    steps += [
        ("change", 8, 5),
        ("write", 0, 0),
        ("complete", 0, 0),
        ("write", 0, 0),
        ("complete", 0, 0),
        ("delete", 0, 0),
    ]
    with pytest.raises((AssertionError, SnaplineError)):
        play(Host(tmp_path / "store"), steps)
        host = Host(tmp_path / "other")
        play(host, steps)
        host.check()


class Crowd(msgspec.Struct):
    people: dict[str, list[int]]


class Crowded(snapline.Agent):
    state: Crowd
    on_error = "keep"
    capture = "fork"


def test_a_child_process_encodes_the_state_of_the_capture() -> None:
    """What the agent does afterwards is not in the image, though nothing was copied."""
    turns = Turns(fleet, lambda event: None, lambda text: pytest.fail(text))
    turns.add("c", Crowded(Crowd({str(i): [i] for i in range(1000)})))
    known, _, image = turns.capture("c")
    assert image.pending is not None
    turns.object_of("c").state.people.clear()
    image.resolve()
    assert known.state_decoder.decode(image.skeleton) == Crowd({str(i): [i] for i in range(1000)})
    image.release()


def test_images_that_wait_for_the_store_refuse_an_epoch_but_no_checkpoint_of_ones_own() -> None:
    """An epoch can be taken again. What a protocol forces before a message is handled cannot."""
    for protocol in ("chandy-lamport", "bcs"):
        other = snapline.Fleet("thinkers", agents={"a": Thinker(make(1))}, protocol=protocol)
        turns = Turns(other, lambda event: None, lambda text: None)
        turns.add("a", other.make("a"))
        waiting = [turns.capture("a")[2] for _ in range(ARENA_IMAGES_MAX)]
        if protocol == "bcs":
            turns.capture("a")[2].release()
        else:
            with pytest.raises(ArenaBusyError, match="slower than the checkpoints"):
                turns.capture("a")
        for image in waiting:
            image.release()


def test_no_child_encodes_a_checkpoint_that_could_not_be_taken_again() -> None:
    other = snapline.Fleet("crowds", agents={"c": Crowded(Crowd({}))}, protocol="bcs")
    turns = Turns(other, lambda event: None, lambda text: pytest.fail(text))
    turns.add("c", other.make("c"))
    assert turns.capture("c")[2].pending is None


def test_an_epoch_whose_tables_are_gone_ends_the_base_all_the_same() -> None:
    """The base before it may be forgotten: each epoch written over that one would be refused, for ever."""
    tables = ChunkTables()
    a = ChunkTable()
    tables.loaded(4, {"a": a})
    assert tables.base_of("a") is not None
    tables.ended(5, is_complete=False)
    assert tables.base_epoch == 4
    tables.ended(6, is_complete=True)
    assert tables.base_epoch == 6 and tables.base_of("a") is None
