"""Recording of a run from the hosts' traces: the same events as of `snapline run --trace`, in one global order."""

from collections.abc import Callable, Iterable, Mapping

from snapline.recovery.trace import CheckpointTaken, Kind, MessageReceived, MessageSent, Recovery
from snapline.sim.world.kernel import Kernel
from snapline.sim.world.recording import Recording


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
