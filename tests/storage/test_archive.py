"""Snapshots in one file: what comes out is what went in, anybody can unpack it, and nothing in it is believed."""

import errno
import io
import os
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.copying import Writer, check_oracle
from tests.storage.making import make_store, seeded_bytes
from tests.storage.protecting import OLD
from tests.storage.simulated_disk import SimulatedDisk, below

from snapline.errors import DamagedDataError, NotFoundError, SnaplineError, StoreError, UsageError
from snapline.storage.keys.key_files import NO_KEYS, Keys, make_signing_key
from snapline.storage.store.store import Store
from snapline.storage.transfer import archive
from snapline.storage.transfer.archive import DIRECTORY, FILE, header_of, read_archive, reading_archive, write_archive

CONTENTS = {1: {"a": [1, 2, 3], "b": [3, 4]}, 2: {"a": [1, 2, 5], "b": [3, 6]}, 3: {"a": [2], "c": [8]}}


def make_source(contents: Any = None, *, keys: Keys | None = None) -> Writer:
    store = Store.create("simulated", disk=SimulatedDisk(), keys=keys, random_bytes=seeded_bytes(0))
    writer = Writer(store)
    for epoch, agents in (contents or CONTENTS).items():
        writer.write(epoch, agents, cluster=writer.store.store_id)
    return writer


def make_target() -> Store:
    return make_store(SimulatedDisk(), seed=1)


def export(writer: Writer, folder: Path, epochs: Sequence[int] = (2,), name: str = "some.tar") -> Path:
    write_archive(writer.store, epochs, folder / name)
    return folder / name


AGENTS = st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 12), max_size=6), min_size=1)


@settings(max_examples=30, deadline=None)
@given(steps=st.lists(AGENTS, min_size=1, max_size=4), data=st.data())
def test_what_is_exported_and_imported_is_the_same(
    steps: Any, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = make_source(dict(enumerate(steps, 1)))
    epochs = data.draw(st.lists(st.sampled_from(range(1, len(steps) + 1)), min_size=1))
    path = export(source, tmp_path_factory.mktemp("archive"), epochs)
    target = make_target()
    copied = read_archive(path, target, keys=NO_KEYS)
    assert [x.epoch for x in copied] == sorted(set(epochs)) == target.epochs()
    for epoch in target.epochs():
        source.check(target, epoch)
    assert target.verify().findings == []


def test_the_same_snapshots_give_the_same_bytes_and_nothing_else_is_left(tmp_path: Path) -> None:
    source = make_source()
    first, second = export(source, tmp_path, (1, 3), "first"), export(source, tmp_path, (3, 1, 3), "second")
    assert first.read_bytes() == second.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["first", "second"]


def test_a_stranger_unpacks_it_and_has_a_store(tmp_path: Path) -> None:
    source = make_source()
    path = export(source, tmp_path, (1, 2))
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "xf", path, "-C", unpacked], check=True, timeout=60)
    store = Store.open(unpacked)
    assert store.epochs() == [1, 2] and store.verify().findings == [] and store.verify().unreferenced == []
    for epoch in (1, 2):
        check_oracle(store, epoch, source.oracles[epoch])


def test_the_archive_itself_is_a_store_to_read(tmp_path: Path) -> None:
    source = make_source()
    with reading_archive(export(source, tmp_path, (1, 2))) as disk:
        store = Store.open("archive", disk=disk)
        assert store.verify().findings == []
        check_oracle(store, 2, source.oracles[2])
        for call in (
            lambda: store.publish(1, source.store.read_ref(2)),
            lambda: store.delete_epoch(1),
            lambda: store.write_pack(writer="h.1", epoch=4, blobs=[]),
            store.write_probe,
        ):
            with pytest.raises(StoreError):
                call()


