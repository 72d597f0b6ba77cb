"""Every byte of an epoch that is made of chunks is under a digest (G11): wherever one is changed, `verify` names the file, and
nobody gets wrong bytes.

`test_damage.py` does the same for epochs without chunks; here are the fields that version 2 of the format added.
"""

import struct
from collections.abc import Iterator

import msgspec
import pytest
from tests.storage.making import make_store, seeded_bytes
from tests.storage.making_chunks import (
    Promise,
    changed,
    check_chunked,
    commit_chunked,
    first_state,
    gather_manifest,
    newest_manifest,
    write_hosts,
)
from tests.storage.simulated_disk import Inode, SimulatedDisk, below

from snapline.errors import DamagedDataError, StoreError
from snapline.storage.disk.record import DIGEST_BYTES, digest_of, finding_of
from snapline.storage.packs import compaction
from snapline.storage.packs.compaction import GRACE_S
from snapline.storage.packs.manifest import list_generations, read_manifest
from snapline.storage.packs.pack import BlobEntry, PackIndex, PackReference, end_of, header_bytes, read_index
from snapline.storage.store.store import Store

Case = tuple[SimulatedDisk, Store, dict[int, Promise]]
FOOTER_BYTES = 72


def make_case(*, first: int = 1, is_compacted: bool = False) -> Case:
    """Epochs `first` to 3, each over the one before."""
    disk = SimulatedDisk()
    store = make_store(disk)
    promises: dict[int, Promise] = {}
    state = first_state()
    for epoch in (1, 2, 3):
        base_state = promises[epoch - 1].state if epoch > 1 else None
        promises[epoch] = Promise(commit_chunked(store, epoch, state, base=epoch - 1, base_state=base_state), state)
        state = changed(changed(state, "a1", 0, epoch), "b1", 1, epoch)
    for epoch in range(1, first):
        store.delete_epoch(epoch)
        del promises[epoch]
    for now_s in (0.0, 1.0, GRACE_S + 1) if is_compacted else ():
        store.compact(now_s=now_s)
    store.delete_unreferenced(begun_below=4)
    assert store.verify().is_whole
    return disk, store, promises


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case()


