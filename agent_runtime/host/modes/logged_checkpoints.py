"""Decides when agents in fleets with sender logs take checkpoints, takes them, and defers them if the store is too slow.

A checkpoint is first recorded as due, and is taken between two turns. The checkpoint policy's clock determines when a basic checkpoint is
due. The clock is queried after each change of the agent, and at the time that the clock has requested.

*Deferred* checkpoints. While too much data waits for the store, no basic checkpoints are taken. The agents continue to run. When the store
has caught up, each agent that has missed a checkpoint takes it. Initial, forced and tentative checkpoints are not deferred, and neither are
checkpoints for a freeze. If the backlog is full, the agents pause (`host/logged_agent.py`).

*Held* agents start no turn, and no message leaves their outboxes. Agents are held because of a freeze, an undecided round or a full
backlog.
"""

import heapq

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.host_state import LocalAgent
from snapline.agent_runtime.host.logged_agent import Backlog, LoggedAgent, Tentative
from snapline.agent_runtime.host.plans import HostParts


class HoldReasons:
    """Reasons why agents of one host are held.

    Attributes:
        freeze: number of the current freeze, or None.
        backlog: data in memory that has not been written to the store.
    """

    def __init__(self, parts: HostParts) -> None:
        self._shared = parts.shared
        self._outlets = parts.outlets
        self._mailboxes = parts.mailboxes
        self.freeze: int | None = None
        self.backlog = Backlog()

    def reset(self) -> None:
        """Start a plan: no agent is held, and the store is assumed to work."""
        self.freeze = None
        self.backlog = Backlog()

    def freeze_all(self, number: int) -> None:
        """Hold all agents for the freeze with this number."""
        self.freeze = number
        self._hold_all()

    def thaw(self) -> None:
        """End the freeze, and release the agents."""
        self.freeze = None
        self.release_all()

    def pause_agents(self) -> None:
        """Hold all agents because the sender logs or the writer's queue are full."""
        self.backlog.stand(is_standing=True)
        self._hold_all()

    def go_on(self) -> None:
        """Release the agents because the sender logs and the writer's queue have room again."""
        self.backlog.stand(is_standing=False)
        self.release_all()

    def _hold_all(self) -> None:
        for agent in self._shared.agents.values():
            agent.is_held = True

    @property
    def are_all_held(self) -> bool:
        """Return whether all agents are held, because of a freeze or a full backlog."""
        return self.freeze is not None or self.backlog.is_standing

    def release(self, agent: LocalAgent) -> None:
        """Release an agent, unless the agent is also held for another reason. The agent's parked messages leave before its next turn
        starts."""
        rounds = agent.logged.rounds
        agent.is_held = self.are_all_held or (rounds is not None and rounds.is_blocked)
        if not agent.is_held:
            self._outlets.unpark_all(agent)
            self._mailboxes.next_turn(agent)

    def release_all(self) -> None:
        """Release all agents that are not held for another reason."""
        for agent in list(self._shared.agents.values()):
            self.release(agent)