def test_an_encrypted_and_signed_store_stays_so(tmp_path: Path) -> None:
    keys = Keys(OLD.wrapping, make_signing_key(b"s" * 32))
    source = make_source(keys=keys)
    path = export(source, tmp_path)
    assert b"text of chunk" not in path.read_bytes()
    with reading_archive(path) as disk:
        check_oracle(Store.open("archive", disk=disk, keys=keys), 2, source.oracles[2])
    with pytest.raises(StoreError, match="SNAPLINE_STORE_KEY"):
        read_archive(path, make_target(), keys=NO_KEYS)
    with pytest.raises(UsageError, match="digests in it depend on its keys"):
        read_archive(path, make_target(), keys=keys)
    source.store.delete_epoch(2)
    assert [x.epoch for x in read_archive(path, source.store, keys=keys)] == [2]
    source.check(source.store, 2)


# ---- writing -------------------------------------------------------------------------------------------------------


def test_a_file_that_exists_is_not_replaced(tmp_path: Path) -> None:
    source, path = make_source(), tmp_path / "taken"
    path.write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("taken", "dangling"):
        with pytest.raises(UsageError, match="exists: choose another name"):
            export(source, tmp_path, name=name)
    assert path.read_text() == "mine" and sorted(os.listdir(tmp_path)) == ["dangling", "taken"]


def test_one_that_appears_meanwhile_is_not_replaced_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, path = make_source(), tmp_path / "taken"
    monkeypatch.setattr(archive, "_check_free", lambda path: path.write_text("mine"))
    with pytest.raises(UsageError, match="exists"):
        export(source, tmp_path, name="taken")
    assert path.read_text() == "mine" and os.listdir(tmp_path) == ["taken"]


