"""Destinations of a host's trace: its file, if it has one, and memory while a viewer asks."""

import math
from collections.abc import Callable, Iterable

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.environment import HostEnvironment, TraceSink
from snapline.agent_runtime.host.host_events import TracingRequested
from snapline.agent_runtime.host.recent_trace import LOOK_S, RecentLines
from snapline.messages.client_requests import RecentTrace, TraceWanted

MARKERS = ("send_marker", "receive_marker")


class Tracing:
    """Tracing of one host. Without a viewer and a file, the core traces nothing and `is_on` is False."""

    def __init__(
        self,
        environment: HostEnvironment,
        core: HostCore,
        feed: Callable[[ev.Event], None],
        file: TraceSink | None,
        file_every: int,
    ) -> None:
        """`feed` sends events to the core; `file_every`: of each channel, the file has every N-th message."""
        self._environment = environment
        self._core = core
        self._feed = feed
        self._file = file
        self._file_every = file_every if file is not None else 0
        self._recent: RecentLines | None = None
        self._recent_every = 0
        self._until_ns = self._looks = 0
        self.is_on = file is not None

    def carry(self, command: ev.Trace) -> None:
        """Write a line that the core has traced."""
        if command.what == "checkpoint":
            self.checkpoint(command.agent, command.number, command.other)
        elif command.what in MARKERS:
            for sink in self._sinks():
                sink.marker(command.what, command.agent, command.other, command.number)
        else:
            self._message(command)

    def _message(self, command: ev.Trace) -> None:
        recent, file, number = self._recent, self._file, command.number
        if recent is not None and number % self._recent_every == 0:
            recent.message(command.what, command.agent, command.other, number)
        if file is not None and number % self._file_every == 0:
            file.message(command.what, command.agent, command.other, number)

    def checkpoint(self, agent: str, number: int, kind: str, epochs: tuple[int, ...] = ()) -> None:
        """Write the line of a checkpoint that was taken."""
        for sink in self._sinks():
            sink.checkpoint(agent, number, kind, epochs)

    def plan(self, number: int, line: dict[str, int]) -> None:
        """Write the line of a plan: the agents here go on from these checkpoints."""
        for sink in self._sinks():
            sink.plan(number, line)

    def flush(self) -> None:
        """Flush the file, if there is one: what was traced so far outlives this process."""
        if self._file is not None:
            self._file.flush()

    def _sinks(self) -> Iterable[TraceSink]:
        return [sink for sink in (self._file, self._recent) if sink is not None]

    # ---- viewers ----------------------------------------------------------------------------------------------------

    def recent(self, wanted: TraceWanted) -> Callable[[], RecentTrace]:
        """Serve a viewer: return a function that makes the answer, in any thread, with the events since the cursor."""
        self._until_ns = self._environment.now_ns() + round(LOOK_S * 1e9)
        if self._recent is None:
            self._looks += 1
            run = f"{self._core.start}-{self._looks}"
            self._recent = RecentLines(self._core.shared.host, run, self._environment.wall_ns, plan=self._core.plan)
            self._environment.call_later(LOOK_S, self._stop_viewing)
        if wanted.every != self._recent_every:
            self._recent_every = wanted.every
            self._tell()
        return self._recent.since(wanted)

    def _stop_viewing(self) -> None:
        left_ns = self._until_ns - self._environment.now_ns()
        if left_ns > 0:
            self._environment.call_later(left_ns / 1e9, self._stop_viewing)
            return
        self._recent, self._recent_every = None, 0
        self._tell()

    def _tell(self) -> None:
        """Make the core trace what file or viewer need."""
        self.is_on = self._file is not None or self._recent is not None
        self._feed(TracingRequested(math.gcd(self._file_every, self._recent_every)))
