"""The launcher itself is killed: nothing of it remains, and the same folder continues the fleet."""

import asyncio
import contextlib
import re
from pathlib import Path

import pytest
from tests.integration.cuts import check_paced_bank, store_of
from tests.integration.fleets import paced_bank
from tests.integration.killing import TOKENS
from tests.integration.processes import LIMIT_S, ended, marked, start

from snapline.errors import SnaplineError


async def until_epoch(data_dir: Path, epoch: int) -> None:
    """Wait until the store holds this epoch or a later one; nobody is asked."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(SnaplineError):
                if store_of(data_dir).epochs()[-1:] >= [epoch]:
                    return
            await asyncio.sleep(0.05)


@pytest.mark.timeout(120)
async def test_a_killed_launcher_leaves_no_process_and_its_folder_continues(data_dir: Path, mark: str) -> None:
    stop = data_dir.with_name("stop")
    fleet = ("tests.integration.fleets.paced_bank:fleet", "--arg", f"stop={stop}")
    command = ("run", *fleet, "--hosts", "3", "--data-dir", data_dir, "-o", "json")
    launcher = await start(*command)
    await until_epoch(data_dir, 3)
    assert len(marked(mark)) == 6, "launcher, what it forks from, coordinator, three hosts"
    launcher.kill()
    await launcher.communicate()
    async with asyncio.timeout(LIMIT_S):
        while marked(mark):
            await asyncio.sleep(0.02)
    line = store_of(data_dir).epochs()[-1]

    launcher = await start(*command)
    await until_epoch(data_dir, line + 2)
    stop.touch()
    outcome = await ended(launcher)
    assert (outcome.code, outcome.json["outcome"]) == (0, "stopped"), outcome.err
    # The log may know a newer epoch as complete, whose ref nobody had the time to write.
    lines = re.findall(r"from epoch (\d+) on", (data_dir / "logs" / "coordinator.log").read_text())
    assert lines and line <= int(lines[-1]) <= line + 1
    check_paced_bank(data_dir, paced_bank.fleet(stop=str(stop)), tokens=TOKENS)
