"""`snapline snapshot tag`, `pin`, `prune`, and what `list` shows of them, through the real command."""

import os
import shutil
from pathlib import Path

import pytest
import typer
from tests.cli.conftest import epochs_of, locked
from tests.kit.command_line import Run

from snapline.cli import snapshot, snapshot_retention
from snapline.storage.disk.local_disk import LocalDisk
from snapline.storage.store.store import Holds, Store


@pytest.fixture
def data_dir(tmp_path: Path, store: Path) -> Path:
    """The folder of a local fleet that has ended: epochs 1 and 2."""
    folder = tmp_path / "fleet"
    (folder / "coordinator" / "c1").mkdir(parents=True)
    (folder / "coordinator" / "c1" / "coordinator.lock").touch()
    shutil.move(store, folder / "store")
    return folder


# ---- tags and pins -------------------------------------------------------------------------------------------------


def test_tags_and_pins_come_and_go_and_are_listed(run: Run, store: Path) -> None:
    place = ("--store", store, "-o", "table")
    assert run("snapshot", "tag", "a", "2", *place).out == "tag a names epoch 2\n"
    assert run("snapshot", "pin", "2", *place).out == "epoch 2 is pinned\n"
    assert run("snapshot", "tag", "a", "--remove", *place).out == "tag a is removed\n"
    tagged = run("snapshot", "tag", "good", "1", "--store", store)
    assert (tagged.code, tagged.err) == (0, "")
    assert (tagged.json["kind"], tagged.json["name"], tagged.json["epoch"]) == ("SnapshotTag", "good", 1)
    pinned = run("snapshot", "pin", "latest", "--store", store)
    assert (pinned.json["kind"], pinned.json["epoch"], pinned.json["is_removed"]) == ("SnapshotPin", 2, False)
    listed = run("snapshot", "list", "--store", store)
    assert (listed.code, listed.json["pins"], listed.json["tags"]) == (0, [2], {"good": 1})
    lines = run("snapshot", "list", "--store", store, "-o", "table").out.splitlines()
    assert lines[1].endswith("tag good") and lines[2].rstrip().endswith("pinned")
    assert run("snapshot", "tag", "good", "--remove", "--store", store).json["is_removed"]
    assert (
        run("snapshot", "pin", "2", "--remove", "--store", store, "-o", "table").out == "epoch 2 is no longer pinned\n"
    )
    listed = run("snapshot", "list", "--store", store)
    assert (listed.json["pins"], listed.json["tags"]) == ([], {})


def test_the_store_of_a_local_fleet_is_found_in_its_folder_also_while_it_runs(run: Run, data_dir: Path) -> None:
    with locked(data_dir / "launcher.lock"), locked(data_dir / "coordinator" / "c1" / "coordinator.lock"):
        assert run("snapshot", "tag", "good", "1", "--data-dir", data_dir).code == 0
        assert run("snapshot", "pin", "1", "--data-dir", data_dir).code == 0
    assert run("snapshot", "list", "--store", data_dir / "store").json["tags"] == {"good": 1}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["tag", "good", "9"], 4, "'9'"),
        (["pin", "9"], 4, "'9'"),
        (["pin", "1", "--remove"], 4, "epoch 1 is not pinned"),
        (["tag", "good", "--remove"], 4, "no tag good"),
        (["tag", "good"], 2, "NAME ID"),
        (["tag", "good", "1", "--remove"], 2, "NAME ID"),
        (["tag", "latest", "1"], 2, "cannot be called 'latest'"),
        (["tag", "12", "1"], 2, "cannot be called '12'"),
        (["tag", "a b", "1"], 2, "no valid tag id"),
    ],
)
def test_what_cannot_be_done_is_refused(run: Run, store: Path, arguments: list[str], code: int, words: str) -> None:
    done = run("snapshot", *arguments, "--store", store)
    assert (done.code, done.out) == (code, "")
    assert words in done.err and "Traceback" not in done.err


def test_a_tag_is_not_moved_by_accident(run: Run, store: Path) -> None:
    run("snapshot", "tag", "good", "1", "--store", store)
    done = run("snapshot", "tag", "good", "2", "--store", store)
    assert done.code == 2 and "remove it first" in done.err
    assert run("snapshot", "list", "--store", store).json["tags"] == {"good": 1}


def test_a_damaged_tag_is_told_and_can_be_removed(run: Run, store: Path) -> None:
    run("snapshot", "tag", "good", "1", "--store", store)
    (store / "tags" / "good").chmod(0o644)
    (store / "tags" / "good").write_bytes(b"x")
    listed = run("snapshot", "list", "--store", store)
    assert listed.code == 3 and "tags/good" in listed.err
    assert [row["epoch"] for row in listed.json["snapshots"]] == [1, 2]
    assert run("snapshot", "prune", "--keep-last", "1", "--store", store).code == 6
    assert epochs_of(store) == [1, 2]
    assert run("snapshot", "tag", "good", "--remove", "--store", store).code == 0
    assert run("snapshot", "list", "--store", store).code == 0