@pytest.mark.parametrize("is_taken", [False, True])
def test_without_hard_links_it_is_written_all_the_same(
    is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    source = make_source()
    if is_taken:
        monkeypatch.setattr(archive, "_check_free", lambda path: path.write_text("mine"))
        with pytest.raises(UsageError, match="exists"):
            export(source, tmp_path)
        assert (tmp_path / "some.tar").read_text() == "mine"
    else:
        read_archive(export(source, tmp_path), make_target(), keys=NO_KEYS)
    assert os.listdir(tmp_path) == ["some.tar"]


@pytest.mark.parametrize("step", ["fsync", "link"])
def test_an_error_leaves_nothing(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(StoreError, match="no space left"):
        export(make_source(), tmp_path)
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_exported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_source()
    with pytest.raises(NotFoundError, match="epoch 9"):
        export(source, tmp_path, (1, 9))
    with pytest.raises(UsageError, match="name one"):
        export(source, tmp_path, ())
    with pytest.raises(StoreError, match="cannot write"):
        export(source, tmp_path / "nowhere")
    monkeypatch.setattr(archive, "MEMBER_BYTES_MAX", 100)
    with pytest.raises(UsageError, match="too many for an archive"):
        export(source, tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_damaged_store_gives_no_archive(tmp_path: Path) -> None:
    source = make_source()
    disk = below(source.store._disk)
    needed = {pack.path for pack in source.store.read_manifest(source.store.read_ref(2)).packs}
    for path in disk.files():
        if path in needed or path.endswith(("refs/epochs/2", "snapline-store")):
            data = disk.read(path, 0, 10**6)
            for place in range(0, len(data), 41):
                disk.nodes[path].data = data[:place] + bytes([data[place] ^ 8]) + data[place + 1 :]  # type: ignore[union-attr]
                with pytest.raises((DamagedDataError, StoreError)):
                    export(source, tmp_path)
            disk.nodes[path].data = data  # type: ignore[union-attr]
    assert os.listdir(tmp_path) == []


def test_a_deletion_meanwhile_is_no_damage(tmp_path: Path) -> None:
    source = make_source()
    disk = below(source.store._disk)

    def delete(call: str) -> None:
        if list(tmp_path.iterdir()):
            disk.on_call = lambda name: None
            for epoch in CONTENTS:
                source.store.delete_epoch(epoch)

    disk.on_call = delete
    with pytest.raises(NotFoundError, match="deleted while it was read"):
        export(source, tmp_path)
    assert os.listdir(tmp_path) == []


# ---- reading what cannot be believed -------------------------------------------------------------------------------


def expect_damage(path: Path, words: str = "") -> None:
    target = make_target()
    with pytest.raises((DamagedDataError, StoreError), match=words or None):
        read_archive(path, target, keys=NO_KEYS)
    assert target.epochs() == [] and target.verify().unreferenced == []


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    path = export(make_source({1: {"a": [1]}}), tmp_path, (1,))
    data = path.read_bytes()
    for place in range(len(data)):
        if place % 97 == 0 or place % 512 in (0, 100, 124, 148, 156, 157, 257, 345):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
            expect_damage(path)


def test_every_truncation_is_found(tmp_path: Path) -> None:
    path = export(make_source({1: {"a": [1]}, 2: {"a": [1, 2]}}), tmp_path, (1, 2))
    data = path.read_bytes()
    for end in [*range(0, len(data), 512), *range(7, len(data), 97), len(data) - 1]:
        path.write_bytes(data[:end])
        expect_damage(path)
    for more in (b"\0", bytes(512), b"x" * 512):
        path.write_bytes(data + more)
        expect_damage(path)


Members = list[tuple[str, bytes, bytes]]


def members_of(path: Path) -> Members:
    with tarfile.open(path) as tar:
        found: Members = []
        for member in tar.getmembers():
            file = tar.extractfile(member) if member.isreg() else None
            found.append((member.name, member.type, b"" if file is None else file.read()))
        return found


def make_tar(path: Path, members: Members) -> None:
    """As `write_archive` writes, whatever the members are called."""
    with open(path, "wb") as file:
        file.writelines(
            header_of(name, len(data), kind) + data + bytes(-len(data) % 512) for name, kind, data in members
        )
        file.write(bytes(1024))


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "/etc/passwd",
        "packs/../../outside",
        "packs/h.1/../../../1." + "0" * 32,
        "packs/..",
        "packs/../1." + "0" * 32,
        "keys/..",
        "pins/1." + "0" * 32,
        "zzz",
        "refs/epochs/007",
        "manifests/abc",
    ],
)
@pytest.mark.parametrize("kind", [FILE, DIRECTORY])
def test_names_that_no_store_has_are_refused(name: str, kind: bytes, tmp_path: Path) -> None:
    path = export(make_source(), tmp_path)
    members = sorted([*members_of(path), (name, kind, b"")], key=lambda x: (x[1] != DIRECTORY, x[0]))
    make_tar(path, members)
    expect_damage(path, "no file of a store is called|not one that|not in its place|is missing")


def test_the_tar_made_again_is_the_same(tmp_path: Path) -> None:
    """So the test above changes nothing but the name."""
    path = export(make_source(), tmp_path)
    data = path.read_bytes()
    make_tar(path, members_of(path))
    assert path.read_bytes() == data


def _without(name: str) -> Callable[[Members], Members]:
    return lambda members: [x for x in members if not x[0].startswith(name)]


@pytest.mark.parametrize(
    "change",
    [
        _without("refs/epochs/"),
        _without("manifests/"),
        _without("packs/host-of-a.1"),
        _without("snapline-store"),
        _without("probes"),
        lambda members: members[::-1],
        lambda members: [*members, members[-1]],
        lambda members: [],
        lambda members: [(name, FILE, data) for name, kind, data in members],
    ],
)
def test_members_that_are_missing_twice_or_out_of_place_are_found(
    change: Callable[[Members], Members], tmp_path: Path
) -> None:
    path = export(make_source(), tmp_path)
    make_tar(path, change(members_of(path)))
    expect_damage(path)


def _foreign(kind: bytes, **fields: object) -> bytes:
    info = tarfile.TarInfo("packs/x")
    info.type = kind
    for name, value in fields.items():
        setattr(info, name, value)
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    "header",
    [
        _foreign(tarfile.SYMTYPE, linkname="/etc"),
        _foreign(tarfile.LNKTYPE, linkname="snapline-store"),
        _foreign(tarfile.CHRTYPE),
        _foreign(tarfile.FIFOTYPE),
        _foreign(tarfile.GNUTYPE_SPARSE),
        _foreign(tarfile.GNUTYPE_LONGNAME, size=2**40),
        _foreign(tarfile.XHDTYPE, size=2**60),
        _foreign(FILE, size=2**62),
        _foreign(FILE, size=8**11 - 1),
        b"\xff" * 512,
        b"-" * 512,
    ],
)
def test_headers_of_other_kinds_and_impossible_sizes_are_refused(header: bytes, tmp_path: Path) -> None:
    path = export(make_source(), tmp_path)
    path.write_bytes(header[:512] + path.read_bytes())
    expect_damage(path, "is not one that `snapshot export` writes")


