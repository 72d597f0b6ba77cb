"""Real hosts that all reach the coordinator, two of which cannot reach each other any more."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from tests.integration.cuts import check_bank
from tests.integration.fleets import paced_bank
from tests.integration.processes import LIMIT_S, Process, ended, snapline, start
from tests.integration.proxies import Cable, free_port

from snapline.coordinator.leader.hosts.failure_detector import CUT_NS
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import Concern, FleetStatus
from snapline.security.transport import Security

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]

FLEET = "tests.integration.fleets.paced_bank:fleet"
THREE_TIMEOUTS_S = 3 * CUT_NS / 1e9
BUSY_S = 20.0
"""What a busy machine may add; without a decision it would take for ever."""


class CutFleet:
    """A coordinator and three hosts; the link between h1 and h2 leads through a cable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stop = folder / "stop"
        self.port = free_port()
        self.cable = Cable(self.port)
        self.address = ""
        self.processes: list[Process] = []

    async def start(self) -> None:
        store = ("--store", self.folder / "store")
        data = ("--data-dir", self.folder / "coordinator", "--hosts", "3", "--listen", "127.0.0.1:0")
        self.processes.append(await start("coordinator", "run", *data, *store))
        async with asyncio.timeout(LIMIT_S):
            while not self.address:
                with contextlib.suppress(FileNotFoundError):
                    content = (self.folder / "coordinator" / "coordinator.json").read_bytes()
                    self.address = json.loads(content)["address"]
                await asyncio.sleep(0.02)
        # The smaller id dials: h1 reaches h2 by what h2 says of itself, and nobody else dials h2.
        through = ("--listen", f"127.0.0.1:{self.port}", "--advertise", await self.cable.start())
        for host in ("h1", "h2", "h3"):
            options = ("--coordinator", self.address, "--id", host, "--fleet", FLEET, "--arg", f"stop={self.stop}")
            self.processes.append(await start("host", "run", *options, *store, *(through if host == "h2" else ())))

    async def close(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
        await self.cable.stop()


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[CutFleet]:
    made = CutFleet(tmp_path)
    await made.start()
    yield made
    await made.close()


async def until(
    client: CoordinatorClient, condition: str, test: Callable[[FleetStatus], bool], limit_s: float = LIMIT_S
) -> FleetStatus:
    deadline_s = time.monotonic() + limit_s
    while True:
        status = await client.status()
        if test(status):
            return status
        assert time.monotonic() < deadline_s, f"not {condition} after {limit_s} s: {status}"
        await asyncio.sleep(0.03)


async def test_the_fleet_goes_on_without_one_of_two_hosts_that_are_cut_from_each_other(fleet: CutFleet) -> None:
    client = CoordinatorClient(fleet.address, Security.loopback())
    try:
        await until(client, "running", lambda now: now.phase == "running" and now.epochs_completed >= 2)
        fleet.cable.pull()
        pulled_s = time.monotonic()
        said: list[Concern] = []

        def is_decided(now: FleetStatus) -> bool:
            said.extend(concern for concern in now.concerns if concern.kind == "cut")
            return now.plan == 2 and now.phase == "running"

        decided = await until(client, "decided", is_decided)
        for concern in said:  # a second long; a busy machine may not look in time
            assert concern.hosts == ("h1", "h2") and "hosts h1 and h2 have not reached each other for " in concern.text
        limit_s = THREE_TIMEOUTS_S + BUSY_S
        count = decided.epochs_completed
        later = await until(client, "going on", lambda now: now.epochs_completed > count, limit_s)
        took_s = time.monotonic() - pulled_s
        print(f"an epoch completed {took_s:.2f} s after the cut; status said {len(said)} times who was cut")
        assert took_s <= limit_s
        assert {host.host: host.agents > 0 for host in later.hosts} == {"h1": True, "h2": False, "h3": True}

        longer = await until(client, "going on", lambda now: now.epochs_completed > count + 10)
        assert longer.plan == 2 and {host.state for host in longer.hosts} == {"alive"}
        (spare,) = longer.concerns
        assert spare.kind == "spare" and spare.text.startswith(
            "host h2 is alive and gets no agents for now: host h2: cut from h1"
        )
        history = await client.recovery_history()
        (recovery,) = msgspec.convert(history["recoveries"], list[dict[str, object]])
        assert "cut from h1" in str(recovery["reason"])
        shown = await snapline("status", "--coordinator", fleet.address, "-o", "table")
        assert any(line.startswith(f"! {spare.text}, since ") for line in shown.out.splitlines()), shown.out
        listed = await snapline("status", "--coordinator", fleet.address)
        assert [(row["kind"], row["hosts"]) for row in listed.rows("concerns")] == [("spare", ["h2"])]
    finally:
        await client.close()
    fleet.stop.touch()
    codes = [(await ended(process)).code for process in fleet.processes]
    assert codes == [0, 0, 0, 0]
    check_bank(fleet.folder, paced_bank.fleet(stop=str(fleet.stop)), tokens=450)
