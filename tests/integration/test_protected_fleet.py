"""A fleet whose store is encrypted and signed: it recovers as any other, and nobody reads it without the key."""

import asyncio
from pathlib import Path

import pytest
from tests.integration.fleets import thinkers
from tests.integration.fleets.tills import Paid
from tests.integration.processes import LIMIT_S, snapline
from tests.integration.running import LOOK_S, Running, running

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.client.client import Client
from snapline.errors import StoreError
from snapline.storage.keys.key_files import (
    NO_KEYS,
    generate_signing_key,
    generate_wrapping_key,
    keys_from_environment,
)
from snapline.storage.store.store import Store

AGENTS, LAST = 3, 600


@pytest.mark.timeout(110)
async def test_an_encrypted_fleet_recovers_and_needs_its_key(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = data_dir.with_name("keys")
    keys.mkdir()
    generate_wrapping_key(keys / "store")
    generate_signing_key(keys / "sign", keys / "verify")
    environment = {"SNAPLINE_STORE_KEY": str(keys / "store"), "SNAPLINE_SIGNING_KEY": str(keys / "sign")}
    arguments = {"agents": str(AGENTS), "last": str(LAST)}
    async with running(data_dir, "thinkers:fleet", arguments, hosts=2, environment=environment) as fleet:
        await fleet.until_epochs(1)
        fleet.local.kill("h1")
        await fleet.until_recovered()
        ending = await fleet.end()
    refused = await snapline("snapshot", "show", "--store", data_dir / "store")
    assert refused.code != 0 and "SNAPLINE_STORE_KEY" in refused.err
    with pytest.raises(StoreError, match="SNAPLINE_STORE_KEY"):
        Store.open(data_dir / "store", keys=NO_KEYS)
    store = Store.open(data_dir / "store", keys=keys_from_environment(environment))
    states = load_cut(store, ending.epoch, thinkers.fleet(**arguments)).states
    for agent, state in thinkers.expected(AGENTS, LAST).items():
        found = states[agent]
        assert isinstance(found, thinkers.Memory) and list(found.chat) == list(state.chat)
    assert store.verify().is_whole
    assert not any(
        b"looked at in step" in path.read_bytes() for path in (data_dir / "store").rglob("*") if path.is_file()
    )
    monkeypatch.setenv("SNAPLINE_VERIFY_KEY", str(keys / "verify"))
    monkeypatch.setenv("SNAPLINE_STORE_KEY", str(keys / "store"))
    shown = await snapline("snapshot", "show", "--store", data_dir / "store")
    assert shown.code == 0, shown.err


@pytest.mark.timeout(110)
@pytest.mark.parametrize("is_dropped", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_the_end_of_a_signed_host_log_is_missed(data_dir: Path, is_dropped: bool) -> None:
    """The recovery waits, and says for what, until people have mended the store."""
    stop, keys = data_dir.with_name("stop"), data_dir.with_name("keys")
    keys.mkdir()
    generate_signing_key(keys / "sign", keys / "verify")
    environment = {"SNAPLINE_SIGNING_KEY": str(keys / "sign")}
    async with running(data_dir, "tills:fleet", {"stop": str(stop)}, environment=environment) as fleet:
        await fleet.until_epochs(1)
        async with await Client.connect(data_dir=data_dir) as client:
            for serial in range(12):
                await client.send(f"till-{serial % 6}", Paid(serial), f"order-{serial}", timeout_s=LIMIT_S)
        await asyncio.sleep(3)  # a second until the hosts tell, and what it takes to commit that
        newest = [
            max(each.glob("[0-9]*"), key=lambda path: int(path.name)) for each in (data_dir / "store/log/1").iterdir()
        ]
        assert newest
        taken = {path: path.read_bytes() for path in newest}
        for path in taken:
            path.unlink()
        fleet.local.kill("h1")
        await until_said(fleet, "was taken out of the store")
        if is_dropped:
            found = await snapline("recovery", "restore", "last", "--drop-inputs", "--yes", "--data-dir", data_dir)
            assert found.code == 0, found.err
        else:
            for path, data in taken.items():
                path.write_bytes(data)
        await fleet.until_recovered()
        await fleet.until_more_epochs(1)
        stop.touch()
        await fleet.end()


async def until_said(fleet: Running, words: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while words not in fleet.whereabouts():
            await asyncio.sleep(LOOK_S)