def test_a_pin_of_a_snapshot_that_is_being_deleted_ends_with_1(run: Run, store: Path) -> None:
    there = Store.open(store)

    def delete(epoch: int) -> list[str]:
        done = run("snapshot", "pin", str(epoch), "--store", store)
        assert (done.code, done.out) == (1, "")
        assert "is being deleted: try again in a minute" in done.err
        return []

    Holds(there, now_s=lambda: 0.0).delete([1], delete)
    assert run("snapshot", "pin", "1", "--store", store).code == 0


@pytest.mark.parametrize("verb", [["tag", "a", "1"], ["pin", "1"], ["prune"]])
def test_the_store_must_be_named_once_and_be_there(run: Run, store: Path, tmp_path: Path, verb: list[str]) -> None:
    both: list[str | Path] = ["--store", store, "--data-dir", tmp_path]
    for arguments in ([], both):
        done = run("snapshot", *verb, *arguments)
        assert done.code == 2 and "which store?" in done.err
    for option in ("--store", "--data-dir"):
        done = run("snapshot", *verb, option, tmp_path / "nowhere")
        assert done.code == 10 and "there is no store at" in done.err


# ---- prune ---------------------------------------------------------------------------------------------------------

ONE = ("--keep-last", "1", "--hourly", "0", "--daily", "0")


def test_prune_deletes_what_the_policy_does_not_keep(run: Run, store: Path) -> None:
    done = run("snapshot", "prune", *ONE, "--store", store)
    assert (done.code, done.err) == (0, "")
    result = done.json
    assert (result["kind"], result["retention"], result["is_dry_run"]) == (
        "Pruning",
        "last=1,hourly=0,daily=0,manual=100,within=0s",
        False,
    )
    assert [(row["epoch"], row["action"], row["reason"]) for row in result["snapshots"]] == [
        (1, "delete", "not retained"),
        (2, "keep", "last"),
    ]
    assert (result["deleted"], result["removed_files"], epochs_of(store)) == ([1], 4, [2])
    assert result["snapshots"][0]["stored_bytes"] > 0
    again = run("snapshot", "prune", *ONE, "--store", store).json
    assert (again["deleted"], again["removed_files"]) == ([], 0)


def test_a_dry_run_deletes_nothing_also_while_the_fleet_runs(run: Run, data_dir: Path) -> None:
    with locked(data_dir / "launcher.lock"):
        done = run("snapshot", "prune", *ONE, "--dry-run", "--data-dir", data_dir)
    assert (done.code, done.json["is_dry_run"], done.json["deleted"]) == (0, True, [])
    assert [row["action"] for row in done.json["snapshots"]] == ["delete", "keep"]
    assert epochs_of(data_dir / "store") == [1, 2]


def test_hours_and_days_keep_older_ones(run: Run, store: Path) -> None:
    done = run("snapshot", "prune", "--keep-last", "1", "--hourly", "0", "--daily", "2", "--store", store).json
    assert [row["reason"] for row in done["snapshots"]] == ["daily", "last"], "they are a day apart"


def test_pinned_and_tagged_ones_stay(run: Run, store: Path) -> None:
    run("snapshot", "pin", "1", "--store", store)
    assert run("snapshot", "prune", *ONE, "--store", store).json["snapshots"][0]["reason"] == "pinned"
    run("snapshot", "pin", "1", "--remove", "--store", store)
    run("snapshot", "tag", "good", "1", "--store", store)
    assert run("snapshot", "prune", *ONE, "--store", store).json["snapshots"][0]["reason"] == "tag good"
    assert epochs_of(store) == [1, 2]


def test_the_plan_as_a_table(run: Run, store: Path) -> None:
    lines = run("snapshot", "prune", *ONE, "--dry-run", "--store", store, "-o", "table").out.splitlines()
    assert lines[0].split() == ["EPOCH", "CREATED", "SIZE", "BECAUSE"]
    assert lines[1].split()[0] == "1" and "goes" in lines[1] and lines[2].rstrip().endswith("last")
    assert lines[3] == "1 of 2 snapshots to delete; retention last=1,hourly=0,daily=0,manual=100,within=0s"
    lines = run("snapshot", "prune", *ONE, "--store", store, "-o", "table").out.splitlines()
    assert "deleted" in lines[1] and lines[3].startswith("1 of 2 snapshots deleted")