class Saving:
    """Decides when agents in fleets with sender logs take checkpoints, and takes them."""

    def __init__(self, parts: HostParts, holds: HoldReasons) -> None:
        self._shared = parts.shared
        self._mailboxes = parts.mailboxes
        self._failures = parts.failures
        self._holds = holds
        self._looks: list[tuple[int, str, int]] = []
        self.put_off: dict[str, None] = {}
        """Agents whose basic checkpoint has been deferred since the store became busy."""

    def reset(self) -> None:
        """Clear all deferred checkpoints because a recovery plan has ended the history of all agents on this host."""
        self._looks = []
        self.put_off = {}

    # ---- when -----------------------------------------------------------------------------------------------------

    def moved(self, agent: LocalAgent) -> None:
        """Record that the agent has changed since its last checkpoint. If a basic checkpoint is due, request it, otherwise schedule the
        next query of the clock."""
        logged = agent.logged
        logged.has_moved = True
        if logged.rule is None:
            return
        logged.clock.consumed()
        if logged.clock.is_due(self._shared.now):
            self.owe_basic(agent.id, logged)
        elif logged.timer_ns is None:
            self._look_later(agent, logged)

    def owe_basic(self, agent_id: str, logged: LoggedAgent) -> None:
        """Request a basic checkpoint that is due, or defer it if the store is busy. While it is deferred, the checkpoint is not requested,
        because a forced checkpoint would otherwise be taken as a basic one."""
        if not self._holds.backlog.is_busy:
            logged.owe("basic")
        elif agent_id not in self.put_off:
            self.put_off[agent_id] = None
            self._shared.counts.put_off += 1

    def defer_all(self) -> None:
        """Defer all requested basic checkpoints because the store is busy."""
        for agent in self._shared.agents.values():
            if agent.logged.owed == "basic":
                agent.logged.owed = ""
                self.owe_basic(agent.id, agent.logged)

    def catch_up(self) -> None:
        """Let agents take their deferred checkpoints because the store is no longer busy."""
        missed, self.put_off = self.put_off, {}
        for agent_id in missed:
            agent = self._shared.agents.get(agent_id)
            if agent is not None and agent.logged.has_moved:
                agent.logged.owe("basic")
                self._mailboxes.next_turn(agent)

    def _look_later(self, agent: LocalAgent, logged: LoggedAgent) -> None:
        due = logged.clock.due_ns
        if due is not None:
            logged.timer_ns = due
            heapq.heappush(self._looks, (due, agent.id, self._shared.plan))

    def wakeups_ns(self) -> list[int]:
        """Return the times at which the caller must call `clock_passed`."""
        return [self._looks[0][0]] if self._looks else []

    def clock_passed(self) -> None:
        """Request the basic checkpoints that have become due."""
        shared = self._shared
        while self._looks and self._looks[0][0] <= shared.now:
            due, agent_id, plan = heapq.heappop(self._looks)
            agent = shared.agents.get(agent_id)
            if agent is None or plan != shared.plan or agent.logged.timer_ns != due:
                continue
            agent.logged.timer_ns = None
            if agent.logged.clock.is_due(shared.now):
                self.owe_basic(agent.id, agent.logged)
                self._mailboxes.next_turn(agent)
            else:
                self._look_later(agent, agent.logged)

    # ---- taking ---------------------------------------------------------------------------------------------------

    def take(self, agent: LocalAgent, basis: str, *, cause: bytes | None = None, round_: int = 0) -> None:
        """Take a checkpoint of the agent's state, sequence numbers and sender log. The agent's state must not change before the command is
        executed."""
        shared, logged = self._shared, agent.logged
        number = 0 if basis == "initial" else agent.checkpoints + 1
        if logged.rule is not None and basis != "initial":
            logged.rule.checkpoint(cause)
        sent, received = agent.sent(), agent.received()
        shared.out.append(
            ev.TakeCheckpoint(
                agent.id,
                basis,
                round_,
                agent.control(shared.now, number, logged.image()),
                sent,
                received,
                changed(sent, logged.sent),
                changed(received, logged.received),
                # A tentative checkpoint gets a copy, since the log continues if the checkpoint is discarded.
                {receiver: messages[:] for receiver, messages in logged.log.items()}
                if basis == "tentative"
                else logged.log,
                logged.turns,
            )
        )
        shared.counts.checkpoints += 1
        shared.counts.forced += basis == "forced"
        if basis == "tentative":
            logged.tentative = Tentative(number, sent, received)
            return
        agent.checkpoints = number
        logged.settle(sent, received)
        logged.clock.taken(shared.now)
        logged.timer_ns = None

    def on_checkpoint_measured(self, event: ev.CheckpointMeasured) -> None:
        agent = self._shared.agents.get(event.agent)
        if agent is not None:
            agent.logged.clock.measured(event.cost_ns)

    def on_checkpoint_failed(self, event: ev.CheckpointFailed) -> None:
        """Mark the agent as failed because its state cannot be saved. The agent must go back to its last durable checkpoint, because its
        work since then can never be saved."""
        agent = self._shared.agents.get(event.agent)
        if agent is not None and agent.incarnation == event.incarnation and not agent.is_failed:
            self._failures.fail(agent, event.reason)

    def validate_rest(self, agent: LocalAgent, logged: LoggedAgent) -> None:
        """Assert that a checkpoint of this idle agent's current state is due or planned, so that a recovery line will include the state."""
        if not logged.has_moved:
            return
        assert logged.clock.has_consumed, f"{agent.id} has moved, and its clock was not told"
        is_awaited = bool(logged.owed) or logged.timer_ns is not None or agent.id in self.put_off
        assert is_awaited or logged.clock.due_ns is None, f"nobody looks at {agent.id} again"
        assert agent.is_held or not agent.is_born or not logged.owed, (
            f"{agent.id} owes a checkpoint and does not take it"
        )


