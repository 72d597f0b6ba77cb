"""A stranger's reader, written from docs/snapshot-format.md: it shares no code with `storage/`.

And files that were stored by version 1 must stay readable.
"""

import struct
from pathlib import Path
from typing import Any

import lz4.block
import msgspec
import pytest
from blake3 import blake3
from tests.storage.making import (
    check_epoch_restores,
    make_checkpoint,
    make_manifest,
    make_store,
    make_taken,
    write_epoch,
    write_packs,
    write_taken,
)
from tests.storage.simulated_disk import SimulatedDisk

from snapline.errors import UsageError
from snapline.storage.packs.checkpoint import (
    NO_OUTPUTS,
    AgentCheckpoint,
    SavedOutput,
    SavedOutputs,
    decode_checkpoint,
    encode_checkpoint,
)
from snapline.storage.packs.manifest import decode_manifest, encode_manifest
from snapline.storage.store.store import Store

VERSIONS = {b"MANI": (1, 2), b"INDX": (1, 2)}

GOLDEN = Path(__file__).parent / "golden_1"
"""Epoch 1 of `making.write_epoch`, as version 1 stored it."""


def _read_record(data: bytes, kind: bytes) -> tuple[bytes, int]:
    """Return the body of the record that `data` begins with, and the record's length."""
    magic, found, version, length = struct.unpack_from("<8s4sIQ", data)
    assert (magic, found) == (b"SNAPLINE", kind) and version in VERSIONS.get(kind, (1,))
    end = 24 + length
    assert blake3(data[:end]).digest() == data[end : end + 32]
    return data[24:end], end + 32


def _read_blob(data: bytes, offset: int) -> tuple[str, bytes, int]:
    """Return name, plain bytes and end of the blob at `offset`."""
    fixed = struct.Struct("<8sBBHIQQ32s32s")
    magic, kind, codec, name_length, zero, stored_size, plain_size, digest, stored_digest = fixed.unpack_from(
        data, offset
    )
    assert (magic, kind, zero) == (b"SNAPBLOB", 1, 0)
    name_end = offset + fixed.size + name_length
    assert blake3(data[offset:name_end]).digest()[:16] == data[name_end : name_end + 16]
    end = name_end + 16 + stored_size
    stored = data[name_end + 16 : end]
    assert blake3(stored).digest() == stored_digest
    plain = lz4.block.decompress(stored, uncompressed_size=plain_size) if codec == 1 else stored
    assert len(plain) == plain_size and blake3(plain).digest() == digest
    return data[offset + fixed.size : name_end].decode(), plain, end


def _read_pack(data: bytes) -> list[tuple[str, bytes]]:
    index_offset, index_length, index_digest, check, magic = struct.unpack("<QQ32s16s8s", data[-72:])
    assert magic == b"SNAPFOOT" and blake3(data[-72:-24]).digest()[:16] == check
    body, length = _read_record(data[index_offset:], b"INDX")
    assert length == index_length and index_offset + length + 72 == len(data)
    assert data[index_offset + length - 32 : index_offset + length] == index_digest
    header, offset = _read_record(data, b"PACK")
    index = msgspec.msgpack.decode(body)
    assert msgspec.msgpack.decode(header) == {key: index[key] for key in ("epoch", "pack", "store", "writer")}
    blobs = []
    for entry in index["entries"]:
        assert entry[3] == offset
        name, plain, offset = _read_blob(data, offset)
        assert entry[0] == name
        blobs.append((name, plain))
    assert offset == index_offset
    return blobs


def _read_epoch(files: dict[str, bytes], epoch: int) -> dict[str, dict[str, Any]]:
    """Return agent → fields of its checkpoint."""
    ref = msgspec.msgpack.decode(_read_record(files[f"refs/epochs/{epoch}"], b"EREF")[0])
    identity = msgspec.msgpack.decode(_read_record(files["snapline-store"], b"STOR")[0])
    assert ref["store"] == identity["store"] and ref["epoch"] == epoch
    body, _ = _read_record(files[f"manifests/{ref['root']}.0"], b"MANI")
    metadata, content, locations = msgspec.msgpack.decode(body, type=tuple[msgspec.Raw, msgspec.Raw, msgspec.Raw])
    assert blake3(b"snapline root 1\0" + bytes(metadata) + bytes(content)).hexdigest() == ref["root"]
    packs, places = msgspec.msgpack.decode(locations)[:2]
    found = {}
    for line, place in zip(msgspec.msgpack.decode(content), places, strict=True):
        data = files[packs[place[0]][0]]
        assert len(data) == packs[place[0]][1]
        name, plain, _ = _read_blob(data, place[1])
        assert name == line[0] and blake3(plain).digest() == line[5]
        version, found[name] = msgspec.msgpack.decode(plain)
        assert version in (1, 2)
    return found


@pytest.fixture
def files() -> dict[str, bytes]:
    disk = SimulatedDisk()
    store = make_store(disk)
    write_epoch(store, 1)
    return {path: disk.read(path, 0, 10**6) for path in disk.files()}


def test_stranger_reads_a_snapshot_from_the_page(files: dict[str, bytes]) -> None:
    found = _read_epoch(files, 1)
    assert found == {agent: msgspec.to_builtins(make_checkpoint(agent, 1), builtin_types=[bytes]) for agent in found}
    assert sorted(found) == ["a1", "a2", "b1"]
    assert len([_read_pack(data) for path, data in files.items() if path.startswith("packs/")]) == 2


