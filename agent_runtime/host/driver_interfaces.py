"""Interfaces that a host driver uses to access its environment, its transport and its observer.

The environment provides clocks, threads, the store, and the stream to the coordinator.

An observer follows the actions of the driver, for example to check a simulation or to record tracing spans. The driver calls the observer's
hooks in the thread of its event loop. By default, each hook does nothing, so an observer implements only the hooks that it needs.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from snapline.agent_runtime.agent import AgentType
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.checkpoint_writer import Timer
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.epoch_files import LoadedLine
from snapline.agent_runtime.host.turns import RunningTurn, Turns
from snapline.channels.frame import LinkHello
from snapline.messages.host_messages import Directive, HostMessage
from snapline.storage.capture.image import StateImage
from snapline.storage.packs.checkpoint import BootClock
from snapline.storage.store.store import Store


class Transport(Protocol):
    """The streams to other hosts, over which links run."""

    def wake(self, peer: str) -> None:
        """Wake the task that writes to the stream to `peer`, because the core has something to send."""

    def dial(self, peer: str, address: str) -> None:
        """Keep a stream to `peer` open, and redial whenever the stream breaks."""

    def knock(self, peer: str, address: str, hello: LinkHello) -> None:
        """Send `hello` to `peer` once, to ask `peer` to dial this host."""

    def undial(self, peer: str) -> None:
        """Close the streams to and from `peer`, and open no more of them."""

    def close_stream(self, peer: str) -> None:
        """Close the current stream to `peer`. The host that dialed the stream then opens a new one."""

    def refuse_stream(self, peer: str, reason: str, is_final: bool) -> None:
        """Inform the peer that its stream is refused, and close the stream."""


class TraceSink(Protocol):
    """Destination of the host's trace, such as `host_trace.TraceWriter`."""

    def message(self, what: str, agent: str, other: str, number: int) -> None:
        """Trace a message that was sent ("send") or consumed ("receive")."""

    def marker(self, what: str, host: str, other: str, epoch: int) -> None:
        """Trace a marker item that was sent ("send_marker") or received ("receive_marker")."""

    def checkpoint(self, agent: str, number: int, kind: str, epochs: tuple[int, ...] = ()) -> None:
        """Trace a checkpoint of an agent."""

    def plan(self, number: int, line: dict[str, int]) -> None:
        """Trace a plan, including the numbers of the checkpoints from which this host's agents continue."""

    def flush(self) -> None:
        """Flush the trace, so that no lines are lost when this process ends."""


class HostEnvironment(Protocol):
    """The environment that a host driver requires: clocks, threads, the coordinator's stream, and a way to end the process."""

    def now_ns(self) -> int:
        """Return the monotonic time in nanoseconds."""

    def wall_ns(self) -> int:
        """Return the wall-clock time in nanoseconds since 1970."""

    def boot_clock(self) -> BootClock | None:
        """Return a reading of a clock that continues to run while the host is down, or None if the machine has no such clock. This method
        may be called in any thread."""

    def dependencies(self) -> dict[str, str]:
        """Return the report of what this process runs on (`snapline.messages.dependencies`)."""

    def call_later(self, delay_s: float, function: Callable[[], None]) -> Timer:
        """Call `function` on the event loop after `delay_s` seconds."""

    def in_worker(self, function: Callable[..., object], *arguments: object, then: Callable[..., None]) -> None:
        """Run blocking work in a worker thread. Pieces of work run one after another. When the work is done, `then` is called on the event
        loop with the result. If the work raises an exception, the host ends."""

    def in_evaluator(self, function: Callable[[], object], then: Callable[..., None]) -> None:
        """Run blocking work that may take long, in parallel to the worker thread."""

    def in_log(self, function: Callable[[], object], then: Callable[..., None]) -> None:
        """Run blocking work for which clients wait, in parallel to the other worker threads."""

    def start_turn(self, coroutine: "Coroutine[object, None, None]") -> RunningTurn:
        """Start a task for a handler or step that may wait."""

    def capturing(self, agent: str) -> None:
        """Observe that the state of an agent is about to be captured. An exception raised by this hook is treated as an encoding error."""

    def captured(self, command: ev.CaptureState | ev.TakeCheckpoint, known: AgentType, image: StateImage) -> None:
        """Observe that the state of an agent has been captured for this command."""

    def committed(self, agent: ev.CommittedAgent, state: bytes) -> None:
        """Observe that the state of an agent has been captured for a commit."""

    def part_closed(self, epoch: int) -> None:
        """Observe that no further message of the epoch can arrive, so that this host's part of the epoch is about to be written to the
        store."""

    def send(self, message: HostMessage) -> None:
        """Send a message to the coordinator. If no stream is open, the message is lost."""

    def open_store(self) -> Store:
        """Return the checkpoint store. Raise SnaplineError or OSError if the store cannot be opened."""

    def fed(self) -> None:
        """Observe that the core has handled an event, after which turns or timers may be due."""

    def finish(self, code: int) -> None:
        """Stop the host with an exit code."""

    def fail(self, error: BaseException) -> None:
        """Stop the host because of an internal error."""

    def directive_received(self, directive: Directive) -> None:
        """Observe a directive from the coordinator before the driver handles it."""

    def welcomed(self, heartbeat_ns: int) -> None:
        """Handle the coordinator's Welcome on a stream. The coordinator requests heartbeats at this interval in nanoseconds."""


RunTurn = Callable[[ev.StartTurn], ev.Event | None]
"""Function that runs a turn, and returns the event for its end, or None if it continues in a task."""

Execute = Callable[[Any], None]
"""Function that executes a command."""


class ObservedDriver(Protocol):
    """Interface that an observer requires from the driver."""

    core: HostCore
    turns: Turns

    def wrap_turns(self, wrap: Callable[[RunTurn], RunTurn]) -> None:
        """Wrap the function that runs turns and segments on the event loop."""


class HostObserver:
    """A base class for observers whose hooks do nothing."""

    def attached(self, driver: ObservedDriver) -> None:
        """Receive access to the driver. The driver's constructor calls this hook once, before all other hooks."""

    def commands(self) -> Mapping[type[ev.HostOutput], Callable[[Any, Execute], None]]:
        """Return a map from command types to functions. A command is observed if the map contains its type. The function is called with
        each command of its type and with the function that executes the command."""
        return {}

    def turn_ended(self, event: ev.TurnEnded | ev.TurnFailed) -> ev.TurnEnded | ev.TurnFailed:
        """Observe the end of a turn that ran in a task. Return the event to pass to the core."""
        return event

    def checkpoint_failed(self, event: ev.CheckpointFailed) -> None:
        """Observe that a checkpoint of an agent failed. After this call, the core receives the event."""

    def line_loaded(self, command: ev.LoadAgents, outcome: LoadedLine | ev.LoadFailed) -> None:
        """Observe whether a plan's agents could be loaded, before they are installed."""

    def directive_handled(self) -> None:
        """Observe that the driver has handled the directive that it received last."""
