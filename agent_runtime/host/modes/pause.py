"""Reaction to a store that does not keep up: checkpoints are deferred, and a full backlog pauses the agents (`backlog.py`)."""

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.modes.hold_reasons import HoldReasons
from snapline.agent_runtime.host.modes.saving import Saving
from snapline.agent_runtime.host.plans import HostParts

SAVE_NS = 100_000_000
"""Time between two rounds of checkpoints of all agents whose logs are too large: the remaining logs belong to agents in long turns."""


class AgentPause:
    """See the module."""

    def __init__(self, parts: HostParts, holds: HoldReasons, saving: Saving, *, is_autonomous: bool) -> None:
        self._shared = parts.shared
        self._mailboxes = parts.mailboxes
        self._holds = holds
        self._saving = saving
        self._is_autonomous = is_autonomous

    def note_logs(self) -> None:
        """Let all agents take checkpoints, or pause: all logs together are too large."""
        backlog = self._holds.backlog
        if self._is_autonomous and not backlog.is_busy:
            if backlog.save_ns is None:
                backlog.save_at(self._shared.now)
        elif not backlog.is_standing and self._must_pause():
            self._pause_agents()

    def on_store_status_changed(self, event: ev.StoreStatusChanged) -> None:
        """Defer basic checkpoints while the store is busy; once it is free, let agents take the skipped ones."""
        backlog = self._holds.backlog
        backlog.watched(is_busy=event.is_busy, is_full=event.is_full, problem=event.problem)
        if backlog.is_standing != self._must_pause():
            self._go_on() if backlog.is_standing else self._pause_agents()
        if event.is_busy:
            self._saving.defer_all()
        else:
            self._saving.catch_up()

    def look(self) -> None:
        """Let the agents go on, if the logs have become small enough."""
        if self._holds.backlog.is_standing and not self._must_pause():
            self._go_on()

    def _must_pause(self) -> bool:
        return self._holds.backlog.must_pause(is_autonomous=self._is_autonomous)

    def _pause_agents(self) -> None:
        """Pause: no agent takes a turn and nothing leaves one. The logs or the writer's queue have no room."""
        self._holds.pause_agents()
        problem = self._holds.backlog.problem
        reason = f": {problem}" if problem else ""
        self._shared.note("warning", f"no more can wait in memory for the store: the agents stand still{reason}")

    def _go_on(self) -> None:
        self._shared.note("info", "there is room for logs and checkpoints again: the agents go on")
        self._holds.go_on()

    def wakeups_ns(self) -> list[int]:
        """Return when `clock_passed` is wanted."""
        save_ns = self._holds.backlog.save_ns
        return [] if save_ns is None else [save_ns]

    def clock_passed(self) -> None:
        """Let all agents take checkpoints, if it is time: each log is small, but all logs together are too large."""
        backlog = self._holds.backlog
        if backlog.save_ns is None or backlog.save_ns > self._shared.now:
            return
        for agent in list(self._shared.agents.values()):
            if agent.logged.log_bytes:
                self._saving.owe_basic(agent.id, agent.logged)
                self._mailboxes.next_turn(agent)
        backlog.save_at(self._shared.now + SAVE_NS if backlog.has_too_many_logs else None)
