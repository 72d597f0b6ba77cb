"""The freeze before a recovery: the coordinator wants a cut of live states.

During a freeze no turn starts and nothing leaves an outbox. Each agent that has changed since its last checkpoint takes one as soon as its turn ends.
If a turn runs for more than a second, or an image cannot be taken, the agent counts as failed.
"""

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.host.modes.logged_checkpoints import HoldReasons, Saving
from snapline.agent_runtime.host.plans import HostParts
from snapline.messages import host_messages as msg

FREEZE_NS = 1_000_000_000
"""Longest time that a freeze waits for running turns: it delays the recovery, and a longer turn is lost."""


class HostFreeze:
    """The freeze that this host is in, if any (`HoldReasons.freeze`).

    Attributes:
        unfrozen: agents whose turn began before the freeze and still runs.
    """

    def __init__(self, parts: HostParts, holds: HoldReasons, saving: Saving) -> None:
        self._shared = parts.shared
        self._holds = holds
        self._saving = saving
        self.unfrozen: dict[str, None] = {}
        self._report_ns: int | None = None

    def reset(self) -> None:
        """Forget the freeze, if there is one."""
        self.unfrozen = {}
        self._report_ns = None

    def on_freeze_agents(self, event: msg.FreezeAgents) -> None:
        """Freeze all agents. A host that has not applied the plan, or came back since, has no changed agents."""
        shared = self._shared
        if event.plan != shared.plan or not shared.is_loaded:
            shared.out.append(ev.ReportFrozen(event.plan, event.number, ()))
            return
        self._report_ns = shared.now + FREEZE_NS
        self.unfrozen = {agent.id: None for agent in shared.agents.values() if not agent.is_failed}
        self._holds.freeze_all(event.number)
        for agent in list(shared.agents.values()):
            if agent.current is None and not agent.is_failed:
                self._freeze(agent)
        self._report_soon()

    def settle(self, agent: LocalAgent) -> bool:
        """Freeze an agent between two turns, if the freeze waits for it; return whether it did."""
        if agent.id not in self.unfrozen:
            return False
        self._freeze(agent)
        self._report_soon()
        return True

    def failed(self, agent: LocalAgent) -> None:
        """Stop waiting for the turn of a failed agent."""
        if self._holds.freeze is not None:
            self.unfrozen.pop(agent.id, None)
            self._report_soon()

    def _freeze(self, agent: LocalAgent) -> None:
        """Make the live state of an agent between two turns its newest checkpoint."""
        if agent.logged.has_moved and agent.is_born:
            self._saving.take(agent, "basic")
        self.unfrozen.pop(agent.id, None)

    def _report_soon(self) -> None:
        """Report, if all agents are frozen, once the requested images have been taken; failed ones are named."""
        if not self.unfrozen:
            self._report_ns = self._shared.now

    def wakeups_ns(self) -> list[int]:
        """Return when `clock_passed` is wanted."""
        return [] if self._report_ns is None else [self._report_ns]

    def clock_passed(self) -> None:
        """Report, if the freeze has waited long enough."""
        if self._report_ns is not None and self._report_ns <= self._shared.now:
            self._report()

    def _report(self) -> None:
        assert self._holds.freeze is not None
        failed = {agent.id: None for agent in self._shared.agents.values() if agent.is_failed}
        running = tuple({**self.unfrozen, **failed})
        self._shared.out.append(ev.ReportFrozen(self._shared.plan, self._holds.freeze, running))
        self.reset()

    def on_thaw_agents(self, event: msg.ThawAgents) -> None:
        """End the freeze. Number 0 ends any freeze: the coordinator sends it to every host that comes back and is not to be frozen."""
        freeze = self._holds.freeze
        if event.plan != self._shared.plan or freeze is None or event.number not in (0, freeze):
            return
        self.reset()
        self._holds.thaw()
