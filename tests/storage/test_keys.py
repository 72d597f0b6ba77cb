"""Key files, and the records of keys in a store: each change is found and named, none of them gives a secret away."""

import itertools
import os
import re
import threading
from pathlib import Path

import pytest
from tests.storage.protecting import (
    NEW,
    OLD,
    OTHER_PACK,
    OTHER_STORE,
    PACK,
    STORE,
    Life,
    content,
    crash_everywhere,
    forge,
    load,
    make_disk,
    make_encrypted,
    put_file,
    run_at_every_call,
)
from tests.storage.simulated_disk import SimulatedDisk

from snapline.errors import DamagedDataError, StoreError, UsageError
from snapline.storage.disk.local_disk import LocalDisk
from snapline.storage.disk.record import finding_of
from snapline.storage.keys import key_files, key_records
from snapline.storage.keys.key_files import (
    NO_KEYS,
    Keys,
    WrappingKey,
    generate_signing_key,
    generate_wrapping_key,
    keys_from_environment,
    make_signing_key,
    make_wrapping_key,
    read_keys,
    read_signing_key,
    read_verify_key,
    read_wrapping_key,
)
from snapline.storage.keys.key_records import list_keys, read_record
from snapline.storage.store.protection import load_protection

# -- key files ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    generate_wrapping_key(tmp_path / "key")
    return tmp_path / "key"


@pytest.fixture
def signing_files(tmp_path: Path) -> tuple[Path, Path]:
    generate_signing_key(tmp_path / "sign", tmp_path / "sign.pub")
    return tmp_path / "sign", tmp_path / "sign.pub"


def test_a_generated_key_is_read_back(tmp_path: Path) -> None:
    made = generate_wrapping_key(tmp_path / "key")
    assert read_wrapping_key(tmp_path / "key") == made
    assert re.fullmatch(rf"snapline-key-v1 {made.key_id} [A-Za-z0-9+/]{{43}}=\n", (tmp_path / "key").read_text())
    pair = generate_signing_key(tmp_path / "sign", tmp_path / "sign.pub")
    assert read_signing_key(tmp_path / "sign") == pair
    assert read_verify_key(tmp_path / "sign.pub") == pair.verify_key()
    assert made.key_id != generate_wrapping_key(tmp_path / "other").key_id


def test_secrets_are_for_their_owner_alone(key_file: Path, signing_files: tuple[Path, Path]) -> None:
    """Also under a umask that takes nothing away."""
    assert [path.stat().st_mode & 0o777 for path in (key_file, *signing_files)] == [0o600, 0o600, 0o644]
    before = os.umask(0)
    try:
        generate_wrapping_key(key_file.with_name("second"))
    finally:
        os.umask(before)
    assert key_file.with_name("second").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644, 0o666])
def test_a_secret_that_others_can_use_is_refused(mode: int, key_file: Path, signing_files: tuple[Path, Path]) -> None:
    for path, read in ((key_file, read_wrapping_key), (signing_files[0], read_signing_key)):
        path.chmod(mode)
        with pytest.raises(UsageError, match=f"chmod 600 {path}"):
            read(path)
        path.chmod(0o400)
        read(path)


def test_no_key_serves_another_purpose(key_file: Path, signing_files: tuple[Path, Path]) -> None:
    """All three have 32 bytes: a public key taken as a secret would encrypt for everybody."""
    readers = (read_wrapping_key, read_signing_key, read_verify_key)
    for path in (key_file, *signing_files):
        path.chmod(0o600)
    for (right, path), (given, read) in itertools.product(enumerate((key_file, *signing_files)), enumerate(readers)):
        if right == given:
            read(path)
        else:
            with pytest.raises(UsageError, match="give the other file"):
                read(path)


def test_flipped_bits_in_every_byte_of_a_key_file_are_found(key_file: Path, signing_files: tuple[Path, Path]) -> None:
    """But for the spare bits in the last digit of base64, which change nothing."""
    cases = ((key_file, read_wrapping_key), (signing_files[0], read_signing_key), (signing_files[1], read_verify_key))
    for path, read in cases:
        right, data = read(path), path.read_bytes()
        for bit in range(0, 8 * len(data), 3 if read is read_wrapping_key else 7):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(bytes(changed))
            try:
                assert read(path) == right and bit // 8 == len(data) - 3
            except UsageError as error:
                assert str(path) in str(error)
                assert data.split()[2].decode()[:20] not in str(error), "no message holds a secret"
        for wrong in (b"", data[:-2], data + b"\n", data * 2, b"x" * 10_000):
            path.write_bytes(wrong)
            with pytest.raises(UsageError):
                read(path)


