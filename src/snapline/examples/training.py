"""Train one small neural network with several agents. Each agent trains on its own data. All agents apply the mean of their gradients,
which keeps their weights equal.

A checkpoint of a training run must contain the weights, the optimizer's momentum, the random state of dropout, and the gradients in
transit. A cut of the fleet contains all of these. So a fleet that was killed and recovered ends with exactly the same weights as a fleet
that was never killed.

    pip install 'snapline[torch]'
    snapline run snapline.examples.training:fleet --hosts 2 --arg steps=100

For each step, a worker sends its gradient to all other workers, waits for their gradients, and computes the mean in the order of the
workers' names. So the result does not depend on the order in which messages arrive. A worker is at most one step ahead of any other worker.
"""

import functools
from typing import Any

import msgspec
import numpy as np
import torch  # type: ignore[import-not-found,unused-ignore]  # an extra

import snapline

Array = np.ndarray[Any, Any]

INPUTS, WIDTH, BATCH = 16, 256, 32


class Gradient(snapline.Message):
    """The gradient of one worker for one step, as a flat float32 array."""

    step: int
    values: Array


class NextStep(snapline.Message):
    """A timer message that a worker sends to itself."""


class Work(msgspec.Struct):
    """State of a worker.

    `gradients` contains the gradients for the current step by worker. `early` contains the gradients for the next step, from workers that
    are one step ahead.
    """

    training: snapline.TorchState
    workers: list[str]
    steps: int
    pause_s: float
    step: int = 0
    gradients: dict[str, Array] = {}
    early: dict[str, Array] = {}


def build() -> tuple[Any, Any]:
    """Return a new network and its optimizer.

    When a training run is restored, only the names and shapes of the parameters must be the same as before.
    """
    torch.set_num_threads(1)  # all agents share the cores
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = (torch.nn.Linear(INPUTS, WIDTH), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(WIDTH, 1))
        model = torch.nn.Sequential(*layers)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def batch(worker: int, step: int) -> tuple[Any, Any]:
    """Return a worker's training data for a step. The result contains the inputs of shape (BATCH, INPUTS) and the target outputs of shape
    (BATCH, 1), both float32."""
    inputs = np.random.default_rng([worker, step]).standard_normal((BATCH, INPUTS), np.float32)
    return torch.from_numpy(inputs), torch.from_numpy(np.sin(inputs.sum(axis=1, keepdims=True)))


def gradient_of(model: Any, worker: int, step: int) -> Array:
    """Return the gradient for a worker's data at a step, as a flat array. Dropout uses torch's random number generator."""
    inputs, targets = batch(worker, step)
    model.zero_grad()
    ((model(inputs) - targets) ** 2).mean().backward()
    return np.concatenate([parameter.grad.numpy().ravel() for parameter in model.parameters()])


def apply_gradient(model: Any, optimizer: Any, gradient: Array) -> None:
    """Perform one step of the optimizer with a flat gradient."""
    remaining = torch.from_numpy(gradient)
    for parameter in model.parameters():
        own_part, remaining = remaining[: parameter.numel()], remaining[parameter.numel() :]
        parameter.grad = own_part.reshape(parameter.shape).clone()
    optimizer.step()


class Worker(snapline.Agent):
    """An agent that trains the network. A step of the optimizer cannot be undone, so an error is treated as a crash of the agent."""

    on_error = "recover"
    state: Work

    async def on_start(self, ctx: snapline.Context) -> None:
        self._compute(ctx)
        self._step_if_complete(ctx)

    @snapline.handler
    async def on_next_step(self, message: NextStep, ctx: snapline.Context) -> None:
        self._compute(ctx)
        self._step_if_complete(ctx)

    @snapline.handler
    async def on_gradient(self, message: Gradient, ctx: snapline.Context) -> None:
        is_early = message.step > self.state.step
        (self.state.early if is_early else self.state.gradients)[ctx.sender] = message.values.copy()
        self._step_if_complete(ctx)

    def _live(self) -> snapline.TorchState:
        """Return the network and its optimizer. After a recovery, the network is created first."""
        training = self.state.training
        if not training.is_live:
            training.load_into(*build())
        return training

    def _compute(self, ctx: snapline.Context) -> None:
        state, training = self.state, self._live()
        with training.randomness():
            gradient = gradient_of(training.model, state.workers.index(ctx.agent), state.step)
        state.gradients[ctx.agent] = gradient
        for worker in state.workers:
            if worker != ctx.agent:
                ctx.send(worker, Gradient(step=state.step, values=gradient))

    def _step_if_complete(self, ctx: snapline.Context) -> None:
        state = self.state
        if len(state.gradients) < len(state.workers):
            return
        mean = np.mean([state.gradients[worker] for worker in state.workers], axis=0)
        training = self._live()
        apply_gradient(training.model, training.optimizer, mean)
        state.gradients, state.early = state.early, {}
        state.step += 1
        if state.step < state.steps:
            ctx.set_timer("next", state.pause_s, NextStep())


def fleet(workers: str = "3", steps: str = "200", pause: str = "0", period: str = "0.3") -> snapline.Fleet:
    """Return the fleet. `pause` is the number of seconds between two steps. `period` is the number of seconds between checkpoints, or 0 to
    take no checkpoints."""
    names = [f"worker-{index}" for index in range(int(workers))]
    return snapline.Fleet(
        "training",
        agents={
            name: functools.partial(_make, index, names, int(steps), float(pause)) for index, name in enumerate(names)
        },
        triggers=[snapline.Every(seconds=float(period))] if float(period) else [],
        stop_when=lambda cut: cut.is_quiet,
    )


def _make(index: int, names: list[str], steps: int, pause_s: float) -> Worker:
    training = snapline.TorchState.of(*build(), seed=index)
    return Worker(Work(training, names, steps, pause_s))
