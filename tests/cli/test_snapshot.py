"""`snapline snapshot … --store`: a store at rest, read through the real command."""

from pathlib import Path

import pytest
from tests.kit.command_line import Run
from tests.storage.log.logging_hosts import LOG, append, make_batch

from snapline.storage.keys.key_files import Keys, generate_signing_key
from snapline.storage.log.log_record import entry_path
from snapline.storage.store.store import Store


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def a_pack(store: Path, epoch: int) -> Path:
    return next((store / "packs" / "h1.1").glob(f"*{epoch}.*"))


def test_list_names_every_snapshot(run: Run, store: Path) -> None:
    done = run("snapshot", "list", "--store", store)
    assert (done.code, done.err) == (0, "")
    assert (done.json["apiVersion"], done.json["kind"]) == ("snapline/v1", "SnapshotList")
    assert [row["epoch"] for row in done.json["snapshots"]] == [1, 2]
    assert set(done.json["snapshots"][0]) == {
        *("epoch", "root", "created", "trigger", "fleet", "protocol", "plan", "hosts", "agent_count"),
        *("state_bytes", "channel_state_messages", "channel_state_bytes", "stored_bytes"),
    }


def test_a_store_is_also_a_url(run: Run, store: Path) -> None:
    assert run("snapshot", "list", "--store", store.as_uri()).json == run("snapshot", "list", "--store", store).json


def test_list_as_a_table(run: Run, store: Path) -> None:
    lines = run("snapshot", "list", "--store", store, "-o", "table").out.splitlines()
    assert lines[0].split() == ["EPOCH", "ROOT", "CREATED", "(UTC)", "TRIGGER", "AGENTS", "STATE", "IN", "TRANSIT"]
    assert lines[2].split()[:1] == ["2"]


def test_list_shows_damage_and_the_rest(run: Run, store: Path) -> None:
    damage(next((store / "refs" / "epochs").glob("*2")))
    done = run("snapshot", "list", "--store", store)
    assert done.code == 3
    assert done.json["snapshots"][0]["root"]
    assert "damage" in done.json["snapshots"][1]
    assert "(epoch 2)" in done.err


def test_show_tells_every_state_and_message_in_transit(run: Run, store: Path) -> None:
    done = run("snapshot", "show", "latest", "--store", store)
    assert done.code == 0
    assert (done.json["kind"], done.json["epoch"]) == ("Snapshot", 2)
    states = {row["agent"]: row["state"] for row in done.json["agents"]}
    assert states == {
        "bank-1": {"balance": 200, "owner": "bank-1"},
        "bank-2": {"balance": 200, "owner": "bank-2"},
    }
    message = {"number": 5, "stamp": 1, "message": {"type": "Coins", "fields": {"amount": 30}}}
    assert done.json["channels"] == [{"sender": "bank-2", "receiver": "bank-1", "in_transit": [message]}]
    bank_2 = done.json["agents"][1]
    assert bank_2["outbox"] == [{"receiver": "bank-1", "message": {"type": "Coins", "fields": {"amount": 1}}}]
    assert (bank_2["timers"][0]["name"], bank_2["timers"][0]["remaining_s"]) == ("tick", 1.5)
    assert bank_2["dead_letters"][0]["error"] == "ValueError: debt"


def test_show_as_a_table(run: Run, store: Path) -> None:
    out = run("snapshot", "show", "1", "--store", store, "-o", "table").out
    for text in (
        '{"balance": 100, "owner": "bank-1"}',
        "1 message in transit:",
        "Coins(amount=30)",
        "bank-2: in its outbox for bank-1: Coins(amount=1)",
        "bank-2: timer tick in 1.5 s: Coins(amount=2)",
        "bank-2: dead letter from bank-1: Coins(amount=-1): ValueError: debt",
    ):
        assert text in out


def test_show_of_one_agent(run: Run, store: Path) -> None:
    done = run("snapshot", "show", "1", "--agent", "bank-1", "--store", store)
    assert [row["agent"] for row in done.json["agents"]] == ["bank-1"]
    table = run("snapshot", "show", "1", "--agent", "bank-1", "--store", store, "-o", "table").out
    assert "balance" in table and "bank-2" in table and "incarnation" in table


