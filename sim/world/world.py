"""A fleet in virtual time: production cores, carriers, agents, leader and store, in a simulated network on a simulated disk.

What decides is the product. What surrounds it is here: hosts that die and come back (`host.py`), links and streams that break
(`network.py`, `links.py`, `session.py`), replicas of the coordinator (`seat.py`) on a model of their log (`replicated_log.py`), a
disk that forgets what was not synced (`disk.py`). The world carries faults out (`executor.py`) and tells the judge
(`oracles/judge.py`) what it sees; it judges nothing itself.

Limits, which the user documentation states: Raft is simulated at its log's interface; blocking store calls happen at one
instant, and are interrupted at failpoints only; all hosts share one store, as in production.
"""

import errno

from snapline.agent_runtime.encoding import encode_body
from snapline.coordinator.state.fleet_records import RUNNING
from snapline.protocols.names import is_autonomous
from snapline.protocols.policy import Every
from snapline.sim.choices import Choices
from snapline.sim.scenario import Scenario, joining_hosts
from snapline.sim.workloads.workload import Workload
from snapline.sim.world.actions import WorldFaults
from snapline.sim.world.base import START_OF_TIME_NS
from snapline.sim.world.kernel import Journal
from snapline.sim.world.recording import Recording
from snapline.sim.world.replicated_log import ReplicatedLog
from snapline.sim.world.seat import Seat

REST_NS = 1_000_000_000
"""Longer than a message takes on any network that is drawn."""


