"""A fleet in the background of this machine: up, asked, down, up again from where it was."""

import asyncio
from pathlib import Path

import pytest
from tests.integration.cuts import check_paced_bank, store_of
from tests.integration.fleets import paced_bank
from tests.integration.killing import TOKENS
from tests.integration.processes import LIMIT_S, marked, snapline

pytestmark = pytest.mark.timeout(240)


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
    assert again.code == 2 and "a fleet is up in" in again.err
    asked = await snapline("status", "-o", "json")
    assert [row["state"] for row in asked.rows("hosts")] == ["alive", "alive"]
    made = await snapline("snapshot", "create", "--data-dir", data_dir, "-o", "json")
    assert made.code == 0, made.err
    assert (await snapline("down")).code == 0
    async with asyncio.timeout(LIMIT_S):
        while marked(mark):
            await asyncio.sleep(0.02)
    line = store_of(data_dir).epochs()[-1]
    stop.touch()
    assert (await snapline(*command)).code == 0
    async with asyncio.timeout(LIMIT_S):
        while marked(mark):
            await asyncio.sleep(0.02)
    assert store_of(data_dir).epochs()[-1] > line
    check_paced_bank(data_dir, paced_bank.fleet(stop=str(stop)), tokens=TOKENS)


async def test_a_fleet_that_cannot_come_up_says_why(data_dir: Path) -> None:
    up = await snapline("up", "tests.integration.fleets.paced_bank:fleet", "--data-dir", data_dir, "--hosts", "1")
    assert up.code == 2 and "stop" in up.err
    assert (await snapline("down", "--data-dir", data_dir)).code == 4
