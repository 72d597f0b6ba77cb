"""A fleet in virtual time: production cores, drivers, agents, leader and store on a simulated network and disk.

All decisions are made by the product's code. This package simulates its environment, in parts that share one state
(`world_state.py`):

- hosts that crash and restart (`hosts.py`, `host.py`),
- links and streams that break (`network.py`, `links.py`, `session.py`),
- replicas of the coordinator (`simulated_replica.py`) on a model of their log (`replicated_log.py`),
- a disk that loses unsynced data (`disk.py`).

`executor.py` executes faults. `world_observer.py` reports the actions of hosts, coordinators and log to the judge; the parts judge nothing.

Limits, also in the user documentation: Raft is simulated at the interface of its log. Blocking store calls happen at one
instant, and are interrupted only at failpoints. All hosts share one store, as in production.
"""

import errno
from collections.abc import Callable

from msgspec.structs import replace

from snapline.coordinator.leader.events import MovesRequested
from snapline.coordinator.state.fleet_records import OperationResult
from snapline.coordinator.state.operations import CommitPlan
from snapline.messages.status import Standing
from snapline.sim.choices import Choices
from snapline.sim.oracles.line_oracles import Frozen
from snapline.sim.oracles.outputs import flat
from snapline.sim.scenario import Scenario, joining_hosts, reads_outputs
from snapline.sim.workloads.workload import Workload
from snapline.sim.world.clients import Clients
from snapline.sim.world.executor import SimExecutor
from snapline.sim.world.hosts import Hosts
from snapline.sim.world.kernel import Journal
from snapline.sim.world.moves_operator import MovesOperator
from snapline.sim.world.operators import SimOperator
from snapline.sim.world.pending_work import PendingWork
from snapline.sim.world.reader import SimReader
from snapline.sim.world.recording import Recording
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.restore_operator import RestoreOperator
from snapline.sim.world.simulated_replica import SimLeader, SimulatedReplica
from snapline.sim.world.world_observer import WorldObserver
from snapline.sim.world.world_state import WorldState


