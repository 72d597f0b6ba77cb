"""Conformance checks for launchers: small checks of single methods, and a large check that runs a whole fleet.

The small checks start and stop small programs without a fleet. The large check runs a fleet of five agents on three hosts with three
coordinators, and injects faults that occur in practice:

1. The fleet starts and takes a snapshot.
2. A host is killed, and the fleet recovers without losing a message or handling one twice.
3. A host is frozen and replaced. When the frozen host resumes, its messages are rejected.
4. The coordinator's leader is killed and restarted, and becomes the leader again.
5. The fleet is shut down, and no processes or files remain.

`judge` then checks the fleet's snapshots, using only the data in the store. Each snapshot must be consistent and complete, no token may be
lost, and every transfer must be handled exactly once (G1–G3).
"""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from snapline.agent_runtime.snapshots.snapshot_cut import Cut, load_cut
from snapline.deploy.conformance.bench import LIMIT_S, LOOK_S, Bench, LauncherFaultError, require, until
from snapline.deploy.conformance.token_fleet import AGENTS, LINES, TOKENS, Transfer, TransferCounts, fleet
from snapline.deploy.launching import Handle, Kind, Launcher, ProcessSpec
from snapline.deploy.running_fleet import LaunchedFleet
from snapline.deploy.supervisor import Exit
from snapline.errors import OlderIncarnationError, SnaplineError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import FleetStatus
from snapline.recovery.dependency_records import DependencyRecord, in_transit_numbers, orphans
from snapline.storage.packs.checkpoint import AgentCheckpoint
from snapline.storage.store.store import Store

ProcessCheck = Callable[[Bench], Awaitable[None]]

SLEEP = "import time; time.sleep(600)"
BEAT_S = 0.1
BEATING = """
import time
while True:
    time.sleep({beat_s})
    with open({beats!r}, "ab") as file:
        file.write(b".")
"""
STUBBORN = "import pathlib, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); pathlib.Path({ready!r}).touch(); "


def program(name: str, code: str, kind: Kind = "host", instance: str = "run-1") -> ProcessSpec:
    """Return the spec of a process that runs a small Python program."""
    return ProcessSpec(name, kind, instance, (sys.executable, "-u", "-c", code))


async def an_end_is_seen_with_its_code_and_last_words(bench: Bench) -> None:
    async with _opened(bench) as launcher:
        handle = await launcher.start(program("h1", "print('one'); raise SystemExit('no disk left')"))
        ended = await _end_of(launcher, handle)
        require((ended.code, ended.last_words) == (1, "no disk left"), f"it saw {ended}")
        require(await launcher.status(handle) == ended, "status tells another end than watch")


async def a_name_is_one_process(bench: Bench) -> None:
    """Check that repeating a start request does not start a second process. A launcher repeats a request if the reply was lost."""
    async with _opened(bench) as launcher:
        first = await launcher.start(program("h1", SLEEP))
        second = await launcher.start(program("h1", SLEEP, instance="run-2"))
        require(second == first, f"{second} runs beside {first}")
        await launcher.kill(first)
        await _end_of(launcher, first)
        third = await launcher.start(program("h1", SLEEP, instance="run-3"))
        require(third.instance == "run-3" and third.pid != first.pid, f"{third} is {first} again")
        require(await launcher.status(third) is None, "the third run does not run")


async def words_about_an_earlier_run_do_not_end_the_next(bench: Bench) -> None:
    async with _opened(bench) as launcher:
        first = await launcher.start(program("h1", SLEEP))
        await launcher.kill(first)
        await _end_of(launcher, first)
        second = await launcher.start(program("h1", SLEEP, instance="run-2"))
        await launcher.kill(first)
        require((await launcher.stop(second, LIMIT_S)).code == -15, "killing the first run has killed the second")
        third = await launcher.start(program("h1", SLEEP, instance="run-3"))
        await launcher.stop(first, 0.1)
        await launcher.kill(third)
        require((await _end_of(launcher, third)).code == -9, "stopping the first run has stopped the third")
        require(await launcher.status(first) is not None, "the first run is said to run")


async def stopping_asks_first(bench: Bench) -> None:
    async with _opened(bench) as launcher:
        handle = await launcher.start(program("h1", SLEEP))
        ended = await launcher.stop(handle, LIMIT_S)
        require(ended.code == -15, f"asked to end, it ended with {ended.text}, not by SIGTERM")