def changed(numbers: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """Return the channels whose sequence numbers differ from those in `before`."""
    return {channel: number for channel, number in numbers.items() if before.get(channel) != number}


SAVE_NS = 100_000_000
"""Interval at which all agents are requested to take checkpoints while all logs together are too large. Logs that remain after a request
belong to agents in long turns."""


class AgentPause:
    """Pauses the agents while the backlog is full, and resumes them afterwards."""

    def __init__(self, parts: HostParts, holds: HoldReasons, saving: Saving, *, is_autonomous: bool) -> None:
        self._shared = parts.shared
        self._mailboxes = parts.mailboxes
        self._holds = holds
        self._saving = saving
        self._is_autonomous = is_autonomous

    def note_logs(self) -> None:
        """Let all agents take checkpoints when the sender logs together are too large, or pause the agents if the store is too slow for
        that."""
        backlog = self._holds.backlog
        if self._is_autonomous and not backlog.is_busy:
            if backlog.save_ns is None:
                backlog.save_at(self._shared.now)
        elif not backlog.is_standing and self._must_pause():
            self._pause_agents()

    def on_store_status_changed(self, event: ev.StoreStatusChanged) -> None:
        """Defer basic checkpoints while the store is busy, and let agents take the deferred checkpoints once it is not."""
        backlog = self._holds.backlog
        backlog.watched(is_busy=event.is_busy, is_full=event.is_full, problem=event.problem)
        if backlog.is_standing != self._must_pause():
            self._go_on() if backlog.is_standing else self._pause_agents()
        if event.is_busy:
            self._saving.defer_all()
        else:
            self._saving.catch_up()

    def look(self) -> None:
        """Resume paused agents if the sender logs have become small enough."""
        if self._holds.backlog.is_standing and not self._must_pause():
            self._go_on()

    def _must_pause(self) -> bool:
        return self._holds.backlog.must_pause(is_autonomous=self._is_autonomous)

    def _pause_agents(self) -> None:
        """Pause all agents because the sender logs or the writer's queue are full. Paused agents start no turns and send no messages."""
        self._holds.pause_agents()
        problem = self._holds.backlog.problem
        reason = f": {problem}" if problem else ""
        self._shared.note("warning", f"no more can wait in memory for the store: the agents are paused{reason}")

    def _go_on(self) -> None:
        self._shared.note("info", "there is room for logs and checkpoints again: the agents go on")
        self._holds.go_on()

    def wakeups_ns(self) -> list[int]:
        """Return the times at which the caller must call `clock_passed`."""
        save_ns = self._holds.backlog.save_ns
        return [] if save_ns is None else [save_ns]

    def clock_passed(self) -> None:
        """Let all agents with logged messages take checkpoints if this is due because the logs together are too large."""
        backlog = self._holds.backlog
        if backlog.save_ns is None or backlog.save_ns > self._shared.now:
            return
        for agent in list(self._shared.agents.values()):
            if agent.logged.log_bytes:
                self._saving.owe_basic(agent.id, agent.logged)
                self._mailboxes.next_turn(agent)
        backlog.save_at(self._shared.now + SAVE_NS if backlog.has_too_many_logs else None)
