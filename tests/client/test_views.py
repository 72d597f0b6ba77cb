"""What programs are told of one agent, over real gRPC: by whom, and what they hear when nobody can say."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.client.fake_fleet import FakeFleet, fleet_and_client
from tests.client.fake_host import until

from snapline.agent_runtime.host import view_service
from snapline.client.client import Client
from snapline.errors import (
    AgentMissingError,
    DamagedDataError,
    FleetEndedError,
    NotFoundError,
    StoreError,
    UnknownOutcomeError,
    UsageError,
)
from snapline.messages.client_requests import AgentState, WaitingAgent
from snapline.storage.packs.checkpoint import AgentCheckpoint, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.store.store import Store

CREATED = "2026-01-01T00:00:00.000Z"


def make_store(folder: Path) -> Store:
    """One snapshot with a, b and the unborn c."""
    store = Store.create(str(folder))
    states = {"a": msgspec.msgpack.encode({"amount": 5, "notes": [{"text": "x"}]}), "b": b"\xc1", "c": b""}
    made = [
        AgentCheckpoint(agent=agent, kind="shop:Clerk", epoch=1, number=4, state=state, is_unborn=not state)
        for agent, state in states.items()
    ]
    pack = store.write_pack(writer="h1.1", epoch=1, blobs=[(x.agent, encode_checkpoint(x)) for x in made])
    lines = [
        agent_line(entry, pack=0, kind="shop:Clerk", host="h1", incarnation=1) for entry in store.read_pack_index(pack)
    ]
    store.publish(1, store.write_manifest(Manifest(Metadata(epoch=1, created=CREATED), lines, [pack])))
    return store


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[tuple[FakeFleet, Client]]:
    async with fleet_and_client() as (fleet, client):
        store = await asyncio.to_thread(make_store, tmp_path / "store")
        for host in fleet.hosts.values():
            host.store = store
        yield fleet, client


Shop = tuple[FakeFleet, Client]


async def test_the_newest_snapshot_s_state_comes_with_its_epoch_and_time(shop: Shop) -> None:
    _, client = shop
    told = await client.state("a")
    state = {"amount": 5, "notes": [{"text": "x"}]}
    assert told == AgentState("a", "shop:Clerk", "h1", 1, 1, CREATED, False, False, "", state)
    assert (await client.state("a", field="notes[0].text")).state == "x"
    unborn = await client.state("c")
    assert (unborn.is_unborn, unborn.state) == (True, None)


async def test_a_live_state_is_marked_and_waits_for_the_end_of_the_turn(shop: Shop) -> None:
    fleet, client = shop
    host = fleet.hosts["h1"]
    host.hold_views = []
    first, second = (asyncio.create_task(client.state("a", live=True)) for _ in range(2))
    await until(lambda: host.hold_views)
    await client.send("a", ("Paid", {"amount": 1}))
    host.hold_views.pop()()
    for told in (await first, await second):
        assert (told.is_live, told.epoch, told.state) == (True, None, {"amount": 1})
    assert host.shown == [("a", True)], "asked once for both"


async def test_a_saved_state_is_told_while_its_host_is_lost_and_a_live_one_is_waited_for(shop: Shop) -> None:
    fleet, client = shop
    fleet.states["h1"] = "lost"
    assert (await client.state("a")).epoch == 1
    looking = asyncio.create_task(client.state("a", live=True))
    await asyncio.sleep(0)
    fleet.move("a", "h2")
    assert (await looking).is_live and fleet.hosts["h2"].shown == [("a", True)]


async def test_an_agent_that_moved_is_followed_and_so_is_its_description(shop: Shop) -> None:
    fleet, client = shop
    fleet.hosts["h1"].agents.remove("a")
    looking = asyncio.create_task(client.describe("a"))
    await until(lambda: fleet.hosts["h1"].shown)
    fleet.move("a", "h2")
    told = await looking
    counts = ("messages_waiting", "inputs_waiting", "outbox", "inputs_consumed", "keys", "checkpoint")
    assert [told[name] for name in counts] == [3, 2, 1, 7, 5, 9]
    assert (told["host"], told["life"], told["timers"]) == ("h2", "running", [{"name": "soon", "remaining_s": 1.0}])
    assert told["snapshot"] == {"epoch": 1, "time": CREATED, "checkpoint": 4}


async def test_a_store_that_cannot_be_read_stops_no_description(shop: Shop) -> None:
    fleet, client = shop
    fleet.hosts["h1"].store = None
    assert (await client.describe("a"))["snapshot"] == {"problem": "the store cannot be read: no route"}
    with pytest.raises(StoreError, match="no route"):
        await client.state("a")


async def test_what_cannot_be_told_is_said_in_one_sentence(shop: Shop) -> None:
    fleet, client = shop
    with pytest.raises(AgentMissingError, match="agent 'd' is not in this fleet: `snapline agent list` names"):
        await client.state("d")
    with pytest.raises(NotFoundError, match="the state has no 'sum': it has amount, notes"):
        await client.state("a", field="sum")
    with pytest.raises(UsageError, match="is no path of a field"):
        await client.state("a", field="[")
    with pytest.raises(DamagedDataError, match="the state of agent 'b' in epoch 1 cannot be read"):
        await client.state("b")
    fleet.owners["d"] = "h1"
    with pytest.raises(AgentMissingError, match="'d' is not in epoch 1, the newest snapshot: it was created since"):
        await client.state("d")
    fleet.left.append("a")
    assert (await client.state("a")).epoch == 1, "a snapshot holds it yet"
    with pytest.raises(AgentMissingError, match="agent 'a' has stopped"):
        await client.describe("a")
    fleet.phase = "finished"
    with pytest.raises(FleetEndedError, match=r"its store is read with `--store`, or snapline.open_store"):
        await client.state("a")


async def test_nobody_in_time_says_what_it_waited_for(shop: Shop) -> None:
    fleet, client = shop
    fleet.states |= {"h1": "lost", "h2": "lost"}
    with pytest.raises(UnknownOutcomeError, match=r"none of its hosts is alive just now.*asking changes nothing"):
        await client.state("a", timeout_s=1.5)  # the coordinator answers in that time, whatever else the machine does


async def test_a_host_takes_a_few_looks_at_once_and_others_come_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_service, "SHOWS_MAX", 1)
    fleet, client = shop
    host = fleet.hosts["h1"]
    host.hold_views = []
    first = asyncio.create_task(client.state("a", live=True))
    await until(lambda: host.hold_views)
    with pytest.raises(UnknownOutcomeError, match="1 others look at agents of host h1"):
        await client.state("b", live=True, timeout_s=2.0)
    host.hold_views.pop()()
    host.hold_views = None
    assert (await first).is_live and (await client.state("b", live=True)).is_live


async def test_a_look_that_nobody_waits_for_any_more_is_used_by_the_next(shop: Shop) -> None:
    fleet, client = shop
    host = fleet.hosts["h1"]
    host.hold_views = []
    with pytest.raises(UnknownOutcomeError):
        await client.state("a", live=True, timeout_s=0.5)
    assert len(host.shown) == 1, "however often it was asked"
    again = asyncio.create_task(client.state("a", live=True))
    host.hold_views.pop()()
    host.hold_views = None
    assert (await again).is_live


async def test_what_waits_is_told_by_every_host_and_by_one_that_is_silent_nothing() -> None:
    async with fleet_and_client() as (fleet, client):
        told = await client.waiting()
        agents = msgspec.convert(told["agents"], list[WaitingAgent])
        assert {(each.agent, each.host) for each in agents} >= {("a", "h1")} and all(
            each.inputs == 2 for each in agents
        )
        assert told["more"] == 3 * len(fleet.hosts) and not told["silent_hosts"] and not told["effects"]
        await fleet.hosts["h2"].stop()
        assert (await client.waiting())["silent_hosts"] == ("h2",)