class World:
    """One run: its parts, put together."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        choices: Choices,
        workload: Workload,
        *,
        recording: Recording | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.shared = shared = WorldState(scenario, seed, choices, workload, recording=recording, journal=journal)
        self.log = SimulatedLog(
            shared.coordinators,
            at=shared.call_at,
            now=lambda: shared.kernel.now_ns,
            choices=choices,
            delay_ns=self._raft_delay_ns,
            on_standing=self._on_standing,
            on_committed=self._on_committed,
        )
        self._raft_messages = 0
        self._release_awaited: int | None = None
        self.notes = WorldObserver(shared, self.log, self._frozen)
        self.notes.log.on_running.append(self._ask_soon)
        restorer = RestoreOperator(shared, self.log, self._leader, self._was_rollback_refused, self._is_calling)
        self.notes.on_restore_answered = restorer.on_answered
        self.notes.log.on_running.append(restorer.start)
        mover = MovesOperator(shared, self.log, self._tell_leader)
        self.notes.on_moves_answered = mover.on_answered
        self.notes.log.on_running.append(mover.start)
        self.replicas = {node: SimulatedReplica(shared, self.log, self.notes, node) for node in shared.coordinators}
        self.hosts = Hosts(shared, self.notes, self.replicas)
        self.executor = SimExecutor(shared, self.log, self.replicas, self.hosts, self.notes)
        self.clients = Clients(shared, self.log, self.hosts)
        self.operator = SimOperator(shared, self.log, self.hosts)
        self.reader = SimReader(shared, shared.stores.reader, lambda: bool(self.notes.store.flipped))
        self.pending_work = PendingWork(shared, self.log, self.hosts, self.notes)
        self._start()

    def _start(self) -> None:
        for node in self.shared.coordinators:
            self.log.start(node)
        joining = joining_hosts(self.shared.scenario)
        for host in self.shared.hosts:
            if host not in joining:
                self.hosts.start(host)
        self.clients.start()
        self.operator.start()
        self.reader.start()

    # ---- the log --------------------------------------------------------------------------------------------------

    def _raft_delay_ns(self, one: str, other: str) -> int | None:
        self._raft_messages += 1
        return self.shared.network.path_ns(one, other, ("raft", one, other, self._raft_messages))

    def _on_standing(self, node: str, standing: Standing) -> None:
        self.notes.log.on_standing(node, standing)
        self.replicas[node].on_standing(standing)

    def _on_committed(self, index: int, node: str, entry: bytes, result: OperationResult) -> None:
        self.notes.log.on_committed(index, node, entry, result)

    def _frozen(self, request: tuple[str, int], kind: CommitPlan) -> list[Frozen]:
        """Return the hosts that froze in time for a plan, or would have."""
        leaders = [replica.leader for replica in self.replicas.values() if replica.leader is not None]
        return [
            self._awaited(each) if each.is_awaited else each
            for leader in leaders
            for each in leader.freezes.in_time(request, kind.hosts)
        ]

    def _awaited(self, frozen: Frozen) -> Frozen:
        """Return a freeze of the host's present run that it could still have answered: its agents outside turns are frozen."""
        run = self.hosts.run_of(frozen.host)
        if run is None or run.driver.core.plan != frozen.plan:
            return frozen
        core = run.driver.core
        frozen_agents = [x.id for x in core.agents.values() if x.current is None and x.is_born and not x.is_failed]
        self.shared.judge.on_frozen(frozen.host, core.start, frozen.plan, frozen.number, frozen_agents)
        return replace(frozen, start=core.start)

    # ---- users of the fleet ---------------------------------------------------------------------------------------

    def when_running(self, call: Callable[[], None]) -> None:
        """Schedule a call for when the fleet begins to work."""
        self.notes.log.on_running.insert(0, call)

    def _ask_soon(self) -> None:
        self.shared.call_at(self.shared.kernel.now_ns, self._ask_for_snapshots)

    def _ask_for_snapshots(self) -> None:
        """Request a snapshot from the leader now, and periodically from then on."""
        every_ns = self.shared.scenario.run.snapshots_every_ns
        if not every_ns:
            return
        leader = self._leader()
        if leader is not None:
            self.notes.questions.put(leader)
        self.shared.call_at(self.shared.kernel.now_ns + every_ns, self._ask_for_snapshots)

    def _leader(self) -> SimLeader | None:
        return next((replica.leader for replica in self.replicas.values() if replica.leader is not None), None)

    def _tell_leader(self, wanted: MovesRequested) -> None:
        leader = self._leader()
        if leader is not None:
            leader.tell(wanted)

    def _was_rollback_refused(self) -> bool:
        """Return whether an agent's rollback request was refused."""
        return any(run.driver.core.turn_ends.rollbacks.refused for run in self.hosts.alive())

    def _is_calling(self) -> bool:
        """Return whether an effect is being called."""
        agents = [agent for run in self.hosts.alive() for agent in run.driver.core.agents.values()]
        return any(agent.effects is not None and agent.effects.is_called for agent in agents)

    def complete_fleet(self) -> None:
        """Start all hosts of a fleet that has never begun: it needs each host once, even one that left permanently."""
        if self.log.canonical.plan is None:
            for host in self.shared.hosts[: self.shared.scenario.fleet.hosts]:
                self.hosts.start(host)

    def missing_releases(self) -> list[str]:
        """Return missing releases, up to the epoch that was the newest complete one at the first call.

        With frequent epochs there is always a newer one.
        """
        if self._release_awaited is None:
            self._release_awaited = self.log.canonical.newest_complete()
        return [] if self._has_released(self._release_awaited) else ["outputs are not released"]

    def is_released(self) -> bool:
        """Return whether all complete epochs are released, so that they are judged at the end of the run."""
        return self._has_released(self.log.canonical.newest_complete())

    def _has_released(self, epoch: int) -> bool:
        is_over = bool(self.log.canonical.image.outcome)
        leaders = [replica.leader for replica in self.replicas.values() if replica.leader is not None]
        return is_over or any(leader.has_released(epoch) for leader in leaders)

    # ---- checks ---------------------------------------------------------------------------------------------------

    def check_outputs(self) -> None:
        """Check that released files still exist, and that the reader has exactly their outputs."""
        if self.notes.store.flipped or not reads_outputs(self.shared.scenario):
            return
        oracle = self.shared.judge.books.outputs
        oracle.check_files(self.shared.kernel.now_ns, self.notes.store.releases())
        had, released = flat(self.reader.read()), flat(oracle.had)
        if had != released:
            text = f"a reader has had {len(had)} outputs, and {len(released)} are released and not taken back"
            self.shared.say("reader", "R2", text)

    def validate(self) -> None:
        """Check the invariants of all cores."""
        for run in self.hosts.alive():
            run.driver.core.validate()
        self.clients.validate()
        self.log.canonical.validate()

    def probe_at_end(self) -> None:
        """Hit probes that depend on counts of the whole run."""
        probes, refused = self.shared.judge.probes, self.shared.stores.disk.refused
        probes.sometimes(errno.ENOSPC in refused, "disk full")
        probes.sometimes(errno.EIO in refused, "disk failed")
        faults = self.executor.faults
        probes.sometimes(any(each.kind == "coordinator" and "quorum" in each.text for each in faults), "quorum lost")
