"""The commands against one running fleet without triggers, and against none; health and reflection of its servers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.integration.processes import snapline, together
from tests.integration.running import Running, running

from snapline.agent_runtime.snapshots.snapshot_reader import open_store
from snapline.client.client import Client
from snapline.errors import NotFoundError, UsageError

pytestmark = [pytest.mark.timeout(90), pytest.mark.asyncio(loop_scope="module")]

DEAD = "127.0.0.1:9"
"""Nobody listens on the discard port."""


@pytest.fixture(autouse=True)
def mark(module_mark: str) -> str:
    return module_mark


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory, module_mark: str) -> AsyncIterator[Running]:
    """Nine agents on three hosts, snapshots by hand only."""
    folder = tmp_path_factory.mktemp("tools")
    arguments = {"stop": str(folder / "stop"), "period": "0", "delay": "0.1"}
    async with running(folder / "data", "paced_bank:fleet", arguments) as started:
        await started.until(lambda now: now.phase == "running")
        yield started


def at(fleet: Running) -> tuple[str, str]:
    return ("--coordinator", fleet.local.address)


async def test_without_triggers_a_snapshot_is_taken_when_asked_for(fleet: Running) -> None:
    before = await fleet.client.status()
    created = await snapline("snapshot", "create", *at(fleet))
    assert (created.code, created.json["is_complete"]) == (0, True)
    assert created.json["epoch"] == before.epochs_begun + 1
    status, table, line = await together(
        ("status", *at(fleet)), ("status", *at(fleet), "-o", "table"), ("recovery", "line", *at(fleet))
    )
    assert (status.code, table.code, line.code) == (0, 0, 0)
    assert [status.json[name] for name in ("fleet", "phase", "agents", "last_complete_epoch")] == [
        "paced-bank",
        "running",
        9,
        created.json["epoch"],
    ]
    assert [(host["host"], host["state"], host["agents"]) for host in status.rows("hosts")] == [
        ("h1", "alive", 3),
        ("h2", "alive", 3),
        ("h3", "alive", 3),
    ]
    assert "paced-bank" in table.out and "h3" in table.out
    assert (line.json["epoch"], line.json["root"]) == (created.json["epoch"], created.json["root"])
    assert line.json["recovery_line"] == {f"teller-{index}": created.json["epoch"] for index in range(9)}


async def test_agents_are_listed_with_where_they_live(fleet: Running) -> None:
    shown, table = await together(("agent", "list", *at(fleet)), ("agent", "list", *at(fleet), "-o", "table"))
    assert (shown.code, table.code, shown.json["phase"]) == (0, 0, "running")
    hosts = {host.host: host.address for host in (await fleet.client.status()).hosts}
    rows = shown.rows("agents")
    assert [(row["agent"], row["state"], row["incarnation"]) for row in rows] == [
        (f"teller-{index}", "alive", 1) for index in range(9)
    ]
    assert {str(row["host"]): row["address"] for row in rows} == hosts
    assert table.out.splitlines()[0].split() == ["AGENT", "STATE", "HOST", "INCARNATION"]
    assert len(table.out.splitlines()) == 10


async def test_the_recovery_line_for_some_failures(fleet: Running) -> None:
    await fleet.client.create_snapshot()
    agents, host, agent, host_twice, nobody, no_host, no_id = await together(
        ("recovery", "line", "--failed", "teller-1,teller-4", *at(fleet)),
        ("recovery", "line", "--failed", "host:h1", *at(fleet)),
        ("recovery", "line", "--failed", "teller-5", "-o", "table", *at(fleet)),
        ("recovery", "line", "--failed", "host:h1,teller-0,host:h1", *at(fleet)),
        ("recovery", "line", "--failed", "teller-1,nobody", *at(fleet)),
        ("recovery", "line", "--failed", "host:h9", *at(fleet)),
        ("recovery", "line", "--failed", "no id", *at(fleet)),
    )
    assert (agents.code, agents.json["failed"]) == (0, ["teller-1", "teller-4"])
    on_h1 = [
        row["agent"] for row in (await snapline("snapshot", "show", *at(fleet))).rows("agents") if row["host"] == "h1"
    ]
    assert (host.code, host.json["failed"]) == (0, sorted(map(str, on_h1)))
    assert host.json["rolled_back"] == 9, "coordinated: all go back"
    assert (agent.code, "teller-5" in agent.out) == (0, True)
    assert host_twice.json["failed"] == sorted({*map(str, on_h1), "teller-0"})
    assert (nobody.code, "no agent 'nobody'" in nobody.err) == (4, True)
    assert (no_host.code, "no host 'h9'" in no_host.err) == (4, True)
    assert no_id.code == 2


async def test_programs_get_what_the_commands_print(fleet: Running) -> None:
    async with await Client.connect(fleet.local.address) as client:
        taken = await client.snapshot()
        created = await snapline("snapshot", "create", *at(fleet))
        line, lost = await together(
            ("recovery", "line", *at(fleet)), ("recovery", "line", "--failed", "host:h1", *at(fleet))
        )
        assert set(taken) == set(created.json) and taken["is_new"] is True
        assert created.json["epoch"] == int(str(taken["epoch"])) + 1
        assert await client.recovery_line() == line.json
        assert await client.recovery_line(["host:h1"]) == lost.json
        with pytest.raises(NotFoundError, match="no agent 'nobody'"):
            await client.recovery_line(["nobody"])
        with pytest.raises(UsageError, match="'teller-1' is one text"):
            await client.recovery_line("teller-1")


async def test_states_are_told_by_hosts_as_the_store_has_them(fleet: Running) -> None:
    async with await Client.connect(fleet.local.address) as client:
        epoch = (await client.snapshot())["epoch"]
        saved = open_store(fleet.local.data_dir / "store").snapshot("latest")
        assert saved.epoch == epoch
        for agent, found in saved.agents.items():
            told = await client.state(agent)
            assert (told.epoch, told.time, told.host, told.is_live) == (epoch, saved.created, found.host, False)
            assert told.state == found.state
            live = await client.state(agent, live=True)
            assert live.is_live and live.state["handled"] >= found.state["handled"]  # type: ignore[index]  # JSON
        shown, table, one, live_table, described, about, nobody = await together(
            ("agent", "state", "teller-1", *at(fleet)),
            ("agent", "state", "teller-1", *at(fleet), "-o", "table"),
            ("agent", "state", "teller-1", "--field", "others[0]", *at(fleet)),
            ("agent", "state", "teller-1", "--live", *at(fleet), "-o", "table"),
            ("agent", "describe", "teller-1", *at(fleet)),
            ("agent", "describe", "teller-1", *at(fleet), "-o", "table"),
            ("agent", "state", "teller-99", *at(fleet)),
        )
        state = saved.agents["teller-1"].state
        assert (shown.code, shown.json["state"], one.json["state"]) == (0, state, state["others"][0])
        assert f"epoch {epoch}, {saved.created}" in table.out and "handled" in table.out
        assert "now: a recovery may undo it" in live_table.out
        assert (described.code, described.json["life"], described.json["dead_letters"]) == (0, "running", [])
        newest = {"epoch": epoch, "time": saved.created, "checkpoint": saved.agents["teller-1"].number}
        assert described.json["snapshot"] == newest and described.json["agent_kind"] == saved.agents["teller-1"].kind
        assert f"epoch {epoch} of {saved.created}" in about.out
        assert nobody.code == 4 and "agent 'teller-99' is not in this fleet" in nobody.err


async def test_what_is_not_there_has_its_own_exit_code(fleet: Running, tmp_path: Path) -> None:
    await fleet.client.create_snapshot()
    no_epoch, no_agent, dead_status, dead_create, dead_line, missing_store_error = await together(
        ("snapshot", "show", "999", *at(fleet)),
        ("snapshot", "show", "--agent", "nobody", *at(fleet)),
        ("status", "--coordinator", DEAD),
        ("snapshot", "create", "--coordinator", DEAD),
        ("recovery", "line", "--coordinator", DEAD),
        ("snapshot", "list", "--store", tmp_path / "nowhere"),
    )
    assert (no_epoch.code, "no snapshot '999'" in no_epoch.err) == (4, True)
    assert (no_agent.code, "'nobody'" in no_agent.err) == (4, True)
    for dead in (dead_status, dead_create, dead_line):
        assert (dead.code, f"no coordinator answers at {DEAD}" in dead.err) == (8, True)
        assert (dead.out, len(dead.err.splitlines())) == ("", 1)
    assert (missing_store_error.code, "there is no store at" in missing_store_error.err) == (10, True)


async def check_server(address: str, service: str) -> None:
    """It says that it is healthy, and what it serves."""
    async with grpc.aio.insecure_channel(address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", service):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=20)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(timeout=20)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = {found.name for found in (await call.read()).list_services_response.service}
        assert {service, "grpc.health.v1.Health"} <= listed
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=service))
        assert (await call.read()).file_descriptor_response.file_descriptor_proto
        await call.done_writing()


async def test_health_and_reflection_answer_on_hosts_and_coordinator(fleet: Running) -> None:
    await check_server(fleet.local.address, "snapline.protos.v1.Coordinator")
    for host in (await fleet.client.status()).hosts:
        await check_server(host.address, "snapline.protos.v1.Link")
