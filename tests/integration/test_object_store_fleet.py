"""A fleet whose checkpoints lie in a bucket: killed, recovered exactly, and the bucket holds a whole store."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.fleets import thinkers
from tests.integration.running import running
from tests.storage.object_servers import BUCKET, FakeS3, fake_s3, missing_for_radosgw, radosgw_server

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.storage.store.store import Store

AGENTS, LAST = 3, 600


@contextlib.contextmanager
def server(name: str) -> Iterator[dict[str, str]]:
    if name == "fake":
        with fake_s3(FakeS3()) as environment:
            yield environment
        return
    if missing_for_radosgw():
        pytest.skip(missing_for_radosgw())
    with radosgw_server() as environment:
        yield environment


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", ["fake", pytest.param("radosgw", marks=pytest.mark.slow)])
async def test_a_fleet_recovers_from_a_bucket(data_dir: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"agents": str(AGENTS), "last": str(LAST)}
    store = f"s3://{BUCKET}/fleet"
    with server(name) as environment:
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        async with running(data_dir, "thinkers:fleet", arguments, hosts=2, store=store) as fleet:
            await fleet.until_epochs(1)
            fleet.local.kill("h1")
            await fleet.until_recovered()
            ending = await fleet.end()
        opened = Store.open(store)
        states = load_cut(opened, ending.epoch, thinkers.fleet(**arguments)).states
        for agent, state in thinkers.expected(AGENTS, LAST).items():
            found = states[agent]
            assert isinstance(found, thinkers.Memory) and list(found.chat) == list(state.chat)
        assert opened.verify().findings == []
    assert not (data_dir / "store").exists()
