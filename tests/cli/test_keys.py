"""`snapline keys …` through the real commands."""

import os
from pathlib import Path

import pytest
from tests.kit.command_line import Outcome, Run, invoke

from snapline.cli import keys
from snapline.storage.disk import store_files
from snapline.storage.disk.local_disk import LocalDisk
from snapline.storage.keys.key_files import (
    Keys,
    generate_wrapping_key,
    read_signing_key,
    read_verify_key,
    read_wrapping_key,
)
from snapline.storage.keys.key_records import list_keys
from snapline.storage.store.protection import load_protection
from snapline.storage.store.store import Store

PACK = "a" * 32


@pytest.fixture
def run_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `snapline keys …` in an empty folder without keys in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("SNAPLINE_STORE_KEY", "SNAPLINE_SIGNING_KEY", "SNAPLINE_VERIFY_KEY"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str | Path, store_key: str | Path | None = None) -> Outcome:
        environment = None if store_key is None else {"SNAPLINE_STORE_KEY": str(store_key)}
        return invoke(keys.app, *arguments, environment=environment)

    return run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the key of digests and the data keys of two writers, wrapped with the key in `old`."""
    made = Store.create(tmp_path / "store")
    guard = load_protection(
        LocalDisk(tmp_path / "store"), made.store_id, Keys((generate_wrapping_key(tmp_path / "old"),))
    )
    for n in (1, 2):
        guard.begin_pack(f"h{n}.1", f"{n}" * 32)
    return tmp_path / "store"


def test_generate_makes_a_key_for_its_owner(run_keys: Run, tmp_path: Path) -> None:
    done = run_keys("generate", "key")
    assert (done.code, done.err) == (0, "")
    key = read_wrapping_key(tmp_path / "key")
    assert done.json == {
        "apiVersion": "snapline/v1",
        "kind": "KeyGenerated",
        "key": key.key_id,
        "purpose": "encryption",
        "file": "key",
    }
    assert os.stat("key").st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [tmp_path / "key"]


def test_generate_signing_makes_a_pair(run_keys: Run, tmp_path: Path) -> None:
    done = run_keys("generate", "sign", "--signing", "-o", "table")
    assert done.code == 0
    pair = read_signing_key(tmp_path / "sign")
    assert read_verify_key(tmp_path / "sign.pub") == pair.verify_key()
    assert [line.split() for line in done.out.splitlines() if line.strip()] == [
        ["key", pair.key_id],
        ["purpose", "signing"],
        ["file", "sign"],
        ["public_file", "sign.pub"],
    ]


def test_generate_never_writes_over_a_file(run_keys: Run, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("mine")
    (tmp_path / "sign.pub").write_text("mine")
    for arguments in (["key"], ["key", "--signing"], ["sign", "--signing"], ["nowhere/key"]):
        done = run_keys("generate", *arguments)
        assert (done.code, done.out) == (2, "")
        assert "key file" in done.err or "only copy" in done.err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"key": "mine", "sign.pub": "mine"}


def test_rotate_wraps_every_key_with_the_new_one(run_keys: Run, store: Path, tmp_path: Path) -> None:
    new = run_keys("generate", "new").json["key"]
    done = run_keys("rotate", "--store", store, "--to", "new", store_key="old")
    assert (done.code, done.err) == (0, "")
    assert (done.json["kind"], done.json["rewrapped"], done.json["key"]) == ("KeysRotated", 3, new)
    assert "SNAPLINE_STORE_KEY=new" in done.json["next_step"]
    again = run_keys("rotate", "--store", store.as_uri(), "--to", "new", "-o", "table")
    assert again.code == 0 and again.out.startswith(f"0 keys wrapped with {new}\n")
    store_id = store_files.read_identity(LocalDisk(store))
    load_protection(LocalDisk(store), store_id, Keys((read_wrapping_key(tmp_path / "new"),))).digest(b"")
    assert set(map(tuple, list_keys(LocalDisk(store)).values())) == {(1,)}


def test_rotate_needs_the_old_key(run_keys: Run, store: Path, tmp_path: Path) -> None:
    run_keys("generate", "new")
    before = sorted((store / "keys").iterdir())
    done = run_keys("rotate", "--store", store, "--to", "new")
    assert (done.code, done.out) == (2, "")
    assert f"encrypted with key {read_wrapping_key(tmp_path / 'old').key_id}" in done.err
    assert sorted((store / "keys").iterdir()) == before


def test_rotate_refuses_what_it_cannot_do(run_keys: Run, store: Path, tmp_path: Path) -> None:
    run_keys("generate", "new")
    Store.create(tmp_path / "plain")
    for arguments, code, words in (
        (["--store", "plain", "--to", "new"], 2, "has no keys to rotate"),
        (["--store", "nowhere", "--to", "new"], 10, "there is no store at"),
        (["--store", store, "--to", "nowhere"], 2, "cannot read the key file"),
        (["--store", "ftp://x", "--to", "new"], 2, "ftp"),
    ):
        done = run_keys("rotate", *arguments, store_key="old")
        assert (done.code, done.out) == (code, "")
        assert words in done.err
    os.chmod("new", 0o644)
    assert "chmod 600 new" in run_keys("rotate", "--store", store, "--to", "new", store_key="old").err
    os.chmod("new", 0o600)
    assert "names no file" in run_keys("rotate", "--store", store, "--to", "new", store_key="").err


def test_show_lists_keys_without_a_secret_and_without_a_key_file(run_keys: Run, store: Path, tmp_path: Path) -> None:
    old = read_wrapping_key(tmp_path / "old")
    (tmp_path / "old").unlink()
    done = run_keys("show", "--store", store)
    assert (done.code, done.err) == (0, "")
    assert done.json["kind"] == "KeyList"
    rows = done.json["keys"]
    assert [row["writer"] for row in rows if row["key"] != "digest"] in (["h1.1", "h2.1"], ["h2.1", "h1.1"])
    assert {(row["generation"], row["wrapped_by"]) for row in rows} == {(0, old.key_id)}
    assert old.secret.hex() not in done.out
    lines = run_keys("show", "--store", store, "-o", "table").out.splitlines()
    assert lines[0].split() == ["KEY", "GENERATION", "WRAPPED", "BY", "WRITER"]
    assert ["digest", "0", old.key_id] in [line.split() for line in lines]


def test_show_of_a_plain_store(run_keys: Run, tmp_path: Path) -> None:
    Store.create(tmp_path / "plain")
    assert run_keys("show", "--store", "plain").json["keys"] == []
    assert "not encrypted" in run_keys("show", "--store", "plain", "-o", "table").out
    assert run_keys("show", "--store", "nowhere").code == 10


def test_show_names_damage_and_the_rest(run_keys: Run, store: Path) -> None:
    path = store / "keys" / "digest.0"
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    done = run_keys("show", "--store", store)
    assert done.code == 6
    assert [row["key"] for row in done.json["keys"] if "damage" in row] == ["digest"]
    assert len(done.json["keys"]) == 3
    assert "keys/digest.0 is damaged" in done.err
