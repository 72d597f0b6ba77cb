"""Smoke test of one extra of an installed snapline: `python smoke_extras.py EXTRA` with the interpreter that `snapline[EXTRA]` is installed for.

It runs a small program with the extra's framework, without network and in an empty folder. `release/check_wheel.py` starts it.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

COMMAND_S = 240
"""Limit for one command. Ray takes longest to start."""

SNAPLINE = str(Path(sys.executable).parent / "snapline")

SAVED = """
import operator
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph

from snapline.adapters.langgraph import SnaplineSaver


class State(TypedDict):
    count: int


graph = StateGraph(State)
graph.add_node("work", lambda state: {"count": state["count"] + 1})
graph.add_edge(START, "work")
graph.add_edge("work", END)
with SnaplineSaver.open("checkpoints") as saver:
    app = graph.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "one"}}
    print(app.invoke({"count": app.get_state(config).values.get("count", 0)}, config)["count"])
"""

WORKFLOW = """
import asyncio

from workflows import Context, Workflow, step
from workflows.events import StartEvent, StopEvent

from snapline.adapters.llama_workflows import SnaplineContexts


class Visits(Workflow):
    @step
    async def count(self, ctx: Context, ev: StartEvent) -> StopEvent:
        visits = await ctx.store.get("visits", default=0) + 1
        await ctx.store.set("visits", visits)
        return StopEvent(result=visits)


async def main():
    with SnaplineContexts.open("contexts") as contexts:
        workflow = Visits()
        handler = workflow.run(ctx=await contexts.load("one", workflow))
        print(await handler)
        await contexts.save("one", handler.ctx)


asyncio.run(main())
"""

CHECKPOINTS = """
import asyncio

from agent_framework import Executor, WorkflowBuilder, WorkflowContext, handler

from snapline.adapters.microsoft_agent_framework import SnaplineCheckpointStorage


class Double(Executor):
    @handler
    async def double(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        await (ctx.send_message(2 * number) if number < 50 else ctx.yield_output(number))


async def main():
    with SnaplineCheckpointStorage.open("checkpoints") as storage:
        step = Double(id="double")
        builder = WorkflowBuilder(name="doubling", start_executor=step, checkpoint_storage=storage, output_from="all")
        if await storage.get_latest(workflow_name="doubling") is None:
            await builder.add_edge(step, step).build().run(1)
            print(1)
        else:
            print(2)


asyncio.run(main())
"""

FLOW = """
from crewai.flow.flow import Flow, start
from crewai.flow.persistence import persist
from pydantic import BaseModel

from snapline.adapters.crewai_flows import SnaplineFlowPersistence

persistence = SnaplineFlowPersistence(location="flows")


class Paid(BaseModel):
    id: str = "bills"
    count: int = 0


@persist(persistence)
class Bills(Flow[Paid]):
    @start()
    def pay(self):
        self.state.count += 1


Bills(suppress_flow_events=True).kickoff(inputs={"id": "bills"})
print(persistence.load_state("bills")["count"])
"""

SESSION = """
import asyncio

from agents import Runner

from asks import config, researcher
from snapline.adapters.openai_agents import SnaplineSessions


async def main():
    with SnaplineSessions.open("sessions") as sessions:
        session = sessions.session("one")
        await Runner.run(researcher, "What?", session=session, run_config=config)
        print(len(await session.get_items()) // 2)


asyncio.run(main())
"""

OPENAI = """
import agents
from agents.items import ModelResponse
from agents.testing import assistant_message
from agents.usage import Usage

from snapline.adapters.openai_agent_runs import run


class Model(agents.Model):
    async def get_response(self, *arguments, **options):
        return ModelResponse(output=[assistant_message("42")], usage=Usage(), response_id=None)

    def stream_response(self, *arguments, **options):
        raise NotImplementedError


config = agents.RunConfig(tracing_disabled=True)
researcher = agents.Agent(name="researcher", model=Model())


async def output_of(ctx, question):
    return (await run(ctx, researcher, question, run_config=config)).final_output
"""

PYDANTIC = """
import pydantic_ai
from pydantic_ai.models.test import TestModel

from snapline.adapters.pydantic_ai import SnaplineDurability, run

model = TestModel(custom_output_text="42")
researcher = pydantic_ai.Agent(model, name="researcher", capabilities=[SnaplineDurability()])


async def output_of(ctx, question):
    return (await run(ctx, researcher, question)).output
"""

FLEET = """
import snapline


class Ask(snapline.Message):
    question: str


class Asker(snapline.Agent):
    state: int

    async def on_start(self, ctx):
        ctx.send("researcher", Ask("What?"))


class Researcher(snapline.Agent):
    state: list[str]

    @snapline.handler(durable=True)
    async def on_ask(self, message: Ask, ctx: snapline.Context) -> None:
        self.state.append(await output_of(ctx, message.question))


fleet = snapline.Fleet(
    "asks",
    agents={"asker": Asker(0), "researcher": Researcher([])},
    triggers=[snapline.Every(seconds=0.2)],
    stop_when=lambda cut: cut.is_quiet,
)
"""

READ = """
import snapline

from asks import fleet

print(snapline.open_store("run/store", fleet=fleet).snapshot("latest").agents["researcher"].state)
"""


def run(*command: str) -> str:
    """Return what a command prints, which must end with 0."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def check_counts(program: str) -> None:
    """Run a program twice: what the first run stored is there in the second."""
    Path("count.py").write_text(program)
    counts = [run(sys.executable, "count.py").split()[-1] for _ in range(2)]
    assert counts == ["1", "2"], counts


def check_turn(framework: str) -> None:
    """Run a framework's agent in a durable turn of a fleet."""
    Path("asks.py").write_text(framework + FLEET)
    Path("read.py").write_text(READ)
    run(SNAPLINE, "run", "asks:fleet", "--hosts", "1", "--data-dir", "run")
    assert run(sys.executable, "read.py") == "['42']\n", run(sys.executable, "read.py")


def check_openai() -> None:
    check_turn(OPENAI)
    check_counts(SESSION)


def check_ray() -> None:
    """Simulate the shipped example in tasks of a Ray of its own."""
    swept = run(
        SNAPLINE,
        "sim",
        "sweep",
        "snapline.examples.hello:fleet",
        "--seeds",
        "0:4",
        "--on",
        "ray",
        "--address",
        "local",
        "-o",
        "json",
    )
    assert '"verdict": "pass"' in swept, swept


def check_torch() -> None:
    """Train the shipped example."""
    run(SNAPLINE, "run", "snapline.examples.training:fleet", "--hosts", "2", "--data-dir", "run", "--arg", "steps=5")


CHECKS: dict[str, Callable[[], None]] = {
    "agent-framework": lambda: check_counts(CHECKPOINTS),
    "crewai": lambda: check_counts(FLOW),
    "langgraph": lambda: check_counts(SAVED),
    "llama-workflows": lambda: check_counts(WORKFLOW),
    "openai-agents": check_openai,
    "pydantic-ai": lambda: check_turn(PYDANTIC),
    "ray": check_ray,
    "torch": check_torch,
}


def main() -> None:
    CHECKS[sys.argv[1]]()
    print(f"  {sys.argv[1]} ok", flush=True)


if __name__ == "__main__":
    main()
