"""What a fleet of real processes waits for or goes without is in its status, with since when and what to do, until it is over."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.running import running

from snapline.client.client import Client
from snapline.messages.status import Concern, FleetStatus

pytestmark = pytest.mark.timeout(180)


def of_kind(now: FleetStatus, kind: str) -> list[Concern]:
    return [each for each in now.concerns if each.kind == kind]


def has(kind: str) -> Callable[[FleetStatus], object]:
    return lambda now: of_kind(now, kind)


def has_no(kind: str) -> Callable[[FleetStatus], object]:
    return lambda now: now.phase == "running" and not of_kind(now, kind)


async def test_a_fleet_says_what_it_waits_for_and_when_that_is_over(data_dir: Path) -> None:
    changed = data_dir.with_name("changed")
    async with running(data_dir, "upgraded:fleet", {"changed": str(changed)}, hosts=1, coordinators=3) as fleet:
        await fleet.until_epochs(1)
        async with await Client.connect(data_dir=data_dir) as client:
            turn = (await client.describe("builder"))["durable_turn"]
            assert turn is not None
        now = await fleet.until_more_epochs(2)  # the last one holds the step's result
        lost = next(name for name in ("c1", "c2", "c3") if name != now.leader)
        changed.touch()
        fleet.local.kill(lost, is_kept_down=True)
        await fleet.recovered_from("h1")
        (stands,) = of_kind(await fleet.until(has("turn")), "turn")
        assert (stands.hosts, stands.agents) == (("h1",), ("builder",)) and "DivergenceError" in stands.text
        assert stands.since_ns > 0 and "snapline agent describe builder" in stands.remedy
        (dead,) = of_kind(await fleet.until(has("replica")), "replica")
        assert lost in dead.text and dead.since_ns >= 3 * 10**9
        fleet.local.restart(lost)
        await fleet.until(has_no("replica"))
        changed.unlink()
        await fleet.recovered_from("h1")
        await fleet.until_more_epochs(3)  # hosts have been heard of since
        await fleet.until(has_no("turn"))
        fleet.local.kill("h1", is_kept_down=True)
        (gone,) = of_kind(await fleet.until(has("hosts")), "hosts")
        assert "h1 lost" in gone.text and "its agents (1) are paused" in gone.text
        fleet.local.restart("h1")
        await fleet.until(has_no("hosts"))
