"""The coordinator as a process: SIGTERM ends it cleanly, SIGKILL costs nothing that was acknowledged."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.coordinator.grpc_host import GrpcHost

from snapline.coordinator.service.server import CoordinatorOptions, read_address, run_coordinator
from snapline.errors import CoordinatorUnavailableError, StoreKeyError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import FleetStatus
from snapline.storage.keys.key_files import generate_wrapping_key, read_keys
from snapline.storage.store.store import Store

pytestmark = pytest.mark.processes

_MAIN = """
import asyncio, sys
from pathlib import Path
from snapline.coordinator.service.server import CoordinatorOptions, run_coordinator
folder = Path(sys.argv[1])
options = CoordinatorOptions(data_dir=folder / "coordinator", store=str(folder / "store"), hosts_expected=1)
sys.exit(asyncio.run(run_coordinator(options)))
"""


async def start(folder: Path) -> tuple[asyncio.subprocess.Process, str]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _MAIN, str(folder))
    async with asyncio.timeout(20):
        while True:
            address = read_address(folder / "coordinator")
            client = CoordinatorClient(address or "127.0.0.1:1")
            try:
                await client.status(1)
                return process, address
            except CoordinatorUnavailableError:
                await asyncio.sleep(0.05)
            finally:
                await client.close()


async def until(client: CoordinatorClient, condition: Callable[[FleetStatus], bool]) -> FleetStatus:
    async with asyncio.timeout(20):
        while not condition(status := await client.status()):
            await asyncio.sleep(0.05)
    return status


async def test_sigkill_and_restart_go_on_and_sigterm_ends_cleanly(tmp_path: Path) -> None:
    process, address = await start(tmp_path)
    host = GrpcHost("h1", address, Store.open(tmp_path / "store"))
    await host.connect()
    client = CoordinatorClient(address)
    await until(client, lambda status: status.phase == "running")
    outcome = await client.create_snapshot(20)
    assert outcome.is_complete
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await host.drop()
    await client.close()

    process, again = await start(tmp_path)
    assert again == address
    await host.connect()
    client = CoordinatorClient(address)
    status = await until(client, lambda status: status.phase == "running" and status.hosts[0].turns > 0)
    assert (status.plan, status.last_complete_epoch) == (1, 1), "nothing was lost, so nothing is recovered"
    assert (await client.create_snapshot(20)).epoch == 2
    process.terminate()
    assert await asyncio.wait_for(process.wait(), 10) == 0
    await client.close()
    await host.drop()


async def test_sigterm_before_it_serves_ends_it_cleanly_and_takes_its_metrics_file_along(tmp_path: Path) -> None:
    """Whoever sees the file may take the process for started, and stop it: here while it waits for its port."""
    file = tmp_path / "metrics.json"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = ["--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--hosts", "1"]
        options += ["--data-dir", str(tmp_path / "coordinator"), "--store", str(tmp_path / "store")]
        options += ["--metrics", "127.0.0.1:0", "--metrics-file", str(file)]
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "snapline", "coordinator", "run", *options)
        async with asyncio.timeout(20):
            while not file.exists():
                await asyncio.sleep(0.01)
        process.terminate()
    assert await asyncio.wait_for(process.wait(), 20) == 0
    assert not file.exists()


@pytest.mark.parametrize("has_log", [False, True])
async def test_a_wrong_store_key_ends_it_at_once(
    tmp_path: Path, has_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its log knows the store: that is waited for only while it is away."""
    for name in ("ours.key", "others.key"):
        generate_wrapping_key(tmp_path / name)
    options = CoordinatorOptions(data_dir=tmp_path / "coordinator", store=str(tmp_path / "store"), hosts_expected=1)
    monkeypatch.setenv("SNAPLINE_STORE_KEY", str(tmp_path / "ours.key"))
    if has_log:
        process, _ = await start(tmp_path)
        process.terminate()
        await process.wait()
    else:
        Store.create(options.store).digest(b"")
    monkeypatch.setenv("SNAPLINE_STORE_KEY", str(tmp_path / "others.key"))
    async with asyncio.timeout(5):
        with pytest.raises(StoreKeyError, match="give its key file in SNAPLINE_STORE_KEY"):
            await run_coordinator(options)


async def test_the_coordinators_key_is_in_the_store_before_a_host_joins(tmp_path: Path) -> None:
    """So a host without it is turned away when it joins, and not when it first writes."""
    generate_wrapping_key(tmp_path / "ours.key")
    keys = read_keys(store_keys=[tmp_path / "ours.key"])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SNAPLINE_STORE_KEY", str(tmp_path / "ours.key"))
        process, _ = await start(tmp_path)
    process.terminate()
    await process.wait()
    with pytest.raises(StoreKeyError, match="no key is given"):
        Store.open(tmp_path / "store")
    assert Store.open(tmp_path / "store", keys=keys)
