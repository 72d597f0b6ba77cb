"""Request for an early epoch, for a waiting client or for outputs; sent once for each epoch."""

from snapline.agent_runtime.host.host_state import HostState
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.host.modes.mode import HostMode
from snapline.messages import host_messages as msg


class EpochRequest:
    """Epoch request of all agents here."""

    _mode: HostMode

    def __init__(self, shared: HostState) -> None:
        self._shared = shared
        self._take_resolution = False

    def wire(self, mode: HostMode) -> None:
        """Connect the parts above."""
        self._mode = mode

    def say(self, agent: LocalAgent) -> None:
        """Request an epoch that holds the agent's work so far."""
        self._mode.awaited(agent)
        if not self._take_resolution:
            self._take_resolution = True
            self._shared.out.append(msg.WantEpoch(self._shared.plan))

    def reset(self) -> None:
        """Forget the request: an epoch has ended, or a plan all history here, and agents that still wait repeat it."""
        self._take_resolution = False

    def welcomed(self) -> None:
        """Repeat what the coordinator may not have received."""
        if self._take_resolution:
            self._shared.out.append(msg.WantEpoch(self._shared.plan))
