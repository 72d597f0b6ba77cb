"""A host of the fleet that runs in a service's event loop and calls the service's member at seven points."""

from collections.abc import Callable
from typing import Protocol

from snapline.adapters.grpc.held_messages import HeldFrames
from snapline.adapters.grpc.ledger import RUN
from snapline.agent_runtime.agent import AgentType
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.host_events import ExternalSends
from snapline.agent_runtime.host.process import Host, HostOptions
from snapline.messages.host_messages import BeginEpoch, Directive, HostMessage, Plan, PlanApplied
from snapline.storage.capture.image import StateImage


class HostCallbacks(Protocol):
    """The member's interface for the host. It is called while the host handles an event, so it must not feed events to the host."""

    def going_back(self) -> None:
        """End the service's present history at once, because of a plan."""

    def when_work_ended(self, then: Callable[[], None]) -> None:
        """Call `then` when no work of an older history runs any more."""

    def on_rolled_back(self, made: object | None) -> None:
        """The plan's line is loaded: continue from this agent's state before any other event of the service; None: the agent was placed elsewhere."""

    def begin_later(self, epoch: int) -> bool:
        """Return whether the service is not ready; if so, the member begins this epoch once it is."""

    def may_record(self) -> bool:
        """Return whether the service is ready, or there is no service to record."""

    def before_capture(self, made: object) -> None:
        """Prepare the agent for its capture. Raises SnaplineError if not possible now; the epoch is refused."""

    def cut(self, epoch: int) -> None:
        """Report that the agent was captured for this epoch."""


class EmbeddedHost(Host):
    """See the module."""

    def __init__(self, options: HostOptions, agent: str, inside: HostCallbacks) -> None:
        self._agent, self._inside = agent, inside
        super().__init__(options)
        self._frames = HeldFrames(self._driver.received, self._begun, inside.may_record)
        self.received, self.opened, self.closed = self._frames.received, self._opened, self._closed

    @property
    def core(self) -> HostCore:
        """Core of the host, read-only."""
        return self._driver.core

    def begin(self, epoch: int) -> None:
        """Begin an epoch that a call's stamp has announced. The coordinator's later message about it has no effect."""
        self._feed(BeginEpoch(epoch, self._driver.core.shared.plan))

    def _begun(self) -> int:
        return self._driver.core.shared.begun_epoch

    def _opened(self, peer: str, attempt: int) -> bool:
        self._frames.drop(peer)
        return self._driver.opened(peer, attempt)

    def _closed(self, peer: str, error: str | None) -> None:
        self._frames.drop(peer)
        self._driver.closed(peer, error)

    def tell(self, told: ExternalSends) -> None:
        """Send messages to other agents at once."""
        self._feed(told)

    def _feed(self, event: ev.Heard) -> None:
        """Feed an event. Its effects, such as turns, are not part of the handler that caused it."""
        token = RUN.set(None)
        try:
            self._driver.feed(event)
        finally:
            RUN.reset(token)

    def _directive_received(self, directive: Directive) -> None:
        if isinstance(directive, BeginEpoch) and self._inside.begin_later(directive.epoch):
            return
        plan = self._driver.core.shared.plan
        if isinstance(directive, Plan) and directive.number > plan:
            self._inside.going_back()
            self._frames.drop_all()
        super()._directive_received(directive)

    def in_worker(self, function: Callable[..., object], *arguments: object, then: Callable[..., None]) -> None:
        """Run work in a thread. Loading a line, and so confirming the plan, waits until all work of the older history has ended."""
        submit = super().in_worker
        self._inside.when_work_ended(lambda: submit(function, *arguments, then=then))

    def send(self, message: HostMessage) -> None:
        if isinstance(message, PlanApplied):
            turns = self._driver.turns
            self._inside.on_rolled_back(turns.object_of(self._agent) if turns.has(self._agent) else None)
        super().send(message)

    def capturing(self, agent: str) -> None:
        super().capturing(agent)
        if agent == self._agent:
            self._inside.before_capture(self._driver.turns.object_of(agent))

    def captured(self, command: ev.CaptureState | ev.TakeCheckpoint, known: AgentType, image: StateImage) -> None:
        super().captured(command, known, image)
        if command.agent == self._agent and isinstance(command, ev.CaptureState):
            for epoch in command.epochs:
                self._inside.cut(epoch)
