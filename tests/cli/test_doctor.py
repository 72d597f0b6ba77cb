"""`snapline doctor`: what it says of a machine, a store and a fleet that are well, and of those that are not."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from snapline.cli import doctor
from snapline.cli.main import app
from snapline.storage.store.store import Store


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without snapline.toml."""
    monkeypatch.chdir(tmp_path)


def look(*arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
    result = CliRunner().invoke(app, ["doctor", *arguments, "-o", "json"])
    rows = json.loads(result.stdout)["findings"]
    return result.exit_code, {row["what"]: (row["state"], row["text"]) for row in rows}


def test_a_machine_and_a_store_that_are_well(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    code, found = look("--store", str(tmp_path / "store"))
    assert code == 0 and found["store"][0] in ("ok", "warning") and found["store logs"][0] == "ok", found
    assert {"snapline", "extras", "open files", "up --on"} <= set(found)
    assert not list((tmp_path / "store" / "probes").glob("*")) and store.store_id, "it leaves something"


def test_a_store_that_is_none_is_bad(tmp_path: Path) -> None:
    code, found = look("--store", str(tmp_path / "nothing"))
    assert code == 1 and found["store"] == (
        "bad",
        f"there is no store at {tmp_path}/nothing: check the path and whether it is mounted",
    )
    assert not (tmp_path / "nothing").exists()


def test_a_fleet_that_nobody_answers_for_is_bad() -> None:
    code, found = look("--coordinator", "127.0.0.1:1", "--timeout", "0.5")
    assert code == 1 and found["coordinator"][0] == "bad" and "127.0.0.1:1" in found["coordinator"][1]


def test_too_few_open_files_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 8192))
    remedy = "run `ulimit -n 8192` before you start a large fleet"
    assert look()[1]["open files"] == ("warning", f"a process may open 1,024: {remedy}")


def test_each_finding_begins_with_its_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 8192))
    shown = CliRunner().invoke(app, ["doctor", "--store", str(tmp_path / "nothing"), "-o", "table"]).stdout
    found = {line[9:22].strip(): line[:8].strip() for line in shown.splitlines()}
    assert (found["snapline"], found["open files"], found["store"]) == ("ok", "warning", "bad")


@pytest.mark.parametrize(
    ("states", "finding"),
    [
        (["alive", "alive"], ("ok", "2 hosts alive")),
        (["alive", "left"], ("ok", "1 host alive, 1 left on request")),
        (["lost", "alive", "lost"], ("warning", "1 host alive; lost: h1, h3; `snapline host logs h1` says why")),
        ([], ("ok", "0 hosts alive")),
    ],
)
def test_hosts_are_counted_by_their_state_and_lost_ones_are_named(states: list[str], finding: tuple[str, str]) -> None:
    rows = [{"host": f"h{number}", "state": state} for number, state in enumerate(states, 1)]
    assert doctor._hosts(rows)[1:] == finding
