"""The gateway as a process of its own, before a fleet of real processes: requests are answered while a host is killed."""

import asyncio
from pathlib import Path

import httpx
import pytest
from tests.integration.fleets import tills
from tests.integration.processes import LIMIT_S, start
from tests.integration.running import running

from snapline.agent_runtime.snapshots.snapshot_reader import open_store

pytestmark = pytest.mark.timeout(120)

PAID = 30


async def test_requests_take_effect_once_while_a_host_is_killed(data_dir: Path) -> None:
    stop = data_dir.with_name("stop")
    async with running(data_dir, "tills:fleet", {"stop": str(stop)}) as fleet:
        await fleet.until_epochs(1)
        listed = ("--serve", "till-0/Look")
        gateway = await start("gateway", "run", "--data-dir", data_dir, *listed, "--listen", "127.0.0.1:0")
        try:
            assert gateway.stdout is not None
            address = (await asyncio.wait_for(gateway.stdout.readline(), LIMIT_S)).decode().strip()
            async with httpx.AsyncClient(base_url=address, timeout=LIMIT_S) as http:
                assert (await http.get("/health")).json()["phase"] == "running"
                noted = await http.post("/agents/ledger/Noted", json={"till": "till-0", "serial": 99})
                assert noted.status_code == 403 and "--serve ledger/Noted" in noted.json()["detail"]
                looked = [(await http.post(f"/agents/till-{number}/Look")).status_code for number in range(2)]
                assert looked == [202, 403], "listed for one till"
                rebound = await http.post("/agents/till-0/Look", headers={"Host": "evil.example"})
                assert rebound.status_code == 421
                paying = asyncio.gather(*[pay(http, serial) for serial in range(PAID)])
                await fleet.recovered_from("h2")
                assert await paying == [202] * PAID
                assert [await pay(http, serial) for serial in range(3)] == [202] * 3, "again, under their keys"
        finally:
            gateway.terminate()
            code = await asyncio.wait_for(gateway.wait(), LIMIT_S)
        await fleet.until_more_epochs(2)
        stop.touch()
        await fleet.end()
    assert code == 0
    ledger = open_store(data_dir / "store", fleet=tills.fleet("")).snapshot("latest").agents["ledger"].state
    assert isinstance(ledger, tills.Notes)
    assert sorted(serial for seen in ledger.seen.values() for serial in seen) == list(range(PAID))


async def pay(http: httpx.AsyncClient, serial: int) -> int:
    """One after the other of three ways in, each under its key."""
    headers = {"Idempotency-Key": f"order-{serial}"}
    path = f"/agents/till-{serial % 3}/Paid?timeout_s={LIMIT_S}"
    found = await http.post(path, json={"serial": serial}, headers=headers)
    return found.status_code