def test_show_takes_the_first_digits_of_a_root(run: Run, store: Path) -> None:
    root = run("snapshot", "list", "--store", store).json["snapshots"][0]["root"]
    assert run("snapshot", "show", root[:8], "--store", store).json["epoch"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"), [(["9"], "'9'"), (["latest", "--agent", "bank-9"], "'bank-9'"), (["abc"], "'abc'")]
)
def test_what_is_not_there_ends_with_4(run: Run, store: Path, arguments: list[str], words: str) -> None:
    done = run("snapshot", "show", *arguments, "--store", store)
    assert (done.code, done.out) == (4, "")
    assert words in done.err


def test_verify_of_a_whole_store(run: Run, store: Path) -> None:
    done = run("snapshot", "verify", "--store", store)
    assert (done.code, done.err) == (0, "")
    assert (done.json["kind"], done.json["is_whole"], done.json["findings"]) == ("Verification", True, [])
    assert done.json["checked_files"] == 9, "identity, and ref, manifest and two packs of each epoch"
    assert "all as written" in run("snapshot", "verify", "--store", store, "-o", "table").out


def test_verify_of_a_damaged_store_ends_with_6_and_names_file_and_epoch(run: Run, store: Path) -> None:
    pack = a_pack(store, 2)
    damage(pack)
    done = run("snapshot", "verify", "--store", store)
    assert done.code == 6
    finding = done.json["findings"][0]
    assert (finding["path"], finding["epoch"]) == (pack.relative_to(store).as_posix(), 2)
    assert f"{finding['path']} (epoch 2) is damaged" in done.err


def test_verify_of_one_snapshot_leaves_the_others_alone(run: Run, store: Path) -> None:
    damage(a_pack(store, 2))
    assert run("snapshot", "verify", "1", "--store", store).code == 0
    assert run("snapshot", "verify", "2", "--store", store).code == 6


def test_verify_works_where_nothing_can_be_opened(run: Run, store: Path) -> None:
    identity = next(path for path in store.iterdir() if path.is_file())
    damage(identity)
    assert run("snapshot", "list", "--store", store).code == 6
    done = run("snapshot", "verify", "--store", store)
    assert done.code == 6
    assert identity.name in [finding["path"] for finding in done.json["findings"]]


def test_verify_misses_batches_of_host_logs_and_names_forged_ones(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys(signing=generate_signing_key(tmp_path / "sign", tmp_path / "verify"))
    store = Store.create(tmp_path / "signed", keys=keys)
    for number in (1, 2, 3):
        append(store, number)
    monkeypatch.setenv("SNAPLINE_VERIFY_KEY", str(tmp_path / "verify"))
    assert run("snapshot", "verify", "--store", tmp_path / "signed").code == 0
    store.disk.unlink(entry_path(LOG, 1))
    forged = Store(store.disk, store.store_id).prepare_batch(LOG, 2, make_batch(9))
    store.disk.unlink(forged.path)
    (tmp_path / "signed" / forged.path).write_bytes(forged.data)
    done = run("snapshot", "verify", "--store", tmp_path / "signed")
    assert done.code == 6
    assert {finding["path"] for finding in done.json["findings"]} == {entry_path(LOG, 1), forged.path}


def test_damaged_states_are_not_shown(run: Run, store: Path) -> None:
    damage(a_pack(store, 2))
    done = run("snapshot", "show", "2", "--store", store)
    assert (done.code, done.out) == (6, "")
    assert "(epoch 2)" in done.err


@pytest.mark.parametrize("verb", ["list", "show", "verify"])
def test_no_store_ends_with_10(run: Run, tmp_path: Path, verb: str) -> None:
    done = run("snapshot", verb, "--store", tmp_path / "nowhere")
    assert (done.code, done.out) == (10, "")
    assert "there is no store at" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give --coordinator HOST:PORT"),
        (["--store", "x", "--coordinator", "127.0.0.1:1"], "give one of them"),
        (["--store", "x", "--data-dir", "y"], "give one of them"),
        (["--coordinator", "127.0.0.1:1", "--data-dir", "y"], "give one of them"),
        (["--data-dir", "nowhere"], "there is no folder nowhere here: run this where `snapline up` ran"),
        (["--coordinator", "nonsense"], "write HOST:PORT"),
        (["--coordinator", "127.0.0.1:1", "--tls-cert", "x"], "give all three"),
        (["--store", "ftp://bucket"], "ftp"),
    ],
)
def test_a_source_must_be_named_once(run: Run, arguments: list[str], words: str) -> None:
    done = run("snapshot", "list", *arguments)
    assert (done.code, done.out) == (2, "")
    assert words.lower() in done.err.lower()
    assert "Traceback" not in done.err
