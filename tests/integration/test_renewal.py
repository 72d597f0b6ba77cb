"""Certificates are made anew while a fleet runs and its processes are killed: it goes on, and no epoch is lost."""

from pathlib import Path

import msgspec
import pytest
from tests.deploy.served import addresses, until_renewed
from tests.integration.cuts import check_paced_bank, store_of
from tests.integration.fleets import paced_bank
from tests.integration.processes import snapline
from tests.integration.running import Running
from tests.integration.secured import running_secured

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FLEET = "tests.integration.fleets.paced_bank:fleet"
TOKENS = 450


class Renewing:
    """A fleet, and the folder that its certificates are in."""

    def __init__(self, fleet: Running, folder: Path) -> None:
        self._fleet = fleet
        self._folder = folder

    async def renew(self) -> None:
        """All keys and certificates are others, valid for a day."""
        made = await snapline("auth", "renew", self._folder, "--days", "1")
        assert made.code == 0, made.err

    async def until_all_have_theirs(self) -> None:
        """Every process serves what is in the folder."""
        status = await self._fleet.until(
            lambda now: now.phase == "running" and [host.state for host in now.hosts] == ["alive"] * 3
        )
        served = addresses(self._fleet.local.address, status)
        assert len(served) == 6
        await until_renewed(self._folder, served, "operator-operator")

    async def epochs(self) -> list[dict[str, object]]:
        """How all of them ended, oldest first."""
        history = await self._fleet.client.read_snapshots("history")
        return msgspec.convert(history["epochs"], list[dict[str, object]])

    async def aborted(self) -> list[int]:
        return [msgspec.convert(row["epoch"], int) for row in await self.epochs() if row["status"] == "aborted"]


async def test_no_epoch_is_lost_while_certificates_are_renewed_three_times_and_processes_killed(
    data_dir: Path, tmp_path: Path
) -> None:
    """First in quiet, then while a host dies, then while the leader does. Every connection that is made afterwards shows new ones."""
    arguments, folder = {"stop": str(tmp_path / "stop"), "period": "0.2"}, tmp_path / "certificates"
    async with running_secured(data_dir, folder, FLEET, arguments, hosts=3, coordinators=3) as fleet:
        renewing = Renewing(fleet, folder)
        await fleet.until_epochs(2)
        before = await renewing.aborted()
        await renewing.renew()
        await renewing.until_all_have_theirs()
        await fleet.until_more_epochs(2)
        assert await renewing.aborted() == before, "a renewal alone costs no epoch"
        await fleet.recovered_from("h1")
        await fleet.until_more_epochs()

        await renewing.renew()
        await fleet.recovered_from("h2")
        await renewing.until_all_have_theirs()
        await fleet.until_more_epochs()

        await renewing.renew()
        led = await fleet.until(lambda now: now.leader)
        fleet.local.kill(led.leader)
        await fleet.until_led(after=led.term)
        await renewing.until_all_have_theirs()
        await fleet.recovered_from("h3")
        await fleet.until_more_epochs(2)

        (tmp_path / "stop").touch()
        epochs = await renewing.epochs()
        await fleet.end()
    numbers = [row["epoch"] for row in epochs]
    assert numbers == list(range(1, len(numbers) + 1)), "each has one end, and none is missing"
    aborted = [row for row in epochs if row["status"] == "aborted"]
    assert len(aborted) <= 4, f"only what was open when somebody died: {aborted}"
    kept = [row["epoch"] for row in epochs if row["status"] == "complete"]
    assert kept and set(kept[-5:]) <= set(store_of(data_dir).epochs())
    check_paced_bank(data_dir, paced_bank.fleet(**arguments), tokens=TOKENS)
