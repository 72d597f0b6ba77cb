"""Checkpoints of Microsoft Agent Framework's workflows in our store: what the framework's own storage answers, and what is left where a process is killed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agent_framework", reason="needs agent-framework-core: make test-adapters")

from agent_framework import (
    Executor,
    FileCheckpointStorage,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowContext,
    handler,
)

from snapline.adapters.microsoft_agent_framework import SnaplineCheckpointStorage
from snapline.chaos.crash_child import CrashNote
from snapline.chaos.crash_kit import CrashKit

pytestmark = [pytest.mark.adapters, pytest.mark.timeout(600)]


@dataclass
class Amount:
    """A type of the application's own."""

    cents: int


def made(number: int, *, name: str = "bills", **state: Any) -> WorkflowCheckpoint:
    return WorkflowCheckpoint(
        name,
        "graph",
        checkpoint_id=f"{name}-{number}",
        timestamp=f"2026-01-01T00:00:{number:02}+00:00",
        state={"count": number, "text": "x" * 5000, **state},
        iteration_count=number,
    )


async def answers(storage: Any) -> list[Any]:
    for number in (1, 3, 2):
        assert await storage.save(made(number)) == f"bills-{number}"
    await storage.save(made(7, name="other"))
    await storage.save(made(2, more=[1, {"a": None}]))
    latest, none = [await storage.get_latest(workflow_name=name) for name in ("bills", "nobody's")]
    found = [
        sorted(await storage.list_checkpoint_ids(workflow_name="bills")),
        sorted([each.to_dict() for each in await storage.list_checkpoints(workflow_name="bills")], key=str),
        (await storage.load("other-7")).to_dict(),
        latest.to_dict(),
        none,
        await storage.delete("bills-3"),
        await storage.delete("bills-3"),
        (await storage.get_latest(workflow_name="bills")).to_dict(),
    ]
    with pytest.raises(WorkflowCheckpointException):
        await storage.load("bills-3")
    return found


async def test_it_answers_as_the_frameworks_own_storage(tmp_path: Path) -> None:
    with SnaplineCheckpointStorage.open(tmp_path / "ours") as ours:
        assert await answers(ours) == await answers(FileCheckpointStorage(str(tmp_path / "theirs")))
        left = await ours.list_checkpoint_ids(workflow_name="bills")
    with SnaplineCheckpointStorage.open(tmp_path / "ours") as again:
        assert await again.list_checkpoint_ids(workflow_name="bills") == left == ["bills-1", "bills-2"]
        assert (await again.load("bills-2")).state["more"] == [1, {"a": None}]


async def test_what_a_superstep_has_not_changed_costs_a_reference(tmp_path: Path) -> None:
    with SnaplineCheckpointStorage.open(tmp_path) as storage:
        sizes = []
        for number in range(3):
            await storage.save(made(number, large=[str(x**3) for x in range(20_000)]))
            sizes.append(sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()))
    assert sizes[0] > 50_000 and sizes[2] - sizes[1] < 2000, sizes


async def test_types_that_are_not_allowed_are_refused_when_they_are_saved(tmp_path: Path) -> None:
    with SnaplineCheckpointStorage.open(tmp_path) as storage:
        with pytest.raises(WorkflowCheckpointException, match="Amount"):
            await storage.save(made(1, amount=Amount(5)))
        assert await storage.list_checkpoint_ids(workflow_name="bills") == []
        storage.allow([f"{Amount.__module__}:{Amount.__qualname__}"])
        await storage.save(made(1, amount=Amount(5)))
        assert (await storage.load("bills-1")).state["amount"] == Amount(5)


STEPS = 5


class Counter(Executor):
    """Sends its message on until it is large enough. What it has done is part of its state."""

    def __init__(self, note: CrashNote) -> None:
        super().__init__(id="counter")
        self.done: list[int] = []
        self._note = note

    @handler
    async def count(self, number: int, ctx: WorkflowContext[int, list[int]]) -> None:
        if self.done:
            self._note.kept(str(self.done[-1]))  # a superstep is kept before the next begins
        self._note.began(str(number))
        self.done.append(number)
        if number + 1 < STEPS:
            await ctx.send_message(number + 1)
        else:
            await ctx.yield_output(self.done)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"done": self.done}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.done = list(state["done"])


async def workflow(folder: Path, note: CrashNote) -> list[int]:
    """A workflow of some supersteps that goes on from its newest checkpoint."""
    with SnaplineCheckpointStorage.open(folder / "store") as storage:
        counter = Counter(note)
        built = (
            WorkflowBuilder(name="count", start_executor=counter, checkpoint_storage=storage, output_from="all")
            .add_edge(counter, counter)
            .build()
        )
        latest = await storage.get_latest(workflow_name="count")
        states = latest.state.get("_executor_state", {}) if latest is not None else {}
        note.found(*map(str, states.get("counter", {}).get("done", [])))
        if latest is None:
            await built.run(0)
        else:
            await built.run(checkpoint_id=latest.checkpoint_id)
        return counter.done


def test_a_workflow_resumes_wherever_it_is_killed(snapline_crash_kit: CrashKit) -> None:
    report = snapline_crash_kit.check(workflow, points=200)
    assert report.kills >= len(report.points)
