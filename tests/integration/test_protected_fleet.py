"""A fleet whose store is encrypted and signed: it recovers as any other, and nobody reads it without the key."""

from pathlib import Path

import pytest
from tests.integration.fleets import thinkers
from tests.integration.processes import snapline
from tests.integration.running import running

from snapline.agent_runtime.snapshots.cut import load_cut
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
