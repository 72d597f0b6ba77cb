"""Stores, host logs and Raft logs of earlier releases: the present code reads them, and continues their fleets (docs/compatibility.md)."""

import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.compatibility import tills
from tests.compatibility.fixtures import (
    COMMAND_S,
    HERE,
    KINDS,
    OF_STORE,
    ROOT,
    ask_fleet,
    command,
    deposit,
    kill,
    up,
    variables,
)

import snapline

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

STORED = sorted(HERE.glob("*/*.tar.xz"))

NOT_COMPARED = {"store", "remaining_s"}
"""What depends on the folder."""


@pytest.fixture(params=STORED, ids=lambda path: f"{path.parent.name}-{path.name.partition('.')[0]}")
def stored(request: pytest.FixtureRequest) -> Path:
    """The file of one fixture."""
    return Path(request.param)


@pytest.fixture
def folder(stored: Path, tmp_path: Path) -> Path:
    with tarfile.open(stored) as tar:
        tar.extractall(tmp_path / "fleet", filter="data")
    return tmp_path / "fleet"


@pytest.fixture
def environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found = variables(folder, release="the present one", sources=ROOT)
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def missing(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Return what an answer lacks that the earlier release gave, or has otherwise. New keys are allowed."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            if key not in NOT_COMPARED:
                yield from missing(value, new.get(key), f"{where}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from missing(*pair, f"{where}[{index}]")
    elif old != new:
        yield f"{where}: {old!r} is now {new!r}"


def misshapen(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Return where an answer lacks a key that the earlier release gave, or has a value of another type. Values may differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            yield from misshapen(value, new[key], f"{where}.{key}") if key in new else [f"{where}.{key} is gone"]
    elif isinstance(old, list) and isinstance(new, list):
        for pair in zip(old, new, strict=False):
            yield from misshapen(*pair, f"{where}[]")
    elif (known := {kind_of(old), kind_of(new)} - {"null"}) and len(known) > 1:
        yield f"{where} was a {kind_of(old)} and is a {kind_of(new)}"


def kind_of(value: Any) -> str:
    kinds = {bool: "boolean", int: "number", float: "number", type(None): "null"}
    return kinds.get(type(value), type(value).__name__)


def test_there_are_fixtures_of_this_release_and_they_are_small() -> None:
    names = {path.relative_to(HERE).as_posix() for path in STORED}
    assert {f"0.1.0/{kind}.tar.xz" for kind in KINDS} <= names
    for release in HERE.glob("*/"):
        assert sum(path.stat().st_size for path in release.iterdir()) < 300_000


def test_a_fixture_holds_what_only_a_fleet_at_work_stores(
    stored: Path, folder: Path, environment: dict[str, str]
) -> None:
    """A durable turn with a long journal, a deferred message, a finished and an open effect, and in a local fleet commits after the snapshot."""
    kind = KINDS[stored.name.partition(".")[0]]
    expected = json.loads((folder / "expected.json").read_text())
    agents = {agent["agent"]: agent for agent in expected["show"]["agents"]}
    turn = agents["treasurer"]["durable_turn"]
    assert (turn["entries"], turn["waits_for"]) == (4, "effect pay")
    assert [each["message"]["type"] for each in agents["treasurer"]["put_off"]] == ["Bill"]
    assert [(each["key"], each["fate"]) for each in expected["effects"]["effects"]] == [
        ("pay-1", "done"),
        ("pay-2", "open"),
    ]
    saved = snapline.open_store(folder / "store", fleet=tills.fleet()).snapshot("latest").agents["treasurer"]
    assert (saved._checkpoint.journal_part is None) == kind.is_protected  # elsewhere the long result is in a chunk
    if kind.recovery == "local":
        assert agents["till-0"]["state"]["passed"] < expected["passed"]  # the answer that the client had


def test_a_store_of_an_earlier_release_is_whole_and_shows_the_same(folder: Path, environment: dict[str, str]) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    store = ("--store", folder / "store")
    verified = command("snapshot", "verify", *store, environment=environment)
    assert verified["is_whole"] and len(expected["list"]["snapshots"]) > 1
    for name, words in OF_STORE.items():
        assert list(missing(expected[name], command(*words, *store, environment=environment))) == []


def test_every_snapshot_of_an_earlier_release_is_a_consistent_cut(folder: Path, environment: dict[str, str]) -> None:
    """Deposits come and go with a cut, so its sum is one of the sums that there were."""
    opened = snapline.open_store(folder / "store", fleet=tills.fleet())
    epochs = [entry["epoch"] for entry in json.loads((folder / "expected.json").read_text())["list"]["snapshots"]]
    sums = [tills.tokens_in(opened.snapshot(epoch)) for epoch in epochs]
    begun = len(tills.TILLS) * tills.TOKENS
    assert set(sums) <= {begun, begun + 7, begun + 18, begun + 23} and sums == sorted(sums)


def test_a_fleet_of_an_earlier_release_continues(stored: Path, folder: Path, environment: dict[str, str]) -> None:
    """Its inputs took effect once, those after its last snapshot too; its durable turns go on, and end; no token is lost."""
    expected = json.loads((folder / "expected.json").read_text())
    release = stored.parent.name
    (folder / "open").touch()
    up(folder, KINDS[stored.name.partition(".")[0]], environment)
    try:
        again = [
            deposit(folder, f"deposit-{number}", amount, environment) for number, amount in ((1, 7), (3, 11), (4, 5))
        ]
        assert all(receipt["is_repeated"] for receipt in again)
        if expected["answers"]:
            assert list(misshapen(expected["answers"], ask_fleet(folder, environment))) == []
        command("agent", "send", "auditor", "Finish", "{}", "--data-dir", folder, environment=environment)
        last = at_rest(folder)
    finally:
        kill(folder)
    assert tills.tokens_in(last) == expected["tokens"]
    assert last.epoch > expected["show"]["epoch"]
    assert last.agents["till-0"].state.passed >= expected["passed"]
    assert last.agents["auditor"].state == tills.Findings([release, "the present one"], [7, 11, 5])
    accounts = last.agents["treasurer"].state
    keys = [each["outside_key"] for each in expected["effects"]["effects"]]
    assert (accounts.releases, accounts.payments, accounts.bills) == ([release, "the present one"], keys, [3])
    assert accounts.totals.tolist() == [[1, 2, 3], [4, 5, 6]] and accounts.seal.data == bytes(range(64))
    calls = [f"{keys[0]} by {release}", f"{keys[1]} by {release}", f"{keys[1]} by the present one"]
    assert (folder / "payments").read_text().splitlines() == calls


def at_rest(folder: Path) -> snapline.Snapshot:
    """Stop the tills when both durable turns have ended, and return the last snapshot."""
    opened = snapline.open_store(folder / "store", fleet=tills.fleet())
    end = time.monotonic() + COMMAND_S
    while not all((last := opened.snapshot("latest")).agents[name].state.releases for name in ("auditor", "treasurer")):
        assert time.monotonic() < end, "the durable turns do not end"
        time.sleep(0.2)
    (folder / "stop").touch()
    while (last := opened.snapshot("latest")).in_transit or last.pending_timers:
        assert time.monotonic() < end, "the fleet does not come to rest"
        time.sleep(0.2)
    return last


def test_damage_of_a_fixture_is_found(folder: Path, environment: dict[str, str]) -> None:
    pack = next(path for path in sorted((folder / "store" / "packs").rglob("*")) if path.is_file())
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    with pytest.raises(AssertionError, match="ended with"):
        command("snapshot", "verify", "--store", folder / "store", environment=environment)


def test_an_answer_that_lacks_a_key_or_changes_one_is_found() -> None:
    old = {"a": [{"b": 1, "store": "x"}], "c": None}
    assert list(missing(old, {"a": [{"b": 1, "store": "y", "new": 2}], "c": None, "d": 1})) == []
    assert list(missing(old, {"a": [{"b": 2}], "c": None})) == [".a[0].b: 1 is now 2"]
    assert list(missing({"a": [1, 2]}, {"a": [1]})) == [".a: [1, 2] is now [1]"]
    assert list(missing({"a": 1}, {})) == [".a: 1 is now None"]


def test_an_answer_of_another_shape_is_found() -> None:
    old = {"a": [{"b": 1, "c": None}], "d": {"e": "x"}, "f": True}
    assert list(misshapen(old, {"a": [{"b": 2.5, "c": 3, "new": 1}, {}], "d": {"e": "y"}, "f": None})) == []
    assert list(misshapen(old, {"a": [{"b": "1", "c": 3}], "d": {}, "f": 1})) == [
        ".a[].b was a number and is a str",
        ".d.e is gone",
        ".f was a boolean and is a number",
    ]
    assert list(misshapen(old, {"a": {}, "d": {"e": "x"}, "f": True})) == [".a was a list and is a dict"]
