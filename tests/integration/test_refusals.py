"""What can never work is refused at once: exit code 2, and a sentence that names what differs and what helps."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.processes import nothing_left_running, snapline

from snapline.storage.keys.key_files import generate_wrapping_key
from snapline.storage.store.store import Store

pytestmark = pytest.mark.timeout(60)

FLEET = "snapline.examples.hello:fleet"
DEAD = "127.0.0.1:9"
"""Nobody listens on the discard port."""


@pytest.fixture(autouse=True)
def mark() -> Iterator[str]:
    with nothing_left_running() as mark:
        yield mark


async def test_a_host_with_a_wrong_store_key_waits_for_no_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ours.key", "others.key"):
        generate_wrapping_key(tmp_path / name)
    monkeypatch.setenv("SNAPLINE_STORE_KEY", str(tmp_path / "ours.key"))
    Store.create(tmp_path / "store").digest(b"")
    monkeypatch.setenv("SNAPLINE_STORE_KEY", str(tmp_path / "others.key"))
    run = ("host", "run", "--id", "h1", "--fleet", FLEET, "--store", tmp_path / "store", "--coordinator", DEAD)
    done = await snapline(*run)
    assert done.code == 2 and "give its key file in SNAPLINE_STORE_KEY" in done.err