class World(WorldFaults):
    """One run.

    Attributes:
        finished_ns: when the workload had been done, once it was seen to be; 0 before.
    """

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
        super().__init__(scenario, seed, choices, workload, recording=recording, journal=journal)
        self.finished_ns = 0
        self._stuck: dict[str, tuple[str, int, int]] | None = None
        self._init_notes()
        self._init_faults()
        self.seats = {node: Seat(self, node) for node in self.coordinators}
        self.log = ReplicatedLog(
            self.coordinators,
            at=self.call_at,
            now=lambda: self.kernel.now_ns,
            choices=choices,
            delay_ns=self._raft_delay_ns,
            on_standing=self._on_standing,
            on_committed=self._on_committed,
        )
        for node in self.coordinators:
            self.log.start(node)
        late = joining_hosts(scenario)
        for host in self.hosts:
            if host not in late:
                self.start_host(host)

    # ---- how it stands --------------------------------------------------------------------------------------------

    def states(self) -> dict[str, object]:
        """The live state of every agent that lives, by the plan in force."""
        found: dict[str, object] = {}
        for agent, record in self.log.canonical.living_agents():
            run = self.run_of(record.host)
            if run is not None and agent in run.carrier.core.agents and run.carrier.turns.has(agent):
                found[agent] = run.carrier.turns.object_of(agent).state
        return found

    def images(self) -> dict[str, bytes]:
        """The same, encoded."""
        return {agent: encode_body(state) for agent, state in self.states().items()}

    def is_idle(self) -> bool:
        """No host has anything to do: no turn, no message that has arrived, no timer."""
        plan = self.log.canonical.plan
        for run in self.runs.values():
            core = run.carrier.core
            if not run.is_alive:
                continue
            if run.carrier.queue or (not core.is_loaded and plan is not None and run.name in plan.hosts):
                return False
            for agent in core.agents.values():
                if agent.mailbox or agent.parked or agent.current is not None or agent.spawns:
                    return False
                if agent.deferred or agent.timers:
                    return False
        return True

    def _is_on_the_way(self) -> bool:
        """Whether a message has left its sender, and has not been consumed by a receiver that is there."""
        cores = [run.carrier.core for run in self.runs.values() if run.is_alive]
        consumed = {
            (inlet.sender, agent.id): inlet.consumed
            for core in cores
            for agent in core.agents.values()
            for inlet in agent.inlets.values()
        }
        there = dict.fromkeys(agent for core in cores for agent in core.agents)
        return any(
            outlet.receiver in there and outlet.number != consumed.get((agent.id, outlet.receiver), 0)
            for core in cores
            for agent in core.agents.values()
            for outlet in agent.outlets.values()
        )

    def pending(self, since_ns: int) -> list[str]:
        """What has to happen yet, once everything is whole (since `since_ns`)."""
        state = self.log.canonical
        missing = []
        if state.image.outcome:
            return [] if state.image.outcome == "stopped" else [f"the fleet has failed: {state.image.ending}"]
        if state.phase != RUNNING:
            missing.append(f"the fleet is {state.phase}")
        has_completed = any(at >= since_ns for at in self.completed_ns.values())
        is_at_rest = self._is_done()
        saves_at_rest = not is_autonomous(self.fleet.protocol)  # an agent that does nothing has nothing to save
        if self.fleet.period_ns and not has_completed and (saves_at_rest or not is_at_rest):
            missing.append("no epoch has completed")
        elif is_at_rest:
            missing += self._beyond_line()
        old = [
            epoch for epoch in state.open_epochs() if state.image.epochs[epoch].begun_ns < START_OF_TIME_NS + since_ns
        ]
        if old:
            missing.append(f"epochs {old} are open")
        if unanswered := self.unanswered(since_ns):
            missing.append(f"nobody has answered questions {unanswered} for a snapshot")
        if self.workload.ends and not missing and not self._is_done():
            missing.append("the workload is not done")
        if owed := self.judge.stop_owed():
            missing.append(owed)
        self._stuck = self._still_stuck() if not missing else None
        return missing + [f"agent {agent} {why[0]}, for ever" for agent, why in (self._stuck or {}).items()]

    def _still_stuck(self) -> dict[str, tuple[str, int, int]]:
        """Agents that cannot take a turn, and could not when nothing else was missing any more: agent → how, and how far."""
        now = {}
        for agent, record in self.log.canonical.living_agents():
            run = self.run_of(record.host)
            found = run.carrier.core.agents.get(agent) if run is not None else None
            if found is None:
                now[agent] = ("is nowhere", 0, 0)
            elif not found.is_born:
                now[agent] = ("is not born", 0, 0)
            elif found.is_held:
                now[agent] = ("is held", self.judge.turns_of(agent), found.checkpoints)
        before = now if self._stuck is None else self._stuck
        return {agent: why for agent, why in now.items() if before.get(agent) == why}

    def _beyond_line(self) -> list[str]:
        """A fleet at rest that saves by the clock has saved all that it did; after so many messages, or by hand, it may not."""
        if not any(isinstance(trigger, Every) for trigger in self.fleet.triggers):
            return []
        behind = self.judge.beyond_line()
        text = (
            f"all is at rest, and no complete epoch holds what {len(behind)} agents did last: {', '.join(behind[:3])}"
        )
        return [text] if behind else []

    def _is_done(self) -> bool:
        if not self.is_idle() or self._is_on_the_way():
            return False
        living = [agent for agent, _ in self.log.canonical.living_agents()]
        states = self.states()
        done = len(states) == len(living) and self.workload.is_done(states)
        if done and not self.finished_ns:
            self.finished_ns = self.last_turn_ns
        return done

    def is_at_rest(self) -> bool:
        """Nothing has happened for a while, and nothing will; or the fleet has ended."""
        return bool(self.log.canonical.image.outcome) or (
            self.log.canonical.phase == RUNNING and self.is_idle() and self.kernel.now_ns > self.last_turn_ns + REST_NS
        )

    def work_owed(self) -> str:
        """What a fleet of which nobody knows when it is done has to do yet; "" if that is enough."""
        turns = self.scenario.run.turns
        if self.workload.ends or self.turns >= turns or self.is_at_rest():
            return ""
        return f"{self.turns} of {turns} turns were taken"

    def validate(self) -> None:
        """Invariants of all cores."""
        for run in self.runs.values():
            if run.is_alive:
                run.carrier.core.validate()
        self.log.canonical.validate()

    def read_back(self) -> None:
        """Every epoch that is kept, but the newest, which plans and oracles have read."""
        for epoch in self.log.canonical.complete_epochs()[:-1]:
            if not self._is_flipped(epoch):
                self.judge.on_read_back(self.kernel.now_ns, epoch, *self._read_epoch(epoch))

    def probe_at_end(self) -> None:
        """What can only be counted."""
        probes, refused = self.judge.probes, self.disk.refused
        probes.sometimes(errno.ENOSPC in refused, "disk full")
        probes.sometimes(errno.EIO in refused, "disk failed")
        probes.sometimes(
            any(fault.kind == "coordinator" and "quorum" in fault.text for fault in self.faults), "quorum lost"
        )
