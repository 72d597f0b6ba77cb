"""Contexts of LlamaIndex's workflows in our store: they go on where they stood, also after a kill."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("workflows", reason="needs llama-index-workflows: make test-adapters")

from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent

from snapline.adapters.llama_workflows import SnaplineContexts
from snapline.chaos.crash_child import CrashNote
from snapline.chaos.crash_kit import CrashKit

pytestmark = [pytest.mark.adapters, pytest.mark.timeout(600)]

STEPS = 6


class Next(Event):
    number: int


class Count(Workflow):
    """Each step is done once: a context may be saved while a step runs, whose changes are in it already, and which runs again then."""

    note: CrashNote | None = None
    halt: int | None = None
    """This step does not end."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Next:
        await ctx.store.set("large", "x" * 20_000)
        return Next(number=0)

    @step
    async def count(self, ctx: Context, ev: Next) -> Next | StopEvent:
        done: list[int] = await ctx.store.get("done", default=[])
        if ev.number not in done:
            if self.note is not None:
                self.note.began(str(ev.number))
            done = [*done, ev.number]
            await ctx.store.set("done", done)
        ctx.write_event_to_stream(ev)
        if ev.number == self.halt:
            await asyncio.Event().wait()
        return Next(number=ev.number + 1) if ev.number + 1 < STEPS else StopEvent(result=done)


async def run(contexts: SnaplineContexts, workflow: Count) -> Any:
    """Run, or go on, and save whenever something is done; leave it where it halts."""
    handler = workflow.run(ctx=await contexts.load("one", workflow))
    async for event in handler.stream_events():
        if isinstance(event, Next):
            await contexts.save("one", handler.ctx)
            if workflow.note is not None:
                workflow.note.kept(str(event.number))
            if event.number == workflow.halt:
                await handler.cancel_run()
                return None
    return await handler


async def test_a_context_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    with SnaplineContexts.open(tmp_path) as contexts:
        assert await contexts.load("one", Count()) is None
        halting = Count()
        halting.halt = 2
        await run(contexts, halting)
    with SnaplineContexts.open(tmp_path) as contexts:
        assert contexts.names() == ["one"]
        context = await contexts.load("one", Count())
        assert context is not None and context.is_running
        assert await context.store.get("done") == [0, 1, 2]
        assert await run(contexts, Count()) == list(range(STEPS))
        assert await contexts.delete("one") and not await contexts.delete("one")


async def test_values_of_a_serializer_come_back(tmp_path: Path) -> None:
    from workflows.context import JsonSerializer

    with SnaplineContexts.open(tmp_path) as contexts:
        workflow = Count()
        handler = workflow.run()
        await handler
        await handler.ctx.store.set("done", [{"deep": [1, 2.5, None, "ü"]}])
        serializer = JsonSerializer(allowed_types=[Next])
        await contexts.save("one", handler.ctx, serializer)
        found = await contexts.load("one", workflow, serializer)
        assert found is not None and await found.store.get("done") == [{"deep": [1, 2.5, None, "ü"]}]


async def counting(folder: Path, note: CrashNote) -> Any:
    with SnaplineContexts.open(folder / "store") as contexts:
        workflow = Count()
        workflow.note = note
        context = await contexts.load("one", workflow)
        note.found(*map(str, await context.store.get("done", default=[]) if context is not None else ()))
        return await run(contexts, workflow)


def test_a_workflow_resumes_wherever_it_is_killed(snapline_crash_kit: CrashKit) -> None:
    report = snapline_crash_kit.check(counting, points=200)
    assert report.kills >= len(report.points)
