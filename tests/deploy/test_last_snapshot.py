"""A launched fleet that is stopped: its hosts take a last snapshot while the coordinators are there, unless somebody is in a hurry."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from snapline.cli.fleet_locations import LAST_SNAPSHOT
from snapline.deploy.launching import Handle, ProcessSpec
from snapline.deploy.running_fleet import LaunchedFleet
from snapline.deploy.supervisor import Exit
from snapline.messages.status import FleetStatus


class _Launcher:
    """Starts nothing. `stopped`: who was asked to end, with which grace."""

    where = logs = "nowhere"

    def __init__(self, epoch: list[int], *, are_stuck: bool = False) -> None:
        self.stopped: list[tuple[str, float]] = []
        self._epoch = epoch
        self._are_stuck = are_stuck
        self._ended: dict[str, asyncio.Event] = {}

    async def open(self, coordinators: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(coordinators, "127.0.0.1:1")

    async def start(self, spec: ProcessSpec) -> Handle:
        self._ended[spec.name] = asyncio.Event()
        return Handle(spec.name, spec.instance, "nowhere", 1)

    async def watch(self, handle: Handle) -> Exit:
        await self._ended[handle.name].wait()
        return Exit(0, "exit code 0")

    async def stop(self, handle: Handle, grace_s: float) -> Exit:
        self.stopped.append((handle.name, grace_s))
        if self._are_stuck and grace_s > 2:
            await asyncio.Event().wait()
        self._epoch[0] = 7
        self._ended[handle.name].set()
        return Exit(0, "exit code 0")

    async def close(self) -> None: ...


class _Reader:
    def __init__(self, epoch: list[int], phase: str) -> None:
        self._epoch = epoch
        self._phase = phase

    async def status(self, *, unconfirmed: bool = False) -> FleetStatus:
        return FleetStatus(phase=self._phase, last_complete_epoch=self._epoch[0])

    async def report_host_exit(self, host: str, instance: str, reason: str) -> None: ...

    async def close(self) -> None: ...


class _Commands:
    def coordinator(self, address: str, name: str, members: Mapping[str, str]) -> list[str]:
        return ["coordinator"]

    def host(self, address: str, host: str, instance: str) -> list[str]:
        return ["host"]


async def _stopped(
    *, limit_s: float, phase: str = "running", is_hurried: bool = False
) -> tuple[list[tuple[str, float]], list[str]]:
    """Who was asked to end, and what was said of it."""
    epoch, notes = [3], list[str]()
    launcher = _Launcher(epoch, are_stuck=is_hurried)
    fleet = LaunchedFleet(
        launcher,  # type: ignore[arg-type]  # what is not asked for here is left out
        _Commands(),
        hosts=2,
        connect=lambda address: _Reader(epoch, phase),  # type: ignore[arg-type,return-value]
        on_note=notes.append,
        last_snapshot_s=limit_s,
    )
    await fleet.start()
    while None in [fleet.handle(name) for name in (*fleet.hosts, *fleet.coordinators)]:
        await asyncio.sleep(0)
    stopping = asyncio.ensure_future(fleet.stop())
    while is_hurried and len(launcher.stopped) < 2:
        await asyncio.sleep(0)
    if is_hurried:
        stopping.cancel()
    await stopping
    return launcher.stopped, notes


async def test_hosts_take_a_last_snapshot_before_the_coordinators_end() -> None:
    stopped, notes = await _stopped(limit_s=5)
    assert stopped[:2] == [("h1", 7), ("h2", 7)] and ("coordinator", 2) in stopped[2:]
    assert notes[-1] == "epoch 7 is the last snapshot"
    assert [note for note in notes if "second signal" in note and LAST_SNAPSHOT in note] == [], (
        "`down` shows none of it"
    )


async def test_second_signal_ends_everything_at_once_and_says_what_is_lost() -> None:
    stopped, notes = await _stopped(limit_s=5, is_hurried=True)
    assert {grace_s for _, grace_s in stopped[2:]} == {0}
    assert notes[-1] == "no last snapshot: what the fleet has done since epoch 3 is lost"


@pytest.mark.parametrize("phase", ["forming", "running"])
async def test_fleet_without_agents_or_a_limit_ends_coordinators_first(phase: str) -> None:
    stopped, _ = await _stopped(limit_s=5 if phase == "forming" else 0, phase=phase)
    assert stopped[0] == ("coordinator", 2)