def test_a_size_beyond_the_file_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.tar"
    path.write_bytes(header_of("snapline-store", 8**11 - 1, FILE) + bytes(4096))
    expect_damage(path, "truncated in 'snapline-store'")


def test_the_number_of_members_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = export(make_source(), tmp_path)
    monkeypatch.setattr(archive, "MEMBERS_MAX", 3)
    expect_damage(path, "more than 3 files")


def test_another_programs_tar_and_other_files_are_refused(tmp_path: Path) -> None:
    path = export(make_source(), tmp_path)
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "xf", path, "-C", unpacked], check=True, timeout=60)
    subprocess.run(["tar", "cf", tmp_path / "other.tar", "-C", unpacked, "."], check=True, timeout=60)
    expect_damage(tmp_path / "other.tar", "is not one that `snapshot export` writes")
    (tmp_path / "text").write_text("no archive" * 1000)
    expect_damage(tmp_path / "text")
    (tmp_path / "empty").write_bytes(b"")
    expect_damage(tmp_path / "empty")
    expect_damage(unpacked, "cannot read")
    with pytest.raises(NotFoundError, match="there is no file"):
        read_archive(tmp_path / "nothing", make_target())


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_whatever_the_file_holds_nothing_but_our_errors_comes_of_it(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = folder / "fuzzed.tar"
    if not (folder / "right.tar").exists():
        export(make_source({1: {"a": [1]}}), folder, (1,), "right.tar")
    right = io.BytesIO((folder / "right.tar").read_bytes())
    blocks = [right.read(512) for _ in range(len(right.getvalue()) // 512)]
    block = st.one_of(st.sampled_from(blocks), st.binary(min_size=512, max_size=512))
    path.write_bytes(b"".join(data.draw(st.lists(block, max_size=30))))
    try:
        read_archive(path, make_target(), keys=NO_KEYS)
    except SnaplineError:
        return
    assert path.read_bytes() == right.getvalue()


# ---- the tests above can fail --------------------------------------------------------------------------------------


def test_the_test_of_flips_catches_headers_that_are_only_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def believed(path: str, size_bytes: int, kind: bytes) -> Any:
        class Any_:
            __hash__ = None  # type: ignore[assignment]

            def __eq__(self, other: object) -> bool:
                return True

        return Any_()

    path = export(make_source({1: {"a": [1]}}), tmp_path, (1,), "first.tar")
    data = path.read_bytes()
    monkeypatch.setattr(archive, "header_of", believed)
    path.write_bytes(data[:136] + b"7" + data[137:])  # the time of the first member
    with pytest.raises(pytest.fail.Exception):
        expect_damage(path)


def test_the_test_of_damage_catches_an_archive_that_is_not_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_verify", lambda *_: None)
    with pytest.raises(pytest.fail.Exception):
        test_a_damaged_store_gives_no_archive(tmp_path)
