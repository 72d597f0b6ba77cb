"""A fleet of real processes under a test's hands."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from tests.integration.processes import LIMIT_S

from snapline.deploy.data_directory import LOGS_FOLDER
from snapline.deploy.local import Ending, LocalFleet, OnFailure
from snapline.errors import SnaplineError, UnknownOutcomeError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import FleetStatus
from snapline.security.transport import Security

LOOK_S = 0.05
"""Between two looks at the coordinator."""

LOG_LINES = 12
"""Of each process's log, in what a failed test says."""

Recovery = dict[str, object]


async def until_status(
    client: CoordinatorClient,
    condition: Callable[[FleetStatus], object],
    whereabouts: Callable[[], str],
    limit_s: float = LIMIT_S,
) -> FleetStatus:
    """Wait for a status with this property; a coordinator that is down meanwhile is waited for. `whereabouts`: for who waits in vain."""
    status: FleetStatus | None = None
    try:
        async with asyncio.timeout(limit_s):
            while True:
                with contextlib.suppress(SnaplineError):
                    status = await client.status()
                    if condition(status):
                        return status
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise AssertionError(f"in vain; last status {status}; {whereabouts()}") from None


def is_at(epochs: int, plan: int = 0) -> Callable[[FleetStatus], bool]:
    """Are so many epochs complete, and does the fleet run under this plan, or a later one?"""
    return lambda now: now.epochs_completed >= epochs and now.plan >= plan and now.phase == "running"


class Running:
    """A running fleet, and the coordinator's client."""

    def __init__(self, local: LocalFleet, client: CoordinatorClient, notes: list[str]) -> None:
        self.local = local
        self.client = client
        self.notes = notes

    async def until(self, condition: Callable[[FleetStatus], object], limit_s: float = LIMIT_S) -> FleetStatus:
        """Wait for a status with this property; a coordinator that is down meanwhile is waited for."""
        return await until_status(self.client, condition, self.whereabouts, limit_s)

    async def until_epochs(self, count: int, limit_s: float = LIMIT_S) -> FleetStatus:
        """Wait until so many epochs are complete, and the fleet runs."""
        return await self.until(is_at(count), limit_s)

    async def until_more_epochs(self, count: int = 1) -> FleetStatus:
        """Wait until so many more epochs than now are complete, and the fleet runs."""
        before = (await self.until(lambda now: True)).epochs_completed
        return await self.until_epochs(before + count)

    async def recoveries(self) -> list[Recovery]:
        """All recoveries so far."""
        history = await self.client.recovery_history()
        return msgspec.convert(history["recoveries"], list[Recovery])

    async def recovered_from(self, *killed: str) -> Recovery:
        """Kill these at once; returns the recovery that follows, when it is done."""
        earlier = len(await self.recoveries())
        for name in killed:
            self.local.kill(name)
        return await self.until_recovered(earlier)

    async def until_recovered(self, earlier: int = 0, limit_s: float = LIMIT_S) -> Recovery:
        """Wait until there are more recoveries than `earlier`, and the last of them is done."""
        found: list[Recovery] = []
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    with contextlib.suppress(SnaplineError):
                        found = await self.recoveries()
                        if len(found) > earlier and found[-1]["done"] is not None:
                            return found[-1]
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise AssertionError(f"no recovery; so far {found}; {self.whereabouts()}") from None

    async def end(self, limit_s: float = LIMIT_S) -> Ending:
        """Wait until the fleet has ended by itself, as its predicate says.

        A fleet that still runs after `limit_s` must have run turns in the last half of it: a busy machine makes the same work take longer.
        The test's own time limit bounds the whole wait.
        """
        ending: Ending | None = None
        turns: int | None = None
        while ending is None:
            try:
                ending = await self.local.wait(limit_s / 2)
            except UnknownOutcomeError:
                before, turns = turns, None
                with contextlib.suppress(SnaplineError):  # it may end, or its coordinator start again, at this moment
                    turns = sum(host.turns for host in (await self.client.status()).hosts)
                if turns is not None and turns == before:
                    raise
        assert ending.outcome == "stopped", f"{ending}; {self.whereabouts()}"
        return ending

    async def end_killed(self, kills: int, chosen: random.Random, pause_s: float) -> Ending:
        """Kill a host at random so many times, each up to `pause_s` after the fleet runs again, and wait until it has ended by itself. It may
        end before all kills."""
        ending = asyncio.create_task(self.end())
        try:
            for _ in range(kills):
                running = asyncio.create_task(self.until(lambda now: now.phase != "recovering"))
                await asyncio.wait([ending, running], return_when=asyncio.FIRST_COMPLETED)
                running.cancel()
                await asyncio.wait([ending], timeout=chosen.random() * pause_s)
                if ending.done():
                    break
                with contextlib.suppress(SnaplineError, ProcessLookupError, KeyError):
                    self.local.kill(chosen.choice(self.local.hosts))
            return await ending
        finally:
            ending.cancel()

    async def end_by_hand(self, limit_s: float = LIMIT_S) -> Ending:
        """The same for a fleet without triggers: take snapshots until its predicate holds in one."""
        ending = asyncio.create_task(self.end(limit_s))
        try:
            while not ending.done():
                with contextlib.suppress(SnaplineError):
                    await self.client.create_snapshot()
                await asyncio.wait([ending], timeout=LOOK_S)
            return await ending
        finally:
            ending.cancel()

    async def until_led(self, *, not_by: str = "", after: int = 0) -> str:
        """Wait until one of several replicas leads; returns its name.

        Where the leader is killed and comes back, name the term that it led in: it may well be elected again.
        """
        status = await self.until(lambda now: now.leader and now.leader != not_by and now.term > after)
        return status.leader

    def pid(self, name: str) -> int:
        """Process id of a host, or `coordinator`, that runs."""
        pid = self.local.pid(name)
        assert pid is not None, f"{name} is down; {self.whereabouts()}"
        return pid

    def whereabouts(self) -> str:
        logs = [
            f"\n--- {path.name} ---\n{_tail(path)}"
            for path in sorted((self.local.data_dir / LOGS_FOLDER).glob("*.log"))
        ]
        return f"the launcher said: {'; '.join(self.notes) or 'nothing'}; data in {self.local.data_dir}{''.join(logs)}"


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-LOG_LINES:])


@contextlib.asynccontextmanager
async def running(
    data_dir: Path,
    fleet: str,
    arguments: Mapping[str, str] | None = None,
    *,
    hosts: int = 3,
    on_failure: OnFailure = "restart",
    coordinators: int = 1,
    store: str = "",
    metrics: str = "",
    log: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Running]:
    """Run a fleet; `fleet` without a dot names a module of `tests/integration/fleets`."""
    notes: list[str] = []
    local = LocalFleet(
        data_dir=data_dir,
        fleet=fleet if "." in fleet else f"tests.integration.fleets.{fleet}",
        hosts=hosts,
        arguments=arguments,
        on_failure=on_failure,
        on_note=notes.append,
        coordinators=coordinators,
        store=store,
        metrics=metrics,
        log=log,
        environment=environment,
    )
    async with local:
        client = CoordinatorClient(local.address, Security.loopback())
        try:
            yield Running(local, client, notes)
        finally:
            await client.close()
