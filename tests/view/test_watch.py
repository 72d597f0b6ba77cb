"""One look at the fleet for all viewers, and none when nobody looks."""

import asyncio
from contextlib import aclosing

import pytest
from tests.view.simulated import SimulatedFleet

from snapline.errors import CoordinatorUnavailableError, UsageError
from snapline.view import watch as watching
from snapline.view.watch import FleetWatch

PERIOD_S = 0.01


async def test_pages_that_come_together_ask_once() -> None:
    fleet = SimulatedFleet()
    watch = FleetWatch(fleet, period_s=3600)
    assert len({id(await watch.now()) for _ in range(5)}) == 1
    assert fleet.asked == ["status", "agents"]


async def test_viewers_share_one_look_and_the_last_one_ends_it() -> None:
    fleet = SimulatedFleet()
    watch = FleetWatch(fleet, PERIOD_S)
    async with aclosing(watch.follow()) as one, aclosing(watch.follow()) as other:
        await anext(one), await anext(other)
        for _ in range(3):
            assert (await anext(one)).facts == (await anext(other)).facts
        assert fleet.asked.count("status") <= 2 + 4 and fleet.asked.count("agents") == 1
    asked = len(fleet.asked)
    await asyncio.sleep(5 * PERIOD_S)
    assert len(fleet.asked) == asked


async def test_where_agents_live_is_asked_again_when_a_host_is_lost() -> None:
    fleet = SimulatedFleet()
    watch = FleetWatch(fleet, PERIOD_S)
    async with aclosing(watch.follow()) as news:
        await anext(news)
        fleet.states["h2"] = "lost"
        async for standing in news:
            if any(agent.state == "lost" for agent in standing.agents):
                break
    assert fleet.asked.count("agents") == 2


async def test_what_was_heard_stays_while_nobody_answers() -> None:
    fleet = SimulatedFleet()
    watch = FleetWatch(fleet, period_s=0.0)
    heard = await watch.now()
    fleet.error = CoordinatorUnavailableError("nobody answers")
    standing = await watch.now()
    assert (standing.trouble, standing.facts, standing.updated_s) == ("nobody answers", heard.facts, heard.updated_s)
    fleet.error = None
    assert (await watch.now()).trouble == ""


async def test_viewers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "VIEWERS_MAX", 1)
    watch = FleetWatch(SimulatedFleet(), PERIOD_S)
    async with aclosing(watch.follow()) as one, aclosing(watch.follow()) as other:
        await anext(one)
        with pytest.raises(UsageError, match="1 viewers look already"):
            await anext(other)
    async with aclosing(watch.follow()) as later:
        await anext(later)
