"""`snapline logs` of a fleet of real processes, while a host is killed: nothing is lost, and what is followed comes."""

import asyncio
import json
import signal
from pathlib import Path

import pytest
from tests.integration.processes import LIMIT_S, snapline, start
from tests.integration.running import running

from snapline.deploy.data_directory import LOGS_FOLDER

pytestmark = pytest.mark.timeout(120)


async def read_until(stream: asyncio.StreamReader | None, wanted: str, times: int) -> list[str]:
    """Lines up to that with which the text has come so often."""
    assert stream is not None
    lines: list[str] = []
    async with asyncio.timeout(LIMIT_S):
        while sum(wanted in line for line in lines) < times:
            line = (await stream.readline()).decode()
            assert line, f"it has ended: {lines}"
            lines.append(line)
    return lines


async def test_the_logs_of_a_fleet_are_one(data_dir: Path) -> None:
    stop = data_dir.with_name("stop")
    async with running(data_dir, "paced_bank:fleet", {"stop": str(stop)}) as fleet:
        await fleet.until_epochs(1)
        following = await start("logs", "h2", "--follow", "--data-dir", data_dir, "-o", "table")
        begun = await read_until(following.stdout, "snapline.host", 1)
        await fleet.recovered_from("h2")
        words = begun[0].partition("snapline.host: ")[2]
        await read_until(following.stdout, words.partition(" ")[0], 1)  # what a host says first, once more
        following.send_signal(signal.SIGINT)
        async with asyncio.timeout(LIMIT_S):
            await following.communicate()
        assert following.returncode == 130
        stop.touch()
        await fleet.end()
    done = await snapline("logs", "--data-dir", data_dir, "-o", "json")
    entries = [json.loads(line) for line in done.out.splitlines()]
    assert {entry["process"] for entry in entries} == {"coordinator", "h1", "h2", "h3"}
    times = [entry["time"] for entry in entries]
    assert len(times) > 10 and None not in times
    shown = await snapline("logs", "--data-dir", data_dir, "-o", "table")
    for log in sorted((data_dir / LOGS_FOLDER).iterdir()):
        of_it = [line for line in shown.out.splitlines() if line.startswith(f"{log.stem} ")]
        assert [line.partition(" | ")[2] for line in of_it] == log.read_text().splitlines()
    last = await snapline("logs", "--data-dir", data_dir, "-n", "3", "-o", "table")
    assert last.out.splitlines() == shown.out.splitlines()[-3:]


async def test_json_says_whom_each_line_is_about(data_dir: Path) -> None:
    """All processes of a fleet, as its launcher was told; agents that log as ever are named."""
    done = await snapline(
        *("run", "tests.integration.fleets.talking:fleet", "--hosts", "2", "--data-dir", data_dir),
        *("--log-format", "json", "--log-level", "debug", "-o", "json"),
    )
    assert done.code == 0, done.err
    lines = {log.stem: log.read_text().splitlines() for log in (data_dir / LOGS_FOLDER).iterdir()}
    said = {name: [json.loads(line) for line in found] for name, found in lines.items()}
    assert set(said) == {"coordinator", "h1", "h2"}
    assert all(each["replica"] == "c1" for each in said["coordinator"])
    assert all(each["host"] == name for name in ("h1", "h2") for each in said[name])
    told = [each for name in ("h1", "h2") for each in said[name] if each["logger"] == "talking"]
    assert {(each["message"], each["agent"], each["fleet"]) for each in told} == {
        (f"{agent} {what}", agent, "talking") for agent in ("a", "b") for what in ("starts", "waits", "hears", "ends")
    }
    assert all(each["plan"] == each["host_start"] == each["incarnation"] == 1 for each in told)
    planned = [each for each in said["coordinator"] if each.get("plan")]
    assert planned and all(each["fleet"] == "talking" for each in planned)
    shown = await snapline("logs", "--data-dir", data_dir, "-o", "json", "--level", "info")
    entries = [json.loads(line) for line in shown.out.splitlines()]
    assert [each["time"] for each in entries] == sorted(each["time"] for each in entries)
    assert {each["fields"].get("agent") for each in entries} == {None, "a", "b"}


async def test_what_a_call_sets_off_bears_its_id(data_dir: Path) -> None:
    stop = data_dir.with_name("stop")
    as_json = {"SNAPLINE_LOG_FORMAT": "json"}
    async with running(data_dir, "paced_bank:fleet", {"stop": str(stop)}, environment=as_json) as fleet:
        await fleet.until_epochs(1)
        earlier = len(await fleet.recoveries())
        await fleet.client.end_host("h2", LIMIT_S)
        await fleet.until_recovered(earlier)
        stop.touch()
        await fleet.end()
    said = [json.loads(line) for line in (data_dir / LOGS_FOLDER / "coordinator.log").read_text().splitlines()]
    asked = [each for each in said if "request" in each]
    assert {each["call"] for each in asked} == {"EndHost"}, asked
