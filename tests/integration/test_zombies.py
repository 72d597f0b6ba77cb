"""A host that was only slow, declared lost meanwhile: nothing of what it does afterwards is accepted anywhere (G9).

It is stopped with its agents at work, so it wakes with turns to run, frames to send and epochs to report.
"""

import asyncio
import os
import secrets
import signal
from pathlib import Path

import pytest
from tests.integration.cuts import store_of
from tests.integration.killing import bank_to_be_hurt
from tests.integration.processes import ended, start
from tests.integration.running import Running

from snapline.deploy.launching import SnaplineCommands

pytestmark = pytest.mark.timeout(120)


async def freeze_until_moved(bank: Running) -> int:
    """Stop h2 until its agents have moved; returns its process id."""
    await bank.until_epochs(2)
    pid = bank.pid("h2")
    os.kill(pid, signal.SIGSTOP)
    recovery = await bank.until_recovered()
    assert (recovery["lost_hosts"], recovery["hosts"]) == (["h2"], ["h1", "h3"])
    await bank.until_more_epochs()
    return pid


def check_that_h2_was_in_no_later_plan(data_dir: Path) -> None:
    """No checkpoint of the zombie is in an epoch that began after it had lost its agents."""
    store = store_of(data_dir)
    manifests = [store.read_manifest(store.read_ref(epoch)) for epoch in store.epochs()]
    later = [manifest for manifest in manifests if manifest.metadata.plan >= 2]
    assert later
    for manifest in later:
        assert not [pack.path for pack in manifest.packs if pack.path.startswith("packs/h2-")]
        assert {line.host for line in manifest.agents} == {"h1", "h3"}


def ends_in(notes: list[str]) -> list[str]:
    """Of what the launcher said: on a busy machine it may also have missed the coordinator for a moment."""
    return [note for note in notes if " ended " in note]


async def test_a_host_that_wakes_after_its_agents_have_moved_starts_over_without_any(data_dir: Path) -> None:
    async with bank_to_be_hurt(data_dir, on_failure="move") as bank:
        pid = await freeze_until_moved(bank)
        os.kill(pid, signal.SIGCONT)
        await bank.until(lambda now: [host.state for host in now.hosts] == ["alive"] * 3)
        now = await bank.until_more_epochs(2)
        assert [host.agents for host in now.hosts if host.host == "h2"] == [0]
        assert len(await bank.recoveries()) == 1, "its return undoes nothing"
        assert bank.local.pid("h2") == pid
    check_that_h2_was_in_no_later_plan(data_dir)


@pytest.mark.promise
async def test_a_host_that_wakes_after_it_was_replaced_is_turned_away(data_dir: Path) -> None:
    commands = SnaplineCommands(
        data_dir=data_dir,
        fleet="tests.integration.fleets.paced_bank:fleet",
        hosts=3,
        arguments={"stop": str(data_dir.with_name("stop")), "nap": "0.0", "period": "0.2"},
        on_failure="move",
    )
    async with bank_to_be_hurt(data_dir, on_failure="move") as bank:
        pid = await freeze_until_moved(bank)
        replacement = await start(*commands.host(bank.local.address, "h2", secrets.token_hex(8))[3:])
        replaced = await bank.until(lambda now: [host.state for host in now.hosts] == ["alive"] * 3)
        assert [host.host_start for host in replaced.hosts] == [1, 2, 1]
        os.kill(pid, signal.SIGCONT)
        await bank.until(lambda now: ends_in(bank.notes))
        assert ends_in(bank.notes) == ["h2 ended (exit code 5)"]
        await bank.until_more_epochs()
        assert len(await bank.recoveries()) == 1
    assert "a newer process has taken the place of host h2" in (data_dir / "logs" / "h2.log").read_text()
    assert (await ended(replacement)).code == 0, "it ends with the fleet"
    check_that_h2_was_in_no_later_plan(data_dir)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "frozen_s"), [("h2", 1.0), ("coordinator", 4.0)])
async def test_a_short_freeze_loses_nobody(data_dir: Path, name: str, frozen_s: float) -> None:
    """A host may be silent for less than two seconds; a coordinator that was frozen itself blames nobody for it."""
    async with bank_to_be_hurt(data_dir, on_failure="move") as bank:
        await bank.until_epochs(2)
        os.kill(bank.pid(name), signal.SIGSTOP)
        await asyncio.sleep(frozen_s)
        os.kill(bank.pid(name), signal.SIGCONT)
        await bank.until_more_epochs(3)
        assert await bank.recoveries() == []