async def stopping_kills_who_does_not_listen(bench: Bench) -> None:
    async with _opened(bench) as launcher:
        ready = bench.folder / "ready"
        handle = await launcher.start(program("h1", STUBBORN.format(ready=str(ready)) + SLEEP))
        await until("the program's word that it is ready", ready.exists)
        ended = await launcher.stop(handle, 0.1)
        require(ended.code == -9, f"it ended with {ended.text}, not by SIGKILL")


async def who_is_frozen_stands_still_until_thawed_or_killed(bench: Bench) -> None:
    async with _opened(bench) as launcher:
        beats = bench.folder / "beats"
        handle = await launcher.start(program("h1", BEATING.format(beats=str(beats), beat_s=BEAT_S)))
        await until("a first beat", beats.exists)
        await launcher.freeze(handle)
        await asyncio.sleep(BEAT_S)  # the process may still be writing one heartbeat
        before = beats.stat().st_size
        await asyncio.sleep(10 * BEAT_S)
        require(beats.stat().st_size == before, "frozen, it goes on")
        require(await launcher.status(handle) is None, "frozen, it is said to have ended")
        await launcher.thaw(handle)
        await until("more beats of who was thawed", lambda: beats.stat().st_size > before)
        await launcher.freeze(handle)
        await launcher.kill(handle)
        require((await _end_of(launcher, handle)).code == -9, "frozen, it does not end by SIGKILL")
        await launcher.freeze(handle)
        await launcher.thaw(handle)


async def closing_leaves_nothing(bench: Bench) -> None:
    """Check that closing the launcher leaves no process running, not even one whose start was just cancelled."""
    async with _opened(bench) as launcher:
        kinds: list[Kind] = ["host", "host", "coordinator"]
        for number, kind in enumerate(kinds):
            await launcher.start(program(f"{kind[0]}{number}", f"{SLEEP}  # {bench.folder}", kind))
        starting = asyncio.create_task(launcher.start(program("h9", f"{SLEEP}  # {bench.folder}")))
        await asyncio.sleep(0)
        starting.cancel()
    await until(f"everything gone, and there is {bench.remains()}", lambda: not bench.remains())


PROCESS_CHECKS: list[ProcessCheck] = [
    an_end_is_seen_with_its_code_and_last_words,
    a_name_is_one_process,
    words_about_an_earlier_run_do_not_end_the_next,
    stopping_asks_first,
    stopping_kills_who_does_not_listen,
    who_is_frozen_stands_still_until_thawed_or_killed,
    closing_leaves_nothing,
]


@asynccontextmanager
async def _opened(bench: Bench) -> AsyncIterator[Launcher]:
    launcher = bench.launcher()
    try:
        await launcher.open(["c1"])
        yield launcher
    finally:
        await launcher.close()


async def _end_of(launcher: Launcher, handle: Handle) -> Exit:
    try:
        async with asyncio.timeout(LIMIT_S):
            return await launcher.watch(handle)
    except TimeoutError:
        raise LauncherFaultError(f"the end of {handle} was not seen within {LIMIT_S:g} s") from None


class CheckedSnapshot(NamedTuple):
    """A snapshot that passed all checks.

    `plan` is the number of the recovery plan in force when the snapshot was taken, and `hosts` are the hosts of its agents.
    """

    epoch: int
    plan: int
    hosts: frozenset[str]


def judge(location: str) -> list[CheckedSnapshot]:
    """Check every snapshot in the store. Skip snapshots that the coordinator deletes during the check.

    Raises:
        LauncherFaultError: If a snapshot is incorrect. The message contains the snapshot's epoch and the fault.
    """
    store = Store.open(location)
    judged: list[CheckedSnapshot] = []
    for epoch in store.epochs():
        try:
            judged.append(_judge_epoch(store, epoch))
        except SnaplineError:
            if epoch in store.epochs():
                raise
    return judged


def _judge_epoch(store: Store, epoch: int) -> CheckedSnapshot:
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    checkpoints = {checkpoint.agent: checkpoint for checkpoint in store.read_checkpoints(manifest)}
    _judge_channels(epoch, checkpoints)
    _judge_tokens(epoch, load_cut(store, epoch, fleet()), checkpoints)
    return CheckedSnapshot(epoch, manifest.metadata.plan, frozenset(line.host for line in manifest.agents))


def _judge_channels(epoch: int, checkpoints: dict[str, AgentCheckpoint]) -> None:
    cut = {agent: DependencyRecord(checkpoint.sent, checkpoint.received) for agent, checkpoint in checkpoints.items()}
    require(orphans(cut) == [], f"epoch {epoch} has orphans: {orphans(cut)}")
    saved = {
        (sender, agent): [message.number for message in messages]
        for agent, checkpoint in checkpoints.items()
        for sender, messages in checkpoint.in_transit.items()
        if messages
    }
    expected = {channel: list(numbers) for channel, numbers in in_transit_numbers(cut).items()}
    require(saved == expected, f"epoch {epoch} holds {saved} as in transit, and {expected} is")


