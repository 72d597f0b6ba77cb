"""Processes as faults treat them, with a launcher whose words take their time: the last wish holds, and who is down is left alone."""

import asyncio
import gc
import random
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chaos.test_executor import STEP_NS

from snapline.chaos import executor as cm
from snapline.chaos.capabilities import EVERYTHING, drawn
from snapline.chaos.executor import ChaosExecutor
from snapline.chaos.process_faults import Processes, RemoteFaults
from snapline.deploy.detached_fleet import DetachedPlan
from snapline.deploy.plan import FleetPlan
from snapline.deploy.running_fleet import LaunchedFleet
from snapline.sim.choices import RandomChoices


class LateFleet:
    """What `Processes` asks of a fleet. Words about processes arrive late, each by another time."""

    def __init__(self, hosts: Sequence[str], seed: int) -> None:
        self.hosts = tuple(hosts)
        self.frozen: dict[str, bool] = {}
        self.running = dict.fromkeys((*hosts, "coordinator"), True)
        self._random = random.Random(seed)

    def pid(self, name: str) -> int | None:
        return 7 if self.running[name] else None

    def kill(self, name: str, *, is_kept_down: bool = False) -> None:
        assert is_kept_down
        self.running[name] = False
        self.frozen.pop(name, None)

    def restart(self, name: str) -> None:
        self.running[name] = True

    async def end(self, name: str, grace_s: float) -> None:
        await self._arrive()
        assert not self.frozen.get(name), f"{name} does not hear it"
        self.running[name] = False
        await self._arrive()
        self.kill(name, is_kept_down=True)

    async def freeze(self, name: str) -> None:
        await self._arrive()
        self.frozen[name] = self.running[name]

    async def thaw(self, name: str) -> None:
        await self._arrive()
        self.frozen[name] = False

    async def _arrive(self) -> None:
        for _ in range(self._random.randrange(6)):
            await asyncio.sleep(0)


def processes_of(fleet: LateFleet) -> Processes:
    whole = cast(LaunchedFleet, fleet)  # as much of one as is asked for here
    return Processes(whole, hosts=fleet.hosts, coordinators=["c1"], joining=[])


@settings(max_examples=60, deadline=None)
@given(
    wishes=st.lists(st.tuples(st.sampled_from(["h1", "h2", "c1"]), st.sampled_from([0, 100])), max_size=12),
    seed=st.integers(0, 1000),
)
def test_the_last_wish_for_a_processor_holds(wishes: list[tuple[str, int]], seed: int) -> None:
    async def carry_out() -> LateFleet:
        fleet = LateFleet(["h1", "h2"], seed)
        processes = processes_of(fleet)
        for node, percent in wishes:
            processes.carry_out(cm.SetSpeed(node, percent))
            await asyncio.sleep(0)
        for _ in range(10 * len(wishes)):
            await asyncio.sleep(0)
        frozen = dict(fleet.frozen)
        await processes.stop()
        assert not any(fleet.frozen.values()), "nobody is left frozen"
        fleet.frozen = frozen
        return fleet

    fleet = asyncio.run(carry_out())
    for node, percent in dict(wishes).items():
        assert fleet.frozen["coordinator" if node == "c1" else node] == (percent == 0), (node, wishes)


@pytest.mark.parametrize("seed", range(20))
async def test_who_is_ended_is_thawed_before_and_started_after(seed: int) -> None:
    fleet = LateFleet(["h1", "h2"], seed)
    processes = processes_of(fleet)
    processes.carry_out(cm.SetSpeed("h1", 0))
    for _ in range(8):
        await asyncio.sleep(0)
    processes.carry_out(cm.EndNode("h1"))
    processes.carry_out(cm.StartNode("h1"))
    assert fleet.running["h1"], "it ends in its own time"
    async with asyncio.timeout(10):
        while fleet.frozen.get("h1") is not None or not fleet.running["h1"]:
            await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert fleet.running["h1"], "what has ended the one before does not end it"
    await processes.stop()


@pytest.mark.filterwarnings("error")
async def test_what_has_not_begun_when_all_ends_is_not_begun() -> None:
    fleet = LateFleet(["h1", "h2"], 0)
    processes = processes_of(fleet)
    processes.carry_out(cm.SetSpeed("h1", 0))
    processes.carry_out(cm.SetSpeed("h2", 100))
    await processes.stop()
    del processes
    gc.collect()
    assert not any(fleet.frozen.values())


@pytest.mark.parametrize("seed", range(60))
def test_elsewhere_there_is_a_way_for_all_that_the_executor_says(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is drawn for the place, from its beginning until all is whole."""
    scenario = drawn(EVERYTHING, seed, "ssh")
    executor = ChaosExecutor(scenario, RandomChoices(seed))
    executor.handle(0, cm.FleetObserved("c1", {"a0": "h1"}, ("packs/one",)))
    what = FleetPlan("", fleet="", data_dir="", hosts=1, node={})
    site = RemoteFaults(scenario, tmp_path, DetachedPlan("ssh", what, machines=("m1",)), fleet="a:b", arguments={})
    about_processes: list[cm.Command] = []
    monkeypatch.setattr(site._processes, "carry_out", about_processes.append)
    said = executor.begin()
    for at_ns in range(0, executor.over_ns, STEP_NS):
        said += executor.handle(at_ns, cm.TimePassed())
    for command in (*said, *executor.heal()):
        site.carry_out(command)
    assert about_processes, "at least whoever might stand still goes on"