def test_a_key_file_is_never_written_over(key_file: Path, signing_files: tuple[Path, Path], tmp_path: Path) -> None:
    """It may be the only copy."""
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UsageError, match="only copy"):
        generate_wrapping_key(key_file)
    with pytest.raises(UsageError, match="only copy"):
        generate_signing_key(key_file, tmp_path / "new.pub")
    with pytest.raises(UsageError, match="only copy"):
        generate_signing_key(tmp_path / "new", signing_files[1])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before, "and nothing is left behind"


def test_places_that_hold_no_key_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir(0o700)
    (tmp_path / "text").write_text("hello")
    for name, words in (("pipe", "no file"), ("folder", "folder"), ("nowhere", "No such file"), ("text/x", "text/x")):
        with pytest.raises(UsageError, match=words):
            read_wrapping_key(tmp_path / name)
    with pytest.raises(UsageError, match="check the path"):
        generate_wrapping_key(tmp_path / "nowhere" / "key")


def test_no_secret_is_shown(key_file: Path) -> None:
    key, pair = read_wrapping_key(key_file), make_signing_key(b"s" * 32)
    keys = Keys((key,), pair)
    disk, key_id = make_encrypted()
    opened = key_records.open_key(disk, STORE, key_id, OLD)
    for shown in (repr(key), repr(pair), repr(keys), str(keys), repr(opened), f"{opened}"):
        for secret in (key.secret, pair.secret, opened.secret):
            assert repr(secret)[2:-1] not in shown and secret.hex() not in shown
    assert key.key_id in repr(keys) and key_id in repr(opened)


# -- the environment ---------------------------------------------------------------------------------------------------


def test_the_environment_names_the_files(key_file: Path, signing_files: tuple[Path, Path], tmp_path: Path) -> None:
    other = generate_wrapping_key(tmp_path / "other")
    private, public = signing_files
    keys = keys_from_environment(
        {
            "SNAPLINE_STORE_KEY": f"{tmp_path / 'other'}:{key_file}:{key_file}",
            "SNAPLINE_SIGNING_KEY": str(private),
            "SNAPLINE_VERIFY_KEY": str(public),
        }
    )
    assert keys.wrapping == (other, read_wrapping_key(key_file)), "the first encrypts; one that comes twice counts once"
    assert keys.signing == read_signing_key(private)
    assert keys.verifying == (read_verify_key(public),)
    assert keys.find(other.key_id) == other and keys.find("0" * 16) is None
    assert keys_from_environment({}) == NO_KEYS


