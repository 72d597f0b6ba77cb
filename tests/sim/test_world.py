"""The world as a whole: runs pass, repeat to the last bit in any process, and refuse handlers that they cannot drive."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

import snapline
from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.core import HostCore
from snapline.channels.channel import Outlet
from snapline.sim.result import Result
from snapline.sim.run import run
from snapline.sim.scenario import FleetPart, RunPart, Scenario
from snapline.sim.search.swarm import STANDARD, draw
from snapline.sim.workloads.workload import Workload
from snapline.sim.world.disk import VirtualDisk
from snapline.sim.world.host_streams import SimTransport
from snapline.sim.world.world import World
from snapline.sim.world.world_observer import read_pack
from snapline.storage.packs.checkpoint import AgentCheckpoint, encode_checkpoint
from snapline.storage.store.store import Store


def said(result: Result) -> str:
    return f"{result.verdict}: {result.violations} {result.pending} {result.error}"


@pytest.mark.parametrize("seed", [6, 20, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (19, 22, 25))])
def test_a_seed_with_faults_repeats_to_the_last_bit_and_leaves_nothing(seed: int) -> None:
    """When 6 and 19 end, somebody still waits for the log. A sweep's processes would grow with every such run."""
    worlds: list[weakref.ref[World]] = []
    one, other = (run(draw(STANDARD, seed), seed, on_world=lambda x: worlds.append(weakref.ref(x))) for _ in range(2))
    gc.collect()
    assert [world() for world in worlds] == [None, None]
    assert one.trace_hash == other.trace_hash and one.waypoints == other.waypoints
    one.cpu_s = other.cpu_s = 0
    assert one == other


# ---- handlers that wait -----------------------------------------------------------------------------------------------


class Ball(snapline.Message, frozen=True):
    left: int


class Player(snapline.Agent):
    """Passes a ball on, after a step; `naps` are for those who do not know better."""

    def __init__(self, *, peer: str, balls: int = 0, naps: bool = False) -> None:
        self.state = Hand(peer=peer, balls=balls, naps=naps)

    state: "Hand"

    async def on_start(self, ctx: snapline.Context) -> None:
        for _ in range(self.state.balls):
            ctx.send(self.state.peer, Ball(20))

    @snapline.handler
    async def on_ball(self, ball: Ball, ctx: snapline.Context) -> None:
        self.state.taken += 1
        if self.state.naps:
            await asyncio.sleep(0.1)
        self.state.answers += await ctx.step("ask", one)
        if ball.left:
            ctx.send(self.state.peer, Ball(ball.left - 1))


class Hand(msgspec.Struct, kw_only=True):
    peer: str
    balls: int
    naps: bool
    taken: int = 0
    answers: int = 0


async def one() -> int:
    return 1


class Match(Workload):
    """Done when all balls have come to rest."""

    def is_done(self, states: Mapping[str, object]) -> bool:
        return sum(state.taken for state in states.values() if isinstance(state, Hand)) >= 63

    def check_end(self, states: Mapping[str, object]) -> str | None:
        counts = [(state.taken, state.answers) for state in states.values() if isinstance(state, Hand)]
        return None if all(taken == answers for taken, answers in counts) else f"steps are missing: {counts}"


def play(*, naps: bool) -> Result:
    agents = {"a": lambda: Player(peer="b", balls=3, naps=naps), "b": lambda: Player(peer="a")}
    fleet = Fleet("match", agents=agents, triggers=[snapline.Every(0.1)])
    scenario = Scenario(name="match", fleet=FleetPart(agents=2, hosts=2), run=RunPart(until="1s"))
    return run(scenario, 4, workload=Match(fleet, ends=True))


def test_a_handler_that_awaits_a_step_runs() -> None:
    result = play(naps=False)
    assert result.verdict == "pass", said(result)
    assert result.messages == 63


def test_a_handler_that_sleeps_is_refused_with_its_line() -> None:
    result = play(naps=True)
    assert result.verdict == "broken", said(result)
    assert "awaits something that is not snapline's" in result.error and "ctx.step" in result.error
    assert "test_world.py" in result.error and "on_ball" in result.error
    assert "\n" not in result.error


# ---- shortcuts --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_the_hosts_leave_out_would_have_changed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is not ended, and a writer that is not asked."""
    left_out = {"batches": 0, "frames": 0}
    has_batch: Callable[[HostCore], bool] = vars(HostCore)["has_batch"].fget
    write = SimTransport._write

    def check_batch(core: HostCore) -> bool:
        if has_batch(core):
            return True
        before = [(name, peer.link.freeze(), peer.items_room, peer.bytes_room) for name, peer in linked(core)]
        assert core.handle(core.shared.now, ev.BatchEnded()) == []
        assert before == [(name, peer.link.freeze(), peer.items_room, peer.bytes_room) for name, peer in linked(core)]
        left_out["batches"] += 1
        return False

    def check_write(transport: SimTransport, peer: str) -> None:
        write(transport, peer)
        core = transport.host.driver.core
        there = core.peers.get(peer)
        if there is not None and there.link is not None and not there.link.wants_write:
            assert not [
                command for command in core.handle(core.shared.now, ev.WriteReady(peer)) if not is_wake(command)
            ]
            left_out["frames"] += 1

    monkeypatch.setattr(HostCore, "has_batch", property(check_batch))
    monkeypatch.setattr(SimTransport, "_write", check_write)
    for seed in range(12):
        result = run(draw(STANDARD, seed), seed)
        assert result.verdict == "pass", said(result)
    assert min(left_out.values()) > 1_000, left_out


def linked(core: HostCore) -> list[tuple[str, Any]]:
    return [(name, peer) for name, peer in core.peers.items() if peer.link is not None]


def is_wake(command: ev.HostOutput) -> bool:
    return isinstance(command, ev.WakeWriter)


def test_an_invariant_that_breaks_at_the_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapline.sim.run.LOOKS_APART", 10**9)
    wrong = Outlet(channel=0, sender="a", receiver="b", number=-1)
    monkeypatch.setattr(HostCore, "validate", lambda core: wrong.validate())
    result = run(Scenario(), 1)
    assert [(each.oracle, "a->b: number -1" in each.text) for each in result.violations] == [("core", True)], said(
        result
    )


def checkpoint(agent: str, number: int, state: bytes) -> AgentCheckpoint:
    return AgentCheckpoint(agent=agent, kind="m:C", epoch=0, number=number, state=state, basis="basic")


def test_the_second_reader_of_packs_reads_what_was_written() -> None:
    """Stored plain and compressed; and nothing of a pack of which a byte is another, or missing."""
    disk = VirtualDisk()
    store = Store.create("", disk=disk.of("h1"), random_bytes=bytes)
    written = [checkpoint("a", 1, b"x" * 500), checkpoint("b.c", 2, bytes(range(256))), checkpoint("a", 2, b"")]
    blobs = [(each.agent, each.number, encode_checkpoint(each)) for each in written]
    path = store.write_checkpoints(writer="h1.1", plan=3, blobs=blobs).path
    data = disk.bytes_of(path)
    assert data is not None and read_pack(data) == written == store.read_checkpoint_pack(path)
    assert disk.bytes_of("checkpoints") is None and disk.bytes_of("nowhere") is None
    for size in range(0, len(data), 7):
        assert read_pack(data[:size]) == []
        torn = data[:size] + bytes(len(data) - size)
        assert read_pack(torn) == []
