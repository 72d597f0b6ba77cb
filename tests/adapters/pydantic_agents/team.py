"""A boss and a reader, both agents of Pydantic AI. The boss has tools that look, ask the reader, and pay; models say outside that they are asked."""

import time
from pathlib import Path

import msgspec
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import snapline
from snapline.adapters.pydantic_ai import SnaplineDurability, current_rounds, effect_key, run

CITIES = ("Paris", "Rome", "Oslo")


class Memory(msgspec.Struct):
    notes: str
    reports: list[str] = []


class Question(snapline.Message):
    text: str


class Report(snapline.Message):
    text: str


def note(notes: str, text: str) -> None:
    with Path(notes).open("a") as file:
        file.write(f"{text}\n")


def returns_of(messages: list[ModelMessage]) -> list[str]:
    return [str(part.content) for part in messages[-1].parts if isinstance(part, ToolReturnPart)]


def boss_model(notes: str) -> FunctionModel:
    """It looks at all cities at once, then asks the reader, then pays, and then reports."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        note(notes, f"boss {len(messages)}")
        time.sleep(0.02)
        match len(messages):
            case 1:
                looks = [ToolCallPart("look", {"city": city}, f"look-{city}") for city in CITIES]
                return ModelResponse([*looks, ToolCallPart("ask_reader", {"text": "which?"}, "ask")])
            case 3:
                return ModelResponse([ToolCallPart("pay", {"amount": 30}, "pay")])
            case _:
                return ModelResponse([TextPart("; ".join(returns_of(messages[:3]) + returns_of(messages)))])

    return FunctionModel(answer)


def reader_model(notes: str) -> FunctionModel:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        note(notes, f"reader {len(messages)}")
        time.sleep(0.02)
        return ModelResponse([TextPart("the second")])

    return FunctionModel(answer)


def boss_of(notes: str) -> Agent[None, str]:
    boss = Agent(boss_model(notes), name="boss", capabilities=[SnaplineDurability()])

    @boss.tool_plain
    def look(city: str) -> str:
        note(notes, f"look {city}")
        time.sleep(0.02)
        return f"{city} is fine"

    @boss.tool_plain(metadata={"snapline": False})
    async def ask_reader(text: str) -> str:
        rounds = current_rounds()
        assert rounds is not None
        report = await rounds.wait(lambda: rounds.ctx.call("reader", Question(text), Report))
        return report.text

    @boss.tool_plain(metadata={"snapline": {"effect": True}})
    def pay(amount: int) -> str:
        note(notes, f"pay {amount} {effect_key()}")
        return f"paid {amount}"

    return boss


def reader_of(notes: str) -> Agent[None, str]:
    return Agent(reader_model(notes), name="reader", capabilities=[SnaplineDurability()])


class Boss(snapline.Agent):
    state: Memory

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Question("where?"))

    @snapline.handler(durable=True)
    async def on_question(self, message: Question, ctx: snapline.Context) -> None:
        result = await run(ctx, boss_of(self.state.notes), message.text)
        self.state.reports.append(result.output)


class Reader(snapline.Agent):
    state: Memory

    @snapline.handler(durable=True)
    async def on_question(self, message: Question, ctx: snapline.Context) -> None:
        result = await run(ctx, reader_of(self.state.notes), message.text)
        self.state.reports.append(result.output)
        ctx.reply(Report(result.output))


EXPECTED = "Paris is fine; Rome is fine; Oslo is fine; the second; paid 30"


def is_over(cut: snapline.Cut) -> bool:
    state = cut.states["boss"]
    assert isinstance(state, Memory)
    return bool(state.reports)


def fleet(notes: str, recovery: str = "global") -> snapline.Fleet:
    return snapline.Fleet(
        "team",
        agents={"boss": lambda: Boss(Memory(notes)), "reader": lambda: Reader(Memory(notes))},
        triggers=[snapline.Every(seconds=0.2)],
        stop_when=is_over,
        recovery=recovery,
    )