@pytest.fixture(scope="module")
def compacted() -> Case:
    """Its manifests are of generation 1, and some of its packs were made by compaction."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "DEAD_BYTES_MIN", 0)
        made = make_case(first=2, is_compacted=True)
    assert any(path.startswith("packs/compaction/") for path in made[0].files())
    assert {numbers[0] for numbers in list_generations(made[0]).values()} == {1}
    return made


def content_of(disk: SimulatedDisk, path: str) -> bytes:
    node = disk.nodes[path]
    assert node is not None
    return node.data


def put(disk: SimulatedDisk, path: str, data: bytes) -> SimulatedDisk:
    """Return a disk on which `path` alone is another file; the rest is shared."""
    other = SimulatedDisk()
    other.nodes = disk.nodes | {path: Inode(data, data)}
    return other


def flip(data: bytes, position: int) -> bytes:
    other = bytearray(data)
    other[position] ^= 1 << position % 8
    return bytes(other)


def expect_found(case: Case, path: str, data: bytes) -> None:
    """Assert that `verify` names this file and no other, and that nobody restores anything wrong."""
    disk, store, promises = case
    other = put(disk, path, data)
    reader = Store(other, store.store_id)
    findings = reader.verify().findings
    assert {finding.path for finding in findings} == {path}, findings
    check_never_wrong(reader, promises, path)


def check_never_wrong(reader: Store, promises: dict[int, Promise], path: str) -> None:
    for epoch, promise in promises.items():
        try:
            check_chunked(reader, epoch, promise.state)
        except DamagedDataError as error:
            finding = finding_of(error)
            assert finding is not None and finding.path == path and path in str(error)


# -- the classes of bytes ----------------------------------------------------------------------------------------------

BLOB_FIELDS = {
    "magic": (0, 8),
    "kind": (8, 9),
    "codec": (9, 10),
    "length of the name": (10, 12),
    "zero": (12, 16),
    "stored size": (16, 24),
    "plain size": (24, 32),
    "plain digest": (32, 64),
    "stored digest": (64, 96),
    "check": (96, 112),
}
FOOTER_FIELDS = {
    "index offset": (0, 8),
    "index length": (8, 16),
    "digest": (16, 48),
    "check": (48, 64),
    "magic": (64, 72),
}
RECORD_FIELDS = {"magic": (0, 8), "kind": (8, 12), "version": (12, 16), "length": (16, 24)}

Classes = Iterator[tuple[str, int, int]]


def classes_of_pack(data: bytes, index: PackIndex) -> Classes:
    """Yield name, start and end of each class of bytes in a pack."""
    for name, (start, end) in RECORD_FIELDS.items():
        yield f"header: {name}", start, end
    for entry in index.entries:
        yield from _classes_of_blob(entry)
    start, length = struct.unpack("<QQ", data[-FOOTER_BYTES:][:16])
    for name, (first, last) in RECORD_FIELDS.items():
        yield f"index: {name}", start + first, start + last
    yield "index: digest", start + length - DIGEST_BYTES, start + length
    for name, part in _needs(index):
        position = data.index(part, start)
        yield f"index: {name}", position, position + len(part)
    for name, (first, last) in FOOTER_FIELDS.items():
        yield f"footer: {name}", len(data) - FOOTER_BYTES + first, len(data) - FOOTER_BYTES + last


def _classes_of_blob(entry: BlobEntry) -> Classes:
    if not entry.name:
        for name, (first, last) in BLOB_FIELDS.items():
            yield f"chunk: {name}", entry.offset + first, entry.offset + last
    start = entry.offset + header_bytes(entry.name)
    yield f"payload, codec {entry.codec}", start, end_of(entry)


def _needs(index: PackIndex) -> Iterator[tuple[str, bytes]]:
    yield "entries", index.entries[0].digest
    yield "base", b"\xa4base" + bytes([index.base])
    if index.reused:
        yield "reused", index.reused
    for other in index.others:
        yield "others: path", other.path.encode()
        yield "others: digest", other.index_digest


def classes_of_manifest(store: Store, disk: SimulatedDisk, path: str) -> Classes:
    data = content_of(disk, path)
    root, number = path.removeprefix("manifests/").split(".")
    manifest = read_manifest(disk, root, generation=int(number))
    for name, (start, end) in RECORD_FIELDS.items():
        yield f"manifest: {name}", start, end
    parts = {"chunk": manifest.chunks[0].digest, "last chunk": manifest.chunks[-1].digest}
    parts |= {f"pack {number}": pack.path.encode() for number, pack in enumerate(manifest.packs)}
    parts |= {f"pack {number}: digest": pack.index_digest for number, pack in enumerate(manifest.packs)}
    parts |= {f"agent {line.agent}": line.digest for line in manifest.agents}
    for name, part in parts.items():
        position = data.rindex(part)
        yield f"manifest: {name}", position, position + len(part)
        yield f"manifest: after {name}", position + len(part), position + len(part) + 1
    yield "manifest: digest", len(data) - DIGEST_BYTES, len(data)


def classes(case: Case) -> Iterator[tuple[str, str, int, int]]:
    disk, store, _ = case
    for path in disk.files():
        data = content_of(disk, path)
        if path.startswith("packs/"):
            index, _ = read_index(disk, path, size_bytes=len(data), store_id=store.store_id)
            found = classes_of_pack(data, index)
        elif path.startswith("manifests/"):
            found = classes_of_manifest(store, disk, path)
        else:
            found = iter([("small", 0, len(data))])
        for name, start, end in found:
            yield path, name, start, end


@pytest.mark.parametrize("which", ["case", "compacted"])
def test_a_flip_in_each_class_of_bytes_is_found_and_never_restored(which: str, request: pytest.FixtureRequest) -> None:
    found: Case = request.getfixturevalue(which)
    seen: set[str] = set()
    for path, name, start, end in classes(found):
        kind = f"{path.partition('/')[0]} {name}"
        is_new = kind not in seen
        seen.add(kind)
        for position in (start, (start + end) // 2, end - 1) if is_new else (start + len(seen) % (end - start),):
            if is_new or position % 8 == 0:
                expect_found(found, path, flip(content_of(found[0], path), position))
    wanted = {"chunk: codec", "payload, codec 0", "payload, codec 1", "index: base"}
    wanted |= {"index: reused", "index: others: path"} if which == "case" else set()
    assert {f"packs {name}" for name in wanted} <= seen
    assert "manifests manifest: chunk" in seen


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("which", ["case", "compacted"])
def test_a_flip_in_every_byte_is_found_and_never_restored(which: str, request: pytest.FixtureRequest) -> None:
    found: Case = request.getfixturevalue(which)
    for path in found[0].files():
        data = content_of(found[0], path)
        for position in range(len(data)):
            expect_found(found, path, flip(data, position))


@pytest.mark.parametrize("which", ["case", "compacted"])
def test_truncated_and_longer_files_are_found(which: str, request: pytest.FixtureRequest) -> None:
    found: Case = request.getfixturevalue(which)
    for path in found[0].files():
        data = content_of(found[0], path)
        for length in range(0, len(data), max(1, len(data) // 5)):
            expect_found(found, path, data[:length])
        expect_found(found, path, data + b"\0")


@pytest.mark.parametrize("which", ["case", "compacted"])
def test_missing_packs_and_manifests_are_found(which: str, request: pytest.FixtureRequest) -> None:
    disk, store, promises = request.getfixturevalue(which)
    for path in disk.files():
        if path.startswith(("packs/", "manifests/")):
            other = SimulatedDisk()
            other.nodes = {name: node for name, node in disk.nodes.items() if name != path}
            reader = Store(other, store.store_id)
            missing = {finding.path.replace(".0", ".1") for finding in reader.verify().findings}
            assert missing == {path.replace(".0", ".1")}
            for epoch, promise in promises.items():
                try:
                    check_chunked(reader, epoch, promise.state)
                except DamagedDataError as error:
                    assert "it is missing" in str(error)


def test_packs_under_each_others_names_are_found(case: Case) -> None:
    disk, _, _ = case
    packs = [path for path in disk.files() if path.startswith("packs/")]
    for path, other in zip(packs, packs[1:] + packs[:1], strict=True):
        expect_found(case, path, content_of(disk, other))


# -- right digests over wrong words: a writer that lies, or has a fault ------------------------------------------------


def _write_over(case: Case) -> tuple[Store, dict[str, PackReference], int]:
    disk, old, promises = case
    store = Store(disk.copy(), old.store_id, random_bytes=seeded_bytes(8))
    state = changed(promises[3].state, "a1", 2, 9)
    return store, write_hosts(store, 4, state, base=3, base_state=promises[3].state), 3


def test_a_base_that_does_not_hold_what_is_reused_is_refused(case: Case) -> None:
    """Epoch 1 lacks what changed later; a base that was not named, and one after the epoch, are refused too."""
    store, packs, base = _write_over(case)
    roots = {epoch: store.read_ref(epoch) for epoch in (1, 2, 3)}
    with pytest.raises(StoreError, match="which is not kept any more"):
        gather_manifest(store, 4, packs, {})
    wrong = {base: roots[1]}
    with pytest.raises(StoreError):
        gather_manifest(store, 4, packs, wrong)
    gather_manifest(store, 4, packs, {base: roots[3]})


def test_a_pack_beside_that_is_damaged_or_missing_stops_the_commit(case: Case) -> None:
    store, packs, base = _write_over(case)
    disk = below(store._disk)
    new = set(disk.files()) - set(case[0].files())
    bases = {base: store.read_ref(base)}
    for path in sorted(new):
        data = content_of(disk, path)
        for broken in (data[:-1], flip(data, len(data) - 1), flip(data, len(data) - FOOTER_BYTES - 1)):
            reader = Store(put(disk, path, broken), store.store_id)
            with pytest.raises(DamagedDataError, match=path):
                gather_manifest(reader, 4, packs, bases)
    gather_manifest(store, 4, packs, bases)


def test_a_manifest_that_forgets_a_chunk_is_found(compacted: Case) -> None:
    """Its own digest is right: the checkpoints say which chunks there must be."""
    disk, store, promises = compacted
    root = promises[3].root
    path = f"manifests/{root}.1"
    data = content_of(disk, path)
    manifest = newest_manifest(disk, root)
    metadata, content, (packs, places, chunks) = msgspec.msgpack.decode(data[24:-DIGEST_BYTES])
    assert len(chunks) == len(manifest.chunks)
    encoder = msgspec.msgpack.Encoder(order="sorted")
    body = encoder.encode([metadata, content, [packs, places, chunks[1:]]])
    head = data[:16] + struct.pack("<Q", len(body)) + body
    other = put(disk, path, head + digest_of(head))
    reader = Store(other, store.store_id)
    findings = reader.verify().findings
    assert {(finding.path, finding.epoch) for finding in findings} == {(path, 3)}
    with pytest.raises(DamagedDataError, match="does not hold chunk"):
        check_chunked(reader, 3, promises[3].state)
