"""`snapline snapshot export`, `import`, `copy` and `diff`, through the real commands."""

import os
from pathlib import Path

import pytest
from tests.cli.conftest import epochs_of, locked
from tests.kit.command_line import Run

from snapline.agent_runtime.message_encoding import encode_body
from snapline.storage.packs.checkpoint import AgentCheckpoint, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.store.store import Holds, Store


def write_own(store: Store, epoch: int) -> None:
    """An epoch as the fleet of this store writes it."""
    encoded = encode_checkpoint(
        AgentCheckpoint(agent="a", kind="k", epoch=epoch, number=epoch, state=encode_body({"turns": epoch}))
    )
    pack = store.write_pack(writer="h1.1", epoch=epoch, blobs=[("a", encoded)])
    lines = [agent_line(entry, pack=0, kind="k", host="h1", incarnation=1) for entry in store.read_pack_index(pack)]
    about = Metadata(epoch=epoch, cluster=store.store_id)
    store.publish(epoch, store.write_manifest(Manifest(about, lines, [pack])))


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The folder of a local fleet that has ended: epochs 1 to 4."""
    folder = tmp_path / "fleet"
    (folder / "coordinator").mkdir(parents=True)
    (folder / "coordinator" / "coordinator.lock").touch()
    store = Store.create(folder / "store")
    for epoch in (1, 2, 3, 4):
        write_own(store, epoch)
    return folder


# ---- export and import ---------------------------------------------------------------------------------------------


def test_a_snapshot_goes_through_a_file_into_a_new_store(run: Run, store: Path, tmp_path: Path) -> None:
    file = tmp_path / "two.tar"
    done = run("snapshot", "export", "latest", file, "--also", "1", "--store", store)
    assert (done.code, done.err) == (0, "")
    found = done.json
    assert (found["kind"], found["file"], found["size_bytes"]) == ("SnapshotExport", str(file), file.stat().st_size)
    assert [row["epoch"] for row in found["snapshots"]] == [1, 2]
    done = run("snapshot", "import", file, "--store", tmp_path / "new" / "store")
    assert (done.code, done.err, done.json["kind"]) == (0, "", "SnapshotImport")
    assert [(row["epoch"], row["is_new"]) for row in done.json["snapshots"]] == [(1, True), (2, True)]
    new, old = Store.open(tmp_path / "new" / "store"), Store.open(store)
    assert [new.read_ref(epoch) for epoch in (1, 2)] == [old.read_ref(epoch) for epoch in (1, 2)]
    assert new.verify().findings == []
    again = run("snapshot", "import", file, "--store", tmp_path / "new" / "store", "-o", "table")
    assert again.out == "epoch 1 was there already\nepoch 2 was there already\n"


def test_in_words(run: Run, store: Path, tmp_path: Path) -> None:
    done = run("snapshot", "export", "1", tmp_path / "one", "--store", store, "-o", "table")
    assert done.out.startswith(f"epoch 1 in {tmp_path / 'one'}, ")
    done = run("snapshot", "import", tmp_path / "one", "--store", tmp_path / "new", "-o", "table")
    assert done.out.startswith("epoch 1 written, ") and done.out.endswith("; 0 B were there already\n")


def test_an_export_works_while_the_fleet_runs_and_an_import_does_not(run: Run, data_dir: Path, tmp_path: Path) -> None:
    with locked(data_dir / "coordinator" / "coordinator.lock"):
        assert run("snapshot", "export", "1", tmp_path / "one", "--data-dir", data_dir).code == 0
        Store.open(data_dir / "store").delete_epoch(1)
        for place in (("--data-dir", data_dir), ("--store", data_dir / "store")):
            done = run("snapshot", "import", tmp_path / "one", *place)
            assert (done.code, done.out) == (11, "")
            assert "runs: put snapshots into its store when it has ended" in done.err
    assert epochs_of(data_dir / "store") == [2, 3, 4]
    assert run("snapshot", "import", tmp_path / "one", "--data-dir", data_dir).code == 0
    assert epochs_of(data_dir / "store") == [1, 2, 3, 4]


def test_a_fleet_takes_no_others_and_no_newest(run: Run, data_dir: Path, store: Path, tmp_path: Path) -> None:
    run("snapshot", "export", "2", tmp_path / "other", "--store", store)
    run("snapshot", "export", "4", tmp_path / "newest", "--data-dir", data_dir)
    for epoch in (2, 4):
        Store.open(data_dir / "store").delete_epoch(epoch)
    for name in ("other", "newest"):
        done = run("snapshot", "import", tmp_path / name, "--data-dir", data_dir)
        assert (done.code, done.out) == (2, "") and "is the store of a fleet" in done.err
    assert epochs_of(data_dir / "store") == [1, 3]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["export", "9", "new"], 4, "'9'"),
        (["export", "1", "taken"], 2, "exists"),
        (["export", "1", "no/folder"], 1, "cannot write"),
        (["import", "nothing"], 4, "there is no file"),
        (["import", "taken"], 6, "is damaged"),
        (["copy", "1", "--older-than", "1", "--to", "x"], 2, "which snapshots"),
        (["copy", "--to", "x"], 2, "which snapshots"),
        (["copy", "9", "--to", "x"], 4, "'9'"),
        (["diff", "1", "9"], 4, "'9'"),
        (["diff", "1", "2", "--agent", "z"], 4, "agent 'z'"),
    ],
)
def test_what_cannot_be_done_is_refused(run: Run, store: Path, arguments: list[str], code: int, words: str) -> None:
    Path("taken").write_text("not an archive" * 500)
    done = run("snapshot", *arguments, "--store", store)
    assert (done.code, done.out) == (code, "")
    assert words in done.err and "Traceback" not in done.err
    assert os.listdir() == ["taken"]


def test_which_store_must_be_said(run: Run) -> None:
    for arguments in (["export", "1", "f"], ["diff", "1", "2"], ["copy", "1", "--to", "x"]):
        done = run("snapshot", *arguments)
        assert done.code == 2 and "which store?" in done.err


# ---- copies --------------------------------------------------------------------------------------------------------


def test_old_snapshots_move_to_a_second_store(run: Run, data_dir: Path, tmp_path: Path) -> None:
    Holds(Store.open(data_dir / "store"), now_s=lambda: 1e9).pin(2)
    second = tmp_path / "second"
    done = run("snapshot", "copy", "--older-than", 1, "--to", f"file://{second}", "--remove", "--data-dir", data_dir)
    assert done.code == 0 and done.json["kind"] == "SnapshotCopy"
    assert done.err == "1 of 3 snapshots done\n2 of 3 snapshots done\n3 of 3 snapshots done\n"
    rows = done.json["snapshots"]
    assert [(row["epoch"], row["is_removed"]) for row in rows] == [(1, True), (2, False), (3, True)]
    assert epochs_of(data_dir / "store") == [2, 4] and epochs_of(second) == [1, 2, 3]
    assert Store.open(second).verify().findings == []
    done = run("snapshot", "copy", "latest", "--to", second, "--remove", "--data-dir", data_dir, "-o", "table")
    assert done.out.endswith(f"; stays here: it is the newest one\n1 snapshot in {second}\n")
    assert done.err == "" and epochs_of(second) == [1, 2, 3, 4]


def test_a_running_fleet_s_snapshots_are_copied_but_not_removed(run: Run, data_dir: Path, tmp_path: Path) -> None:
    with locked(data_dir / "coordinator" / "coordinator.lock"):
        assert run("snapshot", "copy", "1", "--to", tmp_path / "second", "--data-dir", data_dir).code == 0
        done = run("snapshot", "copy", "1", "--to", tmp_path / "second", "--remove", "--data-dir", data_dir)
        assert done.code == 11 and "remove its snapshots when it has ended" in done.err
    assert epochs_of(data_dir / "store") == [1, 2, 3, 4]


def test_a_store_is_not_moved_into_itself(run: Run, data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(data_dir / "store")
    for to in (data_dir / "store", tmp_path / "alias"):
        done = run("snapshot", "copy", "--older-than", 1, "--to", to, "--remove", "--data-dir", data_dir)
        assert done.code == 2 and "are one store" in done.err
    assert epochs_of(data_dir / "store") == [1, 2, 3, 4]


def test_a_damaged_snapshot_is_neither_copied_nor_removed(run: Run, store: Path, tmp_path: Path) -> None:
    for path in (store / "packs" / "h1.1").glob("1.*"):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes().replace(b"balance", b"Balance"))
    for command in (
        ("copy", "1", "--to", tmp_path / "x", "--remove"),
        ("export", "1", tmp_path / "y"),
        ("diff", "1", "2"),
    ):
        done = run("snapshot", *command, "--store", store)
        assert (done.code, done.out) == (6, "") and "(epoch 1)" in done.err
    assert epochs_of(store) == [1, 2] and epochs_of(tmp_path / "x") == [] and not (tmp_path / "y").exists()


def test_a_snapshot_whose_packs_lost_their_ends_is_rescued_by_a_copy(run: Run, store: Path, tmp_path: Path) -> None:
    """The manifest says where each blob lies, under what digest; index and footer are not needed."""
    for path in (store / "packs" / "h1.1").glob("1.*"):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-100] + bytes(100))
    assert run("snapshot", "copy", "1", "--to", tmp_path / "x", "--store", store).code == 0
    assert Store.open(tmp_path / "x").verify().findings == []


def test_memory_stores_are_as_good(run: Run, store: Path) -> None:
    pytest.importorskip("obstore")
    assert run("snapshot", "copy", "--older-than", "1", "--to", "memory://second-store", "--store", store).code == 0
    assert Store.open("memory://second-store").epochs() == [1]
    assert Store.open("memory://second-store").verify().findings == []


# ---- differences ---------------------------------------------------------------------------------------------------


def test_a_difference_is_shown_as_json_and_in_words(run: Run, store: Path) -> None:
    done = run("snapshot", "diff", "1", "latest", "--store", store)
    assert (done.code, done.err) == (0, "")
    found = done.json
    assert (found["kind"], found["before"]["epoch"], found["after"]["epoch"]) == ("SnapshotDifference", 1, 2)
    changes = {row["agent"]: {x["path"]: x for x in row["changes"]} for row in found["agents_changed"]}
    assert changes["bank-1"]["state.balance"] == {
        "path": "state.balance",
        "change": "value",
        "before": 100,
        "after": 200,
    }
    assert {x["path"]: x["after"] for x in found["metadata"]} == {"created": "2025-01-02T00:00:00Z"}
    lines = run("snapshot", "diff", "1", "2", "--store", store, "-o", "table").out.splitlines()
    assert "created: 2025-01-01T00:00:00Z → 2025-01-02T00:00:00Z" in lines
    assert "  state.balance: 100 → 200" in lines and lines[-1] == "0 agents unchanged"
    assert run("snapshot", "diff", "2", "2", "--store", store, "-o", "table").out.endswith("\n2 agents unchanged\n")


def test_one_agent_alone(run: Run, store: Path) -> None:
    found = run("snapshot", "diff", "1", "2", "--agent", "bank-2", "--store", store).json
    assert [row["agent"] for row in found["agents_changed"]] == ["bank-2"]


def test_every_kind_of_change_has_words(run: Run, tmp_path: Path) -> None:
    import numpy as np

    from snapline.storage.capture.history import History
    from snapline.storage.capture.values import Blob
    from snapline.storage.packs.checkpoint import InTransitMessage

    store = Store.create(tmp_path / "made")
    states = [
        {
            "w": np.zeros((3, 4)),
            "v": np.zeros(2),
            "log": History(["x", "y"]),
            "b": Blob(b"abcdef"),
            "l": [1, 2],
            "gone": 1,
        },
        {
            "w": np.eye(3, 4),
            "v": np.zeros(3),
            "log": History(["X", "y", "z"]),
            "b": Blob(b"abXdef"),
            "l": [2],
            "new": {"k": 1},
        },
    ]
    for epoch, state in enumerate(states, 1):
        agents = ["a", "old" if epoch == 1 else "young"]
        channel = {"b": [InTransitMessage(epoch, 0, b"\x01m\x01")]}
        blobs = [
            (
                x,
                encode_checkpoint(
                    AgentCheckpoint(agent=x, kind="k", epoch=epoch, state=encode_body(state), in_transit=channel)
                ),
            )
            for x in agents
        ]
        pack = store.write_pack(writer="h1.1", epoch=epoch, blobs=blobs)
        lines = [agent_line(entry, pack=0, kind="k", host="h1", incarnation=1) for entry in store.read_pack_index(pack)]
        store.publish(epoch, store.write_manifest(Manifest(Metadata(epoch=epoch), lines, [pack])))
    lines_shown = run("snapshot", "diff", "1", "2", "--store", tmp_path / "made", "-o", "table").out.splitlines()
    for line in (
        "+ agent young (k) on h1",
        "- agent old (k) on h1",
        "  state.w: <array <f8 3×4>: 3 of 12 elements changed, from [0, 0] to [2, 2], by 1 at most",
        "  state.v: <array <f8 2> → <array <f8 3>",
        "  state.log: 2 → 3 records: 1 appended, 1 edited",
        "    edited [0]: x → X",
        "    appended [2]: z",
        "  state.b: blob, 6 B → 6 B: at byte 2 1 bytes became 1",
        "  state.l: 2 → 1 records: 1 dropped",
        "    dropped [0]: 1",
        "  state.gone: removed 1",
        '  state.new: added {"k": 1}',
        '- b → a 1: {"type": "m", "fields": 1}',
        '+ b → a 2: {"type": "m", "fields": 1}',
    ):
        assert line in lines_shown, "\n".join(lines_shown)


def test_a_second_store_that_must_exist_is_not_made(run: Run, store: Path, tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    done = run("snapshot", "copy", "1", "--store", store, "--to", tmp_path / "mount", "--must-exist")
    assert done.code == 10 and "whether it is mounted" in done.err
    assert not list((tmp_path / "mount").iterdir())
    Store.create(tmp_path / "second")
    assert run("snapshot", "copy", "1", "--store", store, "--to", tmp_path / "second", "--must-exist").code == 0
