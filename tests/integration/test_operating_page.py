"""docs/operating.md: a running fleet is upgraded and backed up as the page says, and goes on from both restores with equal states."""

import json
import re
import shutil
from pathlib import Path

import pytest
from tests.kit.command_line import invoke
from tests.kit.shown_page import ShownPage, shown

import snapline
from snapline.cli.main import app

pytestmark = pytest.mark.timeout(240)


def test_a_fleet_is_upgraded_and_restored_as_the_page_says(tmp_path: Path) -> None:
    copies = tmp_path / "second"
    there = {"s3://second/fleet": f"file://{copies}"}
    with shown("docs/operating.md", tmp_path, there, files_from="docs/gateway.md") as page:
        page.exports.append("export SNAPLINE_HOSTS=2")
        assert page.shell("snapline up shop:fleet --data-dir run -q")[0] == 0
        paid(tmp_path / "run", 5)
        upgrade(page)
        page.run("snapshot copy")
        copied = newest(copies)
        assert copied == [{"paid": 5}]
        paid(tmp_path / "run", 7)
        down(tmp_path / "run")
        shutil.rmtree(tmp_path / "run" / "coordinator")
        page.run("restore-backup")
        assert live(tmp_path / "new") == newest(tmp_path / "run" / "store") == [{"paid": 12}]
        paid(tmp_path / "new", 1)
        down(tmp_path / "new")
        shutil.rmtree(tmp_path / "run")
        page.run("snapshot fork")
        assert live(tmp_path / "again") == copied
        paid(tmp_path / "again", 1)
        assert live(tmp_path / "again") == [{"paid": 6}]


def upgrade(page: ShownPage) -> None:
    """The commands of the page's four steps, for the newest snapshot."""
    steps = page.text.partition("## Upgrade")[2].partition("In step 3")[0]
    commands = [re.sub(r"\bID\b", "latest", found) for found in re.findall(r"`(snapline [^`]+)`", steps)]
    assert len(commands) > 4
    for command in commands:
        there = command.replace("MODULE:FLEET", "shop:fleet") + ("" if "--data-dir" in command else " --data-dir run")
        code, out, err = page.shell(there)
        assert code == 0, (there, out, err)


def paid(data_dir: Path, amount: int) -> None:
    sent = invoke(app, "agent", "send", "till-3", "Paid", json.dumps({"amount": amount}), "--data-dir", data_dir)
    assert sent.code == 0, sent.err


def live(data_dir: Path) -> list[object]:
    """The state of the fleet's agent now."""
    shown = invoke(app, "agent", "state", "till-3", "--live", "--data-dir", data_dir)
    assert shown.code == 0, shown.err
    return [shown.json["state"]]


def newest(store: Path) -> list[object]:
    """The states in the newest snapshot."""
    return [agent.state for agent in snapline.open_store(store).snapshot("latest").agents.values()]


def down(data_dir: Path) -> None:
    ended = invoke(app, "down", "--data-dir", data_dir)
    assert ended.code == 0, ended.err