@pytest.mark.parametrize("lock", ["launcher.lock", "coordinator/c1/coordinator.lock"])
@pytest.mark.parametrize("names_store", [False, True])
def test_a_fleet_that_runs_is_left_to_its_coordinator(run: Run, data_dir: Path, lock: str, names_store: bool) -> None:
    place = ("--store", data_dir / "store") if names_store else ("--data-dir", data_dir)
    with locked(data_dir / lock):
        done = run("snapshot", "prune", *ONE, *place)
    assert (done.code, done.out) == (11, "")
    assert "its coordinator deletes old snapshots itself" in done.err
    assert epochs_of(data_dir / "store") == [1, 2]
    assert run("snapshot", "prune", *ONE, *place).json["deleted"] == [1]


@pytest.mark.parametrize(("answer", "code", "left"), [(True, 0, [2]), (False, 130, [1, 2])])
def test_on_a_terminal_it_asks(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch, answer: bool, code: int, left: list[int]
) -> None:
    asked: list[str] = []

    def confirm(question: str, *, abort: bool, err: bool) -> None:
        asked.append(question)
        if not answer:
            raise typer.Abort

    monkeypatch.setattr(typer, "confirm", confirm)
    monkeypatch.setattr(snapshot_retention, "_is_terminal", lambda: True)
    done = run("snapshot", "prune", *ONE, "--store", store)
    assert (done.code, asked, epochs_of(store)) == (code, ["Delete 1 snapshot?"], left)
    if not answer:
        assert done.err == "snapline: nothing was changed, because the question was not answered with yes\n"
        assert run("snapshot", "prune", *ONE, "--yes", "--store", store).code == 0
        assert len(asked) == 1 and epochs_of(store) == [2]


def test_a_pin_that_came_after_the_plan_stops_the_deletion(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds = Holds(Store.open(store), now_s=lambda: 0.0)
    monkeypatch.setattr(typer, "confirm", lambda question, *, abort, err: holds.pin(1))
    monkeypatch.setattr(snapshot_retention, "_is_terminal", lambda: True)
    done = run("snapshot", "prune", *ONE, "--store", store, "-o", "table")
    assert done.code == 0 and snapshot_retention.HELD_MEANWHILE in done.out
    assert epochs_of(store) == [1, 2]


def test_prune_clears_what_a_dead_deleter_left(run: Run, store: Path) -> None:
    def die(epoch: int) -> list[str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Holds(Store.open(store), now_s=lambda: 9e9).delete([1], die)
    assert run("snapshot", "pin", "1", "--store", store).code == 1
    assert run("snapshot", "prune", "--store", store).code == 0
    assert run("snapshot", "pin", "1", "--store", store).code == 0


@pytest.mark.parametrize("arguments", [["--keep-last", "0"], ["--hourly", "-1"], ["--daily", "x"]])
def test_impossible_policies_are_refused(run: Run, store: Path, arguments: list[str]) -> None:
    assert run("snapshot", "prune", *arguments, "--store", store).code == 2
    assert epochs_of(store) == [1, 2]


@pytest.mark.parametrize("retention", ["weekly=3", "last=0", "last=x", "last=1,last=2"])
def test_a_coordinator_refuses_an_impossible_retention(run: Run, tmp_path: Path, retention: str) -> None:
    place = ("--data-dir", tmp_path / "c", "--store", tmp_path / "s", "--hosts", "1")
    done = run("coordinator", "run", *place, "--retention", retention)
    assert done.code == 2 and not (tmp_path / "s").exists()


# ---- the catalog ---------------------------------------------------------------------------------------------------


def test_large_stores_are_listed_with_a_catalog_in_the_users_cache(
    run: Run, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    expected = run("snapshot", "list", "--store", store, environment=cache).json
    assert not (tmp_path / "cache").exists(), "two snapshots are read in a moment"
    monkeypatch.setattr(snapshot, "CATALOG_EPOCHS_MIN", 2)
    assert run("snapshot", "list", "--store", store, environment=cache).json == expected
    path = tmp_path / "cache" / "snapline" / f"{Store.open(LocalDisk(store).location).store_id}.sqlite"
    assert path.is_file()
    assert run("snapshot", "list", "--store", store, environment=cache).json == expected
    path.write_bytes(b"rubbish")
    assert run("snapshot", "list", "--store", store, environment=cache).json == expected


def test_catalogs_of_one_user_are_bounded(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(snapshot, "CATALOGS_MAX", 3)
    (tmp_path / "snapline").mkdir()
    for number in range(5):
        path = tmp_path / "snapline" / f"{number}.sqlite"
        path.touch()
        os.utime(path, (number, number))
    own = snapshot.catalog_path(Store.open(store))
    assert own is not None and own.parent == tmp_path / "snapline"
    assert sorted(path.stem for path in own.parent.iterdir()) == ["3", "4"]
