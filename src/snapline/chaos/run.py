"""Carries out one chaos run, which applies a scenario with a seed to real processes, on this machine or with another launcher. The result
contains a verdict, such as "pass" or "violation".

As in the simulator, all faults of the scenario begin and end first. After all faults have ended, the liveness conditions must hold: the
fleet runs, epochs complete, and the work gets done. The seed determines random choices, such as which process a fault affects. The seed
does not determine when a process reaches a failpoint, or which messages are in transit when a process is killed. So a second run with the
same seed repeats the faults but may otherwise differ.

`StoreJudge` checks the fleet continuously. `StoreJudge` reads only the store, and remembers the content of each complete epoch. Each oracle
of `StoreJudge` has the same name as the simulator's oracle that performs the same check.

- `orphan` (G1): no epoch contains a received message that the epoch does not contain as sent.
- `channel-state` (G2): for each channel, exactly the messages received + 1 … sent are in transit, in order.
- `workload` (G3): the workload's sums, or the user's invariant, hold in each epoch, and at the end all work is done once.
- `outcome` (G4): the root digest of an epoch never changes, and the newest epoch's number never decreases.
- `durable` (G4): each epoch is readable, unless a fault has damaged it.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from snapline.agent_runtime.snapshots.snapshot_cut import Cut, load_cut
from snapline.chaos import executor as cm
from snapline.chaos.capabilities import HERE, check_capabilities
from snapline.chaos.executor import ChaosExecutor
from snapline.chaos.local_faults import LocalFaults
from snapline.chaos.process_faults import LOOK_S, RemoteFaults
from snapline.chaos.workloads import FLEET, workload_of
from snapline.deploy.data_directory import STORE_FOLDER
from snapline.deploy.detached_fleet import DetachedPlan
from snapline.errors import SnaplineError, UsageError
from snapline.folders import make_private
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import FleetStatus
from snapline.recovery.dependency_records import DependencyRecord, in_transit_numbers, orphans
from snapline.sim.choices import RandomChoices
from snapline.sim.faults.fault_kinds import DiskFault, PartitionFault
from snapline.sim.result import Result, Violation
from snapline.sim.scenario import Scenario, format_scenario
from snapline.sim.workloads.workload import AtEnd, CheckedWorkload, Invariant, Workload
from snapline.storage.disk import layout
from snapline.storage.packs.checkpoint import AgentCheckpoint
from snapline.storage.store.store import Store

VIOLATIONS_MAX = 10
"""Maximum number of violations that are kept. The first violations are the most useful."""


class StoreJudge:
    """Checks epochs continuously while the fleet runs, before the coordinator deletes them.

    Attributes:
        violations: violations found so far.
        judged: epochs checked so far.
        newest: cut of the newest epoch that was checked.
    """

    def __init__(self, location: str, workload: Workload, now_ns: Callable[[], int]) -> None:
        self._location = location
        self._workload = workload
        self._now_ns = now_ns
        self._store: Store | None = None
        self._roots: dict[int, str] = {}
        self.violations: list[Violation] = []
        self.judged: list[int] = []
        self.newest: Cut | None = None

    def look(self, damaged: list[str]) -> None:
        """Check new epochs. `damaged` lists files that a fault has changed. An epoch may be unreadable if it needs one of these files."""
        store = self._opened()
        if store is None:
            return
        epochs = store.epochs()
        if self.judged and (not epochs or epochs[-1] < self.judged[-1]):
            self._add_violation(
                "outcome", "G4", f"epoch {self.judged[-1]} was complete, and the newest is {epochs[-1:] or 'none'}"
            )
        for epoch in epochs:
            try:
                self._judge_epoch(store, epoch)
            except SnaplineError as error:
                if epoch in store.epochs() and not damaged:
                    self._add_violation("durable", "G4", f"epoch {epoch} is complete and cannot be read: {error}")

    def conclude(self, damaged: list[str], *, is_ended: bool) -> None:
        """Check the store after the fleet has ended. If `is_ended` is set, the fleet ended without a request, so all its work must be
        done."""
        self.look(damaged)
        store = self._opened()
        if store is None:
            return
        findings = store.verify().findings
        if findings and not damaged:
            self._add_violation("durable", "G4", f"the store is damaged: {findings[0]}")
        if is_ended and self._workload.ends and self.newest is not None:
            self._check("workload", self._workload.check_end(self.newest.states))

    def flippable(self) -> tuple[str, ...]:
        """Return the files of the newest complete epoch, in which a fault may flip a bit. Return no files unless an older epoch is known to
        be intact."""
        store = self._opened()
        epochs = store.epochs() if store is not None else []
        if store is None or len(epochs) < 2 or epochs[-1] not in self.judged or epochs[-2] not in self.judged:
            return ()
        try:
            root = store.read_ref(epochs[-1])
            packs = [pack.path for pack in store.read_manifest(root, epoch=epochs[-1]).packs]
        except SnaplineError:
            return ()
        return (layout.ref_path(epochs[-1]), layout.manifest_path(root), *packs)

    def _opened(self) -> Store | None:
        """Return the store, or None if the fleet has not created the store yet."""
        if self._store is None:
            try:
                self._store = Store.open(self._location)
            except SnaplineError:
                return None
        return self._store

    def _judge_epoch(self, store: Store, epoch: int) -> None:
        root = store.read_ref(epoch)
        if self._roots.setdefault(epoch, root) != root:
            self._add_violation("outcome", "G4", f"epoch {epoch} was {self._roots[epoch]}, and is {root}")
        if epoch in self.judged:
            return
        manifest = store.read_manifest(root, epoch=epoch)
        checkpoints = {checkpoint.agent: checkpoint for checkpoint in store.read_checkpoints(manifest)}
        cut = load_cut(store, epoch, self._workload.fleet)
        for oracle, guarantee, text in channel_problems(checkpoints):
            self._add_violation(oracle, guarantee, f"epoch {epoch}: {text}")
        problem = self._workload.check_cut(cut)
        self._check("workload", problem and f"epoch {epoch}: {problem}")
        self.judged.append(epoch)
        self.newest = cut

    def _check(self, oracle: str, problem: str | None) -> None:
        if problem:
            self._add_violation(oracle, "G3", problem)

    def _add_violation(self, oracle: str, guarantee: str, text: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(oracle, guarantee, self._now_ns(), text))


def channel_problems(checkpoints: Mapping[str, AgentCheckpoint]) -> list[tuple[str, str, str]]:
    """Return the oracle, the guarantee and a description for each problem with the messages in one cut. Agents that the cut does not
    contain have left the fleet and are ignored."""
    cut = {agent: DependencyRecord(checkpoint.sent, checkpoint.received) for agent, checkpoint in checkpoints.items()}
    named = {name for record in cut.values() for name in (*record.sent, *record.received)}
    gone = named - set(cut)
    saved = {
        (sender, agent): [message.number for message in messages]
        for agent, checkpoint in checkpoints.items()
        for sender, messages in checkpoint.in_transit.items()
        if messages and sender not in gone
    }
    expected = {channel: list(numbers) for channel, numbers in in_transit_numbers(cut, gone=gone).items()}
    problems = [("orphan", "G1", str(orphan)) for orphan in orphans(cut, gone=gone)]
    for sender, agent in sorted({*saved, *expected}):
        actual, wanted = saved.get((sender, agent), []), expected.get((sender, agent), [])
        if actual != wanted:
            problems.append(
                ("channel-state", "G2", f"{sender} → {agent} holds {actual} as in transit, and {wanted} is")
            )
    return problems


START_S = 120.0
"""Time limit for a fleet to start working. A start takes a few seconds on an idle machine."""

WITHIN_LEAST_S = 180.0
"""Minimum time limit for the liveness conditions after the faults. A scenario's times are virtual, and a real machine may be busy."""