def _judge_tokens(epoch: int, cut: Cut, checkpoints: dict[str, AgentCheckpoint]) -> None:
    counts = {agent: state for agent, state in cut.states.items() if isinstance(state, TransferCounts)}
    require(len(counts) == AGENTS, f"epoch {epoch} has {len(counts)} agents")
    held_tokens = sum(count.balance for count in counts.values())
    moving = sum(transit.message.amount for transit in cut.in_transit if isinstance(transit.message, Transfer))
    require(
        held_tokens + moving == AGENTS * TOKENS,
        f"epoch {epoch}: {held_tokens} tokens in agents and {moving} in transit are wrong",
    )
    for agent, count in counts.items():
        checkpoint = checkpoints[agent]
        sent = sum(checkpoint.sent.values()) + len(checkpoint.outbox)
        waiting = count.passed + len(checkpoint.timers)
        label = f"{agent} in epoch {epoch}"
        require(
            count.handled == sum(checkpoint.received.values()),
            f"{label} handled {count.handled} of {checkpoint.received}",
        )
        require(count.passed == sent, f"{label} passed {count.passed} on, and {sent} were sent")
        started = LINES if checkpoint.is_started else 0
        require(
            started + count.handled == waiting, f"{label} owes {started + count.handled} transfers, and knows {waiting}"
        )


HOSTS, COORDINATORS = 3, 3
FLEET = "snapline.deploy.conformance.token_fleet:fleet"

REPLACEMENT_INSTANCE = "0123456789abcdef"
"""Instance name of the replacement host."""


async def a_fleet_recovers_exactly_and_leaves_nothing(bench: Bench) -> None:
    """Run all steps of the large check on one fleet, from start to shutdown."""
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
    """One run of the large check."""

    def __init__(self, bench: Bench, launcher: Launcher, fleet: LaunchedFleet, client: CoordinatorClient) -> None:
        self.step = "up"
        self._bench = bench
        self._launcher = launcher
        self._fleet = fleet
        self._client = client

    async def come_up(self) -> None:
        """Check that all hosts have joined the fleet and that each host has agents."""
        status = await self._until("a running fleet", self._is_whole)
        require(sum(host.agents for host in status.hosts) == AGENTS, f"the agents are not all there: {status.hosts}")
        require(all(host.agents for host in status.hosts), f"not every host has agents: {status.hosts}")

    async def take_a_snapshot(self) -> None:
        self.step = "snapshot"
        outcome = await self._client.create_snapshot(LIMIT_S)
        epochs = [judged.epoch for judged in judge(self._bench.store)]
        require(outcome.epoch in epochs, f"epoch {outcome.epoch} is not in the store")

    async def kill_a_host(self, host: str) -> None:
        """Kill a host.

        Check that all agents are restored to one consistent cut on the remaining hosts. Then restart the host, and check that the host
        rejoins without undoing any work.
        """
        self.step = f"{host} killed"
        earlier = await self._recoveries()
        self._fleet.kill(host, is_kept_down=True)
        recovery = await self._recovered(earlier)
        require(recovery["lost_hosts"] == [host], f"lost were {recovery['lost_hosts']}")
        await self._until_more_epochs(2)
        judge(self._bench.store)
        await until(
            "its end seen", lambda: self._fleet.handle(host) is None
        )  # the coordinator may detect the exit before the launcher does
        self.step = f"{host} started again"
        self._fleet.restart(host)
        await self._until("all hosts back", self._is_whole)
        require(await self._recoveries() == earlier + 1, "its return has undone something")

    async def wake_replaced_host(self, host: str) -> None:
        """Freeze a host that has turns to run and frames to send, until the fleet has replaced it.

        Check that the host's messages are rejected after it resumes (G9).
        """
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
        """Kill the leader, and check that another replica becomes the leader. Check that the killed replica returns and can become the
        leader again."""
        leader = (await self._until("a leader", lambda now: now.leader != "")).leader
        self.step = f"{leader} killed, which led"
        self._fleet.kill(leader, is_kept_down=True)  # if it restarted immediately, it might be elected again
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
        """Transfer leadership to the replica `name` after it has returned and caught up."""
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
        """Wait until more than `earlier` recoveries have occurred and the newest one is complete. Return the newest recovery."""
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
