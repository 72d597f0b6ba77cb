"""A clerk, an agent of Pydantic AI, whose tool waits before a gate between its two requests to the model."""

import time
from pathlib import Path

import msgspec
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

import snapline
from snapline.adapters.pydantic_ai import SnaplineDurability, run

INPUT, OUTPUT = 10, 3
"""Tokens of each request."""


class Book(msgspec.Struct):
    folder: str
    answers: list[str] = []


class Question(snapline.Message):
    text: str


def clerk_of(folder: Path) -> Agent[None, str]:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        with (folder / "requests").open("a") as file:
            file.write(f"{len(messages)}\n")
        part = ToolCallPart("wait", {}, "w1") if len(messages) == 1 else TextPart("done")
        return ModelResponse([part], usage=RequestUsage(input_tokens=INPUT, output_tokens=OUTPUT))

    clerk = Agent(FunctionModel(answer, model_name="scripted"), name="clerk", capabilities=[SnaplineDurability()])

    @clerk.tool_plain
    def wait() -> str:
        while not (folder / "gate").exists():
            time.sleep(0.05)
        return "open"

    return clerk


class Clerk(snapline.Agent):
    state: Book

    @snapline.handler(durable=True)
    async def on_question(self, message: Question, ctx: snapline.Context) -> None:
        result = await run(ctx, clerk_of(Path(self.state.folder)), message.text)
        self.state.answers.append(result.output)


def is_stopped(cut: snapline.Cut) -> bool:
    state = cut.states["clerk"]
    assert isinstance(state, Book)
    return bool(state.answers) and (Path(state.folder) / "stop").exists()


def fleet(folder: str) -> snapline.Fleet:
    return snapline.Fleet("gated", agents={"clerk": lambda: Clerk(Book(folder))}, stop_when=is_stopped)
