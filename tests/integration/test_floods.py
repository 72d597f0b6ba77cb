"""Another process opens 10,000 connections to one port of a fleet, or asks and does not read: memory is bounded, and epochs go on."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from tests.integration.processes import ended
from tests.integration.running import LOOK_S, Running
from tests.integration.secured import running_secured, security

from snapline.channels.servers import CONNECTIONS_MAX
from snapline.messages.coordinator_client import CoordinatorClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FLEET = "tests.integration.fleets.paced_bank:fleet"
CONNECTIONS, HELD_S = 10_000, 14.0
"""Longer than a server waits for a certificate: those that it has given up are followed by others."""

READERS = 200
"""Connections with 64 calls each."""

CONNECTION_KB_MAX, OTHERS_MB = 100, 60
"""Of a connection that says nothing, twice what was measured; and what a busy process needs besides."""

UNREAD_MB_MAX = 64 + 4096 * 32 // 1024
"""Answers that nobody takes, and 32 KB for each call, twice what was measured."""

ASKED = {"coordinator": "/snapline.protos.v1.Coordinator/Status", "h1": "/snapline.protos.v1.Agents/Show"}


def resident_mb(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


async def flooded(
    fleet: Running, name: str, address: str, count: int, *more: str | Path
) -> tuple[float, dict[str, int]]:
    """Have another process harm one of ours; returns by how many MB that grew at most, and what the other says of itself."""
    pid, before = fleet.pid(name), await fleet.client.status()
    at_first = most = resident_mb(pid)
    command = ("-m", "tests.integration.flood", address, str(count), str(HELD_S), *map(str, more))
    pipe = asyncio.subprocess.PIPE
    harm = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=pipe, stderr=pipe)
    ending = asyncio.create_task(ended(harm))
    while not ending.done():
        await fleet.client.status()
        most = max(most, resident_mb(pid))
        await asyncio.sleep(LOOK_S)
    after = await fleet.client.status()
    assert after.epochs_completed >= before.epochs_completed + 5, "epochs go on"
    assert (after.epochs_aborted, after.plan) == (before.epochs_aborted, before.plan), "and nothing is lost"
    return most - at_first, json.loads((await ending).out)


async def until_others_are_let_in(address: str, certificates: Path) -> None:
    """Somebody new, who has a certificate."""
    client = CoordinatorClient(address, security(certificates, "viewer-viewer"))
    await client.status(30.0)
    await client.close()


async def test_memory_is_bounded_and_epochs_go_on_whoever_connects_and_whoever_does_not_read(
    data_dir: Path, tmp_path: Path, figures: list[str]
) -> None:
    certificates, arguments = tmp_path / "certificates", {"stop": str(tmp_path / "stop"), "period": "0.5"}
    viewer = ("--tls", certificates / "viewer-viewer.crt", certificates / "viewer-viewer.key")
    async with running_secured(data_dir, certificates, FLEET, arguments, hosts=2, coordinators=1) as fleet:
        status = await fleet.until_epochs(2)
        places = {"coordinator": fleet.local.address, **{host.host: host.address for host in status.hosts}}
        figures.append(f"before: { ({name: round(resident_mb(fleet.pid(name))) for name in places}) } MB")
        for name, path in ASKED.items():
            grown, said = await flooded(fleet, name, places[name], READERS, "--ask", path, *viewer)
            figures.append(f"{READERS} connections that ask {name} and do not read: {said}, + {grown:.0f} MB")
            assert said["most"] > 0
            assert grown < UNREAD_MB_MAX + READERS * CONNECTION_KB_MAX / 1024 + OTHERS_MB
        for name in ("coordinator", "h1", "h2", "coordinator"):
            grown, said = await flooded(fleet, name, places[name], CONNECTIONS)
            figures.append(f"{CONNECTIONS:,} connections to {name}: {said}, + {grown:.0f} MB")
            assert said["opened"] >= CONNECTIONS and said["most"] < 1.1 * CONNECTIONS_MAX
            assert grown < CONNECTIONS_MAX * CONNECTION_KB_MAX / 1024 + OTHERS_MB
            await until_others_are_let_in(places["coordinator"], certificates)
        await fleet.until_more_epochs()
        figures.append(f"after: { ({name: round(resident_mb(fleet.pid(name))) for name in places}) } MB")
        (tmp_path / "stop").touch()
        await fleet.end()
