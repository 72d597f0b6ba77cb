"""Recording of a run's events with their times, for diagrams, reports and exports. A run is recorded only on request.

A recording contains the events of a trace (`recovery/trace.py`), each with the virtual time `t_ns`. Unlike a trace, a recording also
contains epochs, hosts and orphans. The events come from the traces of the hosts (`SharedTrace`). `snapline run --trace` writes the same
events, but not in one global order.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from snapline.recovery.trace import CheckpointTaken, Event, Kind, MessageReceived, MessageSent, Recovery
from snapline.sim.world.kernel import Kernel

EVENTS_MAX = 2_000_000
"""Maximum number of recorded events, which take about half a gigabyte. Larger recordings are not useful."""


class TimedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event of a trace, with its virtual time. In the event, a message has the name "sender/plan>receiver:number", which is unique
    within a run."""

    t_ns: int
    event: Event | Recovery


class TimedMarker(msgspec.Struct, frozen=True, gc=False):
    """A marker that `host` has sent to `other`, or received from it, with the virtual time."""

    t_ns: int
    what: Literal["send_marker", "receive_marker"]
    host: str
    other: str
    epoch: int


class EpochSpan(msgspec.Struct):
    """An epoch of a recorded run, from its start to its outcome.

    If the epoch is complete, `cut` contains each agent's checkpoint number. `plan` is the recovery plan under which the epoch began.
    """

    epoch: int
    plan: int
    begun_ns: int
    ended_ns: int = 0
    outcome: Literal["open", "complete", "aborted"] = "open"
    cut: dict[str, int] = {}


class HostSpan(msgspec.Struct):
    """A run of a host, from its start to its end. `until_ns` is 0 as long as the host is alive."""

    host: str
    from_ns: int
    until_ns: int = 0


class Orphan(msgspec.Struct, frozen=True):
    """An orphan message that a reported violation mentions. `message` is the name of the message in the recorded events."""

    message: str
    text: str


class Recording:
    """Recording of one run. The simulated world adds events to the recording while it runs.

    Attributes:
        placed: the host on which each agent starts.
        markers: the markers between hosts. Plans that replace a host's work do not remove them.
        is_cut: whether later events are missing because the run had more than `EVENTS_MAX` events.
    """

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.placed: dict[str, str] = {}
        self.events: list[TimedEvent] = []
        self.markers: list[TimedMarker] = []
        self.is_cut = False
        self.epochs: dict[int, EpochSpan] = {}
        self.hosts: list[HostSpan] = []
        self.orphans: list[Orphan] = []

    def add(self, t_ns: int, event: Event | Recovery) -> None:
        """Record an event, unless the recording is full."""
        if len(self.events) < EVENTS_MAX:
            self.events.append(TimedEvent(t_ns, event))
        else:
            self.is_cut = True


class HostTrace:
    """Trace of one host. Implements `TraceSink` from `agent_runtime/host`."""

    def __init__(self, shared: "SharedTrace", plan: Callable[[], int]) -> None:
        self._shared = shared
        self._plan = plan

    def message(self, what: str, agent: str, other: str, number: int) -> None:
        if self._is_current():
            self._shared.message(what, agent, other, number)

    def marker(self, what: str, host: str, other: str, epoch: int) -> None:
        self._shared.marker(what, host, other, epoch)

    def checkpoint(self, agent: str, number: int, kind: str, epochs: tuple[int, ...] = ()) -> None:
        if self._is_current():
            self._shared.checkpoint(agent, number, kind)

    def plan(self, number: int, line: dict[str, int]) -> None:
        """Do nothing, because `SharedTrace.on_plan` already records the recovery line of the whole fleet."""

    def flush(self) -> None:
        """Do nothing, because a recording buffers nothing."""

    def _is_current(self) -> bool:
        """Return whether the host follows the newest recovery plan. All work under older recovery plans has been rolled back."""
        return self._plan() == self._shared.plan


class SharedTrace:
    """Traces of all hosts, combined into one recording.

    Attributes:
        plan: number of the newest committed recovery plan.
    """

    def __init__(self, kernel: Kernel, recording: Recording, agents: Iterable[str]) -> None:
        self.plan = 0
        self._kernel = kernel
        self._recording = recording
        self._names: dict[tuple[str, str, int], str] = {}
        recording.agents = list(agents)

    def of(self, plan: Callable[[], int]) -> HostTrace:
        """Return the trace for one run of a host. `plan` returns the number of the recovery plan that the host currently follows."""
        return HostTrace(self, plan)

    def message(self, what: str, agent: str, other: str, number: int) -> None:
        now_ns = self._kernel.now_ns
        if what == "send":
            name = self._names[agent, other, number] = f"{agent}/{self.plan}>{other}:{number}"
            self._recording.add(now_ns, MessageSent(agent, name, other))
            return
        received = self._names.get((other, agent, number))
        if received is not None:
            self._recording.add(now_ns, MessageReceived(agent, received))

    def marker(self, what: str, host: str, other: str, epoch: int) -> None:
        if len(self._recording.markers) < EVENTS_MAX:
            kind: Literal["send_marker", "receive_marker"] = (
                "send_marker" if what == "send_marker" else "receive_marker"
            )
            self._recording.markers.append(TimedMarker(self._kernel.now_ns, kind, host, other, epoch))

    def checkpoint(self, agent: str, number: int, kind: str) -> None:
        known: Kind = "forced" if kind == "forced" else "basic"
        self._recording.add(self._kernel.now_ns, CheckpointTaken(agent, number, known))

    def on_plan(self, number: int, line_epoch: int, placed: Mapping[str, str]) -> None:
        """Record a committed plan. A committed plan rolls the fleet back to the plan's recovery line. `placed` maps each agent to its
        host."""
        self.plan = number
        if number == 1:
            self._recording.placed.update(placed)
            return
        span = self._recording.epochs.get(line_epoch)
        cut = span.cut if span is not None else {}
        agents = dict.fromkeys([*self._recording.agents, *cut])
        self._recording.add(self._kernel.now_ns, Recovery({agent: cut.get(agent, 0) for agent in agents}))