JUDGE_S = 0.5
"""Interval between two checks of the store. Epochs are kept for longer than this interval."""

POLL_S = 0.2
"""Interval between two status requests to the coordinator, as in a launcher."""

SCENARIO_FILE, STOP_FILE = "scenario.toml", "stop"

EPOCHS_AFTER = 2
"""Number of epochs that must complete after the faults. The first of these epochs may have begun before the faults ended."""


class Checks(msgspec.Struct, frozen=True):
    """The checks that a user has defined, as in `sim/checking.py`. One check applies to every cut. The other check applies to the agents'
    final states."""

    invariant: Invariant | None = None
    at_end: AtEnd | None = None


NO_CHECKS = Checks()


async def run_chaos(
    scenario: Scenario,
    seed: int,
    *,
    folder: Path,
    checks: Checks = NO_CHECKS,
    plan: DetachedPlan | None = None,
    on_note: Callable[[str], None] = lambda note: None,
) -> Result:
    """Run a scenario in a new folder. If `plan` is None, the scenario runs on this machine, otherwise at the plan's location, where all
    machines must share the folder.

    Raises:
        UsageError: If the scenario is not supported at the location, or its fleet cannot be loaded.
    """
    check_capabilities(scenario, plan.place if plan else HERE)
    result = Result(name=scenario.name, seed=seed, verdict="broken")
    make_private(folder)
    (folder / SCENARIO_FILE).write_text(format_scenario(scenario))
    run = ChaosRun(scenario, seed, folder.absolute(), checks, plan, on_note)
    try:
        await run.carry_out(result)
    except UsageError as error:
        result.error = str(error)
    finally:
        await run.close()
    run.conclude(result)
    return result


