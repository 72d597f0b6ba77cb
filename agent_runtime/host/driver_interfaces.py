"""Interfaces that a host driver uses: its environment, its transport and its observer.

The environment provides clocks, threads, the store and the coordinator's stream.

An observer follows the driver's actions, for example for the simulator's judge or for tracing spans. The driver calls the observer's hooks
in the thread of its event loop. By default a hook does nothing, so an observer implements only the hooks that it needs.
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
    """Streams to other hosts, over which links run."""

    def wake(self, peer: str) -> None:
        """Wake the writer of the stream to `peer`, since the core has something to write."""

    def dial(self, peer: str, address: str) -> None:
        """Keep a stream to `peer` open, and redial whenever it breaks."""

    def knock(self, peer: str, address: str, hello: LinkHello) -> None:
        """Send `hello` to `peer` once, to ask `peer` to dial this host."""

    def undial(self, peer: str) -> None:
        """Allow no more streams to or from `peer`."""

    def close_stream(self, peer: str) -> None:
        """End the current stream. The dialling host then opens another stream."""

    def refuse_stream(self, peer: str, reason: str, is_final: bool) -> None:
        """Tell the peer that its stream is refused, and end the stream."""


class TraceSink(Protocol):
    """Destination of the host's trace, such as `host_trace.TraceWriter`."""

    def message(self, what: str, agent: str, other: str, number: int) -> None:
        """Trace a message that left ("send") or was consumed ("receive")."""

    def marker(self, what: str, host: str, other: str, epoch: int) -> None:
        """Trace a marker item that was sent ("send_marker") or received ("receive_marker")."""

    def checkpoint(self, agent: str, number: int, kind: str, epochs: tuple[int, ...] = ()) -> None:
        """Trace a checkpoint that was taken."""

    def plan(self, number: int, line: dict[str, int]) -> None:
        """Trace a plan, with the numbers of the checkpoints from which this host's agents continue."""

    def flush(self) -> None:
        """Flush the trace, so that all lines so far survive the end of this process."""


class HostEnvironment(Protocol):
    """Environment that a host driver requires: clocks, threads, the coordinator's stream, and the end of the process."""

    def now_ns(self) -> int:
        """Return the monotonic time in nanoseconds."""

    def wall_ns(self) -> int:
        """Return the wall-clock time in nanoseconds since 1970."""

    def boot_clock(self) -> BootClock | None:
        """Return a reading of a clock that continues while no host runs, or None if the machine has no such clock. Any thread may call
        this."""

    def call_later(self, delay_s: float, function: Callable[[], None]) -> Timer:
        """Call `function` on the event loop after `delay_s`."""

    def in_worker(self, function: Callable[..., object], *arguments: object, then: Callable[..., None]) -> None:
        """Run blocking work in a worker thread, one piece after the other. `then` is called with the result on the event loop. An exception
        in the work ends the host."""

    def in_evaluator(self, function: Callable[[], object], then: Callable[..., None]) -> None:
        """Run blocking work that may take long, in parallel to the worker."""

    def in_log(self, function: Callable[[], object], then: Callable[..., None]) -> None:
        """Run blocking work for which clients wait, in parallel to the worker and the evaluator."""

    def start_turn(self, coroutine: "Coroutine[object, None, None]") -> RunningTurn:
        """Start a task for a handler or step that may wait."""

    def capturing(self, agent: str) -> None:
        """Observe that an agent's image is about to be taken. An exception raised here counts as an error of the encoder."""

    def captured(self, command: ev.CaptureState | ev.TakeCheckpoint, known: AgentType, image: StateImage) -> None:
        """Observe that an agent's image has been taken for this command."""

    def part_closed(self, epoch: int) -> None:
        """Observe that no message of the epoch can arrive any more, so that this host's part is about to be written to the store."""

    def send(self, message: HostMessage) -> None:
        """Send a message to the coordinator. If there is no stream, the message is lost."""

    def open_store(self) -> Store:
        """Return the checkpoint store. Raise SnaplineError or OSError if it cannot be opened."""

    def fed(self) -> None:
        """Observe that the core has handled an event, so that turns or timers may be due."""

    def finish(self, code: int) -> None:
        """End the host's run with an exit code."""

    def fail(self, error: BaseException) -> None:
        """End the host's run because of an internal error."""

    def directive_received(self, directive: Directive) -> None:
        """Observe a directive from the coordinator before the driver handles it."""

    def welcomed(self, heartbeat_ns: int) -> None:
        """Handle the Welcome on a stream to the coordinator, which requests heartbeats at this interval."""


RunTurn = Callable[[ev.StartTurn], ev.Event | None]
"""Function that runs a turn, and returns the event for its end, or None if it continues in a task."""

Execute = Callable[[Any], None]
"""Function that executes a command."""


class ObservedDriver(Protocol):
    """Interface that an observer requires from the driver."""

    core: HostCore
    turns: Turns
    checkpoints: CheckpointWriter

    def wrap_turns(self, wrap: Callable[[RunTurn], RunTurn]) -> None:
        """Wrap the function that runs turns and segments on the event loop."""


class HostObserver:
    """Base class of observers, whose hooks do nothing."""

    def attached(self, driver: ObservedDriver) -> None:
        """Get access to the driver. The driver's constructor calls this hook once, before all other hooks."""

    def commands(self) -> Mapping[type[ev.HostOutput], Callable[[Any, Execute], None]]:
        """Return a mapping from the command types to observe to functions. Such a function is called with each command of its type, and
        with the function that executes the command."""
        return {}

    def turn_ended(self, event: ev.TurnEnded | ev.TurnFailed) -> ev.TurnEnded | ev.TurnFailed:
        """Observe the end of a turn that ran in a task, and return the event to pass to the core."""
        return event

    def checkpoint_failed(self, event: ev.CheckpointFailed) -> None:
        """Observe that an agent's checkpoint could not be taken. The core gets the event afterwards."""

    def line_loaded(self, command: ev.LoadAgents, outcome: LoadedLine | ev.LoadFailed) -> None:
        """Observe the outcome of loading a plan's agents, before the agents are installed."""

    def directive_received(self, directive: Directive) -> None:
        """Observe a directive from the coordinator before the driver handles it."""

    def directive_handled(self) -> None:
        """Observe that the driver has handled the last directive."""
