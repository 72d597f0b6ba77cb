"""Encryption and signatures: what was not written by the owner of the keys, or not in this place, is refused."""

import base64
import hashlib
import hmac
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.protecting import (
    CONTEXT,
    NEW,
    OLD,
    OTHER_PACK,
    OTHER_STORE,
    PACK,
    STORE,
    content,
    load,
    make_disk,
    make_encrypted,
    put_file,
)

from snapline.errors import DamagedDataError, StoreError, StoreKeyError, UsageError
from snapline.storage.disk.record import CIPHER_OVERHEAD_BYTES, OVERHEAD_BYTES, Guard, digest_of
from snapline.storage.keys import ciphers as ciphers_module
from snapline.storage.keys.ciphers import epoch_message
from snapline.storage.keys.key_files import (
    NO_KEYS,
    Keys,
    VerifyKey,
    generate_wrapping_key,
    make_signing_key,
)
from snapline.storage.keys.key_records import KeyRecord, list_keys, read_record
from snapline.storage.packs.pack import Keyring, PackBlob, decode_blob, encode_blob
from snapline.storage.store import protection
from snapline.storage.store.protection import Protection

SIGNER = make_signing_key(b"s" * 32)


def as_guard(made: Protection) -> Guard:
    """What the format asks for is there: a matter of the type checker."""
    return made


# -- blobs -------------------------------------------------------------------------------------------------------------


def test_what_was_sealed_opens_in_another_process() -> None:
    disk = make_disk()
    sealing = as_guard(load(disk)).begin_pack("h1.1", PACK)
    sealed = [sealing.seal(index, CONTEXT, f"blob {index}".encode()) for index in (0, 1, 10**12)]
    opening = load(disk, seed=1).open_pack(sealing.key_id, PACK)
    assert [opening.open(i, CONTEXT, data) for i, data in zip((0, 1, 10**12), sealed, strict=True)] == [
        b"blob 0",
        b"blob 1",
        b"blob 1000000000000",
    ]
    assert {len(data) for data in sealed[:2]} == {6 + CIPHER_OVERHEAD_BYTES} == {6 + ciphers_module.OVERHEAD_BYTES}


@given(data=st.binary(max_size=200), context=st.binary(max_size=50), index=st.integers(0, 2**63 - 1))
def test_any_bytes_open_and_none_of_them_show(data: bytes, context: bytes, index: int) -> None:
    sealing = ciphers_module.PackCipher("k", b"d" * 32, PACK, seals=True)
    opening = ciphers_module.PackCipher("k", b"d" * 32, PACK, seals=False)
    sealed = sealing.seal(index, context, memoryview(bytearray(data)))
    assert opening.open(index, context, memoryview(sealed)) == data
    assert len(data) < 8 or data not in sealed


def test_views_of_arrays_are_sealed_as_their_bytes() -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(12, dtype="<u4").reshape(3, 4)
    sealing = ciphers_module.PackCipher("k", b"d" * 32, PACK, seals=True)
    sealed = sealing.seal(0, b"", memoryview(array))
    assert ciphers_module.PackCipher("k", b"d" * 32, PACK, seals=False).open(0, b"", sealed) == array.tobytes()


def test_a_blob_in_another_place_is_refused() -> None:
    """Swapped with another blob, pack, writer or store, or under another header: each alone is enough."""
    disk, other_disk = make_disk(), make_disk()
    made = load(disk)
    cipher = made.begin_pack("h1.1", PACK)
    sealed = cipher.seal(7, CONTEXT, b"state")
    other_writer = made.begin_pack("h2.1", OTHER_PACK)
    other_store = load(other_disk, store=OTHER_STORE, seed=1).begin_pack("h1.1", PACK)
    for opening in (cipher, made.open_pack(cipher.key_id, PACK)):
        assert opening.open(7, CONTEXT, sealed) == b"state"
    for opening, index, context in [
        (cipher, 8, CONTEXT),
        (cipher, 7, CONTEXT + b"."),
        (cipher, 7, b""),
        (made.open_pack(cipher.key_id, OTHER_PACK), 7, CONTEXT),
        (made.open_pack(other_writer.key_id, PACK), 7, CONTEXT),
        (other_store, 7, CONTEXT),
    ]:
        with pytest.raises(ValueError, match="not sealed under"):
            opening.open(index, context, sealed)