def test_stranger_reads_a_checkpoint_pack_from_the_page() -> None:
    disk = SimulatedDisk()
    pack = write_taken(make_store(disk), 5)
    assert pack.path.startswith("checkpoints/h1.1/5.")
    data = disk.read(pack.path, 0, 10**6)
    assert msgspec.msgpack.decode(_read_record(data, b"PACK")[0])["epoch"] == 5
    found = [(name, msgspec.msgpack.decode(plain)) for name, plain in _read_pack(data)]
    for name, (_, fields) in found:
        number, _, agent = name.partition(".")
        assert (int(number), agent) == (fields["number"], fields["agent"])
    assert found == [
        (name, [2, msgspec.to_builtins(make_taken(agent, 5, step), builtin_types=[bytes])])
        for name, agent, step in (("6.a1", "a1", 1), ("6.a2", "a2", 1), ("7.a1", "a1", 2))
    ]


def test_scan_recovers_a_pack_that_lost_its_footer_and_a_blob(files: dict[str, bytes]) -> None:
    data = next(data for path, data in files.items() if path.startswith("packs/h1."))
    whole = _read_pack(data)
    torn = bytearray(data[: data.rindex(b"SNAPLINE")])
    torn[torn.index(b"SNAPBLOB") + 20] ^= 1  # a length of the first blob: do not follow it
    found, offset = [], -1
    while (offset := torn.find(b"SNAPBLOB", offset + 1)) >= 0:
        try:
            found.append(_read_blob(bytes(torn), offset)[:2])
        except AssertionError:
            continue
    assert found == whole[1:]


def test_page_and_files_name_the_same_fields(files: dict[str, bytes]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "snapshot-format.md").read_text()
    manifest = next(data for path, data in files.items() if path.startswith("manifests/"))
    metadata = msgspec.msgpack.decode(_read_record(manifest, b"MANI")[0])[0]
    for field in [*metadata, *_read_epoch(files, 1)["a1"]]:
        assert f"`{field}`" in page, field


def test_manifests_without_inputs_and_outputs_keep_their_roots() -> None:
    """Else a snapshot that was written earlier could not be copied, and compaction would change its root."""
    store = Store.open(GOLDEN)
    root = store.read_ref(1)
    manifest = store.read_manifest(root, epoch=1)
    assert manifest.metadata.inputs == manifest.metadata.outputs == {}
    assert encode_manifest(manifest)[0] == root
    assert not {"inputs", "outputs"} & {*_metadata(encode_manifest(manifest)[1])}


@pytest.mark.parametrize("name", ["inputs", "outputs"])
def test_manifests_say_which_inputs_were_consumed_and_outputs_emitted(name: str) -> None:
    disk = SimulatedDisk()
    store = make_store(disk)
    manifest = make_manifest(store, 1, write_packs(store, 1))
    roots = set()
    for numbers in ({}, {"a1": 3}, {"a1": 4}, {"a1": 3, "b1": 1}, {"b1": 1, "a1": 3}):
        metadata = msgspec.structs.replace(manifest.metadata, **{name: numbers})
        root, data = encode_manifest(msgspec.structs.replace(manifest, metadata=metadata))
        assert _metadata(data).get(name, {}) == numbers
        assert getattr(decode_manifest(data, root=root, path="", epoch=1).metadata, name) == numbers
        roots.add(root)
    assert len(roots) == 4, "they are part of the root"
    for wrong in ({"a1": 0}, {"a1": -1}, {"a1": 2**63}, {"a/1": 1}):
        metadata = msgspec.structs.replace(manifest.metadata, **{name: wrong})
        with pytest.raises(UsageError, match="the manifest of epoch 1 cannot be written"):
            encode_manifest(msgspec.structs.replace(manifest, metadata=metadata))


def test_checkpoints_without_outputs_keep_their_bytes_and_others_have_theirs() -> None:
    plain = AgentCheckpoint(agent="a", kind="k:K", epoch=1)
    assert (
        b"outputs" not in encode_checkpoint(plain) and decode_checkpoint(encode_checkpoint(plain)).outputs == NO_OUTPUTS
    )
    outputs = SavedOutputs(2, [SavedOutput(2, "topic", b"two", 5)])
    data = encode_checkpoint(AgentCheckpoint(agent="a", kind="k:K", epoch=1, saved_outputs=outputs))
    assert msgspec.msgpack.decode(data)[1]["outputs"] == [2, [[2, "topic", b"two", 5]]]
    assert decode_checkpoint(data).outputs == outputs


def _metadata(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.msgpack.decode(_read_record(data, b"MANI")[0])[0]
    return found


def test_store_of_version_1_still_loads() -> None:
    golden = {path.relative_to(GOLDEN).as_posix(): path.read_bytes() for path in GOLDEN.rglob("*") if path.is_file()}
    assert sorted(_read_epoch(golden, 1)) == ["a1", "a2", "b1"]
    store = Store.open(GOLDEN)
    check_epoch_restores(store, 1)
    verification = store.verify()
    assert verification.findings == [finding for finding in verification.findings if finding.path == "probes"]
