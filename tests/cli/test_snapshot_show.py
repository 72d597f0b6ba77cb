"""`snapline snapshot show --agent A --field F --out FILE.npy`: what an agent had in its arrays and histories, without its code."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.agent_runtime.test_incremental_epochs import LENGTH, Host
from tests.kit.command_line import Run

from snapline.storage.keys.key_files import generate_wrapping_key


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Two agents, each with an array, a history of 25 records and a blob."""
    made = Host(tmp_path / "run" / "store")
    for _ in range(20):
        made.change("a", 3, 1)
    made.end(made.write(), is_complete=True)
    return made


def shown(run: Run, host: Host, *arguments: str) -> Any:
    done = run("snapshot", "show", "latest", "--store", host.store.location, *arguments)
    assert (done.code, done.err) == (0, "")
    return done


def test_one_agent_is_shown_with_first_values_and_records(run: Run, host: Host) -> None:
    (agent,) = shown(run, host, "--agent", "a").json["agents"]
    memory = host.complete[1]["a"]
    assert agent["state"]["weights"]["values"] == [*memory.weights[:8].tolist(), "…"]
    chat = agent["state"]["chat"]
    assert chat["records"] == len(memory.chat) == 25
    records = [{"text": line.text, "number": line.number} for line in memory.chat]
    assert (chat["first"], chat["last"]) == (records[:8], records[-8:])


def test_all_agents_are_shown_without_reading_their_arrays(run: Run, host: Host) -> None:
    for agent in shown(run, host).json["agents"]:
        assert agent["state"]["weights"] == {"dtype": "<f8", "shape": [LENGTH], "bytes": 8 * LENGTH}


def test_the_table_has_a_line_for_each_field_and_record(run: Run, host: Host) -> None:
    out = shown(run, host, "--agent", "a", "-o", "table").out
    first = ", ".join(str(value) for value in host.complete[1]["a"].weights[:8].tolist())
    assert f"weights   <f8 [{LENGTH}]: {first}, …" in out and "chat      25 records, " in out
    assert "\nchat:\n  " in out and '\n  {"text": "turn 20", "number": 3}\n' in out and "  … 9 records between\n" in out


def test_a_field_is_shown_in_full(run: Run, host: Host) -> None:
    memory = host.complete[1]["a"]
    chat = shown(run, host, "--agent", "a", "--field", "chat").json
    assert (chat["kind"], chat["epoch"], chat["agent"], chat["field"]) == ("SnapshotField", 1, "a", "chat")
    assert [line["number"] for line in chat["value"]] == [line.number for line in memory.chat]
    weights = shown(run, host, "--agent", "a", "--field", "weights").json["value"]
    assert weights["values"] == [*memory.weights[:1000].tolist(), "…"]
    assert shown(run, host, "--agent", "a", "--field", "chat[-1].text").json["value"] == "turn 20"
    assert shown(run, host, "--agent", "a", "--field", "chat[0].text", "-o", "table").out == f"{memory.chat[0].text}\n"
    assert shown(run, host, "--agent", "a", "--field", "chat", "-o", "table").out.startswith("25 records:\n{")


def test_an_array_is_written_as_a_file_for_numpy(run: Run, host: Host, folder: Path) -> None:
    done = shown(run, host, "--agent", "b", "--field", "weights", "--out", "weights.npy")
    assert done.json["file"] == "weights.npy" and done.json["size_bytes"] == (folder / "weights.npy").stat().st_size
    assert np.array_equal(np.load(folder / "weights.npy"), host.complete[1]["b"].weights)
    again = run(
        "snapshot", "show", "--store", host.store.location, "--agent", "b", "--field", "weights", "--out", "weights.npy"
    )
    assert again.code == 2 and "weights.npy exists" in again.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--agent", "z", "--field", "chat"], 4, "agent 'z' is not in epoch 1"),
        (["--agent", "a", "--field", "mood"], 4, "the state has no 'mood': it has turns, weights, chat, document"),
        (["--field", "chat"], 2, "give --agent"),
        (["--agent", "a", "--out", "a.npy"], 2, "give --agent and --field"),
        (["--agent", "a", "--field", "turns", "--out", "a.npy"], 2, "turns is none"),
        (["--agent", "a", "--field", "weights", "--out", "a.csv"], 2, "ends in .npy"),
        (["--agent", "a", "--field", "weights", "--out", "missing/a.npy"], 1, "missing/a.npy"),
    ],
)
def test_what_cannot_be_shown_is_told_in_a_sentence(
    run: Run, host: Host, arguments: list[str], code: int, words: str
) -> None:
    done = run("snapshot", "show", "--store", host.store.location, *arguments)
    assert (done.code, done.out) == (code, "") and words in done.err and done.err.count("\n") == 1


def test_the_folder_of_a_fleet_will_do_and_a_coordinator_will_not(run: Run, host: Host, tmp_path: Path) -> None:
    field = ("snapshot", "show", "--agent", "a", "--field", "turns")
    assert run(*field, "--data-dir", tmp_path / "run").json["value"] == 20
    assert run(*field, "--coordinator", "127.0.0.1:1").code == 2
    assert run(*field).code == 2
    assert run(*field, "--store", tmp_path / "nowhere").code == 10


def test_an_encrypted_store_is_shown_to_who_has_its_key(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate_wrapping_key(tmp_path / "key")
    monkeypatch.setenv("SNAPLINE_STORE_KEY", str(tmp_path / "key"))
    host = Host(tmp_path / "store")
    host.end(host.write(), is_complete=True)
    field = ("snapshot", "show", "--agent", "a", "--field", "turns", "--store", host.store.location)
    assert run(*field).json["value"] == 0
    monkeypatch.delenv("SNAPLINE_STORE_KEY")
    done = run(*field)
    assert done.code == 2 and "SNAPLINE_STORE_KEY" in done.err


def test_a_damaged_chunk_is_not_shown(run: Run, host: Host) -> None:
    (pack,) = (Path(host.store.location) / "packs" / "h1-1").iterdir()
    data = bytearray(pack.read_bytes())
    data[data.index(host.complete[1]["a"].weights[5:9].tobytes())] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(data)
    for arguments in (["--agent", "a"], ["--agent", "a", "--field", "weights", "--out", "w.npy"]):
        done = run("snapshot", "show", "--store", host.store.location, *arguments)
        assert (done.code, done.out) == (6, "") and "does not match its digest" in done.err
    assert not Path("w.npy").exists()
