"""The large check: a fleet of five agents on three hosts and three coordinators goes through the faults of a real place.

1. The fleet comes up and takes a snapshot.
2. A host is killed; the fleet recovers exactly.
3. A host is frozen and replaced; its messages are rejected when it wakes.
4. The coordinator's leader is killed and restarted, and leads again.
5. The fleet goes down; nothing is left.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable

from snapline.deploy.conformance.bench import LIMIT_S, LOOK_S, Bench, LauncherFaultError, require, until
from snapline.deploy.conformance.judge import judge
from snapline.deploy.conformance.token_fleet import AGENTS
from snapline.deploy.launching import Launcher, ProcessSpec
from snapline.deploy.running_fleet import LaunchedFleet
from snapline.errors import OlderIncarnationError, SnaplineError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import FleetStatus

HOSTS, COORDINATORS = 3, 3
FLEET = "snapline.deploy.conformance.token_fleet:fleet"

REPLACEMENT_INSTANCE = "0123456789abcdef"
"""Instance name of the replacement host."""


async def a_fleet_recovers_exactly_and_leaves_nothing(bench: Bench) -> None:
    """Run one fleet through all steps, from start to shutdown."""
    launcher, commands = bench.launcher(), bench.commands(FLEET, HOSTS)
    notes: list[str] = []
    fleet = LaunchedFleet(
        launcher,
        commands,
        hosts=HOSTS,
        coordinators=COORDINATORS,
        on_failure="move",
        connect=bench.connect,
        on_note=notes.append,
    )
    async with fleet:
        client = bench.connect(fleet.address)
        trial = _FleetCheckRun(bench, launcher, fleet, client)
        try:
            await trial.come_up()
            await trial.take_a_snapshot()
            await trial.kill_a_host("h2")
            await trial.wake_replaced_host("h3")
            await trial.move_leadership()
            judge(bench.store)
        except (LauncherFaultError, SnaplineError) as error:
            raise LauncherFaultError(
                f"{trial.step}: {error}; the launcher said: {'; '.join(notes) or 'nothing'}"
            ) from error
        finally:
            await client.close()
    await _nothing_is_left(bench, fleet.address)


class _FleetCheckRun:
    """Trial of one fleet. `step` names its progress."""

    def __init__(self, bench: Bench, launcher: Launcher, fleet: LaunchedFleet, client: CoordinatorClient) -> None:
        self.step = "up"
        self._bench = bench
        self._launcher = launcher
        self._fleet = fleet
        self._client = client

    async def come_up(self) -> None:
        """Check that all hosts take part, and each has agents."""
        status = await self._until("a running fleet", self._is_whole)
        require(sum(host.agents for host in status.hosts) == AGENTS, f"the agents are not all there: {status.hosts}")
        require(all(host.agents for host in status.hosts), f"not every host has agents: {status.hosts}")

    async def take_a_snapshot(self) -> None:
        self.step = "snapshot"
        outcome = await self._client.create_snapshot(LIMIT_S)
        epochs = [judged.epoch for judged in judge(self._bench.store)]
        require(outcome.epoch in epochs, f"epoch {outcome.epoch} is not in the store")

    async def kill_a_host(self, host: str) -> None:
        """Kill a host: all agents are restored to one cut on the remaining hosts. Then the host returns without agents."""
        self.step = f"{host} killed"
        earlier = await self._recoveries()
        self._fleet.kill(host, is_kept_down=True)
        recovery = await self._recovered(earlier)
        require(recovery["lost_hosts"] == [host], f"lost were {recovery['lost_hosts']}")
        await self._until_more_epochs(2)
        judge(self._bench.store)
        await until(
            "its end seen", lambda: self._fleet.handle(host) is None
        )  # the coordinator may see the exit before the launcher
        self.step = f"{host} started again"
        self._fleet.restart(host)
        await self._until("all hosts back", self._is_whole)
        require(await self._recoveries() == earlier + 1, "its return has undone something")

    async def wake_replaced_host(self, host: str) -> None:
        """Freeze a host that has turns to run and frames to send until it is replaced; when it wakes, its messages are rejected (G9)."""
        self.step = f"{host} frozen"
        earlier = await self._recoveries()
        frozen = self._fleet.handle(host)
        require(frozen is not None, "it does not run")
        assert frozen is not None
        await self._launcher.freeze(frozen)
        recovery = await self._recovered(earlier)
        require(recovery["lost_hosts"] == [host], f"lost were {recovery['lost_hosts']}")
        plan = (await self._status()).plan
        self.step = f"{host} replaced"
        command = self._bench.commands(FLEET, HOSTS).host(self._fleet.address, host, REPLACEMENT_INSTANCE)
        await self._launcher.start(ProcessSpec(f"{host}-again", "host", REPLACEMENT_INSTANCE, tuple(command)))
        await self._until("the replacement", self._is_whole)
        self.step = f"the remains of {host} speak"
        await self._launcher.thaw(frozen)
        async with asyncio.timeout(LIMIT_S):
            ended = await self._launcher.watch(frozen)
        refused = OlderIncarnationError.exit_code
        require(ended.code in (refused, None), f"they ended with {ended.text}, and not because they were refused")
        await self._until_more_epochs(2)
        later = [judged for judged in judge(self._bench.store) if judged.plan >= plan]
        require(bool(later), "no epoch was taken since")
        for judged in later:
            require(host not in judged.hosts, f"epoch {judged.epoch} holds agents of {host}")
        require(await self._recoveries() == earlier + 1, "their words have undone something")

    async def move_leadership(self) -> None:
        """Kill the leader, so that another replica leads. The killed one returns, on any machine, and can lead again."""
        leader = (await self._until("a leader", lambda now: now.leader != "")).leader
        self.step = f"{leader} killed, which led"
        self._fleet.kill(leader, is_kept_down=True)  # restarted at once, it might be elected again
        await self._until("another leader", lambda now: now.leader not in ("", leader))
        await self._until_more_epochs(1)
        self.step = f"{leader} started again"
        self._fleet.restart(leader)
        await self._until_led_by(leader)
        await self._until_more_epochs(1)

    # -- waiting --------------------------------------------------------------------------------------------------------

    @staticmethod
    def _is_whole(now: FleetStatus) -> bool:
        return now.phase == "running" and [host.state for host in now.hosts] == ["alive"] * HOSTS

    async def _status(self) -> FleetStatus:
        return await self._until("an answer", lambda now: True)

    async def _until(self, words: str, is_there: Callable[[FleetStatus], bool]) -> FleetStatus:
        status: FleetStatus | None = None
        try:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    with contextlib.suppress(SnaplineError):
                        status = await self._client.status()
                        if is_there(status):
                            return status
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise LauncherFaultError(f"{words}: not within {LIMIT_S:g} s; last seen {status}") from None

    async def _until_more_epochs(self, count: int) -> None:
        wanted = (await self._status()).epochs_completed + count
        await self._until(f"{count} more epochs", lambda now: now.epochs_completed >= wanted and now.phase == "running")

    async def _until_led_by(self, name: str) -> None:
        """Transfer leadership to `name`, which must first return and catch up."""
        try:
            async with asyncio.timeout(LIMIT_S):
                while (await self._status()).leader != name:
                    with contextlib.suppress(SnaplineError):
                        await self._client.transfer_leader(name)
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise LauncherFaultError(f"{name} does not lead again within {LIMIT_S:g} s") from None

    async def _recoveries(self) -> int:
        return len(await self._history())

    async def _recovered(self, earlier: int) -> dict[str, object]:
        """Wait for the next recovery to complete, and return it."""
        try:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    recoveries = await self._history()
                    if len(recoveries) > earlier and recoveries[-1]["done"] is not None:
                        return recoveries[-1]
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise LauncherFaultError(f"no recovery within {LIMIT_S:g} s") from None

    async def _history(self) -> list[dict[str, object]]:
        recoveries = (await self._client.recovery_history(LIMIT_S))["recoveries"]
        assert isinstance(recoveries, list)
        return recoveries


async def _nothing_is_left(bench: Bench, address: str) -> None:
    await until("down: everything gone", lambda: not bench.remains())
    for endpoint in address.split(","):
        host, _, port = endpoint.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
            raise LauncherFaultError(f"down: somebody still listens at {endpoint}")
