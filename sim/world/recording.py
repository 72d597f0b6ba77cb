"""Recording of a run for diagrams, reports and exports: its events with their times. Made only on request.

Events are those of a trace (`recovery/trace.py`), each with its virtual time `t_ns`. A recording also has epochs, hosts and
orphans, which traces do not have. It is made from the hosts' traces (`SharedTrace`): the same events as of `snapline run --trace`,
in one global order.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from snapline.recovery.trace import CheckpointTaken, Event, Kind, MessageReceived, MessageSent, Recovery
from snapline.sim.world.kernel import Kernel

EVENTS_MAX = 2_000_000
"""Largest number of recorded events: about half a gigabyte; larger traces are not useful."""


class TimedEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a trace. Messages have the name "sender/plan>receiver:number", unique in a run."""

    t_ns: int
    event: Event | Recovery


class EpochSpan(msgspec.Struct):
    """One epoch, from its begin to its outcome.

    `cut`: agent → number of its checkpoint, for a complete epoch. `plan`: plan under which the epoch began.
    """

    epoch: int
    plan: int
    begun_ns: int
    ended_ns: int = 0
    outcome: Literal["open", "complete", "aborted"] = "open"
    cut: dict[str, int] = {}


class HostSpan(msgspec.Struct):
    """One run of a host; `until_ns` is 0 while it lives."""

    host: str
    from_ns: int
    until_ns: int = 0


class Orphan(msgspec.Struct, frozen=True):
    """A message of a violation, with its name in the events."""

    message: str
    text: str


class Recording:
    """Recording of one run, filled by the world.

    Attributes:
        agents: initial agents, in order. placed: agent → its host at the start.
        events: events in order. is_cut: the run had more than `EVENTS_MAX` events.
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
    """One host's trace; see `TraceSink` in `agent_runtime/host`."""

    def __init__(self, shared: "SharedTrace", plan: Callable[[], int]) -> None:
        self._shared = shared
        self._plan = plan

    def message(self, what: str, agent: str, other: str, number: int) -> None:
        if self._is_current():
            self._shared.message(what, agent, other, number)

    def marker(self, what: str, host: str, other: str, epoch: int) -> None:
        """Do nothing: a recording has no markers."""

    def checkpoint(self, agent: str, number: int, kind: str, epochs: tuple[int, ...] = ()) -> None:
        if self._is_current():
            self._shared.checkpoint(agent, number, kind)

    def plan(self, number: int, line: dict[str, int]) -> None:
        """Do nothing: `SharedTrace.on_plan` records the line of the whole fleet."""

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def _is_current(self) -> bool:
        """Return whether the host works under the newest plan; work under older plans was rolled back."""
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
        """Return the trace of one run of a host; `plan`: its current plan."""
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
        """Record a committed plan, which rolls back everything past its line. `placed`: agent → host."""
        self.plan = number
        if number == 1:
            self._recording.placed.update(placed)
            return
        span = self._recording.epochs.get(line_epoch)
        cut = span.cut if span is not None else {}
        agents = dict.fromkeys([*self._recording.agents, *cut])
        self._recording.add(self._kernel.now_ns, Recovery({agent: cut.get(agent, 0) for agent in agents}))
