"""What can never work is refused at once: exit code 2, and a sentence that names what differs and what helps."""

from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest
from tests.integration.certificates import Authority
from tests.integration.processes import nothing_left_running, snapline, together

from snapline.security.transport import Security
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


@pytest.mark.parametrize("is_tls", [True, False])
async def test_tls_against_plaintext_is_found_out_by_hosts_tools_and_replicas(tmp_path: Path, is_tls: bool) -> None:
    """A bare server speaks one of them; two replicas of three are behind it, and they are its only peers."""
    authority = Authority(tmp_path / "secrets")
    given = tuple(map(str, authority.options("host", "h1")))
    theirs = Security.tls(authority=given[5], certificate=given[1], key=given[3]) if is_tls else Security.loopback()
    server = grpc.aio.server()
    ports = [theirs.add_port(server, "127.0.0.1:0") for _ in range(2)]
    await server.start()
    own = () if is_tls else given
    addresses = [f"127.0.0.1:{port}" for port in ports]
    host = ("host", "run", "--id", "h1", "--fleet", FLEET, "--store", tmp_path / "store")
    peers = f"c1=127.0.0.1:1,c2={addresses[0]},c3={addresses[1]}"
    replica = ("coordinator", "run", "--id", "c1", "--peers", peers, "--hosts", "1", "--listen", "127.0.0.1:0")
    found = await together(
        ("status", "--coordinator", addresses[0], *own),
        ("status", "--coordinator", f"{DEAD},{addresses[0]}", *own),
        (*host, "--coordinator", f"{addresses[0]},{DEAD}", *own),
        (*replica, "--data-dir", tmp_path / "c1", "--store", tmp_path / "store", *own),
    )
    for done in found:
        assert done.code == 2 and f"speaks {'TLS' if is_tls else 'plaintext'}" in done.err, done
        assert "--tls-cert, --tls-key and --tls-ca" in done.err.splitlines()[-1]
    await server.stop(None)
