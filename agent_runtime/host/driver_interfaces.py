"""Interfaces of a host driver: its environment, and its observer.

The environment provides links, a trace, clocks, threads and the coordinator's stream.

An observer follows the driver's actions, for example a simulator's judge or tracing spans. The driver calls the hooks in the thread of its
event loop. By default each hook does nothing, so an observer implements only the hooks that it needs.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from snapline.agent_runtime.agent import AgentType
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.checkpoint_writer import CheckpointWriter, Timer
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.epoch_files import LoadedLine
from snapline.agent_runtime.host.turns import RunningTurn, Turns
from snapline.channels.frame import LinkHello
from snapline.messages.host_messages import Directive, HostMessage
from snapline.storage.capture.image import StateImage
from snapline.storage.packs.checkpoint import BootClock
from snapline.storage.store.store import Store


class Transport(Protocol):
    """Links to other hosts."""

    def wake(self, peer: str) -> None:
        """Wake the link to `peer`, which has something to write."""

    def dial(self, peer: str, address: str) -> None:
        """Keep a stream to `peer` open; dial again whenever it breaks."""

    def knock(self, peer: str, address: str, hello: LinkHello) -> None:
        """Send this message to `peer` once; it asks `peer` to dial this host."""

    def undial(self, peer: str) -> None:
        """Allow no more streams to or from `peer`."""

    def close_stream(self, peer: str) -> None:
        """End the current stream; the dialling host opens another."""

    def refuse_stream(self, peer: str, reason: str, is_final: bool) -> None:
        """Inform the peer that its stream is refused, and end the stream."""


class TraceSink(Protocol):
    """Destination of the host's trace; see `host_trace.TraceWriter`."""

    def message(self, what: str, agent: str, other: str, number: int) -> None:
        """Trace a message that left ("send") or was consumed ("receive")."""

    def marker(self, what: str, host: str, other: str, epoch: int) -> None:
        """Trace a marker item that left ("send_marker") or came ("receive_marker")."""

    def checkpoint(self, agent: str, number: int, kind: str, epochs: tuple[int, ...] = ()) -> None:
        """Trace a checkpoint."""

    def plan(self, number: int, line: dict[str, int]) -> None:
        """Trace a plan: the agents here continue from these checkpoints."""

    def flush(self) -> None:
        """Flush the trace, so that all lines so far outlive this process."""


class HostEnvironment(Protocol):
    """Environment of a host: clocks, threads, the coordinator's stream, and the end of the process."""

    def now_ns(self) -> int:
        """Return the monotonic time in nanoseconds."""

    def wall_ns(self) -> int:
        """Return the wall-clock time in nanoseconds since 1970."""

    def boot_clock(self) -> BootClock | None:
        """Return a clock that continues while no host runs; None if there is none. Any thread may call this method."""

    def call_later(self, delay_s: float, function: Callable[[], None]) -> Timer:
        """Call `function` on the loop."""

    def in_worker(self, function: Callable[..., object], *arguments: object, then: Callable[..., None]) -> None:
        """Run blocking work in order, off the event loop; `then` is called with its result on the loop. An exception in the work ends the
        host."""

    def in_evaluator(self, function: Callable[[], object], then: Callable[..., None]) -> None:
        """Run blocking work in parallel to the worker, since it may take long."""

    def in_log(self, function: Callable[[], object], then: Callable[..., None]) -> None:
        """Run blocking work in parallel to the worker and the evaluator, since clients wait for it."""

    def start_turn(self, coroutine: "Coroutine[object, None, None]") -> RunningTurn:
        """Run a handler that may wait."""

    def capturing(self, agent: str) -> None:
        """Observe that an agent's image is about to be taken; an exception here counts as the encoder's error."""

    def captured(self, command: ev.CaptureState | ev.TakeCheckpoint, known: AgentType, image: StateImage) -> None:
        """Observe that an agent's image was taken for this command."""

    def part_closed(self, epoch: int) -> None:
        """Observe that no message of the epoch can arrive here any more, so that the host's part is written to the store."""

    def send(self, message: HostMessage) -> None:
        """Send a message to the coordinator; the message is lost if there is no stream."""

    def open_store(self) -> Store:
        """Open the checkpoint store. The method raises SnaplineError or OSError."""

    def fed(self) -> None:
        """Observe that the core has handled an event: turns, frames or timers may be due."""

    def finish(self, code: int) -> None:
        """End the host's run."""

    def fail(self, error: BaseException) -> None:
        """End the host's run because of an internal error."""

    def welcomed(self, heartbeat_ns: int) -> None:
        """Handle the Welcome on a stream to the coordinator, which wants heartbeats at this interval."""


RunTurn = Callable[[ev.StartTurn], ev.Event | None]
"""Run a turn; return how it ended, or None while it waits."""

Execute = Callable[[Any], None]
"""Carry out a command."""


class ObservedDriver(Protocol):
    """Interface of the driver that an observer needs."""

    core: HostCore
    turns: Turns
    checkpoints: CheckpointWriter

    def wrap_turns(self, wrap: Callable[[RunTurn], RunTurn]) -> None:
        """Wrap the function that runs turns and segments on the event loop."""


class HostObserver:
    """Base class of observers; its hooks do nothing."""

    def attached(self, driver: ObservedDriver) -> None:
        """Record the driver, and wrap its turns. The driver's constructor calls this hook once, before all other hooks."""

    def commands(self) -> Mapping[type[ev.HostOutput], Callable[[Any, Execute], None]]:
        """Return the observed kinds of command. The function for a kind is called with each command, and with the function that carries the
        command out."""
        return {}

    def turn_ended(self, event: ev.TurnEnded | ev.TurnFailed) -> ev.TurnEnded | ev.TurnFailed:
        """Observe that a waiting turn has ended; return the event for the core."""
        return event

    def checkpoint_failed(self, event: ev.CheckpointFailed) -> None:
        """Observe that no image of an agent could be taken; the core gets the event afterwards."""

    def line_loaded(self, command: ev.LoadAgents, outcome: LoadedLine | ev.LoadFailed) -> None:
        """Observe the outcome of loading a plan's agents, before they are installed."""

    def directive_received(self, directive: Directive) -> None:
        """Observe a directive of the coordinator before the driver handles it."""

    def directive_handled(self) -> None:
        """Observe that the last directive was handled."""