def test_the_environment_of_the_process_counts(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNAPLINE_STORE_KEY", str(key_file))
    assert keys_from_environment().wrapping == (read_wrapping_key(key_file),)


@pytest.mark.parametrize("name", ["SNAPLINE_STORE_KEY", "SNAPLINE_SIGNING_KEY", "SNAPLINE_VERIFY_KEY"])
@pytest.mark.parametrize("value", ["", ":", "/a:", ":/a"])
def test_an_empty_variable_is_no_way_to_a_plain_store(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is set, but names no file"):
        keys_from_environment({name: value})


def test_one_key_signs(signing_files: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="names 2 files"):
        keys_from_environment({"SNAPLINE_SIGNING_KEY": f"{signing_files[0]}:{signing_files[0]}"})


def test_too_many_key_files_are_refused(key_file: Path, signing_files: tuple[Path, Path]) -> None:
    count = key_files.KEY_FILES_MAX
    assert len(read_keys(store_keys=[key_file] * count).wrapping) == 1
    with pytest.raises(UsageError, match=f"at most {count}"):
        read_keys(store_keys=[key_file] * (count + 1))
    with pytest.raises(UsageError, match=f"at most {count}"):
        read_keys(verify_keys=[signing_files[1]] * (count + 1))


def test_ids_of_keys_are_stable() -> None:
    """Key files outlive releases: an id that changed would make them all damaged."""
    assert make_wrapping_key(bytes(32)).key_id == "36df22df3a1b26da"
    assert make_signing_key(bytes(32)).key_id == "613f9b9dd2ba7a14"


# -- records of keys ---------------------------------------------------------------------------------------------------


def test_every_flipped_bit_of_a_key_record_is_found_and_named() -> None:
    disk, key_id = make_encrypted()
    for path, use in (
        ("keys/digest.0", lambda: load(disk)),
        (f"keys/{key_id}.0", lambda: load(disk).open_pack(key_id, PACK)),
    ):
        data = content(disk, path)
        assert len(data) < key_records.RECORD_BYTES_MAX // 2
        for bit in range(8 * len(data)):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            put_file(disk, path, bytes(changed))
            with pytest.raises(StoreError) as caught:
                read_record(disk, path, STORE)
            assert path in str(caught.value)
            if bit % 61 == 0:  # Opening the store reads the record the same way.
                with pytest.raises(StoreError, match=path):
                    use()
        for wrong in (data[:-1], data + b"\0", b"", data[:20]):
            put_file(disk, path, wrong)
            with pytest.raises(DamagedDataError) as damage:
                use()
            finding = finding_of(damage.value)
            assert finding is not None and finding.path == path
        put_file(disk, path, data)
        use()


def test_every_forged_field_of_a_key_record_is_found() -> None:
    """The digest of a record has no key: whoever may write can make a right one."""
    for fields in (
        {"check": bytes(16)},
        {"check": b""},
        {"generation": 1},
        {"key": "d" * 32},
        {"store": OTHER_STORE},
        {"wrapped": bytes(60)},
        {"wrapped": b""},
        {"writer": "h2.1"},
        {"writer": 7},
        {"surplus": 1},
    ):
        disk, key_id = make_encrypted()
        forge(disk, f"keys/{key_id}.0", **fields)
        with pytest.raises(DamagedDataError, match=f"keys/{key_id}"):
            load(disk).open_pack(key_id, PACK)
    disk, key_id = make_encrypted()
    forge(disk, f"keys/{key_id}.0", wrapper=NEW.wrapping[0].key_id)
    with pytest.raises(DamagedDataError, match="does not open"):
        load(disk, Keys(OLD.wrapping + NEW.wrapping)).open_pack(key_id, PACK)


def test_a_key_under_another_name_is_refused() -> None:
    """A digest key as data key, or the data key of one writer as that of another, even with the name inside changed."""
    disk, key_id = make_encrypted()
    other = load(disk, seed=1).begin_pack("h2.1", OTHER_PACK).key_id
    for source in ("keys/digest.0", f"keys/{other}.0"):
        put_file(disk, f"keys/{key_id}.0", content(disk, source))
        with pytest.raises(DamagedDataError, match="it is the file"):
            load(disk).open_pack(key_id, PACK)
        forge(disk, f"keys/{key_id}.0", key=key_id)
        with pytest.raises(DamagedDataError, match="does not open"):
            load(disk).open_pack(key_id, PACK)


def test_a_key_of_another_store_is_refused() -> None:
    disk, key_id = make_encrypted()
    with pytest.raises(DamagedDataError, match=f"belongs to store {STORE}"):
        load(disk, store=OTHER_STORE)
    for path in ("keys/digest.0", f"keys/{key_id}.0"):
        forge(disk, path, store=OTHER_STORE)
    with pytest.raises(DamagedDataError, match="does not open"):
        load(disk, store=OTHER_STORE)


def test_another_key_under_the_id_of_ours_is_refused() -> None:
    """Ids of key files are digests; should two meet, the tag decides."""
    disk, _ = make_encrypted()
    with pytest.raises(DamagedDataError, match="does not open"):
        load(disk, Keys((WrappingKey(OLD.wrapping[0].key_id, b"x" * 32),)))


def test_check_key_file_finds_what_its_keys_allow() -> None:
    disk, key_id = make_encrypted()
    made = load(disk)
    assert made.check_key_file(f"keys/{key_id}.0").writer == "h1.1"
    forge(disk, f"keys/{key_id}.0", writer="h9.1")
    with pytest.raises(DamagedDataError, match="does not open"):
        made.check_key_file(f"keys/{key_id}.0")
    without = key_records.check_key_file(disk, f"keys/{key_id}.0", store_id=None, keys=NO_KEYS)
    assert without.writer == "h9.1", "without a key it cannot be known"


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("digest.0", True),
        ("digest.999999", True),
        (f"{'0' * 32}.7", True),
        ("digest.01", False),
        ("digest.1000000", False),
        ("digest", False),
        (f"{'0' * 31}.7", False),
        (f"{'A' * 32}.7", False),
        ("digest.0\n", False),
        ("../keys/digest.0", False),
    ],
)
def test_names_of_key_records(name: str, is_one: bool) -> None:
    assert (key_records.parse_key_path(f"keys/{name}") is not None) is is_one


