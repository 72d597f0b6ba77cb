"""A fleet in the background of this machine: up, asked, down, up again from where it was."""

import asyncio
from pathlib import Path

import pytest
from tests.integration.cuts import check_paced_bank, store_of
from tests.integration.fleets import paced_bank
from tests.integration.killing import TOKENS
from tests.integration.processes import LIMIT_S, marked, snapline

pytestmark = pytest.mark.timeout(240)


async def move_everything() -> None:
    """While tokens travel: a third host comes, one is drained, every process is started anew, and one host goes. No epoch is lost by it."""
    scaled = await snapline("scale", "--hosts", "3", "-o", "json")
    assert scaled.code == 0 and len(scaled.rows("placed")) == 3, scaled.err
    drained = await snapline("host", "drain", "h1", "-o", "json")
    assert [row["host"] for row in drained.rows("hosts") if row["is_drained"] and not row["agents"]] == ["h1"], (
        drained.err
    )
    assert (await snapline("host", "resume", "h1")).code == 0
    moved = await snapline("agent", "move", "teller-0", "--to", "h1", "-o", "json")
    assert (moved.code, moved.json["agents"]) == (0, ["teller-0"]), moved.err
    placed = await snapline("agent", "list", "-o", "json")
    assert {row["host"] for row in placed.rows("agents") if row["agent"] == "teller-0"} == {"h1"}
    for words in ("nobody --to h1", "teller-0 --to nobody"):
        assert (await snapline("agent", "move", *words.split())).code == 4
    renewed = await snapline("restart", "-o", "json")
    assert renewed.code == 0 and renewed.json["hosts"] == ["h1", "h2", "h3"], renewed.err
    assert renewed.json["coordinators"] == ["c1"], renewed.json
    assert (await snapline("scale", "--hosts", "2")).code == 0
    asked = await snapline("status", "-o", "json")
    assert (asked.json["epochs_aborted"], asked.json["phase"]) == (0, "running"), asked.json
    assert all(row["host_start"] == 2 for row in asked.rows("hosts") if row["state"] == "alive")
    log = await snapline("host", "logs", "h1")
    assert "an operator has ended it" in log.out
    for words, code in (("drain nobody", 4), ("drain h1 h2", 2), ("kill h3", 2), ("logs nobody", 4)):
        refused = await snapline("host", *words.split())
        assert refused.code == code and refused.err.count("\n") == 1, (words, refused.code, refused.err)


WRONG = """
import snapline

class Go(snapline.Message):
    pass

class Odd(snapline.Agent):
    @snapline.handler
    async def on_go(self, message, ctx: snapline.Context) -> None:
        pass

fleet = snapline.Fleet("odd", agents={"a": Odd()})
"""


async def test_up_leaves_a_fleet_running_down_ends_it_and_up_continues_it(
    data_dir: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is named by snapline.toml alone."""
    folder, stop = data_dir.parent, data_dir.with_name("stop")
    monkeypatch.chdir(folder)
    (folder / "snapline.toml").write_text(f'[up]\nhosts = 2\ndata_dir = "{data_dir}"\n')
    command = ("up", "tests.integration.fleets.paced_bank:fleet", "--arg", f"stop={stop}", "-o", "json")
    up = await snapline(*command)
    assert up.code == 0, up.err
    assert (up.json["kind"], up.json["hosts"], up.json["outcome"]) == ("FleetUp", 2, None)
    again = await snapline(*command)
    assert again.code == 11 and "a fleet is up in" in again.err
    asked = await snapline("status", "-o", "json")
    assert [row["state"] for row in asked.rows("hosts")] == ["alive", "alive"]
    made = await snapline("snapshot", "create", "--data-dir", data_dir, "-o", "json")
    assert made.code == 0, made.err
    await move_everything()
    down = await snapline("down")
    assert down.code == 0 and down.err.endswith(" is the last snapshot\n") and "signal" not in down.err, down.err
    for words in (("status",), ("status", "--data-dir", data_dir), ("agent", "list"), ("top",)):
        asked = await snapline(*words)
        kept = f"snapline: no `snapline up` keeps the fleet in {data_dir} any more, and nothing answers at "
        assert asked.code == 8 and asked.err.startswith(kept), asked.err
        place = f" --data-dir {data_dir}" if "--data-dir" in words else ""
        assert asked.err.endswith(f"; `snapline up MODULE:FLEET{place}` continues it\n"), asked.err
    alone = await snapline("scale", "--hosts", "3")
    assert alone.code == 2 and "no process on this machine keeps a fleet" in alone.err
    async with asyncio.timeout(LIMIT_S):
        while marked(mark):
            await asyncio.sleep(0.02)
    line = store_of(data_dir).epochs()[-1]
    assert (await snapline(*command)).code == 0
    history = await snapline("recovery", "history", "-o", "json")
    assert history.rows("recoveries")[-1]["line_epoch"] == line
    assert str(history.rows("recoveries")[-1]["reason"]).startswith("planned stop"), history.json
    stop.touch()
    async with asyncio.timeout(LIMIT_S):
        while marked(mark):
            await asyncio.sleep(0.02)
    assert store_of(data_dir).epochs()[-1] > line
    check_paced_bank(data_dir, paced_bank.fleet(stop=str(stop)), tokens=TOKENS)


async def test_an_error_in_an_agent_s_class_is_the_reason_that_is_given(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts find it. Nothing that an interpreter prints while it ends may take its place."""
    (tmp_path / "wrong.py").write_text(WRONG)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    up = await snapline("up", "wrong:fleet", "--data-dir", data_dir, "--hosts", "1")
    assert up.code == 2 and "Odd.on_go must be written `async def" in up.err.splitlines()[-1]
    assert "Exception ignored" not in (data_dir / "logs" / "h1.log").read_text()


async def test_a_fleet_that_cannot_come_up_says_why(data_dir: Path) -> None:
    up = await snapline("up", "tests.integration.fleets.paced_bank:fleet", "--data-dir", data_dir, "--hosts", "1")
    assert up.code == 2 and "stop" in up.err
    assert (await snapline("down", "--data-dir", data_dir)).code == 4
