"""That agents here want an epoch before its time: for a client that waits, or for outputs. The coordinator is told once for each epoch."""

from snapline.agent_runtime.host.host_state import HostState
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.host.modes.mode import HostMode
from snapline.messages import host_messages as msg


class EpochRequest:
    """One for all agents here."""

    _mode: HostMode

    def __init__(self, desk: HostState) -> None:
        self._desk = desk
        self._is_said = False

    def wire(self, mode: HostMode) -> None:
        """The core's word on who is above."""
        self._mode = mode

    def say(self, agent: LocalAgent) -> None:
        """An epoch is to hold what the agent has done."""
        self._mode.awaited(agent)
        if not self._is_said:
            self._is_said = True
            self._desk.out.append(msg.WantEpoch(self._desk.plan))

    def reset(self) -> None:
        """An epoch has ended, or a plan all history here: who still waits says so again."""
        self._is_said = False

    def welcomed(self) -> None:
        """Say again what the coordinator may not have heard."""
        if self._is_said:
            self._desk.out.append(msg.WantEpoch(self._desk.plan))
