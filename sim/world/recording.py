"""Recording of a run's events with their times, for diagrams, reports and exports. A run is recorded only on request.

Events are those of a trace (`recovery/trace.py`), each with its virtual time `t_ns`. A recording also contains epochs, hosts and
orphans, which traces lack. The recording is made from the hosts' traces (`SharedTrace`): the same events as with `snapline run
--trace`, in one global order.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from snapline.recovery.trace import CheckpointTaken, Event, Kind, MessageReceived, MessageSent, Recovery
from snapline.sim.world.kernel import Kernel

EVENTS_MAX = 2_000_000
"""Maximum number of recorded events: about half a gigabyte. Larger traces are not useful."""


class TimedEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a trace. Messages have the name "sender/plan>receiver:number", which is unique in a run."""

    t_ns: int
    event: Event | Recovery


class EpochSpan(msgspec.Struct):
    """One epoch, from its start to its outcome.

    `cut` holds the checkpoint number of each agent, for a complete epoch. `plan` is the plan under which the epoch began.
    """

    epoch: int
    plan: int
    begun_ns: int
    ended_ns: int = 0
    outcome: Literal["open", "complete", "aborted"] = "open"
    cut: dict[str, int] = {}


class HostSpan(msgspec.Struct):
    """One run of a host. `until_ns` is 0 while the host is alive."""

    host: str
    from_ns: int
    until_ns: int = 0


class Orphan(msgspec.Struct, frozen=True):
    """An orphan message that a violation reports, with the message's name in the events."""

    message: str
    text: str


class Recording:
    """Recording of one run; the world adds the events.

    Attributes:
        agents: initial agents, in order.
        placed: host of each agent at the start.
        events: events in order.
        is_cut: whether the run had more than `EVENTS_MAX` events.
    """

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.placed: dict[str, str] = {}
        self.events: list[TimedEvent] = []
        self.is_cut = False
        self.epochs: dict[int, EpochSpan] = {}
        self.hosts: list[HostSpan] = []
        self.orphans: list[Orphan] = []

    def add(self, t_ns: int, event: Event | Recovery) -> None:
        """Record one event."""
        if len(self.events) < EVENTS_MAX:
            self.events.append(TimedEvent(t_ns, event))
        else:
            self.is_cut = True


class HostTrace:
    """Trace of one host; implements `TraceSink` of `agent_runtime/host`."""

    def __init__(self, shared: "SharedTrace", plan: Callable[[], int]) -> None:
        self._shared = shared
        self._plan = plan

    def message(self, what: str, agent: str, other: str, number: int) -> None:
        if self._is_current():
            self._shared.message(what, agent, other, number)

    def marker(self, what: str, host: str, other: str, epoch: int) -> None:
        """Do nothing, because a recording has no markers."""

    def checkpoint(self, agent: str, number: int, kind: str, epochs: tuple[int, ...] = ()) -> None:
        if self._is_current():
            self._shared.checkpoint(agent, number, kind)

    def plan(self, number: int, line: dict[str, int]) -> None:
        """Do nothing, because `SharedTrace.on_plan` records the line of the whole fleet."""

    def flush(self) -> None:
        """Do nothing, because nothing is buffered."""

    def _is_current(self) -> bool:
        """Return whether the host works under the newest plan. Work under older plans was rolled back."""
        return self._plan() == self._shared.plan


class SharedTrace:
    """Traces of all hosts.

    Attributes:
        plan: number of the newest committed plan.
    """

    def __init__(self, kernel: Kernel, recording: Recording, agents: Iterable[str]) -> None:
        self.plan = 0
        self._kernel = kernel
        self._recording = recording
        self._names: dict[tuple[str, str, int], str] = {}
        recording.agents = list(agents)

    def of(self, plan: Callable[[], int]) -> HostTrace:
        """Return the trace of one run of a host; `plan` returns the host's current plan."""
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

    def checkpoint(self, agent: str, number: int, kind: str) -> None:
        known: Kind = "forced" if kind == "forced" else "basic"
        self._recording.add(self._kernel.now_ns, CheckpointTaken(agent, number, known))

    def on_plan(self, number: int, line_epoch: int, placed: Mapping[str, str]) -> None:
        """Record a committed plan, which rolls back everything after its line. `placed` maps agents to hosts."""
        self.plan = number
        if number == 1:
            self._recording.placed.update(placed)
            return
        span = self._recording.epochs.get(line_epoch)
        cut = span.cut if span is not None else {}
        agents = dict.fromkeys([*self._recording.agents, *cut])
        self._recording.add(self._kernel.now_ns, Recovery({agent: cut.get(agent, 0) for agent in agents}))