def test_every_flipped_bit_and_every_cut_is_refused() -> None:
    cipher = load(make_disk()).begin_pack("h1.1", PACK)
    sealed = cipher.seal(0, CONTEXT, b"state")
    changed = [sealed[:end] for end in range(len(sealed))] + [sealed + b"\0"]
    for bit in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        changed.append(bytes(flipped))
    for data in changed:
        with pytest.raises(ValueError, match="not sealed under"):
            cipher.open(0, CONTEXT, data)


def test_no_nonce_is_used_twice() -> None:
    """Two blobs under one key and nonce would give both away: so an index ascends, and a pack is begun once."""
    made = load(make_disk())
    cipher = made.begin_pack("h1.1", PACK)
    cipher.seal(5, CONTEXT, b"one")
    for index in (5, 4, 0):
        with pytest.raises(UsageError, match="sealed once"):
            cipher.seal(index, CONTEXT, b"two")
    with pytest.raises(UsageError, match="another id"):
        made.begin_pack("h1.1", PACK)
    with pytest.raises(UsageError, match="opened to be read"):
        made.open_pack(cipher.key_id, PACK).seal(6, CONTEXT, b"two")
    cipher.seal(6, CONTEXT, b"three")


def test_a_failed_sealing_uses_up_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    cipher = load(make_disk()).begin_pack("h1.1", PACK)
    monkeypatch.setattr(ciphers_module, "SEAL_BYTES_MAX", 10)
    with pytest.raises(UsageError, match="11 bytes cannot be encrypted"):
        cipher.seal(0, CONTEXT, b"x" * 11)
    assert cipher.open(0, CONTEXT, cipher.seal(0, CONTEXT, b"x" * 10)) == b"x" * 10, "too large: nothing was sealed"
    with pytest.raises(TypeError):
        cipher.seal(1, "text", b"")  # type: ignore[arg-type]  # the package refuses it
    with pytest.raises(UsageError, match="sealed once"):
        cipher.seal(1, CONTEXT, b"")


