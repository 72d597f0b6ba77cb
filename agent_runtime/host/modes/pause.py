"""A store that does not keep up: checkpoints are put off, and what then has no room in memory makes the agents stand still
(`backlog.py`)."""

from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.modes.hold_reasons import AgentHolds
from snapline.agent_runtime.host.modes.saving import Saving
from snapline.agent_runtime.host.parts import HostParts

SAVE_NS = 100_000_000
"""Between two times that all agents save themselves because their logs are too many: what is left is of agents in long turns."""


class StandingStill:
    """See the module."""

    def __init__(self, parts: HostParts, holds: AgentHolds, saving: Saving, *, is_autonomous: bool) -> None:
        self._desk = parts.desk
        self._mailboxes = parts.mailboxes
        self._holds = holds
        self._saving = saving
        self._is_autonomous = is_autonomous

    def note_logs(self) -> None:
        """All logs together are too many."""
        backlog = self._holds.backlog
        if self._is_autonomous and not backlog.is_busy:
            if backlog.save_ns is None:
                backlog.save_at(self._desk.now)
        elif not backlog.is_standing and self._must_stand():
            self._stand_still()

    def on_store_watched(self, event: ev.StoreWatched) -> None:
        """A busy store: what is owed is put off. A free one: what agents have missed they take."""
        backlog = self._holds.backlog
        backlog.watched(is_busy=event.is_busy, is_full=event.is_full, problem=event.problem)
        if backlog.is_standing != self._must_stand():
            self._go_on() if backlog.is_standing else self._stand_still()
        if event.is_busy:
            self._saving.put_off_all()
        else:
            self._saving.catch_up()

    def look(self) -> None:
        """Logs have become fewer, perhaps."""
        if self._holds.backlog.is_standing and not self._must_stand():
            self._go_on()

    def _must_stand(self) -> bool:
        return self._holds.backlog.must_stand(is_autonomous=self._is_autonomous)

    def _stand_still(self) -> None:
        """No agent takes a turn and nothing leaves one: neither logs nor the writer's queue have room."""
        self._holds.stand_still()
        problem = self._holds.backlog.problem
        why = f": {problem}" if problem else ""
        self._desk.note("warning", f"no more can wait in memory for the store: the agents stand still{why}")

    def _go_on(self) -> None:
        self._desk.note("info", "there is room for logs and checkpoints again: the agents go on")
        self._holds.go_on()

    def wakeups_ns(self) -> list[int]:
        """When `clock_passed` is wanted."""
        save_ns = self._holds.backlog.save_ns
        return [] if save_ns is None else [save_ns]

    def clock_passed(self) -> None:
        """The time at which all agents save themselves: each log is small, and all together are too many."""
        backlog = self._holds.backlog
        if backlog.save_ns is None or backlog.save_ns > self._desk.now:
            return
        for agent in list(self._desk.agents.values()):
            if agent.logged.log_bytes:
                self._saving.owe_basic(agent.id, agent.logged)
                self._mailboxes.next_turn(agent)
        backlog.save_at(self._desk.now + SAVE_NS if backlog.has_too_many_logs else None)
