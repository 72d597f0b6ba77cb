"""Reading snapshots in a program: with the fleet's code and without, and never what was not written."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.agent_runtime.test_cut import CREATION, Account, Move, Teller, Unhandled, Written, capture, record
from tests.agent_runtime.test_cut import fleet as tellers
from tests.agent_runtime.test_incremental_epochs import CHUNK, Host, Line, Memory
from tests.agent_runtime.test_incremental_epochs import fleet as thinkers
from tests.storage.object_servers import BUCKET, FakeS3, fake_s3

import snapline
from snapline.agent_runtime.message_encoding import encode_body, encode_message
from snapline.errors import DamagedDataError, EncodingError, NotFoundError, StoreError, StoreMissingError, UsageError
from snapline.storage.capture import saved_value_formats
from snapline.storage.capture.decoder import PartReader
from snapline.storage.keys.key_files import generate_wrapping_key, read_keys
from snapline.storage.packs.checkpoint import AgentCheckpoint, DeadLetterRecord, ParkedMessage, SavedTimer, SpawnRequest
from snapline.storage.packs.checkpoint import encode_checkpoint as encode
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.store.store import Store


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Two agents with arrays, histories and blobs, and one complete epoch."""
    made = Host(tmp_path / "store")
    made.end(made.write(), is_complete=True)
    return made


