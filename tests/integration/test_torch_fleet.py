"""Training on three hosts under SIGKILL ends with the weights of a training that nobody disturbed, bit for bit (G3).

The oracle is a plain loop of torch without agents, messages or checkpoints.
"""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.cuts import check_consistent, check_store, store_of
from tests.integration.running import Running, running

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'snapline[torch]'")

from snapline.examples import training  # needs torch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WORKERS, STEPS = 3, 150
ARGUMENTS = {"workers": str(WORKERS), "steps": str(STEPS), "pause": "0.05", "period": "0.3"}


def undisturbed() -> tuple[dict[str, Any], dict[int, Any]]:
    """The weights, and the optimizer's state by parameter, after all steps."""
    model, optimizer = training.build()
    draws = [torch.Generator().manual_seed(index).get_state() for index in range(WORKERS)]
    for step in range(STEPS):
        found = []
        for index in range(WORKERS):
            torch.set_rng_state(draws[index])
            found.append(training.gradient_of(model, index, step))
            draws[index] = torch.get_rng_state()
        training.apply_gradient(model, optimizer, np.mean(found, axis=0))
    return model.state_dict(), optimizer.state_dict()["state"]


def check_weights(data_dir: Path) -> None:
    """The last epoch of the store has every worker at the end, with the weights and momentum of the oracle."""
    epochs = check_store(data_dir)
    fleet = training.fleet(**ARGUMENTS)
    store = store_of(data_dir)
    check_consistent(store, epochs[-1])
    cut = load_cut(store, epochs[-1], fleet)
    weights, moments = undisturbed()
    assert len(cut.states) == WORKERS
    for state in cut.states.values():
        assert isinstance(state, training.Work) and state.step == STEPS
        saved = state.training.state_dict()
        assert {name: value.numpy().tobytes() for name, value in saved.items()} == {
            name: value.numpy().tobytes() for name, value in weights.items()
        }
        again = training.build()
        state.training.load_into(*again)
        found = again[1].state_dict()["state"]
        assert [x["momentum_buffer"].numpy().tobytes() for x in found.values()] == [
            x["momentum_buffer"].numpy().tobytes() for x in moments.values()
        ]


async def until_trained(fleet: Running, data_dir: Path, steps: int) -> None:
    """Wait until a complete epoch has all workers beyond so many steps."""
    while True:
        status = await fleet.until_epochs(1)
        cut = await asyncio.to_thread(
            load_cut, store_of(data_dir), status.last_complete_epoch, training.fleet(**ARGUMENTS)
        )
        if all(isinstance(state, training.Work) and state.step >= steps for state in cut.states.values()):
            return
        await fleet.until_more_epochs()


async def test_a_training_under_sigkill_ends_with_the_same_weights(data_dir: Path) -> None:
    async with running(data_dir, "snapline.examples.training:fleet", ARGUMENTS) as fleet:
        await until_trained(fleet, data_dir, 5)
        fleet.local.kill("h2")
        recovery = await fleet.until_recovered()
        assert recovery["lost_hosts"] == ["h2"]
        await until_trained(fleet, data_dir, STEPS // 3)
        for host in fleet.local.hosts:
            fleet.local.kill(host)
        await fleet.until_recovered(1)
        await fleet.end()
    check_weights(data_dir)


async def test_workers_that_move_train_on(data_dir: Path) -> None:
    async with running(data_dir, "snapline.examples.training:fleet", ARGUMENTS, on_failure="move") as fleet:
        await until_trained(fleet, data_dir, STEPS // 4)
        fleet.local.kill("h3")
        recovery = await fleet.until_recovered()
        assert recovery["hosts"] == ["h1", "h2"]
        await fleet.end()
    check_weights(data_dir)
