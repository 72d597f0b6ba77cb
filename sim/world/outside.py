"""Time, randomness and outside calls for the handlers of one simulated host."""

import copy
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from snapline.agent_runtime.heartbeats import Heartbeats
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.sim.oracles.ground_truth_records import StepOutcome
from snapline.sim.world.host_run import HostRun
from snapline.sim.world.steps import Steps, limited
from snapline.sim.world.waiting import Wait

SECOND_NS = 1_000_000_000


class SimOutside(TurnEnvironment):
    """Environment of the handlers of one host. `draws`: draws and step outcomes in the present turn of `agent`."""

    def __init__(self, host: HostRun, steps: Steps) -> None:
        self._host = host
        self._steps = steps
        self.draws: list[object] = []
        self.agent = ""

    def now_ns(self) -> int:
        now = self._host.wall_ns()
        self.draws.append(now)
        return now

    def elapsed_ns(self) -> int:
        return self._host.shared.kernel.now_ns

    def random(self) -> float:
        drawn = self._host.shared.random_of(self.agent)
        self.draws.append(drawn)
        return drawn

    def beating(self, name: str, function: Callable[[], Any], _beat: Heartbeats, _heartbeat_s: float | None) -> Any:
        return self.step(name, function)  # without heartbeats, since a stub runs

    async def step(self, name: str, function: Callable[[], Any]) -> Any:  # the function's own result
        try:
            value = await self._steps.step(self._host, name, function)
        except Exception as error:
            self.draws.append(StepOutcome(error=error))
            raise
        self.draws.append(StepOutcome(_kept(value)))
        return value

    async def in_thread(self, handler: Callable[..., Any], *arguments: Any) -> None:
        """Run a handler in the thread of the simulation, at one instant."""
        outcome = handler(*arguments)
        if inspect.iscoroutine(outcome):
            await outcome

    async def pause(self, seconds: float) -> None:
        await Wait(round(seconds * SECOND_NS))

    async def limited(self, running: Awaitable[Any], seconds: float) -> Any:  # the result of what runs
        draws, known = self.draws, len(self.draws)
        try:
            return await limited(self._host, running, round(seconds * SECOND_NS))
        except TimeoutError as error:
            if len(draws) == known:  # the step itself has not ended
                draws.append(StepOutcome(error=error))
            raise


def _kept(value: Any) -> Any:  # what a step returned
    """Return a copy that the handler cannot change; the value itself if it cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value
