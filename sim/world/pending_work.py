"""State of a simulated fleet: its remaining work, whether it is idle, and the agents that cannot continue."""

from collections.abc import Mapping

from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.coordinator.state.fleet_records import RUNNING
from snapline.protocols.names import is_autonomous
from snapline.protocols.policy import Every
from snapline.sim.world.hosts import Hosts
from snapline.sim.world.kernel import START_OF_TIME_NS
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.world_observer import WorldObserver
from snapline.sim.world.world_state import WorldState

REST_NS = 1_000_000_000
"""Time without a turn after which a fleet is idle: longer than a message takes on any drawn network."""


class PendingWork:
    """Read-only view of the fleet's remaining work.

    Attributes:
        finished_ns: time at which the workload was done; 0 until that is known.
    """

    def __init__(self, shared: WorldState, log: SimulatedLog, hosts: Hosts, notes: WorldObserver) -> None:
        self.finished_ns = 0
        self._shared = shared
        self._workload = shared.workload
        self._log = log
        self._hosts = hosts
        self._notes = notes
        self._stuck: dict[str, tuple[str, int, int]] | None = None

    def states(self) -> dict[str, object]:
        """Return the state of every live agent under the present plan."""
        live_states: dict[str, object] = {}
        for agent, record in self._log.canonical.living_agents():
            run = self._hosts.run_of(record.host)
            if run is not None and agent in run.driver.core.agents and run.driver.turns.has(agent):
                live_states[agent] = run.driver.turns.object_of(agent).state
        return live_states

    def resting(self) -> list[str]:
        """Return the agents between two turns, under the present plan."""
        plan = self._log.canonical.plan_number
        cores = [run.driver.core for run in self._hosts.alive() if run.driver.core.plan == plan]
        agents = [agent for core in cores if core.is_loaded for agent in core.agents.values()]
        return [agent.id for agent in agents if agent.current is None and agent.turn is None and not agent.is_failed]

    def blocked(self) -> dict[str, str]:
        """Return agent → problem, for agents in a durable turn that cannot continue."""
        agents = [agent for run in self._hosts.alive() for agent in run.driver.core.agents.values()]
        return {agent.id: agent.turn.problem for agent in agents if agent.turn is not None and agent.turn.problem}

    def heard(self) -> list[str]:
        """Return the agents that have received all their messages once the fleet is idle; none if the fleet has ended."""
        state = self._log.canonical
        return [] if state.image.outcome else [agent for agent, _ in state.living_agents()]

    def is_idle(self) -> bool:
        """Return whether no host has anything to do: no turn, no arrived message, no timer."""
        plan = self._log.canonical.plan
        for run in self._hosts.alive():
            core = run.driver.core
            if run.driver.queue or (not core.is_loaded and plan is not None and run.name in plan.hosts):
                return False
            for agent in core.agents.values():
                if agent.mailbox or agent.parked or agent.current is not None or agent.spawns:
                    return False
                if agent.deferred or agent.timers or agent.stash or _is_going_on(agent):
                    return False
        return True

    def _is_on_the_way(self) -> bool:
        """Return whether a live receiver has not yet consumed a message that has left its sender."""
        cores = [run.driver.core for run in self._hosts.alive()]
        receivers = {name: agent for core in cores for name, agent in core.agents.items()}
        return any(_is_awaited(agent, receivers) for core in cores for agent in core.agents.values())

    def pending(self, since_ns: int) -> list[str]:
        """Return the events still missing after the end of all faults at `since_ns`."""
        state = self._log.canonical
        missing = []
        if state.image.outcome:
            return [] if state.image.outcome == "stopped" else [f"the fleet has failed: {state.image.ending}"]
        if state.phase != RUNNING:
            missing.append(f"the fleet is {state.phase}")
        fleet = self._workload.fleet
        has_completed = any(at >= since_ns for at in self._notes.log.completed_ns.values())
        is_at_rest = self._is_done()
        saves_at_rest = not is_autonomous(fleet.protocol)  # an idle agent has nothing to save
        if fleet.period_ns and not has_completed and (saves_at_rest or not is_at_rest):
            missing.append("no epoch has completed")
        elif is_at_rest:
            missing += self._beyond_line()
        old = [
            epoch for epoch in state.open_epochs() if state.image.epochs[epoch].begun_ns < START_OF_TIME_NS + since_ns
        ]
        if old:
            missing.append(f"epochs {old} are open")
        if unanswered := self._notes.questions.unanswered(since_ns):
            missing.append(f"nobody has answered questions {unanswered} for a snapshot")
        if self._workload.ends and not missing and not self._is_done():
            missing.append("the workload is not done")
        if stop_reason := self._shared.judge.required_stop_reason():
            missing.append(stop_reason)
        self._stuck = self._still_stuck() if not missing else None
        return missing + [f"agent {agent} {why[0]}, for ever" for agent, why in (self._stuck or {}).items()]

    def _still_stuck(self) -> dict[str, tuple[str, int, int]]:
        """Return agent → (problem, turns, checkpoints), for agents that cannot take a turn since nothing else was missing."""
        now = {}
        for agent, record in self._log.canonical.living_agents():
            run = self._hosts.run_of(record.host)
            local_agent = run.driver.core.agents.get(agent) if run is not None else None
            if local_agent is None:
                now[agent] = ("is nowhere", 0, 0)
            elif not local_agent.is_born:
                now[agent] = ("is not born", 0, 0)
            elif local_agent.is_held:
                now[agent] = ("is held", self._shared.judge.turns_of(agent), local_agent.checkpoints)
        before = now if self._stuck is None else self._stuck
        return {agent: why for agent, why in now.items() if before.get(agent) == why}

    def _beyond_line(self) -> list[str]:
        """Report agents with unsaved turns in an idle fleet with periodic checkpoints; other triggers may leave turns unsaved."""
        if not any(isinstance(trigger, Every) for trigger in self._workload.fleet.triggers):
            return []
        behind = self._shared.judge.beyond_line()
        text = (
            f"all is at rest, and no complete epoch holds what {len(behind)} agents did last: {', '.join(behind[:3])}"
        )
        return [text] if behind else []

    def _is_done(self) -> bool:
        if not self.is_idle() or self._is_on_the_way():
            return False
        living = [agent for agent, _ in self._log.canonical.living_agents()]
        states = self.states()
        done = len(states) == len(living) and self._workload.is_done(states)
        if done and not self.finished_ns:
            self.finished_ns = self._shared.figures.last_turn_ns
        return done

    def is_at_rest(self) -> bool:
        """Return whether nothing has happened for a while and nothing will, or the fleet has ended."""
        if self._log.canonical.image.outcome:
            return True
        rests = self._shared.kernel.now_ns > self._shared.figures.last_turn_ns + REST_NS
        return self._log.canonical.phase == RUNNING and self.is_idle() and rests

    def ignored_rollback_requests(self, since_ns: int) -> list[str]:
        """Return the agents whose rollback request from before `since_ns` was neither granted nor refused, though the fleet runs."""
        asked = self._shared.judge.books.rollbacks.asked
        agents = []
        for run in self._hosts.alive() if self._log.canonical.phase == RUNNING else ():
            rollbacks = run.driver.core.turn_ends.rollbacks
            waiting = [request for agent, request in rollbacks.wanted.items() if agent not in rollbacks.refused]
            agents += [x.agent for x in waiting if asked.get((x.agent, x.incarnation), since_ns) < since_ns]
        return agents

    def work_owed(self) -> str:
        """Return the turns still missing in a fleet without a known end; "" if it took enough."""
        turns, taken = self._shared.scenario.run.turns, self._shared.figures.turns
        if self._workload.ends or taken >= turns or self.is_at_rest():
            return ""
        return f"{taken} of {turns} turns were taken"


def _is_awaited(sender: LocalAgent, there: Mapping[str, LocalAgent]) -> bool:
    """Return whether a live receiver has yet to consume a message of `sender` that has left."""
    for name, outlet in sender.outlets.items():
        receiver = there.get(name)
        if receiver is not None:
            inlet = receiver.inlets.get(sender.id)
            if outlet.number != (0 if inlet is None else inlet.consumed):
                return True
    return False


def _is_going_on(agent: LocalAgent) -> bool:
    """Return whether a durable turn of the agent will continue by itself."""
    turn = agent.turn
    is_unfinished = turn is not None and (
        turn.waits is None or not turn.is_live or turn.waits.kind in ("step", "effect")
    )
    return is_unfinished and turn is not None and not turn.problem
