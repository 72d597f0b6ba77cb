"""Plain Ray actors in a fleet: each kind of call, what is kept of an actor, and what is said where something cannot be."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'snapline[ray]'")

from tests.adapters.ray_actors.economy import ActorEconomy, connected, cuts_of
from tests.adapters.ray_actors.tellers import Desk, Early, Locked, Teller
from tests.integration.processes import LIMIT_S

import snapline
from snapline.adapters.ray import actor_fleet, in_fleet
from snapline.deploy.conformance.local_ray import Raylets
from snapline.errors import UsageError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


@contextlib.asynccontextmanager
async def pair(cluster: Raylets, folder: Path) -> AsyncIterator[ActorEconomy]:
    """`a` is sync, `b` async, and they know each other."""
    with connected(cluster, folder.name):
        async with ActorEconomy(folder, "ab") as fleet:
            for name, kind in (("a", Teller), ("b", Desk)):
                fleet.make(kind, name)
            await fleet.asked("a", "meet", fleet.actors["b"])
            await fleet.asked("b", "meet", fleet.actors["a"])
            yield fleet


async def amounts(fleet: ActorEconomy) -> list[int]:
    return [(await fleet.asked(name, "looks"))[0] for name in "ab"]


async def test_actors_call_each_other_as_ever(cluster: Raylets, tmp_path: Path) -> None:
    async with pair(cluster, tmp_path) as fleet:
        for name in "ab":
            await fleet.asked(name, "gives", 5)
        async with asyncio.timeout(LIMIT_S):
            while await amounts(fleet) != [100, 100]:
                await asyncio.sleep(0.05)
        assert await fleet.asked("a", "asks", 7) == [107, "beside", 107]
        assert await fleet.asked("b", "asks", 7) == [100, 100]
        assert await amounts(fleet) == [100, 100]
        for name in "ab":
            assert await fleet.asked(name, "catches") == ["RayTaskError", "KeyError", "word"]
            assert await fleet.asked(name, "passes_on")
        assert await fleet.asked("a", "impatient") == "GetTimeoutError"
        with pytest.raises(KeyError):
            await fleet.asked("a", "fails", "to a stranger")
        assert (await amounts(fleet))[0] == 102, "what a method has changed before it raised stays, as in plain Ray"


async def test_calls_that_cannot_be_in_a_cut_say_why(cluster: Raylets, tmp_path: Path) -> None:
    async with pair(cluster, tmp_path) as fleet:
        for name in "ab":
            assert "give, or keep, the value" in await fleet.asked(name, "does", "gives_reference")
            assert "await it, and give or keep what it returns" in await fleet.asked(name, "does", "gives_call")
            assert "num_returns=2" in await fleet.asked(name, "does", "asks_for_two")
        assert "taken already" in await fleet.asked("a", "does", "takes_twice")
        assert "await it here" in await fleet.asked("b", "does", "gets")
        assert await amounts(fleet) == [100, 100]
        await fleet.asked("a", "keeps_call")
        async with asyncio.timeout(LIMIT_S):
            while "attribute 'kept' of actor 'a' cannot be kept" not in fleet.log():
                await asyncio.sleep(0.1)
        await fleet.asked("a", "drops_call")
        await fleet.until((await fleet.until(0)).epochs_completed + 1)


async def test_an_actor_that_ray_restarts_has_its_state(cluster: Raylets, tmp_path: Path) -> None:
    async with pair(cluster, tmp_path) as fleet:
        for name in "ab":
            await fleet.asked(name, "add", 11)
        await fleet.until((await fleet.until(0)).epochs_completed + 3)
        before = {name: await fleet.asked(name, "looks") for name in "ab"}
        for name in "ab":
            plan = (await fleet.until(0)).plan
            await fleet.kill(name)
            await fleet.until(0, plan + 1)
        for name in "ab":
            amount, made_by, pid = await fleet.asked(name, "looks")
            assert (amount, made_by) == (111, "cut") and pid != before[name][2]
            assert await fleet.asked(name, "passes_on")
        for gone in ("a", "ab"):
            await fleet.make_anew({name: {"a": Teller, "b": Desk}[name] for name in gone})
            for name in "ab":
                amount, made_by, _ = await fleet.asked(name, "looks")
                assert (amount, made_by) == (111, "cut"), f"{gone} made anew by somebody, under these names"
                assert await fleet.asked(name, "passes_on"), "who has a handle of the old one reaches the new one"
        cuts = cuts_of(fleet.store)
        latest = cuts[max(cuts)].actors
        assert latest["a"] == {"amount": 111, "peer": {"ray actor": "b"}, "kept": None}, "read without Ray"


async def test_nobody_waits_for_a_method_whose_caller_has_given_up(cluster: Raylets, tmp_path: Path) -> None:
    """It was interrupted in the cut, and would be run again before all others."""
    with connected(cluster, tmp_path.name):
        async with ActorEconomy(tmp_path, "abc") as fleet:
            for name, kind in (("a", Teller), ("b", Teller), ("c", Desk)):
                fleet.make(kind, name)
            await fleet.asked("b", "meet", fleet.actors["c"])
            await fleet.asked("a", "meet", fleet.actors["b"])
            assert await fleet.asked("a", "calls", "dawdles", 0.01) is None, "from now on it is captured where it waits"
            assert await fleet.asked("a", "gives_up", "b") == "given up"
            status = await fleet.until((await fleet.until(0)).epochs_completed + 4)
            cuts = cuts_of(fleet.store)
            assert cuts[max(cuts)].calls["b"]["journals"], "it waits"
            await fleet.kill("c")
            await fleet.until(status.epochs_completed, status.plan + 1)
            assert (await fleet.asked("b", "looks"))[0] == 100


async def test_actors_that_cannot_be_members_say_why(cluster: Raylets, tmp_path: Path) -> None:
    with connected(cluster, tmp_path.name):
        async with ActorEconomy(tmp_path, "abc") as fleet:
            fleet.make(Teller, "a")

            def said(kind: type, **options: Any) -> str:
                actor = ray.remote(num_cpus=0)(fleet.join(kind)).options(**options).remote()
                with pytest.raises(ray.exceptions.ActorDiedError) as caught:
                    ray.get(actor.looks.remote(), timeout=LIMIT_S)
                return str(caught.value)

            assert "an actor of fleet 'economy' has a name" in said(Teller)
            assert "actor 'z' is no actor of fleet 'economy', which has a, b, c" in said(Teller, name="z")
            assert "the constructor runs again whenever Ray restarts the actor" in said(Early, name="b")
            assert "attribute 'lock' of actor 'c' cannot be kept" in said(Locked, name="c")


class Alone(snapline.Agent):
    """Of a fleet that has no actors."""

    state: dict[str, int]

    def __init__(self) -> None:
        super().__init__({})


def test_a_class_that_cannot_be_decorated_says_why() -> None:
    fleet = actor_fleet("fleet", "ab")
    join = in_fleet(fleet, coordinator="127.0.0.1:1", store="store")

    class Yields:
        def some(self) -> Any:
            yield 1

    class Grouped:
        @ray.method(concurrency_group="io")
        def some(self) -> None: ...

    with pytest.raises(UsageError, match=r"beneath @ray.remote"):
        join(ray.remote(Teller))
    with pytest.raises(UsageError, match=r"'some' of .*Yields is a generator"):
        join(Yields)
    with pytest.raises(UsageError, match=r"'some' of .*Grouped has a concurrency group"):
        join(Grouped)
    with pytest.raises(UsageError, match="no ServiceAgent"):
        in_fleet(snapline.Fleet("none", agents={"one": Alone()}, place={"one": "one"}), coordinator="", store="")
