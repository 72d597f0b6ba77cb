"""A run's recording, filled from what hosts trace: the same lines that `snapline run --trace` writes, in one global order."""

from typing import TYPE_CHECKING

from snapline.recovery.trace import CheckpointTaken, Kind, MessageReceived, MessageSent, Recovery
from snapline.sim.world.recording import Recording

if TYPE_CHECKING:
    from snapline.sim.world.base import WorldBase
    from snapline.sim.world.host import SimHost


class HostTrace:
    """One host's part; see `agent_runtime/carrier.Trace`."""

    def __init__(self, shared: "SharedTrace", run: "SimHost") -> None:
        self._shared = shared
        self._run = run

    def message(self, what: str, agent: str, other: str, number: int) -> None:
        if self._is_current():
            self._shared.message(what, agent, other, number)

    def checkpoint(self, agent: str, number: int, kind: str, epochs: tuple[int, ...] = ()) -> None:
        if self._is_current():
            self._shared.checkpoint(agent, number, kind)

    def plan(self, number: int, line: dict[str, int]) -> None:
        """The whole fleet's line is traced when the plan is committed."""

    def flush(self) -> None:
        """Nothing waits."""

    def _is_current(self) -> bool:
        """What a host does under an older plan has been undone."""
        return self._run.carrier.core.plan == self._shared.plan


class SharedTrace:
    """All hosts' traces.

    Attributes:
        plan: the newest one committed.
    """

    def __init__(self, world: "WorldBase", recording: Recording) -> None:
        self.plan = 0
        self._world = world
        self._recording = recording
        self._names: dict[tuple[str, str, int], str] = {}
        recording.agents = list(world.agents)

    def of(self, run: "SimHost") -> HostTrace:
        """For one run of a host."""
        return HostTrace(self, run)

    def message(self, what: str, agent: str, other: str, number: int) -> None:
        now_ns = self._world.kernel.now_ns
        if what == "send":
            name = self._names[agent, other, number] = f"{agent}/{self.plan}>{other}:{number}"
            self._recording.add(now_ns, MessageSent(agent, name, other))
            return
        received = self._names.get((other, agent, number))
        if received is not None:
            self._recording.add(now_ns, MessageReceived(agent, received))

    def checkpoint(self, agent: str, number: int, kind: str) -> None:
        known: Kind = "forced" if kind == "forced" else "basic"
        self._recording.add(self._world.kernel.now_ns, CheckpointTaken(agent, number, known))

    def on_plan(self, number: int, line_epoch: int) -> None:
        """A plan is committed: everything past its line is undone."""
        self.plan = number
        if number == 1:
            for agent, record in self._world.log.canonical.living_agents():
                self._recording.placed[agent] = record.host
            return
        span = self._recording.epochs.get(line_epoch)
        cut = span.cut if span is not None else {}
        agents = dict.fromkeys([*self._recording.agents, *cut])
        self._recording.add(self._world.kernel.now_ns, Recovery({agent: cut.get(agent, 0) for agent in agents}))