def test_other_files_in_keys_are_no_keys() -> None:
    disk, key_id = make_encrypted()
    put_file(disk, "keys/notes.txt", b"")
    disk.nodes["keys/digest.7"] = None
    assert list_keys(disk) == {key_id: [0], "digest": [0]}


def test_unneeded_data_keys_are_removed_and_no_others() -> None:
    disk = make_disk()
    made = load(disk)
    ids = [made.begin_pack(f"h{n}.1", f"{n:032x}").key_id for n in range(4)]
    put_file(disk, f"keys/{'e' * 32}.0", b"damaged")
    removed = key_records.remove_unneeded(disk, STORE, needed={ids[0]}, open_writers={"h2.1"})
    assert removed == [f"keys/{key_id}.0" for key_id in sorted((ids[1], ids[3]))]
    assert set(list_keys(disk)) == {"digest", ids[0], ids[2], "e" * 32}
    assert disk.calls[-1] == "sync_directory"


# -- making keys: races and crashes ------------------------------------------------------------------------------------


def test_racing_openers_get_one_key_of_digests(tmp_path: Path) -> None:
    for folder in ("packs", "checkpoints"):
        (tmp_path / folder).mkdir()
    digests: list[bytes] = []
    barrier = threading.Barrier(8)

    def open_and_digest() -> None:
        made = load_protection(LocalDisk(tmp_path), STORE, OLD)
        barrier.wait()
        digests.append(made.digest(b"state"))

    threads = [threading.Thread(target=open_and_digest) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(digests) == 8 and len(set(digests)) == 1
    assert list_keys(LocalDisk(tmp_path)) == {"digest": [0]}


def test_racing_makers_agree_at_every_interleaving() -> None:
    found: list[bytes] = []
    calls = run_at_every_call(
        make_disk,
        lambda disk: found.append(load(disk, seed=1).digest(b"state")),
        lambda disk: found.append(load(disk, seed=2).digest(b"state")),
        lambda disk: found.append(load(disk, seed=3).digest(b"state")),
    )
    assert calls > 10
    assert all(len(set(found[n : n + 3])) == 1 for n in range(0, 3 * calls, 3))


def test_a_crash_at_every_call_leaves_every_promised_key() -> None:
    assert crash_everywhere(Life, Life.run, Life.check) > 30


@pytest.mark.parametrize("name", ["sync_data", "sync_directory keys", "sync_directory "])
def test_the_crash_test_catches_a_missing_sync(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sync is needed: of the record, of `keys/`, and of the store's own directory."""
    call, _, path = name.partition(" ")
    right = getattr(SimulatedDisk, call)
    monkeypatch.setattr(
        SimulatedDisk, call, lambda disk, target: None if call == "sync_data" or target == path else right(disk, target)
    )
    with pytest.raises((AssertionError, StoreError)):
        crash_everywhere(Life, Life.run, Life.check)


def test_an_error_at_every_call_is_clean_and_the_next_try_succeeds() -> None:
    disk = make_disk()
    Life(disk).run()
    for moment in range(len(disk.calls)):
        failing = make_disk()
        failing.fail_at = moment
        life = Life(failing)
        with pytest.raises(StoreError, match="cannot write"):
            life.run()
        assert failing.open_handles == 0
        life.check(failing)