def test_threads_open_with_one_cipher() -> None:
    cipher = load(make_disk()).begin_pack("h1.1", PACK)
    sealed = [cipher.seal(index, CONTEXT, bytes([index]) * 10_000) for index in range(64)]
    failures: list[int] = []

    def open_all() -> None:
        failures.extend(i for i, data in enumerate(sealed) if cipher.open(i, CONTEXT, data) != bytes([i]) * 10_000)

    threads = [threading.Thread(target=open_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def hkdf(secret: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256, no salt, one block."""
    pseudorandom = hmac.digest(bytes(32), secret, hashlib.sha256)
    return hmac.digest(pseudorandom, info + b"\x01", hashlib.sha256)


def opened_by_hand(data: bytes, secret: bytes) -> tuple[dict[str, object], bytes]:
    """Body and key of a record, from docs/protection.md alone."""
    body = msgspec.msgpack.decode(data[24:-32])
    bound = ("snapline key 1", *(body[name] for name in ("store", "key", "generation", "writer", "wrapper", "check")))
    wrapped = body["wrapped"]
    key = AESGCM(secret).decrypt(wrapped[:12], wrapped[12:], msgspec.msgpack.encode(bound))
    assert body["check"] == blake3(key, derive_key_context="snapline 1 check of a key").digest(16)
    return body, key


def test_a_stranger_decrypts_with_the_page_and_the_key_file(tmp_path: Path) -> None:
    """The page in docs/ is enough: nothing of storage/ is used to read."""
    key_file = tmp_path / "key"
    keys = Keys((generate_wrapping_key(key_file),))
    disk = make_disk()
    made = load(disk, keys)
    cipher = made.begin_pack("h1.1", PACK)
    sealed, digest = cipher.seal(3, CONTEXT, b"state"), made.digest(b"state")

    word, key_id, encoded = key_file.read_text().split()
    secret = base64.b64decode(encoded)
    assert word == "snapline-key-v1"
    assert key_id == blake3(secret, derive_key_context="snapline 1 id of a key file").hexdigest(8)
    body, data_key = opened_by_hand(content(disk, f"keys/{cipher.key_id}.0"), secret)
    assert (body["wrapper"], body["writer"], body["key"]) == (key_id, "h1.1", cipher.key_id)
    pack_key = hkdf(data_key, b"snapline pack 1\0" + PACK.encode())
    assert AESGCM(pack_key).decrypt((3).to_bytes(12, "big"), sealed, CONTEXT) == b"state"
    body, digest_key = opened_by_hand(content(disk, "keys/digest.0"), secret)
    assert body["writer"] == ""
    assert digest == blake3(b"state", key=digest_key).digest()


def test_digests_reveal_no_content_and_are_one_per_store() -> None:
    disk = make_disk()
    digests = {load(disk, seed=seed).digest(b"guess") for seed in range(3)}
    assert len(digests) == 1
    assert digests.isdisjoint({digest_of(b"guess"), load(make_disk(), seed=9).digest(b"guess")})
    assert load(make_disk(), NO_KEYS).digest(b"guess") == digest_of(b"guess")


def test_each_writer_has_one_data_key_in_each_process() -> None:
    disk = make_disk()
    made = load(disk)
    ids = [made.begin_pack(writer, f"{n:032x}").key_id for n, writer in enumerate(("h1.1", "h1.1", "h2.1"))]
    assert ids[0] == ids[1] != ids[2]
    assert load(disk, seed=1).begin_pack("h1.1", PACK).key_id not in ids
    assert {read_record(disk, f"keys/{ids[n]}.0", STORE).writer for n in (0, 2)} == {"h1.1", "h2.1"}


def test_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATA_KEYS_MAX", "PACK_CIPHERS_MAX", "WRITERS_MAX", "BEGUN_PACKS_MAX"):
        monkeypatch.setattr(protection, name, 3)
    made = load(make_disk())
    ciphers = [made.begin_pack(f"h{n}.1", f"{n:032x}") for n in range(8)]
    sealed = [cipher.seal(0, CONTEXT, b"state") for cipher in ciphers]
    for n, cipher in enumerate(ciphers):
        assert made.open_pack(cipher.key_id, f"{n:032x}").open(0, CONTEXT, sealed[n]) == b"state"
    recents = (made._data_keys, made._ciphers, made._writers, made._begun)
    assert [len(recent._entries) for recent in recents] == [3, 3, 3, 3]


def test_a_keyring_refuses_plain_moved_and_foreign_blobs() -> None:
    """Downgrade and swapping, through the format itself."""
    disk = make_disk()
    made = load(disk)
    cipher = made.begin_pack("h1.1", PACK)
    keyring = Keyring(STORE, PACK, made, cipher)
    entry, header, stored = encode_blob(PackBlob("a1", 1, b"state " * 100), offset=50, keyring=keyring)
    whole = header + bytes(stored)
    assert bytes(decode_blob(whole, entry, path="p", epoch=1, keyring=keyring)) == b"state " * 100
    plain_entry, plain_header, plain = encode_blob(PackBlob("a1", 1, b"state " * 100), offset=50)
    with pytest.raises(StoreError, match="not encrypted"):
        decode_blob(plain_header + bytes(plain), plain_entry, path="p", epoch=1, keyring=keyring)
    with pytest.raises(StoreError, match="SNAPLINE_STORE_KEY"):
        decode_blob(whole, entry, path="p", epoch=1)
    moved = msgspec.structs.replace(entry, offset=90)
    elsewhere = Keyring(STORE, OTHER_PACK, made, made.open_pack(cipher.key_id, OTHER_PACK))
    for found, ring in ((moved, keyring), (entry, elsewhere), (entry, Keyring(OTHER_STORE, PACK, made, cipher))):
        with pytest.raises(DamagedDataError):
            decode_blob(whole, found, path="p", epoch=1, keyring=ring)


# -- which store, which keys -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [NO_KEYS, NEW, Keys(signing=SIGNER)])
def test_an_encrypted_store_asks_for_its_key_file(keys: Keys) -> None:
    disk, _ = make_encrypted()
    given = f"SNAPLINE_STORE_KEY names {NEW.wrapping[0].key_id}" if keys is NEW else "no key is given"
    with pytest.raises(
        StoreKeyError,
        match=f"encrypted with key {OLD.wrapping[0].key_id}, and {given}; give its key file in SNAPLINE_ST",
    ):
        load(disk, keys)


def test_a_pack_of_another_key_file_names_it() -> None:
    disk, _ = make_encrypted()
    foreign = load(disk, Keys((*NEW.wrapping, *OLD.wrapping)), seed=1).begin_pack("h2.1", OTHER_PACK)
    with pytest.raises(StoreError, match=f"encrypted with key {NEW.wrapping[0].key_id}"):
        load(disk).open_pack(foreign.key_id, OTHER_PACK)


def test_a_pack_without_any_key_in_the_store_is_refused() -> None:
    """The folder `keys/` was taken away, and the opener has no key: the store looks plain until a pack is opened."""
    for keys in (NO_KEYS, OLD):
        with pytest.raises(DamagedDataError, match=rf"keys/{'c' * 32}\.0 is damaged: it is missing"):
            load(make_disk(), keys).open_pack("c" * 32, PACK)


@pytest.mark.parametrize("folder", ["packs", "checkpoints"])
def test_a_plain_store_is_refused_with_a_key(folder: str) -> None:
    disk = make_disk()
    disk.nodes[f"{folder}/h1.1"] = None
    load(disk)
    put_file(disk, f"{folder}/h1.1/7.{PACK}", b"pack")
    with pytest.raises(StoreError, match="holds packs, batches, outputs or a shelf, but no keys"):
        load(disk)
    assert not load(disk, NO_KEYS).encrypts


def test_a_first_writer_at_work_is_no_plain_store() -> None:
    """Between our two looks another process makes the first key and the first pack."""
    disk = make_disk()
    calls: list[str] = []

    def act(name: str) -> None:
        calls.append(name)
        if calls == ["list_directory", "list_directory"]:
            load(disk, seed=1).begin_pack("h2.1", PACK)
            disk.nodes["packs/h2.1"] = None
            put_file(disk, f"packs/h2.1/7.{PACK}", b"pack")

    disk.on_call = act
    assert load(disk).encrypts
    assert "link" in calls


def test_opening_and_reading_create_nothing() -> None:
    disk = make_disk()
    made = load(disk)
    assert made.encrypts and not made.signs and not made.requires_signatures
    with pytest.raises(StoreError):
        made.open_pack("c" * 32, PACK)
    assert disk.calls == []
    made.prepare()
    assert list_keys(disk) == {"digest": [0]}


@pytest.mark.parametrize("key_id", ["digest", "../../etc/passwd", "", "C" * 32, "c" * 31, "c" * 32 + "\n"])
def test_a_pack_cannot_name_another_kind_of_key(key_id: str) -> None:
    disk, _ = make_encrypted()
    with pytest.raises(StoreError, match="no key is called so"):
        load(disk).open_pack(key_id, PACK)


def test_nothing_is_sealed_or_signed_without_a_key() -> None:
    made = load(make_disk(), NO_KEYS)
    with pytest.raises(UsageError, match="SNAPLINE_STORE_KEY"):
        made.begin_pack("h1.1", PACK)
    with pytest.raises(UsageError, match="SNAPLINE_SIGNING_KEY"):
        made.sign(b"")
    assert made.verify(b"", b"") is False


@pytest.mark.parametrize("keys", [OLD, Keys(signing=SIGNER), Keys(verifying=(SIGNER.verify_key(),))])
def test_without_the_package_keys_are_refused_and_plain_stores_work(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r"install snapline\[crypto\]"):
        load(make_disk(), keys)
    assert load(make_disk(), NO_KEYS).digest(b"x") == digest_of(b"x")


def test_importing_takes_no_cryptography() -> None:
    import subprocess

    code = "import sys, snapline.storage.store.protection, snapline.storage.keys.key_records; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False"


# -- signatures --------------------------------------------------------------------------------------------------------


def test_a_signature_vouches_for_store_epoch_and_root_and_nothing_else() -> None:
    made = load(make_disk(), Keys(signing=SIGNER))
    message = epoch_message(STORE, 7, "r" * 64)
    signature = made.sign(message)
    assert made.verify(message, signature)
    for other in (
        epoch_message(OTHER_STORE, 7, "r" * 64),
        epoch_message(STORE, 8, "r" * 64),
        epoch_message(STORE, 7, "s" * 64),
        b"",
    ):
        assert not made.verify(other, signature)


def test_a_stripped_or_changed_signature_is_refused() -> None:
    made = load(make_disk(), Keys(signing=SIGNER))
    message = epoch_message(STORE, 7, "r" * 64)
    signature = made.sign(message)
    for wrong in (b"", bytes(64), signature[:-1], signature + b"\0", signature[::-1]):
        assert not made.verify(message, wrong)
    for bit in range(8 * len(signature)):
        flipped = bytearray(signature)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not made.verify(message, bytes(flipped))


def test_all_leaders_write_the_same_ref() -> None:
    message = epoch_message(STORE, 7, "r" * 64)
    signatures = {load(make_disk(), Keys(signing=SIGNER), seed=seed).sign(message) for seed in range(3)}
    assert len(signatures) == 1
    Ed25519PublicKey.from_public_bytes(SIGNER.public).verify(signatures.pop(), message)
    assert message == b"\x94\xb0snapline epoch 1\xd9 " + STORE.encode() + b"\x07\xd9@" + b"r" * 64


def test_who_has_the_public_key_verifies_and_cannot_sign() -> None:
    other = make_signing_key(b"t" * 32)
    message = epoch_message(STORE, 7, "r" * 64)
    by_signer, by_other = (load(make_disk(), Keys(signing=key)).sign(message) for key in (SIGNER, other))
    reader = load(make_disk(), Keys(verifying=(SIGNER.verify_key(),)))
    assert (reader.signs, reader.requires_signatures, reader.encrypts) == (False, True, False)
    assert reader.verify(message, by_signer) and not reader.verify(message, by_other)
    both = load(make_disk(), Keys(verifying=(other.verify_key(), SIGNER.verify_key())))
    assert both.verify(message, by_signer) and both.verify(message, by_other)
    moving = load(make_disk(), Keys(signing=other, verifying=(SIGNER.verify_key(),)))
    assert moving.verify(message, by_signer) and moving.verify(message, moving.sign(message))


def test_bytes_that_are_no_public_key_are_refused() -> None:
    with pytest.raises(UsageError, match="no Ed25519 public key"):
        load(make_disk(), Keys(verifying=(VerifyKey("0" * 16, b"short"),)))


def test_the_tools_that_judge_can_say_no() -> None:
    """The tests above lean on these two exceptions of the package."""
    with pytest.raises(InvalidTag):
        AESGCM(bytes(32)).decrypt(bytes(12), bytes(20), b"")
    with pytest.raises(InvalidSignature):
        Ed25519PublicKey.from_public_bytes(SIGNER.public).verify(bytes(64), b"")
    assert OVERHEAD_BYTES == 24 + 32, "what opened_by_hand cuts off"
    assert KeyRecord.__struct_fields__ == tuple(sorted(KeyRecord.__struct_fields__))