@pytest.fixture
def snapshot(host: Host) -> snapline.Snapshot:
    return snapline.open_store(host.store.location).snapshot()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many bytes of parts each call has read."""
    sizes: list[int] = []
    read = PartReader.read

    def counted(self: PartReader, agent: str, parts: Any) -> Any:
        sizes.append(sum(part.size_bytes for part in parts))
        return read(self, agent, parts)

    monkeypatch.setattr(PartReader, "read", counted)
    yield sizes


# ---- states ---------------------------------------------------------------------------------------------------------


def test_without_the_fleet_a_state_is_plain_values(host: Host, snapshot: snapline.Snapshot) -> None:
    expected = host.complete[1]["a"]
    state = snapshot.agents["a"].state
    assert list(state) == ["turns", "weights", "chat", "document"] and state["turns"] == 0
    assert isinstance(state["weights"], np.ndarray) and np.array_equal(state["weights"], expected.weights)
    assert state["chat"] == [{"text": line.text, "number": line.number} for line in expected.chat]
    assert state["document"] == expected.document.data
    state["weights"][0] = 1.0  # its own memory


def test_with_the_fleet_a_state_is_of_its_class(host: Host) -> None:
    state = snapline.open_store(host.store.location, fleet=thinkers).snapshot(1).agents["b"].state
    assert isinstance(state, Memory) and isinstance(state.chat[0], Line)
    assert np.array_equal(state.weights, host.complete[1]["b"].weights)


def test_a_state_may_be_read_as_a_type_of_the_reader_s_own(snapshot: snapline.Snapshot) -> None:
    class Chat(msgspec.Struct):
        chat: snapline.History[Line]

    assert snapshot.agents["a"].state_as(Chat).chat[0] == Line("hello 1", 0)
    with pytest.raises(EncodingError, match="does not decode as declared"):
        snapshot.agents["a"].state_as(Account)


def test_a_class_that_is_gone_leaves_plain_values(written: Written) -> None:
    """`kind` names a class that no fleet has: what it wrote can be read all the same."""
    other = snapline.Fleet("other", agents={"x": Teller(Account(1))})
    store = put(written.store, AgentCheckpoint(agent="a", kind="gone:Gone", epoch=1, state=encode_body({"n": 1})))
    assert snapline.open_store(store.location, fleet=other).snapshot().agents["a"].state == {"n": 1}


def test_a_state_that_is_not_what_its_class_declares_is_an_error(written: Written) -> None:
    state = encode_body({"balance": "many"})
    kind = f"{Teller.__module__}:Teller"
    store = put(written.store, AgentCheckpoint(agent="a", kind=kind, epoch=1, state=state, state_type="Account"))
    with pytest.raises(EncodingError, match=r"the state type of agent 'a'.* has changed"):
        _ = snapline.open_store(store.location, fleet=tellers).snapshot().agents["a"].state
    assert snapline.open_store(store.location).snapshot().agents["a"].state == {"balance": "many"}


def test_one_field_is_read_without_the_rest(reads: list[int], snapshot: snapline.Snapshot) -> None:
    agent = snapshot.agents["a"]
    assert agent.field("turns") == 0 and reads == []
    assert agent.field("chat[2].text") == "hello 1" and sum(reads) < 1000
    assert agent.field("chat")[4] == {"text": "hello 1", "number": 4}


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("mood", NotFoundError, "the state has no 'mood': it has turns, weights, chat, document"),
        ("chat[9]", NotFoundError, "the field 'chat' is a list of 5: it has no 9"),
        ("chat[0].mood", NotFoundError, r"the field 'chat\[0\]' has no 'mood': it has text, number"),
        ("turns.x", NotFoundError, "the field 'turns' has no fields: it is int"),
        ("weights[0]", NotFoundError, "it is <array <f8"),
        ("chat[", UsageError, "no path of a field"),
    ],
)
def test_a_path_that_leads_nowhere_says_what_is_there(
    snapshot: snapline.Snapshot, path: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        snapshot.agents["a"].field(path)


def test_keys_of_any_text_are_named_as_differences_name_them(written: Written) -> None:
    state = {"table": {"odd key": {7: [1, 2]}, "a.b": 3}}
    store = put(written.store, AgentCheckpoint(agent="a", kind="m:A", epoch=1, state=encode_body(state)))
    agent = snapline.open_store(store.location).snapshot().agents["a"]
    assert agent.field("table['odd key'][7][-1]") == 2 and agent.field('table["a.b"]') == 3


class Place(msgspec.Struct, frozen=True):
    x: int
    y: int


def test_records_as_keys_are_read_as_their_pairs(written: Written) -> None:
    """Without their class nothing else could stand for them; the state is not damaged."""
    state = encode_body({"table": {Place(1, 2): {Place(3, 4): "x"}}, "rest": 1})
    store = put(written.store, AgentCheckpoint(agent="a", kind="m:A", epoch=1, state=state))
    agent = snapline.open_store(store.location).snapshot().agents["a"]
    assert agent.state["table"][("x", 1), ("y", 2)] == {(("x", 3), ("y", 4)): "x"}
    assert agent.field("table[(('x', 1), ('y', 2))]") == {(("x", 3), ("y", 4)): "x"} and agent.field("rest") == 1
    assert "((&#x27;x&#x27;, 3)," in agent._repr_html_()


def test_a_description_reads_one_chunk_of_an_array(reads: list[int], snapshot: snapline.Snapshot) -> None:
    shown: Any = snapshot.agents["a"].describe()
    assert len(shown["weights"]["values"]) == 9 and shown["weights"]["values"][-1] == "…"
    assert shown["chat"]["records"] == 5 and shown["chat"]["first"][0] == {"text": "hello 1", "number": 0}
    assert shown["document"] == {"bytes": 300_000}
    assert max(reads) == CHUNK and len(reads) == 2
    assert snapshot.agents["a"].describe(reads_parts=False) == {
        "turns": 0,
        "weights": {"dtype": "<f8", "shape": [20 * CHUNK // 8], "bytes": 20 * CHUNK},
        "chat": {"records": 5, "bytes": shown["chat"]["bytes"]},
        "document": {"bytes": 300_000},
    }
    assert len(reads) == 2


def test_without_numpy_arrays_are_named_and_the_rest_is_read(
    snapshot: snapline.Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(UsageError, match=r"install snapline\[numpy\]"):
        _ = snapshot.agents["a"].state
    shown: Any = snapshot.agents["a"].describe()
    assert isinstance(shown["weights"]["values"][0], float)
    assert snapshot.agents["a"].field("turns") == 0


def test_a_pickle_is_not_opened(written: Written) -> None:
    bomb = msgspec.msgpack.Ext(6, b"\0cos\n_exit\n(I3\ntR.")
    store = put(written.store, AgentCheckpoint(agent="a", kind="m:A", epoch=1, state=msgspec.msgpack.encode([bomb])))
    agent = snapline.open_store(store.location).snapshot().agents["a"]
    assert agent.state == [b"cos\n_exit\n(I3\ntR."] and agent.describe() == ["<pickle, 17 bytes>"]


# ---- what lies beside states ----------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "written")


def put(store: Store, checkpoint: AgentCheckpoint) -> Store:
    """An epoch 1 with one agent."""
    pack = store.write_pack(writer="h1.1", epoch=1, blobs=[(checkpoint.agent, encode(checkpoint))])
    (entry,) = store.read_pack_index(pack)
    line = agent_line(entry, pack=0, kind=checkpoint.kind, host="h1", incarnation=1)
    store.publish(1, store.write_manifest(Manifest(Metadata(epoch=1, fleet="<f>"), [line], [pack])))
    return store


def write_all(written: Written) -> None:
    """Two agents with something of everything, and one that is not born yet."""
    move, nobody = encode_message(Move(1)), encode_message(Unhandled("x"))
    changed = {
        "outbox": [ParkedMessage("b", move)],
        "timers": [SavedTimer("tick", 1_500_000_000, move)],
        "spawns": [SpawnRequest("d", "m:D", b"")],
        "dead_letters": [
            DeadLetterRecord("b", nobody, "NoHandlerError: no", 3, 5 * 10**9),
            DeadLetterRecord("a", b"", "no", 1, 0),
        ],
        "dead_letter_count": 102,
    }
    records = {
        "a": record({"c": 1}, in_transit={"b": [move, nobody]}),
        "b": record({"a": 2}),
        "c": record(is_unborn=True, in_transit={"a": [CREATION, move]}),
    }
    written.write(records, {"a": capture(Account(1), **changed), "b": capture(Account(2))})


@pytest.mark.parametrize("with_fleet", [False, True])
def test_messages_timers_spawns_and_dead_letters_are_shown(written: Written, with_fleet: bool) -> None:
    write_all(written)
    snapshot = snapline.open_store(written.store.location, fleet=tellers if with_fleet else None).snapshot()
    move = Move(1) if with_fleet else {"amount": 1}
    agent = snapshot.agents["a"]
    first, second = agent.channels["b"]
    assert first == snapline.TransitMessage("b", "a", 1, move, "Move")
    assert second == snapline.TransitMessage("b", "a", 2, {"why": "x"}, "Unhandled")
    assert agent.outbox == (snapline.TransitMessage("a", "b", None, move, "Move"),)
    assert agent.pending_timers == (snapline.PendingTimer("a", "tick", 1.5, move, "Move"),)
    assert agent.pending_spawns == (snapline.PendingSpawn("a", "d", "m:D"),)
    letter = snapline.DeadLetter("a", "b", {"why": "x"}, "Unhandled", "NoHandlerError: no", 3, 5.0, 101)
    assert agent.dead_letters == (letter, snapline.DeadLetter("a", "a", None, "", "no", 1, 0.0, 102))
    assert agent.dead_letter_count == 102
    assert snapshot.dead_letters == agent.dead_letters and snapshot.pending_timers == agent.pending_timers
    assert snapshot.pending_spawns == agent.pending_spawns
    assert list(snapshot.channels) == [("b", "a"), ("a", "c")] and len(snapshot.in_transit) == 5
    assert snapshot.channels["a", "c"][0].message is None
    unborn = snapshot.agents["c"]
    assert unborn.is_unborn and unborn.state is None and unborn.channels["a"][1].type == "Move"


def test_a_cut_has_the_same(written: Written) -> None:
    """What `stop_when` and invariants see."""
    write_all(written)
    cut, snapshot = written.cut(), snapline.open_store(written.store.location, fleet=tellers).snapshot()
    assert cut.dead_letters == snapshot.dead_letters and cut.dead_letter_count == 102
    assert cut.pending_timers == snapshot.pending_timers and cut.timers == 1
    assert cut.pending_spawns == snapshot.pending_spawns
    to_a = [message for message in cut.in_transit if message.receiver == "a"]
    assert tuple(to_a) == snapshot.channels["b", "a"] and len(cut.in_transit) == len(snapshot.in_transit)
    assert repr(cut) == "<Cut of epoch 1: 2 agents, 5 messages in transit>"


# ---- opening --------------------------------------------------------------------------------------------------------


def test_snapshots_are_found_as_the_command_line_finds_them(host: Host) -> None:
    host.end(host.write(), is_complete=True)
    store = snapline.open_store(Path(host.store.location))
    assert store.epochs == [1, 2] and len(store) == 2 and [snapshot.epoch for snapshot in store] == [1, 2]
    latest = store.snapshot()
    assert latest.epoch == 2 and latest.root == host.store.read_ref(2)
    assert store.snapshot(1).epoch == store.snapshot("1").epoch == 1
    assert store.snapshot(latest.root[:8]).epoch == 2
    assert list(latest.agents) == ["a", "b"] and "a" in latest.agents and "z" not in latest.agents
    assert latest.agents.get("z") is None and len(latest.agents) == 2


def test_what_is_not_there_is_named(host: Host, tmp_path: Path) -> None:
    with pytest.raises(StoreMissingError, match="there is no store at"):
        snapline.open_store(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no scheme of a store"):
        snapline.open_store("ftp://host/store")
    store = snapline.open_store(host.store.location)
    with pytest.raises(NotFoundError, match="no snapshot '7' in the store"):
        store.snapshot(7)
    with pytest.raises(NotFoundError, match="agent 'z' is not in epoch 1, which has 2 agents"):
        _ = store.snapshot().agents["z"]


def test_a_bucket_is_read_as_a_folder_is(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = AgentCheckpoint(agent="a", kind="m:A", epoch=1, state=encode_body({"n": 1}))
    fake = FakeS3()
    with fake_s3(fake) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        put(Store.create(f"s3://{BUCKET}/fleet"), checkpoint)
        before = dict(fake.objects)
        assert snapline.open_store(f"s3://{BUCKET}/fleet").snapshot("latest").agents["a"].state == {"n": 1}
        assert fake.objects == before
        fake.forbidden = ("PUT", "DELETE")
        assert snapline.open_store(f"s3://{BUCKET}/fleet").epochs == [1]
        with pytest.raises(StoreMissingError):
            snapline.open_store(f"s3://{BUCKET}/other")


def test_an_encrypted_store_takes_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, location = tmp_path / "key", tmp_path / "secret"
    generate_wrapping_key(key)
    store = Store.create(location, keys=read_keys(store_keys=[key]))
    put(store, AgentCheckpoint(agent="a", kind="m:A", epoch=1, state=encode_body({"n": 1})))
    with pytest.raises(StoreError, match="SNAPLINE_STORE_KEY"):
        snapline.open_store(location)
    assert snapline.open_store(location, store_keys=key).snapshot().agents["a"].state == {"n": 1}
    monkeypatch.setenv("SNAPLINE_STORE_KEY", str(key))
    assert snapline.open_store(location).snapshot().agents["a"].state == {"n": 1}


def test_what_is_damaged_is_never_shown(host: Host) -> None:
    """One chunk of an array has changed: the state is refused, and what does not need the chunk is still read."""
    (pack,) = (Path(host.store.location) / "packs" / "h1-1").iterdir()
    data = bytearray(pack.read_bytes())
    place = data.index(host.complete[1]["a"].weights[5:9].tobytes())
    data[place] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(data)
    agent = snapline.open_store(host.store.location).snapshot().agents["a"]
    assert agent.field("turns") == 0 and agent.field("chat[0].number") == 0
    for read in (lambda: agent.state, lambda: agent.field("weights"), agent.describe):
        with pytest.raises(DamagedDataError, match="does not match its digest"):
            read()


def test_the_fleet_s_code_is_not_needed(host: Host, tmp_path: Path) -> None:
    """In a process of its own that can import nothing of these tests."""
    code = (
        "import snapline, sys\n"
        "state = snapline.open_store(sys.argv[1]).snapshot().agents['a'].state\n"
        "print(sorted(state), state['weights'].shape, 'tests' in sys.modules, 'grpc' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, host.store.location],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "['chat', 'document', 'turns', 'weights'] (163840,) False False\n", done.stderr


# ---- notebooks ------------------------------------------------------------------------------------------------------


def test_notebooks_show_tables(written: Written) -> None:
    write_all(written)
    store = snapline.open_store(written.store.location)
    snapshot = store.snapshot()
    assert "<th>epoch</th>" in store._repr_html_() and snapshot.root[:12] in store._repr_html_()
    page = snapshot._repr_html_()
    for text in (
        "Snapshot 1 of fleet cuts",
        "{&quot;balance&quot;: 1",
        "(not born yet)",
        "Unhandled",
        "NoHandlerError",
    ):
        assert text in page
    page = snapshot.agents["a"]._repr_html_()
    for text in ("<td>balance</td><td>1</td>", "tick", "1.5 s", "… and 100 more", "Move"):
        assert text in page
    assert "not born yet" in snapshot.agents["c"]._repr_html_()
    assert repr(store).endswith(": 1 snapshots>") and repr(snapshot).startswith("<Snapshot 1 of fleet cuts: 3 agents")
    assert (
        repr(snapshot.agents["a"]).startswith("<SavedAgent a: Account")
        and repr(snapshot.agents) == "<3 agents: a, b, c>"
    )


def test_text_of_a_store_is_no_html(written: Written) -> None:
    """Whoever can write a message must not run a script in the notebook of who looks at it."""
    evil = "<script>alert(1)</script>"
    letter = DeadLetterRecord("b", encode_message(Unhandled(evil)), evil, 1, 0)
    state = encode_body({evil: evil})
    checkpoint = AgentCheckpoint(agent="a", kind=evil, epoch=1, state=state, dead_letters=[letter])
    snapshot = snapline.open_store(put(written.store, checkpoint).location).snapshot()
    for shown in (snapshot, snapshot.agents["a"], snapline.open_store(written.store.location)):
        assert "<script" not in shown._repr_html_() and "<f>" not in shown._repr_html_()


def test_long_tables_end(written: Written) -> None:
    state = {f"field {i}": "x" * 1000 for i in range(500)}
    snapshot = snapline.open_store(
        put(written.store, AgentCheckpoint(agent="a", kind="m:A", epoch=1, state=encode_body(state))).location
    ).snapshot()
    page = snapshot.agents["a"]._repr_html_()
    assert len(page) < 20_000 and "… and 450 more" in page and len(snapshot._repr_html_()) < 20_000


def test_a_history_that_is_large_is_counted_and_read_when_asked_for(
    snapshot: snapline.Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_value_formats, "HISTORY_BYTES_MAX", 50)
    agent = snapshot.agents["a"]
    shown: Any = agent.describe()
    assert set(shown["chat"]) == {"records", "bytes"} and len(agent.field("chat")) == 5
