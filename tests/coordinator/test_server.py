"""A real coordinator on a real port, with hosts played by the test (`grpc_host.py`)."""

import asyncio
import contextlib
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import msgspec
import pytest
from grpc_health.v1 import health
from tests.coordinator.grpc_host import GrpcHost

from snapline.channels.servers import AddressError
from snapline.coordinator.service import server
from snapline.coordinator.service.server import (
    SERVICE,
    CoordinatorOptions,
    FolderInUseError,
    read_address,
    run_coordinator,
)
from snapline.errors import (
    CoordinatorUnavailableError,
    LogError,
    NotFoundError,
    SnaplineError,
    StoreKeyError,
    UsageError,
)
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.storage.keys.key_files import generate_wrapping_key, read_keys
from snapline.storage.store.store import Store
from snapline.telemetry.health import ALIVE, READY, is_serving, open_health_server

pytestmark = pytest.mark.processes

GRACE_S, LIMIT_S = 0.3, 10.0


class Running:
    """A coordinator in this event loop, and what is needed to talk to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store_path = path / "store"
        self.task: asyncio.Task[int] | None = None

    def options(self, **changes: object) -> CoordinatorOptions:
        settings: dict[str, object] = {
            "data_dir": self.path / "coordinator",
            "store": str(self.store_path),
            "hosts_expected": 2,
            "rejoin_grace_s": GRACE_S,
        }
        return CoordinatorOptions(**{**settings, **changes})  # type: ignore[arg-type]  # one dictionary for all types

    async def start(self, **changes: object) -> str:
        address_file = self.path / "coordinator" / "coordinator.json"
        address_file.unlink(missing_ok=True) if not self.task else None
        self.task = asyncio.create_task(run_coordinator(self.options(**changes)))
        async with asyncio.timeout(10):
            while not address_file.exists():
                if self.task.done():
                    self.task.result()
                await asyncio.sleep(0.01)
        return read_address(self.path / "coordinator")

    async def stop(self) -> None:
        if self.task is not None and not self.task.done():
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task

    def open_store(self) -> Store:
        return Store.open(str(self.store_path))


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path)
    yield made
    await made.stop()


async def start_fleet(running: Running, **changes: object) -> tuple[str, CoordinatorClient, list[GrpcHost]]:
    address = await running.start(**changes)
    hosts = [GrpcHost(f"h{n}", address, running.open_store()) for n in range(2)]
    for host in hosts:
        await host.connect()
    for host in hosts:
        await host.until(lambda x: x.HasField("plan"))
    client = CoordinatorClient(address)
    async with asyncio.timeout(10):
        while (await client.status()).phase != "running":
            await asyncio.sleep(0.02)
    return address, client, hosts


async def close(client: CoordinatorClient, hosts: list[GrpcHost]) -> None:
    await client.close()
    for host in hosts:
        await host.drop()


async def test_a_fleet_starts_and_takes_a_snapshot(running: Running) -> None:
    _, client, hosts = await start_fleet(running)
    outcome = await client.create_snapshot(10)
    assert outcome.is_complete and outcome.epoch == 1 and len(outcome.root) == 64
    status = await client.status()
    assert (status.phase, status.last_complete_epoch, status.agents) == ("running", 1, 4)
    assert [(x.host, x.state, x.agents) for x in status.hosts] == [("h0", "alive", 2), ("h1", "alive", 2)]
    assert hosts[0].kinds()[:3] == ["read_probe", "welcome", "roster"]
    await hosts[0].until(lambda x: x.HasField("end_epoch") and x.end_epoch.is_complete)

    listed = await client.read_snapshots("list")
    assert [row["epoch"] for row in listed["snapshots"]] == [1]  # type: ignore[attr-defined]  # JSON
    shown = await client.read_snapshots("show", "latest")
    assert len(shown["agents"]) == 4 and len(shown["channels"]) == 4  # type: ignore[arg-type]  # JSON
    verified = await client.read_snapshots("verify")
    assert verified["is_whole"] is True
    line = await client.recovery_line(["host:h0"])
    assert line["epoch"] == 1 and line["recovery_line"] == dict.fromkeys(["a0", "a1", "a2", "a3"], 1)
    places = (await client.locate(["a3", "a0", "nobody"])).agents
    assert [(x.agent, x.state, x.host) for x in places] == [
        ("a3", "alive", "h1"),
        ("a0", "alive", "h0"),
        ("nobody", "unknown", ""),
    ]
    assert [x.agent for x in (await client.locate_all()).agents] == ["a0", "a1", "a2", "a3"]
    with pytest.raises(UsageError, match="2001 agents asked for at once; 2000 are allowed"):
        await client.locate(["a"] * 2001)
    with pytest.raises(NotFoundError, match="no agent 'nobody'"):
        await client.recovery_line(["nobody"])
    with pytest.raises(NotFoundError, match="no snapshot '77'"):
        await client.read_snapshots("show", "77")
    await close(client, hosts)


async def test_a_lost_host_is_replaced_and_the_fleet_goes_back_to_the_last_epoch(running: Running) -> None:
    _, client, hosts = await start_fleet(running)
    outcome = await client.create_snapshot(10)
    await hosts[1].drop()
    assert await client.report_host_exit("h1", "h1-1", "killed")
    plan = (await hosts[0].until(lambda x: x.HasField("plan") and x.plan.number == 2)).plan
    assert (plan.line_epoch, plan.line_root, list(plan.hosts)) == (1, outcome.root, ["h0"])
    assert [x.incarnation for x in plan.agents] == [2, 2, 2, 2]
    again = await client.create_snapshot(10)
    while not again.is_complete:
        again = await client.create_snapshot(10)
    assert again.epoch == 2
    history = await client.recovery_history()
    (recovery,) = msgspec.convert(history["recoveries"], list[dict[str, object]])
    assert recovery["lost_hosts"] == ["h1"] and recovery["messages_delivered_again"] == 4
    await close(client, hosts[:1])


async def test_a_host_that_comes_back_in_time_gets_its_agents_again(running: Running) -> None:
    address, client, hosts = await start_fleet(running, rejoin_grace_s=5.0)
    await client.create_snapshot(10)
    await hosts[1].drop()
    await client.report_host_exit("h1", "h1-1", "killed")
    back = GrpcHost("h1", address, running.open_store(), instance="h1-2")
    await back.connect()
    plan = (await back.until(lambda x: x.HasField("plan"))).plan
    assert (plan.number, list(plan.hosts), back.start) == (2, ["h0", "h1"], 2)
    await close(client, [hosts[0], back])


async def test_a_restarted_coordinator_goes_on_at_the_same_address(running: Running) -> None:
    address, client, hosts = await start_fleet(running)
    hosts[1].reports_epochs = False
    waiting = asyncio.create_task(client.create_snapshot(10))
    await hosts[0].until(lambda x: x.HasField("begin_epoch"))
    await hosts[1].until(lambda x: x.HasField("begin_epoch"))
    await running.stop()
    with pytest.raises(CoordinatorUnavailableError):
        await waiting
    await close(client, hosts)

    assert await running.start() == address
    client = CoordinatorClient(address)
    for host in hosts:
        host.heard.clear()
        host.reports_epochs = True
        await host.connect()
    for host in hosts:
        await host.until(lambda x: x.HasField("end_epoch") and x.end_epoch.epoch == 1 and x.end_epoch.is_complete)
        assert host.kinds()[:5] == ["read_probe", "welcome", "roster", "plan", "begin_epoch"]
    assert (await client.status()).plan == 1
    await close(client, hosts)


async def test_hosts_that_do_not_belong_are_turned_away(running: Running, tmp_path: Path) -> None:
    address, client, hosts = await start_fleet(running)
    other = GrpcHost("h2", address, running.open_store(), digest=b"other")
    await other.connect()
    away = (await other.until(lambda x: x.HasField("turned_away"))).turned_away
    assert away.is_final and "another definition of fleet" in away.reason

    elsewhere = GrpcHost("h3", address, running.open_store())
    elsewhere._on_probe = _without_store(elsewhere)  # type: ignore[method-assign]
    await elsewhere.connect()
    away = (await elsewhere.until(lambda x: x.HasField("turned_away"))).turned_away
    assert away.is_final and "--store must be the same shared directory" in away.reason
    async with asyncio.timeout(10):  # removed by a thread, while the refusal is on its way
        while list((running.store_path / "probes").iterdir()):
            await asyncio.sleep(0.01)
    for host in (other, elsewhere):
        await host.drop()
    await close(client, hosts)


def _without_store(host: GrpcHost):  # type: ignore[no-untyped-def]
    async def on_probe(path: str) -> None:
        await host.say(probe_read=pb.ProbeRead(path=path, error="no such file"))

    return on_probe


async def test_the_end_is_told_and_ends_the_process(running: Running) -> None:
    _, client, hosts = await start_fleet(running)
    assert (await client.create_snapshot(10)).is_complete
    evaluate = (await hosts[0].until(lambda x: x.HasField("evaluate_stop"))).evaluate_stop
    assert evaluate.epoch == 1
    await client.create_snapshot(10)
    hosts[0]._react = _stopping(hosts[0])  # type: ignore[method-assign]
    await client.create_snapshot(10)
    for host in hosts:
        finish = (await host.until(lambda x: x.HasField("finish"))).finish
        assert finish.outcome == "stopped"
    await close(client, hosts)
    assert running.task is not None
    assert await asyncio.wait_for(running.task, 10) == 0


def _stopping(host: GrpcHost):  # type: ignore[no-untyped-def]
    react = host._react

    async def on_directive(directive: pb.Directive) -> None:
        if directive.HasField("evaluate_stop"):
            await host.say(stop_evaluated=pb.StopEvaluated(epoch=directive.evaluate_stop.epoch, reached=True))
        else:
            await react(directive)

    return on_directive


async def test_health_says_serving_only_with_a_majority(running: Running) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    members = {"c1": "127.0.0.1:0", "c2": "127.0.0.1:1", "c3": "127.0.0.1:2"}
    address = await running.start(members=members, node="c1")
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        replies = [await stub.Check(health_pb2.HealthCheckRequest(service=x)) for x in ("", SERVICE)]
    assert [reply.status for reply in replies] == [health_pb2.HealthCheckResponse.NOT_SERVING] * 2


async def test_the_health_door_tells_living_from_ready_and_serves_nothing_else(running: Running) -> None:
    """Whoever starts containers must not kill a replica because others are gone."""
    door, members = f"unix:{running.path}/health", {"c1": "127.0.0.1:0", "c2": "127.0.0.1:1", "c3": "127.0.0.1:2"}
    await running.start(members=members, node="c1", health=door)
    assert await is_serving(door, ALIVE, LIMIT_S) and not await is_serving(door, READY, LIMIT_S)
    client = CoordinatorClient(door)
    with pytest.raises(SnaplineError):
        await client.read_replica("members", LIMIT_S)
    await client.close()


async def test_the_health_door_says_ready_when_it_leads_and_cannot_be_had_twice(running: Running) -> None:
    door = f"unix:{running.path}/health"
    address = await running.start(health=door)
    assert await is_serving(door, ALIVE, LIMIT_S) and await is_serving(door, READY, LIMIT_S)
    assert await is_serving(address, SERVICE, LIMIT_S)
    async with contextlib.AsyncExitStack() as doors:
        with pytest.raises(AddressError, match="choose another --health"):
            await open_health_server(doors, health.aio.HealthServicer(), "192.0.2.1:1")


async def test_an_operator_forgets_a_host(running: Running) -> None:
    address, client, hosts = await start_fleet(running)
    third = GrpcHost("h3", address, running.open_store())
    await third.connect()
    await third.until(lambda x: x.HasField("welcome"))
    with pytest.raises(NotFoundError, match="no host 'h9'"):
        await client.forget_host("h9")
    with pytest.raises(UsageError, match="host h3 is alive"):
        await client.forget_host("h3")
    await third.drop()
    await client.report_host_exit("h3", "h3-1", "killed")
    async with asyncio.timeout(10):
        while [x.state for x in (await client.status()).hosts if x.host == "h3"] == ["alive"]:
            await asyncio.sleep(0.02)
    await client.forget_host("h3")
    assert [x.host for x in (await client.status()).hosts] == ["h0", "h1"]
    await close(client, hosts)


async def test_an_end_is_of_the_run_that_is_meant_and_of_no_later_one(running: Running) -> None:
    """A call that comes again, or was meant for an earlier run, must not end the process that has taken its place."""
    _, client, hosts = await start_fleet(running)
    (start,) = [x.host_start for x in (await client.status()).hosts if x.host == "h1"]
    with pytest.raises(UsageError, match=rf"start {start + 1} of host h1 is over already: it runs as start {start}"):
        await client.end_host("h1", host_start=start + 1)
    await client.end_host("h1", host_start=start)
    told = await hosts[1].until(lambda x: x.HasField("turned_away"))
    assert "ended" in told.turned_away.reason
    assert not [x for x in hosts[0].kinds() if x == "turned_away"]
    await close(client, hosts)


async def test_a_store_of_another_fleet_and_an_open_port_are_refused(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "AWAY_LOOK_S", 0.01)
    _, client, hosts = await start_fleet(running)
    await client.create_snapshot(10)
    await close(client, hosts)
    with pytest.raises(FolderInUseError, match=f"in use by process {os.getpid()} on "):
        await run_coordinator(running.options())
    await running.stop()
    with pytest.raises(LogError, match=r"logs of c1 are lost.*--data-dir.*restore-backup.*empty --store"):
        await run_coordinator(running.options(data_dir=tmp_path / "new"))
    Store.create(tmp_path / "store-2")
    with pytest.raises(UsageError, match=r"another store .* and the log is of the store"):
        await run_coordinator(running.options(store=str(tmp_path / "store-2")))
    with pytest.raises(UsageError, match="--insecure"):
        await run_coordinator(running.options(listen="0.0.0.0:0"))


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "another store"])
async def test_a_coordinator_that_starts_while_its_store_is_away_makes_none_and_waits(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    monkeypatch.setattr(server, "AWAY_LOOK_S", 0.05)
    _, client, hosts = await start_fleet(running)
    epoch = (await client.create_snapshot(10)).epoch
    await close(client, hosts)
    await running.stop()
    running.store_path.rename(tmp_path / "kept")
    if left == "another store":
        Store.create(running.store_path)
    elif left == "an empty folder":
        running.store_path.mkdir()
    lay_there = sorted(running.store_path.rglob("*"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run_coordinator(running.options()), 0.5)
    (running.path / "coordinator" / "coordinator.json").unlink()
    starting = asyncio.create_task(running.start())
    await asyncio.sleep(0.3)
    assert sorted(running.store_path.rglob("*")) == lay_there
    shutil.rmtree(running.store_path, ignore_errors=True)
    (tmp_path / "kept").rename(running.store_path)
    client = CoordinatorClient(await starting)
    assert (await client.status()).last_complete_epoch == epoch
    await client.close()


async def test_a_log_that_cannot_be_read_makes_no_store(running: Running) -> None:
    folder = running.path / "coordinator"
    folder.mkdir()
    (folder / "raft.sqlite").write_bytes(b"no database")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run_coordinator(running.options()), 0.3)
    assert not running.store_path.exists()


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
async def test_the_coordinators_key_is_in_the_store_at_once_and_another_key_ends_it(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_log: bool
) -> None:
    """So a host without it is turned away when it joins. A wrong key is not waited for, though a store that is away is."""
    for name in ("ours.key", "others.key"):
        generate_wrapping_key(tmp_path / name)
    monkeypatch.setenv("SNAPLINE_STORE_KEY", str(tmp_path / "ours.key"))
    if has_log:
        await running.start()
        await running.stop()
    else:
        Store.create(running.store_path).digest(b"")
    monkeypatch.delenv("SNAPLINE_STORE_KEY")
    with pytest.raises(StoreKeyError, match="no key is given"):
        running.open_store()
    assert Store.open(running.store_path, keys=read_keys(store_keys=[tmp_path / "ours.key"]))
    monkeypatch.setenv("SNAPLINE_STORE_KEY", str(tmp_path / "others.key"))
    async with asyncio.timeout(5):
        with pytest.raises(StoreKeyError, match="give its key file in SNAPLINE_STORE_KEY"):
            await run_coordinator(running.options())