class ChaosRun:
    """Carries out one run, from its start to its verdict."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        folder: Path,
        checks: Checks,
        plan: DetachedPlan | None,
        on_note: Callable[[str], None],
    ) -> None:
        inner = workload_of(folder / SCENARIO_FILE, folder / STOP_FILE)
        self._workload = CheckedWorkload(inner, invariant=checks.invariant, at_end=checks.at_end)
        self._scenario = scenario
        self._folder = folder
        self._on_note = on_note
        self._executor = ChaosExecutor(scenario, RandomChoices(seed))
        arguments = {"scenario": str(folder / SCENARIO_FILE), "stop": str(folder / STOP_FILE)}
        self._faults = (
            LocalFaults(scenario, folder, fleet=FLEET, arguments=arguments, seed=seed, on_note=on_note)
            if plan is None
            else RemoteFaults(scenario, folder, plan, fleet=FLEET, arguments=arguments, on_note=on_note)
        )
        self._began_s = time.monotonic()
        self._judge = StoreJudge(str(folder / STORE_FOLDER), self._workload, self._elapsed_ns)
        self._client: CoordinatorClient | None = None
        self._background: list[asyncio.Task[None]] = []
        self._observed: cm.FleetObserved | None = None
        self._is_ended = False
        self._metrics: dict[str, float] = {}

    def _elapsed_ns(self) -> int:
        return int((time.monotonic() - self._began_s) * 1e9)

    # ---- the phases -------------------------------------------------------------------------------------------------

    async def carry_out(self, result: Result) -> None:
        """Run all phases. Raise SnaplineError if the fleet cannot be started at all."""
        await self._faults.start()
        self._client = self._faults.client()
        self._background = [
            asyncio.create_task(work) for work in (self._judge_loop(), self._observe_loop(), self._wait_for_end())
        ]
        for phase in (self._until_running, self._fail, self._until_live, self._until_ended):
            result.pending = await phase()
            if result.pending or self._judge.violations:
                return

    async def close(self) -> None:
        """End the fleet and all tasks. The findings remain available."""
        for task in self._background:
            task.cancel()
        results = await asyncio.gather(*self._background, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
        await self._faults.stop()
        await asyncio.to_thread(self._judge.conclude, self._executor.flipped, is_ended=self._is_ended)
        for error in results:
            if isinstance(error, Exception):
                raise error

    def conclude(self, result: Result) -> None:
        """Write the verdict into `result`."""
        result.violations = list(self._judge.violations)
        result.faults = list(self._executor.faults)
        result.virtual_ns = self._elapsed_ns()
        result.error = result.error or self._workload.failure
        result.metrics = {
            **self._metrics,
            "epochs_judged": float(len(self._judge.judged)),
            "unsynced_lost": float(len(self._faults.lost)),
        }
        if result.error:
            result.verdict = "broken"
        elif result.violations:
            result.verdict = "violation"
        else:
            if not self._judge.judged:
                result.pending = [*result.pending, "no epoch was judged"]
            result.verdict = "undecided" if result.pending else "pass"

    async def _until_running(self) -> list[str]:
        def pending(status: FleetStatus) -> list[str]:
            alive = sum(host.state == "alive" for host in status.hosts)
            missing = self._scenario.fleet.hosts - alive
            return (
                [f"the fleet does not begin: it is {status.phase}, and {missing} hosts are missing"]
                if status.phase != "running" or missing
                else []
            )

        return await self._until(pending, START_S)

    async def _fail(self) -> list[str]:
        """Apply all faults of the scenario, and then end them."""
        began_s = time.monotonic()
        self._carry_out(self._executor.begin())
        while not self._is_ended and not self._judge.violations:
            now_ns = int((time.monotonic() - began_s) * 1e9)
            if now_ns >= self._executor.over_ns:
                break
            self._feed_executor(now_ns)
            await asyncio.sleep(LOOK_S)
        self._carry_out(self._executor.heal())
        self._on_note("all faults have ended")
        return []

    def _feed_executor(self, now_ns: int) -> None:
        events: list[cm.Event] = list(self._faults.failpoint_hits())
        if self._observed is not None:
            events.append(self._observed)
            self._observed = None
        for event in events or [cm.TimePassed()]:
            self._carry_out(self._executor.handle(now_ns, event))

    def _carry_out(self, commands: list[cm.Command]) -> None:
        for command in commands:
            if isinstance(command, cm.Note):
                self._on_note(f"{command.kind}: {command.text}")
            self._faults.carry_out(command)

    async def _until_live(self) -> list[str]:
        base: list[int] = []
        hosts = len(self._executor.hosts)

        def pending(status: FleetStatus) -> list[str]:
            base.append(status.epochs_completed)
            alive = sum(host.state == "alive" for host in status.hosts)
            found = [] if status.phase == "running" else [f"the fleet is {status.phase}: {status.reason}"]
            found += [f"{hosts - alive} of {hosts} hosts are not back"] if alive < hosts else []
            epochs_missing = EPOCHS_AFTER - (status.epochs_completed - base[0])
            if self._workload.fleet.period_ns and epochs_missing > 0:
                found.append(f"{epochs_missing} more epochs have to complete")
            return found

        began_s = time.monotonic()
        found = await self._until(pending, self._within_s())
        self._metrics["recovered_s"] = time.monotonic() - began_s
        return found

    async def _until_ended(self) -> list[str]:
        """Take a snapshot, and request the fleet's end. If the workload ends without a request, wait until the fleet has ended. Return the
        unmet conditions."""
        if not self._is_ended and not await self._snapshot():
            return ["no manual snapshot completes"]
        (self._folder / STOP_FILE).touch()
        if not self._workload.ends and not self._is_ended:
            return []
        try:
            async with asyncio.timeout(self._within_s()):
                while not self._is_ended:
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            return [f"the fleet does not end: {self._faults.status}"]
        return []

    async def _snapshot(self) -> bool:
        assert self._client is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._within_s()):
                while not self._is_ended:
                    with contextlib.suppress(SnaplineError):
                        if (await self._client.create_snapshot()).is_complete:
                            return True
                    await asyncio.sleep(LOOK_S)
        return self._is_ended

    def _within_s(self) -> float:
        return max(WITHIN_LEAST_S, self._scenario.liveness.within_ns / 1e9)

    async def _until(self, pending: Callable[[FleetStatus], list[str]], limit_s: float) -> list[str]:
        """Wait until no condition is pending, the fleet has ended without a request, or a violation was found. Return the conditions that
        are still pending after `limit_s`, otherwise an empty list."""
        assert self._client is not None
        conditions = ["the coordinator does not answer"]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while conditions and not self._is_ended and not self._judge.violations:
                    with contextlib.suppress(SnaplineError):
                        conditions = pending(await self._client.status())
                    await asyncio.sleep(POLL_S)
        return [] if self._is_ended or self._judge.violations else conditions

    # ---- background tasks ---------------------------------------------------------------------------------------

    async def _judge_loop(self) -> None:
        while True:
            await asyncio.to_thread(self._judge.look, self._executor.flipped)
            await asyncio.sleep(JUDGE_S)

    async def _wait_for_end(self) -> None:
        """Wait until the fleet has ended without a request."""
        ending = await self._faults.fleet.wait()
        self._on_note(f"the fleet has ended: {ending.outcome}")
        self._is_ended = True

    async def _observe_loop(self) -> None:
        """Repeatedly observe the leader and the other facts that the fault schedule needs."""
        words = [fault.word for fault in self._scenario.fault]
        wants_homes = any(isinstance(word, PartitionFault) and word.shape == "isolate-agent" for word in words)
        wants_files = any(isinstance(word, DiskFault) and word.mode == "bit-flip" for word in words)
        while True:
            leader = await self._faults.fleet.leader()
            homes = await self._homes() if wants_homes else {}
            files = await asyncio.to_thread(self._judge.flippable) if wants_files and not self._executor.flipped else ()
            self._observed = cm.FleetObserved(self._faults.node_of(leader), homes, files)
            await asyncio.sleep(POLL_S)

    async def _homes(self) -> dict[str, str]:
        assert self._client is not None
        with contextlib.suppress(SnaplineError):
            return {
                location.agent: location.host for location in (await self._client.locate_all()).agents if location.host
            }
        return {}
