"""Forged Raft and link traffic at a live fleet: epochs go on, and everything starts again after a full restart (G8, G10)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.integration.certificates import Authority
from tests.integration.cuts import check_bank
from tests.integration.fleets import paced_bank
from tests.integration.forging import Forger
from tests.integration.killing import HOSTS, bank_to_be_hurt
from tests.integration.processes import LIMIT_S, Process, ended, start
from tests.integration.running import Running

from snapline.channels.servers import client_options
from snapline.deploy.data_directory import choose_addresses, read_addresses
from snapline.errors import SnaplineError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import FleetStatus
from snapline.security.transport import Security, server_name
from snapline.storage.store.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DURATIONS = [5.0, 60.0]
STALL_S = 10.0
"""Without an epoch for so long, the fleet would count as standing still; one takes half a second."""


async def until_over(client: CoordinatorClient, seconds: float) -> None:
    """Look on for so long; epochs must be completed all the time."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds
    count = 0
    last_s = loop.time()
    while loop.time() < end_s:
        with contextlib.suppress(SnaplineError):
            now = (await client.status()).epochs_completed
            if now > count:
                count, last_s = now, loop.time()
        assert loop.time() < last_s + STALL_S, f"no epoch for {STALL_S} s, after {count}"
        await asyncio.sleep(0.1)


def plaintext(_: str, address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address)


@pytest.mark.parametrize("seconds", DURATIONS)
async def test_without_certificates_nothing_forged_is_believed(data_dir: Path, seconds: float) -> None:
    async with bank_to_be_hurt(data_dir, coordinators=3) as bank:
        await bank.until_epochs(1)
        status = await bank.until(lambda now: sum(host.state == "alive" for host in now.hosts) == HOSTS)
        term = await term_of(bank)
        replicas = dict(zip(bank.local.coordinators, read_addresses(data_dir), strict=True))
        forger = Forger(Store.open(data_dir / "store").store_id, replicas, status, plaintext)
        async with forger.at_work():
            await until_over(bank.client, seconds)
            async with asyncio.timeout(LIMIT_S):
                while sum(forger.refused.values()) <= 20 * seconds:
                    await asyncio.sleep(0.1)
        assert forger.welcome == 0, forger.refused
        assert await term_of(bank) < term + 20, "a few elections at most, of a machine that is busy"
        for name in (*bank.local.coordinators, *bank.local.hosts):
            bank.local.kill(name)
        await bank.until_recovered()
        await bank.until_more_epochs()


async def term_of(bank: Running) -> int:
    """The highest term of a replica."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(SnaplineError):
                return int(str((await bank.client.read_replica("members"))["term"]))
            await asyncio.sleep(0.1)


# ---- with certificates ------------------------------------------------------------------------------------------------


class Fleet:
    """Three replicas and two hosts with certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stop = folder / "stop"
        self.authority = Authority(folder / "certificates")
        names = ["c1", "c2", "c3"]
        self.members = dict(zip(names, choose_addresses(folder, len(names)), strict=True))
        self.processes: list[Process] = []

    async def start(self) -> None:
        peers = ",".join(f"{name}={address}" for name, address in self.members.items())
        store = ("--store", self.folder / "store")
        for name, address in self.members.items():
            where = ("--data-dir", self.folder / name, "--id", name, "--peers", peers, "--listen", address)
            trust = self.authority.options("coordinator", name, served_as="coordinator")
            self.processes.append(await start("coordinator", "run", *store, "--hosts", "2", *where, *trust))
        for host in ("h1", "h2"):
            fleet = ("--fleet", "tests.integration.fleets.paced_bank:fleet", "--arg", f"stop={self.stop}")
            who = ("--coordinator", ",".join(self.members.values()), "--id", host)
            command = ("host", "run", *who, *store, *fleet, *self.authority.options("host", host))
            self.processes.append(await start(*command))

    async def kill(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
        self.processes = []

    def security(self, role: str, name: str) -> Security:
        _, certificate, _, key, _, authority = self.authority.options(role, name)
        return Security.tls(authority=Path(authority), certificate=Path(certificate), key=Path(key))

    def stranger(self, role: str, address: str) -> grpc.aio.Channel:
        """A certificate of this authority, of a role that there is not."""
        _, certificate, _, key, _, authority = self.authority.options("nobody", "n1")
        pems = [Path(each).read_bytes() for each in (authority, key, certificate)]
        name = next((each for each, where in self.members.items() if where == address), "")
        name = name or next(host.host for host in self.status.hosts if host.address == address)
        options = client_options(server_name(role, name))
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(*pems), options=options)

    status: FleetStatus

    async def until(self, client: CoordinatorClient, epochs: int) -> FleetStatus:
        async with asyncio.timeout(2 * LIMIT_S):
            while True:
                with contextlib.suppress(SnaplineError):
                    self.status = await client.status()
                    if self.status.phase == "running" and self.status.epochs_completed >= epochs:
                        return self.status
                await asyncio.sleep(0.1)


@pytest.fixture
async def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    await made.kill()


@pytest.mark.parametrize("seconds", DURATIONS)
async def test_with_certificates_who_has_no_role_is_not_even_read(fleet: Fleet, seconds: float) -> None:
    await fleet.start()
    client = CoordinatorClient(",".join(fleet.members.values()), fleet.security("operator", "olga"))
    status = await fleet.until(client, 1)
    cluster = Store.open(fleet.folder / "store").store_id
    forger = Forger(cluster, fleet.members, status, fleet.stranger)
    async with forger.at_work():
        await until_over(client, seconds)
    assert forger.welcome == 0 and forger.refused["PERMISSION_DENIED"] > 10 * seconds, forger.refused
    before = (await fleet.until(client, 1)).epochs_completed
    await fleet.kill()
    await fleet.start()
    await fleet.until(client, before + 1)
    await client.close()
    fleet.stop.touch()
    codes = [(await ended(process)).code for process in fleet.processes]
    assert codes == [0] * len(codes)
    check_bank(fleet.folder, paced_bank.fleet(stop=str(fleet.stop)), tokens=450)
